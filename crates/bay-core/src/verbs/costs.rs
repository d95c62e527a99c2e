//! Looks at what bays use, from the host's side: one task looks at every running bay's groups every few seconds.
//!
//! A look is about ten reads of small files. For 100 bays that is some 10 ms every [`LOOK_EVERY`].

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bay_types::BayId;
use tokio::time::Instant;

use crate::daemon::Daemon;
use crate::registry::BayHandle;

const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often sums go to the store. A daemon that is killed loses at most this much of memory and disk.
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// How old a bay's disk usage may be.
const DISK_EVERY: Duration = Duration::from_secs(60);
/// Counting a disk without quotas reads its extents. After each count the counter rests for this many times as long as
/// it took: never more than a hundredth of one processor.
const DISK_REST: u32 = 100;

/// Looks at one bay now.
pub(crate) async fn look(daemon: &Daemon, handle: &BayHandle) {
    let row = handle.row();
    let costs = &daemon.telemetry.costs;
    match &row.runtime {
        // Nobody can measure it here; what was counted stays.
        Some(_) if handle.driver_missing.is_some() => {}
        Some(record) => {
            let stats = handle.backend.stats(row.id, record).await;
            let runtime = handle.backend.facts(record).identity;
            costs.looked(row.id, row.created_at, Some((&runtime, stats)));
        }
        None => costs.looked(row.id, row.created_at, None),
    }
}

/// The last look at a runtime that is about to be cleared: its counters go with it.
pub(crate) async fn close(daemon: &Daemon, handle: &BayHandle) {
    if handle.row().runtime.is_none() {
        return;
    }
    look(daemon, handle).await;
    daemon.telemetry.costs.looked(handle.id, handle.row().created_at, None);
    save(daemon).await;
}

/// Writes down what changed.
pub(crate) async fn save(daemon: &Daemon) {
    let costs = &daemon.telemetry.costs;
    let rows = costs.unsaved();
    if rows.is_empty() {
        return;
    }
    match daemon.store.cost_save(&rows).await {
        Ok(()) => costs.saved(rows),
        Err(error) => tracing::warn!(%error, "what bays cost could not be written down"),
    }
}

/// Looks at all bays for ever.
pub(crate) async fn watch(daemon: Arc<Daemon>) {
    let mut saved = Instant::now();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        for handle in daemon.bays.list() {
            look(&daemon, &handle).await;
            // The reads do not wait for anything, so others would have to.
            tokio::task::yield_now().await;
        }
        let known: HashSet<BayId> = daemon.bays.list().iter().map(|handle| handle.id).collect();
        daemon.telemetry.costs.keep_only(&known);
        if saved.elapsed() >= SAVE_EVERY {
            saved = Instant::now();
            save(&daemon).await;
        }
    }
}

/// Looks at the disks of all bays for ever, one at a time.
pub(crate) async fn watch_disks(daemon: Arc<Daemon>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        for handle in daemon.bays.list() {
            let row = handle.row();
            let costs = &daemon.telemetry.costs;
            if !row.disk_ready || costs.disk_is_fresh(row.id, row.created_at, DISK_EVERY) {
                continue;
            }
            let began = Instant::now();
            let id = row.id;
            match handle.with_files(move |files| files.usage(id)).await {
                Ok(usage) => costs.disk_looked(row.id, row.created_at, usage.own_bytes),
                // It may be going at this moment.
                Err(error) => {
                    tracing::debug!(bay = %row.name, message = %error.message, "a disk was not counted");
                }
            }
            tokio::time::sleep(began.elapsed() * DISK_REST).await;
        }
    }
}
