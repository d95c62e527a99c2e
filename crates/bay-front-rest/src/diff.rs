//! `GET /v1/bays/{bay}/diff` and `…/review`: lines that are sent while the trees are compared.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Router};
use bay_core::Daemon;
use bay_core::byte_stream::{json_lines, received};
use bay_core::verbs::diff;
use bay_types::diff::{DiffAsk, DiffLine};
use futures_util::StreamExt;

use crate::request::{Caller, Shared};
use crate::response::{Failure, lines, progress_then_result};
use bay_cli_words::Words;

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new().route("/v1/bays/{bay}/diff", get(diff)).route("/v1/bays/{bay}/review", get(review))
}

async fn diff(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Query(ask): Query<DiffAsk>,
    Extension(words): Extension<Words>,
) -> Result<Response, Failure> {
    let found = received(diff::diff(&daemon, &who, &bay, &ask).await?);
    let found = found.map(move |line| match line {
        Ok(line) => line,
        Err(error) => DiffLine::Failed { error: words.error(error) },
    });
    Ok(lines(json_lines(found)))
}

async fn review(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Query(ask): Query<DiffAsk>,
    Extension(words): Extension<Words>,
) -> Result<Response, Failure> {
    let review = diff::begin_review(&daemon, &who, &bay, ask).await?;
    Ok(progress_then_result(words, |reporter| review.run(reporter)))
}
