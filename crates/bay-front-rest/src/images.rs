use axum::extract::{Path, State};
use axum::response::Response;
use bay_types::image::{ImageImport, ImageView};
use http::StatusCode;

use crate::request::{Caller, Input, NoQuery, Shared};
use crate::response::{Failure, Json, progress_then_result};
use bay_core::verbs::images;

pub(super) async fn list(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<Json<Vec<ImageView>>, Failure> {
    Ok(Json(images::list(&daemon, &who).await?))
}

pub(super) async fn import(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Input(import): Input<ImageImport>,
) -> Response {
    progress_then_result(|teller| async move { images::import(&daemon, &who, import, teller).await })
}

pub(super) async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(image): Path<String>,
) -> Result<StatusCode, Failure> {
    images::remove(&daemon, &who, &image).await?;
    Ok(StatusCode::NO_CONTENT)
}
