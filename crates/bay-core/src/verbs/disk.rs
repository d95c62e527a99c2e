//! The verbs on the pool: where its disk goes, and what daemons that are gone left in it.

use std::sync::Arc;

use bay_pool::Pool;
use bay_runtime::Hierarchies;
use bay_store::Draft;
use bay_types::disk::DiskUsage;
use bay_types::event::pool::PoolPruned as CornerRemoved;
use bay_types::pool::{CornerView, PoolPrune, PoolPruned};
use bay_types::principal::Principal;
use bay_types::{CoreError, ErrorCode};

use crate::authorize::Verb;
use crate::background::to_the_end;
use crate::daemon::Daemon;

/// The most corners that one request may name.
const MAX_PRUNED: usize = 10_000;

/// Counts what each bay, image and repository holds. One report at a time: each reads the trees of the pool.
pub async fn show(daemon: &Daemon, who: &Principal) -> Result<DiskUsage, CoreError> {
    daemon.permit(who, Verb::DiskShow)?;
    let _turn = daemon.measuring_disk.lock().await;
    let mut usage = daemon.with_pool(Pool::disk_usage).await?;
    let bays = daemon.bays.list();
    for space in &mut usage.bays {
        if let Some(handle) = bays.iter().find(|handle| handle.id == space.id) {
            space.name = handle.name.to_string();
        }
    }
    usage.bays.sort_by_key(|bay| std::cmp::Reverse(bay.space.own_bytes));
    usage.images.sort_by_key(|image| std::cmp::Reverse(image.space.own_bytes));
    Ok(usage)
}

/// Removes the corners of daemons whose data directories are gone, unless bays of that daemon still run. With
/// `dry_run`, only lists them.
pub async fn prune(daemon: &Arc<Daemon>, who: &Principal, prune: PoolPrune) -> Result<PoolPruned, CoreError> {
    daemon.permit(who, Verb::PoolPrune)?;
    if prune.daemons.as_ref().is_some_and(|daemons| daemons.len() > MAX_PRUNED) {
        return Err(CoreError::new(
            ErrorCode::InvalidInput,
            format!("one request can name at most {MAX_PRUNED} daemons"),
            "name none to mean all whose data directories are gone",
        ));
    }
    let (daemon, who) = (Arc::clone(daemon), *who);
    to_the_end(async move { prune_corners(&daemon, prune, who).await }).await
}

async fn prune_corners(daemon: &Daemon, prune: PoolPrune, who: Principal) -> Result<PoolPruned, CoreError> {
    let abandoned = daemon.with_pool(Pool::abandoned_corners).await?;
    let wanted = |corner: &CornerView| {
        prune.daemons.as_ref().is_none_or(|daemons| daemons.contains(&corner.daemon))
            && !runs_bays(&corner.daemon)
    };
    let corners: Vec<CornerView> = abandoned.into_iter().filter(wanted).collect();
    if !prune.dry_run {
        for corner in &corners {
            let event = Draft::of(CornerRemoved {
                daemon: corner.daemon.clone(),
                data_dir: corner.data_dir.clone(),
                bays: corner.bays,
                by: who.by(),
            });
            daemon.store.event_append(None, &event).await.map_err(|e| e.to_api())?;
            let id = corner.daemon.clone();
            daemon.with_pool(move |pool| pool.abandoned_remove(&id)).await?;
        }
    }
    Ok(PoolPruned { corners, dry_run: prune.dry_run })
}

/// Whether bays of a daemon still run. They outlive their daemon, and also its data directory.
fn runs_bays(daemon: &str) -> bool {
    let groups = match Hierarchies::mounted() {
        Ok(Some(mounted)) => mounted.v2.join("workbay").join(daemon),
        // Without version 2 no bay runs.
        Ok(None) => return false,
        Err(_) => return true,
    };
    let inside = std::fs::read_dir(groups).into_iter().flatten().flatten();
    inside.filter_map(|entry| entry.file_type().ok()).any(|kind| kind.is_dir())
}
