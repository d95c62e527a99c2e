//! Restoring a bay to a checkpoint, and promoting a bay: the files of one bay replace those of another. Both first
//! make a checkpoint of the files that they replace, without the memory.

use std::sync::Arc;
use std::time::Duration;

use bay_store::Draft;
use bay_types::bay::{BayView, Desired, State};
use bay_types::checkpoint::{CheckpointKind, CheckpointView, Point as At, Restore, Restored};
use bay_types::event::bay::{BayPromoteAsked, BayRestoreAsked};
use bay_types::principal::Principal;
use bay_types::{Action, CheckpointName, CoreError, ErrorCode, Hint};

use super::capture::take;
use super::{Wanted, find, require_stable};
use crate::daemon::Daemon;
use crate::registry::BayHandle;
use crate::verbs::bays::reach;
use crate::verbs::memory;

pub(in crate::verbs) async fn restore_to(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    wanted: Restore,
    caller: Principal,
) -> Result<Restored, CoreError> {
    let kind = find(&daemon, &handle, wanted.checkpoint).await?.kind;
    let memory = kind == CheckpointKind::Memory && !wanted.files_only;
    let before = keep_present_state(&daemon, &handle, wanted.checkpoint, memory, caller).await?;
    let bay = replace_state(&daemon, &handle, wanted.checkpoint, memory, caller).await?;
    Ok(Restored { bay, before })
}

/// The first half of a restore: if the bay can be restored to `name`, its present files become a checkpoint.
pub(super) async fn keep_present_state(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    name: CheckpointName,
    memory: bool,
    caller: Principal,
) -> Result<CheckpointView, CoreError> {
    find(daemon, handle, name).await?;
    require_stable(&handle.row(), "restored")?;
    if memory {
        require_restorable(daemon, handle, At { bay: handle.id, checkpoint: name }).await?;
    }
    let why = format!("before the bay was restored to {name}");
    take(daemon, handle, Wanted { spared: Some(name), ..Wanted::automatic(why) }, caller).await
}

/// The second half of a restore: the state of the checkpoint replaces the bay's.
pub(super) async fn replace_state(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    name: CheckpointName,
    memory: bool,
    caller: Principal,
) -> Result<BayView, CoreError> {
    let point = At { bay: handle.id, checkpoint: name };
    let draft = Draft::of(BayRestoreAsked { checkpoint: name.into(), bay: None, by: caller.by() });
    request_restore(daemon, handle, point, memory, draft, caller).await
}

/// Refuses memory that this host cannot restore or has no room for, while the bay still runs. The memory that the
/// bay uses now counts as free.
async fn require_restorable(daemon: &Daemon, handle: &BayHandle, point: At) -> Result<(), CoreError> {
    let kept = memory::restorable_bytes(handle, point).await?;
    let held = handle.backend.memory_held(handle.id).await.unwrap_or(0);
    daemon.admission.fits(kept.saturating_sub(held)).map_err(|shortage| {
        let what = format!("the memory of {} of {}", point.checkpoint, handle.name);
        let restore =
            Action::Restore { bay: (&handle.name).into(), checkpoint: point.checkpoint, files_only: true };
        shortage.refusal(&what, Hint::new("stop other bays; or {} restores the files alone", [restore]))
    })
}

pub(super) async fn promote_child(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    child: Arc<BayHandle>,
    caller: Principal,
) -> Result<Restored, CoreError> {
    if child.id == handle.id {
        return Err(CoreError::new(
            ErrorCode::InvalidInput,
            format!("{} cannot be promoted into itself", handle.name),
            "name two bays: first the one to copy from, and after `--into` the one to replace",
        ));
    }
    require_stable(&handle.row(), "made another bay's state")?;
    let why = format!("promoted into {}", handle.name);
    let taken = take(&daemon, &child, Wanted::automatic(why), caller).await?;
    let why = format!("before the promotion of {}", child.name);
    let before = take(&daemon, &handle, Wanted::automatic(why), caller).await?;
    let point = At { bay: child.id, checkpoint: taken.name };
    let asked = Draft::of(BayPromoteAsked {
        from: child.name.clone().into(),
        bay: child.id.into(),
        checkpoint: taken.name.into(),
        by: caller.by(),
    });
    let image = child.row().image_id;
    request_restore(&daemon, &handle, point, false, asked, caller).await?;
    handle.update(&daemon.store, None, |row| row.image_id = image).await?;
    let message = Some(format!("promoted from {} {}", child.name, taken.name));
    take(
        &daemon,
        &handle,
        Wanted { kind: Some(CheckpointKind::Files), message, automatic: None, spared: None },
        caller,
    )
    .await?;
    Ok(Restored { bay: daemon.view(&handle), before })
}

/// Stores the desired state with the event `draft`, and waits until the reconciler has restored the bay to `point`.
async fn request_restore(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    point: At,
    memory: bool,
    draft: Draft,
    caller: Principal,
) -> Result<BayView, CoreError> {
    // A bay that should be stopped stays stopped, unless its memory is restored. A paused bay starts: the restore ends
    // what was paused.
    let stays = handle.row().desired == Desired::Stopped && !memory;
    let wanted = if stays { State::Stopped } else { State::Running };
    let asked = handle
        .ask(
            &daemon.store,
            |row| require_stable(row, "restored"),
            draft,
            |row| {
                row.restore_wanted = Some(point);
                row.thaw_from = memory.then_some(point);
                if !stays {
                    row.desired = Desired::Running;
                }
                if row.state == State::Failed {
                    row.state = State::Stopped;
                    row.reason = format!("a restore was requested by {}", caller.by());
                }
            },
        )
        .await?;
    reach(daemon, handle, asked, wanted, Duration::ZERO).await
}
