//! Execs: started by the guest, recorded by the daemon before they start and after they end.
//!
//! ```text
//!  row + event ──► guest starts it ──► running ──► the guest's event, its status on request, or its last answer ──► ended
//!                       │ refuses                  │ the guest that would have seen its end is gone: "stopped" or "lost"
//!                       ▼                          ▼
//!                     ended                       ended
//! ```
//!
//! Only the guest that saw an end may report it, over its connection. The bay's disk has a record of every exec too,
//! but root in the bay can write there. So the daemon never reads it to learn how an exec ended.

use std::sync::Arc;
use std::time::Duration;

use bay_store::{Draft, ExecRow, Findings, Inserted};
use bay_types::bay::State;
use bay_types::event;
use bay_types::event::exec::ExecFiles;
use bay_types::event::{EventBody, ExecEvent, Recorded as _};
use bay_types::exec::{
    EndReason, ExecEnd, ExecSpec, ExecStatus, ExecView, Exit, LimitHit, Reporter, SignalRequest, Signalled,
    duration_s,
};
use bay_types::frame::Frame;
use bay_types::guest::{ExecEnded, ShutdownReport};
use bay_types::output::MAX_OUTPUT_HASHES;
use bay_types::principal::Principal;
use bay_types::timeline::FileChanges;
use bay_types::trace::{TRACEPARENT_VARIABLE, Traceparent};
use bay_types::usage::ExecCost;
use bay_types::{Action, CoreError, ErrorCode, ExecId, Hint, InputId};
use bytes::Bytes;
use http::Method;

use crate::channel::{ANSWER_WITHIN, FrameStream, new_guest};
use crate::daemon::Daemon;
use crate::registry::{BayHandle, Starting};
use crate::verbs::blame;

pub mod verbs;

/// Ended execs are deleted with their output when so many newer ones exist, though not at once: see
/// [`PRUNE_EVERY`].
pub(super) const KEPT: u32 = 1000;
/// After so many ends the daemon deletes old ones. Numbers of execs would not do: with many at once they end in another
/// order, and those that end last would stay.
const PRUNE_EVERY: u64 = 64;
/// How long one request about an open exec may take, and all of them together if a caller waits for the answers.
const REFRESH_WITHIN: Duration = Duration::from_secs(3);
/// For so long after a start without an answer, the guest may still start the exec. Until then, an exec that the
/// guest does not know is not lost.
const UNSURE_FOR: Duration = Duration::from_secs(60);
/// How long a client that follows an exec waits for the record of its end after the bay stopped.
const END_WITHIN: Duration = Duration::from_secs(10);
/// The most bytes of a command line in an event.
const EVENT_ARGV_BYTES: usize = 4096;

/// The exit of an exec whose end nobody saw.
fn lost_exit(reason: EndReason) -> Exit {
    Exit { reason, code: None, signal: None }
}

/// The exit code that a shell gives a command that could not be run or was not found.
fn not_started(error: &CoreError) -> Exit {
    let code = match error.code {
        ErrorCode::CommandNotFound => error.code.exit_code(),
        _ => ErrorCode::ExecStart.exit_code(),
    };
    Exit { reason: EndReason::Exited, code: Some(i32::from(code)), signal: None }
}

fn path(id: ExecId, rest: &str) -> String {
    format!("/v1/execs/{id}{rest}")
}

/// As much of a command as an event holds, and how many arguments are left out.
pub(super) fn event_argv(argv: &[String]) -> (Vec<String>, usize) {
    let mut left = EVENT_ARGV_BYTES;
    let kept: Vec<String> = argv
        .iter()
        .map_while(|argument| {
            left = left.checked_sub(argument.len())?;
            Some(argument.clone())
        })
        .collect();
    let left_out = argv.len() - kept.len();
    (kept, left_out)
}

fn started_event(spec: &ExecSpec, caller: Principal) -> Draft {
    let (argv, left_out) = event_argv(&spec.argv);
    Draft::of(event::exec::ExecStart {
        exec: spec.id.into(),
        // The store adds it.
        number: None,
        argv,
        arguments_left_out: left_out,
        user: spec.user.clone(),
        tty: spec.tty.is_some(),
        tool_call: spec.tool_call.clone(),
        by: caller.by(),
    })
}

fn ended_event(id: ExecId, exit: Exit, end: Option<&ExecEnd>, by: Reporter, found: Findings<'_>) -> Draft {
    Draft::of(event::exec::ExecEnd {
        exec: id.into(),
        // The store adds it from the row.
        number: None,
        tty: None,
        exit: exit.into(),
        reported_by: Some(by),
        duration_s: None,
        usage: end.map(|end| end.usage.bounded()),
        output_bytes: end.map(|end| end.output_bytes),
        output_hashes: end.and_then(|end| end.output_hashes.clone()),
        limits_hit: found.limits_hit.to_vec(),
        blame: found.blame.to_vec(),
    })
}

/// An error if the bay has no running guest.
pub(crate) fn must_run(handle: &BayHandle) -> Result<(), CoreError> {
    let row = handle.row();
    let name = &handle.name;
    let hint = match row.state {
        State::Running => return Ok(()),
        State::Paused => Hint::new("{} resumes it", [Action::ResumeBay(name.into())]),
        State::Stopped | State::Failed => Hint::new("{} starts it", [Action::StartBay(name.into())]),
        State::Deleting => Hint::new("{} makes a new one", [Action::MakeBay]),
        State::Creating | State::Starting | State::Stopping => "repeat the command in a moment".into(),
    };
    Err(CoreError::new(
        ErrorCode::BayState,
        format!("the bay {name} is {}, not running: {}", row.state, row.reason),
        hint,
    ))
}

/// Records an exec and starts it without a client attached. A repeated request with the same id is for the same
/// exec.
pub(super) async fn start(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    spec: &ExecSpec,
    parent: Option<Traceparent>,
    caller: Principal,
) -> Result<ExecView, CoreError> {
    spec.check()?;
    if let Some(known) = known(daemon, handle, spec).await? {
        return Ok(known);
    }
    must_run(handle)?;
    let starting = handle.exec_starting(spec.id);
    let row = insert(daemon, handle, spec, parent, caller).await?;
    if row.ended_at.is_some() {
        return Ok(row.view());
    }
    let body = body(spec, &row)?;
    let answer = handle.guest.bytes(Method::PUT, &path(spec.id, ""), body, ANSWER_WITHIN).await;
    match answer {
        Ok(_) => {
            handle.exec_runs();
            Ok(row.view())
        }
        Err(error) => Err(refused(daemon, handle, starting, spec, error).await),
    }
}

/// Records an exec, starts it and returns the stream of its frames, with one request to the guest.
pub(super) async fn start_attached(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    spec: &ExecSpec,
    input: Option<InputId>,
    parent: Option<Traceparent>,
    caller: Principal,
) -> Result<FrameStream, CoreError> {
    spec.check()?;
    must_run(handle)?;
    let starting = handle.exec_starting(spec.id);
    let row = insert(daemon, handle, spec, parent, caller).await?;
    // An exec that is over is only read again: with a body, the guest would start it again.
    let body = if row.ended_at.is_some() { Bytes::new() } else { body(spec, &row)? };
    match handle.guest.upgrade(&path(spec.id, "/attach?since=0"), body, input).await {
        Ok(stream) => {
            handle.exec_runs();
            Ok(stream)
        }
        Err(error) => Err(refused(daemon, handle, starting, spec, error).await),
    }
}

/// The stream of an existing exec, from a byte of its output on.
pub(super) async fn attach(
    daemon: &Daemon,
    handle: &BayHandle,
    exec: &str,
    since: u64,
    input: Option<InputId>,
) -> Result<FrameStream, CoreError> {
    let row = find(daemon, handle, exec).await?;
    must_run(handle)?;
    handle.guest.upgrade(&path(row.id, &format!("/attach?since={since}")), Bytes::new(), input).await
}

/// If the bay does not run, an exec that is over is answered from the store alone.
async fn known(daemon: &Daemon, handle: &BayHandle, spec: &ExecSpec) -> Result<Option<ExecView>, CoreError> {
    if handle.row().state == State::Running {
        return Ok(None);
    }
    let row = daemon.store.exec_get(handle.id, spec.id).await.map_err(|e| e.to_api())?;
    let Some(row) = row.filter(|row| row.ended_at.is_some()) else { return Ok(None) };
    let mut same = spec.clone();
    same.env.clear();
    if same != row.spec {
        return Err(bay_store::StoreError::ExecConflict(spec.id).to_api());
    }
    Ok(Some(row.view()))
}

/// The request to the guest: the command as it was requested, in the recorded trace. A repeated request is therefore
/// the same request.
fn body(spec: &ExecSpec, row: &ExecRow) -> Result<Bytes, CoreError> {
    let bytes = match in_trace(spec, row) {
        Some(traced) => serde_json::to_vec(&traced),
        None => serde_json::to_vec(spec),
    };
    bytes.map(Bytes::from).map_err(|e| CoreError::internal(&e))
}

/// The spec with the trace in its environment; `None` if the caller set one, or if there is no room for it.
fn in_trace(spec: &ExecSpec, row: &ExecRow) -> Option<ExecSpec> {
    let inside = row.trace?.inside()?;
    if spec.env.iter().any(|(name, _)| name == TRACEPARENT_VARIABLE) {
        return None;
    }
    let mut traced = spec.clone();
    traced.env.push((TRACEPARENT_VARIABLE.to_owned(), inside.to_string()));
    traced.check().is_ok().then_some(traced)
}

/// Notes the bay's counters while the guest starts the exec. Nothing waits for this: a command hardly reaches a
/// limit sooner.
fn note_beginning(daemon: &Arc<Daemon>, handle: &Arc<BayHandle>, id: ExecId) {
    daemon.changes.exec_begins(id);
    let (daemon, handle) = (Arc::clone(daemon), Arc::clone(handle));
    tokio::spawn(async move {
        handle.exec_began(id, handle.backend.limit_events(handle.id));
        if let Some(pool) = daemon.pool.get() {
            daemon.changes.exec_began(pool, handle.id, id);
        }
    });
}

/// Limits of the bay that were reached while an exec ran, by the exec or by another process. For an exec that
/// succeeded, only the guest's report of its output counts.
fn limits_hit(handle: &BayHandle, id: ExecId, exit: Exit, end: Option<&ExecEnd>) -> Vec<LimitHit> {
    let mut hit = Vec::new();
    let began = handle.exec_beginning(id).filter(|_| exit.code != Some(0));
    if let Some(began) = began {
        let now = handle.exec_last(id).unwrap_or_else(|| handle.backend.limit_events(handle.id));
        hit.extend((now.oom_kills > began.oom_kills).then_some(LimitHit::Memory));
        hit.extend((now.forks_refused > began.forks_refused).then_some(LimitHit::Pids));
    }
    hit.extend(end.is_some_and(|end| end.refused_bytes > 0).then_some(LimitHit::Disk));
    hit
}

async fn insert(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    spec: &ExecSpec,
    parent: Option<Traceparent>,
    caller: Principal,
) -> Result<ExecRow, CoreError> {
    let trace = daemon.telemetry.place(parent);
    let inserted = daemon
        .store
        .exec_insert(handle.id, spec, trace, &started_event(spec, caller))
        .await
        .map_err(|e| e.to_api())?;
    match inserted {
        Inserted::New(row) => {
            daemon.telemetry.counters.execs_started.add(1);
            handle.exec_opened(row.id);
            note_beginning(daemon, handle, row.id);
            Ok(row)
        }
        Inserted::Known(row) => Ok(row),
    }
}

/// Handles a guest's refusal to start a command. If the guest names a reason why the command cannot start, the exec
/// is over. After any other error, or none, the command may have started: the exec stays open, and a later request to
/// the guest decides. Root in the bay can cause errors in the guest after a command has begun, and otherwise the
/// record would say that it never ran.
async fn refused(
    daemon: &Arc<Daemon>,
    handle: &Arc<BayHandle>,
    starting: Starting,
    spec: &ExecSpec,
    mut error: CoreError,
) -> CoreError {
    if error.code == ErrorCode::CommandNotFound
        && let Some(program) = spec.argv.first()
        && let Some(hint) = blame::advice(daemon, handle, program).await
    {
        error.hint = hint;
    }
    match error.code {
        ErrorCode::GuestUnreachable | ErrorCode::Interrupted | ErrorCode::Internal => {
            // The reconciler finds out why the guest does not answer.
            handle.wake.notify_one();
            tokio::spawn(recheck_later(Arc::clone(daemon), Arc::clone(handle), starting, UNSURE_FOR));
        }
        ErrorCode::ExecConflict => {}
        _ => drop(record(daemon, handle, starting.id, not_started(&error), None, Reporter::Guest).await),
    }
    error
}

/// Keeps the mark of a start without an answer for `wait`, then asks the guest.
pub(crate) async fn recheck_later(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    starting: Starting,
    wait: Duration,
) {
    tokio::time::sleep(wait).await;
    let id = starting.id;
    drop(starting);
    if handle.exec_is_open(id) && must_run(&handle).is_ok() {
        let _ = refresh(&daemon, &handle, id).await;
    }
}

/// Records the end of an exec.
async fn record(
    daemon: &Daemon,
    handle: &BayHandle,
    id: ExecId,
    exit: Exit,
    mut end: Option<ExecEnd>,
    by: Reporter,
) -> Option<ExecRow> {
    if let Some(hashes) = end.as_mut().and_then(|end| end.output_hashes.as_mut()) {
        hashes.truncate(MAX_OUTPUT_HASHES);
    }
    let hit = limits_hit(handle, id, exit, end.as_ref());
    let blame = blame::of_exec(daemon, handle, id, exit, &hit).await;
    let found = Findings { limits_hit: &hit, blame: &blame };
    let event = ended_event(id, exit, end.as_ref(), by, found);
    match daemon.store.exec_end(handle.id, id, exit, end.as_ref(), found, &event).await {
        Ok(row) => {
            handle.exec_ended(id);
            if daemon.approvals.allows_exec(handle.id, id) {
                // Streams that were allowed for this exec end with it.
                daemon.policies.touch(handle.id);
            }
            if let Some(row) = &row {
                daemon.telemetry.exec_over(&handle.name, row, daemon.host.cpus);
                daemon.changes.exec_ended(row);
            }
            row
        }
        // The exec stays open, and the next refresh tries again.
        Err(error) => {
            tracing::error!(bay = %handle.name, exec = %id, %error, "the end of an exec could not be recorded");
            None
        }
    }
}

/// Handles the guest's event that an exec ended. A guest of an earlier release must be asked for the details.
pub(crate) async fn ended(daemon: &Daemon, handle: &BayHandle, id: ExecId, exit: Exit, end: Option<ExecEnd>) {
    let end = match end {
        Some(end) => Some(end),
        None => guest_status(handle, id).await.ok().and_then(|status| status.end()),
    };
    record(daemon, handle, id, exit, end, Reporter::Guest).await;
}

/// Records the execs in the last answer of a guest that was asked to shut down.
pub(crate) async fn ended_with_bay(daemon: &Daemon, handle: &BayHandle, answer: &[u8]) {
    // A guest of an earlier release returns no report.
    let Ok(report) = serde_json::from_slice::<ShutdownReport>(answer) else { return };
    for ExecEnded { id, exit, end } in report.ended {
        if handle.exec_is_open(id) {
            record(daemon, handle, id, exit, Some(end), Reporter::Guest).await;
        }
    }
}

/// After some ends, deletes the oldest ended execs and their output.
pub(crate) async fn prune(daemon: &Daemon, handle: &BayHandle) {
    if !handle.has_ends(PRUNE_EVERY) {
        return;
    }
    match daemon.store.exec_prune(handle.id, KEPT).await {
        Ok(old) => {
            for id in old {
                let gone =
                    handle.guest.bytes(Method::DELETE, &path(id, ""), Bytes::new(), ANSWER_WITHIN).await;
                if let Err(error) = gone {
                    tracing::debug!(bay = %handle.name, exec = %id, message = %error.message, "old output could not be deleted");
                }
            }
        }
        Err(error) => tracing::warn!(bay = %handle.name, %error, "old execs could not be deleted"),
    }
}

async fn guest_status(handle: &BayHandle, id: ExecId) -> Result<ExecStatus, CoreError> {
    let status: ExecStatus =
        handle.guest.json(Method::GET, &path(id, ""), Bytes::new(), REFRESH_WITHIN).await?;
    if status.spec.id == id {
        return Ok(status);
    }
    Err(CoreError::new(ErrorCode::GuestUnreachable, "the guest answered for another exec", new_guest()))
}

/// Asks the guest about open execs and records those that ended, for a caller that waits: limited in time.
pub(crate) async fn refresh_open(daemon: &Daemon, handle: &BayHandle) {
    let _ = tokio::time::timeout(REFRESH_WITHIN, refresh_all(daemon, handle)).await;
}

/// Asks the guest about every open exec whose start is answered: no event reports what ended while the daemon was
/// not connected.
pub(crate) async fn refresh_all(daemon: &Daemon, handle: &BayHandle) {
    let Ok(open) = daemon.store.exec_list_open(handle.id).await else { return };
    // Read after the list and before any request. If an exec is in the list and not in here, the guest has answered
    // its start. If the guest does not know it, it is lost.
    let starting = handle.execs_starting();
    for row in open.into_iter().filter(|row| !starting.contains(&row.id)) {
        let _ = refresh(daemon, handle, row.id).await;
    }
}

/// The last frame of the stored output for a client that follows an exec, if the guest could not send it: its exit, or
/// why it cannot be followed.
pub(crate) async fn end_of(daemon: &Daemon, handle: &BayHandle, id: ExecId) -> Result<Frame, CoreError> {
    match must_run(handle) {
        // The exec may have become lost just now.
        Ok(()) if !handle.execs_starting().contains(&id) => drop(refresh(daemon, handle, id).await),
        Ok(()) => {}
        // The exec is paused with its bay, or about to continue. Its end is not near.
        Err(_) if matches!(handle.row().state, State::Paused | State::Starting) => {}
        Err(_) => handle.exec_is_over(id, END_WITHIN).await,
    }
    let row = daemon.store.exec_get(handle.id, id).await.map_err(|e| e.to_api())?;
    if let Some(exit) = row.and_then(|row| row.exit) {
        return Ok(Frame::Exit(exit, None));
    }
    // If the bay is about to run or to stop, the client reconnects. In any other state, waiting changes nothing.
    let passing =
        matches!(handle.row().state, State::Running | State::Creating | State::Starting | State::Stopping);
    Err(match must_run(handle) {
        Err(error) if !passing => error,
        _ => CoreError::new(
            ErrorCode::Interrupted,
            format!(
                "the output of this exec in the bay {} cannot be followed right now: the bay's guest does not answer",
                handle.name
            ),
            "repeat the command in a moment",
        ),
    })
}

/// Asks the guest about one open exec, and records its end if there is one. If the guest did not see the end itself,
/// it has it from the bay's disk: the guest that ran the exec died without a report.
async fn refresh(daemon: &Daemon, handle: &BayHandle, id: ExecId) -> Option<ExecStatus> {
    match guest_status(handle, id).await {
        Ok(status) => {
            match status.exit {
                Some(exit) if status.witnessed => {
                    record(daemon, handle, id, exit, status.end(), Reporter::Guest).await;
                }
                Some(_) => {
                    record(daemon, handle, id, lost_exit(EndReason::Lost), None, Reporter::Daemon).await;
                }
                None => {}
            }
            Some(status)
        }
        Err(error) if error.code == ErrorCode::ExecNotFound => {
            record(daemon, handle, id, lost_exit(EndReason::Lost), None, Reporter::Daemon).await;
            None
        }
        Err(_) => None,
    }
}

/// Ends all open execs for this reason, because no guest is left that could report their ends.
pub(crate) async fn close_all(daemon: &Daemon, handle: &BayHandle, why: EndReason) {
    let open = match daemon.store.exec_list_open(handle.id).await {
        Ok(open) => open,
        Err(error) => {
            tracing::error!(bay = %handle.name, %error, "open execs could not be closed");
            return;
        }
    };
    for row in open {
        record(daemon, handle, row.id, lost_exit(why), None, Reporter::Daemon).await;
    }
}

/// Finds an exec by its id, its number, or the end of its id.
pub(super) async fn find(daemon: &Daemon, handle: &BayHandle, given: &str) -> Result<ExecRow, CoreError> {
    let missing = |message: String| {
        CoreError::new(
            ErrorCode::ExecNotFound,
            message,
            Hint::new("{} lists the execs", [Action::ListExecs((&handle.name).into())]),
        )
    };
    let shown: String = given.chars().take(64).collect();
    let store = &daemon.store;
    if let Ok(id) = given.parse::<ExecId>() {
        let found = store.exec_get(handle.id, id).await.map_err(|e| e.to_api())?;
        return found.ok_or_else(|| missing(format!("the bay {} has no exec {id}", handle.name)));
    }
    if let Ok(number) = given.parse::<u64>()
        && let Some(found) = store.exec_by_number(handle.id, number).await.map_err(|e| e.to_api())?
    {
        return Ok(found);
    }
    let is_suffix =
        (4..=32).contains(&given.len()) && given.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if !is_suffix {
        return Err(missing(format!("the bay {} has no exec {shown:?}", handle.name)));
    }
    let mut found = store.exec_by_suffix(handle.id, given).await.map_err(|e| e.to_api())?;
    match (found.pop(), found.is_empty()) {
        (Some(row), true) => Ok(row),
        (Some(_), false) => Err(missing(format!("more than one exec of {} ends in {shown:?}", handle.name))),
        (None, _) => Err(missing(format!("the bay {} has no exec {shown:?}", handle.name))),
    }
}

/// One exec as it is now.
pub(super) async fn show(daemon: &Daemon, handle: &BayHandle, exec: &str) -> Result<ExecView, CoreError> {
    let row = find(daemon, handle, exec).await?;
    let starting = handle.execs_starting().contains(&row.id);
    if row.ended_at.is_some() || starting || handle.row().state != State::Running {
        return Ok(ExecView { files: files(daemon, &row).await?, ..row.view() });
    }
    let status = refresh(daemon, handle, row.id).await;
    let row = daemon.store.exec_get(handle.id, row.id).await.map_err(|e| e.to_api())?.unwrap_or(row);
    let mut view = row.view();
    if let Some(status) = status.filter(|_| row.ended_at.is_none()) {
        view.usage = status.usage.bounded();
        view.output_bytes = status.output_bytes;
        let so_far = duration_s(row.started_at, jiff::Timestamp::now());
        view.cost = ExecCost::of(&view.usage, Some(so_far));
    }
    Ok(view)
}

/// What the record says of the files that changed while an exec ran.
async fn files(daemon: &Daemon, row: &ExecRow) -> Result<Option<FileChanges>, CoreError> {
    let event = daemon.store.event_of_exec(row.bay, ExecFiles::KIND, row.id).await.map_err(|e| e.to_api())?;
    Ok(match event.map(|event| event.read()) {
        Some(EventBody::Exec(ExecEvent::Files(files))) => Some(FileChanges {
            created: files.created,
            changed: files.changed,
            directories: files.directories,
            git: files.git.unwrap_or(0),
            ignored: files.ignored.unwrap_or(0),
            at_least: files.at_least,
            names: files.names,
        }),
        _ => None,
    })
}

pub(super) async fn list(daemon: &Daemon, handle: &BayHandle) -> Result<Vec<ExecView>, CoreError> {
    if handle.execs_open() > 0 && handle.row().state == State::Running {
        refresh_open(daemon, handle).await;
    }
    let rows = daemon.store.exec_list(handle.id).await.map_err(|e| e.to_api())?;
    Ok(rows.iter().map(ExecRow::view).collect())
}

pub(super) async fn signal(
    daemon: &Daemon,
    handle: &BayHandle,
    exec: &str,
    signal: SignalRequest,
    caller: Principal,
) -> Result<Signalled, CoreError> {
    if !(1..=64).contains(&signal.signal) {
        return Err(CoreError::new(
            ErrorCode::InvalidInput,
            format!("{} is not a signal", signal.signal),
            "`kill -l` lists the signals",
        ));
    }
    let row = find(daemon, handle, exec).await?;
    let over = row.ended_at.is_some();
    // Processes that an ended exec left running are in a group of their own, and end with the bay.
    let left = signal.tree && row.usage.processes_left != Some(0) && must_run(handle).is_ok();
    if over && !left {
        return Ok(Signalled::default());
    }
    must_run(handle)?;
    let event = Draft::of(event::exec::ExecSignal {
        exec: row.id.into(),
        number: row.number,
        signal: signal.signal,
        tree: signal.tree,
        by: caller.by(),
    });
    daemon.store.event_append(Some(handle.id), &event).await.map_err(|e| e.to_api())?;
    let body = serde_json::to_vec(&signal).map_err(|e| CoreError::internal(&e))?;
    let answer: Result<Signalled, CoreError> =
        handle.guest.json(Method::POST, &path(row.id, "/signal"), body.into(), ANSWER_WITHIN).await;
    match answer {
        // The exec was deleted with everything it left, or it ran under an earlier guest, whose processes have all
        // ended.
        Err(error) if over && error.code == ErrorCode::ExecNotFound => Ok(Signalled::default()),
        answer => answer,
    }
}
