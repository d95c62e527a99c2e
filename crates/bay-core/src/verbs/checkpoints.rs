//! The verbs on checkpoints. Here each verb checks whether the caller may use it. The modules do the work:
//!
//! | module | work |
//! |---|---|
//! | [`capture`] | make a checkpoint |
//! | [`deletion`] | delete checkpoints, also automatic ones that are no longer needed |
//! | [`retention`] | which automatic checkpoints are no longer needed |
//! | [`restore`] | restore a checkpoint, promote a bay |
//! | [`pause_to_disk`](mod@pause_to_disk) | pause a bay on disk |

use std::sync::Arc;

use bay_store::{BayRow, CheckpointRow};
use bay_types::bay::State;
use bay_types::checkpoint::{
    CheckpointCreate, CheckpointKind, CheckpointView, Point as At, Promote, Restore, Restored, SHOWN_INSIDE,
};
use bay_types::principal::Principal;
use bay_types::{Action, CheckpointName, CoreError, ErrorCode, Hint};

use super::bays::{misfit, not_deleting};
use crate::authorize::Verb;
use crate::background::to_the_end;
use crate::daemon::Daemon;
use crate::registry::BayHandle;

mod capture;
mod deletion;
mod pause_to_disk;
mod restore;
mod retention;

pub(super) use capture::take;
pub(super) use pause_to_disk::pause_to_disk;
pub(super) use restore::restore_to;

/// A request for a checkpoint.
#[derive(Debug, Clone, Default)]
pub(super) struct Wanted {
    /// If absent: memory if it can be captured, and files in any case.
    pub(super) kind: Option<CheckpointKind>,
    pub(super) message: Option<String>,
    /// Why the daemon makes it, if nobody requested it.
    pub(super) automatic: Option<String>,
    /// A checkpoint that is needed right afterwards. Retention must not remove it to make room for the new one.
    pub(super) spared: Option<CheckpointName>,
}

impl Wanted {
    pub(super) fn automatic(why: String) -> Self {
        Self { kind: Some(CheckpointKind::Files), message: None, automatic: Some(why), spared: None }
    }
}

/// Creates a checkpoint of a bay as it is now.
pub async fn create(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    create: CheckpointCreate,
) -> Result<CheckpointView, CoreError> {
    let handle = daemon.bay_for(who, Verb::CheckpointCreate, bay)?;
    to_the_end(capture::create_checkpoint(Arc::clone(daemon), handle, create, *who)).await
}

/// Makes the checkpoint that a card of an approval offers to restore, before the approval is shown to a person.
pub(crate) async fn create_before_asking(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    why: String,
) -> Result<CheckpointView, CoreError> {
    let who = Principal::approval();
    daemon.permit(&who, Verb::CheckpointCreate)?;
    take(daemon, handle, Wanted::automatic(why), who).await
}

pub async fn list(daemon: &Daemon, who: &Principal, bay: &str) -> Result<Vec<CheckpointView>, CoreError> {
    let handle = daemon.bay_for(who, Verb::CheckpointList, bay)?;
    views(daemon, &handle).await
}

/// Deletes a checkpoint by its name.
pub async fn delete(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    checkpoint: &str,
) -> Result<(), CoreError> {
    let handle = daemon.bay_for(who, Verb::CheckpointDelete, bay)?;
    let name: CheckpointName = checkpoint.parse().map_err(|e: bay_types::id::ParseIdError| {
        CoreError::new(
            ErrorCode::InvalidName,
            e.to_string(),
            Hint::new("{} lists the checkpoints", [Action::ListCheckpoints((&handle.name).into())]),
        )
    })?;
    to_the_end(deletion::delete(Arc::clone(daemon), handle, name, *who)).await
}

/// Restores a bay to one of its checkpoints. The bay's present files become another checkpoint first.
pub async fn restore(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    wanted: Restore,
) -> Result<Restored, CoreError> {
    let handle = daemon.bay_for(who, Verb::BayRestore, bay)?;
    to_the_end(restore_to(Arc::clone(daemon), handle, wanted, *who)).await
}

/// Restores a bay's files on request of a process that the restore ends. `report` gets the checkpoint of the bay's
/// present files, or the error, before any process ends. Returns only errors that `report` did not get.
pub(crate) async fn restore_after_report<F>(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    checkpoint: CheckpointName,
    report: impl FnOnce(Result<CheckpointView, CoreError>) -> F,
) -> Result<(), CoreError>
where
    F: Future<Output = ()>,
{
    let kept = async {
        let handle = daemon.bay_for(who, Verb::BayRestore, bay)?;
        let before = restore::keep_present_state(daemon, &handle, checkpoint, false, *who).await?;
        Ok((handle, before))
    };
    match kept.await {
        Ok((handle, before)) => {
            report(Ok(before)).await;
            restore::replace_state(daemon, &handle, checkpoint, false, *who).await.map(drop)
        }
        Err(error) => {
            report(Err(error)).await;
            Ok(())
        }
    }
}

/// Replaces the files of a bay with those of another bay. The replaced files become a checkpoint first.
pub async fn promote(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    wanted: Promote,
) -> Result<Restored, CoreError> {
    let handle = daemon.bay_for(who, Verb::BayPromote, bay)?;
    let child = daemon.bay_for(who, Verb::BayPromote, &wanted.from)?;
    to_the_end(restore::promote_child(Arc::clone(daemon), handle, child, *who)).await
}

/// Adds the size that captured memory has on disk.
async fn measure(handle: &BayHandle, views: &mut [CheckpointView]) -> Result<(), CoreError> {
    let with_memory = |view: &&mut CheckpointView| view.kind == CheckpointKind::Memory;
    let points: Vec<At> = views
        .iter_mut()
        .filter(with_memory)
        .map(|view| At { bay: handle.id, checkpoint: view.name })
        .collect();
    if points.is_empty() {
        return Ok(());
    }
    let sizes = handle
        .with_files(move |files| {
            Ok(points.into_iter().map(|point| files.checkpoint_disk_bytes(point)).collect::<Vec<_>>())
        })
        .await?;
    for (view, size) in views.iter_mut().filter(with_memory).zip(sizes) {
        view.memory_bytes = size;
    }
    Ok(())
}

/// Refuses a bay that is being removed, that starts or stops, or whose files are not there or about to be replaced.
/// `verb` is a participle, for the message.
fn require_stable(row: &BayRow, verb: &str) -> Result<(), CoreError> {
    not_deleting(row, verb)?;
    let soon = || "repeat the command in a moment";
    match row.state {
        State::Running | State::Paused | State::Stopped => {}
        State::Failed if row.disk_ready => {}
        _ => return Err(misfit(row, verb, soon())),
    }
    let busy = match (row.restore_wanted, row.replace_with) {
        (Some(point), _) => format!("is being restored to {}", point.checkpoint),
        (None, Some(_)) => "is being given a fresh root".to_owned(),
        (None, None) if row.disk_ready => return Ok(()),
        (None, None) => return Err(misfit(row, verb, soon())),
    };
    let what = format!("the bay {} {busy}: it cannot be {verb} now", row.name);
    Err(CoreError::new(ErrorCode::BayState, what, soon()))
}

pub(crate) fn names(rows: &[CheckpointRow]) -> Vec<CheckpointName> {
    rows.iter().map(|row| row.name).collect()
}

pub(super) async fn views(daemon: &Daemon, handle: &BayHandle) -> Result<Vec<CheckpointView>, CoreError> {
    let rows = daemon.store.checkpoint_list(handle.id).await.map_err(|e| e.to_api())?;
    let current = handle.row().checkpoint;
    let older = rows.len().saturating_sub(SHOWN_INSIDE);
    let mut views: Vec<CheckpointView> =
        rows.iter().enumerate().map(|(index, row)| row.view(current, index >= older)).collect();
    measure(handle, &mut views).await?;
    Ok(views)
}

pub(super) async fn find(
    daemon: &Daemon,
    handle: &BayHandle,
    name: CheckpointName,
) -> Result<CheckpointRow, CoreError> {
    let rows = daemon.store.checkpoint_list(handle.id).await.map_err(|e| e.to_api())?;
    rows.into_iter().find(|row| row.name == name).ok_or_else(|| {
        CoreError::new(
            ErrorCode::CheckpointNotFound,
            format!("the bay {} has no checkpoint {name}", handle.name),
            Hint::new("{} lists its checkpoints", [Action::ListCheckpoints((&handle.name).into())]),
        )
    })
}
