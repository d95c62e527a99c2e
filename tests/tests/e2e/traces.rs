//! What remains known of a command: its usage and cost, its span in the caller's trace, and the metrics for Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;

use bay_tests::collector::Collector;
use bay_tests::lab::lab_with;
use bay_tests::suite::{self, Lack};
use bay_tests::{Daemon, image, until};
use bay_types::ErrorCode;
use serde_json::{Value, json};

const CALLER_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// The output of `bay execs show`, once the end is recorded.
fn shown(daemon: &Daemon, bay: &str, exec: &str) -> Value {
    until("the exec to end", || {
        let view = daemon.bay(&["execs", "show", bay, exec, "--json"]).ok().json();
        Some(view).filter(|view| !view["exit"].is_null())
    })
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn a_command_that_computes_shows_its_processor_time_and_its_output() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    // About half a second of work by a child; the shell itself does nothing.
    let script = "sh -c 'i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done'; printf 12345; printf 678 >&2";
    let began = std::time::Instant::now();
    assert_eq!(daemon.sh("b", script).ok().stdout, b"12345");
    let took = began.elapsed();
    let view = shown(&daemon, "b", "1");
    assert_eq!(number(&view["output_bytes"]), 8);
    let usage = &view["usage"];
    let cpu_us = number(&usage["user_us"]) + number(&usage["system_us"]);
    assert!(cpu_us > 20_000, "{view}");
    assert!(u128::from(cpu_us) < took.as_micros() * 2, "more than two processors could do: {view}");
    assert_eq!(usage["sources"]["cpu"], "cgroup", "{view}");
    let core_s = view["cost"]["core_s"].as_f64().unwrap();
    #[allow(clippy::cast_precision_loss)]
    let expected = cpu_us as f64 / 1e6;
    assert!((core_s - expected).abs() < 1e-6, "{view}");
    assert_eq!(number(&usage["processes_left"]), 0);
    // The usage of the whole bay is the host's own count, and cannot be less.
    let bay_s = daemon.show("b")["cost"]["core_s"].as_f64().unwrap();
    assert!(bay_s >= core_s * 0.9, "the bay {bay_s}, its exec {core_s}");
}

#[test]
fn a_command_that_needs_memory_shows_its_peak() {
    if !image::has_python() {
        return suite::skip(
            Lack::Installable,
            "the small image has no python3: the host's is not below /usr",
        );
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ran = daemon.bay(&["exec", "b", "--", "python3", "-c", "x = bytearray(64 << 20)"]).ok();
    let view = shown(&daemon, "b", "1");
    let usage = &view["usage"];
    let peak = usage["memory_peak_bytes"].as_u64().unwrap_or(number(&usage["max_rss_kib"]) << 10);
    assert!((64 << 20..160 << 20).contains(&peak), "{view}");
    assert!(view["cost"]["memory_gib_s_estimate"].as_f64().unwrap() > 0.0, "{view}");
}

#[test]
fn a_tree_of_processes_is_counted_and_so_is_what_outlives_its_leader() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ran = daemon.sh("b", "for i in 1 2 3 4 5; do sleep 1 & done; wait").ok();
    let tree = shown(&daemon, "b", "1");
    assert_eq!(number(&tree["usage"]["processes_peak"]), 6, "{tree}");
    assert_eq!(number(&tree["usage"]["processes_left"]), 0, "{tree}");
    let _ran = daemon.sh("b", "sleep 1000 >/dev/null 2>&1 & sleep 0.1").ok();
    let left = shown(&daemon, "b", "2");
    assert_eq!(number(&left["usage"]["processes_left"]), 1, "{left}");
}

#[test]
fn values_that_are_not_measured_are_null_and_reported_to_people() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ran = daemon.bay(&["exec", "b", "--user", "root", "--tool-call", "call-9", "--", "true"]).ok();
    let view = shown(&daemon, "b", "1");
    let usage = view["usage"].as_object().unwrap();
    for key in [
        "user_us",
        "system_us",
        "max_rss_kib",
        "memory_peak_bytes",
        "read_bytes",
        "write_bytes",
        "processes_peak",
        "processes_left",
        "stalls",
        "sources",
    ] {
        assert!(usage.contains_key(key), "{key} is missing in {view}");
    }
    let text = daemon.bay(&["execs", "show", "b", "1"]).ok().text();
    for part in ["exec 1 of b: exited 0", "call-9", "core-seconds", "GiB-seconds, estimated"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let said = text.contains("needs the memory controller in cgroup version 2");
    assert_eq!(said, view["usage"]["memory_peak_bytes"].is_null(), "{text}");
    // A command that never ran has no values at all.
    assert_eq!(daemon.bay(&["exec", "b", "--", "no-such-program"]).code, 127);
    let never = shown(&daemon, "b", "2");
    assert!(never["usage"]["user_us"].is_null() && never["cost"]["core_s"].is_null(), "{never}");
    daemon
        .bay(&["execs", "show", "b", "77"])
        .fails_as(ErrorCode::ExecNotFound, ErrorCode::ExecNotFound.exit_code().into());
}

#[test]
fn what_a_bay_cost_outlives_its_runtime_and_the_daemon() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ran = daemon.sh("b", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done").ok();
    let core_s = |daemon: &Daemon| daemon.show("b")["cost"]["core_s"].as_f64().unwrap();
    let running = core_s(&daemon);
    assert!(running > 0.01, "{running}");
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let stopped = core_s(&daemon);
    assert!(stopped >= running, "{stopped} < {running}");
    let _started = daemon.bay(&["start", "b"]).ok();
    assert!(core_s(&daemon) >= stopped);
    // Killed without a warning: the kernel's counter of the running bay still has all of it.
    let _ran = daemon.sh("b", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done").ok();
    let before = core_s(&daemon);
    daemon.restart();
    assert!(core_s(&daemon) >= before);
    let view = until("the disk to be counted", || {
        Some(daemon.show("b")).filter(|view| view["cost"]["disk_bytes"].is_u64())
    });
    assert!(view["cost"]["memory_gib_s"].as_f64().unwrap() >= 0.0);
    assert!(daemon.bay(&["show", "b"]).ok().text().contains("core-seconds"));
}

#[test]
fn a_command_that_still_runs_shows_what_it_used_so_far() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _started = daemon.bay(&["exec", "b", "-d", "--", "sh", "-c", "while :; do :; done"]).ok();
    let view = until("it to have used something", || {
        let view = daemon.bay(&["execs", "show", "b", "1", "--json"]).ok().json();
        Some(view).filter(|view| view["usage"]["user_us"].as_u64().is_some_and(|us| us > 10_000))
    });
    assert!(view["exit"].is_null() && view["ended_at"].is_null(), "{view}");
    assert_eq!(number(&view["usage"]["processes_peak"]), 1, "{view}");
    assert!(view["cost"]["core_s"].as_f64().unwrap() > 0.0, "{view}");
    let text = daemon.bay(&["execs", "show", "b", "1"]).ok().text();
    assert!(text.contains("exec 1 of b: running") && text.contains("running for"), "{text}");
    let _killed = daemon.bay(&["kill", "b", "1"]).ok();
    assert_eq!(shown(&daemon, "b", "1")["exit"]["reason"], "killed");
}

fn attribute(span: &Value, key: &str) -> Value {
    let all = span["attributes"].as_array().unwrap();
    all.iter().find(|one| one["key"] == key).unwrap_or_else(|| panic!("{key} in {span}"))["value"].clone()
}

#[test]
fn an_exec_is_a_span_in_its_callers_trace_and_programs_inside_join_it() {
    let collector = Collector::start();
    let daemon = Daemon::setup().env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url).start();
    daemon.empty_bay("b");
    let mut command = daemon.command(&[
        "exec",
        "b",
        "--tool-call",
        "call-1",
        "--",
        "sh",
        "-c",
        "echo $TRACEPARENT; exit 3",
    ]);
    let output = command.env("TRACEPARENT", CALLER).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let inside = String::from_utf8(output.stdout).unwrap();
    let inside: Vec<&str> = inside.trim().split('-').collect();

    let span = collector.span("exec sh");
    assert_eq!(
        (span["traceId"].as_str(), span["parentSpanId"].as_str()),
        (Some(CALLER_TRACE), Some("00f067aa0ba902b7"))
    );
    assert_eq!(inside, ["00", CALLER_TRACE, span["spanId"].as_str().unwrap(), "01"]);
    assert_eq!(attribute(&span, "bay.name")["stringValue"], "b");
    assert_eq!(attribute(&span, "exec.number")["intValue"], "1");
    assert_eq!(attribute(&span, "process.exit.code")["intValue"], "3");
    assert_eq!(attribute(&span, "gen_ai.tool.call.id")["stringValue"], "call-1");
    assert_eq!(attribute(&span, "process.command_args")["arrayValue"]["values"][0]["stringValue"], "sh");
    assert_eq!(span["status"]["code"], 2);
    let view = shown(&daemon, "b", "1");
    assert_eq!(view["trace"]["trace_id"], CALLER_TRACE);
    assert_eq!(view["trace"]["span_id"], span["spanId"]);

    // The header, for callers of the API. Without it the exec begins a new trace.
    let made = collector.span("bay create");
    assert!(made["parentSpanId"].is_null(), "{made}");
    assert_eq!(collector.span("make disk and start guest")["parentSpanId"], made["spanId"]);
    let _ran = daemon.bay(&["exec", "b", "--", "/bin/true"]).ok();
    let alone = collector.span("exec true");
    assert!(alone["parentSpanId"].is_null() && alone["traceId"] != CALLER_TRACE, "{alone}");
}

#[test]
fn requests_of_an_exec_permitted_or_refused_are_child_spans() {
    if !image::with_python() {
        return;
    }
    let collector = Collector::start();
    let lab = lab_with(Daemon::setup().env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url));
    let origin = lab.echo("origin.test");
    lab.bay("b", &origin.allowed("path = \"/open/**\""));
    let script = r#"
import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try:
        urllib.request.urlopen(url, timeout=20).read()
    except urllib.error.HTTPError:
        pass
"#;
    let (open, shut) = (origin.url("https", "/open/door?key=hunter2"), origin.url("https", "/shut"));
    let mut command = lab.daemon.command(&["exec", "b", "--", "python3", "-c", script, &open, &shut]);
    assert!(command.env("TRACEPARENT", CALLER).output().unwrap().status.success());

    let exec = collector.span("exec python3");
    assert_eq!(exec["traceId"], CALLER_TRACE);
    let of = |path: &str| {
        let request = format!("GET {}", origin.url("https", path));
        until(&format!("a span of {request}"), || {
            let spans = collector.spans.lock().unwrap();
            let asked = |span: &&Value| {
                span["name"] == "egress GET"
                    && attribute(span, "bay.egress.request")["stringValue"] == request.as_str()
            };
            spans.iter().find(asked).cloned()
        })
    };
    let (sent, refused) = (of("/open/door"), of("/shut"));
    for span in [&sent, &refused] {
        assert_eq!((&span["traceId"], &span["parentSpanId"]), (&exec["traceId"], &exec["spanId"]), "{span}");
        assert_ne!(span["spanId"], exec["spanId"]);
        assert_eq!(attribute(span, "server.address")["stringValue"], "origin.test");
        let moment = |key: &str| span[key].as_str().unwrap().parse::<u128>().unwrap();
        assert!(moment("startTimeUnixNano") <= moment("endTimeUnixNano"), "{span}");
        assert!(!span.to_string().contains("hunter2"), "{span}");
    }
    assert_eq!(attribute(&sent, "http.response.status_code")["intValue"], "200");
    assert_eq!(attribute(&sent, "bay.egress.rule")["stringValue"], "origin");
    assert!(sent["status"].is_null(), "{sent}");
    assert_eq!(refused["status"]["code"], 2, "{refused}");
    assert!(refused["status"]["message"].as_str().unwrap().starts_with("refused: "), "{refused}");
    // The ids are those of the record.
    let id = attribute(&refused, "bay.egress.id")["intValue"].as_str().unwrap().to_owned();
    assert!(lab.daemon.bay(&["policy", "explain", "b", &id]).ok().text().contains("/shut"));
}

#[test]
fn without_a_collector_the_callers_context_is_forwarded_and_none_is_made() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let mut command = daemon.command(&["exec", "b", "--", "sh", "-c", "echo ${TRACEPARENT-none}"]);
    let output = command.env("TRACEPARENT", CALLER).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), CALLER);
    assert_eq!(shown(&daemon, "b", "1")["trace"]["trace_id"], CALLER_TRACE);
    assert_eq!(daemon.sh("b", "echo ${TRACEPARENT-none}").ok().text(), "none");
    // A variable that the caller sets has precedence.
    let mut command =
        daemon.command(&["exec", "b", "--env", "TRACEPARENT=mine", "--", "sh", "-c", "echo $TRACEPARENT"]);
    let output = command.env("TRACEPARENT", CALLER).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "mine");
}

#[test]
fn a_collector_that_is_down_or_hangs_affects_nothing_else() {
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", hanging.local_addr().unwrap());
    for url in [url.as_str(), "http://127.0.0.1:1"] {
        let daemon = Daemon::setup().env("OTEL_EXPORTER_OTLP_ENDPOINT", url).start();
        daemon.empty_bay("b");
        for number in 0..20 {
            assert_eq!(daemon.sh("b", &format!("echo {number}")).ok().text(), number.to_string());
        }
        assert_eq!(metrics(&daemon)["workbay_otlp_spans_sent_total"], 0.0);
    }
    // An unusable collector on the command line is an error; one in the environment is not.
    let daemon = Daemon::setup().env("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector.invalid").start();
    let refused = daemon.serve().args(["--otlp", "https://collector.invalid"]).output().unwrap();
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("plain HTTP") && said.contains("127.0.0.1:4318"), "{said}");
}

#[test]
fn metrics_follow_the_format_and_change() {
    let daemon = Daemon::start();
    let before = metrics(&daemon);
    assert_eq!(before["workbay_execs_started_total"], 0.0);
    daemon.empty_bay("b");
    let _ran = daemon.sh("b", "echo hello").ok();
    assert_eq!(daemon.sh("b", "kill -KILL $$").code, 137);
    let _ended = (shown(&daemon, "b", "1"), shown(&daemon, "b", "2"));
    let after = until("the bay to be looked at", || {
        Some(metrics(&daemon)).filter(|all| all.contains_key("workbay_bay_memory_bytes{bay=b}"))
    });
    for (series, value) in [
        ("workbay_bays{state=running}", 1.0),
        ("workbay_bays{state=failed}", 0.0),
        ("workbay_execs_started_total", 2.0),
        ("workbay_execs_ended_total{reason=exited}", 1.0),
        ("workbay_execs_ended_total{reason=signaled}", 1.0),
        ("workbay_exec_duration_seconds_count", 2.0),
        ("workbay_exec_output_bytes_total", 6.0),
        ("workbay_execs_running", 0.0),
    ] {
        assert_eq!(after.get(series), Some(&value), "{series} in {after:#?}");
    }
    for series in [
        "workbay_bay_cpu_seconds_total{bay=b}",
        "workbay_bay_pids{bay=b}",
        "process_resident_memory_bytes",
        "process_open_fds",
        "workbay_events_head",
    ] {
        assert!(after.get(series).is_some_and(|value| *value > 0.0), "{series} in {after:#?}");
    }
    assert!(after["workbay_events_head"] > before["workbay_events_head"]);
    // When a bay is removed, its series disappear.
    let _removed = daemon.bay(&["rm", "b", "--yes"]).ok();
    assert!(metrics(&daemon).keys().all(|series| !series.contains("bay=b")));
}

#[test]
fn an_old_request_without_a_trace_still_works() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let id = bay_types::ExecId::generate();
    let body = json!({ "id": id, "argv": ["true"] });
    for _ in 0..2 {
        assert_eq!(daemon.rest("POST", "/v1/bays/b/execs", &body).status, 201);
    }
    assert!(shown(&daemon, "b", &id.to_string())["trace"].is_null());
}

/// Every series and its value. Parsed as strictly as the format is defined: families are contiguous and announced once,
/// no series occurs twice, counters have the right names, histograms add up.
fn metrics(daemon: &Daemon) -> BTreeMap<String, f64> {
    let answer = daemon.rest("GET", "/metrics", &Value::Null);
    assert_eq!(answer.status, 200);
    let text = String::from_utf8(answer.body).unwrap();
    assert!(text.ends_with('\n'));
    let mut all = BTreeMap::new();
    let (mut announced, mut closed) = (BTreeSet::new(), BTreeSet::new());
    let (mut helped, mut family, mut kind) = (String::new(), String::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a name and a help");
            assert!(!help.is_empty());
            helped = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, of) = rest.split_once(' ').expect("a name and a type");
            assert_eq!(name, helped, "a help goes before each type");
            assert!(announced.insert(name.to_owned()), "{name} is announced twice");
            closed.insert(family);
            (family, kind) = (name.to_owned(), of.to_owned());
            assert!(["counter", "gauge", "histogram"].contains(&of), "{line}");
            assert_eq!(of == "counter", name.ends_with("_total"), "{line}");
        } else {
            let (name, labels, value) = sample(line);
            let parts: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(
                parts.iter().any(|part| format!("{family}{part}") == name),
                "{line} is outside of {family}"
            );
            let series = if labels.is_empty() { name } else { format!("{name}{{{}}}", labels.join(",")) };
            assert!(all.insert(series, value).is_none(), "{line} is there twice");
        }
    }
    let last = all["workbay_exec_duration_seconds_bucket{le=+Inf}"];
    assert_eq!(last, all["workbay_exec_duration_seconds_count"]);
    let buckets = all.iter().filter(|(name, _)| name.starts_with("workbay_exec_duration_seconds_bucket"));
    assert!(buckets.map(|(_, value)| *value).all(|value| value <= last));
    all
}

/// Name, labels as `key=value`, and value of one line.
fn sample(line: &str) -> (String, Vec<String>, f64) {
    let is_name = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
    let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line:?}"));
    assert!(value.is_finite(), "{line:?}");
    let (name, rest) = series.split_once('{').unwrap_or((series, "}"));
    assert!(is_name(name), "{line:?}");
    let mut rest = rest.strip_suffix('}').unwrap_or_else(|| panic!("{line:?}"));
    let mut labels = Vec::new();
    while !rest.is_empty() {
        let (label, quoted) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line:?}"));
        assert!(is_name(label), "{line:?}");
        let end = quoted.find('"').unwrap_or_else(|| panic!("{line:?}"));
        assert!(!quoted[..end].contains('\\'), "no label of ours needs an escape: {line:?}");
        labels.push(format!("{label}={}", &quoted[..end]));
        rest = quoted[end + 1..].trim_start_matches(',');
    }
    (name.to_owned(), labels, value)
}
