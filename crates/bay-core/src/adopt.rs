//! The first thing a daemon does with what an earlier one left: find every bay again, say truthfully how it is, and
//! take away what belongs to nobody.
//!
//! Nothing is shown to callers before this is done. The order in which bays are made (row, disk, runtime) and removed
//! (runtime, disk, row) means that whatever exists without a row was never acknowledged as kept. A workspace is still
//! moved aside rather than deleted: a database restored from a backup must not cost anybody's work.
//!
//! One bay that cannot be put in order does not keep the daemon from the others: its reconciler tries again and says
//! why it fails.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bay_backend::{Backend, BayFiles, Seen};
use bay_store::{BayRow, Draft};
use bay_types::bay::Desired;
use bay_types::event::bay::BayDiskUnknown;
use bay_types::exec::EndReason;
use bay_types::{BayId, CoreError};
use futures_util::StreamExt;

use crate::background::blocking;
use crate::daemon::Daemon;
use crate::reconcile;
use crate::registry::BayHandle;
use crate::verbs::{checkpoints, memory};

/// Bays looked at side by side.
const AT_ONCE: usize = 8;
/// How long one bay may keep the daemon from being ready. Putting one in order takes milliseconds, unless a process of it
/// hangs in the kernel.
const IN_ORDER_WITHIN: Duration = Duration::from_secs(3);

/// Finds all bays again and starts their reconcilers.
pub(crate) async fn adopt(daemon: &Arc<Daemon>) -> Result<(), CoreError> {
    let rows = daemon.store.bay_list().await.map_err(|e| e.to_api())?;
    let known: HashSet<BayId> = rows.iter().map(|row| row.id).collect();
    let recorded: HashSet<BayId> =
        rows.iter().filter(|row| row.runtime.is_some()).map(|row| row.id).collect();

    sweep_runtimes(daemon, &recorded).await;
    // Seen once: whoever captured memory for the daemon before may end, and remove its images, at any moment.
    let captured: HashSet<BayId> =
        rows.iter().filter(|row| memory::was_cut_short(&daemon.backends, row)).map(|row| row.id).collect();
    sweep_disks(daemon, &rows, &known, &captured).await?;

    let boot = boot_id();
    let handles: Vec<_> = futures_util::stream::iter(rows)
        .map(|row| {
            let cut_short = captured.contains(&row.id);
            look_again(daemon, row, boot.as_deref(), cut_short)
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

/// Clears every runtime that no row has on record: its bay is gone, or its start was cut short.
async fn sweep_runtimes(daemon: &Arc<Daemon>, recorded: &HashSet<BayId>) {
    for backend in daemon.backends.all() {
        match backend.leftovers().await {
            Ok(left) => sweep_left(backend, left, recorded).await,
            Err(error) => tracing::error!(%error, "what earlier runtimes left could not be listed"),
        }
    }
}

async fn sweep_left(backend: &Arc<dyn Backend>, left: Vec<BayId>, recorded: &HashSet<BayId>) {
    for id in left.into_iter().filter(|id| !recorded.contains(id)) {
        tracing::info!(bay = %id, "a runtime nobody has on record is cleared");
        let sweeping = Arc::clone(backend);
        let swept = tokio::spawn(async move {
            if let Err(error) = sweeping.clear(id).await {
                tracing::error!(bay = %id, %error, "a runtime nobody has on record could not be cleared");
            }
        });
        // One that takes longer is cleared meanwhile.
        let _ = tokio::time::timeout(IN_ORDER_WITHIN, swept).await;
    }
}

/// Removes half-made disks, and disks of bays nobody knows.
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

/// Removes the same from the files of one backend. Backends that share them have been through this before, which is harmless.
async fn sweep_files(
    daemon: &Daemon,
    files: &Arc<dyn BayFiles>,
    unfinished: &HashSet<BayId>,
    known: &HashSet<BayId>,
    captured: &HashSet<BayId>,
) -> Result<(), CoreError> {
    for id in with(files, |files| files.list()).await? {
        let removed = if unfinished.contains(&id) {
            // Nothing ever ran on it; it is made anew.
            with(files, move |files| files.remove(id, None)).await
        } else if known.contains(&id) {
            // Whoever still writes memory there ends first.
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
            Ok(kept) => tracing::warn!(bay = %id, ?kept, "a disk without a bay was removed"),
            Err(error) => {
                tracing::error!(bay = %id, message = %error.message, "a disk without a bay could not be removed");
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

/// Removes checkpoints that were never whole, or whose removal was cut short.
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

/// Waits for whoever still captures the memory of a bay for the daemon before this one, and removes what that wrote. Longer
/// than [`IN_ORDER_WITHIN`] only the bay's own reconciler is kept waiting.
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

async fn look_again(
    daemon: &Arc<Daemon>,
    row: BayRow,
    boot: Option<&str>,
    cut_short: bool,
) -> Result<Arc<BayHandle>, CoreError> {
    let record = row.runtime.clone();
    let handle = Arc::new(BayHandle::of(row.clone(), &daemon.backends));
    if let Some(why) = &handle.driver_missing {
        tracing::warn!(bay = %handle.name, why, "a bay is left as it is");
        return Ok(handle);
    }
    if cut_short {
        end_capture(daemon, &handle, row).await;
    }
    for exec in daemon.store.exec_list_open(handle.id).await.map_err(|e| e.to_api())? {
        handle.exec_opened(exec.id);
        // What happened before is not known to have happened while it ran.
        handle.exec_began(exec.id, handle.backend.limit_events(handle.id));
    }
    let on_disk = handle.row().desired == Desired::Paused && handle.row().thaw_from.is_some();
    match record {
        // Its end is no loss, whoever saw it.
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
                    tracing::error!(bay = %handle.name, message = %error.message, "a lost bay could not be put in order");
                }
                Err(_) => {
                    tracing::warn!(bay = %handle.name, "putting a lost bay in order takes long; its reconciler goes on with it");
                }
            }
        }
        Some(_) => {}
        // They stand still on disk, and go on when the bay does.
        None if on_disk => {}
        // No runtime and open execs: the daemon died between clearing the one and closing the others.
        None => {
            let stopped = handle.row().desired == Desired::Stopped;
            let why = if stopped { EndReason::Stopped } else { EndReason::Lost };
            crate::verbs::execs::close_all(daemon, &handle, why).await;
        }
    }
    Ok(handle)
}

/// Tells one boot of this host from another.
fn boot_id() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|text| text.trim().to_owned())
}
