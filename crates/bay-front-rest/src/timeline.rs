//! One bay's life, line by line.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use jiff::Timestamp;
use serde::Deserialize;

use crate::request::{Caller, Shared};
use crate::response::{Failure, lines};
use bay_core::verbs::record_stream::Wanted;
use bay_core::verbs::timeline;

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

/// Lines as they are read from the record, at the pace of whoever reads them.
pub(super) async fn timeline(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Query(query): Query<TimelineQuery>,
) -> Result<Response, Failure> {
    let TimelineQuery { since, from, limit, follow } = query;
    let wanted = Wanted { since, from, limit, follow };
    Ok(lines(timeline::read(&daemon, &who, &bay, wanted).await?))
}
