//! Decisions on record: why they were so, and what can be learned from them.
//!
//! | event            | body that is read                                                                       |
//! |------------------|-----------------------------------------------------------------------------------------|
//! | `egress.decided` | `request` (one line), `outcome`, `explanation`, `by`                                     |
//! | `egress.refused` | `what`, `host`, `port`, `why`, `by`: there was no request to decide on                   |
//!
//! Much of it was said by a bay: it is bounded, made harmless, and never more than a text to read.

use std::collections::HashSet;

use bay_policy::learn::MAX_REQUESTS;
use bay_policy::{CanonicalRequest, Layer, learn as lesson};
use bay_types::event::Event;
use bay_types::policy::{Explained, Lesson, MAX_REQUEST_BYTES, NotLearned, Recalled};
use bay_types::{ApiError, ErrorCode};
use jiff::Timestamp;
use serde_json::Value;

use super::ask;
use crate::channel::plain_text;
use crate::daemon::{Daemon, blocking};
use crate::registry::BayHandle;

const DECIDED: &str = "egress.decided";
const REFUSED: &str = "egress.refused";
/// Refusals that can be learned from at once, the newest.
const MAX_REFUSALS: u32 = 10_000;
/// Requests that cannot be learned from, of which an answer tells.
const MAX_NOT_LEARNED: usize = 200;
/// Longest rule, in characters, that is shown from a record.
const MAX_TOML: usize = 4096;

/// A text of a body, harmless.
fn text(body: &Value, key: &str) -> Option<String> {
    body.get(key).and_then(Value::as_str).map(plain_text)
}

/// The request of a record, if it has one that can be read.
fn request(event: &Event) -> Option<CanonicalRequest> {
    // One that is kept in part is another request.
    let whole = |line: &&str| line.len() <= MAX_REQUEST_BYTES && !line.contains('…');
    let line = event.body.get("request")?.as_str().filter(whole)?;
    CanonicalRequest::from_line(line).ok()
}

/// Where a connection went to of which no request is known.
fn destination(event: &Event) -> Option<(String, u16)> {
    let host = text(&event.body, "host")?;
    let port = event.body.get("port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok())?;
    Some((host, port))
}

/// Everything that a terminal would obey is taken out of the strings of a body; rules keep their lines.
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

fn recorded_explanation(event: &Event) -> Option<Explained> {
    let mut said = event.body.get("explanation")?.clone();
    harmless(&mut said, "");
    serde_json::from_value(said).ok()
}

pub(crate) async fn explain(daemon: &Daemon, handle: &BayHandle, id: u64) -> Result<Recalled, ApiError> {
    let found = daemon.store.event_of(handle.id, id).await.map_err(|e| e.to_api())?;
    let event = found.filter(|event| event.kind == DECIDED || event.kind == REFUSED).ok_or_else(|| {
        ApiError::new(
            ErrorCode::EventNotFound,
            format!("{} has no decision {id} on record", handle.name),
            format!("`bay egress {}` shows the decisions there are, each with its number", handle.name),
        )
    })?;
    let then = recorded_explanation(&event);
    let request = request(&event);
    let now = match &request {
        None => None,
        Some(request) => {
            let effective = super::effective_with_origins(daemon, handle).await;
            Some(ask::decided(&effective.policy, &request.to_string(), Timestamp::now())?)
        }
    };
    let shown = match (&request, destination(&event)) {
        (Some(request), _) => request.to_string(),
        (None, Some((host, port))) => format!("{host}:{port}"),
        (None, None) => text(&event.body, "request").unwrap_or_else(|| "a connection".to_owned()),
    };
    let outcome = text(&event.body, "outcome").unwrap_or_else(|| "refused".to_owned());
    let said = then.as_ref().map(|then| then.reason.clone()).filter(|reason| !reason.is_empty());
    let what = text(&event.body, "what").map(|what| of_connection(&what).to_owned());
    let why = text(&event.body, "why").or_else(|| text(&event.body, "reason"));
    let reason = match (said, what, why) {
        (Some(said), _, _) => said,
        (None, Some(what), Some(why)) => format!("{what}: {why}"),
        (None, Some(one), None) | (None, None, Some(one)) => one,
        (None, None, None) => "nothing more is on record".to_owned(),
    };
    let exec = event.body.get("by").and_then(|by| text(by, "exec"));
    Ok(Recalled { id, at: event.at, request: shown, outcome, reason, exec, then, now })
}

/// What was wrong with a connection on which no request was decided.
fn of_connection(what: &str) -> &'static str {
    match what {
        "connection" => "no rule lets a connection be made there",
        "nameless" => "the address was not looked up by a name, so nobody knows what was meant",
        "form" => "the request has no single meaning, and such a request is never sent",
        "protocol" => "what was sent is neither HTTP nor TLS",
        "too-many" => "the bay had too many connections open",
        "upgrade" => "the connection was to become something that cannot be read",
        _ => "it was refused before there was a request",
    }
}

/// Requests on record, each once, the newest first.
pub(super) async fn requests(
    daemon: &Daemon,
    handle: &BayHandle,
    limit: u32,
) -> Result<Vec<CanonicalRequest>, ApiError> {
    let events =
        daemon.store.events_of(handle.id, [DECIDED, DECIDED], limit).await.map_err(|e| e.to_api())?;
    let mut seen = HashSet::new();
    Ok(events.iter().filter_map(request).filter(|request| seen.insert(request.to_string())).collect())
}

/// The narrowest rules for the bay's own layer that would have allowed what was refused.
pub(crate) async fn learn(daemon: &Daemon, handle: &BayHandle) -> Result<Lesson, ApiError> {
    let events =
        daemon.store.events_of(handle.id, [DECIDED, REFUSED], MAX_REFUSALS).await.map_err(|e| e.to_api())?;
    let left_out = if events.len() >= MAX_REFUSALS as usize { 1 } else { 0 };
    let effective = super::effective_with_origins(daemon, handle).await;
    blocking(move || {
        let mut refused = Vec::new();
        let mut seen = HashSet::new();
        let mut not_learned: Vec<NotLearned> = Vec::new();
        let mut refusals = 0;
        for event in &events {
            if event.body.get("outcome").and_then(Value::as_str) == Some("allow") {
                continue;
            }
            refusals += 1;
            match learnable(event) {
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

/// The request that was refused, or why there is none to learn from.
fn learnable(event: &Event) -> Result<CanonicalRequest, NotLearned> {
    if event.kind == DECIDED {
        let not = |why: &str| NotLearned {
            request: text(&event.body, "request").unwrap_or_else(|| "a request".to_owned()),
            why: why.to_owned(),
        };
        // A rule must not say what a person did not.
        if event.body.get("asked") == Some(&Value::Bool(true)) {
            return Err(not("a person was asked about it, and it was not allowed"));
        }
        return request(event).ok_or_else(|| not("it has no form that a rule could cover"));
    }
    let what = text(&event.body, "what").unwrap_or_default();
    let to = destination(event);
    if let (Some((host, port)), "connection") = (&to, what.as_str())
        && !matches!(port, 80 | 443)
        && let Ok(request) = CanonicalRequest::tcp(host, *port)
    {
        return Ok(request);
    }
    let shown = to.map_or_else(|| "a connection".to_owned(), |(host, port)| format!("{host}:{port}"));
    Err(NotLearned { request: shown, why: of_connection(&what).to_owned() })
}
