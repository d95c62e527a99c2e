//! The egress of a bay: real clients in real bays, real servers outside, and the policy between them.

use bay_tests::lab::lab;
use bay_tests::{Daemon, until};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde_json::{Value, json};

#[test]
fn allowed_requests_leave_and_all_others_are_refused_with_the_reason() {
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &origin.allowed("path = \"/open/**\""));
    let (status, body) = lab.get("b", &origin.url("https", "/open/door"));
    assert_eq!((status, body.as_str()), (200, "GET /open/door"));

    let (status, body) = lab.get("b", &origin.url("https", "/shut"));
    assert_eq!(status, 403);
    let told: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
    assert_eq!(told["outcome"], "deny", "{told:#}");
    assert_eq!(origin.seen.lines(), ["GET /open/door"]);

    let (status, _) = lab.get("b", &format!("https://blocked.test:{}/", origin.port()));
    assert_eq!(status, 403);
    let decided = lab.record("b", "egress.decided");
    let by = &decided[0]["by"];
    assert!(by["exec"].as_str().is_some_and(|exec| exec.starts_with("exec_")), "{by:#}");
    let outcomes: Vec<&str> = decided.iter().filter_map(|body| body["outcome"].as_str()).collect();
    assert_eq!(outcomes, ["allow", "deny", "deny"], "{decided:#?}");
    until("the end of what left is on record", || (lab.record("b", "egress.ended").len() == 1).then_some(()));
    assert_eq!(lab.record("b", "egress.ended")[0]["status"], 200);
    // On a busy machine the process is not found for every connection.
    until("a process to be told", || {
        let _again = lab.get("b", &origin.url("https", "/open/again"));
        let told = lab.record("b", "egress.decided");
        let program = told.last()?["by"]["process"]["argv"][0].as_str()?.to_owned();
        assert!(program.contains("python"), "{program}");
        Some(())
    });
}

#[test]
fn a_bay_without_a_policy_reaches_nothing_and_is_refused_immediately() {
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.daemon.empty_bay("b");
    assert_eq!(lab.get("b", &origin.url("https", "/")).0, 403);
    // Neither a ping nor a datagram nor a connection to an unknown port leads anywhere.
    assert_ne!(lab.daemon.sh("b", "ping -c 1 -W 1 192.0.2.1").code, 0);
    let _closed = lab.daemon.sh("b", "nc -w 5 192.0.2.1 22 </dev/null");
    until("a refused port is on record", || {
        lab.record("b", "egress.refused")
            .iter()
            .any(|body| body["port"] == 22 && body["host"] == "192.0.2.1")
            .then_some(())
    });
    assert!(origin.seen.lines().is_empty());
    let _asked = lab
        .daemon
        .sh("b", "python3 -c 'import socket; socket.socket(2, 2).sendto(b\"x\", (\"192.0.2.1\", 443))'")
        .ok();
    let state = lab.daemon.rest("GET", "/v1/bays/b/egress", &Value::Null).json();
    assert_eq!((&state["dropped"]["icmp"], &state["dropped"]["udp"]), (&json!(1), &json!(1)), "{state}");
}

/// Three requests over one connection, each after a signal to continue.
const STEPS: &str = r#"
import http.client, os, sys, time
connection = http.client.HTTPSConnection("origin.test", int(sys.argv[1]), timeout=20)
for number, path in enumerate(["/a/1", "/a/2", "/a/3"]):
    while not os.path.exists("/tmp/go%d" % number):
        time.sleep(0.01)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    with open("/tmp/said%d.new" % number, "w") as said:
        said.write("%d %d" % (answer.status, connection.sock.getsockname()[1]))
    os.rename("/tmp/said%d.new" % number, "/tmp/said%d" % number)
"#;

#[test]
fn a_policy_change_applies_immediately_and_keeps_connections_that_stay_allowed() {
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &origin.allowed("path = \"/a/**\""));
    let port = origin.port().to_string();
    let _begun = lab.daemon.bay(&["exec", "--detach", "b", "--", "python3", "-c", STEPS, &port]).ok();
    let step = |number: usize| {
        let _go = lab.daemon.sh("b", &format!("touch /tmp/go{number}")).ok();
        let file = format!("/tmp/said{number}");
        until("the client has its answer", || {
            (lab.daemon.sh("b", &format!("test -e {file}")).code == 0).then_some(())
        });
        let said = lab.daemon.sh("b", &format!("cat {file}")).ok().text();
        let (status, port) = said.trim().split_once(' ').unwrap();
        (status.to_owned(), port.to_owned())
    };
    let (status, connection) = step(0);
    assert_eq!(status, "200");
    lab.set("b", &origin.allowed("path = [\"/a/**\", \"/b/**\"]"));
    assert_eq!(step(1), ("200".to_owned(), connection.clone()));
    lab.set("b", &origin.allowed("path = \"/b/**\""));
    assert_eq!(step(2), ("403".to_owned(), connection));
    assert_eq!(origin.seen.lines(), ["GET /a/1", "GET /a/2"]);
}

/// Connects repeatedly until it was refused once, and then permitted again.
const AGAIN: &str = r#"
import os, socket, sys, time
address = socket.getaddrinfo("origin.test", int(sys.argv[1]), socket.AF_INET)[0][4]
open("/tmp/began", "w").close()
for wanted in ["refused", "open"]:
    now = ""
    while now != wanted:
        time.sleep(0.02)
        try:
            socket.create_connection(address, timeout=5).close()
            now = "open"
        except ConnectionRefusedError:
            now = "refused"
open("/tmp/seen", "w").close()
"#;

#[test]
fn egress_is_closed_while_no_daemon_runs_and_open_with_the_next() {
    let mut lab = lab();
    let origin = lab.echo_for(&["b"]);
    assert_eq!(lab.get("b", &origin.url("https", "/1")).0, 200);
    let identity = "cat /.bay/ca.crt; nslookup origin.test";
    let before = lab.daemon.sh("b", identity).ok().text();
    let port = origin.port().to_string();
    let _begun = lab.daemon.bay(&["exec", "--detach", "b", "--", "python3", "-c", AGAIN, &port]).ok();
    until("the client runs", || (lab.daemon.sh("b", "test -e /tmp/began").code == 0).then_some(()));
    lab.daemon.kill_9();
    lab.daemon.launch();
    until("the client saw it closed and open", || {
        (lab.daemon.sh("b", "test -e /tmp/seen").code == 0).then_some(())
    });
    assert_eq!(lab.get("b", &origin.url("https", "/2")).0, 200);
    assert_eq!(lab.daemon.sh("b", identity).ok().text(), before, "the authority and the names are the same");
}

/// How often a file is opened during `work`. The kernel counts immediately successive openings as one.
fn opened_during(path: &std::path::Path, work: impl FnOnce()) -> usize {
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&inotify, path, WatchFlags::OPEN).unwrap();
    work();
    let mut space = [std::mem::MaybeUninit::uninit(); 64 << 10];
    let mut reader = inotify::Reader::new(&inotify, &mut space);
    std::iter::from_fn(|| reader.next().ok().map(drop)).count()
}

#[test]
fn the_authority_of_a_bay_is_decrypted_once_by_each_daemon() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let id = daemon.show("b")["id"].as_str().unwrap().to_owned();
    let path = daemon.data_dir.join("egress").join(id).join("authority.age");
    let _ = daemon.bay(&["stop", "b"]).ok();
    daemon.restart();
    let starts = |daemon: &Daemon| {
        opened_during(&path, || {
            let _ = daemon.bay(&["start", "b"]).ok();
            let _ = daemon.bay(&["stop", "b"]).ok();
        })
    };
    assert_eq!(starts(&daemon), 1, "openings of the file by the first start of a daemon");
    assert_eq!(starts(&daemon), 0, "openings by the next start");
}
