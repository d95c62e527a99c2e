//! Checkpoints, and what is made of them.

use axum::extract::{Path, State};
use bay_types::checkpoint::{
    CheckpointCreate, CheckpointView, ForkCreate, Forked, Promote, Restore, Restored,
};

use crate::request::{Caller, Input, NoQuery, Shared};
use crate::response::{Failure, Json};
use bay_core::verbs::{checkpoints, forks};

pub(super) async fn list(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<Vec<CheckpointView>>, Failure> {
    Ok(Json(checkpoints::list(&daemon, &who, &bay).await?))
}

pub(super) async fn create(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(create): Input<CheckpointCreate>,
) -> Result<Json<CheckpointView>, Failure> {
    Ok(Json(checkpoints::create(&daemon, &who, &bay, create).await?))
}

pub(super) async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path((bay, checkpoint)): Path<(String, String)>,
) -> Result<Json<()>, Failure> {
    Ok(Json(checkpoints::delete(&daemon, &who, &bay, &checkpoint).await?))
}

pub(super) async fn restore(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(wanted): Input<Restore>,
) -> Result<Json<Restored>, Failure> {
    Ok(Json(checkpoints::restore(&daemon, &who, &bay, wanted).await?))
}

pub(super) async fn fork(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(wanted): Input<ForkCreate>,
) -> Result<Json<Forked>, Failure> {
    Ok(Json(forks::fork(&daemon, &who, &bay, wanted).await?))
}

pub(super) async fn promote(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(wanted): Input<Promote>,
) -> Result<Json<Restored>, Failure> {
    Ok(Json(checkpoints::promote(&daemon, &who, &bay, wanted).await?))
}
