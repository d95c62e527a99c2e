//! Commits reach the disk in groups: one fdatasync of the log for all that came while the last one ran.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bay_ledger::Frontier;
use tokio::sync::{Notify, watch};

use crate::write::Desk;
use crate::{Result, SYNC_GATHER, Store, StoreError, sync_file};

/// How much of the record a power cut leaves.
#[derive(Debug, Clone, Default)]
pub(crate) struct Durable {
    pub(crate) frontier: Frontier,
    /// After one failure nobody knows what the disk has: a later success says nothing about what was given up.
    failed: Option<Arc<str>>,
}

pub(crate) async fn sync_forever(
    log: PathBuf,
    desk: Arc<Desk>,
    urgent: Arc<Notify>,
    durable: watch::Sender<Durable>,
) {
    loop {
        desk.written.notified().await;
        tokio::select! {
            () = tokio::time::sleep(SYNC_GATHER) => {}
            () = urgent.notified() => {}
        }
        let reached = desk.committed.borrow().clone();
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

impl Store {
    /// Waits until the event is on the disk: for acts that must not happen without a record, whatever happens. Does not
    /// wait for others to gather, and shares one fdatasync with all who ask at the same time.
    ///
    /// # Errors
    /// When the log could not be flushed, now or ever before in the life of this daemon.
    pub async fn event_durable(&self, seq: u64) -> Result<()> {
        self.durable_frontier(seq).await.map(drop)
    }

    /// The same for the end of the record that was flushed, at `seq` or behind it.
    ///
    /// # Errors
    /// See [`Store::event_durable`].
    pub async fn durable_frontier(&self, seq: u64) -> Result<Frontier> {
        let inner = &self.inner;
        let mut durable = inner.durable.subscribe();
        if durable.borrow().frontier.size() < seq {
            inner.urgent.notify_one();
            inner.desk.written.notify_one();
        }
        let reached = durable
            .wait_for(|durable| durable.failed.is_some() || durable.frontier.size() >= seq)
            .await
            .map(|durable| durable.clone());
        let failed =
            |why: String| StoreError::Reach { path: inner.desk.path.clone(), source: io::Error::other(why) };
        match reached {
            Ok(Durable { failed: Some(why), .. }) => {
                Err(failed(format!("its log could not be flushed: {why}")))
            }
            Ok(Durable { frontier, .. }) => Ok(frontier),
            Err(_) => Err(failed("it is closed".to_owned())),
        }
    }
}
