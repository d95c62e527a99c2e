//! The timeline of one bay, line by line.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use axum::routing::get;
use bay_core::Daemon;
use bay_core::verbs::record_stream::Wanted;
use bay_core::verbs::timeline::{self, Shape};
use jiff::Timestamp;
use serde::Deserialize;

use crate::request::{Caller, Shared};
use crate::response::{Failure, lines};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TimelineQuery {
    #[serde(default)]
    since: u64,
    from: Option<Timestamp>,
    limit: Option<u32>,
    #[serde(default)]
    follow: bool,
    kind: Option<String>,
    #[serde(default)]
    failed: bool,
    exec: Option<String>,
    #[serde(default)]
    no_egress: bool,
    /// Whether runs of like events become one line.
    #[serde(default)]
    folded: bool,
}

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new().route("/v1/bays/{bay}/timeline", get(timeline))
}

/// Reads lines from the record, as fast as the client reads them.
async fn timeline(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Query(query): Query<TimelineQuery>,
) -> Result<Response, Failure> {
    let TimelineQuery { since, from, limit, follow, kind, failed, exec, no_egress, folded } = query;
    let wanted = Wanted { since, from, limit, follow };
    let shape = Shape { kinds: kind, failed, exec, no_egress, folded };
    Ok(lines(timeline::read(&daemon, &who, &bay, wanted, &shape).await?))
}
