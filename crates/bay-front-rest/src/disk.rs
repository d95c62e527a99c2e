use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::{get, post};
use bay_core::Daemon;
use bay_core::verbs::disk;
use bay_types::disk::DiskUsage;
use bay_types::pool::{PoolPrune, PoolPruned};

use crate::request::{Caller, Input, NoQuery, Shared};
use crate::response::{Failure, Json};

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new().route("/v1/disk", get(show)).route("/v1/pool/prune", post(prune))
}

async fn show(_: NoQuery, State(daemon): Shared, Caller(who): Caller) -> Result<Json<DiskUsage>, Failure> {
    Ok(Json(disk::show(&daemon, &who).await?))
}

async fn prune(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Input(prune): Input<PoolPrune>,
) -> Result<Json<PoolPruned>, Failure> {
    Ok(Json(disk::prune(&daemon, &who, prune).await?))
}
