//! Requests that the processes of a bay send to the daemon through their guest. They may do this to their own bay:
//! list its checkpoints, read its egress rules, make checkpoints, restore one, compare. The daemon also decides by
//! the rules on commands, and asks a person if they say so, whether the guest may define a service.
//!
//! The guest may be hostile and can send requests at any rate. The daemon answers one request of a bay at a time,
//! with a [`PAUSE`] before a change and before a comparison. In the long run it works for the bay no more than the
//! bay's share of a processor, and it makes no change once the bay's share of the record is used up (both in
//! [`crate::inside_requests`]). Changes that processes make with the guest alone are only recorded here: [`NOTES`]
//! within [`NOTES_WITHIN`]. The rest is counted, and the count is one event.

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
use crate::inside_requests::record_share::used_up;
use crate::inside_requests::{Noted, cost};
use crate::registry::BayHandle;

/// How long after the answer to a bay's last request the next one begins, if that is a change, a comparison, or
/// refused for the bay's share.
const PAUSE: Duration = Duration::from_millis(500);
/// After a restore was announced, how long the process that requested it has to print that.
const READ_WITHIN: Duration = Duration::from_millis(300);
/// How many changes by the bay itself are recorded singly within [`NOTES_WITHIN`]. Further ones are counted.
const NOTES: u32 = 60;
const NOTES_WITHIN: Duration = Duration::from_secs(60);
/// How long further changes are counted before the count becomes an event.
const LEFT_OUT_WITHIN: Duration = Duration::from_secs(10);
/// The most bytes of lines in a comparison for a bay. The lines after that are left out.
const MAX_DIFF_BYTES: usize = 4 << 20;
/// How long a comparison for a bay may take, its wait for a turn included.
const DIFF_WITHIN: Duration = Duration::from_secs(60);
/// How many comparisons for bays run at the same time. Operators have turns that no bay can take.
static DIFFS: Semaphore = Semaphore::const_new(super::diff::MAX_DIFFS / 2);
/// If a bay has so many checkpoints by its own processes, they can request no more. The limit for all is higher, so
/// the operator can make more.
const MAX_FROM_INSIDE: usize = 200;

/// Queues a request, unless too many wait already. Returns whether it was queued.
pub(crate) fn enqueue(daemon: &Arc<Daemon>, handle: &Arc<BayHandle>, id: u64, ask: Ask) -> bool {
    let Ok(room) = Arc::clone(&handle.inside.room).try_acquire_owned() else { return refuse(handle, id) };
    let (daemon, handle) = (Arc::clone(daemon), Arc::clone(handle));
    tokio::spawn(async move {
        let _room = room;
        let mut served = handle.inside.served.lock().await;
        let changes = matches!(ask, Ask::Checkpoint { .. } | Ask::Restore { .. });
        // A service that needs no approval costs no more than a list. Approvals have limits of their own.
        let looks = matches!(ask, Ask::Checkpoints | Ask::Egress | Ask::Service { .. });
        let wait = served.share.wait(Instant::now());
        if let Some(last) = served.last
            // Refusals must wait too: a loop of them would cost as much as the requests.
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

/// Refuses what a process of the bay causes if the record has no room for it.
pub(crate) async fn has_record_room(daemon: &Daemon, handle: &BayHandle) -> Result<(), CoreError> {
    let has_room = handle.inside.record.has_room(&daemon.store, handle.id).await;
    if has_room.map_err(|e| e.to_api())? { Ok(()) } else { Err(used_up()) }
}

fn over_its_share(wait: Duration) -> CoreError {
    // Rounded up, so that a retry after that time succeeds.
    let seconds = wait.as_secs() + 1;
    CoreError::new(
        ErrorCode::Interrupted,
        "requests from inside this bay have used up the daemon's time for one bay",
        format!("try again in {seconds} s"),
    )
}

fn refuse(handle: &Arc<BayHandle>, id: u64) -> bool {
    let handle = Arc::clone(handle);
    tokio::spawn(async move {
        let error = CoreError::new(
            ErrorCode::Interrupted,
            "requests come from inside this bay faster than they can be answered",
            "try again in a few seconds",
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
    // After a restore, the process that asked is gone.
    let _ = handle.guest.bytes(Method::POST, &format!("/v1/asks/{id}"), body.into(), ANSWER_WITHIN).await;
}

/// The commands of hints that a process of the bay can run itself. It gets no other command in a hint.
fn words(action: &Action) -> Option<String> {
    let command = match action {
        Action::ListCheckpoints(_) => "`bay-ctl checkpoints`",
        Action::ListServices(_) => "`bay-ctl services ls`",
        _ => return None,
    };
    Some(command.to_owned())
}

/// A restore ends the process that requests it. So it is answered when the bay's present files are a checkpoint,
/// and done when the process had time to read the answer. If the restore fails after that, only the log has it.
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
    let restored = checkpoints::restore_after_report(daemon, &who, &bay, checkpoint, tell).await;
    if let Err(error) = restored {
        tracing::warn!(bay = %handle.name, message = %error.message, "a restore requested from inside failed");
    }
}

/// The answer to a request other than a restore, and what it is charged.
async fn grant(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    ask: Ask,
) -> (Result<Value, CoreError>, Duration) {
    fn to_json(value: impl serde::Serialize) -> Result<Value, CoreError> {
        serde_json::to_value(value).map_err(|e| CoreError::internal(&e))
    }
    let (who, bay) = (Principal::bay(handle.id), handle.id.to_string());
    match ask {
        Ask::Egress => (policy::verbs::inside_rules(daemon, &who, &bay).await.and_then(to_json), cost::LOOK),
        Ask::Checkpoints => (checkpoints::list(daemon, &who, &bay).await.and_then(to_json), cost::LOOK),
        Ask::Checkpoint { message } => {
            (checkpoint(daemon, &who, &bay, message).await.and_then(to_json), cost::SNAPSHOT)
        }
        Ask::Diff { from, to, part, patch, ignored } => {
            let ask = DiffAsk { from, to, part, patch, ignored };
            let (found, worked) = diff(daemon, &who, &bay, &ask).await;
            // The bay's present state is compared by a snapshot.
            (found.and_then(to_json), cost::SNAPSHOT + worked)
        }
        Ask::Service { service, spec } => {
            let decided = services::propose(daemon, &who, &bay, &service, &spec).await;
            (decided.map(|()| Value::Null), cost::LOOK)
        }
        // `restore` answers it.
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
            format!(
                "the bay has {MAX_FROM_INSIDE} checkpoints that were made from inside it, the most allowed"
            ),
            "ask the operator of the bay to remove some",
        ));
    }
    let create = CheckpointCreate { message, kind: Some(CheckpointKind::Files) };
    checkpoints::create(daemon, who, bay, create).await
}

/// What changed in the bay, as `bay diff` shows it, up to a limit; and the processor time that it took.
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
                Found::Told(Told::Progress(_)) => return going_on(until),
            };
            let size = serde_json::to_vec(&line).map_or(usize::MAX, |line| line.len());
            // After something large was left out, nothing small is added: the lines are a beginning of the whole.
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

/// Records what the bay's own processes changed. Returns false if it has no event of its own: it came too fast, or
/// the bay's share of the record is used up.
pub(crate) async fn changed(daemon: &Arc<Daemon>, handle: &Arc<BayHandle>, change: InsideChange) -> bool {
    let who = Principal::bay(handle.id);
    if daemon.permit(&who, Verb::ChangeReport).is_err() {
        return false;
    }
    let mut noted = handle.inside.noted.lock().await;
    if !noted.window.admits(NOTES, NOTES_WITHIN) {
        noted.left_out = noted.left_out.saturating_add(1);
        if noted.left_out == 1 {
            let (daemon, handle) = (Arc::clone(daemon), Arc::clone(handle));
            tokio::spawn(async move {
                tokio::time::sleep(LEFT_OUT_WITHIN).await;
                record_left_out(&daemon, &handle, &mut *handle.inside.noted.lock().await).await;
            });
        }
        return false;
    }
    match handle.inside.record.has_room(&daemon.store, handle.id).await {
        Ok(true) => noted.full = false,
        // That the share is used up is recorded once. None of the bay's changes is recorded then.
        Ok(false) if noted.full => return false,
        Ok(false) => {
            noted.full = true;
            write(daemon, handle, &left_out(1, Some(&used_up().message))).await;
            return false;
        }
        Err(error) => tracing::warn!(bay = %handle.name, %error, "the size of the record could not be read"),
    }
    write(daemon, handle, &draft(change)).await;
    true
}

/// Records how many changes were left out, if any.
async fn record_left_out(daemon: &Daemon, handle: &BayHandle, noted: &mut Noted) {
    let count = std::mem::take(&mut noted.left_out);
    if count > 0 {
        write(daemon, handle, &left_out(count, None)).await;
    }
}

async fn write(daemon: &Daemon, handle: &BayHandle, draft: &Draft) {
    if let Err(error) = daemon.store.event_append(Some(handle.id), draft).await {
        tracing::warn!(bay = %handle.name, %error, "a change from inside could not be recorded");
    }
}

/// The event for changes that have none of their own.
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
