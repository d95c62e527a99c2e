//! What the processes of a bay ask of the daemon through their guest. They may do to their own bay what costs nobody else
//! anything: look at its checkpoints and at what may leave it, make some, restore one, see what has changed since. The
//! daemon also decides by the rules on commands whether a bay may define a service.
//!
//! The guest is hostile and can ask as often as it likes. The daemon answers one question of a bay at a time, with a
//! [`PAUSE`] between two changes, works for it no more than its share of a processor, and changes nothing that does not fit
//! into its share of the record (both in [`crate::wishes`]). What processes change with the guest alone is only written down here: [`NOTES`] within
//! [`NOTES_WITHIN`]; the rest is counted, and the count is one event.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bay_diff::Told;
use bay_store::Draft;
use bay_types::checkpoint::{CheckpointCreate, CheckpointKind, CheckpointView};
use bay_types::diff::{DiffAsk, DiffLine};
use bay_types::event::inside::{HoldReleased, HoldTaken, InsideLeftOut};
use bay_types::event::service::{ServiceDefine, ServiceRemove};
use bay_types::inside::{Answered, Ask, InsideChange, InsideDiff};
use bay_types::principal::{INSIDE, Principal};
use bay_types::{Action, CheckpointName, CoreError, ErrorCode};
use http::Method;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::diff::Found;
use super::{checkpoints, execs, policy, services};
use crate::authorize::Verb;
use crate::channel::ANSWER_WITHIN;
use crate::daemon::Daemon;
use crate::registry::BayHandle;
use crate::wishes::record_share::used_up;
use crate::wishes::{Noted, cost};

/// Between two changes of one bay that it asked for itself.
const PAUSE: Duration = Duration::from_millis(500);
/// What a process has, after it was told that the bay goes back, to say so.
const READ_WITHIN: Duration = Duration::from_millis(300);
/// Changes of a bay's own that are written down within [`NOTES_WITHIN`]; those beyond are added up.
const NOTES: u32 = 60;
const NOTES_WITHIN: Duration = Duration::from_secs(60);
/// How long the number of those beyond is added up before it is an event.
const LEFT_OUT_WITHIN: Duration = Duration::from_secs(10);
/// How much a comparison may tell a bay: what its guest takes as one answer.
const MAX_DIFF_BYTES: usize = 4 << 20;
/// How long a comparison for a bay may take.
const DIFF_WITHIN: Duration = Duration::from_secs(60);
/// Comparisons for bays at once. Those of operators have turns that no bay can take.
static DIFFS: Semaphore = Semaphore::const_new(super::diff::MAX_DIFFS / 2);
/// Checkpoints made from inside that a bay may have. An operator's own have room besides.
const MAX_FROM_INSIDE: usize = 200;

/// Takes a wish up, unless too many wait already. Says whether it is.
pub(crate) fn heard(daemon: &Arc<Daemon>, handle: &Arc<BayHandle>, id: u64, ask: Ask) -> bool {
    let Ok(room) = Arc::clone(&handle.wishes.room).try_acquire_owned() else { return refuse(handle, id) };
    let (daemon, handle) = (Arc::clone(daemon), Arc::clone(handle));
    tokio::spawn(async move {
        let _room = room;
        let mut served = handle.wishes.served.lock().await;
        let changes = matches!(ask, Ask::Checkpoint { .. } | Ask::Restore { .. });
        // A service that nobody has to be asked about costs no more than a look. Questions have bounds of their own.
        let looks = matches!(ask, Ask::Checkpoints | Ask::Egress | Ask::Service { .. });
        let wait = served.share.wait(Instant::now());
        if let Some(last) = served.last
            // Refusals have to wait too: otherwise a loop of them would cost what it was to save.
            && (!looks || !wait.is_zero())
        {
            tokio::time::sleep_until(last + PAUSE).await;
        }
        let worked = if !wait.is_zero() {
            answer(&handle, id, Err(over_its_share(wait))).await;
            Duration::ZERO
        } else if changes && let Err(error) = has_record_room(&daemon, &handle).await {
            answer(&handle, id, Err(error)).await;
            cost::LOOK
        } else if let Ask::Restore { checkpoint } = ask {
            restore(&daemon, &handle, id, checkpoint).await;
            cost::RESTORE
        } else {
            let (outcome, worked) = grant(&daemon, &handle, ask).await;
            answer(&handle, id, outcome).await;
            worked
        };
        let now = Instant::now();
        served.share.charge(now, worked);
        served.last = Some(now);
    });
    true
}

/// Refuses what a process of the bay causes and the record has no room for.
pub(crate) async fn has_record_room(daemon: &Daemon, handle: &BayHandle) -> Result<(), CoreError> {
    let has_room = handle.wishes.record.has_room(&daemon.store, handle.id).await;
    if has_room.map_err(|e| e.to_api())? { Ok(()) } else { Err(used_up()) }
}

fn over_its_share(wait: Duration) -> CoreError {
    // A part of a second is rounded up: who comes then is not told to come again.
    let seconds = wait.as_secs() + 1;
    CoreError::new(
        ErrorCode::Interrupted,
        "the daemon has worked for this bay as long as it may for one bay",
        format!("try again in {seconds} s"),
    )
}

fn refuse(handle: &Arc<BayHandle>, id: u64) -> bool {
    let handle = Arc::clone(handle);
    tokio::spawn(async move {
        let error = CoreError::new(
            ErrorCode::Interrupted,
            "the bay asks faster than it is answered",
            "try again in some seconds",
        );
        answer(&handle, id, Err(error)).await;
    });
    false
}

async fn answer(handle: &BayHandle, id: u64, outcome: Result<Value, CoreError>) {
    let answered = match outcome {
        Ok(value) => Answered { value, error: None },
        Err(error) => Answered { value: Value::Null, error: Some(error.worded(words)) },
    };
    let body = serde_json::to_vec(&answered).unwrap_or_default();
    // After a restore there is nobody left who asked.
    let _ = handle.guest.bytes(Method::POST, &format!("/v1/asks/{id}"), body.into(), ANSWER_WITHIN).await;
}

/// What a process of the bay can do itself. Of everything else it can only hear from the operator.
fn words(action: &Action) -> Option<String> {
    let command = match action {
        Action::ListCheckpoints(_) => "`bay-ctl checkpoints`",
        Action::ListServices(_) => "`bay-ctl services ls`",
        _ => return None,
    };
    Some(command.to_owned())
}

/// Whoever asks for it ends with it. So it is answered as soon as nothing can be wrong with it any more, and done when the
/// answer had time to be read.
async fn restore(daemon: &Arc<Daemon>, handle: &Arc<BayHandle>, id: u64, checkpoint: CheckpointName) {
    let (who, bay) = (Principal::bay(handle.id), handle.id.to_string());
    let tell = |before: Result<CheckpointView, CoreError>| async {
        let kept = before.is_ok();
        let before =
            before.and_then(|before| serde_json::to_value(before).map_err(|e| CoreError::internal(&e)));
        answer(handle, id, before).await;
        if kept {
            tokio::time::sleep(READ_WITHIN).await;
        }
    };
    let restored = checkpoints::restore_and_tell_first(daemon, &who, &bay, checkpoint, tell).await;
    if let Err(error) = restored {
        tracing::warn!(bay = %handle.name, message = %error.message, "a restore asked for inside failed");
    }
}

/// The answer to what is no restore, and what it cost.
async fn grant(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    ask: Ask,
) -> (Result<Value, CoreError>, Duration) {
    fn told(value: impl serde::Serialize) -> Result<Value, CoreError> {
        serde_json::to_value(value).map_err(|e| CoreError::internal(&e))
    }
    let (who, bay) = (Principal::bay(handle.id), handle.id.to_string());
    match ask {
        Ask::Egress => (policy::verbs::inside_rules(daemon, &who, &bay).await.and_then(told), cost::LOOK),
        Ask::Checkpoints => (checkpoints::list(daemon, &who, &bay).await.and_then(told), cost::LOOK),
        Ask::Checkpoint { message } => {
            (checkpoint(daemon, &who, &bay, message).await.and_then(told), cost::SNAPSHOT)
        }
        Ask::Diff { from, to, part, patch } => {
            let (found, worked) = diff(daemon, &who, &bay, &DiffAsk { from, to, part, patch }).await;
            // The bay as it is now is compared by a snapshot.
            (found.and_then(told), cost::SNAPSHOT + worked)
        }
        Ask::Service { service, spec } => {
            let decided = services::propose(daemon, &who, &bay, &service, &spec).await;
            (decided.map(|()| Value::Null), cost::LOOK)
        }
        // It has an answer of its own.
        Ask::Restore { .. } => (Ok(Value::Null), Duration::ZERO),
    }
}

async fn checkpoint(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    message: Option<String>,
) -> Result<CheckpointView, CoreError> {
    let all = checkpoints::list(daemon, who, bay).await?;
    if all.iter().filter(|one| one.by == who.by()).count() >= MAX_FROM_INSIDE {
        return Err(CoreError::new(
            ErrorCode::NotEnough,
            format!("{MAX_FROM_INSIDE} checkpoints were made from inside the bay already"),
            "the operator can remove some",
        ));
    }
    let create = CheckpointCreate { message, kind: Some(CheckpointKind::Files) };
    checkpoints::create(daemon, who, bay, create).await
}

/// What has changed in the bay, as `bay diff` shows it, up to a bound; and the processor time that it took.
async fn diff(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    ask: &DiffAsk,
) -> (Result<InsideDiff, CoreError>, Duration) {
    let worked = Arc::new(std::sync::Mutex::new(Duration::ZERO));
    let found = compare(daemon, who, bay, ask, Arc::clone(&worked)).await;
    let worked = *worked.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    (found, worked)
}

async fn compare(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    ask: &DiffAsk,
    worked: Arc<std::sync::Mutex<Duration>>,
) -> Result<InsideDiff, CoreError> {
    let late = || {
        CoreError::new(
            ErrorCode::Interrupted,
            format!("the comparison took longer than {} s", DIFF_WITHIN.as_secs()),
            "compare with a later checkpoint, or ask the operator of the bay to compare",
        )
    };
    let until = Instant::now() + DIFF_WITHIN;
    let turn = tokio::time::timeout_at(until, DIFFS.acquire()).await;
    let Ok(Ok(_turn)) = turn else { return Err(late()) };
    let comparison = super::diff::prepare(daemon, who, bay, ask).await?;
    let (part, patch) = (ask.part, ask.patch);
    crate::background::blocking(move || {
        let _clock = ThreadClock::begin(worked);
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

/// The processor time of one thread from here to the end of its scope.
struct ThreadClock {
    began: Duration,
    spent: Arc<std::sync::Mutex<Duration>>,
}

impl ThreadClock {
    fn begin(spent: Arc<std::sync::Mutex<Duration>>) -> Self {
        Self { began: Self::now(), spent }
    }

    fn now() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::try_from(time).unwrap_or_default()
    }
}

impl Drop for ThreadClock {
    fn drop(&mut self) {
        let spent = Self::now().saturating_sub(self.began);
        *self.spent.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = spent;
    }
}

fn going_on(until: Instant) -> ControlFlow<()> {
    if Instant::now() < until { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

/// Writes down what the bay's own processes changed. Returns whether that was worth hearing.
pub(crate) async fn changed(daemon: &Arc<Daemon>, handle: &Arc<BayHandle>, change: InsideChange) -> bool {
    let who = Principal::bay(handle.id);
    if daemon.permit(&who, Verb::ChangeReport).is_err() {
        return false;
    }
    let mut noted = handle.wishes.noted.lock().await;
    let now = Instant::now();
    let since = *noted.since.get_or_insert(now);
    if now >= since + NOTES_WITHIN {
        (noted.since, noted.written) = (Some(now), 0);
    }
    if noted.written >= NOTES {
        noted.left_out = noted.left_out.saturating_add(1);
        if noted.left_out == 1 {
            let (daemon, handle) = (Arc::clone(daemon), Arc::clone(handle));
            tokio::spawn(async move {
                tokio::time::sleep(LEFT_OUT_WITHIN).await;
                tell_left_out(&daemon, &handle, &mut *handle.wishes.noted.lock().await).await;
            });
        }
        return false;
    }
    noted.written += 1;
    match handle.wishes.record.has_room(&daemon.store, handle.id).await {
        Ok(true) => noted.full = false,
        // Said once; from then on nothing of it is on record.
        Ok(false) if noted.full => return false,
        Ok(false) => {
            noted.full = true;
            write(daemon, handle, &left_out(1, Some(&used_up().message))).await;
            return false;
        }
        Err(error) => tracing::warn!(bay = %handle.name, %error, "the record could not be added up"),
    }
    write(daemon, handle, &draft(change)).await;
    true
}

/// Writes down how many changes were left out, if any were.
async fn tell_left_out(daemon: &Daemon, handle: &BayHandle, noted: &mut Noted) {
    let count = std::mem::take(&mut noted.left_out);
    if count > 0 {
        write(daemon, handle, &left_out(count, None)).await;
    }
}

async fn write(daemon: &Daemon, handle: &BayHandle, draft: &Draft) {
    if let Err(error) = daemon.store.event_append(Some(handle.id), draft).await {
        tracing::warn!(bay = %handle.name, %error, "a change from inside could not be written down");
    }
}

/// An event for changes that have none of their own.
fn left_out(count: u64, why: Option<&str>) -> Draft {
    let within_s = LEFT_OUT_WITHIN.as_secs();
    let (why, by) = (why.map(str::to_owned), INSIDE.to_owned());
    Draft::of(InsideLeftOut { count, within_s, why, by })
}

fn draft(change: InsideChange) -> Draft {
    let by = INSIDE.to_owned();
    match change {
        InsideChange::ServiceDefined { service, argv, arguments_left_out } => {
            let (argv, more) = execs::event_argv(&argv);
            let left_out = arguments_left_out.saturating_add(more);
            Draft::of(ServiceDefine {
                service: service.into(),
                argv,
                arguments_left_out: left_out,
                user: None,
                needs: None,
                restart: None,
                by,
            })
        }
        InsideChange::ServiceAsked { service, verb } => Draft::of(services::asked(service, verb, by)),
        InsideChange::ServiceRemoved { service } => Draft::of(ServiceRemove { service: service.into(), by }),
        InsideChange::HoldTaken { until } => Draft::of(HoldTaken { until, by }),
        InsideChange::HoldReleased => Draft::of(HoldReleased { by }),
    }
}
