use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::get;
use bay_core::Daemon;
use bay_core::verbs::workspaces;
use bay_types::bay::WorkspaceView;
use http::StatusCode;

use crate::request::{Caller, NoQuery, Shared};
use crate::response::{Failure, Json};

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new()
        .route("/v1/workspaces", get(list))
        .route("/v1/workspaces/{workspace}", get(show).delete(remove))
}

async fn list(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<Json<Vec<WorkspaceView>>, Failure> {
    Ok(Json(workspaces::list(&daemon, &who).await?))
}

async fn show(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(workspace): Path<String>,
) -> Result<Json<WorkspaceView>, Failure> {
    Ok(Json(workspaces::show(&daemon, &who, &workspace).await?))
}

async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(workspace): Path<String>,
) -> Result<StatusCode, Failure> {
    workspaces::remove(&daemon, &who, &workspace).await?;
    Ok(StatusCode::NO_CONTENT)
}
