//! Appending events that record no change of a row, waiting until events are on the disk, and reading events.

use std::io;

use bay_ledger::Frontier;
use bay_types::event::bay::BayRestoreAsked;
use bay_types::event::{Event, Recorded};
use bay_types::{BayId, ExecId};
use sqlx::Row;

use crate::column::{to_i64, to_u64};
use crate::draft::Draft;
use crate::error::{Result, StoreError};
use crate::event_row::{PAGE, event_row};
use crate::store::Store;
use crate::sync::Durable;
use crate::tree;

impl Store {
    /// Writes an event that records no change of a row, such as an import or a decision. When this returns, the
    /// event survives the end of the daemon. It survives a power cut after [`Store::event_durable`]. Once it is
    /// queued, it is written even if the caller drops this future.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn event_append(&self, bay: Option<BayId>, draft: &Draft) -> Result<u64> {
        self.inner.appends.append(draft.entry(bay)).await
    }

    /// Writes an event that only reports what was done, and may therefore be stored some milliseconds late.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn event_append_later(&self, bay: Option<BayId>, draft: &Draft) -> Result<u64> {
        self.inner.appends.append_later(draft.entry(bay)).await
    }

    /// Waits until the event is on the disk, for acts that must not happen without a record. This does not wait for
    /// more commits, and shares one fdatasync with all callers that ask at the same time.
    ///
    /// # Errors
    /// When a flush of the log failed, now or earlier in the life of this daemon.
    pub async fn event_durable(&self, seq: u64) -> Result<()> {
        self.durable_frontier(seq).await.map(drop)
    }

    /// Waits until event `seq` is on the disk, and returns the end of the record that is on the disk then.
    ///
    /// # Errors
    /// See [`Store::event_durable`].
    pub async fn durable_frontier(&self, seq: u64) -> Result<Frontier> {
        let inner = &self.inner;
        let mut durable = inner.durable.subscribe();
        if durable.borrow().frontier.size() < seq {
            inner.sync_now.notify_one();
            inner.writer.written.notify_one();
        }
        let reached = durable
            .wait_for(|durable| durable.failed.is_some() || durable.frontier.size() >= seq)
            .await
            .map(|durable| durable.clone());
        let failed = |why: String| StoreError::Reach {
            path: inner.writer.path.clone(),
            source: io::Error::other(why),
        };
        match reached {
            Ok(Durable { failed: Some(why), .. }) => {
                Err(failed(format!("its log could not be flushed: {why}")))
            }
            Ok(Durable { frontier, .. }) => Ok(frontier),
            Err(_) => Err(failed("it is closed".to_owned())),
        }
    }

    /// Number of the last event.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn events_head(&self) -> Result<u64> {
        let mut connection =
            self.inner.readers.acquire().await.map_err(self.failed("reading the end of the event record"))?;
        Ok(tree::frontier(&mut connection).await?.size())
    }

    /// Events after `since`, oldest first, at most [`PAGE`] of them.
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
        rows.iter().map(|row| event_row(row).map_err(&failed)?.event()).collect()
    }

    /// How many bytes of the record a bay's own processes caused after `since`, without its traffic. Each event
    /// counts its body and `beside` bytes, and a restore also `after_restore` bytes for the events that follow it.
    /// Also returns the number of the bay's last event.
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

    /// The newest events of a bay of these two kinds, newest first, at most `limit`.
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
        rows.iter().map(|row| event_row(row).map_err(&failed)?.event()).collect()
    }

    /// The newest event of this kind about an exec, whose body names the exec.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn event_of_exec(&self, bay: BayId, kind: &str, exec: ExecId) -> Result<Option<Event>> {
        let failed = self.failed("reading an event");
        let row = sqlx::query(concat!(
            "SELECT seq, at, bay, kind, body, hash FROM events WHERE bay = $1 AND kind = $2 ",
            "AND CASE WHEN json_valid(body) THEN json_extract(body, '$.exec') = $3 ELSE 0 END ",
            "ORDER BY seq DESC LIMIT 1"
        ))
        .bind(bay.to_string())
        .bind(kind)
        .bind(exec.to_string())
        .fetch_optional(&self.inner.readers)
        .await
        .map_err(&failed)?;
        row.map(|row| event_row(&row).map_err(&failed)?.event()).transpose()
    }

    /// The events of the ends of removed bays, newest first, at most `limit`: of those with this last name, or of
    /// all.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn bays_removed(&self, name: Option<&str>, limit: u32) -> Result<Vec<Event>> {
        let failed = self.failed("reading which bays were removed");
        let rows = sqlx::query(concat!(
            "SELECT seq, at, bay, kind, body, hash FROM events WHERE kind = 'bay.deleted' ",
            "AND ($1 IS NULL OR CASE WHEN json_valid(body) THEN json_extract(body, '$.name') = $1 ELSE 0 END) ",
            "ORDER BY seq DESC LIMIT $2"
        ))
        .bind(name)
        .bind(i64::from(limit))
        .fetch_all(&self.inner.readers)
        .await
        .map_err(&failed)?;
        rows.iter().map(|row| event_row(row).map_err(&failed)?.event()).collect()
    }

    /// One event of a bay, by its number.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn event_of(&self, bay: BayId, seq: u64) -> Result<Option<Event>> {
        let failed = self.failed("reading an event");
        let row =
            sqlx::query("SELECT seq, at, bay, kind, body, hash FROM events WHERE seq = $1 AND bay = $2")
                .bind(to_i64(seq))
                .bind(bay.to_string())
                .fetch_optional(&self.inner.readers)
                .await
                .map_err(&failed)?;
        row.map(|row| event_row(&row).map_err(&failed)?.event()).transpose()
    }
}
