//! One bay's life, line by line.

use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use bay_types::{ApiError, ErrorCode};
use http::header;
use jiff::Timestamp;
use serde::Deserialize;

use super::{Failure, Shared};
use crate::news;
use crate::service::timeline::{self, Wanted};

/// Most lines that may be asked for by their number; without one there is no bound.
const MAX_LIMIT: u32 = 1_000_000;

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

pub(super) fn checked_limit(limit: Option<u32>) -> Result<(), ApiError> {
    if limit.is_none_or(|limit| (1..=MAX_LIMIT).contains(&limit)) {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::InvalidInput,
        "the number of lines is zero or too large",
        format!("ask for 1 to {MAX_LIMIT}, or leave it out for all"),
    ))
}

/// Lines as they are read from the record, at the pace of whoever reads them.
pub(super) async fn timeline(
    State(daemon): Shared,
    Path(bay): Path<String>,
    Query(query): Query<TimelineQuery>,
) -> Result<Response, Failure> {
    let TimelineQuery { since, from, limit, follow } = query;
    checked_limit(limit)?;
    let bay = timeline::find(&daemon, &bay).await?;
    let lines = timeline::open(daemon, bay, Wanted { since, from, limit, follow }).await?;
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], news::body(lines)).into_response())
}
