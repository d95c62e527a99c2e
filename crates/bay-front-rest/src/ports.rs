//! Listening sockets of a running bay.

use axum::extract::{Path, State};
use bay_types::inside::Port;

use super::{Caller, Failure, Json, NoQuery, Shared};
use bay_core::verbs::ports;

pub(super) async fn list(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    _: NoQuery,
) -> Result<Json<Vec<Port>>, Failure> {
    Ok(Json(ports::list(&daemon, &who, &bay).await?))
}
