//! The ledger for people who do not take the daemon's word for it: its key, signed heads, bundles and proofs.

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use bay_ledger::{Bundle, Evidence, Header};
use bay_store::{Store, StoreError};
use bay_types::event::{LedgerHead, LedgerKey};
use bay_types::{ApiError, ErrorCode};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use http::header;
use serde::Deserialize;

use super::{Failure, Json, NoQuery, Shared};

pub(super) async fn key(_: NoQuery, State(daemon): Shared) -> Json<LedgerKey> {
    let key = daemon.ledger.public();
    Json(LedgerKey { log: key.log().to_owned(), key: key.to_string() })
}

pub(super) async fn head(_: NoQuery, State(daemon): Shared) -> Result<Json<LedgerHead>, Failure> {
    let signed = daemon.ledger.sign().await?;
    let root = signed.root.to_string();
    Ok(Json(LedgerHead { note: signed.note, size: signed.size, root, signed_at: signed.time }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExportQuery {
    from: Option<u64>,
    to: Option<u64>,
}

/// Events with what ties them to a signed head, at the pace of whoever reads them.
pub(super) async fn export(
    State(daemon): Shared,
    Query(query): Query<ExportQuery>,
) -> Result<Response, Failure> {
    let signed = daemon.ledger.sign().await?;
    let (from, to) = (query.from.unwrap_or(1), query.to.unwrap_or(signed.size));
    if to > signed.size {
        return Err(absent(to, signed.size));
    }
    if from == 0 || from > to + 1 {
        return Err(Failure(ApiError::new(
            ErrorCode::InvalidInput,
            format!("there are no events from {from} to {to}"),
            format!("events have the numbers 1 to {}", signed.size),
        )));
    }
    let evidence = daemon.store.ledger_range(from, to, signed.size).await;
    Ok(bundle(&daemon.store, signed.note, tied(evidence)?, from, to))
}

/// One event with its inclusion proof.
pub(super) async fn proof(
    _: NoQuery,
    State(daemon): Shared,
    Path(event): Path<u64>,
) -> Result<Response, Failure> {
    let signed = daemon.ledger.sign().await?;
    if event == 0 || event > signed.size {
        return Err(absent(event, signed.size));
    }
    let evidence = daemon.store.ledger_inclusion(event, signed.size).await;
    Ok(bundle(&daemon.store, signed.note, tied(evidence)?, event, event))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConsistencyQuery {
    old: u64,
}

/// The proof that the record continues what it was with `old` events.
pub(super) async fn consistency(
    State(daemon): Shared,
    Query(query): Query<ConsistencyQuery>,
) -> Result<Response, Failure> {
    let signed = daemon.ledger.sign().await?;
    if query.old == 0 || query.old > signed.size {
        return Err(absent(query.old, signed.size));
    }
    let evidence = daemon.store.ledger_consistency(query.old, signed.size).await;
    Ok(bundle(&daemon.store, signed.note, tied(evidence)?, 1, 0))
}

fn absent(event: u64, size: u64) -> Failure {
    Failure(ApiError::new(
        ErrorCode::EventNotFound,
        format!("there is no event {event}"),
        format!(
            "the record has {size} events, counted from 1; `bay timeline NAME --json` shows those of a bay"
        ),
    ))
}

fn tied(evidence: Result<Option<Evidence>, StoreError>) -> Result<Evidence, Failure> {
    evidence.map_err(|e| e.to_api())?.ok_or_else(|| {
        Failure(ApiError::new(
            ErrorCode::LedgerBroken,
            "the proof cannot be made: hashes of the record are missing or damaged",
            "`bay audit verify` tells where; copy the data directory as evidence before anything else",
        ))
    })
}

fn bundle(store: &Store, head: String, evidence: Evidence, from: u64, to: u64) -> Response {
    let first = Bytes::from(Bundle::line(&Header::new(head, evidence)));
    let events = stream::try_unfold((store.clone(), from), move |(store, next)| async move {
        if next > to {
            return Ok(None);
        }
        // Whoever reads hears of a failure by the connection's end; the header told them how many events to expect.
        let page = store.ledger_events(next, to).await.inspect_err(|error| {
            tracing::error!(%error, "a bundle of the ledger was cut short");
        })?;
        let Some(last) = page.last().map(|event| event.seq) else { return Ok(None) };
        let lines = Bytes::from(page.iter().flat_map(Bundle::line).collect::<Vec<u8>>());
        Ok::<_, StoreError>(Some((lines, (store, last + 1))))
    });
    let body = Body::from_stream(stream::once(async { Ok(first) }).chain(events));
    ([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response()
}
