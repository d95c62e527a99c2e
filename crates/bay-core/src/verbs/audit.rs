//! The ledger for people who do not trust the daemon: its key, signed heads, bundles and proofs.

use bay_ledger::{Bundle, Evidence, Header};
use bay_store::{Store, StoreError};
use bay_types::event::{LedgerHead, LedgerKey};
use bay_types::principal::Principal;
use bay_types::{Action, CoreError, ErrorCode, Hint, HintBay};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::authorize::Verb;
use crate::byte_stream::ByteStream;
use crate::daemon::Daemon;

/// The key that signs the ledger's heads.
pub fn key(daemon: &Daemon, who: &Principal) -> Result<LedgerKey, CoreError> {
    daemon.permit(who, Verb::AuditRead)?;
    let key = daemon.ledger.public();
    Ok(LedgerKey { log: key.log().to_owned(), key: key.to_string() })
}

/// A head of the ledger that is signed now.
pub async fn head(daemon: &Daemon, who: &Principal) -> Result<LedgerHead, CoreError> {
    daemon.permit(who, Verb::AuditRead)?;
    let signed = daemon.ledger.sign().await?;
    let root = signed.root.to_string();
    Ok(LedgerHead { note: signed.note, size: signed.size, root, signed_at: signed.time })
}

/// A range of events with the evidence that ties them to a signed head, as lines of JSON at the pace of the reader.
pub async fn export(
    daemon: &Daemon,
    who: &Principal,
    from: Option<u64>,
    to: Option<u64>,
) -> Result<ByteStream, CoreError> {
    daemon.permit(who, Verb::AuditRead)?;
    let signed = daemon.ledger.sign().await?;
    let (from, to) = (from.unwrap_or(1), to.unwrap_or(signed.size));
    if to > signed.size {
        return Err(absent(&format!("there is no event {to}"), signed.size));
    }
    if from == 0 || from > to + 1 {
        return Err(CoreError::new(
            ErrorCode::InvalidInput,
            format!("there are no events from {from} to {to}"),
            format!("events have the numbers 1 to {}", signed.size),
        ));
    }
    let evidence = daemon.store.ledger_range(from, to, signed.size).await;
    Ok(bundle(&daemon.store, signed.note, tied(evidence)?, from, to))
}

/// One event with its inclusion proof.
pub async fn proof(daemon: &Daemon, who: &Principal, event: u64) -> Result<ByteStream, CoreError> {
    daemon.permit(who, Verb::AuditRead)?;
    let signed = daemon.ledger.sign().await?;
    if event == 0 || event > signed.size {
        return Err(absent(&format!("there is no event {event}"), signed.size));
    }
    let evidence = daemon.store.ledger_inclusion(event, signed.size).await;
    Ok(bundle(&daemon.store, signed.note, tied(evidence)?, event, event))
}

/// The proof that the record of now continues the record of `old` events.
pub async fn consistency(daemon: &Daemon, who: &Principal, old: u64) -> Result<ByteStream, CoreError> {
    daemon.permit(who, Verb::AuditRead)?;
    let signed = daemon.ledger.sign().await?;
    if old == 0 || old > signed.size {
        return Err(absent(&format!("the record has no head of {old} events"), signed.size));
    }
    let evidence = daemon.store.ledger_consistency(old, signed.size).await;
    Ok(bundle(&daemon.store, signed.note, tied(evidence)?, 1, 0))
}

fn absent(what: &str, size: u64) -> CoreError {
    CoreError::new(
        ErrorCode::EventNotFound,
        what,
        Hint::from(format!("the record has {size} events, counted from 1"))
            .and(Hint::new("{} shows the events of a bay", [Action::Timeline(HintBay::OfRequest)])),
    )
}

fn tied(evidence: Result<Option<Evidence>, StoreError>) -> Result<Evidence, CoreError> {
    evidence.map_err(|e| e.to_api())?.ok_or_else(|| {
        CoreError::new(
            ErrorCode::LedgerBroken,
            "the proof cannot be made: hashes of the record are missing or damaged",
            Hint::new(
                "copy the data directory as evidence before anything else; then {} shows where",
                [Action::VerifyAudit],
            ),
        )
    })
}

fn bundle(store: &Store, head: String, evidence: Evidence, from: u64, to: u64) -> ByteStream {
    let first = Bytes::from(Bundle::line(&Header::new(head, evidence)));
    let events = stream::try_unfold((store.clone(), from), move |(store, next)| async move {
        if next > to {
            return Ok(None);
        }
        // The reader notices a failure by the early end of the stream: the header has the number of events.
        let page = store.ledger_events(next, to).await.inspect_err(|error| {
            tracing::error!(%error, "a bundle of the ledger was cut short");
        })?;
        let Some(last) = page.last().map(|event| event.seq) else { return Ok(None) };
        let lines = Bytes::from(page.iter().flat_map(Bundle::line).collect::<Vec<u8>>());
        Ok::<_, StoreError>(Some((lines, (store, last + 1))))
    });
    Box::pin(stream::once(async { Ok(first) }).chain(events).map_err(Into::into))
}
