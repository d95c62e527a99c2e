//! Requests of execs that are traced, as spans below the exec's. Only where somebody listens, and never waited for.

use bay_gateway::{Ended, Ending};
use bay_types::trace::ExecTrace;
use bay_types::{BayId, BayName, ExecId};
use jiff::Timestamp;
use serde_json::Value;

use crate::channel::plain_text;
use crate::daemon::Daemon;
use crate::telemetry::{Requested, Span, new_span_id};

/// The trace of the exec that an event is about, if that has one.
async fn trace(daemon: &Daemon, bay: BayId, body: &Value) -> Option<ExecTrace> {
    let exec: ExecId = body.get("by")?.get("exec")?.as_str()?.parse().ok()?;
    daemon.store.exec_get(bay, exec).await.ok()??.trace
}

fn requested<'a>(bay: &'a BayName, id: u64, body: &'a Value, start: Timestamp) -> Requested<'a> {
    let text = |key: &str| body.get(key).and_then(Value::as_str);
    let host = text("host");
    Requested {
        bay,
        id,
        line: text("request").or(host).unwrap_or_default(),
        host,
        port: body.get("port").and_then(Value::as_u64),
        rule: body.get("rule").and_then(|rule| rule.get("id")?.as_str()),
        start,
        end: Timestamp::now(),
        status: None,
        sent: None,
        received: None,
        error: None,
    }
}

fn offer(daemon: &Daemon, trace: ExecTrace, request: Requested<'_>) {
    if let Some(spans) = &daemon.telemetry.spans
        && let Some(span_id) = new_span_id()
        && let Some(span) = Span::of_request(trace, span_id, request)
    {
        spans.offer(span);
    }
}

/// Something was refused just now.
pub(super) async fn refused(daemon: &Daemon, bay: BayId, name: &BayName, id: u64, body: &Value) {
    if daemon.telemetry.spans.is_none() {
        return;
    }
    let Some(trace) = trace(daemon, bay, body).await else { return };
    let why = body.get("explanation").and_then(|said| said.get("reason")).or_else(|| body.get("why"));
    let why = plain_text(why.and_then(Value::as_str).unwrap_or_default());
    let request = requested(name, id, body, Timestamp::now());
    offer(daemon, trace, Requested { error: Some(format!("refused: {why}")), ..request });
}

/// Something that was let out is over.
pub(super) async fn over(daemon: &Daemon, bay: BayId, name: &BayName, id: u64, ended: &Ended) {
    if daemon.telemetry.spans.is_none() {
        return;
    }
    let Ok(Some(event)) = daemon.store.event_of(bay, id).await else { return };
    let Some(trace) = trace(daemon, bay, &event.body).await else { return };
    let (status, error) = match ended.ending {
        Ending::Answered { status } => (Some(status), None),
        Ending::Broken { status, failure } => (Some(status), Some(format!("broken: {}", failure.as_str()))),
        Ending::Failed { failure } => (None, Some(format!("failed: {}", failure.as_str()))),
        Ending::Revoked => (None, Some("ended by a change of policy".to_owned())),
        Ending::Closed | Ending::Abandoned | Ending::Refused => (None, None),
    };
    let request = requested(name, id, &event.body, event.at);
    let (sent, received) = (Some(ended.sent), Some(ended.received));
    offer(daemon, trace, Requested { status, error, sent, received, ..request });
}
