//! The one way to write: a transaction on the one writing connection.
//!
//! Transactions are begun and ended here by hand. SQLite rolls back by itself when the disk is full, and a caller that
//! goes away drops a transaction in the middle: in both cases nobody but the database knows whether one is still open.
//! So the next one begins with a rollback whenever the last one was not seen to commit.

use std::path::PathBuf;

use bay_ledger::Frontier;
use sqlx::sqlite::SqliteConnection;
use tokio::sync::{Mutex, MutexGuard, Notify, watch};

use bay_types::BayId;

use crate::event::{Draft, Entry};
use crate::ledger::Begun;
use crate::{Result, Store, StoreError, ledger};

/// Where writing happens: the pen, and who is to hear of what was written.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) path: PathBuf,
    pub(crate) pen: Mutex<Pen>,
    pub(crate) written: Notify,
    /// Number of the newest event.
    pub(crate) told: watch::Sender<u64>,
    /// Where the event record ends.
    pub(crate) committed: watch::Sender<Frontier>,
}

/// The writing connection, and whether a transaction may be open on it.
#[derive(Debug)]
pub(crate) struct Pen {
    pub(crate) connection: SqliteConnection,
    unfinished: bool,
    /// Where the event record ends, as of the last commit seen; unknown after anything that was not seen to commit.
    frontier: Option<Frontier>,
}

impl Pen {
    pub(crate) fn new(connection: SqliteConnection) -> Self {
        Self { connection, unfinished: false, frontier: None }
    }
}

/// The pen, for as long as this is held.
pub(crate) struct Writer<'a> {
    pen: MutexGuard<'a, Pen>,
    desk: &'a Desk,
}

/// Undone when dropped without [`Txn::commit`].
pub(crate) struct Txn<'a> {
    pen: &'a mut Pen,
    desk: &'a Desk,
}

impl Desk {
    pub(crate) async fn writer(&self) -> Writer<'_> {
        Writer { pen: self.pen.lock().await, desk: self }
    }
}

impl Store {
    pub(crate) async fn writer(&self) -> Writer<'_> {
        self.inner.desk.writer().await
    }
}

impl Writer<'_> {
    #[cfg(test)]
    pub(crate) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.pen.connection
    }

    pub(crate) async fn begin(&mut self) -> Result<Txn<'_>> {
        let path = &self.desk.path;
        let mut transaction = self.before_begin().await;
        sqlx::query("BEGIN IMMEDIATE")
            .execute(transaction.connection())
            .await
            .map_err(|source| StoreError::query(path, "beginning a transaction", source))?;
        Ok(transaction)
    }

    /// The same for a caller whose first statements begin with `BEGIN IMMEDIATE`: one message less for the database's
    /// thread.
    pub(crate) async fn before_begin(&mut self) -> Txn<'_> {
        let pen = &mut *self.pen;
        if pen.unfinished {
            // Fails when there is nothing to roll back, which is as good.
            let _ = sqlx::query("ROLLBACK").execute(&mut pen.connection).await;
            pen.frontier = None;
        }
        pen.unfinished = true;
        Txn { pen, desk: self.desk }
    }

    /// A transaction of events alone. Returns the number of the last.
    pub(crate) async fn append(&mut self, entries: &[Entry]) -> Result<u64> {
        self.before_begin().await.append(Begun::No, entries).await
    }
}

impl Txn<'_> {
    pub(crate) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.pen.connection
    }

    /// Appends the event that records this change, and commits both. Returns its number.
    pub(crate) async fn commit_with(self, bay: Option<BayId>, draft: &Draft) -> Result<u64> {
        self.append(Begun::Yes, &[draft.entry(bay)]).await
    }

    /// Appends several events, which must be at least one, and commits. Returns the number of the last.
    pub(crate) async fn commit_with_all(self, bay: Option<BayId>, drafts: &[&Draft]) -> Result<u64> {
        let entries: Vec<Entry> = drafts.iter().map(|draft| draft.entry(bay)).collect();
        self.append(Begun::Yes, &entries).await
    }

    /// Appends events, which must be at least one, and commits. Returns the number of the last.
    async fn append(self, begun: Begun, entries: &[Entry]) -> Result<u64> {
        let Pen { connection, frontier, .. } = &mut *self.pen;
        let before = match frontier.take() {
            Some(frontier) => frontier,
            None => ledger::frontier(connection).await?,
        };
        let after = ledger::append_and_commit(connection, &self.desk.path, before, begun, entries).await?;
        let seq = after.size();
        self.pen.frontier = Some(after.clone());
        self.pen.unfinished = false;
        self.desk.committed.send_replace(after);
        self.desk.written.notify_one();
        self.desk.told.send_replace(seq);
        Ok(seq)
    }

    pub(crate) async fn commit(self) -> Result<()> {
        sqlx::query("COMMIT")
            .execute(&mut self.pen.connection)
            .await
            .map_err(|source| StoreError::query(&self.desk.path, "committing a transaction", source))?;
        self.pen.unfinished = false;
        self.desk.written.notify_one();
        Ok(())
    }
}
