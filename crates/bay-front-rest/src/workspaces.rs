use axum::extract::{Path, State};
use bay_types::bay::WorkspaceView;
use http::StatusCode;

use crate::request::{Caller, NoQuery, Shared};
use crate::response::{Failure, Json};
use bay_core::verbs::workspaces;

pub(super) async fn list(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<Json<Vec<WorkspaceView>>, Failure> {
    Ok(Json(workspaces::list(&daemon, &who).await?))
}

pub(super) async fn show(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(workspace): Path<String>,
) -> Result<Json<WorkspaceView>, Failure> {
    Ok(Json(workspaces::show(&daemon, &who, &workspace).await?))
}

pub(super) async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(workspace): Path<String>,
) -> Result<StatusCode, Failure> {
    workspaces::remove(&daemon, &who, &workspace).await?;
    Ok(StatusCode::NO_CONTENT)
}
