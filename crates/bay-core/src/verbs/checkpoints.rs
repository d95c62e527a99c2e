//! Points in a bay's life: taken, listed, removed, gone back to.
//!
//! ```text
//!  flush ──► freeze ──► snapshot root, workspace, state ──► thaw ──► put in place ──► one transaction: row and event
//! ```
//! An event records the intent before anything is done, and another one a failure. The row comes last, so what is listed
//! is whole; what is on disk without a row goes at the next start. A daemon that dies while the bay stands still leaves
//! it frozen, and the next one thaws it because it is wanted running.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bay_backend::Seen;
use bay_store::{BayRow, CheckpointNew, CheckpointRow, Draft};
use bay_types::bay::{BayView, Desired, State};
use bay_types::checkpoint::{
    CheckpointCreate, CheckpointKind, CheckpointView, MAX_MESSAGE, Point as At, Promote, Restore, Restored,
    SHOWN_INSIDE,
};
use bay_types::event::bay::{BayPauseAsked, BayPromoteAsked, BayRestoreAsked};
use bay_types::event::checkpoint::{CheckpointAsked, CheckpointFailed, CheckpointMade, CheckpointRemoved};
use bay_types::principal::Principal;
use bay_types::{Action, CheckpointName, CoreError, ErrorCode, Hint, HintBay};
use jiff::Timestamp;

use super::bays::{VERB_WITHIN, misfit, not_deleting, reach, starts_it};
use super::{memory, thinning};
use crate::authorize::Verb;
use crate::backends::refusal;
use crate::background::to_the_end;
use crate::daemon::Daemon;
use crate::fault::Point;
use crate::registry::BayHandle;

/// Most checkpoints that a bay may have: each is three subvolumes, and lists must stay readable.
const MAX_CHECKPOINTS: usize = 1000;

/// A checkpoint to be made.
#[derive(Debug, Clone, Default)]
pub(super) struct Wanted {
    /// Absent: memory where it can be had, and the files in any case.
    pub(super) kind: Option<CheckpointKind>,
    pub(super) message: Option<String>,
    /// Why, when nobody asked for it.
    pub(super) automatic: Option<String>,
    /// One that is needed right after it, and must not be thinned for its sake.
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
    to_the_end(create_checkpoint(Arc::clone(daemon), handle, create, *who)).await
}

/// Makes the checkpoint that a card promises, before a person is asked about what a bay does.
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
            Hint::new("{} shows them", [Action::ListCheckpoints((&handle.name).into())]),
        )
    })?;
    to_the_end(remove(Arc::clone(daemon), handle, name, *who)).await
}

/// Makes a bay what it was at one of its checkpoints. What it is now is kept as another.
pub async fn restore(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    wanted: Restore,
) -> Result<Restored, CoreError> {
    let handle = daemon.bay_for(who, Verb::BayRestore, bay)?;
    to_the_end(restore_to(Arc::clone(daemon), handle, wanted, *who)).await
}

/// Restores a bay's files for somebody who ends with it: `tell` gets the checkpoint of what the bay is now, or the error,
/// before anything of the bay ends. An error is returned only if it was not told.
pub(crate) async fn restore_and_tell_first<F>(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    checkpoint: CheckpointName,
    tell: impl FnOnce(Result<CheckpointView, CoreError>) -> F,
) -> Result<(), CoreError>
where
    F: Future<Output = ()>,
{
    let kept = async {
        let handle = daemon.bay_for(who, Verb::BayRestore, bay)?;
        let before = keep_before_restore(daemon, &handle, checkpoint, false, *who).await?;
        Ok((handle, before))
    };
    match kept.await {
        Ok((handle, before)) => {
            tell(Ok(before)).await;
            go_back(daemon, &handle, checkpoint, false, *who).await.map(drop)
        }
        Err(error) => {
            tell(Err(error)).await;
            Ok(())
        }
    }
}

/// Makes the state of one bay another's, which keeps what it was as a checkpoint.
pub async fn promote(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    wanted: Promote,
) -> Result<Restored, CoreError> {
    let handle = daemon.bay_for(who, Verb::BayPromote, bay)?;
    let child = daemon.bay_for(who, Verb::BayPromote, &wanted.from)?;
    to_the_end(promote_child(Arc::clone(daemon), handle, child, *who)).await
}

async fn create_checkpoint(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    create: CheckpointCreate,
    caller: Principal,
) -> Result<CheckpointView, CoreError> {
    if let Some(message) = &create.message
        && (message.len() > MAX_MESSAGE || message.contains('\0'))
    {
        return Err(CoreError::new(
            ErrorCode::InvalidInput,
            format!("the message is longer than {MAX_MESSAGE} bytes, or holds a NUL byte"),
            "give a shorter one",
        ));
    }
    let message = create.message.filter(|message| !message.trim().is_empty());
    let made =
        take(&daemon, &handle, Wanted { kind: create.kind, message, automatic: None, spared: None }, caller)
            .await?;
    daemon.fault.at(Point::BeforeAck);
    Ok(made)
}

/// Makes a checkpoint of a bay as it is now.
pub(super) async fn take(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    wanted: Wanted,
    caller: Principal,
) -> Result<CheckpointView, CoreError> {
    handle.require_driver()?;
    let _at_work = stand_still(handle).await?;
    take_and(daemon, handle, wanted, caller, false).await
}

/// Keeps the reconciler, and whoever else wants a checkpoint, from the bay.
async fn stand_still(handle: &BayHandle) -> Result<tokio::sync::MutexGuard<'_, ()>, CoreError> {
    tokio::time::timeout(VERB_WITHIN, handle.at_work.lock()).await.map_err(|_| {
        CoreError::new(
            ErrorCode::Interrupted,
            format!("the bay {} was busy for {} s", handle.name, VERB_WITHIN.as_secs()),
            Hint::new(
                "{} tells with what; repeat the command later",
                [Action::ShowBay((&handle.name).into())],
            ),
        )
    })
}

/// What runs in a bay goes to disk, where it outlives everything but the bay, and nothing of it runs any more.
pub(super) async fn pause_to_disk(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    caller: Principal,
) -> Result<BayView, CoreError> {
    let row = handle.row();
    not_deleting(&row, "paused")?;
    match row.state {
        State::Running => {}
        // It is what was asked for already.
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
    // Until the wish is written down: a reconciler that saw it frozen and wanted running would thaw it.
    let at_work = stand_still(&handle).await?;
    let kept = async {
        let made = take_and(&daemon, &handle, wanted, caller, true).await?;
        let point = At { bay: handle.id, checkpoint: made.name };
        // What is ended next must outlive a power cut right after.
        handle.with_files(move |files| files.checkpoint_flush(point)).await?;
        Ok(point)
    };
    let point = kept.await.inspect_err(|_: &CoreError| {
        // It may stand still, and is wanted running.
        handle.wake.notify_one();
    })?;
    let draft = Draft::of(BayPauseAsked { to_disk: Some(point.checkpoint), by: caller.by() });
    // It stands still since it was captured, so nothing is lost that comes later.
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

/// For a caller that keeps the reconciler away. With `hold` the bay stands still afterwards, when memory was captured.
async fn take_and(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    wanted: Wanted,
    caller: Principal,
    hold: bool,
) -> Result<CheckpointView, CoreError> {
    let row = handle.row();
    fits(&row, "captured")?;
    let known = daemon.store.checkpoint_list(row.id).await.map_err(|e| e.to_api())?;
    if known.len() >= MAX_CHECKPOINTS {
        return Err(CoreError::new(
            ErrorCode::NotEnough,
            format!("the bay {} has {MAX_CHECKPOINTS} checkpoints already", row.name),
            Hint::new("remove some: {}", [Action::RemoveCheckpoints((&row.name).into())]),
        ));
    }
    let point = At { bay: row.id, checkpoint: row.next_checkpoint };
    let asked = Draft::of(CheckpointAsked {
        name: point.checkpoint.into(),
        automatic: wanted.automatic.clone(),
        by: caller.by(),
    });
    daemon.store.event_append(Some(row.id), &asked).await.map_err(|e| e.to_api())?;
    let made = match make(daemon, handle, &row, point, wanted.clone(), caller, hold).await {
        Ok(made) => made,
        Err(error) => {
            failed(daemon, &row, point, &error, caller).await;
            return Err(error);
        }
    };
    tidy(daemon, handle, wanted.spared, caller).await;
    let mut view = made.view(Some(made.name), true);
    measure(handle, std::slice::from_mut(&mut view)).await?;
    Ok(view)
}

/// Makes the checkpoint whose intent is on record.
async fn make(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    row: &BayRow,
    point: At,
    wanted: Wanted,
    caller: Principal,
    hold: bool,
) -> Result<CheckpointRow, CoreError> {
    let taken = async {
        let (kind, paused, without_memory) = match captured(daemon, handle, row, wanted.kind, hold).await? {
            Ok(paused) => (CheckpointKind::Memory, paused, Vec::new()),
            Err(why) => (CheckpointKind::Files, snapshot(daemon, handle, row).await?, why),
        };
        daemon.fault.at(Point::AfterSnapshot);
        handle.with_files(move |files| files.checkpoint_keep(point)).await?;
        Ok((kind, paused, without_memory))
    };
    let (kind, paused, without_memory) = match taken.await {
        Ok(taken) => taken,
        Err(error) => {
            discard(handle).await;
            return Err(error);
        }
    };
    let new = CheckpointNew {
        bay: row.id,
        name: point.checkpoint,
        kind,
        message: wanted.message,
        by: caller.by(),
        automatic: wanted.automatic,
        pause_us: u64::try_from(paused.as_micros()).unwrap_or(u64::MAX),
        without_memory,
    };
    let made = handle.checkpointed(&daemon.store, new, |made| {
        Draft::of(CheckpointMade {
            name: made.name.into(),
            parent: made.parent,
            kind: made.kind.into(),
            message: made.message.clone(),
            automatic: made.automatic.clone().into(),
            after_exec: made.after_exec,
            pause_us: made.pause_us,
            by: made.by.clone(),
        })
    });
    match made.await {
        Ok(made) => Ok(made),
        Err(error) => {
            discard_kept(daemon, handle, point).await;
            Err(error)
        }
    }
}

/// Records that a checkpoint failed whose intent is on record.
async fn failed(daemon: &Daemon, row: &BayRow, point: At, error: &CoreError, caller: Principal) {
    let event = Draft::of(CheckpointFailed {
        name: point.checkpoint.into(),
        why: error.message.clone(),
        by: caller.by(),
    });
    if let Err(error) = daemon.store.event_append(Some(row.id), &event).await {
        tracing::error!(bay = %row.name, %error, "the failure of a checkpoint could not be recorded");
    }
}

/// Adds what captured memory takes on disk.
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

/// What there is of a checkpoint that failed takes up room, and nobody will want it.
async fn discard(handle: &BayHandle) {
    let id = handle.id;
    if let Err(error) = handle.with_files(move |files| files.checkpoint_discard(id)).await {
        tracing::warn!(bay = %handle.name, message = %error.message, "a failed checkpoint could not be removed");
    }
}

/// Removes the files of a checkpoint that has no row: the next checkpoint gets its name.
async fn discard_kept(daemon: &Daemon, handle: &BayHandle, point: At) {
    // An error says nothing certain of a row: files of one that is listed stay.
    let listed = daemon.store.checkpoint_list(point.bay).await;
    if listed.map_or(true, |rows| rows.iter().any(|row| row.name == point.checkpoint)) {
        return;
    }
    if let Err(error) = handle.with_files(move |files| files.checkpoint_remove(point)).await {
        tracing::warn!(bay = %point.bay, message = %error.message, "a failed checkpoint could not be removed");
    }
}

/// Captures memory and files where that is wanted and possible. What stands in the way is a refusal for whoever wants nothing
/// else, and a note for others.
async fn captured(
    daemon: &Arc<Daemon>,
    handle: &BayHandle,
    row: &BayRow,
    kind: Option<CheckpointKind>,
    hold: bool,
) -> Result<Result<Duration, Vec<String>>, CoreError> {
    if kind == Some(CheckpointKind::Files) {
        return Ok(Err(Vec::new()));
    }
    // A bay in which nothing runs is whole without memory, which is said all the same.
    if kind.is_none() && row.runtime.is_none() {
        return Ok(Err(vec![match &row.thaw_from {
            Some(from) => format!("it is paused on disk, and what ran is in {}", from.checkpoint),
            None => format!("nothing runs in it: it is {}", row.state),
        }]));
    }
    let outcome = match memory::order(daemon, &*handle.backend, row).await {
        Ok(order) => memory::capture(daemon, handle, &order, hold).await,
        Err(obstacles) => Err(obstacles),
    };
    match outcome {
        Ok(paused) => Ok(Ok(paused)),
        Err(obstacles) if kind == Some(CheckpointKind::Memory) => Err(obstacles.refusal(handle, hold)),
        Err(obstacles) => Ok(Err(obstacles.0)),
    }
}

/// Snapshots the bay while nothing in it runs, and says for how long that was.
async fn snapshot(daemon: &Daemon, handle: &BayHandle, row: &BayRow) -> Result<Duration, CoreError> {
    let id = row.id;
    handle.with_files(move |files| files.checkpoint_prepare(id)).await?;
    let seen = match &row.runtime {
        Some(record) => handle.backend.inspect(id, record).await,
        None => Seen::Gone,
    };
    if seen != Seen::Running {
        handle.with_files(move |files| files.checkpoint_take(id)).await?;
        return Ok(Duration::ZERO);
    }
    let began = Instant::now();
    let frozen = handle.backend.pause(id).await;
    let taken = match frozen {
        Ok(()) => {
            daemon.fault.at(Point::BayStandsStill);
            handle.with_files(move |files| files.checkpoint_take(id)).await
        }
        Err(error) => Err(refusal(&error)),
    };
    // Also after a failure: a freeze that did not come to its end may have begun.
    let thawed = handle.backend.resume(id).await;
    let paused = began.elapsed();
    taken?;
    thawed.map_err(|e| refusal(&e))?;
    Ok(paused)
}

fn fits(row: &BayRow, verb: &str) -> Result<(), CoreError> {
    not_deleting(row, verb)?;
    let soon = || "repeat the command in a moment";
    match row.state {
        State::Running | State::Paused | State::Stopped => {}
        State::Failed if row.disk_ready => {}
        _ => return Err(misfit(row, verb, soon())),
    }
    let busy = match (row.restore_wanted, row.replace_with) {
        (Some(point), _) => format!("is going back to {}", point.checkpoint),
        (None, Some(_)) => "gets a fresh root".to_owned(),
        (None, None) if row.disk_ready => return Ok(()),
        (None, None) => return Err(misfit(row, verb, soon())),
    };
    let what = format!("the bay {} {busy}: it cannot be {verb} now", row.name);
    Err(CoreError::new(ErrorCode::BayState, what, soon()))
}

/// After every checkpoint: the bay sees the newest ones, and automatic ones that are not needed any more go, as far as
/// `caller` may remove them. The checkpoint at hand is made, so a failure here is only logged.
async fn tidy(daemon: &Daemon, handle: &Arc<BayHandle>, spared: Option<CheckpointName>, caller: Principal) {
    let done = async {
        let mut known = daemon.store.checkpoint_list(handle.id).await.map_err(|e| e.to_api())?;
        let usage = daemon.with_pool(|pool| pool.usage()).await?;
        let tight = thinning::is_tight(usage.free_bytes, usage.total_bytes);
        let mut promised = daemon.approvals.promised(handle.id);
        promised.extend(handle.row().checkpoint.into_iter().chain(spared));
        let cause = thinning::Cause::of(&caller.by());
        let going = thinning::dispensable(&known, &promised, cause, Timestamp::now(), tight);
        for name in going {
            let Some(index) = known.iter().position(|row| row.name == name) else { continue };
            if in_use(daemon, At { bay: handle.id, checkpoint: name }).is_none() {
                forget(daemon, handle, &known.remove(index), "thinned", caller).await?;
            }
        }
        let (id, names) = (handle.id, names(&known));
        handle.with_files(move |files| files.checkpoints_arrange(id, &names)).await
    };
    let done: Result<(), CoreError> = done.await;
    if let Err(error) = done {
        tracing::warn!(bay = %handle.name, message = %error.message, "checkpoints could not be tidied");
    }
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
            Hint::new("{} shows those it has", [Action::ListCheckpoints((&handle.name).into())]),
        )
    })
}

/// What a checkpoint is needed for at this moment, and until when.
struct Use {
    what: String,
    hint: Hint,
}

fn in_use(daemon: &Daemon, point: At) -> Option<Use> {
    let soon = || Hint::from("repeat the command in a moment");
    let of = |row: BayRow| {
        let files = row.forked_from.as_ref().map(|from| At { bay: from.bay, checkpoint: from.checkpoint });
        let name = &row.name;
        if row.thaw_from == Some(point) && row.state == State::Paused {
            return Some(Use {
                what: format!("{name} is paused on it"),
                hint: Hint::new(
                    "{} first; {} lets go of what ran in it",
                    [Action::ResumeBay(name.into()), Action::StopBay(name.into())],
                ),
            });
        }
        if row.restore_wanted == Some(point) {
            return Some(Use { what: format!("{name} is going back to it"), hint: soon() });
        }
        let made = (!row.disk_ready && files == Some(point)) || row.thaw_from == Some(point);
        made.then(|| Use { what: format!("{name} is being made from it"), hint: soon() })
    };
    daemon.bays.list().iter().find_map(|handle| of(handle.row()))
}

async fn remove(
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
    forget(&daemon, &handle, &row, "asked", caller).await?;
    let (id, known) =
        (handle.id, names(&daemon.store.checkpoint_list(handle.id).await.map_err(|e| e.to_api())?));
    handle.with_files(move |files| files.checkpoints_arrange(id, &known)).await
}

async fn forget(
    daemon: &Daemon,
    handle: &Arc<BayHandle>,
    row: &CheckpointRow,
    why: &str,
    caller: Principal,
) -> Result<(), CoreError> {
    let event = Draft::of(CheckpointRemoved { name: row.name.into(), why: why.to_owned(), by: caller.by() });
    handle.checkpoint_forgotten(&daemon.store, row.name, &event).await?;
    let point = At { bay: handle.id, checkpoint: row.name };
    handle.with_files(move |files| files.checkpoint_remove(point)).await
}

pub(super) async fn restore_to(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    wanted: Restore,
    caller: Principal,
) -> Result<Restored, CoreError> {
    let kind = find(&daemon, &handle, wanted.checkpoint).await?.kind;
    let memory = kind == CheckpointKind::Memory && !wanted.files_only;
    let before = keep_before_restore(&daemon, &handle, wanted.checkpoint, memory, caller).await?;
    let bay = go_back(&daemon, &handle, wanted.checkpoint, memory, caller).await?;
    Ok(Restored { bay, before })
}

/// The first half of a restore: what the bay is now becomes a checkpoint, if it can go back to that one.
async fn keep_before_restore(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    name: CheckpointName,
    memory: bool,
    caller: Principal,
) -> Result<CheckpointView, CoreError> {
    find(daemon, handle, name).await?;
    fits(&handle.row(), "restored")?;
    if memory {
        can_come_back(daemon, handle, At { bay: handle.id, checkpoint: name }).await?;
    }
    let why = format!("before the bay was restored to {name}");
    take(daemon, handle, Wanted { spared: Some(name), ..Wanted::automatic(why) }, caller).await
}

/// The second half.
async fn go_back(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    name: CheckpointName,
    memory: bool,
    caller: Principal,
) -> Result<BayView, CoreError> {
    let point = At { bay: handle.id, checkpoint: name };
    let draft = Draft::of(BayRestoreAsked { checkpoint: name.into(), bay: None, by: caller.by() });
    become_point(daemon, handle, point, memory, draft, caller).await
}

/// Refuses what cannot come back on this machine, or has no room there, while the bay still runs. What it holds now will be free by then.
async fn can_come_back(daemon: &Daemon, handle: &BayHandle, point: At) -> Result<(), CoreError> {
    let kept = memory::comes_back(handle, point).await?;
    let held = handle.backend.memory_held(handle.id).await.unwrap_or(0);
    daemon.admission.fits(kept.saturating_sub(held)).map_err(|shortage| {
        let what = format!("what ran at {} of {}", point.checkpoint, handle.name);
        let restore =
            Action::Restore { bay: (&handle.name).into(), checkpoint: point.checkpoint, files_only: true };
        shortage.refusal(&what, Hint::new("stop other bays; {} starts it anew from its files", [restore]))
    })
}

async fn promote_child(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    child: Arc<BayHandle>,
    caller: Principal,
) -> Result<Restored, CoreError> {
    if child.id == handle.id {
        return Err(CoreError::new(
            ErrorCode::InvalidInput,
            format!("{} cannot be promoted into itself", handle.name),
            "name the bay to promote first, and the one that takes its state behind `--into`",
        ));
    }
    fits(&handle.row(), "made another bay's state")?;
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
    become_point(&daemon, &handle, point, false, asked, caller).await?;
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

async fn become_point(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    point: At,
    memory: bool,
    draft: Draft,
    caller: Principal,
) -> Result<BayView, CoreError> {
    // A bay that was asked to be stopped stays so, unless it is to go on in the middle of what it did; what was paused is gone.
    let stays = handle.row().desired == Desired::Stopped && !memory;
    let wanted = if stays { State::Stopped } else { State::Running };
    let asked = handle
        .ask(
            &daemon.store,
            |row| fits(row, "restored"),
            draft,
            |row| {
                row.restore_wanted = Some(point);
                row.thaw_from = memory.then_some(point);
                if !stays {
                    row.desired = Desired::Running;
                }
                if row.state == State::Failed {
                    row.state = State::Stopped;
                    row.reason = format!("a restore was asked by {}", caller.by());
                }
            },
        )
        .await?;
    reach(daemon, handle, asked, wanted, Duration::ZERO).await
}
