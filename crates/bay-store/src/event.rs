//! The hashed record. An event's hash covers the hash before it and its own canonical encoding, so that no event can be
//! edited, removed or moved without every later hash giving it away; the head kept beside them gives away a cut tail.
//!
//! Canonical encoding, each part with its length in front as a big-endian `u64`:
//! `"workbay event 1"`, sequence number (8 bytes), timestamp text, bay id (empty for none), kind, body text.

use std::path::Path;

use bay_types::BayId;
use bay_types::event::Event;
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::{Result, Store, StoreError, hex, meta_get};

/// Longest body of an event. More is replaced by its size: the record must not grow by what a caller sends.
pub(crate) const MAX_BODY: usize = 16 * 1024;
/// Events given out in one answer.
pub(crate) const PAGE: u32 = 1000;
const HEAD: &str = "event_head";
/// The hash before the first event.
const GENESIS: [u8; 32] = [0; 32];

/// An event about to be written: the store adds number, time and hash.
#[derive(Debug, Clone)]
pub struct Draft {
    kind: &'static str,
    body: serde_json::Value,
}

impl Draft {
    #[must_use]
    pub fn new(kind: &'static str, body: serde_json::Value) -> Self {
        Self { kind, body }
    }

    /// The same with something more in its body: what only the store knows.
    pub(crate) fn with(&self, key: &str, value: impl Into<serde_json::Value>) -> Self {
        let mut draft = self.clone();
        if let Some(body) = draft.body.as_object_mut() {
            body.insert(key.to_owned(), value.into());
        }
        draft
    }
}

/// What [`Store::events_verify`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Intact {
        events: u64,
        head: String,
    },
    /// The record does not hold from this event on.
    Broken {
        seq: u64,
        why: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) seq: u64,
    hash: [u8; 32],
}

impl Head {
    fn parse(text: &str) -> Option<Self> {
        let (seq, hash) = text.split_once(' ')?;
        Some(Self { seq: seq.parse().ok()?, hash: unhex(hash)? })
    }

    fn text(&self) -> String {
        format!("{} {}", self.seq, hex(&self.hash))
    }
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut out = [0_u8; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(out)
}

fn hash(previous: &[u8; 32], seq: u64, at: &str, bay: &str, kind: &str, body: &str) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.update(previous);
    for part in [
        "workbay event 1".as_bytes(),
        &seq.to_be_bytes()[..],
        at.as_bytes(),
        bay.as_bytes(),
        kind.as_bytes(),
        body.as_bytes(),
    ] {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}

/// A timestamp as it is stored and hashed.
pub(crate) fn now() -> Timestamp {
    // Microseconds are what every database can hold.
    Timestamp::now().round(jiff::Unit::Microsecond).unwrap_or_else(|_| Timestamp::now())
}

pub(crate) async fn head(connection: &mut SqliteConnection) -> Result<Head> {
    let text = meta_get(connection, HEAD)
        .await
        .map_err(|source| StoreError::Query { what: "reading the head of the event record", source })?;
    match text {
        None => Ok(Head { seq: 0, hash: GENESIS }),
        Some(text) => {
            Head::parse(&text).ok_or_else(|| StoreError::column("meta", "the event head is malformed"))
        }
    }
}

/// Writes one event behind `before`, moves the kept head, and commits the transaction of the change that it records. The
/// chain goes on from the kept head, not from the last row: a removed tail stays visible as a gap.
pub(crate) async fn append_and_commit(
    connection: &mut SqliteConnection,
    path: &Path,
    before: &Head,
    bay: Option<BayId>,
    draft: &Draft,
) -> Result<Head> {
    let seq = before.seq + 1;
    let at = now().to_string();
    let bay = bay.map(|b| b.to_string());
    let mut body = draft.body.to_string();
    if body.len() > MAX_BODY {
        body = serde_json::json!({ "left_out_bytes": body.len() }).to_string();
    }
    let after =
        Head { seq, hash: hash(&before.hash, seq, &at, bay.as_deref().unwrap_or(""), draft.kind, &body) };
    sqlx::query(concat!(
        "INSERT INTO events (seq, at, bay, kind, body, hash) VALUES ($1, $2, $3, $4, $5, $6); ",
        "INSERT INTO meta (key, value) VALUES ($7, $8) ON CONFLICT (key) DO UPDATE SET value = excluded.value; ",
        "COMMIT"
    ))
    .bind(to_i64(seq))
    .bind(&at)
    .bind(&bay)
    .bind(draft.kind)
    .bind(&body)
    .bind(hex(&after.hash))
    .bind(HEAD)
    .bind(after.text())
    .execute(&mut *connection)
    .await
    .map_err(|source| StoreError::query(path, "writing an event", source))?;
    Ok(after)
}

/// Says at start-up when the record's end is not where it was left. Work goes on, and the gap stays visible.
pub(crate) async fn head_check(connection: &mut SqliteConnection, path: &Path) -> Result<()> {
    let failed = |source| StoreError::query(path, "reading the event record", source);
    let kept = head(connection).await?;
    let last = sqlx::query("SELECT seq, hash FROM events ORDER BY seq DESC LIMIT 1")
        .fetch_optional(&mut *connection)
        .await
        .map_err(failed)?;
    let last = match last {
        None => Head { seq: 0, hash: GENESIS },
        Some(row) => {
            let seq: i64 = row.try_get(0).map_err(failed)?;
            let hash: String = row.try_get(1).map_err(failed)?;
            Head { seq: to_u64(seq), hash: unhex(&hash).unwrap_or(GENESIS) }
        }
    };
    if kept != last {
        tracing::error!(
            kept_seq = kept.seq,
            found_seq = last.seq,
            "the end of the event record is not where it was left: it was changed behind the daemon's back"
        );
    }
    Ok(())
}

pub(crate) fn to_i64(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(crate) fn to_u64(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

pub(crate) struct Raw {
    seq: u64,
    at: String,
    bay: Option<String>,
    kind: String,
    body: String,
    hash: String,
}

pub(crate) fn raw(row: &SqliteRow) -> sqlx::Result<Raw> {
    Ok(Raw {
        seq: to_u64(row.try_get(0)?),
        at: row.try_get(1)?,
        bay: row.try_get(2)?,
        kind: row.try_get(3)?,
        body: row.try_get(4)?,
        hash: row.try_get(5)?,
    })
}

impl Raw {
    pub(crate) fn event(self) -> Result<Event> {
        let bad = |e: &dyn std::error::Error| StoreError::column("events", e.to_string());
        Ok(Event {
            seq: self.seq,
            at: self.at.parse().map_err(|e: jiff::Error| bad(&e))?,
            bay: self.bay.map(|b| b.parse()).transpose().map_err(|e: bay_types::id::ParseIdError| bad(&e))?,
            kind: self.kind,
            body: serde_json::from_str(&self.body).map_err(|e| bad(&e))?,
            hash: self.hash,
        })
    }
}

impl Store {
    /// Number of the last event.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn events_head(&self) -> Result<u64> {
        let found = sqlx::query("SELECT value FROM meta WHERE key = $1")
            .bind(HEAD)
            .fetch_optional(&self.inner.readers)
            .await
            .map_err(self.failed("reading the head of the event record"))?;
        let Some(row) = found else { return Ok(0) };
        let text: String = row.try_get(0).map_err(|e| StoreError::column("meta", e))?;
        Ok(Head::parse(&text).map_or(0, |head| head.seq))
    }

    /// Writes an event that belongs to no change of a row: an import, a fetch.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn event_append(&self, bay: Option<BayId>, draft: &Draft) -> Result<u64> {
        let mut writer = self.writer().await;
        let transaction = writer.begin().await?;
        transaction.commit_with(bay, draft).await
    }

    /// Events after `since`, oldest first, at most a page of them.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn events_list(&self, since: u64, bay: Option<BayId>) -> Result<Vec<Event>> {
        let failed = self.failed("reading events");
        let rows = match bay {
            None => {
                sqlx::query("SELECT seq, at, bay, kind, body, hash FROM events WHERE seq > $1 ORDER BY seq LIMIT $2")
                    .bind(to_i64(since))
                    .bind(i64::from(PAGE))
                    .fetch_all(&self.inner.readers)
                    .await
            }
            Some(bay) => {
                sqlx::query(
                    "SELECT seq, at, bay, kind, body, hash FROM events WHERE seq > $1 AND bay = $3 ORDER BY seq LIMIT $2",
                )
                .bind(to_i64(since))
                .bind(i64::from(PAGE))
                .bind(bay.to_string())
                .fetch_all(&self.inner.readers)
                .await
            }
        }
        .map_err(&failed)?;
        rows.iter().map(|row| raw(row).map_err(&failed)?.event()).collect()
    }

    /// Walks the whole record and checks every hash.
    ///
    /// # Errors
    /// When the database cannot be read; a broken chain is a [`Verdict`], not an error.
    pub async fn events_verify(&self) -> Result<Verdict> {
        // A transaction keeps head and rows together while they are compared. A reading one, and a page at a time: a
        // long record must not keep anybody from writing.
        let failed = self.failed("verifying events");
        let mut transaction = self.inner.readers.begin().await.map_err(&failed)?;
        let verdict = verify(&mut transaction, &self.inner.path).await;
        transaction.rollback().await.map_err(failed)?;
        verdict
    }
}

async fn verify(connection: &mut SqliteConnection, path: &Path) -> Result<Verdict> {
    let failed = |source| StoreError::query(path, "verifying events", source);
    let kept = head(connection).await?;
    let mut at = Head { seq: 0, hash: GENESIS };
    loop {
        let rows = sqlx::query(
            "SELECT seq, at, bay, kind, body, hash FROM events WHERE seq > $1 ORDER BY seq LIMIT $2",
        )
        .bind(to_i64(at.seq))
        .bind(i64::from(PAGE))
        .fetch_all(&mut *connection)
        .await
        .map_err(failed)?;
        if rows.is_empty() {
            break;
        }
        for row in &rows {
            let found = raw(row).map_err(failed)?;
            let expected = at.seq + 1;
            let broken = |why: &str| Ok(Verdict::Broken { seq: expected, why: why.to_owned() });
            if found.seq != expected {
                return broken("it is missing");
            }
            let bay = found.bay.as_deref().unwrap_or("");
            let hash = hash(&at.hash, found.seq, &found.at, bay, &found.kind, &found.body);
            if hex(&hash) != found.hash {
                return broken("its hash does not fit what it says and what came before");
            }
            at = Head { seq: found.seq, hash };
        }
    }
    if at != kept {
        let seq = at.seq.min(kept.seq) + 1;
        return Ok(Verdict::Broken { seq, why: "the record does not end where it was left".to_owned() });
    }
    Ok(Verdict::Intact { events: at.seq, head: hex(&at.hash) })
}
