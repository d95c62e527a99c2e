//! Pausing a bay on disk: a memory checkpoint, after which nothing of the bay runs.

use std::sync::Arc;
use std::time::Duration;

use bay_store::Draft;
use bay_types::bay::{BayView, Desired, State};
use bay_types::checkpoint::{CheckpointKind, Point as At};
use bay_types::event::bay::BayPauseAsked;
use bay_types::principal::Principal;
use bay_types::{Action, CoreError, Hint, HintBay};

use super::Wanted;
use super::capture::{lock, take_locked};
use crate::daemon::Daemon;
use crate::registry::BayHandle;
use crate::verbs::bays::{misfit, not_deleting, reach, starts_it};

/// Writes the memory of a bay to disk and ends its processes. The checkpoint with it cannot be deleted while the
/// bay is paused on it.
pub(in crate::verbs) async fn pause_to_disk(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    caller: Principal,
) -> Result<BayView, CoreError> {
    let row = handle.row();
    not_deleting(&row, "paused")?;
    match row.state {
        State::Running => {}
        // The bay is paused on disk already.
        State::Paused if row.thaw_from.is_some() => return Ok(daemon.view(&handle)),
        State::Paused => {
            let bay = HintBay::from(&row.name);
            let actions = [Action::ResumeBay(bay.clone()), Action::PauseBayToDisk(bay)];
            return Err(misfit(&row, "paused on disk", Hint::new("{} first, then {}", actions)));
        }
        State::Stopped | State::Failed => {
            return Err(misfit(&row, "paused", starts_it(&row)));
        }
        _ => return Err(misfit(&row, "paused", "repeat the command in a moment")),
    }
    let wanted = Wanted {
        kind: Some(CheckpointKind::Memory),
        automatic: Some("to pause on disk".to_owned()),
        spared: None,
        message: None,
    };
    // Held until the desired state is stored: a reconciler would thaw a frozen bay that should run.
    let at_work = lock(&handle).await?;
    let kept = async {
        let made = take_locked(&daemon, &handle, wanted, caller, true).await?;
        let point = At { bay: handle.id, checkpoint: made.name };
        // The processes end next. Their memory must survive a power cut right after that.
        handle.with_files(move |files| files.checkpoint_flush(point)).await?;
        Ok(point)
    };
    let point = kept.await.inspect_err(|_: &CoreError| {
        // The bay may be frozen and should run.
        handle.wake.notify_one();
    })?;
    let draft = Draft::of(BayPauseAsked { to_disk: Some(point.checkpoint), by: caller.by() });
    // The bay is frozen since it was captured, so nothing is lost after that moment.
    let asked = handle
        .ask(
            &daemon.store,
            |row| not_deleting(row, "paused"),
            draft,
            |row| {
                row.desired = Desired::Paused;
                row.thaw_from = Some(point);
            },
        )
        .await;
    drop(at_work);
    reach(&daemon, &handle, asked?, State::Paused, Duration::ZERO).await
}
