//! The way out of a bay: how it is now, and what left by it.

use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use bay_store::TrafficWanted;
use bay_types::traffic::EgressState;
use http::header;
use jiff::Timestamp;
use serde::Deserialize;

use super::timeline::checked_limit;
use super::{Failure, Json, NoQuery, Shared};
use crate::news;
use crate::service::timeline;
use crate::service::traffic::{self, Wanted};

pub(super) async fn state(
    _: NoQuery,
    State(daemon): Shared,
    Path(bay): Path<String>,
) -> Result<Json<EgressState>, Failure> {
    let open = daemon.bays.find(&bay)?.egress();
    let dropped = open.as_ref().map(|open| open.dropped()).unwrap_or_default();
    Ok(Json(EgressState { open: open.is_some(), dropped }))
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

/// Entries as they are read from the record, at the pace of whoever reads them.
pub(super) async fn entries(
    State(daemon): Shared,
    Path(bay): Path<String>,
    Query(query): Query<EntriesQuery>,
) -> Result<Response, Failure> {
    let EntriesQuery { since, from, limit, follow, denied, lookups } = query;
    checked_limit(limit)?;
    let bay = timeline::find(&daemon, &bay).await?;
    let part = TrafficWanted { refused: denied, look_ups: lookups };
    let entries = traffic::open(daemon, bay, Wanted { since, from, limit, follow, part }).await?;
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], news::body(entries)).into_response())
}
