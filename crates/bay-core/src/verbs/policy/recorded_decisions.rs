//! Recorded decisions: why they were made, and what can be learned from them.
//!
//! | event            | body that is read                                                                       |
//! |------------------|-----------------------------------------------------------------------------------------|
//! | `egress.decided` | `request` (one line), `outcome`, `explanation`, `by`                                     |
//! | `egress.refused` | `what`, `host`, `port`, `why`, `by`: there was no request to decide on                   |
//!
//! A bay chose much of their text. It is bounded and made harmless. It is shown, and compared with rules, and never
//! changes a policy.

use std::collections::HashSet;

use bay_policy::learn::MAX_REQUESTS;
use bay_policy::{CanonicalRequest, Layer, learn as lesson};
use bay_types::event::egress::{EgressDecided, EgressRefused, Outcome, Refusal};
use bay_types::event::{EgressEvent, Event, EventBody, Field, Recorded as _};
use bay_types::policy::{Explained, Lesson, MAX_REQUEST_BYTES, NotLearned, Recalled};
use bay_types::{Action, CoreError, ErrorCode, ExecId, Hint};
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::evaluate;
use crate::background::blocking;
use crate::channel::plain_text;
use crate::daemon::Daemon;
use crate::registry::BayHandle;

/// The most recorded decisions that are searched for refusals to learn from, the newest ones, allowed requests
/// included.
const MAX_REFUSALS: u32 = 10_000;
/// The most requests in an answer that cannot be learned from.
const MAX_NOT_LEARNED: usize = 200;
/// The longest rule, in characters, that is shown from the record.
const MAX_TOML: usize = 4096;

/// A recorded decision.
enum Recorded {
    Decided(EgressDecided),
    Refused(EgressRefused),
}

impl Recorded {
    fn of(event: &Event) -> Option<Self> {
        let read = match event.read() {
            // Of a body of unknown shape, only the kind of the decision is known.
            EventBody::Other(other) => EventBody::read(&other.kind, &Value::Object(Map::new())),
            known => known,
        };
        match read {
            EventBody::Egress(EgressEvent::Decided(decided)) => Some(Self::Decided(decided)),
            EventBody::Egress(EgressEvent::Refused(refused)) => Some(Self::Refused(refused)),
            _ => None,
        }
    }

    /// The request, if there is one that can be parsed.
    fn request(&self) -> Option<CanonicalRequest> {
        // If only a part of it is recorded, it would be another request.
        let whole = |line: &&str| line.len() <= MAX_REQUEST_BYTES && !line.contains('…');
        let Self::Decided(decided) = self else { return None };
        CanonicalRequest::from_line(Some(decided.request.as_str()).filter(whole)?).ok()
    }

    /// Where a connection without a known request went to.
    fn destination(&self) -> Option<(String, u16)> {
        let (host, port) = match self {
            Self::Decided(decided) => (&decided.host, decided.port),
            Self::Refused(refused) => (&refused.host, refused.port),
        };
        Some((plain_text(host), port)).filter(|(host, _)| !host.is_empty())
    }

    /// The request in one line.
    fn line(&self) -> String {
        match (self.request(), self.destination(), self) {
            (Some(request), _, _) => request.to_string(),
            (None, Some((host, port)), _) => format!("{host}:{port}"),
            (None, None, Self::Decided(decided)) if !decided.request.is_empty() => {
                plain_text(&decided.request)
            }
            (None, None, _) => "a connection".to_owned(),
        }
    }

    fn exec(&self) -> Option<ExecId> {
        match self {
            Self::Decided(decided) => decided.by.as_ref()?.exec,
            Self::Refused(refused) => refused.by.as_ref()?.exec,
        }
    }
}

/// Removes everything from the strings of a body that controls a terminal. Rules keep their line breaks.
fn harmless(value: &mut Value, key: &str) {
    match value {
        Value::String(text) if key == "toml" => {
            let lines: Vec<String> = text.split('\n').map(plain_text).collect();
            *text = lines.join("\n").chars().take(MAX_TOML).collect();
        }
        Value::String(text) => *text = plain_text(text),
        Value::Array(all) => all.iter_mut().for_each(|value| harmless(value, key)),
        Value::Object(all) => all.iter_mut().for_each(|(key, value)| harmless(value, key)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn recorded_explanation(decided: &EgressDecided) -> Option<Explained> {
    let mut said = decided.explanation.clone()?;
    harmless(&mut said, "");
    serde_json::from_value(said).ok()
}

pub(crate) async fn explain(daemon: &Daemon, handle: &BayHandle, id: u64) -> Result<Recalled, CoreError> {
    let found = daemon.store.event_of(handle.id, id).await.map_err(|e| e.to_api())?;
    let found = found.and_then(|event| Some((event.at, Recorded::of(&event)?)));
    let (at, recorded) = found.ok_or_else(|| {
        CoreError::new(
            ErrorCode::EventNotFound,
            format!("{} has no decision {id} on record", handle.name),
            Hint::new(
                "{} lists the decisions with their numbers",
                [Action::ListEgress((&handle.name).into())],
            ),
        )
    })?;
    let now = match recorded.request() {
        None => None,
        Some(request) => {
            let effective = super::effective_with_origins(daemon, handle).await;
            Some(evaluate::decided(&effective.policy, &request.to_string(), Timestamp::now())?)
        }
    };
    let (then, outcome, reason) = match &recorded {
        Recorded::Decided(decided) => {
            let then = recorded_explanation(decided);
            let outcome = decided.outcome.get().map_or("refused", |outcome| outcome.as_str());
            let reason = then.as_ref().map(|then| then.reason.clone());
            (then, outcome, reason)
        }
        Recorded::Refused(refused) => {
            let what = refused.what.get().map(|what| of_connection(Some(*what)));
            let why = Some(plain_text(&refused.why)).filter(|why| !why.is_empty());
            let reason = match (what, why) {
                (Some(what), Some(why)) => Some(format!("{what}: {why}")),
                (what, why) => what.map(str::to_owned).or(why),
            };
            (None, "refused", reason)
        }
    };
    let reason =
        reason.filter(|said| !said.is_empty()).unwrap_or_else(|| "nothing more is on record".to_owned());
    let exec = recorded.exec().map(|exec| exec.to_string());
    Ok(Recalled { id, at, request: recorded.line(), outcome: outcome.to_owned(), reason, exec, then, now })
}

/// What was wrong with a connection on which no request was decided.
fn of_connection(what: Option<Refusal>) -> &'static str {
    match what {
        Some(Refusal::Connection) => "no rule lets a connection be made there",
        Some(Refusal::Nameless) => "the address was not looked up by a name, so nobody knows what was meant",
        Some(Refusal::Form) => "the request has no single meaning, and such a request is never sent",
        Some(Refusal::Protocol) => "what was sent is neither HTTP nor TLS",
        Some(Refusal::TooMany) => "the bay had too many connections open",
        Some(Refusal::Upgrade) => "the connection was to become something that cannot be read",
        Some(Refusal::Secret) | None => "it was refused before there was a request",
    }
}

/// The requests of the newest `limit` decisions, each once, the newest first.
pub(super) async fn requests(
    daemon: &Daemon,
    handle: &BayHandle,
    limit: u32,
) -> Result<Vec<CanonicalRequest>, CoreError> {
    let events = daemon
        .store
        .events_of(handle.id, [EgressDecided::KIND, EgressDecided::KIND], limit)
        .await
        .map_err(|e| e.to_api())?;
    let mut seen = HashSet::new();
    let requests = events.iter().filter_map(|event| Recorded::of(event)?.request());
    Ok(requests.filter(|request| seen.insert(request.to_string())).collect())
}

/// The narrowest rules for the bay's own layer that would allow the refused requests, as far as rules can.
pub(crate) async fn learn(daemon: &Daemon, handle: &BayHandle) -> Result<Lesson, CoreError> {
    let events = daemon
        .store
        .events_of(handle.id, [EgressDecided::KIND, EgressRefused::KIND], MAX_REFUSALS)
        .await
        .map_err(|e| e.to_api())?;
    let left_out = if events.len() >= MAX_REFUSALS as usize { 1 } else { 0 };
    let effective = super::effective_with_origins(daemon, handle).await;
    blocking(move || {
        let mut refused = Vec::new();
        let mut seen = HashSet::new();
        let mut not_learned: Vec<NotLearned> = Vec::new();
        let mut refusals = 0;
        for recorded in events.iter().filter_map(Recorded::of) {
            if matches!(&recorded, Recorded::Decided(decided) if decided.outcome == Field::Is(Outcome::Allow))
            {
                continue;
            }
            refusals += 1;
            match learnable(&recorded) {
                Ok(request) => {
                    if seen.insert(request.to_string()) && refused.len() < MAX_REQUESTS {
                        refused.push(request);
                    }
                }
                Err(note) => {
                    if !not_learned.contains(&note) && not_learned.len() < MAX_NOT_LEARNED {
                        not_learned.push(note);
                    }
                }
            }
        }
        let lesson = lesson(&effective.policy, &refused, Layer::Bay, Timestamp::now());
        let more = lesson.not_learned.into_iter();
        not_learned.extend(more.map(|note| NotLearned { request: note.request, why: note.why }));
        not_learned.truncate(MAX_NOT_LEARNED);
        Ok(Lesson {
            toml: lesson.toml,
            rules: lesson.rules.len() as u64,
            refusals,
            not_learned,
            left_out: left_out + lesson.left_out as u64,
        })
    })
    .await
}

/// The refused request, or why nothing can be learned from it.
fn learnable(recorded: &Recorded) -> Result<CanonicalRequest, NotLearned> {
    let refused = match recorded {
        Recorded::Decided(decided) => {
            let not = |why: &str| {
                let request = match decided.request.as_str() {
                    "" => "a request".to_owned(),
                    request => plain_text(request),
                };
                NotLearned { request, why: why.to_owned() }
            };
            // A person did not allow it. A rule must not allow it instead.
            if decided.asked {
                return Err(not("a person was asked about it, and it was not allowed"));
            }
            return recorded.request().ok_or_else(|| not("it has no form that a rule could cover"));
        }
        Recorded::Refused(refused) => refused,
    };
    let what = refused.what.get().copied();
    let to = recorded.destination();
    if let (Some((host, port)), Some(Refusal::Connection)) = (&to, what)
        && !matches!(port, 80 | 443)
        && let Ok(request) = CanonicalRequest::tcp(host, *port)
    {
        return Ok(request);
    }
    let shown = to.map_or_else(|| "a connection".to_owned(), |(host, port)| format!("{host}:{port}"));
    Err(NotLearned { request: shown, why: of_connection(what).to_owned() })
}
