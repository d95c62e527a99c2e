//! Capturing the memory of a bay, and its files of the same moment.

use std::sync::Arc;
use std::time::Duration;

use bay_backend::{Backend, BackendError, CaptureOrder, Seen};
use bay_store::BayRow;
use bay_types::bay::State;
use bay_types::checkpoint::Point as At;
use bay_types::runtime::RuntimeHandle;
use bay_types::{Action, CoreError, ErrorCode, Hint};

use crate::backends::{Backends, refusal};
use crate::background::blocking;
use crate::daemon::Daemon;
use crate::fault::Point;
use crate::registry::BayHandle;
use crate::verbs::start_spec::start_spec;

/// The most obstacles in one message. The first ones are enough to act on.
const MAX_SHOWN: usize = 20;

/// Why memory cannot be captured: one line for each obstacle.
#[derive(Debug)]
pub(super) struct Obstacles(pub(super) Vec<String>);

impl Obstacles {
    fn one(why: impl Into<String>) -> Self {
        Self(vec![why.into()])
    }

    /// The error for a caller that requested memory: a checkpoint, or with `hold` a pause on disk.
    pub(super) fn refusal(&self, bay: &BayHandle, hold: bool) -> CoreError {
        let instead = if hold {
            Hint::new("{} pauses it in memory", [Action::PauseBay((&bay.name).into())])
        } else {
            Hint::new("{} captures the files alone", [Action::FilesOnly])
        };
        CoreError::new(
            ErrorCode::MemoryUnavailable,
            format!("the memory of {} cannot be captured: {}", bay.name, self.0.join("; ")),
            Hint::from("end the processes named above and try again")
                .and(instead)
                .and(Hint::new("{} shows what this host supports", [Action::Doctor])),
        )
    }
}

/// Checks, while the bay runs, whether its memory can be captured, and returns the order to capture it. A capture
/// may still fail.
pub(super) async fn order(
    daemon: &Daemon,
    backend: &dyn Backend,
    row: &BayRow,
) -> Result<CaptureOrder, Obstacles> {
    let (Some(record), State::Running) = (&row.runtime, row.state) else {
        return Err(Obstacles::one(format!("it is {}", row.state)));
    };
    match backend.inspect(row.id, record).await {
        Seen::Running => {}
        Seen::Paused => return Err(Obstacles::one("it is frozen")),
        Seen::Gone => return Err(Obstacles::one("its guest has just died")),
    }
    backend.require_memory().map_err(|error| Obstacles::one(error.to_string()))?;
    let order = order_for(daemon, row, record).await.map_err(|error| Obstacles::one(error.message))?;
    let held = backend.memory_held(row.id).await.unwrap_or(0);
    let files = backend.files();
    let room = blocking(move || files.checkpoint_make_room(held)).await;
    room.map_err(|error| Obstacles::one(error.message))?;
    match backend.examine(&order).await {
        Ok(obstacles) if obstacles.is_empty() => Ok(order),
        Ok(obstacles) => Err(Obstacles(obstacles.iter().take(MAX_SHOWN).map(ToString::to_string).collect())),
        Err(error) => Err(Obstacles::one(error.to_string())),
    }
}

async fn order_for(
    daemon: &Daemon,
    row: &BayRow,
    runtime: &RuntimeHandle,
) -> Result<CaptureOrder, CoreError> {
    Ok(CaptureOrder { bay: start_spec(daemon, row).await?, runtime: runtime.clone(), end: false })
}

/// Whether an earlier daemon ended in the middle of a capture of this bay.
pub(crate) fn was_cut_short(backends: &Backends, row: &BayRow) -> bool {
    row.runtime.is_some() && backends.of(&row.backend).driver.files().capture_is_unfinished(row.id)
}

/// Ends a capture that was cut short. Returns when no process works at it any more and the bay runs again.
pub(crate) async fn abandon(daemon: &Daemon, handle: &BayHandle, row: &BayRow) -> Result<(), CoreError> {
    let Some(record) = &row.runtime else { return Ok(()) };
    let order = order_for(daemon, row, record).await?;
    handle.backend.abandon(&order).await.map_err(|e| refusal(&e))
}

/// How many bytes of memory the restored processes of this checkpoint need. An error if this host cannot restore
/// them.
pub(super) async fn restorable_bytes(handle: &BayHandle, point: At) -> Result<u64, CoreError> {
    handle.backend.can_restore(point).await.map_err(|e| refusal(&e))?;
    handle.with_files(move |files| files.checkpoint_memory_bytes(point)).await
}

/// Captures memory and files of one moment. With `hold` the bay stays frozen afterwards.
pub(super) async fn capture(
    daemon: &Arc<Daemon>,
    handle: &BayHandle,
    order: &CaptureOrder,
    hold: bool,
) -> Result<Duration, Obstacles> {
    let id = handle.id;
    let obstacle = |error: CoreError| Obstacles::one(error.message);
    handle.with_files(move |files| files.checkpoint_prepare(id)).await.map_err(obstacle)?;
    let closed = handle.guest.close().await;
    let files = async {
        daemon.fault.at(Point::BayStandsStill);
        handle.with_files(move |files| files.checkpoint_take(id)).await.map_err(|e| e.message)?;
        if hold {
            handle.backend.pause(id).await.map_err(|e| e.to_string())?;
        }
        Ok(())
    };
    let captured = handle.backend.capture(order, Box::pin(files)).await;
    if captured.is_err() && hold {
        let _ = handle.backend.resume(id).await;
    }
    drop(closed);
    match captured {
        Ok(captured) => Ok(captured.pause),
        Err(BackendError::Obstacles(obstacles)) => {
            Err(Obstacles(obstacles.iter().take(MAX_SHOWN).map(ToString::to_string).collect()))
        }
        Err(error) => Err(Obstacles::one(bay_types::error::chain(&error))),
    }
}
