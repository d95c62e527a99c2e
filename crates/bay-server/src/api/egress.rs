//! The way out of a bay.

use axum::extract::{Path, State};
use bay_types::traffic::EgressState;

use super::{Failure, Json, NoQuery, Shared};

pub(super) async fn state(
    _: NoQuery,
    State(daemon): Shared,
    Path(bay): Path<String>,
) -> Result<Json<EgressState>, Failure> {
    let open = daemon.bays.find(&bay)?.egress();
    let dropped = open.as_ref().map(|open| open.dropped()).unwrap_or_default();
    Ok(Json(EgressState { open: open.is_some(), dropped }))
}
