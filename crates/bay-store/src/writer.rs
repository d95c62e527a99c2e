//! The single writing connection and its transactions.
//!
//! This module begins and ends transactions by hand. SQLite rolls back by itself when the disk is full, and a
//! caller that drops its future drops its transaction: in both cases only the database knows whether a transaction
//! is still open. So the next transaction begins with a rollback if the last one was not seen to commit.

use std::path::PathBuf;

use bay_ledger::Frontier;
use sqlx::sqlite::SqliteConnection;
use tokio::sync::{Mutex, MutexGuard, Notify, watch};

use bay_types::BayId;

use crate::draft::{Draft, Entry};
use crate::error::{Result, StoreError};
use crate::tree::{self, Begun};

/// The writing connection behind its lock, and the channels that announce commits.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) path: PathBuf,
    pub(crate) connection: Mutex<WriteConnection>,
    pub(crate) written: Notify,
    /// Number of the newest event.
    pub(crate) newest: watch::Sender<u64>,
    /// The end of the event record.
    pub(crate) frontier: watch::Sender<Frontier>,
}

/// The writing connection, and whether a transaction may still be open on it.
#[derive(Debug)]
pub(crate) struct WriteConnection {
    pub(crate) connection: SqliteConnection,
    unfinished: bool,
    /// The end of the event record after the last commit. `None` after a transaction that was not seen to commit.
    frontier: Option<Frontier>,
}

impl WriteConnection {
    pub(crate) fn new(connection: SqliteConnection) -> Self {
        Self { connection, unfinished: false, frontier: None }
    }
}

/// The lock on the writing connection.
pub(crate) struct WriterGuard<'a> {
    write: MutexGuard<'a, WriteConnection>,
    writer: &'a Writer,
}

/// A transaction. If it is dropped without a commit, it is rolled back before the next one begins.
pub(crate) struct Transaction<'a> {
    write: &'a mut WriteConnection,
    writer: &'a Writer,
}

impl Writer {
    pub(crate) async fn lock(&self) -> WriterGuard<'_> {
        WriterGuard { write: self.connection.lock().await, writer: self }
    }
}

impl WriterGuard<'_> {
    #[cfg(test)]
    pub(crate) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.write.connection
    }

    pub(crate) async fn begin(&mut self) -> Result<Transaction<'_>> {
        let path = &self.writer.path;
        let mut transaction = self.before_begin().await;
        sqlx::query("BEGIN IMMEDIATE")
            .execute(transaction.connection())
            .await
            .map_err(|source| StoreError::query(path, "beginning a transaction", source))?;
        Ok(transaction)
    }

    /// For a caller whose first statement itself begins with `BEGIN IMMEDIATE`. This saves one message to the
    /// database's thread.
    pub(crate) async fn before_begin(&mut self) -> Transaction<'_> {
        let write = &mut *self.write;
        if write.unfinished {
            // This fails if no transaction is open, which is fine.
            let _ = sqlx::query("ROLLBACK").execute(&mut write.connection).await;
            write.frontier = None;
        }
        write.unfinished = true;
        Transaction { write, writer: self.writer }
    }

    /// Writes events in a transaction of their own. Returns the number of the last event.
    pub(crate) async fn append(&mut self, entries: &[Entry]) -> Result<u64> {
        self.before_begin().await.append(Begun::No, entries).await
    }
}

impl Transaction<'_> {
    pub(crate) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.write.connection
    }

    /// Appends the event that records this change, and commits both. Returns the number of the event.
    pub(crate) async fn commit_with(self, bay: Option<BayId>, draft: &Draft) -> Result<u64> {
        self.append(Begun::Yes, &[draft.entry(bay)]).await
    }

    /// Appends one or more events and commits. Returns the number of the last event.
    pub(crate) async fn commit_with_all(self, bay: Option<BayId>, drafts: &[&Draft]) -> Result<u64> {
        let entries: Vec<Entry> = drafts.iter().map(|draft| draft.entry(bay)).collect();
        self.append(Begun::Yes, &entries).await
    }

    /// Appends one or more events and commits. Returns the number of the last event.
    async fn append(self, begun: Begun, entries: &[Entry]) -> Result<u64> {
        let WriteConnection { connection, frontier, .. } = &mut *self.write;
        let before = match frontier.take() {
            Some(frontier) => frontier,
            None => tree::frontier(connection).await?,
        };
        let after = tree::append_and_commit(connection, &self.writer.path, before, begun, entries).await?;
        let seq = after.size();
        self.write.frontier = Some(after.clone());
        self.write.unfinished = false;
        self.writer.frontier.send_replace(after);
        self.writer.written.notify_one();
        self.writer.newest.send_replace(seq);
        Ok(seq)
    }

    pub(crate) async fn commit(self) -> Result<()> {
        sqlx::query("COMMIT")
            .execute(&mut self.write.connection)
            .await
            .map_err(|source| StoreError::query(&self.writer.path, "committing a transaction", source))?;
        self.write.unfinished = false;
        self.writer.written.notify_one();
        Ok(())
    }
}
