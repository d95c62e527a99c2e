//! Checkpoints, and what is made of them.

use axum::extract::{Path, State};
use bay_types::checkpoint::{
    CheckpointCreate, CheckpointView, ForkCreate, Forked, Promote, Restore, Restored,
};
use bay_types::{ApiError, CheckpointName, ErrorCode};

use super::{Caller, Failure, Input, Json, NoQuery, Shared};
use crate::daemon::to_the_end;
use crate::service;

pub(super) async fn list(
    _: NoQuery,
    State(daemon): Shared,
    Path(bay): Path<String>,
) -> Result<Json<Vec<CheckpointView>>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(service::checkpoints::list(&daemon, &handle).await?))
}

pub(super) async fn create(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
    Input(create): Input<CheckpointCreate>,
) -> Result<Json<CheckpointView>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(to_the_end(service::checkpoints::create(daemon, handle, create, caller)).await?))
}

pub(super) async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path((bay, checkpoint)): Path<(String, String)>,
) -> Result<Json<()>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    let name: CheckpointName = checkpoint.parse().map_err(|e: bay_types::id::ParseIdError| {
        ApiError::new(
            ErrorCode::InvalidName,
            e.to_string(),
            format!("`bay checkpoints ls {}` shows them", handle.name),
        )
    })?;
    Ok(Json(to_the_end(service::checkpoints::remove(daemon, handle, name, caller)).await?))
}

pub(super) async fn restore(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
    Input(wanted): Input<Restore>,
) -> Result<Json<Restored>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(to_the_end(service::checkpoints::restore(daemon, handle, wanted, caller)).await?))
}

pub(super) async fn fork(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
    Input(wanted): Input<ForkCreate>,
) -> Result<Json<Forked>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(to_the_end(service::forks::fork(daemon, handle, wanted, caller)).await?))
}

pub(super) async fn promote(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
    Input(wanted): Input<Promote>,
) -> Result<Json<Restored>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(to_the_end(service::checkpoints::promote(daemon, handle, wanted, caller)).await?))
}
