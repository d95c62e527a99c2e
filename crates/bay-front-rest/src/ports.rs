//! Listening sockets of a running bay.

use axum::extract::{Path, State};
use bay_types::inside::Port;

use crate::request::{Caller, NoQuery, Shared};
use crate::response::{Failure, Json};
use bay_core::verbs::ports;

pub(super) async fn list(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    _: NoQuery,
) -> Result<Json<Vec<Port>>, Failure> {
    Ok(Json(ports::list(&daemon, &who, &bay).await?))
}
