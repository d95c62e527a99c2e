//! Opening, closing and making the database.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bay_text::hex;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, Row};
use tokio::sync::{Mutex, Notify, watch};

use crate::append_queue::{self, Appends};
use crate::error::{Result, StoreError};
use crate::id_ranges::{self, Reserved};
use crate::sync::{self, Durable, log_path, sync_file};
use crate::writer::{WriteConnection, Writer, WriterGuard};
use crate::{meta, schema, tree};

/// How long a statement waits for a lock that another connection holds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that only read.
const READERS: u32 = 4;

/// The database of one daemon. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) writer: Arc<Writer>,
    pub(crate) readers: SqlitePool,
    /// Wakes the sync task from waiting for more commits.
    pub(crate) sync_now: Arc<Notify>,
    pub(crate) durable: watch::Sender<Durable>,
    pub(crate) appends: Appends,
    tasks: [tokio::task::JoinHandle<()>; 2],
    daemon_id: String,
    pub(crate) first_slot: u32,
    pub(crate) reserved: Vec<Reserved>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Store {
    /// Opens the database, or makes it if there is none. Only one process may have it open: the caller holds the
    /// lock on the data directory.
    ///
    /// # Errors
    /// See the failure paths in the overview of this crate.
    pub async fn open(path: &Path) -> Result<Self> {
        match std::fs::metadata(path) {
            Ok(meta) if meta.len() == 0 => {
                return Err(StoreError::Damaged {
                    path: path.to_owned(),
                    what: "the file is empty".to_owned(),
                });
            }
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => make_new(path).await?,
            Err(e) => return Err(StoreError::Reach { path: path.to_owned(), source: e }),
        }

        let failed = |what| move |source| StoreError::query(path, what, source);
        let mut connection =
            SqliteConnection::connect_with(&options(path)).await.map_err(failed("opening the database"))?;
        let verdict = sqlx::query("PRAGMA quick_check(1)")
            .fetch_one(&mut connection)
            .await
            .and_then(|row| row.try_get::<String, _>(0))
            .map_err(failed("checking the database"))?;
        if verdict != "ok" {
            return Err(StoreError::Damaged { path: path.to_owned(), what: verdict });
        }
        schema::migrate(&mut connection, path).await?;
        let daemon_id = meta::get(&mut connection, "daemon_id")
            .await
            .map_err(failed("reading the daemon's id"))?
            .ok_or_else(|| StoreError::Damaged {
                path: path.to_owned(),
                what: "the daemon's id is missing".to_owned(),
            })?;
        tree::adopt(&mut connection, path).await?;
        let end = tree::end_check(&mut connection, path).await?;

        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .min_connections(1)
            .test_before_acquire(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_with(options(path).read_only(true))
            .await
            .map_err(failed("opening the database"))?;

        let writer = Arc::new(Writer {
            path: path.to_owned(),
            connection: Mutex::new(WriteConnection::new(connection)),
            written: Notify::new(),
            newest: watch::Sender::new(end.size()),
            frontier: watch::Sender::new(end),
        });
        // The last commits of an earlier daemon may not be on the disk yet.
        writer.written.notify_one();
        let sync_now = Arc::new(Notify::new());
        let durable = watch::Sender::new(Durable::default());
        let (appends, queues) = append_queue::queues();
        let tasks = [
            tokio::spawn(sync::sync_forever(
                log_path(path),
                Arc::clone(&writer),
                Arc::clone(&sync_now),
                durable.clone(),
            )),
            tokio::spawn(append_queue::append_forever(Arc::clone(&writer), queues)),
        ];
        let first_slot = id_ranges::first_slot(&daemon_id);
        let reserved = id_ranges::reserved_on_host();
        Ok(Self {
            inner: Arc::new(Inner {
                writer,
                readers,
                sync_now,
                durable,
                appends,
                tasks,
                daemon_id,
                first_slot,
                reserved,
            }),
        })
    }

    /// Identifies this daemon for as long as its database exists. Its corner of the pool and its cgroups are named
    /// after it, and its id ranges begin at a slot that follows from it.
    #[must_use]
    pub fn daemon_id(&self) -> &str {
        &self.inner.daemon_id
    }

    /// Moves the log into the database file and flushes it. When this returns, every acknowledged change is on the
    /// disk, unless the flush failed, which is logged.
    pub async fn close(&self) {
        self.inner.appends.drain().await;
        self.inner.readers.close().await;
        let mut write = self.inner.writer.connection.lock().await;
        // If this fails, the changes stay in the log, where the next daemon finds them.
        if let Err(error) =
            sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut write.connection).await
        {
            tracing::warn!(%error, "the database's log could not be folded in");
        }
        let log = log_path(self.path());
        let synced = tokio::task::spawn_blocking(move || sync_file(&log)).await;
        if let Ok(Err(error)) = synced {
            tracing::warn!(%error, "the database's log could not be flushed");
        }
    }

    /// A value of the table `meta`.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn setting(&self, key: &'static str) -> Result<Option<String>> {
        let failed = self.failed("reading a setting");
        let mut reader = self.inner.readers.acquire().await.map_err(&failed)?;
        meta::get(&mut reader, key).await.map_err(&failed)
    }

    /// Sets a value of the table `meta`.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn setting_set(&self, key: &'static str, value: &str) -> Result<()> {
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        meta::set(transaction.connection(), key, value).await.map_err(self.failed("writing a setting"))?;
        transaction.commit().await
    }

    /// Removes a value of the table `meta`.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn setting_remove(&self, key: &'static str) -> Result<()> {
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        meta::remove(transaction.connection(), key).await.map_err(self.failed("removing a setting"))?;
        transaction.commit().await
    }

    pub(crate) async fn writer(&self) -> WriterGuard<'_> {
        self.inner.writer.lock().await
    }

    pub(crate) fn failed(&self, what: &'static str) -> impl Fn(sqlx::Error) -> StoreError + '_ {
        move |source| StoreError::query(self.path(), what, source)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.inner.writer.path
    }
}

pub(crate) fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(false)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .foreign_keys(true)
        .busy_timeout(BUSY_TIMEOUT)
        // Logging every statement would slow each exec down and tell a reader nothing.
        .disable_statement_logging()
}

/// Makes an empty database under a temporary name and moves it into place.
async fn make_new(path: &Path) -> Result<()> {
    let reach = |source| StoreError::Reach { path: path.to_owned(), source };
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    for suffix in ["", "-wal", "-shm"] {
        let mut leftover = new.as_os_str().to_owned();
        leftover.push(suffix);
        match std::fs::remove_file(&leftover) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(reach(e)),
            _ => {}
        }
    }
    {
        use std::os::unix::fs::OpenOptionsExt;
        // Created here and not by SQLite, so that other users can never read it.
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(reach)?;
    }
    let failed = |what| move |source| StoreError::query(path, what, source);
    let mut connection =
        SqliteConnection::connect_with(&options(&new)).await.map_err(failed("making the database"))?;
    schema::migrate(&mut connection, path).await?;
    let mut random = [0_u8; 8];
    random_bytes(&mut random).map_err(reach)?;
    sqlx::query("INSERT INTO meta (key, value) VALUES ('daemon_id', $1)")
        .bind(hex::encode(random))
        .execute(&mut connection)
        .await
        .map_err(failed("making the database"))?;
    connection.close().await.map_err(failed("making the database"))?;
    sync_file(&new).map_err(reach)?;
    std::fs::rename(&new, path).map_err(reach)?;
    if let Some(parent) = path.parent() {
        sync_file(parent).map_err(reach)?;
    }
    Ok(())
}

/// Fills the buffer from the kernel.
pub(crate) fn random_bytes(buffer: &mut [u8]) -> std::io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        filled += rustix::rand::getrandom(&mut buffer[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}
