//! Bays that an older release started continue under this one. `BAY_TEST_OLDER` names the executable of that release.

use std::path::Path;
use std::process::{Child, Stdio};

use bay_tests::canary::{CANARY, credentials, everybody_is_clean, set};
use bay_tests::consistency_probe::can_run;
use bay_tests::lab::{Lab, lab_with};
use bay_tests::open_approvals::{Client, approvals, id, paths};
use bay_tests::suite::{Lack, skip};
use bay_tests::test_servers::Origin;
use bay_tests::{Daemon, until};
use serde_json::Value;

/// Counts, writes the count to a file, and prints it.
const COUNTER: &str = "n=0; while :; do n=$((n+1)); echo $n > /workspace/n.new; mv /workspace/n.new /workspace/n; \
                       echo $n; usleep 20000; done";

/// Prints, waits for a file, prints again, and ends with 3.
const WAITS: &str = "echo before; while [ ! -e /tmp/go ]; do usleep 10000; done; echo after; exit 3";

fn count(daemon: &Daemon, bay: &str) -> u64 {
    until("a count", || daemon.sh(bay, "cat n").text().parse().ok())
}

fn counts_on(daemon: &Daemon, bay: &str) {
    let before = count(daemon, bay);
    until("it to count on", || (count(daemon, bay) > before + 3).then_some(()));
}

fn detached(daemon: &Daemon, bay: &str, script: &str) -> String {
    let exec = daemon.bay(&["exec", bay, "-d", "--json", "--", "sh", "-c", script]).ok().json();
    exec["id"].as_str().unwrap().to_owned()
}

/// Allows requests below `/free` and asks about all others, and about one command.
fn policy(origin: &Origin) -> String {
    let one = |name: &str, outcome: &str, path: &str| {
        let rule = origin.allowed(&format!("method = \"*\"\npath = \"{path}\""));
        rule.replace("id = \"origin\"", &format!("id = \"{name}\""))
            .replace("\"allow\"", &format!("\"{outcome}\""))
    };
    let command = "[[exec]]\nid = \"release\"\noutcome = \"ask\"\nargv = [\"echo\", \"release\"]\n";
    format!("{}\n{}\n{command}", one("free", "allow", "/free/**"), one("asked", "ask", "/asked/**"))
}

fn release(daemon: &Daemon) -> Child {
    let mut command = daemon.command(&["exec", "b", "--", "echo", "release"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn open_question(lab: &Lab, what: &str) -> Value {
    until("the question", || approvals(lab, &[]).into_iter().find(|card| card["asked"]["what"] == what))
}

/// Sends a `GET` with the secret in the bay's environment as the credential.
fn sends_the_secret(lab: &Lab, origin: &Origin) -> bool {
    let script = "import os, sys, urllib.request\n\
                  wanted = urllib.request.Request(sys.argv[1], headers={'Authorization': 'Bearer ' + os.environ['TOKEN']})\n\
                  print(urllib.request.urlopen(wanted, timeout=20).status)";
    let before = credentials(origin).len();
    let sent = lab.python("b", script, &[&origin.url("https", "/free/x")]);
    sent.text() == "200" && credentials(origin)[before..] == [format!("Bearer {CANARY}")]
}

#[test]
fn bays_of_an_older_release_continue_under_this_one() {
    let Some(older) = std::env::var_os("BAY_TEST_OLDER") else {
        skip(Lack::Host, "BAY_TEST_OLDER names no executable of an older release");
        return;
    };
    let mut lab =
        lab_with(Daemon::setup().binary(Path::new(&older)).argument("--ask-hold").argument("500ms"));
    let origin = lab.echo("origin.test");
    lab.bay("b", &policy(&origin));
    lab.bay("stopped", &policy(&origin));
    let _stopped = lab.daemon.bay(&["stop", "stopped"]).ok();
    let for_free = format!("GET {}:{}/free/** as bearer", origin.name, origin.port());
    let _set = set(&lab, "TOKEN", &["--for", &for_free]).ok();
    until("the secret is in the bay", || {
        lab.daemon.sh("b", "test -n \"$TOKEN\" && echo yes").text().eq("yes").then_some(())
    });
    assert!(sends_the_secret(&lab, &origin));
    let waiting = detached(&lab.daemon, "b", WAITS);
    let memory = can_run(&lab.daemon);
    let counting = memory.then(|| {
        lab.daemon.empty_bay("m");
        let counting = detached(&lab.daemon, "m", COUNTER);
        counts_on(&lab.daemon, "m");
        let made = lab.daemon.bay(&["checkpoint", "m", "--memory", "--json"]).ok().json();
        assert_eq!(made["kind"], "memory", "{made}");
        counting
    });
    let _files = lab.daemon.sh("b", "echo kept > kept").ok();
    let _made = lab.daemon.bay(&["checkpoint", "b", "--files-only"]).ok();
    let mut client = Client::new(&lab, "b", &origin);
    assert_eq!(
        client.status("GET", "/asked/x"),
        503,
        "the question is open and the client is asked to come again"
    );
    let waiting_client = release(&lab.daemon);
    let (request, command) = (open_question(&lab, "request"), open_question(&lab, "exec"));
    // A request that is held while the older release ends.
    let held = client.send("GET", "/asked/held", "");
    until("the held request is a question", || (approvals(&lab, &[]).len() == 3).then_some(()));
    let (pid, sent) = (lab.daemon.host_pid("b"), client.sent());
    let events = lab.daemon.rest("GET", "/v1/bays/b", &Value::Null).json();

    lab.daemon.upgrade();
    assert_eq!(lab.daemon.host_pid("b"), pid, "an upgrade restarts no bay: {events:#}");
    lab.until_open("b");
    // Approvals of the older release are answered under this one.
    let open = approvals(&lab, &[]);
    assert_eq!(open.len(), 3, "{open:#?}");
    for card in [&request, &command] {
        let _allowed = lab.daemon.bay(&["approvals", "allow", &id(card)]).ok();
    }
    let mut client = Client::running(&lab, "b", sent);
    let _broken_off = client.answer(held);
    assert_eq!(client.status("GET", "/asked/x"), 200);
    let again = open.iter().find(|card| ![id(&request), id(&command)].contains(&id(card))).unwrap();
    let _allowed = lab.daemon.bay(&["approvals", "allow", &id(again)]).ok();
    assert_eq!(client.status("GET", "/asked/held"), 200);
    assert_eq!(paths(&origin).iter().filter(|path| path.starts_with("/asked/")).count(), 2);
    // The client of the older release has waited for its answer all the time.
    let ran = waiting_client.wait_with_output().unwrap();
    assert_eq!((ran.status.code(), ran.stdout.as_slice()), (Some(0), &b"release\n"[..]), "{ran:?}");
    // The secret, the exec that waited, and its kept output.
    assert!(sends_the_secret(&lab, &origin));
    everybody_is_clean(&lab, "b");
    let _go = lab.daemon.sh("b", "touch /tmp/go").ok();
    let view = until("the exec of the older release to end", || {
        let view = lab.daemon.rest("GET", &format!("/v1/bays/b/execs/{waiting}"), &Value::Null).json();
        (!view["exit"].is_null()).then_some(view)
    });
    assert_eq!(view["exit"]["code"], 3, "{view}");
    assert_eq!(lab.daemon.bay(&["logs", "b", &waiting]).ok().text(), "before\nafter");
    // Checkpoints, of files and of memory.
    let _changed = lab.daemon.sh("b", "echo changed > kept").ok();
    let _restored = lab.daemon.bay(&["restore", "b", "v1"]).ok();
    assert_eq!(lab.daemon.sh("b", "cat kept").ok().text(), "kept");
    if let Some(counting) = counting {
        counts_on(&lab.daemon, "m");
        let _restored = lab.daemon.bay(&["restore", "m", "v1"]).ok();
        counts_on(&lab.daemon, "m");
        let view = lab.daemon.rest("GET", &format!("/v1/bays/m/execs/{counting}"), &Value::Null).json();
        assert!(view["exit"].is_null(), "{view}");
        let _forked = lab.daemon.bay(&["fork", "m", "--from", "v1"]).ok();
        counts_on(&lab.daemon, "m-fork-1");
        let made = lab.daemon.bay(&["checkpoint", "m", "--memory", "--json"]).ok().json();
        assert_eq!(made["kind"], "memory", "{made}");
        let _restored = lab.daemon.bay(&["restore", "m", made["name"].as_str().unwrap()]).ok();
        counts_on(&lab.daemon, "m");
    }
    // The bay that was stopped, and new guests for those that ran.
    let _started = lab.daemon.bay(&["start", "stopped"]).ok();
    let _replaced = lab.daemon.bay(&["replace", "b"]).ok();
    for bay in ["stopped", "b"] {
        lab.until_open(bay);
        assert_eq!(lab.get(bay, &origin.url("https", "/free/y")).0, 200);
    }
    // One record over both releases.
    let verified = lab.daemon.bay(&["audit", "verify"]).ok().text();
    assert!(verified.contains("events hold"), "{verified}");
    let timeline = lab.daemon.bay(&["timeline", "b"]).ok().text();
    for part in ["allowed once by uid 0", "v1", "echo release"] {
        assert!(timeline.contains(part), "{part}: {timeline}");
    }
}
