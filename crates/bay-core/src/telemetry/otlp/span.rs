//! Spans, and how OTLP writes them as JSON: ids in hexadecimal, times and whole numbers as text.

use bay_store::ExecRow;
use bay_types::BayName;
use bay_types::exec::EndReason;
use bay_types::trace::{ExecTrace, SpanId, TraceId};
use jiff::Timestamp;
use serde_json::{Value, json};

/// The most bytes of a command line in a span.
const ARGV_BYTES: usize = 4096;
/// The longest name of a program in a span's name.
const NAME_CHARS: usize = 64;
/// The most characters of a request in a span.
const REQUEST_CHARS: usize = 1024;
/// OTLP's number for a span of kind "internal".
const INTERNAL: u32 = 1;
const STATUS_ERROR: u32 = 2;

#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) trace_id: TraceId,
    pub(crate) span_id: SpanId,
    pub(crate) parent: Option<SpanId>,
    pub(crate) name: String,
    pub(crate) start: Timestamp,
    pub(crate) end: Timestamp,
    pub(crate) attributes: Vec<(&'static str, Value)>,
    pub(crate) error: Option<String>,
}

/// The parts of a request in a span. Most are the bay's own text.
#[derive(Debug, Clone)]
pub(crate) struct Requested<'a> {
    pub(crate) bay: &'a BayName,
    /// The number of the decision.
    pub(crate) id: u64,
    pub(crate) line: &'a str,
    pub(crate) host: Option<&'a str>,
    pub(crate) port: Option<u64>,
    pub(crate) rule: Option<&'a str>,
    pub(crate) start: Timestamp,
    pub(crate) end: Timestamp,
    pub(crate) status: Option<u16>,
    pub(crate) sent: Option<u64>,
    pub(crate) received: Option<u64>,
    /// Why it was refused or failed.
    pub(crate) error: Option<String>,
}

pub(crate) fn text(value: impl Into<String>) -> Value {
    json!({ "stringValue": value.into() })
}

fn whole(value: impl Into<i128>) -> Value {
    json!({ "intValue": value.into().to_string() })
}

impl Span {
    /// A span in a recorded trace.
    pub(crate) fn at(trace: ExecTrace, name: String, start: Timestamp, end: Timestamp) -> Option<Self> {
        let span_id = trace.span_id.filter(|_| trace.sampled)?;
        Some(Self {
            trace_id: trace.trace_id,
            span_id,
            parent: trace.parent_span_id,
            name,
            start,
            end: end.max(start),
            attributes: Vec::new(),
            error: None,
        })
    }

    /// The span of an exec that ended; `None` if it has no trace, or its caller does not record the trace.
    pub(crate) fn of_exec(bay: &BayName, row: &ExecRow) -> Option<Self> {
        let program = row.spec.argv.first().map_or("", String::as_str);
        let program: String =
            program.rsplit('/').next().unwrap_or(program).chars().take(NAME_CHARS).collect();
        let mut span = Self::at(
            row.trace?,
            format!("exec {program}"),
            row.started_at,
            row.ended_at.unwrap_or(row.started_at),
        )?;
        let usage = &row.usage;
        span.attributes = vec![
            ("bay.name", text(bay.as_str())),
            ("bay.id", text(row.bay.to_string())),
            ("exec.id", text(row.id.to_string())),
            ("exec.number", whole(row.number)),
            ("process.command_args", arguments(&row.spec.argv)),
            ("exec.output_bytes", whole(row.output_bytes)),
        ];
        let mut add = |name, value: Option<Value>| {
            if let Some(value) = value {
                span.attributes.push((name, value));
            }
        };
        add("process.working_directory", row.spec.cwd.clone().map(text));
        add("process.owner", row.spec.user.clone().map(text));
        add("gen_ai.tool.call.id", row.spec.tool_call.clone().map(text));
        add("exec.user_us", usage.user_us.map(whole));
        add("exec.system_us", usage.system_us.map(whole));
        add("exec.memory_peak_bytes", usage.peak_bytes().map(|(bytes, _)| whole(bytes)));
        add("exec.read_bytes", usage.read_bytes.map(whole));
        add("exec.write_bytes", usage.write_bytes.map(whole));
        add("exec.processes_peak", usage.processes_peak.map(whole));
        add("exec.stalled_cpu_us", usage.stalls.cpu.map(|stall| whole(stall.some_us)));
        add("exec.stalled_memory_us", usage.stalls.memory.map(|stall| whole(stall.some_us)));
        add("exec.stalled_io_us", usage.stalls.io.map(|stall| whole(stall.some_us)));
        if let Some(exit) = row.exit {
            add("exec.end_reason", Some(text(exit.reason.as_str())));
            add("process.exit.code", Some(whole(exit.shell_code())));
            add("exec.signal", exit.signal.map(whole));
            if exit.reason != EndReason::Exited || exit.code != Some(0) {
                span.error = Some(format!("{} {}", exit.reason, exit.shell_code()));
            }
        }
        Some(span)
    }

    /// The span of a request, below its exec's, if the exec's trace is recorded.
    pub(crate) fn of_request(exec: ExecTrace, span_id: SpanId, request: Requested<'_>) -> Option<Self> {
        let trace = ExecTrace { span_id: Some(span_id), parent_span_id: Some(exec.span_id?), ..exec };
        // The query may be secret. The record has it.
        let line: String =
            request.line.split('?').next().unwrap_or_default().chars().take(REQUEST_CHARS).collect();
        let name: String =
            line.split(['/', ' ']).next().unwrap_or_default().chars().take(NAME_CHARS).collect();
        let mut span = Self::at(trace, format!("egress {name}"), request.start, request.end)?;
        span.attributes = vec![
            ("bay.name", text(request.bay.as_str())),
            ("bay.egress.id", whole(request.id)),
            ("bay.egress.request", text(line)),
        ];
        let mut add = |name, value: Option<Value>| {
            if let Some(value) = value {
                span.attributes.push((name, value));
            }
        };
        add("server.address", request.host.map(text));
        add("server.port", request.port.map(whole));
        add("http.response.status_code", request.status.map(whole));
        add("bay.egress.rule", request.rule.map(text));
        add("bay.egress.sent_bytes", request.sent.map(whole));
        add("bay.egress.received_bytes", request.received.map(whole));
        span.error = request.error;
        Some(span)
    }

    fn json(&self) -> Value {
        let attributes: Vec<Value> =
            self.attributes.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
        let mut span = json!({
            "traceId": self.trace_id,
            "spanId": self.span_id,
            "name": self.name,
            "kind": INTERNAL,
            "startTimeUnixNano": nanos(self.start),
            "endTimeUnixNano": nanos(self.end),
            "attributes": attributes,
        });
        if let Some(parent) = self.parent {
            span["parentSpanId"] = json!(parent);
        }
        if let Some(error) = &self.error {
            span["status"] = json!({ "code": STATUS_ERROR, "message": error });
        }
        span
    }
}

fn nanos(at: Timestamp) -> String {
    at.as_nanosecond().max(0).to_string()
}

/// As many arguments as fit, and how many more there are.
fn arguments(argv: &[String]) -> Value {
    let mut left = ARGV_BYTES;
    let fitting = argv.iter().map_while(|argument| {
        left = left.checked_sub(argument.len())?;
        Some(text(argument))
    });
    let mut values: Vec<Value> = fitting.collect();
    if values.len() < argv.len() {
        values.push(text(format!("… {} more", argv.len() - values.len())));
    }
    json!({ "arrayValue": { "values": values } })
}

/// The body of one request.
pub(super) fn encode(spans: &[Box<Span>], daemon_id: &str) -> Vec<u8> {
    let spans: Vec<Value> = spans.iter().map(|span| span.json()).collect();
    let body = json!({ "resourceSpans": [{
        "resource": { "attributes": [
            { "key": "service.name", "value": text("workbay") },
            { "key": "service.version", "value": text(bay_types::VERSION) },
            { "key": "service.instance.id", "value": text(daemon_id) },
        ] },
        "scopeSpans": [{ "scope": { "name": "workbay", "version": bay_types::VERSION }, "spans": spans }],
    }] });
    body.to_string().into_bytes()
}

#[cfg(test)]
pub(super) mod tests {
    use bay_types::exec::{ExecSpec, Exit, Usage};
    use bay_types::{BayId, ExecId};

    use super::*;

    fn row() -> ExecRow {
        let mut spec = ExecSpec::new(["/bin/make".to_owned(), "x".repeat(ARGV_BYTES)]);
        spec.tool_call = Some("call-7".to_owned());
        ExecRow {
            id: ExecId::generate(),
            bay: BayId::generate(),
            number: 3,
            spec,
            started_at: "2026-01-01T00:00:00.5Z".parse().unwrap(),
            ended_at: Some("2026-01-01T00:00:02Z".parse().unwrap()),
            exit: Some(Exit { reason: EndReason::Exited, code: Some(2), signal: None }),
            usage: Usage { user_us: Some(9), ..Usage::default() },
            output_bytes: 5,
            output_hashes: None,
            limits_hit: vec![],
            blame: vec![],
            trace: Some(ExecTrace {
                trace_id: "4bf92f3577b34da6a3ce929d0e0e4736".parse().unwrap(),
                span_id: Some("00f067aa0ba902b7".parse().unwrap()),
                parent_span_id: Some("00000000000000ff".parse().unwrap()),
                sampled: true,
            }),
        }
    }

    pub(in crate::telemetry) fn span() -> Span {
        Span::of_exec(&"web".parse().unwrap(), &row()).unwrap()
    }

    #[test]
    fn an_exec_s_span_is_what_the_protocol_asks_for() {
        let body: Value = serde_json::from_slice(&encode(&[Box::new(span())], "d1")).unwrap();
        let span = &body["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!(span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(span["spanId"], "00f067aa0ba902b7");
        assert_eq!(span["parentSpanId"], "00000000000000ff");
        assert_eq!(span["name"], "exec make");
        assert_eq!(span["startTimeUnixNano"], "1767225600500000000");
        assert_eq!(span["status"]["code"], 2);
        let attribute = |key: &str| {
            span["attributes"].as_array().unwrap().iter().find(|a| a["key"] == key).unwrap()["value"].clone()
        };
        assert_eq!(attribute("exec.number")["intValue"], "3");
        assert_eq!(attribute("gen_ai.tool.call.id")["stringValue"], "call-7");
        assert_eq!(attribute("process.exit.code")["intValue"], "2");
        let argv = attribute("process.command_args")["arrayValue"]["values"].clone();
        assert_eq!(argv, json!([{ "stringValue": "/bin/make" }, { "stringValue": "… 1 more" }]));
    }

    #[test]
    fn what_the_caller_does_not_record_has_no_span() {
        let mut row = row();
        row.trace.as_mut().unwrap().sampled = false;
        assert!(Span::of_exec(&"web".parse().unwrap(), &row).is_none());
        row.trace = None;
        assert!(Span::of_exec(&"web".parse().unwrap(), &row).is_none());
    }

    #[test]
    fn a_clock_that_was_set_back_makes_no_span_that_ends_before_it_began() {
        let mut row = row();
        row.ended_at = Some("2025-01-01T00:00:00Z".parse().unwrap());
        let span = Span::of_exec(&"web".parse().unwrap(), &row).unwrap();
        assert_eq!(span.start, span.end);
    }
}
