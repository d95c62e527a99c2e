//! What the processes of a bay ask of the daemon through their guest. They may do to their own bay what costs nobody else
//! anything: look at its checkpoints and at what may leave it, make some, go back to one, see what has changed since. The guest is hostile: it can ask
//! as often as it likes, and is heard one at a time, with a [`PAUSE`] between two changes. What they change with the guest alone
//! is only written down here, so often and no more ([`NOTES`]).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bay_diff::Told;
use bay_store::Draft;
use bay_types::checkpoint::{CheckpointCreate, CheckpointKind, CheckpointName};
use bay_types::diff::{DiffAsk, DiffLine};
use bay_types::inside::{Answered, Ask, InsideChange, InsideDiff};
use bay_types::service::ServiceVerb;
use bay_types::{ApiError, ErrorCode};
use http::Method;
use serde_json::{Value, json};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

use super::diff::Found;
use super::{Caller, checkpoints, execs, policy};
use crate::channel::ANSWER_WITHIN;
use crate::daemon::Daemon;
use crate::registry::BayHandle;

/// Wishes of a bay that are known at once.
const MAX_WAITING: usize = 4;
/// Between two changes of one bay that it asked for itself.
const PAUSE: Duration = Duration::from_millis(500);
/// What a process has, after it was told that the bay goes back, to say so.
const READ_WITHIN: Duration = Duration::from_millis(300);
/// Changes of a bay's own that are written down within [`NOTES_WITHIN`]; what is beyond is dropped.
const NOTES: u32 = 60;
const NOTES_WITHIN: Duration = Duration::from_secs(60);
/// How much a comparison may tell a bay: what its guest takes as one answer.
const MAX_DIFF_BYTES: usize = 4 << 20;
/// How long a comparison for a bay may take.
const DIFF_WITHIN: Duration = Duration::from_secs(60);
/// Comparisons for bays at once. Those of operators have turns that no bay can take.
static DIFFS: Semaphore = Semaphore::const_new(super::diff::MAX_DIFFS / 2);
/// Checkpoints made from inside that a bay may have. An operator's own have room besides.
const MAX_FROM_INSIDE: usize = 200;

/// Wishes of one bay, waiting for their turn.
#[derive(Debug)]
pub(crate) struct Wishes {
    room: Arc<Semaphore>,
    /// When the last one was done.
    last: Mutex<Option<Instant>>,
    /// Changes written down since a moment.
    noted: Mutex<(Option<Instant>, u32)>,
}

impl Default for Wishes {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(MAX_WAITING)), last: Mutex::default(), noted: Mutex::default() }
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
            && !matches!(ask, Ask::Checkpoints | Ask::Egress)
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
    match checkpoints::keep_before_restore(daemon, handle, checkpoint, false, caller).await {
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
        Ask::Egress => {
            let told = policy::inside(daemon, handle).await;
            serde_json::to_value(told).map_err(|e| ApiError::internal(&e))
        }
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
        Ask::Diff { from, to, part, patch } => {
            let found = diff(daemon, handle, &DiffAsk { from, to, part, patch }).await?;
            serde_json::to_value(found).map_err(|e| ApiError::internal(&e))
        }
        // It has an answer of its own.
        Ask::Restore { .. } => Ok(Value::Null),
    }
}

/// What has changed in the bay, as `bay diff` tells it, up to a bound.
async fn diff(daemon: &Arc<Daemon>, handle: &Arc<BayHandle>, ask: &DiffAsk) -> Result<InsideDiff, ApiError> {
    let late = || {
        ApiError::new(
            ErrorCode::Interrupted,
            format!("the comparison took longer than {} s", DIFF_WITHIN.as_secs()),
            "compare with a later checkpoint, or let whoever runs the bay do it: `bay diff`",
        )
    };
    let until = Instant::now() + DIFF_WITHIN;
    let turn = tokio::time::timeout_at(until, DIFFS.acquire()).await;
    let Ok(Ok(_turn)) = turn else { return Err(late()) };
    let comparison = super::diff::prepare(daemon, handle, ask, None).await?;
    let (part, patch) = (ask.part, ask.patch);
    crate::daemon::blocking(move || {
        let begin =
            DiffLine::Begin { bay: comparison.bay.clone(), from: comparison.from, to: comparison.to, part };
        let mut found = InsideDiff { lines: vec![begin], cut: false };
        let mut room = MAX_DIFF_BYTES;
        let options = super::diff::shown(part, patch);
        let done = super::diff::run(&comparison, &options, &mut |told| {
            let line = match told {
                Found::Package(change) => DiffLine::Package(change),
                Found::Told(Told::Entry(entry)) => DiffLine::Entry(entry),
                Found::Told(Told::Progress(_)) | Found::Ignored => return going_on(until),
            };
            let size = serde_json::to_vec(&line).map_or(usize::MAX, |line| line.len());
            // Nothing small is told behind something large that was left out: what is there is a beginning.
            match room.checked_sub(size).filter(|_| !found.cut) {
                Some(left) => {
                    room = left;
                    found.lines.push(line);
                }
                None => found.cut = true,
            }
            going_on(until)
        });
        match done {
            Ok(summary) => {
                found.lines.push(DiffLine::Done(summary));
                Ok(found)
            }
            Err(_) if going_on(until).is_break() => Err(late()),
            Err(error) => Err(error),
        }
    })
    .await
}

fn going_on(until: Instant) -> ControlFlow<()> {
    if Instant::now() < until { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

/// Writes down what the bay's own processes changed. Says whether that was worth hearing.
pub(crate) async fn changed(daemon: &Daemon, handle: &BayHandle, change: InsideChange) -> bool {
    {
        let mut noted = handle.wishes.noted.lock().await;
        if noted.0.is_none_or(|since| since.elapsed() > NOTES_WITHIN) {
            *noted = (Some(Instant::now()), 0);
        }
        noted.1 += 1;
        if noted.1 > NOTES {
            return false;
        }
    }
    let by = Caller::inside().by();
    let draft = match change {
        InsideChange::ServiceDefined { service, argv, arguments_left_out } => {
            let (argv, more) = execs::event_argv(&argv);
            let left_out = arguments_left_out.saturating_add(more);
            let body = json!({ "service": service, "argv": argv, "arguments_left_out": left_out, "by": by });
            Draft::new("service.define", body)
        }
        InsideChange::ServiceAsked { service, verb } => {
            let kind = match verb {
                ServiceVerb::Start => "service.start",
                ServiceVerb::Stop => "service.stop",
                ServiceVerb::Restart => "service.restart",
            };
            Draft::new(kind, json!({ "service": service, "by": by }))
        }
        InsideChange::ServiceRemoved { service } => {
            Draft::new("service.remove", json!({ "service": service, "by": by }))
        }
        InsideChange::HoldTaken { until } => Draft::new("hold.taken", json!({ "until": until, "by": by })),
        InsideChange::HoldReleased => Draft::new("hold.released", json!({ "by": by })),
    };
    if let Err(error) = daemon.store.event_append(Some(handle.id), &draft).await {
        tracing::warn!(bay = %handle.name, %error, "a change from inside could not be written down");
    }
    true
}
