//! Approval cards for a terminal. Everything that a bay wrote is shown with terminal sequences made visible.

use std::fmt::Write as _;

use bay_types::approval::{
    Answer, Approval, ApprovalState, Asked, AskedRequest, BodySeen, Differs, Push, Reach,
};
use bay_types::egress::Who;
use jiff::Timestamp;

use crate::output::rows::{divided, width};
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

/// Most characters of a body in one line of a list.
const MAX_BRIEF: usize = 80;

/// The most important part of a request beside its line: the refs of a push, or the beginning of its body.
fn brief(card: &Approval) -> String {
    let Asked::Request(asked) = &card.asked else { return String::new() };
    let whole = match (&asked.push, &asked.body) {
        (Some(push), _) => {
            let refs = push.refs.iter().map(|change| {
                let new = change.new.as_ref().map_or("deleted", |new| new.get(..12).unwrap_or(new));
                format!("{} at {}", visible(&change.name), visible(new))
            });
            let options = push.options.iter().map(|option| format!("option {}", visible(option)));
            refs.chain(options).collect::<Vec<_>>().join(", ")
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
    let is_request = matches!(card.asked, Asked::Request(_));
    let scope = match reach {
        Reach::Once if is_request => "one request".to_owned(),
        Reach::Once => "one start".to_owned(),
        Reach::Exec => "this exec, while it runs".to_owned(),
        Reach::For if is_request => format!("sent by any command of {} for {left}", visible(&card.bay_name)),
        Reach::For => format!("any number of times for {left}"),
        Reach::Save => format!("a rule in the policy of {}", visible(&card.bay_name)),
    };
    let waits = match (reach, card.held) {
        (Reach::Once, 0) if !is_request => format!(
            "; nobody is waiting: only the same command, requested again within {left}, is allowed. Any other needs a new approval"
        ),
        (Reach::Once, 0) => format!(
            "; its client has left: only the same request, sent again within {left}, is allowed. Any other needs a new approval"
        ),
        _ => String::new(),
    };
    format!("covers {what}; {scope}{waits}")
}

/// On a terminal, an entry of a list is shortened to about this many lines.
const MAX_LIST_LINES: usize = 4;
/// An entry of a list is shortened to about this many characters, on a terminal too.
const MAX_LIST_CHARS: usize = 600;
/// The prefix of each further line of an entry, so that no text from a bay can look like the next entry.
const FURTHER_LINE: &str = "          │ ";

/// An entry of a list: one line, or a few on a terminal with this many `columns`.
pub(super) fn line(card: &Approval, now: Timestamp, columns: Option<usize>) -> String {
    let id = card.id.short();
    let (state, end) = match card.state {
        ApprovalState::Open => {
            let left = span(now, card.expires);
            let held = if card.held == 0 { ", its client has left" } else { "" };
            let careful = if card.warnings.is_empty() && card.differs.is_none() {
                String::new()
            } else {
                format!("; careful: `bay approvals show {id}`")
            };
            let asked = span(card.asked_at, now);
            ("open", format!("  (asked {asked} ago, {left} left{held}{careful})"))
        }
        state => (state.as_str(), format!(" {}", answer(card))),
    };
    let begin = format!("{id}  {state:7}  {}  ", visible(&card.bay_name));
    let room = columns.map(|columns| columns.saturating_sub(width(FURTHER_LINE)).max(LEAST_ROOM));
    let most = room.map_or(MAX_LIST_CHARS, |room| (room * MAX_LIST_LINES).min(MAX_LIST_CHARS));
    let left = most.saturating_sub(width(&begin) + width(&end)).max(LEAST_ROOM);
    let what = format!("{}{}", asked(card), brief(card));
    let what = match divided(&what, left).into_iter().next() {
        Some(shown) if shown.len() < what.len() => format!("{shown}…"),
        _ => what,
    };
    let text = format!("{begin}{what}{end}");
    match room {
        Some(room) => divided(&text, room).join(&format!("\n{FURTHER_LINE}")),
        None => text,
    }
}

/// Columns of the label at the beginning of each line of a card.
const LABEL: usize = 13;
/// Fewest columns of a value, however narrow the terminal is.
const LEAST_ROOM: usize = 20;

/// The whole card. If the terminal has at least `LABEL + 2 + LEAST_ROOM` columns, no text from a bay exceeds `columns`.
pub(super) fn whole(card: &Approval, now: Timestamp, columns: Option<usize>) -> String {
    let mut text = format!("── {} ── {} ── {}\n", card.id, visible(&card.bay_name), card.state);
    let room = columns.map_or(usize::MAX, |columns| columns.saturating_sub(LABEL + 2).max(LEAST_ROOM));
    let mut row = |key: &str, value: String| {
        for (at, part) in divided(&value, room).into_iter().enumerate() {
            let _ = match at {
                0 => writeln!(text, "  {key:10} {part}"),
                // No text from a bay begins a line of the card.
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
            for setting in &asked.settings {
                row("", visible(setting));
            }
            for variable in &asked.env {
                row("variable", visible(variable));
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
    // A card of a command shows neither a process that caused it nor secrets.
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
            format!("{checkpoint}: `bay approvals deny {} --rollback` restores it", card.id.short()),
        );
    }
    row("digest", visible(&card.digest));
    match card.state {
        ApprovalState::Open => {
            let waits = match card.held {
                0 if is_request => "its client has left: an allow is for the same request, sent again",
                0 => "nobody is waiting: an allow is for the same command, requested again",
                _ => "held",
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
    for value in &asked.header_values {
        row("header", visible(value));
    }
    match &asked.body {
        // The refs of the push are already shown above.
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
            format!("{long}, only the beginning was read; the first {} are", size(body.previewed))
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
    for option in &push.options {
        row("push", format!("option {}", visible(option)));
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
            process.as_ref().map(|process| format!("process {}: {}", process.pid, command(&process.words()))),
        );
        parts.extend(nested.as_ref().map(|nested| format!("in container {}", visible(nested))));
        parts.extend(uid.map(|uid| format!("user {uid}")));
    }
    if parts.is_empty() { "could not be determined".to_owned() } else { parts.join(" · ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(request: &str) -> Approval {
        serde_json::from_value(serde_json::json!({
            "id": bay_types::ApprovalId::generate(), "bay": bay_types::BayId::generate(), "bay_name": "b", "state": "open",
            "asked_at": Timestamp::UNIX_EPOCH, "expires": Timestamp::UNIX_EPOCH, "digest": "d", "held": 1,
            "asked": { "what": "request", "request": request, "host": "a.test", "port": 443 },
        }))
        .unwrap()
    }

    #[test]
    fn approval_row_no_request_can_look_like_the_next_entry_of_a_list() {
        for padding in 0..200 {
            let forged = format!(
                "GET https://a.test/{}0ad28bf1  open     b  GET https://b.test/",
                "n".repeat(padding)
            );
            let shown = line(&open(&forged), Timestamp::UNIX_EPOCH, Some(80));
            let lines: Vec<&str> = shown.lines().collect();
            assert!(lines.len() <= MAX_LIST_LINES + 1, "{shown}");
            assert!(lines.iter().all(|line| width(line) <= 80), "{shown}");
            assert!(lines[1..].iter().all(|line| line.starts_with(FURTHER_LINE)), "{shown}");
            assert!(shown.replace(&format!("\n{FURTHER_LINE}"), "").ends_with(" ago, 0 s left)"), "{shown}");
        }
    }

    #[test]
    fn approval_row_a_long_request_takes_a_few_lines_of_a_list_and_keeps_its_end() {
        let long = open(&format!("GET https://a.test/{}", "x".repeat(5000)));
        for columns in [None, Some(20), Some(80), Some(300)] {
            let shown = line(&long, Timestamp::UNIX_EPOCH, columns);
            let whole = shown.replace(&format!("\n{FURTHER_LINE}"), "");
            assert!(whole.contains('…') && whole.ends_with("left)"), "{shown}");
            assert!(shown.len() < 2 * MAX_LIST_CHARS, "{shown}");
        }
    }
}
