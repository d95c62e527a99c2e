//! Verification of the whole record.

use std::path::Path;

use bay_ledger::{EventRecord, Frontier, Hash};
use bay_types::event::TrafficPart;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::column::to_i64;
use crate::error::{Result, StoreError};
use crate::event_row::{EventRow, PAGE, event_row};
use crate::store::Store;
use crate::tree::{frontier, grow};

/// The result of [`Store::events_verify`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Intact {
        events: u64,
        root: Hash,
    },
    /// Event `seq` is the first that does not verify.
    Broken {
        seq: u64,
        why: String,
    },
}

impl Store {
    /// Reads the whole record and checks every hash, including the inner hashes of the tree.
    ///
    /// # Errors
    /// When the database cannot be read; a broken record is a [`Verdict`], not an error.
    pub async fn events_verify(&self) -> Result<Verdict> {
        // A transaction keeps the frontier and the rows consistent while they are compared. It only reads, one page
        // at a time, so that a long record blocks no writer.
        let failed = self.failed("verifying events");
        let mut transaction = self.inner.readers.begin().await.map_err(&failed)?;
        let verdict = verify(&mut transaction, self.path()).await;
        transaction.rollback().await.map_err(failed)?;
        verdict
    }
}

/// Whether the columns that queries filter on match the event. If they did not, a valid event could be hidden from
/// the pages that it belongs to.
fn columns_fit(row: &SqliteRow, event: &EventRow) -> bool {
    let due = event.columns();
    let traffic = row.try_get::<Option<String>, _>(6);
    let from_inside = row.try_get::<i64, _>(7);
    traffic.is_ok_and(|kept| kept.as_deref() == due.traffic.map(TrafficPart::as_str))
        && from_inside.is_ok_and(|kept| kept == i64::from(due.from_inside))
}

async fn verify(connection: &mut SqliteConnection, path: &Path) -> Result<Verdict> {
    let failed = |source| StoreError::query(path, "verifying events", source);
    // An unreadable frontier is a broken record too, but it is reported only after all events were checked.
    let kept = frontier(connection).await.ok();
    let mut seen = Frontier::default();
    let mut nodes = Vec::new();
    let mut nodes_seen = 0_i64;
    loop {
        let rows = sqlx::query(
            "SELECT seq, at, bay, kind, body, hash, traffic, from_inside FROM events WHERE seq > $1 ORDER BY seq LIMIT $2",
        )
        .bind(to_i64(seen.size()))
        .bind(i64::from(PAGE))
        .fetch_all(&mut *connection)
        .await
        .map_err(failed)?;
        if rows.is_empty() {
            break;
        }
        for row in &rows {
            let expected = seen.size() + 1;
            let broken = |why: &str| Ok(Verdict::Broken { seq: expected, why: why.to_owned() });
            // A value of another type was not written by the daemon.
            let Ok(found) = event_row(row) else { return broken("its row does not hold what it should") };
            if found.seq != expected {
                return broken("it is missing");
            }
            let bay = found.bay.as_deref().unwrap_or("");
            let leaf = EventRecord::leaf_of(found.seq, &found.at, bay, &found.kind, &found.body);
            if Hash::parse(&found.hash) != Some(leaf) {
                return broken("its hash does not fit what it says");
            }
            if !columns_fit(row, &found) {
                return broken("what is kept beside it does not follow from what it says");
            }
            grow(&mut seen, leaf, &mut nodes)?;
            for (node, hash) in nodes.drain(..) {
                nodes_seen += 1;
                let row = sqlx::query("SELECT hash FROM ledger_nodes WHERE level = $1 AND place = $2")
                    .bind(i64::from(node.level))
                    .bind(to_i64(node.index))
                    .fetch_optional(&mut *connection)
                    .await
                    .map_err(failed)?;
                let kept = row.and_then(|row| row.try_get::<String, _>(0).ok());
                if kept.as_deref().and_then(Hash::parse) != Some(hash) {
                    return broken("a hash inside the tree, which covers it, does not fit");
                }
            }
        }
    }
    if kept.as_ref() != Some(&seen) {
        let size = kept.map_or(seen.size(), |kept| kept.size().min(seen.size()));
        let seq = if size == seen.size() { size + 1 } else { size };
        return Ok(Verdict::Broken { seq, why: "the record does not end where it was left".to_owned() });
    }
    let row =
        sqlx::query("SELECT COUNT(*) FROM ledger_nodes").fetch_one(&mut *connection).await.map_err(failed)?;
    if row.try_get::<i64, _>(0).map_err(failed)? != nodes_seen {
        let why = "the tree has hashes inside it that belong to no events".to_owned();
        return Ok(Verdict::Broken { seq: seen.size() + 1, why });
    }
    Ok(Verdict::Intact { events: seen.size(), root: seen.root() })
}
