//! Migration of the event record of earlier releases, which hashed events in a chain: each hash covered the hash
//! before it. The first start of a release that has the tree checks that chain, puts its events into the tree, and
//! records the result.
//!
//! An event that did not verify in the chain must not verify in the tree. So a missing event gets a leaf that
//! matches no event, and a changed event keeps its old hash, which is not its leaf.

use std::path::Path;

use bay_ledger::{EventRecord, Frontier, Hash};
use bay_types::event::daemon::LedgerBegun;
use sha2::{Digest, Sha256};
use sqlx::sqlite::SqliteConnection;

use super::{Begun, FRONTIER, append_and_commit, grow};
use crate::column::to_i64;
use crate::draft::Draft;
use crate::error::{Result, StoreError};
use crate::event_row::{EventRow, PAGE, event_row};
use crate::meta;

/// The key in `meta` of the end of the chain.
const CHAIN_HEAD: &str = "event_head";
/// The hash before the first event, and the leaf of a missing event.
const NONE: Hash = Hash::new([0; Hash::BYTES]);

/// Turns a chain into a tree, in one transaction. Does nothing if there is no chain, or a tree already.
pub(crate) async fn adopt(connection: &mut SqliteConnection, path: &Path) -> Result<()> {
    let failed = |source| StoreError::query(path, "taking over the event record", source);
    if meta::get(connection, FRONTIER).await.map_err(failed)?.is_some() {
        return Ok(());
    }
    let Some(head) = meta::get(connection, CHAIN_HEAD).await.map_err(failed)? else { return Ok(()) };
    let head = head
        .split_once(' ')
        .and_then(|(seq, hash)| Some((seq.parse().ok()?, Hash::parse(hash)?)))
        .ok_or_else(|| StoreError::column("meta", "the end of the event record is malformed"))?;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut *connection).await.map_err(failed)?;
    // On an error, the caller drops the connection, which rolls this back.
    let walk = walk(connection, path, head).await?;
    sqlx::query("DELETE FROM meta WHERE key = $1")
        .bind(CHAIN_HEAD)
        .execute(&mut *connection)
        .await
        .map_err(failed)?;
    let begun =
        Draft::of(LedgerBegun { events: head.0, chain_head: head.1.to_string(), first_bad: walk.first_bad });
    if let Some(seq) = walk.first_bad {
        tracing::error!(seq, "the event record of an earlier release does not hold from this event on");
    }
    append_and_commit(connection, path, walk.frontier, Begun::Yes, &[begun.entry(None)]).await.map(drop)
}

#[derive(Default)]
struct Walk {
    frontier: Frontier,
    first_bad: Option<u64>,
}

impl Walk {
    fn bad(&mut self) {
        self.first_bad.get_or_insert(self.frontier.size() + 1);
    }
}

async fn walk(connection: &mut SqliteConnection, path: &Path, head: (u64, Hash)) -> Result<Walk> {
    let failed = |source| StoreError::query(path, "taking over the event record", source);
    let mut walk = Walk::default();
    let mut nodes = Vec::new();
    let mut before = NONE;
    loop {
        let rows = sqlx::query(
            "SELECT seq, at, bay, kind, body, hash FROM events WHERE seq > $1 ORDER BY seq LIMIT $2",
        )
        .bind(to_i64(walk.frontier.size()))
        .bind(i64::from(PAGE))
        .fetch_all(&mut *connection)
        .await
        .map_err(failed)?;
        if rows.is_empty() {
            break;
        }
        for row in &rows {
            let event = event_row(row).map_err(failed)?;
            // The daemon wrote no event after the stored end. Such an event would collide with the next one
            // appended.
            if event.seq > head.0 {
                return Err(StoreError::Damaged {
                    path: path.to_owned(),
                    what: "there are events behind the end of its record".to_owned(),
                });
            }
            while walk.frontier.size() + 1 < event.seq {
                walk.bad();
                grow(&mut walk.frontier, NONE, &mut nodes)?;
            }
            let kept = Hash::parse(&event.hash).unwrap_or(NONE);
            let fits = chained(&before, &event) == kept;
            let leaf = if fits { leaf(&event) } else { kept };
            if fits {
                sqlx::query("UPDATE events SET hash = $1 WHERE seq = $2")
                    .bind(leaf.to_string())
                    .bind(to_i64(event.seq))
                    .execute(&mut *connection)
                    .await
                    .map_err(failed)?;
            } else {
                walk.bad();
            }
            grow(&mut walk.frontier, leaf, &mut nodes)?;
            before = kept;
        }
    }
    while walk.frontier.size() < head.0 {
        walk.bad();
        grow(&mut walk.frontier, NONE, &mut nodes)?;
        before = head.1;
    }
    if before != head.1 {
        walk.first_bad.get_or_insert(head.0);
    }
    for (node, hash) in nodes {
        sqlx::query("INSERT INTO ledger_nodes (level, place, hash) VALUES ($1, $2, $3)")
            .bind(i64::from(node.level))
            .bind(to_i64(node.index))
            .bind(hash.to_string())
            .execute(&mut *connection)
            .await
            .map_err(failed)?;
    }
    Ok(walk)
}

fn leaf(event: &EventRow) -> Hash {
    let bay = event.bay.as_deref().unwrap_or("");
    EventRecord::leaf_of(event.seq, &event.at, bay, &event.kind, &event.body)
}

/// The hash of an event in the chain.
fn chained(before: &Hash, event: &EventRow) -> Hash {
    let bay = event.bay.as_deref().unwrap_or("");
    let bytes = EventRecord::canonical(event.seq, &event.at, bay, &event.kind, &event.body);
    Hash::new(Sha256::new().chain_update(before.bytes()).chain_update(bytes).finalize().into())
}
