//! Events as they are written and read. How they are hashed and tied together is in [`crate::ledger`].

use bay_types::BayId;
use bay_types::event::bay::BayRestoreAsked;
use bay_types::event::{Event, EventBody, EventColumns, Recorded};
use jiff::Timestamp;
use serde_json::Value;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::{Result, Store, StoreError};

/// Longest body of an event. More is replaced by its size: the record must not grow by what a caller sends.
pub const MAX_BODY: usize = 16 * 1024;
/// Events given out in one answer.
pub(crate) const PAGE: u32 = 1000;

/// Fields of an event that a bay can make as long as it likes, least important first.
const LEAST_IMPORTANT: [&str; 6] =
    ["/explanation", "/by/process/argv", "/warnings", "/differs/how", "/by/process", "/by"];
/// The field that names the last of those that was emptied.
const LEFT_OUT: &str = "left_out";

/// An event about to be written: the store adds number, time and hash.
#[derive(Debug, Clone)]
pub struct Draft {
    kind: String,
    body: Value,
    columns: EventColumns,
}

/// An event in the form in which it is kept, but for what comes from its place in the record.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) bay: Option<String>,
    pub(crate) kind: String,
    pub(crate) body: String,
    pub(crate) columns: EventColumns,
}

impl Draft {
    #[must_use]
    pub fn of(event: impl Into<EventBody>) -> Self {
        let event = event.into();
        let (kind, body) = (event.kind().to_owned(), event.body());
        let columns = match event {
            EventBody::Other(_) => columns(&kind, &body),
            known => EventColumns::of(&known, &body),
        };
        Self { kind, body, columns }
    }

    /// Empties fields until the record takes the body, least important first. What was asked for and what was decided
    /// stays.
    #[must_use]
    pub fn shortened(mut self) -> Self {
        for field in LEAST_IMPORTANT {
            if self.body_bytes() <= MAX_BODY {
                break;
            }
            if let Some(long) = self.body.pointer_mut(field) {
                *long = if long.is_array() { Value::Array(Vec::new()) } else { Value::Null };
                self.body[LEFT_OUT] = field.into();
            }
        }
        self
    }

    /// How long its body is.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.body.to_string().len()
    }

    #[must_use]
    pub fn body(&self) -> &Value {
        &self.body
    }

    /// It as it is kept.
    pub(crate) fn entry(&self, bay: Option<BayId>) -> Entry {
        let (bay, kind) = (bay.map(|bay| bay.to_string()), self.kind.clone());
        let body = self.body.to_string();
        if body.len() > MAX_BODY {
            let instead = serde_json::json!({ "left_out_bytes": body.len() });
            let columns = columns(&kind, &instead);
            return Entry { bay, kind, body: instead.to_string(), columns };
        }
        Entry { bay, kind, body, columns: self.columns }
    }

    /// The same with something more in its body: what only the store knows.
    pub(crate) fn with(&self, key: &str, value: impl Into<Value>) -> Self {
        let mut draft = self.clone();
        if let Some(body) = draft.body.as_object_mut() {
            body.insert(key.to_owned(), value.into());
        }
        draft
    }
}

fn columns(kind: &str, body: &Value) -> EventColumns {
    EventColumns::of(&EventBody::read(kind, body), body)
}

/// A timestamp as it is stored and hashed.
pub(crate) fn now() -> Timestamp {
    // Microseconds are what every database can hold.
    Timestamp::now().round(jiff::Unit::Microsecond).unwrap_or_else(|_| Timestamp::now())
}

pub(crate) fn to_i64(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(crate) fn to_u64(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

pub(crate) struct Raw {
    pub(crate) seq: u64,
    pub(crate) at: String,
    pub(crate) bay: Option<String>,
    pub(crate) kind: String,
    pub(crate) body: String,
    pub(crate) hash: String,
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
    /// What the columns beside it have to hold. A body that is no JSON says nothing.
    pub(crate) fn columns(&self) -> EventColumns {
        columns(&self.kind, &serde_json::from_str(&self.body).unwrap_or_default())
    }

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

    /// How many bytes a bay's traffic takes in the record, each event with what it takes beside its body.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn traffic_bytes(&self, bay: BayId, beside: u64) -> Result<u64> {
        let failed = self.failed("adding up events");
        let sum = "SELECT COALESCE(SUM(OCTET_LENGTH(body) + $2), 0) FROM events WHERE bay = $1 AND traffic IS NOT NULL";
        let row = sqlx::query(sum)
            .bind(bay.to_string())
            .bind(to_i64(beside))
            .fetch_one(&self.inner.readers)
            .await
            .map_err(&failed)?;
        Ok(to_u64(row.try_get(0).map_err(&failed)?))
    }

    /// How many bytes those events of a bay take after `since` that its own processes caused, without its traffic. Each
    /// takes `beside` more than its body, and a restore `after_restore` for what follows on it. Also says up to which
    /// event was counted.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn events_caused_bytes(
        &self,
        bay: BayId,
        since: u64,
        beside: u64,
        after_restore: u64,
    ) -> Result<(u64, u64)> {
        let failed = self.failed("adding up events");
        let sum = concat!(
            "SELECT COALESCE(SUM(CASE WHEN from_inside = 1 ",
            "THEN OCTET_LENGTH(body) + $3 + CASE WHEN kind = $5 THEN $4 ELSE 0 END ",
            "ELSE 0 END), 0), COALESCE(MAX(seq), $2) FROM events WHERE bay = $1 AND seq > $2"
        );
        let row = sqlx::query(sum)
            .bind(bay.to_string())
            .bind(to_i64(since))
            .bind(to_i64(beside))
            .bind(to_i64(after_restore))
            .bind(BayRestoreAsked::KIND)
            .fetch_one(&self.inner.readers)
            .await
            .map_err(&failed)?;
        Ok((to_u64(row.try_get(0).map_err(&failed)?), to_u64(row.try_get(1).map_err(&failed)?)))
    }

    /// The newest events of a bay that are of one of two kinds, newest first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn events_of(&self, bay: BayId, kinds: [&str; 2], limit: u32) -> Result<Vec<Event>> {
        let failed = self.failed("reading events");
        let rows = sqlx::query(concat!(
            "SELECT seq, at, bay, kind, body, hash FROM events WHERE bay = $1 AND kind IN ($2, $3) ",
            "ORDER BY seq DESC LIMIT $4"
        ))
        .bind(bay.to_string())
        .bind(kinds[0])
        .bind(kinds[1])
        .bind(i64::from(limit))
        .fetch_all(&self.inner.readers)
        .await
        .map_err(&failed)?;
        rows.iter().map(|row| raw(row).map_err(&failed)?.event()).collect()
    }
}
