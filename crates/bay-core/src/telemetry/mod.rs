//! What the daemon reports about execs and bays: counters and costs on request (`GET /metrics`, `bay show`), and
//! spans to a collector (`bay serve --otlp URL`).
//!
//! ```text
//!   end of an exec ──► counters ──────────────────────────────► GET /metrics
//!                 └──► otlp: bounded queue ──► one task ──► the collector
//!   every few seconds ──► cost: groups of all bays, from the host's side ──► bay show, GET /metrics, the store
//! ```
//!
//! No request or exec waits for the collector. One that is down, slow or hostile costs spans, which are counted,
//! and a moment at the end of the daemon. Numbers of execs are claims of their bays. Numbers of bays are measured
//! by the host.

use std::num::{NonZeroU64, NonZeroU128};
use std::sync::Arc;

use bay_store::ExecRow;
use bay_types::bay::BayView;
use bay_types::trace::{ExecTrace, SpanId, TraceId, Traceparent};
use bay_types::{BayName, CoreError};
use jiff::Timestamp;

mod cost;
pub(crate) mod counters;
pub(crate) mod exposition;
mod otlp;

pub(crate) use cost::Costs;
pub(crate) use counters::Counters;
pub use otlp::Collector;
use otlp::text;
pub(crate) use otlp::{Requested, Span, Spans};

#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    pub(crate) counters: Arc<Counters>,
    pub(crate) costs: Costs,
    /// Absent without a collector.
    pub(crate) spans: Option<Spans>,
}

impl Telemetry {
    /// Starts to send spans if there is a collector.
    pub(crate) fn new(collector: Option<Collector>, daemon_id: &str) -> Self {
        let counters = Arc::<Counters>::default();
        let spans = collector.map(|to| Spans::start(to, daemon_id, Arc::clone(&counters)));
        Self { counters, spans, costs: Costs::default() }
    }

    /// The place of something new in a trace: below its caller's span, or at the top of a new trace. Without a
    /// collector, a caller's context is only passed on.
    pub(crate) fn place(&self, parent: Option<Traceparent>) -> Option<ExecTrace> {
        let span_id = match &self.spans {
            Some(_) => Some(new_span_id()?),
            None => None,
        };
        match parent {
            Some(parent) => Some(ExecTrace {
                trace_id: parent.trace_id,
                span_id,
                parent_span_id: Some(parent.span_id),
                sampled: parent.sampled,
            }),
            None => {
                span_id?;
                Some(ExecTrace { trace_id: new_trace_id()?, span_id, parent_span_id: None, sampled: true })
            }
        }
    }

    /// Reports that a bay was made or could not be made: one span, with one span below it for each part.
    pub(crate) fn bay_made(
        &self,
        trace: ExecTrace,
        began: Timestamp,
        prepared: Option<Timestamp>,
        made: Result<&BayView, &CoreError>,
    ) {
        let Some(spans) = &self.spans else { return };
        let now = Timestamp::now();
        let below = |name: &str, from, to| {
            let trace = ExecTrace { span_id: new_span_id(), parent_span_id: trace.span_id, ..trace };
            Span::at(trace, name.to_owned(), from, to)
        };
        let Some(mut whole) = Span::at(trace, "bay create".to_owned(), began, now) else { return };
        match made {
            Ok(bay) => {
                whole.attributes.push(("bay.name", text(bay.name.as_str())));
                whole.attributes.push(("bay.id", text(bay.id.to_string())));
                whole.attributes.push(("bay.image", text(&bay.image)));
            }
            Err(error) => whole.error = Some(format!("{}: {}", error.code, error.message)),
        }
        let parts = [
            below("prepare image and repository", began, prepared.unwrap_or(now)),
            prepared.and_then(|prepared| below("make disk and start guest", prepared, now)),
        ];
        for span in [Some(whole)].into_iter().chain(parts).flatten() {
            spans.offer(span);
        }
    }

    /// Reports that an exec ended and is recorded.
    pub(crate) fn exec_over(&self, bay: &BayName, row: &ExecRow, cpus: u64) {
        self.counters.exec_ended(row, cpus);
        if let Some(spans) = &self.spans
            && let Some(span) = Span::of_exec(bay, row)
        {
            spans.offer(span);
        }
    }
}

fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    // The kernel returns so few bytes completely or not at all.
    match rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()) {
        Ok(given) if given == N => Some(bytes),
        _ => None,
    }
}

fn new_trace_id() -> Option<TraceId> {
    NonZeroU128::new(u128::from_be_bytes(random()?)).map(TraceId)
}

pub(crate) fn new_span_id() -> Option<SpanId> {
    NonZeroU64::new(u64::from_be_bytes(random()?)).map(SpanId)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    #[test]
    fn without_a_collector_a_caller_s_context_is_passed_on_and_none_is_made_up() {
        let quiet = Telemetry::default();
        assert_eq!(quiet.place(None), None);
        let caller: Traceparent = CALLER.parse().unwrap();
        assert_eq!(quiet.place(Some(caller)).unwrap().inside(), Some(caller));
    }

    #[tokio::test]
    async fn with_a_collector_every_exec_has_a_span_of_its_own() {
        let collector = Collector::parse("http://127.0.0.1:9").unwrap();
        let telemetry = Telemetry::new(Some(collector), "0123");
        let alone = telemetry.place(None).unwrap();
        assert!(alone.sampled && alone.parent_span_id.is_none() && alone.span_id.is_some());
        let caller: Traceparent = CALLER.parse().unwrap();
        let below = telemetry.place(Some(caller)).unwrap();
        assert_eq!((below.trace_id, below.parent_span_id), (caller.trace_id, Some(caller.span_id)));
        assert!(!below.sampled, "what the caller does not record is not recorded here");
        assert_ne!(below.inside(), Some(caller));
    }
}
