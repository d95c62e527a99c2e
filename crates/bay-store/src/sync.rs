//! Flushing commits to the disk in groups: one fdatasync of the log covers all commits made while the previous one
//! ran.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bay_ledger::Frontier;
use tokio::sync::{Notify, watch};

use crate::writer::Writer;

/// A commit reaches the disk within this time, if a flush takes the disk no longer than the rest of it after
/// [`SYNC_GATHER`]. Nothing enforces it.
pub const SYNC_WITHIN: Duration = Duration::from_millis(50);
/// How long the sync task waits for more commits, unless a caller waits for a flush.
const SYNC_GATHER: Duration = Duration::from_millis(30);

/// Which part of the record survives a power cut.
#[derive(Debug, Clone, Default)]
pub(crate) struct Durable {
    pub(crate) frontier: Frontier,
    /// The reason of the first flush that failed. After it the kernel may have dropped unwritten data, so a later
    /// successful flush proves nothing.
    pub(crate) failed: Option<Arc<str>>,
}

pub(crate) async fn sync_forever(
    log: PathBuf,
    writer: Arc<Writer>,
    sync_now: Arc<Notify>,
    durable: watch::Sender<Durable>,
) {
    loop {
        writer.written.notified().await;
        tokio::select! {
            () = tokio::time::sleep(SYNC_GATHER) => {}
            () = sync_now.notified() => {}
        }
        let reached = writer.frontier.borrow().clone();
        let log = log.clone();
        match tokio::task::spawn_blocking(move || sync_file(&log)).await {
            Ok(Ok(())) => durable.send_modify(|durable| durable.frontier = reached),
            Ok(Err(error)) => {
                tracing::error!(%error, "the database's log could not be flushed: a power cut now would lose changes");
                durable.send_modify(|durable| durable.failed = Some(error.to_string().into()));
            }
            Err(_) => {}
        }
    }
}

pub(crate) fn log_path(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    PathBuf::from(log)
}

/// SQLite holds its locks on the database and its index, never on the log. So opening and closing the log here
/// drops no lock.
pub(crate) fn sync_file(path: &Path) -> std::io::Result<()> {
    match std::fs::File::open(path) {
        Ok(file) => file.sync_data(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}
