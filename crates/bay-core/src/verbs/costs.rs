//! Measuring what bays use, from the host's side: one task reads the control groups of every running bay every few
//! seconds, another counts the disks.
//!
//! One measurement reads about ten small files. For 100 bays that takes some 10 ms every [`LOOK_EVERY`].

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bay_types::BayId;
use tokio::time::Instant;

use crate::daemon::Daemon;
use crate::registry::BayHandle;

const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often sums are stored. If the daemon is killed, what memory added since then is lost, and of the disk also
/// what was not counted yet. Processor time is not lost while the runtime exists: its counter is the kernel's.
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// A disk is counted again when its last count is older than this. With many slow disks it takes longer, see
/// [`DISK_REST`].
const DISK_EVERY: Duration = Duration::from_secs(60);
/// Counting a disk without quotas reads its extents. After each count, the counter pauses for this many times as
/// long as the count took: it uses about a hundredth of one processor at most.
const DISK_REST: u32 = 100;

/// Measures processor time and memory of one bay now.
pub(crate) async fn measure(daemon: &Daemon, handle: &BayHandle) {
    let row = handle.row();
    let costs = &daemon.telemetry.costs;
    match &row.runtime {
        // Nobody can measure it without its driver. Earlier costs stay.
        Some(_) if handle.driver_missing.is_some() => {}
        Some(record) => {
            let stats = handle.backend.stats(row.id, record).await;
            let runtime = handle.backend.facts(record).identity;
            costs.measured(row.id, row.created_at, Some((&runtime, stats)));
        }
        None => costs.measured(row.id, row.created_at, None),
    }
}

/// The last measurement of a runtime that is about to be cleared: clearing removes its counters.
pub(crate) async fn close(daemon: &Daemon, handle: &BayHandle) {
    if handle.row().runtime.is_none() {
        return;
    }
    measure(daemon, handle).await;
    daemon.telemetry.costs.measured(handle.id, handle.row().created_at, None);
    save(daemon).await;
}

/// Stores the accounts that changed.
pub(crate) async fn save(daemon: &Daemon) {
    let costs = &daemon.telemetry.costs;
    let rows = costs.unsaved();
    if rows.is_empty() {
        return;
    }
    match daemon.store.cost_save(&rows).await {
        Ok(()) => costs.saved(rows),
        Err(error) => tracing::warn!(%error, "the costs of bays could not be stored"),
    }
}

/// Measures processor time and memory of all bays, for ever.
pub(crate) async fn watch(daemon: Arc<Daemon>) {
    let mut saved = Instant::now();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        for handle in daemon.bays.list() {
            measure(&daemon, &handle).await;
            // The reads do not wait for anything, so without this other tasks would have to.
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

/// Measures the disks of all bays for ever, one at a time.
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
                Ok(usage) => costs.disk_measured(row.id, row.created_at, usage.own_bytes),
                // The bay may be deleted at this moment.
                Err(error) => {
                    tracing::debug!(bay = %row.name, message = %error.message, "a disk was not counted");
                }
            }
            tokio::time::sleep(began.elapsed() * DISK_REST).await;
        }
    }
}
