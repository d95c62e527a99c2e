//! The entries of a bay's traffic, from its events. The bay chose much of their text: every text is made harmless. A
//! body of unexpected shape becomes an entry with less content.

use std::fmt::Display;

use bay_types::egress::Who;
use bay_types::event::egress::Outcome;
use bay_types::event::{EgressEvent, Event, EventBody, Field};
use bay_types::traffic::{EgressEntry, EgressOutcome, EgressRule};

use crate::channel::plain_text;

/// Shown in place of a body that could not be read.
const UNREADABLE: &str = "(not on record)";

/// What an event means for the list of entries.
#[derive(Debug)]
pub(super) enum Meaning {
    /// Something was let out. Its entry waits for its end.
    Begun(Box<EgressEntry>),
    Whole(Box<EgressEntry>),
    /// The end of what began with this number.
    Over(u64),
    Nothing,
}

/// An entry of an event about which nothing else is known.
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
    let EventBody::Egress(said) = event.read() else { return Meaning::Nothing };
    let mut entry = EgressEntry { by: said.who().cloned().map(harmless), ..blank(event.seq, event) };
    let set = |entry: &mut EgressEntry, request: String| {
        if !request.is_empty() {
            entry.request = request;
        }
    };
    match said {
        EgressEvent::Decided(decided) => {
            let request = match decided.request.as_str() {
                "" => destination(&decided.host, decided.port),
                request => plain_text(request),
            };
            set(&mut entry, request);
            entry.reason = decided.reason().map(plain_text);
            entry.secrets = decided.secrets.iter().map(|name| plain_text(name)).collect();
            entry.rule = decided
                .rule
                .map(|rule| EgressRule { id: plain_text(&rule.id), origin: plain_text(&rule.origin) });
            entry.outcome = match decided.outcome.get() {
                Some(Outcome::Allow) => EgressOutcome::UnderWay,
                Some(Outcome::Ask) => EgressOutcome::Ask,
                Some(Outcome::Deny) | None => EgressOutcome::Denied,
            };
            if entry.outcome == EgressOutcome::UnderWay {
                return Meaning::Begun(Box::new(entry));
            }
        }
        EgressEvent::Refused(refused) => {
            set(&mut entry, destination(&refused.host, refused.port));
            entry.reason = some(&refused.why).or_else(|| word(&refused.what));
        }
        EgressEvent::Ended(ended) => {
            return ended.of.get().map_or(Meaning::Nothing, |of| Meaning::Over(*of));
        }
        EgressEvent::LookedUp(look_up) => {
            entry.outcome = EgressOutcome::LookedUp;
            set(&mut entry, plain_text(&look_up.name));
            entry.reason = match (some(&look_up.r#type), word(&look_up.answer)) {
                (Some(kind), Some(answer)) => Some(format!("{kind}: {answer}")),
                (one, other) => one.or(other),
            };
        }
        EgressEvent::Repeated(sum) => {
            entry.outcome = EgressOutcome::Repeated;
            set(&mut entry, plain_text(&sum.of));
            entry.id = sum.like;
            entry.reason = some(&sum.what);
            entry.count = sum.count.get().copied();
            entry.within_s = sum.within_s.get().copied();
            entry.distinct = sum.distinct;
            entry.sample = sum.sample.iter().map(|name| plain_text(name)).collect();
        }
        EgressEvent::Opened(_) | EgressEvent::Closed(_) => return Meaning::Nothing,
    }
    Meaning::Whole(Box::new(entry))
}

/// The entry of something that was let out, with its end. The beginning may be missing in a truncated record.
pub(super) fn over(begun: Option<Box<EgressEntry>>, of: u64, end: &Event) -> EgressEntry {
    let mut entry = begun.map_or_else(|| blank(of, end), |entry| *entry);
    entry.outcome = EgressOutcome::Ended;
    (entry.seq, entry.at) = (end.seq, end.at);
    if let EventBody::Egress(EgressEvent::Ended(ended)) = end.read() {
        entry.ending = word(&ended.ending);
        entry.failure = ended.failure.as_deref().map(plain_text);
        entry.status = ended.status;
        entry.sent = ended.sent.get().copied();
        entry.received = ended.received.get().copied();
        entry.ms = ended.ms.get().copied();
    }
    entry
}

/// `HOST:PORT`, or nothing.
fn destination(host: &str, port: u16) -> String {
    if host.is_empty() { String::new() } else { format!("{}:{port}", plain_text(host)) }
}

fn some(text: &str) -> Option<String> {
    Some(plain_text(text)).filter(|text| !text.is_empty())
}

/// The name of a value, also of one that only a later release knows.
fn word<T: Display>(field: &Field<T>) -> Option<String> {
    match field {
        Field::Is(word) => Some(word.to_string()),
        Field::Odd(other) => other.as_str().map(plain_text),
    }
}

fn harmless(mut who: Who) -> Who {
    who.service = who.service.as_deref().map(plain_text);
    who.nested = who.nested.as_deref().map(plain_text);
    if let Some(process) = &mut who.process {
        process.exe = plain_text(&process.exe);
        process.argv.iter_mut().for_each(|word| *word = plain_text(word));
    }
    who
}
