//! The one way to write: a transaction on the one writing connection.
//!
//! Transactions are begun and ended here by hand. SQLite rolls back by itself when the disk is full, and a caller that
//! goes away drops a transaction in the middle: in both cases nobody but the database knows whether one is still open.
//! So the next one begins with a rollback whenever the last one was not seen to commit.

use std::path::Path;

use sqlx::sqlite::SqliteConnection;
use tokio::sync::{MutexGuard, Notify, watch};

use bay_types::BayId;

use crate::event::{self, Draft, Head};
use crate::{Result, Store, StoreError};

/// The writing connection, and whether a transaction may be open on it.
#[derive(Debug)]
pub(crate) struct Pen {
    pub(crate) connection: SqliteConnection,
    unfinished: bool,
    /// Where the event record ends, as of the last commit seen; unknown after anything that was not seen to commit.
    head: Option<Head>,
}

impl Pen {
    pub(crate) fn new(connection: SqliteConnection) -> Self {
        Self { connection, unfinished: false, head: None }
    }
}

/// The pen, for as long as this is held.
pub(crate) struct Writer<'a> {
    pen: MutexGuard<'a, Pen>,
    path: &'a Path,
    written: &'a Notify,
    told: &'a watch::Sender<u64>,
}

/// Undone when dropped without [`Txn::commit`].
pub(crate) struct Txn<'a> {
    pen: &'a mut Pen,
    path: &'a Path,
    written: &'a Notify,
    told: &'a watch::Sender<u64>,
}

impl Store {
    pub(crate) async fn writer(&self) -> Writer<'_> {
        let inner = &self.inner;
        Writer { pen: inner.pen.lock().await, path: &inner.path, written: &inner.written, told: &inner.told }
    }
}

impl Writer<'_> {
    #[cfg(test)]
    pub(crate) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.pen.connection
    }

    pub(crate) async fn begin(&mut self) -> Result<Txn<'_>> {
        let path = self.path;
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
            pen.head = None;
        }
        pen.unfinished = true;
        Txn { pen, path: self.path, written: self.written, told: self.told }
    }
}

impl Txn<'_> {
    pub(crate) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.pen.connection
    }

    /// Appends the event that records this change, and commits both. The end of the record, the event and the commit go
    /// to the database's thread as one message: on an idle machine each one costs a sleeping thread's wake-up.
    pub(crate) async fn commit_with(self, bay: Option<BayId>, draft: &Draft) -> Result<u64> {
        let Pen { connection, head, .. } = &mut *self.pen;
        let before = match head.take() {
            Some(head) => head,
            None => event::head(connection).await?,
        };
        let after = event::append_and_commit(connection, self.path, &before, bay, draft).await?;
        let seq = after.seq;
        self.pen.head = Some(after);
        self.pen.unfinished = false;
        self.written.notify_one();
        self.told.send_replace(seq);
        Ok(seq)
    }

    pub(crate) async fn commit(self) -> Result<()> {
        sqlx::query("COMMIT")
            .execute(&mut self.pen.connection)
            .await
            .map_err(|source| StoreError::query(self.path, "committing a transaction", source))?;
        self.pen.unfinished = false;
        self.written.notify_one();
        Ok(())
    }
}
