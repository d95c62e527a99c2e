//! What the daemon must not forget: bays, execs and the hashed record of events, in one SQLite file.
//!
//! ```text
//!   writer: one connection behind a lock          readers: a small pool
//!      BEGIN IMMEDIATE                                SELECT …
//!        change a row
//!        append its event (a leaf of the ledger's tree)
//!        move the tree's frontier (size, hashes)
//!      COMMIT ── wakes ──► the sync task: one fdatasync of the log within 50 ms for all commits since
//! ```
//!
//! A change of state and the event that records it are one transaction: there is never one without the other. An act
//! on the world (a disk, a process) comes after the commit that announces it. A commit survives `kill -9` of the
//! daemon at once and a power cut after at most [`SYNC_WITHIN`].
//!
//! Failure paths:
//! * **A file that is no database, or a damaged one**: [`StoreError::Damaged`] with the path. Nothing is repaired,
//!   deleted or overwritten. A new database is made under another name and moved into place when whole, so an empty
//!   file under the real name is damage too, and never mistaken for a first start.
//! * **A database of a newer release**: [`StoreError::Newer`], untouched.
//! * **Full or read-only disk**: the transaction is rolled back, the caller hears [`StoreError::Full`] or
//!   [`StoreError::ReadOnly`], and what was there before stays.
//! * **A caller that goes away in the middle**: its transaction is rolled back before the next one begins. Only the end of
//!   the event record is remembered outside the file, and forgotten by anything that was not seen to commit.
//! * **An edited, removed or reordered event**: [`Store::events_verify`] names the first that does not hold. What a
//!   stranger to the database needs for the same are proofs (`ledger_…`) against a head that was signed before.
//! * **A log that cannot be flushed**: said loudly, and [`Store::event_durable`] fails from then on.
//!
//! The SQL is portable (`$1`, text timestamps, no upserts beyond `ON CONFLICT`), so that another database can take the
//! same statements later.
#![forbid(unsafe_code)]

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

mod append;
mod approval;
mod bay;
mod checkpoint;
mod cost;
mod durable;
mod error;
mod event;
mod exec;
mod ids;
mod ledger;
mod policy;
mod schema;
mod timeline;
mod traffic;
mod write;

pub use approval::{Answered, ApprovalRow, Lasting};
pub use bay::{BayNew, BayRow, NameChoice};
pub use checkpoint::{CheckpointNew, CheckpointRow};
pub use cost::CostRow;
pub use error::StoreError;
pub use event::{Draft, MAX_BODY};
pub use exec::{ExecRow, Inserted};
pub use ids::{FIRST_ID_BASE, LAST_ID_BASE};
pub use ledger::Verdict;
pub use policy::{GrantRow, PolicyNew, PolicyRow, PolicyTexts, Scope};
pub use timeline::{Begin, DESCENT_KINDS};
pub use traffic::TrafficWanted;

pub(crate) type Result<T> = std::result::Result<T, StoreError>;

/// A committed change reaches the disk within this time.
pub const SYNC_WITHIN: Duration = Duration::from_millis(50);
/// How long the sync task gathers commits: what is left of [`SYNC_WITHIN`] is for the disk.
const SYNC_GATHER: Duration = Duration::from_millis(30);
/// How long a statement waits for a lock another connection holds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that only read.
const READERS: u32 = 4;

/// The database of one daemon. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    desk: Arc<write::Desk>,
    readers: SqlitePool,
    /// Somebody waits for the disk.
    urgent: Arc<Notify>,
    durable: watch::Sender<durable::Durable>,
    appends: append::Appends,
    tasks: [tokio::task::JoinHandle<()>; 2],
    daemon_id: String,
    first_slot: u32,
    reserved: Vec<ids::Reserved>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Store {
    /// Opens the database, making it when there is none. Only one process may have it open: the caller holds the data
    /// directory's lock.
    ///
    /// # Errors
    /// See the crate's failure paths.
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
        let mut writer =
            SqliteConnection::connect_with(&options(path)).await.map_err(failed("opening the database"))?;
        let verdict = sqlx::query("PRAGMA quick_check(1)")
            .fetch_one(&mut writer)
            .await
            .and_then(|row| row.try_get::<String, _>(0))
            .map_err(failed("checking the database"))?;
        if verdict != "ok" {
            return Err(StoreError::Damaged { path: path.to_owned(), what: verdict });
        }
        schema::migrate(&mut writer, path).await?;
        let daemon_id = meta_get(&mut writer, "daemon_id")
            .await
            .map_err(failed("reading the daemon's id"))?
            .ok_or_else(|| StoreError::Damaged {
                path: path.to_owned(),
                what: "the daemon's id is missing".to_owned(),
            })?;
        ledger::adopt(&mut writer, path).await?;
        let end = ledger::end_check(&mut writer, path).await?;

        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .min_connections(1)
            .test_before_acquire(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_with(options(path).read_only(true))
            .await
            .map_err(failed("opening the database"))?;

        let desk = Arc::new(write::Desk {
            path: path.to_owned(),
            pen: Mutex::new(write::Pen::new(writer)),
            written: Notify::new(),
            told: watch::Sender::new(end.size()),
            committed: watch::Sender::new(end),
        });
        // What an earlier daemon wrote last may not be on the disk yet.
        desk.written.notify_one();
        let urgent = Arc::new(Notify::new());
        let durable = watch::Sender::new(durable::Durable::default());
        let (appends, queues) = append::queues();
        let tasks = [
            tokio::spawn(durable::sync_forever(
                log_path(path),
                Arc::clone(&desk),
                Arc::clone(&urgent),
                durable.clone(),
            )),
            tokio::spawn(append::append_forever(Arc::clone(&desk), queues)),
        ];
        let first_slot = ids::first_slot(&daemon_id);
        let reserved = ids::reserved_on_host();
        Ok(Self {
            inner: Arc::new(Inner {
                desk,
                readers,
                urgent,
                durable,
                appends,
                tasks,
                daemon_id,
                first_slot,
                reserved,
            }),
        })
    }

    /// Names this daemon for as long as its data directory lives: its corner of the pool, its cgroups, its id ranges.
    #[must_use]
    pub fn daemon_id(&self) -> &str {
        &self.inner.daemon_id
    }

    /// Brings everything into the one file and flushes it. Everything acknowledged is on the disk when this returns.
    pub async fn close(&self) {
        self.inner.appends.settled().await;
        self.inner.readers.close().await;
        let mut pen = self.inner.desk.pen.lock().await;
        // What cannot be moved stays in the log, where the next daemon finds it.
        if let Err(error) = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut pen.connection).await
        {
            tracing::warn!(%error, "the database's log could not be folded in");
        }
        let log = log_path(self.path());
        let synced = tokio::task::spawn_blocking(move || sync_file(&log)).await;
        if let Ok(Err(error)) = synced {
            tracing::warn!(%error, "the database's log could not be flushed");
        }
    }

    fn failed(&self, what: &'static str) -> impl Fn(sqlx::Error) -> StoreError + '_ {
        move |source| StoreError::query(self.path(), what, source)
    }

    fn path(&self) -> &Path {
        &self.inner.desk.path
    }
}

fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(false)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .foreign_keys(true)
        .busy_timeout(BUSY_TIMEOUT)
        // Statements are not for the log: they would cost time on every exec and say nothing to a person.
        .disable_statement_logging()
}

/// Makes a whole, empty database under a temporary name and moves it into place.
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
        // Made here rather than by SQLite, so that it is never readable by others.
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

fn log_path(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    PathBuf::from(log)
}

/// SQLite holds its locks on the database and its index, never on the log: opening and closing the log here drops none.
fn sync_file(path: &Path) -> std::io::Result<()> {
    match std::fs::File::open(path) {
        Ok(file) => file.sync_data(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

impl Store {
    /// A setting of this daemon that is neither a bay's nor an event.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn setting(&self, key: &'static str) -> Result<Option<String>> {
        let failed = self.failed("reading a setting");
        let mut reader = self.inner.readers.acquire().await.map_err(&failed)?;
        meta_get(&mut reader, key).await.map_err(&failed)
    }

    /// # Errors
    /// When the database cannot be written.
    pub async fn setting_set(&self, key: &'static str, value: &str) -> Result<()> {
        let mut writer = self.writer().await;
        let mut transaction = writer.begin().await?;
        meta_set(transaction.connection(), key, value).await.map_err(self.failed("writing a setting"))?;
        transaction.commit().await
    }
}

async fn meta_get(connection: &mut SqliteConnection, key: &str) -> sqlx::Result<Option<String>> {
    sqlx::query("SELECT value FROM meta WHERE key = $1")
        .bind(key)
        .fetch_optional(connection)
        .await?
        .map(|row| row.try_get(0))
        .transpose()
}

async fn meta_set(connection: &mut SqliteConnection, key: &str, value: &str) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value")
        .bind(key)
        .bind(value)
        .execute(connection)
        .await
        .map(drop)
}

/// Fills the buffer from the kernel.
pub(crate) fn random_bytes(buffer: &mut [u8]) -> std::io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        filled += rustix::rand::getrandom(&mut buffer[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
