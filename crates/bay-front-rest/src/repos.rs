//! Cached repositories.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use axum::routing::{delete, get, post};
use axum::{Extension, Router};
use bay_core::Daemon;
use bay_core::verbs::repos;
use bay_types::repo::{RepoOffer, RepoOffered, RepoSync, RepoView};
use futures_util::TryStreamExt;
use http::StatusCode;

use crate::request::{Caller, Input, NoQuery, Shared};
use crate::response::{Failure, Json, progress_then_result};
use bay_cli_words::Words;

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new()
        .route("/v1/repos", get(list))
        .route("/v1/repos/offer", post(offer))
        .route("/v1/repos/sync", post(sync))
        .route("/v1/repos/{repo}/bundle", post(bundle))
        .route("/v1/repos/{repo}", delete(remove))
}

async fn list(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<Json<Vec<RepoView>>, Failure> {
    Ok(Json(repos::list(&daemon, &who).await?))
}

async fn offer(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Input(offer): Input<RepoOffer>,
) -> Result<Json<RepoOffered>, Failure> {
    Ok(Json(repos::offer(&daemon, &who, offer).await?))
}

async fn bundle(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(repo): Path<String>,
    request: Request,
) -> Result<Json<RepoView>, Failure> {
    let bundle = Box::pin(request.into_body().into_data_stream().map_err(Into::into));
    Ok(Json(repos::upload(&daemon, &who, &repo, bundle).await?))
}

async fn sync(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Extension(words): Extension<Words>,
    Input(sync): Input<RepoSync>,
) -> Response {
    progress_then_result(
        words,
        |reporter| async move { repos::sync(&daemon, &who, &sync.repo, reporter).await },
    )
}

async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(repo): Path<String>,
) -> Result<StatusCode, Failure> {
    repos::remove(&daemon, &who, &repo).await?;
    Ok(StatusCode::NO_CONTENT)
}
