//! Reading the record of one bay a page at a time, from any number or time on.

use bay_types::BayId;
use bay_types::event::bay::{BayPromoted, BayRestoreAsked, BayRestored};
use bay_types::event::checkpoint::{CheckpointMade, CheckpointRemoved};
use bay_types::event::{Event, Recorded, TrafficPart};
use jiff::Timestamp;
use sqlx::Row;
use tokio::sync::watch;

use crate::column::{to_i64, to_u64};
use crate::error::{Result, StoreError};
use crate::event_row::event_row;
use crate::store::Store;

/// Kinds of events that change which checkpoint a bay's state descends from.
pub const DESCENT_KINDS: [&str; 5] = [
    CheckpointMade::KIND,
    CheckpointRemoved::KIND,
    BayRestoreAsked::KIND,
    BayRestored::KIND,
    BayPromoted::KIND,
];
/// Most events of [`DESCENT_KINDS`] that are read. If a bay has more, its oldest timeline lines name no
/// checkpoint.
const MAX_DESCENT: u32 = 10_000;

/// Where a page of the record begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// The page has the events after this number.
    pub after: u64,
    /// There are earlier events that the limit excludes.
    pub older: bool,
}

impl Store {
    /// A channel that has the number of the newest event and signals each change.
    #[must_use]
    pub fn events_told(&self) -> watch::Receiver<u64> {
        self.inner.writer.newest.subscribe()
    }

    /// Events of a bay after `since`, oldest first, at most `limit`. Name lookups are left out, and a request that
    /// was allowed appears only with its end: one command can make thousands of them.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn timeline_page(&self, bay: BayId, since: u64, limit: u32) -> Result<Vec<Event>> {
        let failed = self.failed("reading a timeline");
        let rows = sqlx::query(concat!(
            "SELECT seq, at, bay, kind, body, hash FROM events ",
            "WHERE bay = $1 AND seq > $2 AND (traffic IS NULL OR traffic NOT IN ($3, $4)) ORDER BY seq LIMIT $5"
        ))
        .bind(bay.to_string())
        .bind(to_i64(since))
        .bind(TrafficPart::LookUp.as_str())
        .bind(TrafficPart::LetOut.as_str())
        .bind(i64::from(limit))
        .fetch_all(&self.inner.readers)
        .await
        .map_err(&failed)?;
        rows.iter().map(|row| event_row(row).map_err(&failed)?.event()).collect()
    }

    /// Events of a bay up to number `up_to`, newest first, at most `limit`. Those are left out that
    /// [`Store::timeline_page`] leaves out.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn timeline_page_back(&self, bay: BayId, up_to: u64, limit: u32) -> Result<Vec<Event>> {
        let failed = self.failed("reading a timeline");
        let rows = sqlx::query(concat!(
            "SELECT seq, at, bay, kind, body, hash FROM events ",
            "WHERE bay = $1 AND seq <= $2 AND (traffic IS NULL OR traffic NOT IN ($3, $4)) ORDER BY seq DESC LIMIT $5"
        ))
        .bind(bay.to_string())
        .bind(to_i64(up_to))
        .bind(TrafficPart::LookUp.as_str())
        .bind(TrafficPart::LetOut.as_str())
        .bind(i64::from(limit))
        .fetch_all(&self.inner.readers)
        .await
        .map_err(&failed)?;
        rows.iter().map(|row| event_row(row).map_err(&failed)?.event()).collect()
    }

    /// Events of a bay after `since`, oldest first, at most `limit`: all but look-ups of names.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn story_page(&self, bay: BayId, since: u64, limit: u32) -> Result<Vec<Event>> {
        let failed = self.failed("reading a bay's record");
        let rows = sqlx::query(concat!(
            "SELECT seq, at, bay, kind, body, hash FROM events ",
            "WHERE bay = $1 AND seq > $2 AND (traffic IS NULL OR traffic <> $3) ORDER BY seq LIMIT $4"
        ))
        .bind(bay.to_string())
        .bind(to_i64(since))
        .bind(TrafficPart::LookUp.as_str())
        .bind(i64::from(limit))
        .fetch_all(&self.inner.readers)
        .await
        .map_err(&failed)?;
        rows.iter().map(|row| event_row(row).map_err(&failed)?.event()).collect()
    }

    /// Where to begin so that [`Store::story_page`] has the last `limit` events.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn story_begin(&self, bay: BayId, limit: u32) -> Result<Begin> {
        let found = sqlx::query(concat!(
            "SELECT seq FROM events WHERE bay = $1 AND (traffic IS NULL OR traffic <> $2) ",
            "ORDER BY seq DESC LIMIT 1 OFFSET $3"
        ))
        .bind(bay.to_string())
        .bind(TrafficPart::LookUp.as_str())
        .bind(i64::from(limit))
        .fetch_optional(&self.inner.readers)
        .await
        .map_err(self.failed("reading a bay's record"))?;
        match found {
            None => Ok(Begin { after: 0, older: false }),
            Some(row) => Ok(Begin { after: to_u64(row.try_get(0).map_err(column)?), older: true }),
        }
    }

    /// Events of secrets of all bays after `since` up to number `up_to`, oldest first, at most `limit`. They belong to no
    /// bay.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn secret_events(&self, since: u64, up_to: u64, limit: u32) -> Result<Vec<Event>> {
        let failed = self.failed("reading the events of secrets");
        let rows = sqlx::query(concat!(
            "SELECT seq, at, bay, kind, body, hash FROM events ",
            "WHERE kind IN ('secret.set', 'secret.rotated', 'secret.removed', 'secret.stale') ",
            "AND seq > $1 AND seq <= $2 ORDER BY seq LIMIT $3"
        ))
        .bind(to_i64(since))
        .bind(to_i64(up_to))
        .bind(i64::from(limit))
        .fetch_all(&self.inner.readers)
        .await
        .map_err(&failed)?;
        rows.iter().map(|row| event_row(row).map_err(&failed)?.event()).collect()
    }

    /// Where to begin so that [`Store::timeline_page`] has the last `limit` events after `since`.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn timeline_begin(&self, bay: BayId, since: u64, limit: u32) -> Result<Begin> {
        let found = sqlx::query(concat!(
            "SELECT seq FROM events WHERE bay = $1 AND seq > $2 AND (traffic IS NULL OR traffic NOT IN ($3, $4)) ",
            "ORDER BY seq DESC LIMIT 1 OFFSET $5"
        ))
        .bind(bay.to_string())
        .bind(to_i64(since))
        .bind(TrafficPart::LookUp.as_str())
        .bind(TrafficPart::LetOut.as_str())
        .bind(i64::from(limit))
        .fetch_optional(&self.inner.readers)
        .await
        .map_err(self.failed("reading a timeline"))?;
        match found {
            None => Ok(Begin { after: since, older: false }),
            Some(row) => Ok(Begin { after: to_u64(row.try_get(0).map_err(column)?), older: true }),
        }
    }

    /// Number of the last event of a bay before a time. This is a binary search, so it is wrong if the host's clock
    /// was set back far.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn timeline_before(&self, bay: BayId, time: Timestamp) -> Result<u64> {
        let failed = self.failed("looking for a time in the record");
        // Events up to `low` are before the time, those after `high` are not.
        let (mut low, mut high) = (0, self.events_head().await?);
        while low < high {
            let middle = low + (high - low) / 2;
            let next =
                sqlx::query("SELECT seq, at FROM events WHERE bay = $1 AND seq > $2 ORDER BY seq LIMIT 1")
                    .bind(bay.to_string())
                    .bind(to_i64(middle))
                    .fetch_optional(&self.inner.readers)
                    .await
                    .map_err(&failed)?;
            let Some(next) = next else {
                high = middle;
                continue;
            };
            let seq = to_u64(next.try_get(0).map_err(column)?);
            let at: Timestamp = next.try_get::<&str, _>(1).map_err(column)?.parse().map_err(column)?;
            if at < time && seq <= high {
                low = seq;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// Whether the bay has any event that [`Store::timeline_page`] has.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn timeline_exists(&self, bay: BayId) -> Result<bool> {
        Ok(!self.timeline_page(bay, 0, 1).await?.is_empty())
    }

    /// The newest events of [`DESCENT_KINDS`] up to number `up_to`, oldest first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn timeline_descent(&self, bay: BayId, up_to: u64) -> Result<Vec<Event>> {
        let failed = self.failed("reading the checkpoints of a timeline");
        let mut rows = sqlx::query(concat!(
            "SELECT seq, at, bay, kind, body, hash FROM events WHERE bay = $1 AND seq <= $2 ",
            "AND kind IN ($3, $4, $5, $6, $7) ORDER BY seq DESC LIMIT $8"
        ))
        .bind(bay.to_string())
        .bind(to_i64(up_to));
        for kind in DESCENT_KINDS {
            rows = rows.bind(kind);
        }
        let rows = rows.bind(i64::from(MAX_DESCENT)).fetch_all(&self.inner.readers).await.map_err(&failed)?;
        rows.iter().rev().map(|row| event_row(row).map_err(&failed)?.event()).collect()
    }
}

fn column(e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::column("events", e)
}
