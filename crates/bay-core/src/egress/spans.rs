//! Spans of requests whose exec is traced, as children of the exec's span. If no collector is configured, no span is
//! made. No request waits for the collector. A refusal waits until its exec's trace is read from the store.

use std::sync::Arc;

use bay_gateway::{Ended, Ending};
use bay_store::Store;
use bay_types::event::{EgressEvent, EventBody};
use bay_types::trace::ExecTrace;
use bay_types::{BayId, BayName};
use jiff::Timestamp;

use crate::channel::plain_text;
use crate::telemetry::{Requested, Span, Telemetry, new_span_id};

/// The trace of the exec that an event is about, if the exec has one.
async fn trace(store: &Store, bay: BayId, event: &EgressEvent) -> Option<ExecTrace> {
    let exec = event.exec()?;
    store.exec_get(bay, exec).await.ok()??.trace
}

fn requested<'a>(bay: &'a BayName, id: u64, event: &'a EgressEvent, start: Timestamp) -> Requested<'a> {
    let (line, host, port, rule) = match event {
        EgressEvent::Decided(decided) => {
            let rule = decided.rule.as_ref().map(|rule| rule.id.as_str());
            (decided.request.as_str(), Some(decided.host.as_str()), Some(decided.port), rule)
        }
        EgressEvent::Refused(refused) => {
            (refused.host.as_str(), Some(refused.host.as_str()), Some(refused.port), None)
        }
        _ => ("", None, None, None),
    };
    Requested {
        bay,
        id,
        line,
        host,
        port: port.map(u64::from),
        rule,
        start,
        end: Timestamp::now(),
        status: None,
        sent: None,
        received: None,
        error: None,
    }
}

fn send_span(telemetry: &Telemetry, trace: ExecTrace, request: Requested<'_>) {
    if let Some(spans) = &telemetry.spans
        && let Some(span_id) = new_span_id()
        && let Some(span) = Span::of_request(trace, span_id, request)
    {
        spans.offer(span);
    }
}

/// Reports the traced requests of one bay.
#[derive(Debug)]
pub(super) struct RequestSpans {
    pub(super) store: Store,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) bay: BayId,
    pub(super) name: BayName,
}

impl RequestSpans {
    /// Reports a refusal.
    pub(super) async fn refused(&self, id: u64, event: &EgressEvent) {
        if self.telemetry.spans.is_none() {
            return;
        }
        let Some(trace) = trace(&self.store, self.bay, event).await else { return };
        let why = match event {
            EgressEvent::Decided(decided) => decided.reason(),
            EgressEvent::Refused(refused) => Some(refused.why.as_str()),
            _ => None,
        };
        let why = plain_text(why.unwrap_or_default());
        let request = requested(&self.name, id, event, Timestamp::now());
        send_span(&self.telemetry, trace, Requested { error: Some(format!("refused: {why}")), ..request });
    }

    /// Reports the end of an allowed request or connection.
    pub(super) async fn ended(&self, id: u64, ended: &Ended) {
        if self.telemetry.spans.is_none() {
            return;
        }
        let Ok(Some(event)) = self.store.event_of(self.bay, id).await else { return };
        let EventBody::Egress(decided) = event.read() else { return };
        let Some(trace) = trace(&self.store, self.bay, &decided).await else { return };
        let (status, error) = match ended.ending {
            Ending::Answered { status } => (Some(status), None),
            Ending::Broken { status, failure } => {
                (Some(status), Some(format!("broken: {}", failure.as_str())))
            }
            Ending::Failed { failure } => (None, Some(format!("failed: {}", failure.as_str()))),
            Ending::Revoked => (None, Some("ended by a change of policy".to_owned())),
            Ending::Closed | Ending::Abandoned | Ending::Refused => (None, None),
        };
        let request = requested(&self.name, id, &decided, event.at);
        let (sent, received) = (Some(ended.sent), Some(ended.received));
        send_span(&self.telemetry, trace, Requested { status, error, sent, received, ..request });
    }
}
