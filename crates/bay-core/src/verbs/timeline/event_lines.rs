//! An event as one line of plain text for a person.
//!
//! Commands, names and reasons come from callers and bays. They are shortened and made safe: nothing of them controls
//! a terminal.

use std::fmt::{Display, Write as _};

use bay_text::clip;
use bay_text::shell::quoted;
use bay_types::ApprovalId;
use bay_types::event::approval::ApprovalEvent;
use bay_types::event::bay::{BayCreate, BayEvent};
use bay_types::event::checkpoint::{CheckpointEvent, CheckpointMade};
use bay_types::event::exec::{ExecEnd, ExecEvent, ExecFiles, ExecRevived};
use bay_types::event::policy::{PolicyEvent, RuleCounts};
use bay_types::event::{EventBody, Field, FileEvent, ForwardEvent, InsideEvent, ServiceEvent, WorkEvent};
use bay_types::exec::{EndReason, Exit};
use bay_types::id::ExecId;
use bay_types::timeline::FileChanges;
use serde::Serialize;
use serde_json::Value;

use super::record_lines;
use super::traffic_lines::{self, Sent};
use crate::channel::plain_text;

/// The most characters of a command.
const COMMAND: usize = 120;
/// The most characters of any other text of unknown origin.
const TEXT: usize = 200;
/// The most entries of a list or a body that are named.
const ENTRIES: usize = 8;

/// A text of unknown origin, made safe to show.
pub(super) fn text(text: &str) -> String {
    clip(&plain_text(text), TEXT)
}

/// The content of a field, also if it has an unexpected shape.
pub(super) fn shown<T: Display>(field: &Field<T>) -> String {
    match field {
        Field::Is(value) => text(&value.to_string()),
        Field::Odd(Value::Null) => String::new(),
        Field::Odd(value) => short(value, TEXT),
    }
}

/// The prefix and then the text, or nothing if the text is empty.
pub(super) fn after(prefix: &str, said: &str) -> String {
    if said.is_empty() { String::new() } else { format!("{prefix}{}", text(said)) }
}

pub(super) fn after_some<T: Display>(prefix: &str, said: Option<&T>) -> String {
    said.map_or_else(String::new, |said| after(prefix, &said.to_string()))
}

pub(super) fn by(who: &str) -> String {
    after(", by ", who)
}

/// The first names, shortened.
pub(super) fn list(names: impl Iterator<Item = String>) -> String {
    short(&Value::Array(names.map(Value::String).collect()), TEXT)
}

/// `exec 3`, or `session 3` if it has a terminal.
fn exec(tty: bool, number: Option<u64>, id: &Field<ExecId>) -> String {
    let noun = if tty { "session" } else { "exec" };
    match number {
        Some(number) => format!("{noun} {number}"),
        None => format!("{noun} {}", shown(id)),
    }
}

fn command(argv: &[String], left_out: usize) -> String {
    let line = argv.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    let line = clip(&plain_text(&line), COMMAND);
    if left_out == 0 { line } else { format!("{line} … and {left_out} more") }
}

/// The line for an event, with what belongs to it if it is traffic.
pub(super) fn what(event: &EventBody, sent: &Sent) -> String {
    match event {
        EventBody::Bay(event) => bay(event),
        EventBody::Exec(event) => of_exec(event),
        EventBody::Service(event) => service(event),
        EventBody::Checkpoint(event) => checkpoint(event),
        EventBody::File(FileEvent::Write(write)) => {
            let what = if write.archive { "files written below" } else { "file written:" };
            let beginning = if write.beginning == Some(true) { ", where the work begins" } else { "" };
            format!("{what} {}{beginning}{}", text(&write.path), by(&write.by))
        }
        EventBody::Forward(event) => forward(event),
        EventBody::Policy(event) => policy(event),
        EventBody::Approval(event) => approval(event),
        EventBody::Inside(event) => inside(event),
        EventBody::Work(WorkEvent::Left(left)) => record_lines::work_left(left),
        EventBody::Secret(event) => record_lines::secret(event),
        EventBody::Egress(event) => traffic_lines::what(event, sent)
            .unwrap_or_else(|| generic(event.kind(), &EventBody::from(event.clone()).body())),
        // A bay's timeline has none of these.
        EventBody::Pool(_) | EventBody::Daemon(_) => generic(event.kind(), &event.body()),
        EventBody::Other(other) => generic(&other.kind, &other.body),
    }
}

fn bay(event: &BayEvent) -> String {
    match event {
        BayEvent::Create(create) => created(create),
        BayEvent::StartAsked(asked) => format!("start requested{}", by(&asked.by)),
        BayEvent::StopAsked(asked) => format!("stop requested{}", by(&asked.by)),
        BayEvent::PauseAsked(asked) => format!("pause requested{}", by(&asked.by)),
        BayEvent::ResumeAsked(asked) => format!("resume requested{}", by(&asked.by)),
        BayEvent::ReplaceAsked(asked) => {
            format!("a new root requested{}{}", after(" from ", &shown(&asked.image)), by(&asked.by))
        }
        BayEvent::DeleteAsked(asked) if asked.keep_workspace => {
            format!("removal requested, keeping the workspace{}", by(&asked.by))
        }
        BayEvent::DeleteAsked(asked) => format!("removal requested{}", by(&asked.by)),
        BayEvent::SetAsked(asked) => {
            format!("settings requested{}{}", settings(&asked.change), by(&asked.by))
        }
        BayEvent::RestoreAsked(asked) => {
            format!("restore requested{}{}", after(" to ", &shown(&asked.checkpoint)), by(&asked.by))
        }
        BayEvent::PromoteAsked(asked) => {
            let from = after(" of ", &shown(&asked.from));
            let checkpoint = after(" as it is in ", &shown(&asked.checkpoint));
            format!("promotion requested{from}{checkpoint}{}", by(&asked.by))
        }
        BayEvent::Start(start) => format!("starting{}", after_some(": ", start.reason.as_ref())),
        BayEvent::Running(running) => format!("running{}", after(": ", &running.reason)),
        BayEvent::Paused(_) => "paused".to_owned(),
        BayEvent::Resumed(_) => "resumed".to_owned(),
        BayEvent::Stopping(stopping) => format!("stopping{}", after(": ", &stopping.reason)),
        BayEvent::Stopped(stopped) => format!("stopped{}", after_some(": ", stopped.reason.as_ref())),
        BayEvent::IdleStop(idle) => format!("to be stopped: idle for {} s", idle.idle_s),
        BayEvent::Replaced(replaced) => {
            format!("its root was replaced{}", after(" from ", &shown(&replaced.image)))
        }
        BayEvent::Restored(restored) => {
            let checkpoint = after(" to ", &shown(&restored.checkpoint));
            format!("restored{checkpoint}{}", after_some(" of ", restored.of.as_ref()))
        }
        BayEvent::Promoted(promoted) => {
            format!("took over the state{}{}", after(" of ", &shown(&promoted.from)), by(&promoted.by))
        }
        BayEvent::Forked(forked) => {
            let checkpoint = after(" from ", &shown(&forked.checkpoint));
            let children = after(" into ", &list(forked.children.iter().map(ToString::to_string)));
            format!("forked{checkpoint}{children}{}", by(&forked.by))
        }
        BayEvent::Failed(failed) => format!("failed{}", after(": ", &failed.reason)),
        BayEvent::Lost(lost) => format!("its guest died{}", after(": ", &lost.reason)),
        BayEvent::GuestMoved(moved) => {
            let frozen = if moved.frozen { " and froze it" } else { "" };
            let back = match &moved.stays {
                Some(why) => format!("thawed, but not moved back: {}", text(why)),
                None => "moved back".to_owned(),
            };
            format!("root in the bay moved its guest{}{frozen}; {back}", after(" to ", &moved.group))
        }
        BayEvent::Protocol(protocol) => {
            format!("its guest speaks protocol {}, this daemon {}", protocol.guest, protocol.daemon)
        }
        BayEvent::Cleared(_) => "the rest of its runtime was cleared".to_owned(),
        BayEvent::Set(set) => format!("settings in force{}", settings(&set.limits)),
        BayEvent::ReachSet(reach) if reach.ports.is_empty() => {
            format!("no port of the host is open to it any more{}", by(&reach.by))
        }
        BayEvent::ReachSet(reach) => {
            format!(
                "ports of the host opened to it: {}{}",
                list(reach.ports.iter().map(u16::to_string)),
                by(&reach.by)
            )
        }
        BayEvent::SetRefused(refused) => format!("settings refused{}", after(": ", &refused.reason)),
        BayEvent::Deleting(_) => "being removed".to_owned(),
        BayEvent::Deleted(deleted) => match &deleted.kept_workspace {
            Some(path) => format!("removed; its workspace is kept at {}", text(&path.to_string_lossy())),
            None => "removed".to_owned(),
        },
        BayEvent::DiskUnknown(_) => "files of an unknown bay were found".to_owned(),
    }
}

fn created(create: &BayCreate) -> String {
    let origin = create.origin.as_ref().and_then(Option::as_ref);
    let of = after_some(" of ", origin.map(|origin| &origin.location));
    let branch = after_some(" at ", origin.and_then(|origin| origin.branch.as_ref()));
    let from = create.forked_from.as_ref().map(|from| {
        let ran = if from.memory { ", with its memory" } else { "" };
        format!(" from {} of {}{ran}", from.checkpoint, text(from.name.as_str()))
    });
    let environment = create
        .environment
        .as_ref()
        .map(|of| format!(", with the environment of {} at {}", text(of.name.as_str()), of.checkpoint));
    let name = after(" as ", &shown(&create.name));
    let (from, environment) = (from.unwrap_or_default(), environment.unwrap_or_default());
    format!("created{name}{of}{branch}{from}{environment}{}", by(&create.by))
}

fn settings(given: &Field<impl Serialize>) -> String {
    let given = serde_json::to_value(given).unwrap_or_default();
    let entries = given.as_object().map(pairs).unwrap_or_default();
    if entries.is_empty() { String::new() } else { format!(": {entries}") }
}

fn of_exec(event: &ExecEvent) -> String {
    match event {
        ExecEvent::Start(start) => {
            let name = exec(start.tty, start.number, &start.exec);
            format!("{name} began: {}", command(&start.argv, start.arguments_left_out))
        }
        ExecEvent::Approved(approved) => format!(
            "a person allowed a command ({}): {}",
            shown(&approved.approval),
            command(&approved.argv, approved.arguments_left_out)
        ),
        ExecEvent::End(end) => ended(end),
        ExecEvent::Files(changes) => files(changes),
        ExecEvent::Signal(signal) => {
            let name = exec(false, numbered(signal.number), &signal.exec);
            format!("{name}: signal {} sent{}", signal.signal, by(&signal.by))
        }
        ExecEvent::Revived(event) => revived(event),
    }
}

/// The number of an exec. If the event has none, the field is 0, and this returns `None`.
fn numbered(number: u64) -> Option<u64> {
    Some(number).filter(|number| *number > 0)
}

fn ended(end: &ExecEnd) -> String {
    let mut line = format!("{} ended", exec(end.tty == Some(true), end.number, &end.exec));
    if let Some(exit) = end.exit.get() {
        let _ = write!(line, ": {}", exit_words(*exit));
    }
    if let Some(seconds) = end.duration_s {
        let _ = write!(line, " after {}", duration(seconds));
    }
    let usage = end.usage.unwrap_or_default();
    if let Some(us) = usage.cpu_us() {
        // Only for display.
        #[allow(clippy::cast_precision_loss)]
        let seconds = us as f64 / 1e6;
        let _ = write!(line, " · {} cpu", duration(seconds));
    }
    let peak = usage.memory_peak_bytes.or(usage.max_rss_kib.map(|kib| kib.saturating_mul(1024)));
    if let Some(bytes) = peak {
        let _ = write!(line, " · {} MiB peak", bytes.div_ceil(1 << 20));
    }
    for limit in &end.limits_hit {
        let _ = write!(line, " · {limit} limit reached");
    }
    line
}

fn exit_words(exit: Exit) -> String {
    let code = exit.code.map(|code| format!(" (exit {code})")).unwrap_or_default();
    match exit.reason {
        EndReason::Exited => format!("exit {}", exit.code.unwrap_or_default()),
        EndReason::Signaled => format!("by signal {}", exit.signal.unwrap_or_default()),
        EndReason::TimedOut => "timed out".to_owned(),
        EndReason::Killed => "killed".to_owned(),
        EndReason::Stopped => format!("stopped with its bay{code}"),
        EndReason::Lost => "lost with its guest".to_owned(),
    }
}

fn files(changes: &ExecFiles) -> String {
    let mut parts = Vec::new();
    let plural = |n: u64, noun: &str| if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") };
    match (changes.created, changes.changed) {
        (0, 0) => {}
        (created, 0) => parts.push(format!("{} created", plural(created, "file"))),
        (0, changed) => parts.push(format!("{} changed", plural(changed, "file"))),
        (created, changed) => parts.push(format!("{} created, {changed} changed", plural(created, "file"))),
    }
    let ignored = changes.ignored.unwrap_or(0);
    if parts.is_empty() && (changes.directories > 0 || ignored == 0) {
        let noun = if changes.directories == 1 { "directory" } else { "directories" };
        parts.push(format!("entries of {} {noun} changed", changes.directories));
    }
    if let Some(git) = changes.git.filter(|git| *git > 0) {
        parts.push(format!("{git} of git's own"));
    }
    if ignored > 0 {
        parts.push(format!("{ignored} that the repository ignores"));
    }
    let at_least = if changes.at_least { "at least " } else { "" };
    let names = names(changes);
    let name = exec(false, numbered(changes.number), &changes.exec);
    format!("{name}: {at_least}{} while it ran{names}", parts.join(", "))
}

fn names(changes: &ExecFiles) -> String {
    if changes.names.is_empty() {
        return String::new();
    }
    let told = changes.names.iter().take(FileChanges::NAMES);
    let list = told.map(|name| text(name)).collect::<Vec<_>>().join(", ");
    // Directories are named only if no file is.
    let named = match changes.created.saturating_add(changes.changed) {
        0 => changes.directories,
        files => files,
    };
    let more = if named > changes.names.len() as u64 { ", …" } else { "" };
    format!(": {list}{more}")
}

fn revived(event: &ExecRevived) -> String {
    let from = event.from.get().map(|from| format!(" from {}", from.checkpoint)).unwrap_or_default();
    match event.execs.len() {
        0 => format!(
            "no exec was running{}",
            if from.is_empty() { from } else { format!(" when it resumed{from}") }
        ),
        1 => format!("1 exec continues{from}"),
        n => format!("{n} execs continue{from}"),
    }
}

fn forward(event: &ForwardEvent) -> String {
    match event {
        ForwardEvent::Open(open) => {
            let ports = open.ports.iter().map(u16::to_string);
            let ports = ports.chain(open.all.then(|| "every port".to_owned()));
            let listen = after_some(" to ", open.listen.as_ref());
            format!("forward of {} opened{listen}{}", list(ports), by(&open.by))
        }
        ForwardEvent::End(end) => format!(
            "a forward ended: {} connections, {} bytes in, {} bytes out",
            end.connections, end.bytes_in, end.bytes_out
        ),
    }
}

fn service(event: &ServiceEvent) -> String {
    let asked = |service, verb, who: &str| format!("service {}: {verb} requested{}", shown(service), by(who));
    match event {
        ServiceEvent::Define(define) => {
            let command = command(&define.argv, define.arguments_left_out);
            format!("service {} defined: {command}{}", shown(&define.service), by(&define.by))
        }
        ServiceEvent::Approved(approved) => format!(
            "a person allowed a command of service {} ({}): {}",
            shown(&approved.service),
            shown(&approved.approval),
            command(&approved.argv, approved.arguments_left_out)
        ),
        ServiceEvent::Start(start) => asked(&start.service, "start", &start.by),
        ServiceEvent::Stop(stop) => asked(&stop.service, "stop", &stop.by),
        ServiceEvent::Restart(restart) => asked(&restart.service, "restart", &restart.by),
        ServiceEvent::Reached(reached) => {
            let (service, state) = (shown(&reached.service), shown(&reached.state));
            let again = match reached.restarts {
                0 => String::new(),
                1 => " · restarted once".to_owned(),
                times => format!(" · restarted {times} times"),
            };
            format!("service {service} is {state}{}{again}", after(": ", &reached.reason))
        }
        ServiceEvent::Remove(remove) => asked(&remove.service, "removal", &remove.by),
    }
}

fn checkpoint(event: &CheckpointEvent) -> String {
    match event {
        CheckpointEvent::Asked(asked) => {
            let why = after_some(": ", asked.automatic.as_ref());
            format!("checkpoint {} begun{why}{}", shown(&asked.name), by(&asked.by))
        }
        CheckpointEvent::Made(made) => checkpoint_made(made),
        CheckpointEvent::Failed(failed) => {
            format!("checkpoint {} failed{}{}", shown(&failed.name), after(": ", &failed.why), by(&failed.by))
        }
        CheckpointEvent::Removed(removed) => {
            format!("checkpoint {} removed{}", shown(&removed.name), by(&removed.by))
        }
    }
}

fn checkpoint_made(made: &CheckpointMade) -> String {
    let kind = shown(&made.kind);
    let kind = if kind.is_empty() { kind } else { format!(" ({kind})") };
    let mut line = format!("checkpoint {} made{kind}", shown(&made.name));
    line.push_str(&after_some(" after ", made.parent.as_ref()));
    line.push_str(&after_some(": ", made.message.as_ref()));
    match made.made_by_itself() {
        None => {}
        Some(None) => line.push_str(" · automatic"),
        Some(Some(why)) => {
            let _ = write!(line, " · automatic, {}", text(&why));
        }
    }
    if made.pause_us > 0 {
        // Only for display.
        #[allow(clippy::cast_precision_loss)]
        let seconds = made.pause_us as f64 / 1e6;
        let _ = write!(line, " · paused for {}", duration(seconds));
    }
    line.push_str(&by(&made.by));
    line
}

fn policy(event: &PolicyEvent) -> String {
    match event {
        PolicyEvent::Set(set) => match &set.name {
            Some(name) => {
                let rules = set.rules.map(rules).unwrap_or_default();
                format!("policy {} set{rules}{}", text(name), by(&set.by))
            }
            None => format!("its own policy removed{}", by(&set.by)),
        },
        PolicyEvent::GrantAdd(add) => {
            let until = after(" until ", &shown(&add.expires));
            format!("granted{until}: {}{}", text(&add.request), by(&add.by))
        }
        PolicyEvent::GrantRemove(remove) => {
            let ids = after(": ", &list(remove.ids.iter().cloned()));
            let why = after_some("; ", remove.why.as_ref());
            format!("grants revoked{ids}{why}{}", after_some(", by ", remove.by.as_ref()))
        }
    }
}

/// ` (3 allow, 1 ask)`
fn rules(counts: RuleCounts) -> String {
    let all = [(counts.allow, "allow"), (counts.ask, "ask"), (counts.deny, "deny")];
    let counts: Vec<String> = all
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, word)| format!("{number} {word}"))
        .collect();
    if counts.is_empty() { String::new() } else { format!(" ({})", counts.join(", ")) }
}

fn approval(event: &ApprovalEvent) -> String {
    let ended = |question: &str,
                 word: &str,
                 who: &str,
                 after_ms: Option<u64>,
                 request: &str,
                 why: Option<&String>| {
        let took = after_ms
            .and_then(|ms| u32::try_from(ms).ok())
            .map(|ms| format!(" after {}", duration(f64::from(ms) / 1e3)))
            .unwrap_or_default();
        let (who, request) = (after(" by ", who), after(": ", request));
        format!("{question} {word}{who}{took}{request}{}", after_some("; ", why))
    };
    match event {
        ApprovalEvent::Asked(asked) => {
            format!("a person was asked ({}): {}", shown(&asked.approval), text(&asked.request))
        }
        ApprovalEvent::Allowed(allowed) => {
            let reach = after_some(" ", allowed.reach.as_ref());
            let word = format!("allowed{reach}{}", if allowed.any_body { " with any body" } else { "" });
            let (question, took) = (shown(&allowed.approval), Some(allowed.after_ms));
            ended(&question, &word, &allowed.by, took, &allowed.request, allowed.why.as_ref())
        }
        ApprovalEvent::Denied(denied) => {
            let (question, took) = (shown(&denied.approval), Some(denied.after_ms));
            ended(&question, "denied", &denied.by, took, &denied.request, denied.why.as_ref())
        }
        ApprovalEvent::Expired(expired) => {
            let (question, took) = (shown(&expired.approval), Some(expired.after_ms));
            ended(&question, "expired", &expired.by, took, &expired.request, expired.why.as_ref())
        }
        ApprovalEvent::Dropped(dropped) => {
            let one = dropped.approval.as_ref().map(ApprovalId::to_string);
            let question = one.unwrap_or_else(|| list(dropped.approvals.iter().map(shown)));
            let who = dropped.by.as_deref().unwrap_or_default();
            let request = dropped.request.as_deref().unwrap_or_default();
            ended(&question, "dropped", who, dropped.after_ms, request, dropped.why.as_ref())
        }
        ApprovalEvent::Revoked(revoked) => {
            ended(&shown(&revoked.approval), "revoked", &revoked.by, None, &revoked.request, None)
        }
    }
}

fn inside(event: &InsideEvent) -> String {
    match event {
        InsideEvent::HoldTaken(taken) => {
            format!("hold taken{}{}", after_some(" until ", taken.until.as_ref()), by(&taken.by))
        }
        InsideEvent::HoldReleased(released) => format!("hold released{}", by(&released.by)),
        InsideEvent::LeftOut(left_out) => format!(
            "{} more changes from inside{}{}",
            left_out.count,
            by(&left_out.by),
            after_some(": ", left_out.why.as_ref())
        ),
    }
}

/// The line for an event that has no wording of its own: its kind, then its fields.
fn generic(kind: &str, body: &Value) -> String {
    let entries = body.as_object().map(pairs).unwrap_or_default();
    let kind = clip(&plain_text(kind), TEXT);
    if entries.is_empty() { kind } else { format!("{kind}: {entries}") }
}

fn pairs(map: &serde_json::Map<String, Value>) -> String {
    let shown = map.iter().filter(|(_, value)| !value.is_null()).take(ENTRIES);
    let all = shown.map(|(key, value)| format!("{} {}", clip(&plain_text(key), TEXT), short(value, TEXT)));
    all.collect::<Vec<_>>().join(", ")
}

/// A value, shortened.
fn short(value: &Value, limit: usize) -> String {
    match value {
        Value::String(text) => clip(&plain_text(text), limit),
        Value::Array(all) => {
            let mut list: Vec<String> = all.iter().take(ENTRIES).map(|one| short(one, limit / 4)).collect();
            if all.len() > ENTRIES {
                list.push("…".to_owned());
            }
            clip(&list.join(", "), limit)
        }
        Value::Null => "none".to_owned(),
        other => clip(&plain_text(&other.to_string()), limit),
    }
}

/// Seconds in the units that people use.
pub(super) fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "?".to_owned();
    }
    if seconds < 1.0 {
        return format!("{:.0} ms", seconds * 1000.0);
    }
    if seconds < 60.0 {
        return format!("{seconds:.1} s");
    }
    // Beyond a minute nobody needs the fraction, and every exec's duration fits.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let whole = seconds as u64;
    if whole < 3600 {
        return format!("{} m {} s", whole / 60, whole % 60);
    }
    format!("{} h {} m", whole / 3600, whole % 3600 / 60)
}

#[cfg(test)]
#[path = "event_lines_tests.rs"]
mod tests;
