//! Attacks by root in a bay on the record of its own commands: how they ended, what they printed, and the process that
//! reports both to the daemon.

use std::fs;
use std::path::PathBuf;

use bay_tests::{CliRun, Daemon, image, leaks, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sha2::{Digest, Sha256};

const FAILED: &str = "3 tests FAILED";

fn detached(daemon: &Daemon, bay: &str, script: &str) -> String {
    let ran = daemon.bay(&["exec", bay, "-d", "--json", "--", "sh", "-c", script]).ok();
    ran.json()["id"].as_str().expect("an exec id").to_owned()
}

fn view(daemon: &Daemon, bay: &str, exec: &str) -> Value {
    daemon.rest("GET", &format!("/v1/bays/{bay}/execs/{exec}"), &Value::Null).json()
}

fn until_ended(daemon: &Daemon, bay: &str, exec: &str) -> Value {
    until("the exec to end", || Some(view(daemon, bay, exec)).filter(|view| !view["exit"].is_null()))
}

/// Bodies of the bay's events of one kind.
fn events(daemon: &Daemon, bay: &str, kind: &str) -> Vec<Value> {
    let page = daemon.rest("GET", &format!("/v1/events?bay={bay}&since=0"), &Value::Null).json();
    let page = page.as_array().unwrap_or_else(|| panic!("not a list: {page}")).clone();
    page.into_iter().filter(|event| event["kind"] == kind).map(|event| event["body"].clone()).collect()
}

fn end_event(daemon: &Daemon, bay: &str, exec: &str) -> Value {
    let found = events(daemon, bay, "exec.end").into_iter().find(|body| body["exec"] == exec);
    found.unwrap_or_else(|| panic!("the record has no end of {exec}"))
}

fn kept(exec: &str) -> String {
    format!("/.bay/state/execs/{exec}")
}

/// A path of the bay as the host sees it, even while no daemon runs.
fn outside(guest: i32, path: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{guest}/root{path}"))
}

/// The objects that `bay logs --json` prints.
fn log_lines(ran: &CliRun) -> Vec<Value> {
    ran.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn check_of(daemon: &Daemon, exec: &str) -> Value {
    let lines = log_lines(&daemon.bay(&["logs", "b", exec, "--json"]).ok());
    let found = lines.iter().find(|line| line.get("check").is_some());
    found.unwrap_or_else(|| panic!("no check in {lines:?}"))["check"].clone()
}

#[test]
fn exec_forged_end_a_dead_guests_files_say_nothing_about_an_exec() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let running = detached(&daemon, "b", "sleep 1000");
    let record = format!("{}/meta.json", kept(&running));
    let forge = format!(
        "sed -i 's/\"usage\"/\"ended_at\":\"2026-01-01T00:00:00Z\",\"exit\":{{\"reason\":\"exited\",\"code\":0}},\
         \"usage\"/' {record} && grep -q '\"code\":0' {record}"
    );
    let _forged = daemon.sh("b", &forge).ok();
    let guest = daemon.host_pid("b");
    kill_process(Pid::from_raw(guest).unwrap(), Signal::KILL).unwrap();
    until("the guest to be gone", || leaks::ended(guest).then_some(()));
    let ended = until_ended(&daemon, "b", &running);
    assert_eq!(ended["exit"], serde_json::json!({ "reason": "lost" }), "{ended}");
    let event = end_event(&daemon, "b", &running);
    assert_eq!(
        (&event["exit"]["reason"], &event["reported_by"]),
        (&"lost".into(), &"daemon".into()),
        "{event}"
    );

    // And while no daemon runs: the next one asks a guest that has only the files.
    until("the bay to run again", || (daemon.sh("b", "true").code == 0).then_some(()));
    let running = detached(&daemon, "b", "sleep 1000");
    let _forged = daemon.sh("b", &forge.replace(&record, &format!("{}/meta.json", kept(&running)))).ok();
    let guest = daemon.host_pid("b");
    daemon.kill_9();
    kill_process(Pid::from_raw(guest).unwrap(), Signal::KILL).unwrap();
    until("the guest to be gone", || leaks::ended(guest).then_some(()));
    daemon.launch();
    assert_eq!(until_ended(&daemon, "b", &running)["exit"]["reason"], "lost");
}

#[test]
fn exec_forged_end_a_living_guest_reports_what_it_saw_and_not_what_its_files_say() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let _held = daemon.sh("b", "touch /tmp/hold").ok();
    let exec = detached(
        &daemon,
        "b",
        &format!("while [ -e /tmp/hold ]; do usleep 1000; done; echo '{FAILED}'; exit 1"),
    );
    let dir = kept(&exec);
    let _forger = detached(
        &daemon,
        "b",
        &format!(
            "until grep -q '\"reason\":\"exited\"' {dir}/meta.json; do usleep 1000; done; \
             sed -i 's/\"code\":1/\"code\":0/' {dir}/meta.json; touch /tmp/forged"
        ),
    );
    let guest = daemon.host_pid("b");
    daemon.kill_9();
    fs::remove_file(outside(guest, "/tmp/hold")).unwrap();
    until("the record to be forged", || outside(guest, "/tmp/forged").exists().then_some(()));
    daemon.launch();
    let ended = until_ended(&daemon, "b", &exec);
    assert_eq!((&ended["exit"]["reason"], &ended["exit"]["code"]), (&"exited".into(), &1.into()), "{ended}");
    let event = end_event(&daemon, "b", &exec);
    assert_eq!(event["reported_by"], "guest", "{event}");
}

#[test]
fn exec_rewritten_output_is_shown_with_a_warning() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let exec = detached(&daemon, "b", &format!("echo '{FAILED}'; echo 'see the log' >&2; exit 1"));
    let _ended = until_ended(&daemon, "b", &exec);
    let event = end_event(&daemon, "b", &exec);
    let hashes = event["output_hashes"].as_array().unwrap_or_else(|| panic!("{event}"));
    let written = format!("{FAILED}\nsee the log\n");
    assert_eq!((&hashes[0]["start"], &hashes[0]["bytes"]), (&0.into(), &written.len().into()), "{event}");
    let either = [written.clone(), format!("see the log\n{FAILED}\n")]
        .map(|text| Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    assert!(either.iter().any(|hash| hashes[0]["sha256"] == **hash), "{event}");

    let honest = daemon.bay(&["logs", "b", &exec]).ok();
    assert!(!honest.errors().contains("bay:"), "{honest}");
    assert_eq!(check_of(&daemon, &exec)["state"], "intact");

    let dir = kept(&exec);
    let warned = |how: &str| {
        let ran = daemon.bay(&["logs", "b", &exec]).ok();
        assert!(ran.errors().contains("warning: "), "{how}: {ran}");
        check_of(&daemon, &exec)
    };
    let _rewritten =
        daemon.sh("b", &format!("cp -a {dir} /workspace/kept && sed -i 's/FAILED/passed/' {dir}/*.out")).ok();
    assert_eq!(daemon.bay(&["logs", "b", &exec, "--split"]).ok().text(), "3 tests passed");
    assert_eq!(warned("rewritten")["state"], "changed");
    // The daemon's own reading of a stopped bay, and a new guest's.
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    assert_eq!(warned("stopped")["state"], "changed");
    let _started = daemon.bay(&["start", "b"]).ok();
    assert_eq!(warned("started again")["state"], "changed");

    let restore = format!("rm -rf {dir} && cp -a /workspace/kept {dir}");
    let _restored = daemon.sh("b", &restore).ok();
    assert_eq!(check_of(&daemon, &exec)["state"], "intact");
    let _cut = daemon.sh("b", &format!("for f in {dir}/*.out; do : > $f; done")).ok();
    assert_eq!(warned("cut off")["state"], "missing");
    // The stream on which each byte was printed.
    let _moved = daemon.sh("b", &format!("{restore}; for f in {dir}/*.idx; do : > $f; done")).ok();
    assert_eq!(warned("moved to the other stream")["state"], "changed");
    // Text after the end.
    let _longer = daemon.sh("b", &format!("{restore}; for f in {dir}/*.out; do echo fixed >> $f; done")).ok();
    assert_eq!(warned("continued")["state"], "unchecked");
}

#[test]
fn exec_rewritten_output_of_a_lost_exec_is_shown_as_unchecked() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let exec = detached(&daemon, "b", &format!("echo '{FAILED}'; sleep 1000"));
    until("output", || (daemon.bay(&["logs", "b", &exec]).text() == FAILED).then_some(()));
    let _rewritten = daemon.sh("b", &format!("sed -i 's/FAILED/passed/' {}/*.out", kept(&exec))).ok();
    let guest = daemon.host_pid("b");
    kill_process(Pid::from_raw(guest).unwrap(), Signal::KILL).unwrap();
    let ended = until_ended(&daemon, "b", &exec);
    assert_eq!(ended["exit"]["reason"], "lost", "{ended}");
    let ran = daemon.bay(&["logs", "b", &exec]).ok();
    assert!(ran.errors().contains("warning: "), "{ran}");
    assert_eq!(check_of(&daemon, &exec)["state"], "unchecked");
}

#[test]
fn a_kill_of_an_ended_command_ends_the_processes_that_it_left() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let exec = detached(&daemon, "b", "sleep 1013 >/dev/null 2>&1 & sleep 1013 >/dev/null 2>&1 &");
    let ended = until_ended(&daemon, "b", &exec);
    assert_eq!(ended["exit"]["code"], 0, "{ended}");
    let count = || daemon.sh("b", "ps -o args | grep -cx 'sleep 1013'").text();
    assert_eq!(count(), "2");
    let killed = daemon.bay(&["kill", "b", &exec]).ok().text();
    assert!(killed.contains("had ended before") && killed.contains("2 processes that it left"), "{killed}");
    until("the processes to be gone", || (count() == "0").then_some(()));
    let signal = events(&daemon, "b", "exec.signal");
    assert_eq!(signal.len(), 1, "{signal:?}");
    // Now nothing of it is left, and the message says no more.
    let again = daemon.bay(&["kill", "b", &exec]).ok().text();
    assert!(again.ends_with("had ended before"), "{again}");
}

#[test]
fn exec_moved_a_kill_claims_no_process_that_left_the_control_group_of_its_command() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = "mkdir -p /tmp/cg && mount -t cgroup2 none /tmp/cg && mkdir /tmp/cg/away || exit 1; \
                  sleep 1014 & echo $! > /tmp/cg/away/cgroup.procs || exit 1; sleep 1015 & \
                  touch /tmp/moved; wait";
    let exec = detached(&daemon, "b", script);
    until("the child to be moved", || (daemon.sh("b", "test -e /tmp/moved").code == 0).then_some(()));
    let lives = |seconds: u32| daemon.sh("b", &format!("ps -o args | grep -qx 'sleep {seconds}'")).code == 0;
    assert!(lives(1014) && lives(1015));
    let said = daemon.bay(&["kill", "b", &exec]).ok().text();
    assert!(said.ends_with("was ended, with every process in its control group"), "{said}");
    assert_eq!(until_ended(&daemon, "b", &exec)["exit"]["reason"], "killed");
    assert!(!lives(1015), "a process in the group outlived the kill");
    assert!(lives(1014), "the kernel knows no more that the command started it");
    // A second kill finds no process in the group, and reports none.
    let again = daemon.bay(&["kill", "b", &exec]).ok().text();
    assert!(again.ends_with("had ended before"), "{again}");
    assert!(lives(1014));
    // The remedy that docs/execs.md names.
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let _started = daemon.bay(&["start", "b"]).ok();
    assert!(!lives(1014), "a process outlived the stop of its bay");
}

#[test]
fn guest_limits_of_pid_1_that_would_end_it_are_refused() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let guest = daemon.host_pid("b");
    // All threads of a process share its limits.
    let script = "
import os, resource, subprocess
names = ('CPU', 'FSIZE', 'DATA', 'AS')
for thread in [1] + [int(n) for n in os.listdir('/proc/1/task')] + [os.getppid()]:
    for name in names:
        try:
            resource.prlimit(thread, getattr(resource, 'RLIMIT_' + name), (1, 1))
            print('set', name, 'of', thread)
        except ProcessLookupError:
            pass
        except PermissionError:
            print('refused')
# What programs do with their own limits, and container runtimes with those of a container, works.
resource.prlimit(0, resource.RLIMIT_CPU, (1000, 1000))
resource.prlimit(1, resource.RLIMIT_CPU)
child = subprocess.Popen(['sleep', '1000'])
resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (100, 100))
child.kill()
print('done')
";
    let said = daemon.bay(&["exec", "b", "--", "python3", "-c", script]).ok().text();
    assert!(said.ends_with("done") && !said.contains("set"), "{said}");
    assert!(said.matches("refused").count() >= 4, "{said}");
    assert_eq!(daemon.sh("b", "echo alive").ok().text(), "alive");
    assert_eq!(daemon.host_pid("b"), guest, "PID 1 was lost");
}

#[test]
fn guest_frozen_in_a_group_of_the_bay_is_put_back_and_the_record_says_so() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let guest = daemon.host_pid("b");
    let freeze = "mkdir -p /tmp/cg && mount -t cgroup2 none /tmp/cg && mkdir /tmp/cg/cage \
                  && echo 1 > /tmp/cg/cage/cgroup.procs && echo 1 > /tmp/cg/cage/cgroup.freeze";
    let _started = detached(&daemon, "b", freeze);
    let moved = until("the record to say that the guest was moved", || {
        // A client that cannot reach the guest makes the daemon check.
        let _answer = daemon.sh("b", "true");
        events(&daemon, "b", "bay.guest-moved").first().cloned()
    });
    let expected = serde_json::json!({ "group": "cage", "frozen": true, "stays": null });
    assert_eq!(moved, expected);
    assert_eq!(daemon.sh("b", "echo alive").ok().text(), "alive");
    assert_eq!(daemon.host_pid("b"), guest, "PID 1 was lost");
}
