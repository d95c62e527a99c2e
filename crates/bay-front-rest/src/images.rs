use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{delete, get, post};
use axum::{Extension, Router};
use bay_core::Daemon;
use bay_core::verbs::images;
use bay_types::image::{ImageImport, ImagePrune, ImageView, ImagesPruned};
use http::StatusCode;

use crate::request::{Caller, Input, NoQuery, Shared};
use crate::response::{Failure, Json, progress_then_result};
use bay_cli_words::Words;

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new()
        .route("/v1/images", get(list).post(import))
        .route("/v1/images/prune", post(prune))
        .route("/v1/images/{image}", delete(remove))
}

async fn list(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<Json<Vec<ImageView>>, Failure> {
    Ok(Json(images::list(&daemon, &who).await?))
}

async fn import(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Extension(words): Extension<Words>,
    Input(import): Input<ImageImport>,
) -> Response {
    progress_then_result(
        words,
        |reporter| async move { images::import(&daemon, &who, import, reporter).await },
    )
}

async fn prune(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Input(prune): Input<ImagePrune>,
) -> Result<Json<ImagesPruned>, Failure> {
    Ok(Json(images::prune(&daemon, &who, prune).await?))
}

async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(image): Path<String>,
) -> Result<StatusCode, Failure> {
    images::remove(&daemon, &who, &image).await?;
    Ok(StatusCode::NO_CONTENT)
}
