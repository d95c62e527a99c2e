//! The timeline of one bay, line by line.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use axum::routing::get;
use bay_core::Daemon;
use bay_core::verbs::record_stream::Wanted;
use bay_core::verbs::timeline;
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
    let TimelineQuery { since, from, limit, follow } = query;
    let wanted = Wanted { since, from, limit, follow };
    Ok(lines(timeline::read(&daemon, &who, &bay, wanted).await?))
}
