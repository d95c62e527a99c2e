//! Listening sockets of a running bay.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::get;
use bay_core::Daemon;
use bay_core::verbs::ports;
use bay_types::inside::Port;

use crate::request::{Caller, NoQuery, Shared};
use crate::response::{Failure, Json};

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new().route("/v1/bays/{bay}/ports", get(list))
}

async fn list(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    _: NoQuery,
) -> Result<Json<Vec<Port>>, Failure> {
    Ok(Json(ports::list(&daemon, &who, &bay).await?))
}
