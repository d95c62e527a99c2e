//! The record as a Merkle tree (RFC 6962), as the database stores it. `bay-ledger` has the tree itself.
//!
//! ```text
//!   events.hash       the leaves, by number
//!   ledger_nodes      every 8th level above them: one hash in 256 events
//!   meta "ledger"     size and frontier, moved in the transaction that appends
//! ```
//!
//! Appending continues from the stored frontier, not from the last row, so that a removed tail stays visible as a
//! gap. Nothing is hashed again when the daemon starts.

mod from_chain;

use std::fmt::Write;
use std::path::Path;

use bay_ledger::{EventRecord, Frontier, Hash, Node};
use bay_types::event::TrafficPart;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Row};

pub(crate) use from_chain::adopt;

use crate::column::{now, to_i64, to_u64};
use crate::draft::Entry;
use crate::error::{Result, StoreError};
use crate::meta;

const FRONTIER: &str = "ledger";
/// Columns of an event. The hash covers all of them except the hash itself and the last two, which follow from kind
/// and body.
const EVENT_COLUMNS: usize = 8;

/// Whether the transaction already began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begun {
    Yes,
    /// The first statement begins it.
    No,
}

fn frontier_text(frontier: &Frontier) -> String {
    let mut text = frontier.size().to_string();
    for peak in frontier.peaks() {
        let _ = write!(text, " {peak}");
    }
    text
}

fn parse_frontier(text: &str) -> Option<Frontier> {
    let mut words = text.split(' ');
    let size = words.next()?.parse().ok()?;
    Frontier::new(size, words.map(Hash::parse).collect::<Option<_>>()?)
}

/// The end of the record.
pub(crate) async fn frontier(connection: &mut SqliteConnection) -> Result<Frontier> {
    let text = meta::get(connection, FRONTIER)
        .await
        .map_err(|source| StoreError::Query { what: "reading the end of the event record", source })?;
    match text {
        None => Ok(Frontier::default()),
        Some(text) => parse_frontier(&text)
            .ok_or_else(|| StoreError::column("meta", "the end of the event record is malformed")),
    }
}

/// Adds a leaf to the tree, and to `nodes` the inner hashes that are stored.
pub(crate) fn grow(frontier: &mut Frontier, leaf: Hash, nodes: &mut Vec<(Node, Hash)>) -> Result<()> {
    let grown = frontier.push(leaf, |node, hash| {
        if node.is_kept() {
            nodes.push((node, hash));
        }
    });
    if grown { Ok(()) } else { Err(StoreError::column("meta", "the event record is full")) }
}

/// `($1, $2), ($3, $4)`, beginning with parameter `first`.
fn values(sql: &mut String, rows: usize, columns: usize, first: usize) {
    for row in 0..rows {
        sql.push_str(if row == 0 { "(" } else { ", (" });
        for column in 0..columns {
            let _ = write!(sql, "{}${}", if column == 0 { "" } else { ", " }, first + row * columns + column);
        }
        sql.push(')');
    }
}

/// The statements that append `events` events and `nodes` nodes, move the frontier and commit.
fn append_sql(begun: Begun, events: usize, nodes: usize) -> String {
    let mut sql = String::from(if begun == Begun::No { "BEGIN IMMEDIATE; " } else { "" });
    sql.push_str("INSERT INTO events (seq, at, bay, kind, body, hash, traffic, from_inside) VALUES ");
    values(&mut sql, events, EVENT_COLUMNS, 1);
    if nodes > 0 {
        sql.push_str("; INSERT INTO ledger_nodes (level, place, hash) VALUES ");
        values(&mut sql, nodes, 3, 1 + EVENT_COLUMNS * events);
    }
    let last = 1 + EVENT_COLUMNS * events + 3 * nodes;
    let _ = write!(
        sql,
        "; INSERT INTO meta (key, value) VALUES (${last}, ${}) ON CONFLICT (key) DO UPDATE SET value = excluded.value; COMMIT",
        last + 1
    );
    sql
}

/// Appends events after `frontier` and commits the transaction of the change that they record. All statements go to
/// the database's thread in one message, because on an idle machine each message wakes a sleeping thread.
pub(crate) async fn append_and_commit(
    connection: &mut SqliteConnection,
    path: &Path,
    mut frontier: Frontier,
    begun: Begun,
    entries: &[Entry],
) -> Result<Frontier> {
    let mut leaves = Vec::with_capacity(entries.len());
    let mut nodes = Vec::new();
    // All events of one transaction have the same time.
    let at = now().to_string();
    for Entry { bay, kind, body, .. } in entries {
        let seq = frontier.size() + 1;
        let leaf = EventRecord::leaf_of(seq, &at, bay.as_deref().unwrap_or(""), kind, body);
        grow(&mut frontier, leaf, &mut nodes)?;
        leaves.push((seq, leaf));
    }
    let sql = append_sql(begun, entries.len(), nodes.len());
    // Most transactions write one event, so only that statement is cached. Statements for other counts would push
    // it out of the cache.
    let keep = entries.len() == 1 && nodes.is_empty();
    let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(keep);
    for ((seq, leaf), entry) in leaves.into_iter().zip(entries) {
        query = query
            .bind(to_i64(seq))
            .bind(at.as_str())
            .bind(entry.bay.as_deref())
            .bind(entry.kind.as_str())
            .bind(entry.body.as_str())
            .bind(leaf.to_string())
            .bind(entry.columns.traffic.map(TrafficPart::as_str))
            .bind(i64::from(entry.columns.from_inside));
    }
    for (node, hash) in nodes {
        query = query.bind(i64::from(node.level)).bind(to_i64(node.index)).bind(hash.to_string());
    }
    query
        .bind(FRONTIER)
        .bind(frontier_text(&frontier))
        .execute(&mut *connection)
        .await
        .map_err(|source| StoreError::query(path, "writing an event", source))?;
    Ok(frontier)
}

/// Logs an error if the record does not end where the stored frontier says. The daemon continues, and the gap stays
/// visible.
pub(crate) async fn end_check(connection: &mut SqliteConnection, path: &Path) -> Result<Frontier> {
    let failed = |source| StoreError::query(path, "reading the event record", source);
    let kept = frontier(connection).await?;
    let row = sqlx::query("SELECT COALESCE(MAX(seq), 0) FROM events")
        .fetch_one(&mut *connection)
        .await
        .map_err(failed)?;
    let last = to_u64(row.try_get(0).map_err(failed)?);
    if kept.size() != last {
        tracing::error!(
            kept_seq = kept.size(),
            found_seq = last,
            "the end of the event record is not where it was left: it was changed behind the daemon's back"
        );
    }
    Ok(kept)
}
