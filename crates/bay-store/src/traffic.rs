//! The part of the record that a bay's traffic is: read a page at a time, and left out of its timeline where there is too
//! much of it. Events are selected by the column that has their [`TrafficPart`].

use bay_types::BayId;
use bay_types::event::{Event, TrafficPart};
use sqlx::Row;

use crate::event::{raw, to_i64, to_u64};
use crate::timeline::Begin;
use crate::{Result, Store};

/// Which part of a bay's traffic is wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrafficWanted {
    /// Only what was refused.
    pub refused: bool,
    /// Questions for names too.
    pub look_ups: bool,
}

impl Store {
    /// Events of a bay's traffic after `since`, oldest first, at most so many.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn traffic_page(
        &self,
        bay: BayId,
        since: u64,
        wanted: TrafficWanted,
        limit: u32,
    ) -> Result<Vec<Event>> {
        let failed = self.failed("reading a bay's traffic");
        let rows = sqlx::query(concat!(
            "SELECT seq, at, bay, kind, body, hash FROM events WHERE bay = $1 AND seq > $2 AND traffic IS NOT NULL ",
            "AND ($3 = 1 OR traffic <> $4) AND ($5 = 0 OR traffic NOT IN ($6, $7)) ORDER BY seq LIMIT $8"
        ))
        .bind(bay.to_string())
        .bind(to_i64(since))
        .bind(i64::from(wanted.look_ups))
        .bind(TrafficPart::LookUp.as_str())
        .bind(i64::from(wanted.refused))
        .bind(TrafficPart::LetOut.as_str())
        .bind(TrafficPart::Ended.as_str())
        .bind(i64::from(limit))
        .fetch_all(&self.inner.readers)
        .await
        .map_err(&failed)?;
        rows.iter().map(|row| raw(row).map_err(&failed)?.event()).collect()
    }

    /// Where to begin for the last `limit` of them, what was let out counted by its end.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn traffic_begin(
        &self,
        bay: BayId,
        since: u64,
        wanted: TrafficWanted,
        limit: u32,
    ) -> Result<Begin> {
        let failed = self.failed("reading a bay's traffic");
        let found = sqlx::query(concat!(
            "SELECT seq FROM events WHERE bay = $1 AND seq > $2 AND traffic <> $6 ",
            "AND ($3 = 1 OR traffic <> $4) AND ($5 = 0 OR traffic <> $7) ORDER BY seq DESC LIMIT 1 OFFSET $8"
        ))
        .bind(bay.to_string())
        .bind(to_i64(since))
        .bind(i64::from(wanted.look_ups))
        .bind(TrafficPart::LookUp.as_str())
        .bind(i64::from(wanted.refused))
        .bind(TrafficPart::LetOut.as_str())
        .bind(TrafficPart::Ended.as_str())
        .bind(i64::from(limit))
        .fetch_optional(&self.inner.readers)
        .await
        .map_err(&failed)?;
        match found {
            None => Ok(Begin { after: since, older: false }),
            Some(row) => Ok(Begin { after: to_u64(row.try_get(0).map_err(&failed)?), older: true }),
        }
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
        row.map(|row| raw(&row).map_err(&failed)?.event()).transpose()
    }
}
