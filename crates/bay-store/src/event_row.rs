//! Rows of the table `events`.

use bay_types::event::{Event, EventColumns};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::column::to_u64;
use crate::draft::columns;
use crate::error::{Result, StoreError};

/// Most events in one answer.
pub(crate) const PAGE: u32 = 1000;

/// A row of the table `events`.
pub(crate) struct EventRow {
    pub(crate) seq: u64,
    pub(crate) at: String,
    pub(crate) bay: Option<String>,
    pub(crate) kind: String,
    pub(crate) body: String,
    pub(crate) hash: String,
}

pub(crate) fn event_row(row: &SqliteRow) -> sqlx::Result<EventRow> {
    Ok(EventRow {
        seq: to_u64(row.try_get(0)?),
        at: row.try_get(1)?,
        bay: row.try_get(2)?,
        kind: row.try_get(3)?,
        body: row.try_get(4)?,
        hash: row.try_get(5)?,
    })
}

impl EventRow {
    /// What the columns `traffic` and `from_inside` must hold for this event. A body that is not JSON counts as
    /// empty.
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
