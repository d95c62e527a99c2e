//! The one way to write: a transaction on the one writing connection.
//!
//! Transactions are begun and ended here by hand. SQLite rolls back by itself when the disk is full, and a caller that
//! goes away drops a transaction in the middle: in both cases nobody but the database knows whether one is still open.
//! So the next one begins with a rollback whenever the last one was not seen to commit.

use std::path::Path;

use sqlx::sqlite::SqliteConnection;
use tokio::sync::{MutexGuard, Notify};

use crate::{Result, Store, StoreError};

/// The writing connection, and whether a transaction may be open on it.
#[derive(Debug)]
pub(crate) struct Pen {
    pub(crate) connection: SqliteConnection,
    unfinished: bool,
}

impl Pen {
    pub(crate) fn new(connection: SqliteConnection) -> Self {
        Self { connection, unfinished: false }
    }
}

/// The pen, for as long as this is held.
pub(crate) struct Writer<'a> {
    pen: MutexGuard<'a, Pen>,
    path: &'a Path,
    written: &'a Notify,
}

/// Undone when dropped without [`Txn::commit`].
pub(crate) struct Txn<'a> {
    pen: &'a mut Pen,
    path: &'a Path,
    written: &'a Notify,
}

impl Store {
    pub(crate) async fn writer(&self) -> Writer<'_> {
        Writer { pen: self.inner.pen.lock().await, path: &self.inner.path, written: &self.inner.written }
    }
}

impl Writer<'_> {
    #[cfg(test)]
    pub(crate) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.pen.connection
    }

    pub(crate) async fn begin(&mut self) -> Result<Txn<'_>> {
        let pen = &mut *self.pen;
        if pen.unfinished {
            // Fails when there is nothing to roll back, which is as good.
            let _ = sqlx::query("ROLLBACK").execute(&mut pen.connection).await;
        }
        pen.unfinished = true;
        sqlx::query("BEGIN IMMEDIATE")
            .execute(&mut pen.connection)
            .await
            .map_err(|source| StoreError::query(self.path, "beginning a transaction", source))?;
        Ok(Txn { pen, path: self.path, written: self.written })
    }
}

impl Txn<'_> {
    pub(crate) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.pen.connection
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
