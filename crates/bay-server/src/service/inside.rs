//! What the processes of a bay ask of the daemon through their guest. They may do to their own bay what costs nobody else
//! anything: look at its checkpoints, make some, go back to one. The guest is hostile: it can ask as often as it likes, and is
//! heard one at a time, with a [`PAUSE`] between two changes.

use std::sync::Arc;
use std::time::Duration;

use bay_types::checkpoint::{CheckpointCreate, CheckpointKind, CheckpointName};
use bay_types::inside::{Answered, Ask};
use bay_types::{ApiError, ErrorCode};
use http::Method;
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

use super::{Caller, checkpoints};
use crate::channel::ANSWER_WITHIN;
use crate::daemon::Daemon;
use crate::registry::BayHandle;

/// Wishes of a bay that are known at once.
const MAX_WAITING: usize = 4;
/// Between two changes of one bay that it asked for itself.
const PAUSE: Duration = Duration::from_millis(500);
/// What a process has, after it was told that the bay goes back, to say so.
const READ_WITHIN: Duration = Duration::from_millis(300);
/// Checkpoints made from inside that a bay may have. An operator's own have room besides.
const MAX_FROM_INSIDE: usize = 200;

/// Wishes of one bay, waiting for their turn.
#[derive(Debug)]
pub(crate) struct Wishes {
    room: Arc<Semaphore>,
    /// When the last one was done.
    last: Mutex<Option<Instant>>,
}

impl Default for Wishes {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(MAX_WAITING)), last: Mutex::default() }
    }
}

/// Takes a wish up, unless too many wait already. Says whether it is.
pub(crate) fn heard(daemon: &Arc<Daemon>, handle: &Arc<BayHandle>, id: u64, ask: Ask) -> bool {
    let Ok(room) = Arc::clone(&handle.wishes.room).try_acquire_owned() else { return refuse(handle, id) };
    let (daemon, handle) = (Arc::clone(daemon), Arc::clone(handle));
    tokio::spawn(async move {
        let _room = room;
        let mut last = handle.wishes.last.lock().await;
        if let Some(last) = *last
            && ask != Ask::Checkpoints
        {
            tokio::time::sleep_until(last + PAUSE).await;
        }
        if let Ask::Restore { checkpoint } = ask {
            restore(&daemon, &handle, id, checkpoint).await;
        } else {
            let outcome = grant(&daemon, &handle, ask).await;
            answer(&handle, id, outcome).await;
        }
        *last = Some(Instant::now());
    });
    true
}

fn refuse(handle: &Arc<BayHandle>, id: u64) -> bool {
    let handle = Arc::clone(handle);
    tokio::spawn(async move {
        let error = ApiError::new(
            ErrorCode::Interrupted,
            "the bay asks faster than it is answered",
            "try again in some seconds",
        );
        answer(&handle, id, Err(error)).await;
    });
    false
}

async fn answer(handle: &BayHandle, id: u64, outcome: Result<Value, ApiError>) {
    let answered = match outcome {
        Ok(value) => Answered { value, error: None },
        Err(error) => Answered { value: Value::Null, error: Some(error) },
    };
    let body = serde_json::to_vec(&answered).unwrap_or_default();
    // After a restore there is nobody left who asked.
    let _ = handle.guest.bytes(Method::POST, &format!("/v1/asks/{id}"), body.into(), ANSWER_WITHIN).await;
}

/// Whoever asks for it ends with it. So it is answered as soon as nothing can be wrong with it any more, and done when the
/// answer had time to be read.
async fn restore(daemon: &Arc<Daemon>, handle: &Arc<BayHandle>, id: u64, checkpoint: CheckpointName) {
    let caller = Caller::inside();
    match checkpoints::keep_before_restore(daemon, handle, checkpoint, caller).await {
        Err(error) => answer(handle, id, Err(error)).await,
        Ok(before) => {
            answer(handle, id, serde_json::to_value(before).map_err(|e| ApiError::internal(&e))).await;
            tokio::time::sleep(READ_WITHIN).await;
            if let Err(error) = checkpoints::go_back(daemon, handle, checkpoint, false, caller).await {
                tracing::warn!(bay = %handle.name, message = %error.message, "a restore asked for inside failed");
            }
        }
    }
}

async fn grant(daemon: &Arc<Daemon>, handle: &Arc<BayHandle>, ask: Ask) -> Result<Value, ApiError> {
    let caller = Caller::inside();
    let told = |value| serde_json::to_value(value).map_err(|e| ApiError::internal(&e));
    match ask {
        Ask::Checkpoints => {
            let all = checkpoints::list(daemon, handle).await?;
            serde_json::to_value(all).map_err(|e| ApiError::internal(&e))
        }
        Ask::Checkpoint { message } => {
            let all = checkpoints::list(daemon, handle).await?;
            if all.iter().filter(|one| one.by == caller.by()).count() >= MAX_FROM_INSIDE {
                return Err(ApiError::new(
                    ErrorCode::NotEnough,
                    format!("{MAX_FROM_INSIDE} checkpoints were made from inside the bay already"),
                    "whoever runs the bay can remove some: `bay checkpoints rm`",
                ));
            }
            let create = CheckpointCreate { message, kind: Some(CheckpointKind::Files) };
            let made = checkpoints::create(Arc::clone(daemon), Arc::clone(handle), create, caller).await?;
            told(made)
        }
        // It has an answer of its own.
        Ask::Restore { .. } => Ok(Value::Null),
    }
}
