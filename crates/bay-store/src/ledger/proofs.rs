//! Proofs made from the stored hashes: a bounded number of hashes per row of the tree.

use std::ops::Range;

use bay_ledger::{
    EventRecord, Evidence, Hash, Node, consistency_ranges, fold_full, fold_subtrees, inclusion_ranges,
    subtrees,
};
use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use crate::column::to_i64;
use crate::error::{Result, StoreError};
use crate::event_row::{PAGE, event_row};
use crate::store::Store;

impl Store {
    /// The root of the tree when the record had `size` events. `None` if it never had so many, or if some of them
    /// are missing.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn ledger_root(&self, size: u64) -> Result<Option<Hash>> {
        let mut hashes = self.hashes().await?;
        hashes.range(0..size).await
    }

    /// The proof that events `from` to `to` are in the tree of `size` events. `None` if there are no such events.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn ledger_range(&self, from: u64, to: u64, size: u64) -> Result<Option<Evidence>> {
        if from == 0 || from - 1 > to || to > size {
            return Ok(None);
        }
        let mut hashes = self.hashes().await?;
        let before = hashes.subtrees(0..from - 1).await?;
        let behind = hashes.subtrees(to..size).await?;
        Ok(before.zip(behind).map(|(before, behind)| Evidence::Range { from, to, before, behind }))
    }

    /// The proof that an event is in the tree of `size` events.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn ledger_inclusion(&self, event: u64, size: u64) -> Result<Option<Evidence>> {
        let Some(ranges) = event.checked_sub(1).and_then(|index| inclusion_ranges(index, size)) else {
            return Ok(None);
        };
        let path = self.hashes().await?.ranges(ranges).await?;
        Ok(path.map(|path| Evidence::Inclusion { event, path }))
    }

    /// The proof that the tree of `size` events continues the one of `old`.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn ledger_consistency(&self, old: u64, size: u64) -> Result<Option<Evidence>> {
        let Some(ranges) = consistency_ranges(old, size) else { return Ok(None) };
        let path = self.hashes().await?.ranges(ranges).await?;
        Ok(path.map(|path| Evidence::Consistency { old, path }))
    }

    /// The events `from` to `to` as they are stored, at most one page of them. The reader finds out whether they
    /// were changed: a malformed hash is returned as zeros, which match no event.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn ledger_events(&self, from: u64, to: u64) -> Result<Vec<EventRecord>> {
        let failed = self.failed("reading events");
        let rows = sqlx::query(
            "SELECT seq, at, bay, kind, body, hash FROM events WHERE seq >= $1 AND seq <= $2 ORDER BY seq LIMIT $3",
        )
        .bind(to_i64(from))
        .bind(to_i64(to))
        .bind(i64::from(PAGE))
        .fetch_all(&self.inner.readers)
        .await
        .map_err(&failed)?;
        rows.iter()
            .map(|row| {
                let found = event_row(row).map_err(&failed)?;
                Ok(EventRecord {
                    seq: found.seq,
                    at: found.at,
                    bay: found.bay.unwrap_or_default(),
                    kind: found.kind,
                    body: found.body,
                    hash: Hash::parse(&found.hash).unwrap_or(Hash::new([0; Hash::BYTES])),
                })
            })
            .collect()
    }

    async fn hashes(&self) -> Result<Hashes<'_>> {
        let connection = self.inner.readers.acquire().await.map_err(self.failed("reading the ledger"))?;
        Ok(Hashes { store: self, connection })
    }
}

struct Hashes<'a> {
    store: &'a Store,
    connection: sqlx::pool::PoolConnection<sqlx::Sqlite>,
}

impl Hashes<'_> {
    async fn ranges(&mut self, ranges: Vec<Range<u64>>) -> Result<Option<Vec<Hash>>> {
        let mut found = Vec::with_capacity(ranges.len());
        for range in ranges {
            let Some(hash) = self.range(range).await? else { return Ok(None) };
            found.push(hash);
        }
        Ok(Some(found))
    }

    async fn range(&mut self, range: Range<u64>) -> Result<Option<Hash>> {
        Ok(self.subtrees(range).await?.map(|hashes| fold_subtrees(&hashes)))
    }

    async fn subtrees(&mut self, range: Range<u64>) -> Result<Option<Vec<Hash>>> {
        let mut found = Vec::new();
        for node in subtrees(range) {
            let Some(hash) = node_hash(&mut self.connection, self.store, node).await? else {
                return Ok(None);
            };
            found.push(hash);
        }
        Ok(Some(found))
    }
}

async fn node_hash(connection: &mut SqliteConnection, store: &Store, node: Node) -> Result<Option<Hash>> {
    let failed = store.failed("reading the ledger");
    let row = node.row();
    let (first, behind) = (row.first, row.first + row.count);
    let query = if row.level == 0 {
        sqlx::query("SELECT hash FROM events WHERE seq > $1 AND seq <= $2 ORDER BY seq")
    } else {
        sqlx::query(
            "SELECT hash FROM ledger_nodes WHERE place >= $1 AND place < $2 AND level = $3 ORDER BY place",
        )
    };
    let query = query.bind(to_i64(first)).bind(to_i64(behind));
    let query = if row.level == 0 { query } else { query.bind(i64::from(row.level)) };
    let rows = query.fetch_all(connection).await.map_err(&failed)?;
    if rows.len() as u64 != row.count {
        return Ok(None);
    }
    let mut hashes = Vec::with_capacity(rows.len());
    for row in &rows {
        let text: String = row.try_get(0).map_err(|e| StoreError::column("the ledger", e))?;
        let Some(hash) = Hash::parse(&text) else { return Ok(None) };
        hashes.push(hash);
    }
    Ok(fold_full(hashes))
}
