//! Attacks of a bay on the record of its traffic: floods, forgeries, and many connections at once.

use std::collections::BTreeSet;

use bay_tests::lab::{lab, lab_with_names};
use bay_tests::origin::text;
use bay_tests::{Daemon, image, until};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

/// Sends refused requests on one connection, and prints how many were refused.
const FLOOD: &str = r#"
import socket, sys
count, port = int(sys.argv[1]), int(sys.argv[2])
door = socket.create_connection(("blocked.test", port), timeout=30)
answers = door.makefile("rb")
refused = 0
for number in range(count):
    path = "/%d" % number
    door.sendall(("GET %s HTTP/1.1\r\nHost: blocked.test:%d\r\n\r\n" % (path, port)).encode())
    status, length = answers.readline(), 0
    while True:
        line = answers.readline().strip().lower()
        if line.startswith(b"content-length:"):
            length = int(line.split(b":")[1])
        if not line:
            break
    answers.read(length)
    refused += b" 403 " in status
print(refused)
"#;

/// Looks up names as DNS tunnels do: long ones, of every type, thousands of them.
const NAMES: &str = r#"
import os, socket, struct
resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
resolver.connect(("10.0.2.1", 53))
resolver.setblocking(False)
def question(name, kind, number):
    labels = b"".join(bytes([len(label)]) + label for label in name.split(b"."))
    return struct.pack("!HHHHHH", number & 0xffff, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)
sent = 0
def send(name, kind):
    global sent
    try:
        resolver.send(question(name, kind, sent))
        sent += 1
    except BlockingIOError:
        pass
# What is asked for later has to be known by then: a flood uses up the new names of its minute.
send(b"blocked.test", 1)
# A, NS, CNAME, NULL, MX, TXT, AAAA, SRV, HTTPS, ANY.
for kind in (1, 2, 5, 10, 15, 16, 28, 33, 65, 255):
    send(b"canary." + b"a" * 63 + b".evil.test", kind)
    send(b".".join([b"b" * 60] * 4) + b".evil.test", kind)
for number in range(4000):
    send(b"%d.%s.evil.test" % (number, os.urandom(20).hex().encode()), 1)
print(sent)
"#;

/// Sends requests and resets each connection immediately or within some milliseconds: before, during and after the
/// decision.
const RESET: &str = r#"
import socket, struct, sys, time
port, count = int(sys.argv[1]), int(sys.argv[2])
for number in range(count):
    door = socket.create_connection(("origin.test", port), timeout=30)
    # Closing it resets it.
    door.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    door.sendall(("GET /%d HTTP/1.1\r\nHost: origin.test:%d\r\n\r\n" % (number, port)).encode())
    time.sleep(number % 20 * 0.0005)
    door.close()
"#;

#[test]
fn attr_reset_a_request_whose_client_resets_immediately_has_its_end_on_record() {
    if !image::with_python() {
        return;
    }
    let lab = lab();
    let origin = lab.servers.http("origin.test", |request: Request<Incoming>| async move {
        Response::new(text(request.uri().path().to_owned()))
    });
    lab.bay("hasty", &origin.allowed("scheme = \"http\""));
    let _sent = lab.python("hasty", RESET, &[&origin.port().to_string(), "200"]).ok();
    let ends = || -> BTreeSet<u64> {
        lab.record("hasty", "egress.ended").iter().filter_map(|body| body["of"].as_u64()).collect()
    };
    let begun = || -> BTreeSet<u64> {
        let (mut since, mut found) = (0, BTreeSet::new());
        loop {
            let target = format!("/v1/events?bay=hasty&since={since}");
            let page = lab.daemon.rest("GET", &target, &Value::Null).json();
            let page = page.as_array().unwrap();
            let Some(last) = page.last() else { return found };
            since = last["seq"].as_u64().unwrap();
            let decided = page.iter().filter(|event| event["kind"] == "egress.decided");
            found.extend(
                decided
                    .filter(|event| event["body"]["outcome"] == "allow")
                    .filter_map(|event| event["seq"].as_u64()),
            );
        }
    };
    until("every request that was let out to have its end", || (begun() == ends()).then_some(()));
    assert!(!begun().is_empty(), "none of them was let out");
    // Unknown facts about a request are reported as unknown.
    let told = lab.daemon.bay(&["egress", "hasty"]).ok().text();
    assert!(!told.contains(" lost "), "{told}");
    for line in told.lines().filter(|line| line.contains("GET http")) {
        assert!(line.contains("exec ") || line.contains("by an unknown process"), "{line}");
    }
}

#[test]
fn audit_drop_a_flood_is_summed_completely_and_hides_neither_refusals_nor_other_bays() {
    if !image::with_python() {
        return;
    }
    let lab = lab();
    let origin = lab.echo_for(&["loud", "quiet"]);
    let port = origin.port().to_string();
    let flood = 3000;
    // Names first: free lookups must not use up the space for refusals.
    let asked: u64 = lab.python("loud", NAMES, &[]).ok().text().trim().parse().unwrap();
    assert!(asked > 1000, "{asked}");
    let refused = lab.python("loud", FLOOD, &[&flood.to_string(), &port]).ok().text();
    assert_eq!(refused.trim(), flood.to_string(), "each is answered");
    assert_eq!(lab.get("quiet", &origin.url("https", "/quiet")).0, 200);
    // When a bay stops, its sums end too.
    let _stopped = lab.daemon.bay(&["stop", "loud"]).ok();
    let (told, sums) = (lab.record("loud", "egress.decided"), lab.record("loud", "egress.repeated"));
    let denied = told.iter().filter(|body| body["outcome"] == "deny").count() as u64;
    let count = |what: &str| -> u64 {
        sums.iter().filter(|sum| sum["what"] == what).filter_map(|sum| sum["count"].as_u64()).sum()
    };
    assert!((1..=200).contains(&denied), "{denied}");
    assert_eq!(denied + count("deny"), flood, "{sums:#?}");
    assert!(sums.iter().any(|sum| sum["what"] == "deny" && sum["of"] == format!("blocked.test:{port}")));
    assert!(lab.record("loud", "egress.looked-up").len() < 1000);
    let traffic = lab.record("quiet", "egress.decided");
    assert_eq!(traffic.len(), 1, "{traffic:#?}");
    assert!(origin.seen.lines() == ["GET /quiet"]);
    let _holds = lab.daemon.bay(&["audit", "verify"]).ok();
}

/// Looks up three thousand missing names, each until it is answered, and prints the answers.
const UNIQUE_NAMES: &str = r#"
import collections, os, socket, struct
resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
resolver.connect(("10.0.2.1", 53))
resolver.settimeout(1)
codes = collections.Counter()
for number in range(3000):
    labels = b"".join(bytes([len(part)]) + part for part in (b"%d" % number, os.urandom(30).hex().encode(), b"evil", b"test"))
    question = struct.pack("!HHHHHH", number, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", 1, 1)
    answer = b""
    while answer[:2] != question[:2]:
        try:
            resolver.send(question)
            answer = resolver.recv(4096)
        except TimeoutError:
            pass
    codes[answer[3] & 15] += 1
print(codes[0], codes[5], sum(codes.values()))
"#;

/// New names that a bay may look up in a minute.
const NEW_NAMES_A_MINUTE: usize = 600;

#[test]
fn audit_dns_names_beyond_a_rate_are_refused_and_counted_but_not_recorded() {
    if !image::with_python() {
        return;
    }
    let lab = lab();
    let origin = lab.echo_for(&["loud", "quiet"]);
    assert_eq!(lab.get("loud", &origin.url("https", "/before")).0, 200);
    let text = lab.python("loud", UNIQUE_NAMES, &[]).ok().text();
    let codes: Vec<usize> = text.split_whitespace().map(|count| count.parse().unwrap()).collect();
    let [answered, refused, all] = codes[..] else { panic!("{text}") };
    assert_eq!((answered + refused, all), (3000, 3000), "answered or refused: {text}");
    // A minute may end meanwhile, and another begin.
    assert!(answered <= 2 * NEW_NAMES_A_MINUTE, "{text}");
    // Known names, and the names of other bays, are answered meanwhile.
    assert_eq!(lab.get("loud", &origin.url("https", "/known")).0, 200);
    assert_eq!(lab.get("quiet", &origin.url("https", "/quiet")).0, 200);
    let _stopped = lab.daemon.bay(&["stop", "loud"]).ok();
    let looked_up = lab.record("loud", "egress.looked-up");
    let of_too_many = |body: &&Value| body["answer"] == "too-many-names";
    let told = looked_up.iter().filter(of_too_many).count();
    let sums = lab.record("loud", "egress.repeated");
    let sums: Vec<&Value> = sums.iter().filter(|sum| sum["what"] == "too-many-names").collect();
    let counted: u64 = sums.iter().filter_map(|sum| sum["count"].as_u64()).sum();
    assert_eq!(told as u64 + counted, refused as u64, "every one is counted: {sums:#?}");
    assert!(sums.iter().all(|sum| sum["of"] == "" && sum["like"].as_u64() > Some(0)), "{sums:#?}");
    assert!(told < 30, "one name is told of each window of a flood, not {told}");
}

/// Sends five bytes to each of this many hosts `hN.SUFFIX`, and prints how many answered with the status.
const MANY_HOSTS: &str = r#"
import socket, sys
count, suffix, port, wanted = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4].encode()
answered = 0
for number in range(count):
    host = "h%d.%s" % (number, suffix)
    door = socket.create_connection((host, port), timeout=30)
    head = "POST / HTTP/1.1\r\nHost: %s:%d\r\nContent-Length: 5\r\nConnection: close\r\n\r\nbytes" % (host, port)
    door.sendall(head.encode())
    answered += door.makefile("rb").readline().split()[1] == wanted
    door.close()
print(answered)
"#;

/// More hosts than there are events or separate sums for refusals in a window. Together they are fewer than the names
/// that a bay may look up in a minute.
const NOISE_HOSTS: usize = 320;
const REACHED_HOSTS: usize = 260;

#[test]
fn audit_noise_hosts_hide_no_host_that_was_reached_and_sums_state_how_many_they_hide() {
    if !image::with_python() {
        return;
    }
    let hosts: Vec<String> = (0..REACHED_HOSTS).map(|number| format!("h{number}.reached.test")).collect();
    let names: Vec<(String, &str)> =
        hosts.iter().map(|host| ("127.0.0.1".to_owned(), host.as_str())).collect();
    let lab = lab_with_names(Daemon::setup(), &names);
    let origin = lab.servers.http("origin.test", |request: Request<Incoming>| async move {
        // Its body is read, so that all of it was sent.
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Response::new(text(body))
    });
    let allowed = origin.allowed("scheme = \"http\"\nmethod = \"POST\"");
    let rule = allowed.replace("host = \"origin.test\"", &format!("host = {hosts:?}"));
    lab.bay("loud", &rule);
    let port = origin.port().to_string();
    let send = |count: usize, suffix: &str, status: &str| {
        let told = lab.python("loud", MANY_HOSTS, &[&count.to_string(), suffix, &port, status]).ok().text();
        assert_eq!(told.trim(), count.to_string(), "all of {suffix} are answered {status}");
    };
    send(NOISE_HOSTS, "noise.test", "403");
    send(REACHED_HOSTS, "reached.test", "200");
    let _stopped = lab.daemon.bay(&["stop", "loud"]).ok();

    // Each host that was reached is on record by its name, with the bytes sent to it.
    let decided = lab.record("loud", "egress.decided");
    let host_of = |body: &Value| body["host"].as_str().unwrap().to_owned();
    let with = |outcome: &str| -> BTreeSet<String> {
        decided.iter().filter(|body| body["outcome"] == outcome).map(host_of).collect()
    };
    assert_eq!(with("allow"), hosts.iter().cloned().collect());
    let ended = lab.record("loud", "egress.ended");
    assert_eq!(ended.iter().filter(|body| body["sent"] == 5).count(), REACHED_HOSTS);

    // A sum of refused hosts names some, and states how many there were.
    let sums = lab.record("loud", "egress.repeated");
    let of_denials = || sums.iter().filter(|sum| sum["what"] == "deny");
    let mut named = with("deny");
    let without_port = |of: &str| of.rsplit_once(':').unwrap().0.to_owned();
    named.extend(
        of_denials().filter_map(|sum| sum["of"].as_str()).filter(|of| !of.is_empty()).map(without_port),
    );
    let nameless: Vec<&Value> = of_denials().filter(|sum| sum["of"] == "").collect();
    assert!(!nameless.is_empty(), "all {NOISE_HOSTS} hosts had sums of their own: {sums:#?}");
    let hidden: u64 = nameless.iter().map(|sum| sum["distinct"].as_u64().unwrap()).sum();
    assert_eq!(named.len() as u64 + hidden, NOISE_HOSTS as u64, "{nameless:#?}");
    for sum in nameless {
        let sample = sum["sample"].as_array().unwrap();
        assert_eq!(sample.len() as u64, sum["distinct"].as_u64().unwrap().min(64), "{sum:#}");
        let new = sample.iter().map(|of| without_port(of.as_str().unwrap()));
        assert!(
            new.into_iter().all(|host| host.ends_with(".noise.test") && !named.contains(&host)),
            "{sum:#}"
        );
    }
    let told = lab.daemon.bay(&["egress", "loud", "--denied", "--limit", "0"]).ok().text();
    assert!(told.contains(" different names, "), "{told}");
}

/// A request that contains false statements in every part.
const LIES: &str = r#"
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={
    "X-Workbay-Exec": "exec_0123", "X-Workbay-Record": "1", "X-Bay": "other", "Traceparent": "00-1-1-01",
    "User-Agent": '{"kind":"egress.decided"}', "X-Forwarded-For": "10.0.2.9"})
print(urllib.request.urlopen(request, timeout=20).status)
"#;

#[test]
fn audit_inject_no_request_and_no_command_line_forges_or_hides_a_record() {
    if !image::with_python() {
        return;
    }
    let lab = lab();
    let origin = lab.echo_for(&["b", "other"]);
    // As long as a command line may be in a view, and six times that in the record.
    let odd = "\u{1}".repeat(8000);
    let url = origin.url("https", "/%7B%22outcome%22:%22deny%22%7D");
    assert_eq!(lab.python("b", LIES, &[&url, &odd]).ok().text().trim(), "200");
    let long = origin.url("https", &format!("/?q={}", "x".repeat(30_000)));
    assert_eq!(lab.python("b", LIES, &[&long, &odd]).ok().text().trim(), "200");
    let blocked = format!("https://blocked.test:{}/?q={}", origin.port(), "y".repeat(30_000));
    assert_eq!(lab.get("b", &blocked).0, 403);
    assert_eq!(lab.get("other", &origin.url("https", "/other")).0, 200);
    let decided = lab.record("b", "egress.decided");
    assert_eq!(decided.len(), 3, "{decided:#?}");
    for (body, (outcome, host)) in
        decided.iter().zip([("allow", "origin.test"), ("allow", "origin.test"), ("deny", "blocked.test")])
    {
        assert_eq!((&body["outcome"], &body["host"]), (&outcome.into(), &host.into()), "{body:#}");
        let request = body["request"].as_str().unwrap();
        assert!(request.starts_with(&format!("GET https://{host}:{}/", origin.port())), "{request}");
        assert!(!request.contains(['\n', '\u{1b}']), "{request:?}");
    }
    // Each bay's traffic belongs to its own execs.
    for bay in ["b", "other"] {
        let execs: BTreeSet<String> = lab
            .record(bay, "exec.start")
            .iter()
            .filter_map(|body| body["exec"].as_str().map(str::to_owned))
            .collect();
        for body in lab.record(bay, "egress.decided") {
            let by = body["by"]["exec"].as_str().unwrap_or_else(|| panic!("nobody did it: {body:#}"));
            assert!(execs.contains(by), "{by} is no exec of {bay}: {execs:?}");
        }
    }
    // A bay can neither read the record nor extend it.
    let reached = lab.daemon.sh("b", "ls /.bay; cat /proc/mounts").ok().text();
    assert!(!reached.contains("ledger") && !reached.contains("events"), "{reached}");
    let _holds = lab.daemon.bay(&["audit", "verify"]).ok();
}

/// Holds as many connections as it can get, until it is told to close them.
const CROWD: &str = r#"
import os, resource, select, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
address = socket.getaddrinfo("origin.test", int(sys.argv[1]), socket.AF_INET)[0][4]
held = []
for _ in range(1200):
    door = socket.socket()
    door.settimeout(20)
    door.connect(address)
    held.append(door)
poll, closed = select.poll(), 0
for door in held:
    poll.register(door, select.POLLIN)
end = time.monotonic() + 20
while closed < 176 and time.monotonic() < end:
    for number, _ in poll.poll(1000):
        poll.unregister(number)
        closed += 1
open("/tmp/closed", "w").write(str(closed))
os.rename("/tmp/closed", "/tmp/full")
while not os.path.exists("/tmp/let-go"):
    time.sleep(0.02)
"#;

#[test]
fn res_conntrack_a_bay_with_all_its_connections_open_blocks_nobody() {
    if !image::with_python() {
        return;
    }
    let lab = lab();
    let origin = lab.echo_for(&["crowd", "other"]);
    let port = origin.port().to_string();
    let _begun = lab.daemon.bay(&["exec", "--detach", "crowd", "--", "python3", "-c", CROWD, &port]).ok();
    until("the crowd is there", || (lab.daemon.sh("crowd", "test -e /tmp/full").code == 0).then_some(()));
    assert_eq!(
        lab.daemon.sh("crowd", "cat /tmp/full").ok().text().trim(),
        "176",
        "the others are closed at once"
    );
    assert_eq!(lab.get("other", &origin.url("https", "/other")).0, 200);
    let too_many = |body: &Value| body["what"] == "too-many";
    until("that they were too many is on record", || {
        lab.record("crowd", "egress.refused").iter().any(too_many).then_some(())
    });
    let _go = lab.daemon.sh("crowd", "touch /tmp/let-go").ok();
    until("there is room again", || {
        let script =
            "import urllib.request, sys; print(urllib.request.urlopen(sys.argv[1], timeout=20).status)";
        (lab.python("crowd", script, &[&origin.url("https", "/again")]).code == 0).then_some(())
    });
}
