//! Making a checkpoint.
//!
//! ```text
//!  flush ──► freeze ──► snapshot root, workspace, state ──► thaw ──► put in place ──► one transaction: row and event
//! ```
//! A bay that does not run is not frozen. An event records the intent before anything is done, and another event
//! records a failure. The row comes last, so a listed checkpoint is complete. If the daemon dies on the way, the
//! next one records the failure, removes files without a row, and thaws the bay because it should run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bay_backend::Seen;
use bay_store::{BayRow, CheckpointNew, CheckpointRow, Draft};
use bay_types::checkpoint::{CheckpointCreate, CheckpointKind, CheckpointView, MAX_MESSAGE, Point as At};
use bay_types::event::checkpoint::{CheckpointAsked, CheckpointFailed, CheckpointMade};
use bay_types::principal::Principal;
use bay_types::{Action, CoreError, ErrorCode, Hint};

use super::deletion::thin;
use super::{Wanted, measure, require_stable};
use crate::backends::refusal;
use crate::daemon::Daemon;
use crate::fault::Point;
use crate::registry::BayHandle;
use crate::verbs::bays::VERB_WITHIN;
use crate::verbs::memory;

/// The most checkpoints of one bay. Each is three subvolumes, and lists must stay readable.
const MAX_CHECKPOINTS: usize = 1000;

pub(super) async fn create_checkpoint(
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
            format!("the message is longer than {MAX_MESSAGE} bytes, or contains a NUL byte"),
            "give a shorter message, without NUL bytes",
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
pub(in crate::verbs) async fn take(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    wanted: Wanted,
    caller: Principal,
) -> Result<CheckpointView, CoreError> {
    handle.require_driver()?;
    let _at_work = lock(handle).await?;
    take_locked(daemon, handle, wanted, caller, false).await
}

/// Excludes the reconciler and other checkpoints of the bay.
pub(super) async fn lock(handle: &BayHandle) -> Result<tokio::sync::MutexGuard<'_, ()>, CoreError> {
    tokio::time::timeout(VERB_WITHIN, handle.at_work.lock()).await.map_err(|_| {
        CoreError::new(
            ErrorCode::Interrupted,
            format!("the bay {} was busy for {} s", handle.name, VERB_WITHIN.as_secs()),
            Hint::new(
                "{} shows what it is doing; repeat the command later",
                [Action::ShowBay((&handle.name).into())],
            ),
        )
    })
}

/// Makes a checkpoint for a caller that has the [`lock`]. With `hold`, a bay whose memory was captured stays paused.
pub(super) async fn take_locked(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    wanted: Wanted,
    caller: Principal,
    hold: bool,
) -> Result<CheckpointView, CoreError> {
    let row = handle.row();
    require_stable(&row, "captured")?;
    let known = daemon.store.checkpoint_list(row.id).await.map_err(|e| e.to_api())?;
    if known.len() >= MAX_CHECKPOINTS {
        return Err(CoreError::new(
            ErrorCode::NotEnough,
            format!("the bay {} has {MAX_CHECKPOINTS} checkpoints, the most allowed", row.name),
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
            record_failure(daemon, &row, point, &error, caller).await;
            return Err(error);
        }
    };
    thin(daemon, handle, wanted.spared, caller).await;
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
        let (kind, paused, without_memory) = match with_memory(daemon, handle, row, wanted.kind, hold).await?
        {
            Ok(paused) => (CheckpointKind::Memory, paused, Vec::new()),
            Err(why) => (CheckpointKind::Files, files_only(daemon, handle, row).await?, why),
        };
        daemon.fault.at(Point::AfterSnapshot);
        handle.with_files(move |files| files.checkpoint_keep(point)).await?;
        Ok((kind, paused, without_memory))
    };
    let (kind, paused, without_memory) = match taken.await {
        Ok(taken) => taken,
        Err(error) => {
            discard_snapshots(handle).await;
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
    let made = handle.checkpoint_add(&daemon.store, new, |made| {
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
            discard_checkpoint(daemon, handle, point).await;
            Err(error)
        }
    }
}

/// Records that a checkpoint failed whose intent is on record.
async fn record_failure(daemon: &Daemon, row: &BayRow, point: At, error: &CoreError, caller: Principal) {
    let event = Draft::of(CheckpointFailed {
        name: point.checkpoint.into(),
        why: error.message.clone(),
        by: caller.by(),
    });
    if let Err(error) = daemon.store.event_append(Some(row.id), &event).await {
        tracing::error!(bay = %row.name, %error, "the failure of a checkpoint could not be recorded");
    }
}

/// Removes the snapshots of a failed checkpoint, which take up disk space.
async fn discard_snapshots(handle: &BayHandle) {
    let id = handle.id;
    if let Err(error) = handle.with_files(move |files| files.checkpoint_discard(id)).await {
        tracing::warn!(bay = %handle.name, message = %error.message, "a failed checkpoint could not be removed");
    }
}

/// Removes the files of a checkpoint that has no row: the next checkpoint gets its name.
async fn discard_checkpoint(daemon: &Daemon, handle: &BayHandle, point: At) {
    // After an error of the store, the row may exist. A listed checkpoint keeps its files.
    let listed = daemon.store.checkpoint_list(point.bay).await;
    if listed.map_or(true, |rows| rows.iter().any(|row| row.name == point.checkpoint)) {
        return;
    }
    if let Err(error) = handle.with_files(move |files| files.checkpoint_remove(point)).await {
        tracing::warn!(bay = %point.bay, message = %error.message, "a failed checkpoint could not be removed");
    }
}

/// Captures memory and files if that is requested and possible. Obstacles are an error if `kind` is memory; otherwise they
/// are returned as the reasons why the checkpoint has no memory.
async fn with_memory(
    daemon: &Arc<Daemon>,
    handle: &BayHandle,
    row: &BayRow,
    kind: Option<CheckpointKind>,
    hold: bool,
) -> Result<Result<Duration, Vec<String>>, CoreError> {
    if kind == Some(CheckpointKind::Files) {
        return Ok(Err(Vec::new()));
    }
    // The checkpoint of a bay in which nothing runs is complete without memory, but it still gets a reason.
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

/// Takes snapshots of the files. A running bay is frozen meanwhile. Returns for how long it was frozen.
async fn files_only(daemon: &Daemon, handle: &BayHandle, row: &BayRow) -> Result<Duration, CoreError> {
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
    // Also after a failure: the freeze may have begun.
    let thawed = handle.backend.resume(id).await;
    let paused = began.elapsed();
    taken?;
    thawed.map_err(|e| refusal(&e))?;
    Ok(paused)
}
