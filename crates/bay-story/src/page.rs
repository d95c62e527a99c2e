//! A story as text for people: at most [`MAX_LINES`] lines, whatever the record's size.

use bay_text::clip;
use bay_text::escape::visible;
use bay_types::story::{CommandGroup, Few, Story, TimeKind};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::text::{count, duration, size};

/// The most lines of a page.
pub const MAX_LINES: usize = 60;
/// The most characters of a line's text.
pub const WIDTH: usize = 180;
/// Columns of the titles.
pub const TITLES: usize = 10;
/// The most lines of each section. Together with the heading they are fewer than [`MAX_LINES`].
const ASKED: usize = 6;
const FAILED: usize = 7;
const REFUSED: usize = 5;
const APPROVED: usize = 4;
const TRIED: usize = 9;
const SERVICES: usize = 4;
const CHECKPOINTS: usize = 4;
const CHANGED: usize = 7;
const LEFT: usize = 4;
const NOW: usize = 5;
/// How many names a line lists.
const NAMES: usize = 3;

/// One part of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    pub title: &'static str,
    /// Each is one line, safe for a terminal.
    pub lines: Vec<String>,
}

/// The page as lines.
#[must_use]
pub fn lines(story: &Story, zone: &TimeZone) -> Vec<String> {
    let mut lines = vec![heading(story, zone)];
    for section in sections(story, zone) {
        for (at, line) in section.lines.iter().enumerate() {
            let title = if at == 0 { section.title } else { "" };
            lines.push(format!("{title:<TITLES$}{line}"));
        }
    }
    lines
}

/// What the page is about, in one line.
#[must_use]
pub fn heading(story: &Story, zone: &TimeZone) -> String {
    let length = match (story.from, story.to) {
        (Some(from), Some(to)) => {
            format!("{} to {}, ", moment(from, zone), moment(to, zone))
        }
        _ => String::new(),
    };
    let older = if story.older_left_out { "; older events are left out" } else { "" };
    one(format!("the story of {}: {length}{}{older}", story.bay, count(story.events, "event")))
}

/// The parts of the page. Those that answer a reader's first questions are always there.
#[must_use]
pub fn sections(story: &Story, zone: &TimeZone) -> Vec<Section> {
    let bay = &story.bay;
    let mut all = vec![
        Section { title: "asked", lines: asked(story) },
        Section { title: "failed", lines: failed(story) },
        Section { title: "refused", lines: refused(story) },
    ];
    let mut some = |title, lines: Vec<String>| {
        if !lines.is_empty() {
            all.push(Section { title, lines });
        }
    };
    some(
        "approvals",
        list(&story.approvals, APPROVED, "bay approvals --all", |approval| {
            let by = approval.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
            let why = approval.why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            format!("{}{by}: {}{why}", approval.answer, approval.request)
        }),
    );
    some("tried", tried(story));
    some(
        "services",
        list(&story.services, SERVICES, &format!("bay services ls {bay}"), |service| {
            let last =
                service.last_death.as_ref().map(|why| format!("; the last time: {why}")).unwrap_or_default();
            let trouble = match service.deaths {
                0 => String::new(),
                deaths => format!(
                    " · ended or failed {}, came back {}{last}",
                    times(deaths),
                    times(service.came_back)
                ),
            };
            format!("{} is {}{trouble}", service.service, service.state)
        }),
    );
    some(
        "saved",
        list(&story.checkpoints, CHECKPOINTS, &format!("bay checkpoints ls {bay}"), |checkpoint| {
            let after = checkpoint.after_exec.map(|exec| format!(" after exec {exec}")).unwrap_or_default();
            let why = checkpoint.message.as_ref().or(checkpoint.automatic.as_ref());
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            let restored = if checkpoint.restored { " · restored" } else { "" };
            let name = &checkpoint.name;
            format!(
                "{name} at {}{after}{why}{restored} · fork from here: bay fork {bay} --from {name}",
                moment(checkpoint.at, zone)
            )
        }),
    );
    some("changed", changed(story));
    some("left", left(story, zone));
    some("time", time(story));
    all.push(Section { title: "cost", lines: vec![cost(story)] });
    all.push(Section { title: "now", lines: now(story) });
    all
}

fn asked(story: &Story) -> Vec<String> {
    let asked = &story.asked;
    let mut lines: Vec<String> = asked.origin.iter().map(|origin| one(format!("work on {origin}"))).collect();
    let by: Vec<String> =
        asked.by.shown.iter().take(NAMES).map(|asker| format!("{} ({})", asker.by, asker.commands)).collect();
    let by = if by.is_empty() { String::new() } else { format!(", by {}", by.join(", ")) };
    lines.push(one(format!("{}{by}", count(asked.commands, "command"))));
    if asked.with_tool_call > 0 {
        let calls = names(&asked.tool_calls);
        lines.push(one(format!("{} of them for tool calls: {calls}", asked.with_tool_call)));
    }
    if !asked.traces.is_empty() {
        lines.push(one(format!("in {}: {}", count(asked.traces.total(), "trace"), names(&asked.traces))));
    }
    let left = ASKED.saturating_sub(lines.len());
    if let Some(first) = &asked.first {
        lines.push(one(format!("first: {first}")));
    } else {
        let more = format!("bay execs ls {}", story.bay);
        lines.extend(list(&asked.agents, left, &more, |agent| {
            format!("agent, exec {}: {}", agent.exec, agent.command)
        }));
    }
    lines
}

fn failed(story: &Story) -> Vec<String> {
    if story.failed.is_empty() {
        return vec!["no command failed".to_owned()];
    }
    let bay = &story.bay;
    list(&story.failed, FAILED, &format!("bay timeline {bay} --failed"), |failed| {
        let times = if failed.times > 1 { format!(", {}", times(failed.times)) } else { String::new() };
        let limits = if failed.limits.is_empty() {
            String::new()
        } else {
            format!(" · {} limit reached", failed.limits.join(", "))
        };
        let then = match failed.passed_later {
            Some(number) => format!("passed later as exec {number}"),
            None => format!("bay logs {bay} {}", failed.last_exec),
        };
        format!("{}: {}{times}{limits} · {then}", failed.command, failed.how)
    })
}

fn refused(story: &Story) -> Vec<String> {
    if story.refused.is_empty() {
        return vec!["no request was refused".to_owned()];
    }
    let bay = &story.bay;
    list(&story.refused, REFUSED, &format!("bay egress {bay} --denied"), |refused| {
        let times = if refused.requests > 1 { format!("{} × ", refused.requests) } else { String::new() };
        let rule = match &refused.rule {
            Some(rule) => format!("rule {rule}: "),
            None => String::new(),
        };
        let explain =
            refused.decision.map(|seq| format!(" · bay policy explain {bay} {seq}")).unwrap_or_default();
        format!("{times}{} · {rule}{} · by {}{explain}", refused.request, refused.reason, refused.by)
    })
}

fn tried(story: &Story) -> Vec<String> {
    if story.tried.is_empty() {
        return vec!["no command ran".to_owned()];
    }
    list(&story.tried, TRIED, &format!("bay execs ls {}", story.bay), |group: &CommandGroup| {
        let mut line = match group.count {
            1 => format!("{} (exec {})", group.label, group.last_exec),
            count => format!("{} × {}", count, group.label),
        };
        if group.failed > 0 {
            line.push_str(&format!(", {} failed", group.failed));
        }
        if group.running > 0 {
            line.push_str(&format!(", {} running", group.running));
        }
        line.push_str(&format!(" · {}", duration(group.seconds)));
        if group.requests > 0 {
            line.push_str(&format!(" · {}", count(group.requests, "request")));
        }
        if group.refused > 0 {
            line.push_str(&format!(" ({} refused)", group.refused));
        }
        if group.received_bytes > 0 {
            line.push_str(&format!(" · {} received", size(group.received_bytes)));
        }
        line
    })
}

fn changed(story: &Story) -> Vec<String> {
    let changed = &story.changed;
    let mut lines = Vec::new();
    let files = changed.added.saturating_add(changed.modified).saturating_add(changed.deleted);
    let sum = format!(
        "{} added, {} modified, {} deleted · +{} −{} lines",
        count(changed.added, "file"),
        changed.modified,
        changed.deleted,
        changed.lines_added,
        changed.lines_removed
    );
    match &changed.not_compared {
        Some(why) if files > 0 => lines.push(one(format!(
            "not compared: {why}; commands created files {} and changed files {}",
            times(changed.added),
            times(changed.modified)
        ))),
        Some(why) => lines.push(one(format!("nothing by the record ({why})"))),
        None if files == 0 => lines.push("no file of the workspace differs from its beginning".to_owned()),
        None => lines.push(one(sum)),
    }
    if changed.ignored > 0 {
        let files = count(changed.ignored, "ignored file");
        lines.push(one(format!("{files} left out: bay diff {} --ignored shows them", story.bay)));
    }
    for (tests, word) in [(&changed.tests_added, "added"), (&changed.tests_removed, "removed")] {
        if !tests.is_empty() {
            lines.push(one(format!("{} {word}: {}", count(tests.total(), "test file"), names(tests))));
        }
    }
    let left = CHANGED.saturating_sub(lines.len());
    let more = format!("bay diff {} --stat", story.bay);
    lines.extend(list(&changed.directories, left, &more, |directory| {
        let more = if directory.files > directory.examples.len() as u64 { ", …" } else { "" };
        format!(
            "{} {}: {}{more}",
            directory.directory,
            count(directory.files, "file"),
            directory.examples.join(", ")
        )
    }));
    lines
}

fn left(story: &Story, zone: &TimeZone) -> Vec<String> {
    let more = format!("bay timeline {} --kind work", story.bay);
    let uploads = usize::from(!story.uploads.is_empty());
    let mut lines = list(&story.left, LEFT - uploads, &more, |left| {
        let to = left.place.as_ref().map(|place| format!(" to {place}")).unwrap_or_default();
        format!(
            "{} {}{to} at {} ({}): {}, {} · by {}",
            left.route,
            left.branch,
            left.commit,
            moment(left.at, zone),
            count(left.commits, "commit"),
            count(left.files, "file"),
            left.by
        )
    });
    if uploads > 0 {
        let hosts: Vec<String> = story
            .uploads
            .shown
            .iter()
            .take(NAMES)
            .map(|upload| {
                format!("{} to {} in {}", size(upload.bytes), upload.host, count(upload.requests, "request"))
            })
            .collect();
        let more = story.uploads.total().saturating_sub(hosts.len() as u64);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        lines.push(one(format!("data in requests: {}{more}", hosts.join(", "))));
    }
    lines
}

fn time(story: &Story) -> Vec<String> {
    let shares: Vec<String> = story
        .time
        .iter()
        // A share that nobody would notice.
        .filter(|share| share.seconds >= 0.05)
        .map(|share| format!("{} {}", share.kind, duration(share.seconds)))
        .collect();
    let whole: f64 = story.time.iter().map(|share| share.seconds).sum();
    if shares.is_empty() {
        return Vec::new();
    }
    vec![one(format!("{} in all, estimated by rule: {}", duration(whole), shares.join(", ")))]
}

fn cost(story: &Story) -> String {
    let cost = &story.cost;
    let mut parts = Vec::new();
    parts.extend(cost.core_s.map(|seconds| format!("{seconds:.1} core-seconds")));
    parts.extend(cost.memory_gib_s.map(|sum| format!("{sum:.1} GiB-seconds of memory")));
    parts.extend(cost.disk_bytes.map(|bytes| format!("{} of disk", size(bytes))));
    parts.push(match cost.requests {
        0 => "no requests".to_owned(),
        requests => format!(
            "{}: {} sent, {} received",
            count(requests, "request"),
            size(cost.sent_bytes),
            size(cost.received_bytes)
        ),
    });
    one(parts.join(" · "))
}

fn now(story: &Story) -> Vec<String> {
    let (now, bay) = (&story.now, &story.bay);
    let reason = if now.reason.is_empty() { String::new() } else { format!(": {}", now.reason) };
    let idle = match story.time.iter().find(|share| share.kind == TimeKind::Idle) {
        Some(_) if now.running.is_empty() && now.state == "running" => ", no command runs",
        _ => "",
    };
    let mut lines = vec![one(format!("{}{reason}{idle}", now.state))];
    if !now.running.is_empty() {
        let running: Vec<String> = now
            .running
            .shown
            .iter()
            .take(NAMES)
            .map(|command| format!("exec {} {}", command.exec, clip(&command.command, 40)))
            .collect();
        let more = now.running.total().saturating_sub(running.len() as u64);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        lines.push(one(format!("running: {}{more}", running.join(", "))));
    }
    let mut services = Vec::new();
    if !now.services_up.is_empty() {
        services.push(format!("up: {}", names(&now.services_up)));
    }
    if !now.services_down.is_empty() {
        services.push(format!("down: {}", names(&now.services_down)));
    }
    if !services.is_empty() {
        lines.push(one(format!("services {}", services.join("; "))));
    }
    if now.approvals_open > 0 {
        lines.push(one(format!("{} for your answer: bay approvals", wait(now.approvals_open))));
    }
    if now.untaken_work {
        let last = now.untaken_since_exec.map(|exec| format!(" (last by exec {exec})")).unwrap_or_default();
        lines.push(one(format!("files changed{last} and were not taken out since: bay branch {bay} BRANCH")));
    }
    lines.truncate(NOW);
    lines
}

fn wait(approvals: u64) -> String {
    if approvals == 1 { "1 approval waits".to_owned() } else { format!("{approvals} approvals wait") }
}

/// `once`, `3 times`.
fn times(n: u64) -> String {
    if n == 1 { "once".to_owned() } else { format!("{n} times") }
}

/// The first names of a list, and how many more there are.
fn names(few: &Few<String>) -> String {
    let shown: Vec<&str> = few.shown.iter().take(NAMES).map(String::as_str).collect();
    let more = few.total().saturating_sub(shown.len() as u64);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

/// At most `most` lines for a list: the last one says how many entries are left out, and which command has them.
fn list<T>(few: &Few<T>, most: usize, command: &str, line: impl Fn(&T) -> String) -> Vec<String> {
    let total = few.total();
    if most == 0 || total == 0 {
        return Vec::new();
    }
    let fits = total <= most as u64 && few.more == 0;
    let shown = if fits { few.shown.len() } else { (most - 1).min(few.shown.len()) };
    let mut lines: Vec<String> = few.shown.iter().take(shown).map(|entry| one(line(entry))).collect();
    if !fits {
        lines.push(one(format!("… and {} more: {command}", total - shown as u64)));
    }
    lines
}

/// A line, safe for a terminal.
fn one(text: impl AsRef<str>) -> String {
    clip(&visible(text.as_ref()), WIDTH)
}

fn moment(at: Timestamp, zone: &TimeZone) -> String {
    at.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M").to_string()
}
