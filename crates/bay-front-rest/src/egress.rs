//! The egress of a bay: its present state, and what the bay sent or tried to send.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use axum::routing::get;
use bay_core::Daemon;
use bay_core::verbs::record_stream;
use bay_core::verbs::traffic::{self, Wanted};
use bay_types::traffic::EgressState;
use jiff::Timestamp;
use serde::Deserialize;

use crate::request::{Caller, NoQuery, Shared};
use crate::response::{Failure, Json, lines};

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new()
        .route("/v1/bays/{bay}/egress", get(state))
        .route("/v1/bays/{bay}/egress/entries", get(entries))
}

async fn state(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<EgressState>, Failure> {
    Ok(Json(traffic::show(&daemon, &who, &bay)?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EntriesQuery {
    #[serde(default)]
    since: u64,
    from: Option<Timestamp>,
    limit: Option<u32>,
    #[serde(default)]
    follow: bool,
    #[serde(default)]
    denied: bool,
    #[serde(default)]
    lookups: bool,
}

/// Reads entries from the record, as fast as the client reads them.
async fn entries(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Query(query): Query<EntriesQuery>,
) -> Result<Response, Failure> {
    let EntriesQuery { since, from, limit, follow, denied, lookups } = query;
    let range = record_stream::Wanted { since, from, limit, follow };
    let wanted = Wanted { range, refused: denied, look_ups: lookups };
    Ok(lines(traffic::read(&daemon, &who, &bay, wanted).await?))
}
