use axum::extract::{Path, State};
use bay_types::bay::WorkspaceView;
use http::StatusCode;

use super::{Caller, Failure, Json, NoQuery, Shared};
use crate::daemon::to_the_end;
use crate::service::workspaces;

pub(super) async fn list(_: NoQuery, State(daemon): Shared) -> Result<Json<Vec<WorkspaceView>>, Failure> {
    Ok(Json(workspaces::list(&daemon).await?))
}

pub(super) async fn show(
    _: NoQuery,
    State(daemon): Shared,
    Path(workspace): Path<String>,
) -> Result<Json<WorkspaceView>, Failure> {
    Ok(Json(workspaces::find(&daemon, &workspace).await?))
}

pub(super) async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(workspace): Path<String>,
) -> Result<StatusCode, Failure> {
    to_the_end(async move { workspaces::remove(&daemon, workspace, caller).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
