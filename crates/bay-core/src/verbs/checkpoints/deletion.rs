//! Deleting checkpoints: those that a caller names, and automatic ones that are no longer needed.

use std::sync::Arc;

use bay_store::{BayRow, CheckpointRow, Draft};
use bay_types::bay::State;
use bay_types::checkpoint::Point as At;
use bay_types::event::checkpoint::CheckpointRemoved;
use bay_types::principal::Principal;
use bay_types::{Action, CheckpointName, CoreError, ErrorCode, Hint};
use jiff::Timestamp;

use super::{find, names, retention};
use crate::daemon::Daemon;
use crate::registry::BayHandle;

/// Runs after every checkpoint: removes automatic ones that are no longer needed and not in use, as far as `caller`
/// may remove them, and shows the newest ones to the bay. The new checkpoint is complete, so a failure here is only
/// logged.
pub(super) async fn thin(
    daemon: &Daemon,
    handle: &Arc<BayHandle>,
    spared: Option<CheckpointName>,
    caller: Principal,
) {
    let done = async {
        let mut known = daemon.store.checkpoint_list(handle.id).await.map_err(|e| e.to_api())?;
        let usage = daemon.with_pool(|pool| pool.usage()).await?;
        let tight = retention::is_tight(usage.free_bytes, usage.total_bytes);
        let mut promised = daemon.approvals.promised(handle.id);
        promised.extend(handle.row().checkpoint.into_iter().chain(spared));
        let cause = retention::Cause::of(&caller.by());
        let removable = retention::dispensable(&known, &promised, cause, Timestamp::now(), tight);
        for name in removable {
            let Some(index) = known.iter().position(|row| row.name == name) else { continue };
            if in_use(daemon, At { bay: handle.id, checkpoint: name }).is_none() {
                delete_one(daemon, handle, &known.remove(index), "thinned", caller).await?;
            }
        }
        let (id, names) = (handle.id, names(&known));
        handle.with_files(move |files| files.checkpoints_arrange(id, &names)).await
    };
    let done: Result<(), CoreError> = done.await;
    if let Err(error) = done {
        tracing::warn!(bay = %handle.name, message = %error.message, "automatic checkpoints that are no longer needed could not be removed");
    }
}

/// What a checkpoint is needed for at this moment.
struct Use {
    what: String,
    /// How to end that use.
    hint: Hint,
}

fn in_use(daemon: &Daemon, point: At) -> Option<Use> {
    let soon = || Hint::from("repeat the command in a moment");
    let of = |row: BayRow| {
        let forked = row.forked_from.as_ref().map(|from| At { bay: from.bay, checkpoint: from.checkpoint });
        let copied = row.environment.as_ref().map(|of| At { bay: of.bay, checkpoint: of.checkpoint });
        let files = forked.or(copied);
        let name = &row.name;
        if row.thaw_from == Some(point) && row.state == State::Paused {
            return Some(Use {
                what: format!("{name} is paused on it"),
                hint: Hint::new(
                    "continue that bay with {} first; or {} ends it, without the processes that were paused",
                    [Action::ResumeBay(name.into()), Action::StopBay(name.into())],
                ),
            });
        }
        if row.restore_wanted == Some(point) {
            return Some(Use { what: format!("{name} is being restored to it"), hint: soon() });
        }
        let made = (!row.disk_ready && files == Some(point)) || row.thaw_from == Some(point);
        made.then(|| Use { what: format!("{name} is being made from it"), hint: soon() })
    };
    daemon.bays.list().iter().find_map(|handle| of(handle.row()))
}

/// Deletes a checkpoint unless it is in use.
pub(super) async fn delete(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    name: CheckpointName,
    caller: Principal,
) -> Result<(), CoreError> {
    let _at_work = handle.at_work.lock().await;
    let row = find(&daemon, &handle, name).await?;
    if let Some(Use { what, hint }) = in_use(&daemon, At { bay: handle.id, checkpoint: name }) {
        return Err(CoreError::new(
            ErrorCode::BayState,
            format!("{name} of {} cannot be removed now: {what}", handle.name),
            hint,
        ));
    }
    delete_one(&daemon, &handle, &row, "asked", caller).await?;
    let (id, known) =
        (handle.id, names(&daemon.store.checkpoint_list(handle.id).await.map_err(|e| e.to_api())?));
    handle.with_files(move |files| files.checkpoints_arrange(id, &known)).await
}

async fn delete_one(
    daemon: &Daemon,
    handle: &Arc<BayHandle>,
    row: &CheckpointRow,
    why: &str,
    caller: Principal,
) -> Result<(), CoreError> {
    let event = Draft::of(CheckpointRemoved { name: row.name.into(), why: why.to_owned(), by: caller.by() });
    handle.checkpoint_remove(&daemon.store, row.name, &event).await?;
    let point = At { bay: handle.id, checkpoint: row.name };
    handle.with_files(move |files| files.checkpoint_remove(point)).await
}
