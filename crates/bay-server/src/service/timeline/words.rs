//! An event in words for a person: one line of plain text, whatever is in it.
//!
//! Commands, names and reasons come from callers and bays. Nothing of them reaches a terminal that it would obey, and
//! nothing of them makes a line endless.

use std::fmt::Write as _;

use bay_text::clip;
use bay_text::shell::quoted;
use bay_types::exec::{EndReason, Exit, LimitHit};
use bay_types::timeline::FileChanges;
use bay_types::traffic;
use bay_types::usage::Usage;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::channel::plain_text;

/// Characters of a command.
const COMMAND: usize = 120;
/// Characters of any other text of unknown origin.
const TEXT: usize = 200;
/// Entries of a list or a body that are named.
const ENTRIES: usize = 8;

/// The body of an event, read without trust in its shape.
pub(super) struct Body<'a>(pub(super) &'a Value);

impl Body<'_> {
    pub(super) fn read<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        serde_json::from_value(self.0.get(key)?.clone()).ok()
    }

    pub(super) fn text(&self, key: &str) -> Option<String> {
        self.0.get(key).filter(|value| !value.is_null()).map(|value| short(value, TEXT))
    }

    /// `PREFIX text`, or nothing.
    pub(super) fn after(&self, prefix: &str, key: &str) -> String {
        self.text(key)
            .filter(|text| !text.is_empty())
            .map_or_else(String::new, |text| format!("{prefix}{text}"))
    }

    fn by(&self) -> String {
        self.after(", by ", "by")
    }

    /// `exec 3`, or `session 3` when it has a terminal.
    fn exec(&self) -> String {
        let noun = if self.read("tty") == Some(true) { "session" } else { "exec" };
        let name = self.read::<u64>("number").map(|number| number.to_string());
        format!("{noun} {}", name.or_else(|| self.text("exec")).unwrap_or_default())
    }

    fn command(&self) -> String {
        let argv: Vec<String> = self.read("argv").unwrap_or_default();
        let left_out = self.read::<u64>("arguments_left_out").unwrap_or(0);
        let line = argv.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        let line = clip(&plain_text(&line), COMMAND);
        if left_out == 0 { line } else { format!("{line} … and {left_out} more") }
    }
}

/// The line for an event.
pub(super) fn what(kind: &str, body: &Value) -> String {
    let body = Body(body);
    let by = body.by();
    let reason = body.after(": ", "reason");
    match kind {
        "bay.create" => created(&body),
        "bay.start-asked" => format!("start asked for{by}"),
        "bay.stop-asked" => format!("stop asked for{by}"),
        "bay.pause-asked" => format!("pause asked for{by}"),
        "bay.resume-asked" => format!("resume asked for{by}"),
        "bay.replace-asked" => format!("a new root asked for{}{by}", body.after(" from ", "image")),
        "bay.delete-asked" => match body.read("keep_workspace") {
            Some(true) => format!("removal asked for, the workspace to be kept{by}"),
            _ => format!("removal asked for{by}"),
        },
        "bay.start" => format!("starting{reason}"),
        "bay.running" => format!("running{reason}"),
        "bay.paused" => "paused".to_owned(),
        "bay.resumed" => "resumed".to_owned(),
        "bay.stopping" => format!("stopping{reason}"),
        "bay.stopped" => format!("stopped{reason}"),
        "bay.idle-stop" => format!("to be stopped: idle{}", body.after(" for ", "idle_s") + " s"),
        "bay.replaced" => format!("its root was made anew{}", body.after(" from ", "image")),
        "bay.failed" => format!("failed{reason}"),
        "bay.lost" => format!("its guest died{reason}"),
        "bay.guest-moved" => {
            let frozen = if body.read("frozen") == Some(true) { " and froze it" } else { "" };
            let back = match body.text("stays") {
                Some(why) => format!("thawed, and not put back: {why}"),
                None => "put back".to_owned(),
            };
            format!("somebody in the bay moved its guest{}{frozen}; {back}", body.after(" to ", "group"))
        }
        "bay.cleared" => "what was left of its runtime was cleared".to_owned(),
        "bay.deleting" => "being removed".to_owned(),
        "bay.deleted" => match body.text("kept_workspace") {
            Some(path) => format!("removed; its workspace is kept at {path}"),
            None => "removed".to_owned(),
        },
        "bay.set-asked" => format!("settings asked for{}{by}", settings(body.0.get("change"))),
        "bay.set" => format!("settings hold{}", settings(body.0.get("limits"))),
        "bay.set-refused" => format!("settings refused{reason}"),
        "exec.start" => format!("{} began: {}", body.exec(), body.command()),
        "exec.approved" => format!(
            "a person let a command run ({}): {}",
            body.text("approval").unwrap_or_default(),
            body.command()
        ),
        "service.approved" => format!(
            "a person let a command of service {} run ({}): {}",
            service(&body),
            body.text("approval").unwrap_or_default(),
            body.command()
        ),
        "exec.end" => ended(&body),
        "exec.files" => files(&body),
        "exec.signal" => {
            format!("{}: signal {} sent{by}", body.exec(), body.text("signal").unwrap_or_default())
        }
        "service.define" => format!("service {} defined: {}{by}", service(&body), body.command()),
        "service.start" => format!("service {}: start asked for{by}", service(&body)),
        "service.stop" => format!("service {}: stop asked for{by}", service(&body)),
        "service.restart" => format!("service {}: restart asked for{by}", service(&body)),
        "service.remove" => format!("service {}: removal asked for{by}", service(&body)),
        "file.write" => {
            let what =
                if body.read("archive") == Some(true) { "files written below" } else { "file written:" };
            format!("{what} {}{by}", body.text("path").unwrap_or_default())
        }
        "exec.revived" => revived(&body),
        "checkpoint.asked" => {
            let why = body.after(": ", "automatic");
            format!("checkpoint {} begun{why}{by}", body.text("name").unwrap_or_default())
        }
        "checkpoint.made" => checkpoint(&body),
        "checkpoint.failed" => {
            format!(
                "checkpoint {} failed{}{by}",
                body.text("name").unwrap_or_default(),
                body.after(": ", "why")
            )
        }
        "checkpoint.removed" => format!("checkpoint {} removed{by}", body.text("name").unwrap_or_default()),
        "bay.restore-asked" => format!("restore asked for{}{by}", body.after(" of ", "checkpoint")),
        "bay.restored" => format!("restored{}{}", body.after(" to ", "checkpoint"), body.after(" of ", "of")),
        "bay.promote-asked" => {
            format!(
                "promotion asked for{}{}{by}",
                body.after(" of ", "from"),
                body.after(" as it is in ", "checkpoint")
            )
        }
        "policy.set" => match body.text("name") {
            Some(name) => format!("policy {name} set{}{by}", rules(body.0.get("rules"))),
            None => format!("its own policy removed{by}"),
        },
        "approval.asked" => format!(
            "a person was asked ({}): {}",
            body.text("approval").unwrap_or_default(),
            body.text("request").unwrap_or_default()
        ),
        "approval.allowed" | "approval.denied" | "approval.expired" | "approval.dropped"
        | "approval.revoked" => answered(kind, &body),
        "grant.add" => {
            let request = body.text("request").unwrap_or_default();
            format!("granted{}: {request}{by}", body.after(" until ", "expires"))
        }
        "grant.rm" => format!("grants taken back{}{}{by}", body.after(": ", "ids"), body.after("; ", "why")),
        "bay.protocol" => format!(
            "its guest speaks protocol {}, this daemon {}",
            body.text("guest").unwrap_or_default(),
            body.text("daemon").unwrap_or_default()
        ),
        "bay.disk-unknown" => "files of a bay that no record knows were found".to_owned(),
        "hold.taken" => format!("to be kept awake{}{by}", body.after(" until ", "until")),
        "inside.left-out" => format!(
            "{} more changes from inside{}{by}",
            body.text("count").unwrap_or_default(),
            body.after(": ", "why")
        ),
        "hold.released" => format!("need not be kept awake any more{by}"),
        "bay.forked" => {
            format!("forked{}{}{by}", body.after(" from ", "checkpoint"), body.after(" into ", "children"))
        }
        "bay.promoted" => format!("took over the state{}{by}", body.after(" of ", "from")),
        other if other.starts_with(traffic::KINDS) => {
            super::sent::what(other, &body).unwrap_or_else(|| generic(other, &body))
        }
        other => generic(other, &body),
    }
}

fn answered(kind: &str, body: &Body<'_>) -> String {
    let what = kind.strip_prefix("approval.").unwrap_or(kind);
    let which = body.text("approval").or_else(|| body.text("approvals")).unwrap_or_default();
    let after = body.read::<u32>("after_ms").map(|ms| format!(" after {}", duration(f64::from(ms) / 1e3)));
    let reach = body.after(" ", "reach");
    let any = if body.read::<bool>("any_body") == Some(true) { " with any body" } else { "" };
    let by = body.after(" by ", "by");
    let request = body.after(": ", "request");
    format!("{which} {what}{reach}{any}{by}{}{request}{}", after.unwrap_or_default(), body.after("; ", "why"))
}

/// ` (3 allow, 1 ask)`
fn rules(counts: Option<&Value>) -> String {
    let count = |word: &str| {
        let number = counts?.get(word)?.as_u64().filter(|number| *number > 0)?;
        Some(format!("{number} {word}"))
    };
    let counts: Vec<String> = ["allow", "ask", "deny"].into_iter().filter_map(count).collect();
    if counts.is_empty() { String::new() } else { format!(" ({})", counts.join(", ")) }
}

fn created(body: &Body<'_>) -> String {
    let origin = body.0.get("origin").map(Body);
    let of = origin.as_ref().map(|origin| origin.after(" of ", "location")).unwrap_or_default();
    let branch = origin.as_ref().map(|origin| origin.after(" at ", "branch")).unwrap_or_default();
    let from = body.0.get("forked_from").filter(|from| !from.is_null()).map(Body);
    let from = from.map(|from| {
        let ran = if from.read("memory") == Some(true) { ", with what ran" } else { "" };
        format!(" from{}{}{ran}", from.after(" ", "checkpoint"), from.after(" of ", "name"))
    });
    format!("made{}{of}{branch}{}{}", body.after(" as ", "name"), from.unwrap_or_default(), body.by())
}

fn revived(body: &Body<'_>) -> String {
    let from = body.0.get("from").map(|from| Body(from).after(" from ", "checkpoint")).unwrap_or_default();
    match body.0.get("execs").and_then(Value::as_array).map_or(0, Vec::len) {
        0 => format!(
            "no exec was running{}",
            if from.is_empty() { from } else { format!(" in what goes on{from}") }
        ),
        1 => format!("1 exec goes on{from}"),
        n => format!("{n} execs go on{from}"),
    }
}

fn service(body: &Body<'_>) -> String {
    body.text("service").unwrap_or_default()
}

fn settings(given: Option<&Value>) -> String {
    let entries = given.and_then(Value::as_object).map(pairs).unwrap_or_default();
    if entries.is_empty() { String::new() } else { format!(": {entries}") }
}

fn ended(body: &Body<'_>) -> String {
    let mut line = format!("{} ended", body.exec());
    if let Some(exit) = body.read::<Exit>("exit") {
        let _ = write!(line, ": {}", exit_words(exit));
    }
    if let Some(seconds) = body.read::<f64>("duration_s") {
        let _ = write!(line, " after {}", duration(seconds));
    }
    let usage: Usage = body.read("usage").unwrap_or_default();
    if let Some(us) = usage.cpu_us() {
        // Only for showing.
        #[allow(clippy::cast_precision_loss)]
        let seconds = us as f64 / 1e6;
        let _ = write!(line, " · {} cpu", duration(seconds));
    }
    let peak = usage.memory_peak_bytes.or(usage.max_rss_kib.map(|kib| kib.saturating_mul(1024)));
    if let Some(bytes) = peak {
        let _ = write!(line, " · {} MiB peak", bytes.div_ceil(1 << 20));
    }
    for limit in body.read::<Vec<LimitHit>>("limits_hit").unwrap_or_default() {
        let _ = write!(line, " · {limit} limit reached");
    }
    line
}

fn exit_words(exit: Exit) -> String {
    let code = exit.code.map(|code| format!(" (exit {code})")).unwrap_or_default();
    match exit.reason {
        EndReason::Exited => format!("exit {}", exit.code.unwrap_or_default()),
        EndReason::Signaled => format!("by signal {}", exit.signal.unwrap_or_default()),
        EndReason::TimedOut => "its time was up".to_owned(),
        EndReason::Killed => "killed".to_owned(),
        EndReason::Stopped => format!("stopped with its bay{code}"),
        EndReason::Lost => "lost with its guest".to_owned(),
    }
}

fn files(body: &Body<'_>) -> String {
    let changes: FileChanges = serde_json::from_value(body.0.clone()).unwrap_or_default();
    let mut parts = Vec::new();
    let plural = |n: u64, noun: &str| if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") };
    match (changes.created, changes.changed) {
        (0, 0) => {}
        (created, 0) => parts.push(format!("{} created", plural(created, "file"))),
        (0, changed) => parts.push(format!("{} changed", plural(changed, "file"))),
        (created, changed) => parts.push(format!("{} created, {changed} changed", plural(created, "file"))),
    }
    if parts.is_empty() {
        let noun = if changes.directories == 1 { "directory" } else { "directories" };
        parts.push(format!("entries of {} {noun} changed", changes.directories));
    }
    let at_least = if changes.at_least { "at least " } else { "" };
    let names = names(&changes);
    format!("{}: {at_least}{} while it ran{names}", body.exec(), parts.join(", "))
}

fn names(changes: &FileChanges) -> String {
    if changes.names.is_empty() {
        return String::new();
    }
    let told = changes.names.iter().take(FileChanges::NAMES);
    let list = told.map(|name| clip(&plain_text(name), TEXT)).collect::<Vec<_>>().join(", ");
    // Directories are named where nothing else is.
    let named = match changes.created.saturating_add(changes.changed) {
        0 => changes.directories,
        files => files,
    };
    let more = if named > changes.names.len() as u64 { ", …" } else { "" };
    format!(": {list}{more}")
}

fn checkpoint(body: &Body<'_>) -> String {
    let kind = body.text("kind").map(|kind| format!(" ({kind})")).unwrap_or_default();
    let mut line = format!("checkpoint {} made{kind}", body.text("name").unwrap_or_default());
    line.push_str(&body.after(" after ", "parent"));
    line.push_str(&body.after(": ", "message"));
    match body.0.get("automatic") {
        None | Some(Value::Null | Value::Bool(false)) => {}
        Some(Value::Bool(true)) => line.push_str(" · by itself"),
        Some(why) => {
            let _ = write!(line, " · by itself, {}", short(why, TEXT));
        }
    }
    if let Some(us) = body.read::<f64>("pause_us").filter(|us| *us > 0.0) {
        let _ = write!(line, " · paused for {}", duration(us / 1e6));
    }
    line.push_str(&body.by());
    line
}

/// What this release has no words for.
fn generic(kind: &str, body: &Body<'_>) -> String {
    let entries = body.0.as_object().map(pairs).unwrap_or_default();
    let kind = clip(&plain_text(kind), TEXT);
    if entries.is_empty() { kind } else { format!("{kind}: {entries}") }
}

fn pairs(map: &serde_json::Map<String, Value>) -> String {
    let shown = map.iter().filter(|(_, value)| !value.is_null()).take(ENTRIES);
    let all = shown.map(|(key, value)| format!("{} {}", clip(&plain_text(key), TEXT), short(value, TEXT)));
    all.collect::<Vec<_>>().join(", ")
}

/// A value in a few words.
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

/// Seconds as people say them.
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
    // Beyond a minute nobody needs the fraction, and no command runs for longer than fits.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let whole = seconds as u64;
    if whole < 3600 {
        return format!("{} m {} s", whole / 60, whole % 60);
    }
    format!("{} h {} m", whole / 3600, whole % 3600 / 60)
}

#[cfg(test)]
#[path = "words_tests.rs"]
mod tests;
