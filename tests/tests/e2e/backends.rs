//! The promises of every backend: the same tests for each driver that this host has. Differences come from the driver's
//! capabilities.
//!
//! `crates/bay-backend/CONTRACT.md` has the promises. A new driver only needs a line in `on_every_backend`.

use bay_tests::daemon::Setup;
use bay_tests::lab::{Lab, lab_with};
use bay_tests::suite::{self, Lack, Scratch};
use bay_tests::{Daemon, SMALL, until};
use bay_types::ErrorCode;
use bay_types::bay::State;
use serde_json::{Value, json};

use crate::durability::FLUSH;

/// The path of gVisor's program, set by `./test`.
const RUNSC: &str = "BAY_TEST_RUNSC";

/// A daemon whose bays run on this backend. `None`, with the reason printed, if this host does not have it.
fn setup(backend: &str) -> Option<Setup> {
    let setup = Daemon::setup().argument("--backend").argument(backend);
    if backend != "gvisor" {
        return Some(setup);
    }
    let Some(runsc) = std::env::var_os(RUNSC).and_then(|path| path.into_string().ok()) else {
        suite::skip(Lack::Installable, &format!("there is no runsc ({RUNSC})"));
        return None;
    };
    Some(setup.argument("--runsc").argument(&runsc))
}

fn daemon(backend: &str) -> Option<Daemon> {
    setup(backend).map(Setup::start)
}

fn lab(backend: &str) -> Option<Lab> {
    setup(backend).map(lab_with)
}

fn capability(daemon: &Daemon, bay: &str, name: &str) -> Value {
    daemon.show(bay)["capabilities"][name].clone()
}

fn read(daemon: &Daemon, bay: &str, script: &str) -> String {
    daemon.sh(bay, script).ok().text()
}

macro_rules! on_every_backend {
    ($($test:ident),* $(,)?) => {
        mod local {
            $(#[test] fn $test() { super::$test("local"); })*
        }
        mod gvisor {
            $(#[test] fn $test() { super::$test("gvisor"); })*
        }
    };
}

on_every_backend!(
    a_bay_says_what_runs_it_and_the_record_has_it,
    a_bay_keeps_its_files_and_its_identity_when_it_is_stopped_and_started,
    commands_get_input_and_give_output_and_their_exit_code,
    files_go_in_and_come_out_with_their_modes,
    a_paused_bay_does_nothing_until_it_is_resumed,
    limits_hold_as_far_as_the_backend_can_keep_them,
    flushes_of_a_relaxed_bay_return_at_once,
    nothing_leaves_but_what_the_policy_allows,
    a_request_is_attributed_as_finely_as_the_backend_can,
    files_go_back_to_a_checkpoint,
    memory_is_kept_or_the_refusal_says_why_not,
    a_fork_has_the_files_of_its_parent_and_a_name_of_its_own,
    a_bay_outlives_its_daemon,
    a_guest_that_is_killed_is_replaced,
    a_helper_killed_before_any_of_its_steps_leaves_nothing_behind,
);

fn a_bay_says_what_runs_it_and_the_record_has_it(backend: &str) {
    let Some(daemon) = daemon(backend) else { return };
    daemon.empty_bay("b");
    let view = daemon.show("b");
    assert_eq!(
        (&view["backend"], &view["isolation"]["backend"]),
        (&json!(backend), &json!(backend)),
        "{view}"
    );
    assert_eq!(view["isolation"]["grade"], view["capabilities"]["isolation"]);
    let text = daemon.bay(&["show", "b"]).ok().text();
    assert!(text.contains(view["isolation"]["grade"].as_str().unwrap()), "{text}");
    assert!(text.contains("memory checkpoints"), "{text}");
    let events = daemon.rest("GET", "/v1/events?bay=b", &Value::Null).json();
    let body = |kind: &str| {
        let found = events.as_array().unwrap().iter().find(|event| event["kind"] == kind);
        found.unwrap_or_else(|| panic!("no {kind} in {events}"))["body"].clone()
    };
    assert_eq!(body("bay.create")["backend"], backend);
    assert_eq!(body("bay.running")["capabilities"], view["capabilities"]);
}

#[test]
fn a_daemon_lists_its_backends_with_what_each_can_do() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let listed = daemon.bay(&["backends", "--json"]).ok().json();
    let listed = listed.as_array().unwrap();
    let default: Vec<&Value> = listed.iter().filter(|backend| backend["is_default"] == true).collect();
    let [default] = default[..] else { panic!("{listed:?}") };
    let view = daemon.show("b");
    assert_eq!((&default["name"], &default["capabilities"]), (&view["backend"], &view["capabilities"]));
    let text = daemon.bay(&["backends"]).ok().text();
    for part in ["local", "if they name no backend", "shared-kernel", "memory checkpoints"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

fn a_bay_keeps_its_files_and_its_identity_when_it_is_stopped_and_started(backend: &str) {
    let Some(daemon) = daemon(backend) else { return };
    daemon.empty_bay("b");
    const WHO: &str = "cat /etc/machine-id; hostname; cat /etc/hostname";
    let before = read(&daemon, "b", WHO);
    assert!(before.ends_with("b\nb"), "{before}");
    let _written = daemon.sh("b", "echo kept > /workspace/note; echo rooted > /root-note").ok();
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    assert_eq!(daemon.show("b")["state"], "stopped");
    let _refused = daemon.bay(&["exec", "b", "--", "true"]).fails_as(ErrorCode::BayState, 125);
    let _started = daemon.bay(&["start", "b"]).ok();
    assert_eq!(read(&daemon, "b", WHO), before);
    assert_eq!(read(&daemon, "b", "cat /workspace/note /root-note"), "kept\nrooted");
    let _replaced = daemon.bay(&["replace", "b"]).ok();
    assert_eq!(read(&daemon, "b", "cat /workspace/note; ls /root-note 2>/dev/null | wc -l"), "kept\n0");
    let _removed = daemon.bay(&["rm", "b", "--yes"]).ok();
    assert_eq!(daemon.list().len(), 0);
    assert_eq!(daemon.orphans(), []);
}

fn commands_get_input_and_give_output_and_their_exit_code(backend: &str) {
    let Some(daemon) = daemon(backend) else { return };
    daemon.empty_bay("b");
    assert_eq!(read(&daemon, "b", "pwd; id -u"), "/workspace\n0");
    let _failed = daemon.bay(&["exec", "b", "--", "sh", "-c", "exit 7"]).exits(7);
    let piped =
        daemon.bay_with_input(&["exec", "b", "--", "sh", "-c", "tr a-z A-Z; echo late >&2"], b"words").ok();
    assert_eq!((piped.text().as_str(), piped.errors().trim_end()), ("WORDS", "late"));
    let many = read(&daemon, "b", "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done");
    assert_eq!(many.lines().count(), 3000);
    assert_eq!(many.lines().last(), Some("line 2999"));
    // Children that outlive their parent end with the exec that is killed.
    let timed = daemon.bay(&["exec", "--timeout", "1", "b", "--", "sh", "-c", "sleep 61 & sleep 61"]);
    assert_ne!(timed.code, 0);
    until("everything of the exec to end", || {
        (read(&daemon, "b", "pgrep -x sleep | wc -l") == "0").then_some(())
    });
}

fn files_go_in_and_come_out_with_their_modes(backend: &str) {
    let Some(daemon) = daemon(backend) else { return };
    daemon.empty_bay("b");
    let scratch = Scratch::new();
    let content: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(scratch.join("in"), &content).unwrap();
    let path = |name: &str| scratch.join(name).to_str().unwrap().to_owned();
    let _in = daemon.bay(&["cp", &path("in"), "b:/workspace/file"]).ok();
    let _script = daemon
        .sh(
            "b",
            "mkdir -p d/e; printf '#!/bin/sh\\necho ran\\n' > d/e/run; chmod 750 d/e/run; ln -s run d/e/link",
        )
        .ok();
    assert_eq!(read(&daemon, "b", "wc -c < file; d/e/link"), format!("{}\nran", content.len()));
    let _out = daemon.bay(&["cp", "b:/workspace/file", &path("out")]).ok();
    assert!(std::fs::read(scratch.join("out")).unwrap() == content, "the same bytes");
    let _tree = daemon.bay(&["cp", "b:/workspace/d", &path("tree")]).ok();
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(scratch.join("tree/e/run")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o750);
    assert_eq!(std::fs::read_link(scratch.join("tree/e/link")).unwrap().to_str(), Some("run"));
    // A link that points out of the bay leads nowhere.
    let _link = daemon.sh("b", "ln -s /../../../../etc/shadow out").ok();
    let _refused = daemon.bay(&["cp", "b:/workspace/none", &path("none")]);
    assert!(!scratch.join("none").exists());
}

fn a_paused_bay_does_nothing_until_it_is_resumed(backend: &str) {
    let Some(daemon) = daemon(backend) else { return };
    daemon.empty_bay("b");
    let count = "while :; do echo . >> /workspace/ticks; sleep 0.05; done";
    let _counts = daemon.bay(&["exec", "--detach", "b", "--", "sh", "-c", count]).ok();
    until("it counts", || daemon.sh("b", "test -s ticks").code.eq(&0).then_some(()));
    let _paused = daemon.bay(&["pause", "b"]).ok();
    assert_eq!(daemon.show("b")["state"], "paused");
    let _resumed = daemon.bay(&["resume", "b"]).ok();
    assert_eq!(daemon.show("b")["state"], "running");
    let before: u64 = read(&daemon, "b", "wc -l < ticks").trim().parse().unwrap();
    until("it goes on", || {
        (read(&daemon, "b", "wc -l < ticks").trim().parse::<u64>().unwrap() > before).then_some(())
    });
}

fn limits_hold_as_far_as_the_backend_can_keep_them(backend: &str) {
    let Some(daemon) = daemon(backend) else { return };
    let scratch = Scratch::new();
    let place = scratch.path().to_str().unwrap();
    let limits = ["--disk-mib", "64", "--memory-mib", "512"];
    let _up = daemon.bay(&[&["up", place, "--name", "b", "--image", SMALL][..], &limits].concat()).ok();
    if capability(&daemon, "b", "quota")["support"] == "yes" {
        let filled =
            daemon.sh("b", "dd if=/dev/urandom of=/workspace/fill bs=1M count=100 && sync /workspace/fill");
        assert_ne!(filled.code, 0, "100 MiB do not fit into 64");
        let _freed = daemon.sh("b", "rm -f /workspace/fill").ok();
    }
    let set = daemon.bay(&["set", "b", "--memory-mib", "768"]);
    let live = capability(&daemon, "b", "live_limits");
    if live["support"] == "yes" {
        let _set = set.ok();
        assert_eq!(daemon.show("b")["limits"]["memory_mib"], 768);
    } else {
        let (what, _) = set.fails_with(ErrorCode::HostUnfit);
        assert!(what.contains(live["reason"].as_str().unwrap()), "{what}");
        assert_eq!(daemon.show("b")["limits"]["memory_mib"], 512);
    }
    assert_eq!(read(&daemon, "b", "echo alive"), "alive");
}

fn flushes_of_a_relaxed_bay_return_at_once(backend: &str) {
    let Some(daemon) = daemon(backend) else { return };
    if !bay_tests::image::with_python() {
        return;
    }
    daemon.empty_bay("b");
    assert_eq!(read(&daemon, "b", FLUSH), "made");
    let _set = daemon.bay(&["set", "b", "--durability", "relaxed"]).ok();
    assert_eq!(read(&daemon, "b", FLUSH), "skipped");
}

fn nothing_leaves_but_what_the_policy_allows(backend: &str) {
    let Some(lab) = lab(backend) else { return };
    let origin = lab.echo("origin.test");
    lab.daemon.empty_bay("b");
    assert_eq!(lab.get("b", &origin.url("https", "/open/door")).0, 403, "without a policy nothing is");
    lab.set("b", &origin.allowed("path = \"/open/**\""));
    assert_eq!(lab.get("b", &origin.url("https", "/open/door")), (200, "GET /open/door".to_owned()));
    assert_eq!(lab.get("b", &origin.url("https", "/shut")).0, 403);
    let nothing = lab.daemon.sh("b", "nc -w 5 192.0.2.1 22 </dev/null; true").ok();
    assert_eq!(nothing.text(), "", "nobody answers at another address");
    until("the refused port is on record", || {
        lab.record("b", "egress.refused").iter().any(|body| body["port"] == 22).then_some(())
    });
}

fn a_request_is_attributed_as_finely_as_the_backend_can(backend: &str) {
    let Some(lab) = lab(backend) else { return };
    let origin = lab.echo("origin.test");
    lab.bay("b", &origin.allowed("path = \"/**\""));
    assert_eq!(lab.get("b", &origin.url("https", "/one")).0, 200);
    let decided = lab.record("b", "egress.decided");
    let exec = &decided.first().unwrap_or_else(|| panic!("nothing was decided"))["by"]["exec"];
    match capability(&lab.daemon, "b", "attribution").as_str() {
        Some("exec") => assert!(exec.is_string(), "{decided:#?}"),
        Some("bay") => assert!(exec.is_null(), "{decided:#?}"),
        other => panic!("{other:?}"),
    }
}

fn files_go_back_to_a_checkpoint(backend: &str) {
    let Some(daemon) = daemon(backend) else { return };
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo one > note; echo root > /note").ok();
    let made = daemon.bay(&["checkpoint", "b", "--files-only", "--json"]).ok().json();
    let name = made["name"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    let _changed = daemon.sh("b", "echo two > note; rm /note").ok();
    let _restored = daemon.bay(&["restore", "b", &name, "--files-only"]).ok();
    assert_eq!(read(&daemon, "b", "cat note /note"), "one\nroot");
}

fn memory_is_kept_or_the_refusal_says_why_not(backend: &str) {
    let Some(daemon) = daemon(backend) else { return };
    daemon.empty_bay("b");
    let memory = capability(&daemon, "b", "memory_checkpoints");
    let asked = daemon.bay(&["checkpoint", "b", "--memory"]);
    if memory["support"] == "yes" {
        let _made = asked.ok();
    } else {
        let (what, next) = asked.fails_with(ErrorCode::MemoryUnavailable);
        assert!(what.contains(memory["reason"].as_str().unwrap()), "{what}");
        assert!(next.contains("--files-only"), "{next}");
        let _files = daemon.bay(&["checkpoint", "b"]).ok();
    }
    assert_eq!(read(&daemon, "b", "echo alive"), "alive");
}

fn a_fork_has_the_files_of_its_parent_and_a_name_of_its_own(backend: &str) {
    let Some(daemon) = daemon(backend) else { return };
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo one > note").ok();
    let _made = daemon.bay(&["fork", "b", "--count", "2", "--files-only"]).ok();
    for child in ["b-fork-1", "b-fork-2"] {
        assert_eq!(daemon.show(child)["backend"], backend);
        assert_eq!(read(&daemon, child, "cat note; hostname"), format!("one\n{child}"));
    }
    let _changed = daemon.sh("b-fork-1", "echo two > note").ok();
    assert_eq!(read(&daemon, "b", "cat note"), "one");
    assert_eq!(read(&daemon, "b-fork-2", "cat note"), "one");
    let ids: std::collections::BTreeSet<_> =
        ["b", "b-fork-1", "b-fork-2"].iter().map(|bay| read(&daemon, bay, "cat /etc/machine-id")).collect();
    assert_eq!(ids.len(), 3, "{ids:?}");
}

fn a_bay_outlives_its_daemon(backend: &str) {
    let Some(mut daemon) = daemon(backend) else { return };
    daemon.empty_bay("b");
    let waits = "echo $$ > pid; exec sleep 3600";
    let _waits = daemon.bay(&["exec", "--detach", "b", "--", "sh", "-c", waits]).ok();
    until("it waits", || daemon.sh("b", "test -s pid").code.eq(&0).then_some(()));
    let before = daemon.show("b");
    daemon.restart();
    let after = daemon.until_state("b", State::Running);
    assert_eq!((&after["host_pid"], &after["since"]), (&before["host_pid"], &before["since"]));
    assert_eq!(read(&daemon, "b", "kill -0 $(cat pid) && echo lives"), "lives");
}

fn a_guest_that_is_killed_is_replaced(backend: &str) {
    let Some(daemon) = daemon(backend) else { return };
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo kept > note").ok();
    let pid = daemon.show("b")["host_pid"].as_i64().expect("a process of this host");
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    until("another guest", || {
        let view = daemon.show("b");
        let other = view["host_pid"].as_i64().is_some_and(|now| now != i64::from(pid.as_raw_nonzero().get()));
        (view["state"] == "running" && other).then_some(())
    });
    assert_eq!(read(&daemon, "b", "cat note"), "kept");
}

fn a_helper_killed_before_any_of_its_steps_leaves_nothing_behind(backend: &str) {
    let Some(mut daemon) = daemon(backend) else { return };
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo kept > note").ok();
    let steps = daemon.bay(&["__runtime", "--steps"]).ok().text();
    for step in steps.lines() {
        // The driver whose start makes it is another one.
        if backend == "gvisor" && step == "user-ns" {
            continue;
        }
        let _stopped = daemon.bay(&["stop", "b"]).ok();
        daemon.kill_9();
        daemon.set_environment(&[("BAY_FAULT", &format!("runtime:{step}"))]);
        daemon.launch();
        daemon.bay(&["start", "b"]).fails_with(ErrorCode::BayFailed);
        assert_eq!(daemon.orphans(), [], "{step}");
        daemon.kill_9();
        daemon.set_environment(&[]);
        daemon.launch();
        let _started = daemon.bay(&["start", "b"]).ok();
        assert_eq!(read(&daemon, "b", "cat note"), "kept", "{step}");
    }
}
