//! What events of a bay's traffic mean to whoever reads them. Much of them was said by the bay: every text is made harmless,
//! and a body of another shape than expected is an entry with less in it.

use bay_types::egress::Who;
use bay_types::event::Event;
use bay_types::traffic::{
    DECIDED, ENDED, EgressEntry, EgressOutcome, EgressRule, LOOKED_UP, REFUSED, REPEATED,
};
use serde_json::Value;

use crate::channel::plain_text;

/// What is shown of a body that could not be read.
const UNREADABLE: &str = "(not on record)";

/// What an event is to its reader.
#[derive(Debug)]
pub(super) enum Meaning {
    /// Something was let out, and is told when it is over.
    Begun(Box<EgressEntry>),
    Whole(Box<EgressEntry>),
    /// The end of what was begun with this number.
    Over(u64),
    Nothing,
}

/// An entry of which nothing is known but its event.
fn blank(id: u64, event: &Event) -> EgressEntry {
    EgressEntry {
        seq: event.seq,
        id,
        at: event.at,
        outcome: EgressOutcome::Refused,
        request: UNREADABLE.to_owned(),
        ending: None,
        status: None,
        failure: None,
        sent: None,
        received: None,
        ms: None,
        rule: None,
        secrets: Vec::new(),
        reason: None,
        by: None,
        exec_number: None,
        exec_argv: Vec::new(),
        count: None,
        within_s: None,
        distinct: None,
        sample: Vec::new(),
    }
}

pub(super) fn meaning(event: &Event) -> Meaning {
    let body = &event.body;
    let mut entry =
        EgressEntry { rule: rule(body), by: body.get("by").and_then(who), ..blank(event.seq, event) };
    let to = || Some(format!("{}:{}", text(body, "host")?, number(body, "port")?));
    let set = |entry: &mut EgressEntry, request: Option<String>| {
        if let Some(request) = request {
            entry.request = request;
        }
    };
    match event.kind.as_str() {
        DECIDED => {
            set(&mut entry, text(body, "request").or_else(to));
            entry.reason = body.get("explanation").and_then(|said| text(said, "reason"));
            entry.secrets = texts(body, "secrets");
            entry.outcome = match body.get("outcome").and_then(Value::as_str) {
                Some("allow") => EgressOutcome::UnderWay,
                Some("ask") => EgressOutcome::Ask,
                _ => EgressOutcome::Denied,
            };
            if entry.outcome == EgressOutcome::UnderWay {
                return Meaning::Begun(Box::new(entry));
            }
        }
        REFUSED => {
            set(&mut entry, to());
            entry.reason = text(body, "why").or_else(|| text(body, "what"));
        }
        ENDED => return number(body, "of").map_or(Meaning::Nothing, Meaning::Over),
        LOOKED_UP => {
            entry.outcome = EgressOutcome::LookedUp;
            set(&mut entry, text(body, "name"));
            entry.reason = match (text(body, "type"), text(body, "answer")) {
                (Some(kind), Some(answer)) => Some(format!("{kind}: {answer}")),
                (one, other) => one.or(other),
            };
        }
        REPEATED => {
            entry.outcome = EgressOutcome::Repeated;
            set(&mut entry, text(body, "of").filter(|of| !of.is_empty()));
            entry.id = number(body, "like").unwrap_or(0);
            entry.reason = text(body, "what");
            entry.count = number(body, "count");
            entry.within_s = number(body, "within_s");
            entry.distinct = number(body, "distinct");
            entry.sample = texts(body, "sample");
        }
        _ => return Meaning::Nothing,
    }
    Meaning::Whole(Box::new(entry))
}

/// What was let out, with its end. Its beginning may be missing from a record that was cut.
pub(super) fn over(begun: Option<Box<EgressEntry>>, of: u64, end: &Event) -> EgressEntry {
    let mut entry = begun.map_or_else(|| blank(of, end), |entry| *entry);
    entry.outcome = EgressOutcome::Ended;
    (entry.seq, entry.at) = (end.seq, end.at);
    entry.ending = text(&end.body, "ending");
    entry.failure = text(&end.body, "failure");
    entry.status = number(&end.body, "status").and_then(|status| u16::try_from(status).ok());
    entry.sent = number(&end.body, "sent");
    entry.received = number(&end.body, "received");
    entry.ms = number(&end.body, "ms");
    entry
}

fn text(body: &Value, key: &str) -> Option<String> {
    body.get(key).and_then(Value::as_str).map(plain_text)
}

fn number(body: &Value, key: &str) -> Option<u64> {
    body.get(key).and_then(Value::as_u64)
}

fn rule(body: &Value) -> Option<EgressRule> {
    let rule = body.get("rule")?;
    Some(EgressRule { id: text(rule, "id")?, origin: text(rule, "origin").unwrap_or_default() })
}

fn texts(body: &Value, key: &str) -> Vec<String> {
    let texts = body.get(key).and_then(Value::as_array).into_iter().flatten();
    texts.filter_map(Value::as_str).map(plain_text).collect()
}

fn who(said: &Value) -> Option<Who> {
    let mut who: Who = serde_json::from_value(said.clone()).ok()?;
    who.service = who.service.as_deref().map(plain_text);
    who.nested = who.nested.as_deref().map(plain_text);
    if let Some(process) = &mut who.process {
        process.exe = plain_text(&process.exe);
        process.argv.iter_mut().for_each(|word| *word = plain_text(word));
    }
    Some(who)
}
