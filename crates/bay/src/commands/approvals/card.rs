//! Cards for a terminal. Whatever a bay said is shown with everything written out that a terminal would obey.

use std::fmt::Write as _;

use bay_types::approval::{
    Answer, Approval, ApprovalState, Asked, AskedRequest, BodySeen, Differs, Push, Reach,
};
use bay_types::egress::Who;
use jiff::Timestamp;

use crate::output::size;
use bay_text::escape::visible;
use bay_text::shell::command;

/// `3 m`, `20 s`.
fn span(from: Timestamp, to: Timestamp) -> String {
    match to.duration_since(from).as_secs().max(0) {
        seconds if seconds < 120 => format!("{seconds} s"),
        seconds if seconds < 7200 => format!("{} m", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

fn asked(card: &Approval) -> String {
    match &card.asked {
        Asked::Request(asked) => visible(&asked.request),
        Asked::Exec(asked) => format!("run {}", command(&asked.argv)),
    }
}

fn answer(card: &Approval) -> String {
    let Some(Answer { by, reach, why, after_ms, any_body, .. }) = &card.answer else { return String::new() };
    let reach = match (reach, any_body) {
        (Some(reach), true) => format!(" {reach} with any body"),
        (Some(reach), false) => format!(" {reach}"),
        (None, _) => String::new(),
    };
    let why = why.as_ref().map(|why| format!(": {}", visible(why))).unwrap_or_default();
    format!(
        "{reach} by {} after {:.1} s{why}",
        visible(by),
        std::time::Duration::from_millis(*after_ms).as_secs_f64()
    )
}

/// Characters of a body in one line of a list.
const MAX_BRIEF: usize = 80;

/// What matters most of a request beside its line: the refs of a push, or the beginning of its body.
fn brief(card: &Approval) -> String {
    let Asked::Request(asked) = &card.asked else { return String::new() };
    let whole = match (&asked.push, &asked.body) {
        (Some(push), _) => {
            let refs = push.refs.iter().map(|change| {
                let new = change.new.as_ref().map_or("deleted", |new| new.get(..12).unwrap_or(new));
                format!("{} at {}", visible(&change.name), visible(new))
            });
            refs.collect::<Vec<_>>().join(", ")
        }
        (None, Some(body)) => visible(&body.preview),
        (None, None) => return String::new(),
    };
    let short: String = whole.chars().take(MAX_BRIEF).collect();
    format!("  {short}{}", if short.len() < whole.len() { "…" } else { "" })
}

/// What an allow covers, for the approver who just gave it.
pub(super) fn allowed(card: &Approval, now: Timestamp) -> String {
    let Some(Answer { reach: Some(reach), any_body, until, .. }) = &card.answer else { return String::new() };
    let what = match (&card.asked, any_body) {
        (Asked::Exec(_), _) => "exactly this command".to_owned(),
        (Asked::Request(_), true) => "ANY body and headers to this method and URL".to_owned(),
        (Asked::Request(_), false) => {
            format!(
                "exactly what the card shows (digest {}…)",
                visible(card.digest.get(..12).unwrap_or(&card.digest))
            )
        }
    };
    let left = until.map(|until| span(now, until)).unwrap_or_default();
    let scope = match reach {
        Reach::Once => "one request".to_owned(),
        Reach::Exec => "this exec, while it runs".to_owned(),
        Reach::For => format!("any command of {} for {left}", visible(&card.bay_name)),
        Reach::Save => format!("a rule in the policy of {}", visible(&card.bay_name)),
    };
    let waits = match (reach, card.held) {
        (Reach::Once, 0) => format!(
            "; its client has left: only the same, sent again within {left}, goes on. Anything else is a new question"
        ),
        _ => String::new(),
    };
    format!("covers {what}; {scope}{waits}")
}

/// One line of a list.
pub(super) fn line(card: &Approval, now: Timestamp) -> String {
    let id = card.id.short();
    let what = format!("{}  {}{}", visible(&card.bay_name), asked(card), brief(card));
    match card.state {
        ApprovalState::Open => {
            let left = span(now, card.expires);
            let held = if card.held == 0 { ", its client has left" } else { "" };
            format!("{id}  open     {what}  (asked {} ago, {left} left{held})", span(card.asked_at, now))
        }
        state => format!("{id}  {:7}  {what} {}", state.as_str(), answer(card)),
    }
}

/// Columns of the label that each line of a card begins with.
const LABEL: usize = 13;
/// Columns that a value has at least, however narrow the terminal is.
const LEAST_ROOM: usize = 20;

/// A text in parts that each fit into so many columns. A terminal would break a long line wherever it ends, and a bay could
/// write what looks like the next line of the card.
fn divided(text: &str, columns: usize) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut used = 0;
    for c in text.chars() {
        // Beyond ASCII a character may take two.
        let width = if c.is_ascii() { 1 } else { 2 };
        if used + width > columns {
            parts.push(String::new());
            used = 0;
        }
        used += width;
        if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    parts
}

/// Everything about one. A terminal's `columns` are never exceeded by what a bay wrote.
pub(super) fn whole(card: &Approval, now: Timestamp, columns: Option<usize>) -> String {
    let mut text = format!("── {} ── {} ── {}\n", card.id, visible(&card.bay_name), card.state);
    let room = columns.map_or(usize::MAX, |columns| columns.saturating_sub(LABEL + 2).max(LEAST_ROOM));
    let mut row = |key: &str, value: String| {
        for (at, part) in divided(&value, room).into_iter().enumerate() {
            let _ = match at {
                0 => writeln!(text, "  {key:10} {part}"),
                // Nothing that a bay wrote begins a line of the card.
                _ => writeln!(text, "  {:10} │ {part}", ""),
            };
        }
    };
    row("what", asked(card));
    match &card.asked {
        Asked::Request(asked) => request(asked, &mut row),
        Asked::Exec(asked) => {
            if let Some(cwd) = &asked.cwd {
                row("directory", visible(cwd));
            }
            if let Some(user) = &asked.user {
                row("user", visible(user));
            }
            if let Some(service) = &asked.service {
                row("service", format!("{}: from now on, whenever it is started", visible(service)));
            }
            row("wanted by", visible(&asked.by));
        }
    }
    for warning in &card.warnings {
        row("careful", visible(warning));
    }
    if let Some(Differs { from, state, how }) = &card.differs {
        row(
            "DIFFERS",
            format!("from {}, which is {state}: this is another request to the same place", from.short()),
        );
        for line in how {
            row("", visible(line));
        }
    }
    // A command has nobody behind it but who wanted it, and takes nothing along.
    let is_request = matches!(card.asked, Asked::Request(_));
    if is_request {
        row("who", who(card));
    }
    if let Some(call) = &card.tool_call {
        row("tool call", visible(call));
    }
    let secrets: Vec<String> = card.secrets.iter().map(|name| visible(name)).collect();
    if is_request {
        row(
            "secrets",
            if secrets.is_empty() { "none would be attached".to_owned() } else { secrets.join(", ") },
        );
    }
    if let Some(rule) = &card.rule {
        let reason = rule.reason.as_ref().map(|reason| format!(": {}", visible(reason))).unwrap_or_default();
        row(
            "asked by",
            format!("rule {} at {}{reason}", visible(&rule.id), visible(&rule.origin.to_string())),
        );
    }
    if let Some(checkpoint) = &card.checkpoint {
        row(
            "checkpoint",
            format!("{checkpoint}: `bay approvals deny {} --rollback` goes back to it", card.id.short()),
        );
    }
    row("digest", visible(&card.digest));
    match card.state {
        ApprovalState::Open => {
            let waits = if card.held == 0 {
                "its client has left: an allow is for the same request, sent again"
            } else {
                "held"
            };
            row(
                "time",
                format!("asked {} ago, {} left; {waits}", span(card.asked_at, now), span(now, card.expires)),
            );
        }
        _ => row("answer", format!("{}{}", card.state, answer(card))),
    }
    if let Some(rule) = &card.saved_as {
        row("--save", "with --any-body adds this rule:".to_owned());
        for part in rule.lines().flat_map(|line| divided(&visible(line), room)) {
            let _ = writeln!(text, "             │ {part}");
        }
    }
    if card.state == ApprovalState::Open {
        let id = card.id.short();
        let _ = writeln!(
            text,
            "  bay approvals allow {id} [{}]   bay approvals deny {id} [-m WHY]",
            match (is_request, card.saved_as.is_some()) {
                (true, true) => "--once|--exec|--for 10m|--save] [--any-body",
                (true, false) => "--once|--exec|--for 10m] [--any-body",
                (false, _) => "--once|--for 10m",
            }
        );
    }
    text
}

fn request(asked: &AskedRequest, row: &mut impl FnMut(&str, String)) {
    row("host", format!("{} port {}", visible(&asked.host), asked.port));
    if let Some(login) = &asked.login {
        row("login", visible(login));
    }
    if let Some(push) = &asked.push {
        pushed(push, row);
    }
    if !asked.headers.is_empty() {
        let more =
            if asked.more_headers > 0 { format!(" and {} more", asked.more_headers) } else { String::new() };
        let names = asked.headers.iter().map(|name| visible(name)).collect::<Vec<_>>().join(", ");
        row("headers", format!("{names}{more}"));
    }
    match &asked.body {
        // What a push is, is told above.
        _ if asked.push.is_some() => {}
        None => row("body", "none".to_owned()),
        Some(body) => {
            row("body", length(body));
            row("", visible(&body.preview));
        }
    }
}

fn length(body: &BodySeen) -> String {
    let long = body.length.map_or_else(|| "of unknown length".to_owned(), size);
    match (body.whole, body.length == Some(body.previewed)) {
        (true, true) => long,
        (true, false) => format!("{long}, of which the first {} are", size(body.previewed)),
        (false, _) => {
            format!("{long}, only the beginning was looked at; the first {} are", size(body.previewed))
        }
    }
}

fn pushed(push: &Push, row: &mut impl FnMut(&str, String)) {
    let short = |id: &String| visible(&id.chars().take(12).collect::<String>());
    for change in &push.refs {
        let name = visible(&change.name);
        let what = match (&change.old, &change.new) {
            (None, Some(new)) => format!("{name}  new, at {}", short(new)),
            (Some(old), None) => format!("{name}  DELETED, was at {}", short(old)),
            (Some(old), Some(new)) => format!("{name}  {} → {}", short(old), short(new)),
            (None, None) => name,
        };
        row("push", what);
    }
    for commit in &push.commits {
        row(
            "commit",
            format!("{} {} ({})", short(&commit.id), visible(&commit.subject), visible(&commit.author)),
        );
    }
}

fn who(card: &Approval) -> String {
    let mut parts = Vec::new();
    if let Some(number) = card.exec_number {
        parts.push(format!("exec {number}: {}", command(&card.exec_argv)));
    }
    if let Some(Who { service, process, nested, uid, .. }) = &card.by {
        parts.extend(service.as_ref().map(|service| format!("service {}", visible(service))));
        parts.extend(
            process.as_ref().map(|process| format!("process {}: {}", process.pid, command(&process.argv))),
        );
        parts.extend(nested.as_ref().map(|nested| format!("in container {}", visible(nested))));
        parts.extend(uid.map(|uid| format!("user {uid}")));
    }
    if parts.is_empty() { "could not be found out".to_owned() } else { parts.join(" · ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_is_wider_than_the_terminal_and_nothing_is_lost() {
        let text = format!("{}日本{}", "a".repeat(30), "b".repeat(30));
        let parts = divided(&text, 20);
        assert_eq!(parts.concat(), text);
        assert!(
            parts
                .iter()
                .all(|part| part.chars().map(|c| if c.is_ascii() { 1 } else { 2 }).sum::<usize>() <= 20)
        );
        assert_eq!(divided("short", 20), ["short"]);
        assert_eq!(divided("", 20), [""]);
    }
}
