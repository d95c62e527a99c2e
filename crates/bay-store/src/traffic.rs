//! Reading the events of a bay's network traffic a page at a time. The column `traffic` has the [`TrafficPart`] of
//! an event.

use bay_types::event::egress::{EgressDecided, EgressRefused};
use bay_types::event::{Event, Recorded as _, TrafficPart};
use bay_types::{BayId, ExecId};
use sqlx::Row;

use crate::column::{to_i64, to_u64};
use crate::error::Result;
use crate::event_row::event_row;
use crate::store::Store;
use crate::timeline::Begin;

/// Which events of a bay's traffic to read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrafficWanted {
    /// Only refused traffic.
    pub refused: bool,
    /// Name lookups too.
    pub look_ups: bool,
}

impl Store {
    /// Events of a bay's traffic after `since`, oldest first, at most `limit`.
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
        rows.iter().map(|row| event_row(row).map_err(&failed)?.event()).collect()
    }

    /// Where to begin so that [`Store::traffic_page`] has the last `limit` events. An allowed request counts by
    /// the event of its end.
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

    /// Decisions that refused something to an exec, newest first, at most `limit`, among the newest `among` events of its
    /// bay. The text of a body decides, and a bay chose parts of that text: the caller checks each event.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn refusals_of_exec(
        &self,
        bay: BayId,
        exec: ExecId,
        among: u32,
        limit: u32,
    ) -> Result<Vec<Event>> {
        let failed = self.failed("reading what an exec was refused");
        let rows = sqlx::query(concat!(
            "SELECT seq, at, bay, kind, body, hash FROM ",
            "(SELECT seq, at, bay, kind, body, hash, traffic FROM events WHERE bay = $1 ORDER BY seq DESC LIMIT $2) ",
            "WHERE traffic = $3 AND kind IN ($4, $5) AND instr(body, $6) > 0 ORDER BY seq DESC LIMIT $7"
        ))
        .bind(bay.to_string())
        .bind(i64::from(among))
        .bind(TrafficPart::Other.as_str())
        .bind(EgressDecided::KIND)
        .bind(EgressRefused::KIND)
        .bind(exec.to_string())
        .bind(i64::from(limit))
        .fetch_all(&self.inner.readers)
        .await
        .map_err(&failed)?;
        rows.iter().map(|row| event_row(row).map_err(&failed)?.event()).collect()
    }

    /// How many bytes of the record a bay's traffic takes. Each event counts its body and `beside` bytes.
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
}
