//! Adoption: what a daemon does first with the bays of an earlier daemon. It finds the bays in the store,
//! determines the true state of each whose driver it has, and removes what belongs to no bay.
//!
//! Callers see nothing before adoption is done. Bays are made in the order row, disk, runtime, and removed in the
//! order runtime, disk, row. So a disk without a row means that the database is older than the disk, as after its
//! restore from a backup. The workspace of such a disk is moved aside and not deleted: it may be somebody's work.
//!
//! If the runtime or the disk of one bay cannot be put in order, the daemon still adopts the others. That bay's
//! reconciler tries again and reports why it fails. If the store cannot be read, or the disks cannot be listed,
//! adoption fails.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bay_backend::{Backend, BayFiles, Seen};
use bay_store::{BayRow, Draft};
use bay_types::bay::Desired;
use bay_types::event::EventBody;
use bay_types::event::bay::BayDiskUnknown;
use bay_types::event::checkpoint::{CheckpointEvent, CheckpointFailed};
use bay_types::exec::EndReason;
use bay_types::{BayId, CoreError};
use futures_util::StreamExt;

use crate::background::blocking;
use crate::daemon::Daemon;
use crate::reconcile;
use crate::registry::BayHandle;
use crate::verbs::{checkpoints, memory};

/// How many bays are adopted at the same time.
const AT_ONCE: usize = 8;
/// How long each wait for the processes of one bay may delay the daemon's readiness. It takes milliseconds, unless
/// a process of the bay hangs in the kernel.
const IN_ORDER_WITHIN: Duration = Duration::from_secs(3);

/// Why a checkpoint failed that an earlier daemon did not finish.
const CUT_SHORT: &str = "the daemon ended before its end was recorded";

/// Adopts all bays and starts their reconcilers.
pub(crate) async fn adopt(daemon: &Arc<Daemon>) -> Result<(), CoreError> {
    let rows = daemon.store.bay_list().await.map_err(|e| e.to_api())?;
    let known: HashSet<BayId> = rows.iter().map(|row| row.id).collect();
    let recorded: HashSet<BayId> =
        rows.iter().filter(|row| row.runtime.is_some()).map(|row| row.id).collect();

    end_checkpoints(daemon).await;
    sweep_runtimes(daemon, &recorded).await;
    // Read once: the helper that captures memory for the earlier daemon may end, and remove its images, at any
    // moment.
    let captured: HashSet<BayId> =
        rows.iter().filter(|row| memory::was_cut_short(&daemon.backends, row)).map(|row| row.id).collect();
    sweep_disks(daemon, &rows, &known, &captured).await?;

    let boot = boot_id();
    let handles: Vec<_> = futures_util::stream::iter(rows)
        .map(|row| {
            let cut_short = captured.contains(&row.id);
            adopt_bay(daemon, row, boot.as_deref(), cut_short)
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    for handle in handles {
        let handle = handle?;
        daemon.bays.insert(Arc::clone(&handle));
        reconcile::spawn(Arc::clone(daemon), handle);
    }
    Ok(())
}

/// Records the failure of checkpoints that an earlier daemon began and did not finish. After that, the record has an
/// end for each, so the next daemon does not find them again. What cannot be written now is found by the next daemon.
async fn end_checkpoints(daemon: &Daemon) {
    let unfinished = match daemon.store.checkpoints_unfinished().await {
        Ok(unfinished) => unfinished,
        Err(error) => {
            tracing::error!(%error, "unfinished checkpoints could not be looked up");
            return;
        }
    };
    for begun in unfinished {
        let EventBody::Checkpoint(CheckpointEvent::Asked(asked)) = begun.read() else { continue };
        let failed =
            Draft::of(CheckpointFailed { name: asked.name, why: CUT_SHORT.to_owned(), by: asked.by });
        if let Err(error) = daemon.store.event_append(begun.bay, &failed).await {
            tracing::error!(%error, "the end of an unfinished checkpoint could not be recorded");
        }
    }
}

/// Clears every runtime without a record: its bay was removed, or its start was cut short.
async fn sweep_runtimes(daemon: &Arc<Daemon>, recorded: &HashSet<BayId>) {
    for backend in daemon.backends.all() {
        match backend.leftovers().await {
            Ok(left) => sweep_left(backend, left, recorded).await,
            Err(error) => tracing::error!(%error, "remains of earlier runtimes could not be listed"),
        }
    }
}

async fn sweep_left(backend: &Arc<dyn Backend>, left: Vec<BayId>, recorded: &HashSet<BayId>) {
    for id in left.into_iter().filter(|id| !recorded.contains(id)) {
        tracing::info!(bay = %id, "an unrecorded runtime is cleared");
        let sweeping = Arc::clone(backend);
        let swept = tokio::spawn(async move {
            if let Err(error) = sweeping.clear(id).await {
                tracing::error!(bay = %id, %error, "an unrecorded runtime could not be cleared");
            }
        });
        // If clearing takes longer, it continues in the background.
        let _ = tokio::time::timeout(IN_ORDER_WITHIN, swept).await;
    }
}

/// Removes incomplete disks, and incomplete checkpoints of known bays. Of a disk that belongs to no bay, it
/// removes all but the workspace, which gets the name `lost-…`.
async fn sweep_disks(
    daemon: &Daemon,
    rows: &[BayRow],
    known: &HashSet<BayId>,
    captured: &HashSet<BayId>,
) -> Result<(), CoreError> {
    let unfinished: HashSet<BayId> = rows.iter().filter(|row| !row.disk_ready).map(|row| row.id).collect();
    for backend in daemon.backends.all() {
        sweep_files(daemon, &backend.files(), &unfinished, known, captured).await?;
    }
    Ok(())
}

/// Sweeps the files of one backend. Backends may share files. Sweeping twice is harmless.
async fn sweep_files(
    daemon: &Daemon,
    files: &Arc<dyn BayFiles>,
    unfinished: &HashSet<BayId>,
    known: &HashSet<BayId>,
    captured: &HashSet<BayId>,
) -> Result<(), CoreError> {
    for id in with(files, |files| files.list()).await? {
        let removed = if unfinished.contains(&id) {
            // Nothing ever ran on it; the reconciler makes it again.
            with(files, move |files| files.remove(id, None)).await
        } else if known.contains(&id) {
            // While a helper still captures memory there, `end_capture` does this.
            if !captured.contains(&id) {
                sweep_checkpoints(daemon, files, id).await;
            }
            continue;
        } else {
            let event = Draft::of(BayDiskUnknown {});
            daemon.store.event_append(Some(id), &event).await.map_err(|e| e.to_api())?;
            let name = format!("lost-{}", id.short());
            with(files, move |files| files.remove(id, Some(&name))).await
        };
        match removed {
            Ok(kept) => tracing::warn!(bay = %id, ?kept, "an incomplete or unknown disk was removed"),
            Err(error) => {
                tracing::error!(bay = %id, message = %error.message, "an incomplete or unknown disk could not be removed");
            }
        }
    }
    Ok(())
}

async fn with<T: Send + 'static>(
    files: &Arc<dyn BayFiles>,
    work: impl FnOnce(&dyn BayFiles) -> Result<T, CoreError> + Send + 'static,
) -> Result<T, CoreError> {
    let files = Arc::clone(files);
    blocking(move || work(&*files)).await
}

/// Removes checkpoints that are incomplete, or whose removal was cut short.
async fn sweep_checkpoints(daemon: &Daemon, files: &Arc<dyn BayFiles>, id: BayId) {
    let swept = async {
        let rows = daemon.store.checkpoint_list(id).await.map_err(|e| e.to_api())?;
        let known = checkpoints::names(&rows);
        with(files, move |files| files.checkpoint_sweep(id, &known)).await
    };
    if let Err(error) = swept.await {
        tracing::error!(bay = %id, message = %error.message, "unfinished checkpoints could not be removed");
    }
}

/// Waits for a helper that still captures the memory of a bay for the earlier daemon, and removes what it wrote.
/// After [`IN_ORDER_WITHIN`], only the bay's own reconciler keeps waiting.
async fn end_capture(daemon: &Arc<Daemon>, handle: &Arc<BayHandle>, row: BayRow) {
    let (daemon, handle) = (Arc::clone(daemon), Arc::clone(handle));
    let (alone, is_alone) = tokio::sync::oneshot::channel();
    let ending = tokio::spawn(async move {
        let _at_work = handle.at_work.lock().await;
        let _ = alone.send(());
        if let Err(error) = memory::abandon(&daemon, &handle, &row).await {
            tracing::error!(bay = %handle.name, message = %error.message, "a capture that was cut short could not be ended");
        }
        sweep_checkpoints(&daemon, &handle.backend.files(), handle.id).await;
    });
    let _ = is_alone.await;
    let _ = tokio::time::timeout(IN_ORDER_WITHIN, ending).await;
}

async fn adopt_bay(
    daemon: &Arc<Daemon>,
    row: BayRow,
    boot: Option<&str>,
    cut_short: bool,
) -> Result<Arc<BayHandle>, CoreError> {
    let record = row.runtime.clone();
    let handle = Arc::new(BayHandle::of(row.clone(), &daemon.backends));
    if let Some(why) = &handle.driver_missing {
        tracing::warn!(bay = %handle.name, why, "a bay without its driver is not changed");
        return Ok(handle);
    }
    if cut_short {
        end_capture(daemon, &handle, row).await;
    }
    for exec in daemon.store.exec_list_open(handle.id).await.map_err(|e| e.to_api())? {
        handle.exec_opened(exec.id);
        // The limits may have been hit before this exec ran, so only later hits count.
        handle.exec_began(exec.id, handle.backend.limit_events(handle.id));
    }
    let on_disk = handle.row().desired == Desired::Paused && handle.row().thaw_from.is_some();
    match record {
        // All processes are on disk, so the end of the runtime is no loss.
        Some(_) if on_disk => {}
        Some(record) if handle.backend.inspect(handle.id, &record).await == Seen::Gone => {
            let started_in = handle.backend.facts(&record).boot_id;
            let rebooted = boot.zip(started_in).is_some_and(|(boot, then)| boot != then);
            let reason = if rebooted {
                "the host was rebooted"
            } else {
                "the guest ended while no daemon was watching"
            };
            match tokio::time::timeout(IN_ORDER_WITHIN, reconcile::note_loss(daemon, &handle, reason)).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    tracing::error!(bay = %handle.name, message = %error.message, "the loss of a bay could not be recorded");
                }
                Err(_) => {
                    tracing::warn!(bay = %handle.name, "clearing a lost bay takes long; its reconciler continues");
                }
            }
        }
        Some(_) => {}
        // These execs are paused on disk, and continue when the bay is resumed.
        None if on_disk => {}
        // If there is no runtime, the earlier daemon died after it cleared the runtime and before it closed the
        // execs.
        None => {
            let stopped = handle.row().desired == Desired::Stopped;
            let why = if stopped { EndReason::Stopped } else { EndReason::Lost };
            crate::verbs::execs::close_all(daemon, &handle, why).await;
        }
    }
    Ok(handle)
}

/// The id of the host's current boot.
fn boot_id() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|text| text.trim().to_owned())
}
