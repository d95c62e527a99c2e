//! Checkpoints, restores, forks and promotions.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{delete, get, post};
use bay_core::Daemon;
use bay_core::verbs::{checkpoints, forks};
use bay_types::checkpoint::{
    CheckpointCreate, CheckpointView, ForkCreate, Forked, Promote, Restore, Restored,
};

use crate::request::{Caller, Input, NoQuery, Shared};
use crate::response::{Failure, Json};

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new()
        .route("/v1/bays/{bay}/checkpoints", get(list).post(create))
        .route("/v1/bays/{bay}/checkpoints/{checkpoint}", delete(remove))
        .route("/v1/bays/{bay}/restore", post(restore))
        .route("/v1/bays/{bay}/forks", post(fork))
        .route("/v1/bays/{bay}/promote", post(promote))
}

async fn list(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<Vec<CheckpointView>>, Failure> {
    Ok(Json(checkpoints::list(&daemon, &who, &bay).await?))
}

async fn create(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(create): Input<CheckpointCreate>,
) -> Result<Json<CheckpointView>, Failure> {
    Ok(Json(checkpoints::create(&daemon, &who, &bay, create).await?))
}

async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path((bay, checkpoint)): Path<(String, String)>,
) -> Result<Json<()>, Failure> {
    Ok(Json(checkpoints::delete(&daemon, &who, &bay, &checkpoint).await?))
}

async fn restore(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(wanted): Input<Restore>,
) -> Result<Json<Restored>, Failure> {
    Ok(Json(checkpoints::restore(&daemon, &who, &bay, wanted).await?))
}

async fn fork(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(wanted): Input<ForkCreate>,
) -> Result<Json<Forked>, Failure> {
    Ok(Json(forks::fork(&daemon, &who, &bay, wanted).await?))
}

async fn promote(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(wanted): Input<Promote>,
) -> Result<Json<Restored>, Failure> {
    Ok(Json(checkpoints::promote(&daemon, &who, &bay, wanted).await?))
}
