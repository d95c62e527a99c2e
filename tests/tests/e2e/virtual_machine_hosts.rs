//! Runs bays in virtual machines that differ from this host. With cgroup version 2 only, and with version 1 only:
//! memory, processor and process limits, pause, and cleanup. With a clock that jumps: timeouts, leases and service
//! restarts.

use bay_tests::virtual_machine::{Cgroups, Machine, Said};
use serde_json::Value;

const LIMITS: &str = include_str!("virtual_machine_hosts/limits.sh");
const CLOCK: &str = include_str!("virtual_machine_hosts/clock.sh");
/// Exit code of a command that SIGKILL ended.
const KILLED: i64 = 128 + 9;

/// The state and the finding of one check of `bay doctor`.
#[track_caller]
fn check(said: &Said, when: &str, id: &str) -> (String, String) {
    let doctor = said.json(when);
    let checks = doctor["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["id"] == id).unwrap();
    let text = |name: &str| check[name].as_str().unwrap().to_owned();
    (text("state"), text("found"))
}

#[track_caller]
fn state(bay: &Value) -> &str {
    bay["state"].as_str().unwrap_or_default()
}

/// Assertions for every host, under any layout.
#[track_caller]
fn assert_limits_bite_and_nothing_is_left(said: &Said) {
    let console = said.console();
    assert_eq!(said.json("doctor-before")["fit"], true, "{console}");
    for step in [
        "up",
        "memory-below",
        "after-memory",
        "pids-kill",
        "tree-kill",
        "pause",
        "resume",
        "resumed",
        "after-resume",
        "stop",
        "second-up",
        "second-exec",
        "second-rm",
        "rm",
    ] {
        assert_eq!(said.number(step), 0, "{step}:\n{console}");
    }
    assert_eq!(said.number("memory-above"), KILLED, "{console}");
    assert!(said.number("oom-kills") > 0, "{console}");

    assert!(said.number("pids-refused") > 0, "{console}");
    assert!((30..=40).contains(&said.number("pids-used")), "{console}");
    assert_eq!(said.number("pids-left"), 0, "{console}");

    assert_eq!(said.number("tree-before"), 4, "{console}");
    assert_eq!(said.number("tree-left"), 0, "{console}");

    // Half a processor is 500. Less is measured, because the time includes starting and ending the command.
    assert!((100..=600).contains(&said.number("cpu-permille")), "{console}");
    assert!(said.number("cpu-throttled") > 0, "{console}");

    assert_eq!(said.number("paused-used"), 0, "{console}");
    for when in ["paused", "paused-after-restart"] {
        assert_eq!(state(&said.json(when)), "paused", "{when}:\n{console}");
    }

    for left in ["groups-stopped", "groups-left", "processes-left"] {
        assert_eq!(said.number(left), 0, "{left}:\n{console}");
    }
    assert_eq!(said.number("v2-mounts"), 1, "{console}");
    for check_id in ["namespaces", "cgroup-kill", "clone-into-cgroup", "cgroup-controllers", "landlock"] {
        assert_eq!(check(said, "doctor-before", check_id).0, "ok", "{check_id}:\n{console}");
    }
}

#[test]
fn memory_processor_and_process_limits_are_enforced_with_cgroup_version_2_only() {
    let Some(machine) = Machine::find() else { return };
    let said = machine.run(Cgroups::V2, LIMITS);
    assert_limits_bite_and_nothing_is_left(&said);
    assert_eq!(said.text("v2-mount"), "/sys/fs/cgroup");
    let layout = check(&said, "doctor-before", "cgroups");
    assert_eq!(layout, ("ok".into(), "version 2 at /sys/fs/cgroup".into()));
    assert_eq!(check(&said, "doctor-after", "cgroups"), layout);
    let controllers = check(&said, "doctor-before", "cgroup-controllers");
    assert_eq!(controllers.1, "cpu (v2), memory (v2), pids (v2), io (v2), cpuset (v2)");
}

#[test]
fn memory_processor_and_process_limits_are_enforced_with_cgroup_version_1_only() {
    let Some(machine) = Machine::find() else { return };
    let said = machine.run(Cgroups::V1, LIMITS);
    assert_limits_bite_and_nothing_is_left(&said);
    assert_eq!(said.text("v2-mount"), "/run/workbay/cgroup2");
    let (before, after) = (check(&said, "doctor-before", "cgroups"), check(&said, "doctor-after", "cgroups"));
    assert_eq!(before.0, "ok");
    assert_eq!(
        before.1,
        "version 1 alone; the first bay that starts has version 2 mounted at /run/workbay/cgroup2"
    );
    assert_eq!(after.1, "version 1, and version 2 at /run/workbay/cgroup2, where Workbay mounted it");
    let controllers = check(&said, "doctor-before", "cgroup-controllers");
    assert_eq!(controllers.1, "cpu (v1), memory (v1), pids (v1), io (v1), cpuset (v1)");
}

/// Tolerance in seconds: the machine may have to emulate its processor, which is slow.
const SLACK_S: i64 = 120;
/// Seconds of the lease that `clock.sh` takes.
const LEASE_S: i64 = 30 * 60;

#[test]
fn a_clock_that_jumps_hours_ahead_and_back_ends_nothing_early_and_nothing_late() {
    let Some(machine) = Machine::find() else { return };
    let said = machine.run(Cgroups::V2, CLOCK);
    let console = said.console();
    for step in ["up", "service", "hold", "restarted", "go", "rm"] {
        assert_eq!(said.number(step), 0, "{step}:\n{console}");
    }
    let jumped =
        |from: &str, to: &str| said.number(&format!("clock-{to}")) - said.number(&format!("clock-{from}"));
    assert!(jumped("before", "ahead") >= 18_000 && jumped("ahead", "back") <= -30_000, "{console}");
    for when in ["before", "ahead", "back"] {
        let number = |name: &str| said.number(&format!("{name}-{when}"));
        assert_eq!(number("exec"), 0, "{when}:\n{console}");
        assert_eq!(number("timeout"), 124, "{when}:\n{console}");
        // In hundredths of a second; the timeout is one second.
        assert!((100..SLACK_S * 100).contains(&number("timeout-took")), "{when}:\n{console}");
        assert!((LEASE_S - SLACK_S..=LEASE_S + 1).contains(&number("lease")), "{when}:\n{console}");
        assert_eq!(number("failing"), 0, "the service is not tried again {when}:\n{console}");
        assert_eq!(state(&said.json(&format!("bay-{when}"))), "running", "{when}:\n{console}");
    }
    let (before, after) = (said.json("bay-before"), said.json("bay-restarted"));
    assert_eq!((state(&after), &after["host_pid"]), ("running", &before["host_pid"]), "{console}");
    let patient = said.json("patient");
    assert_eq!(
        (&patient["exit"]["reason"], &patient["exit"]["code"]),
        (&"exited".into(), &7.into()),
        "{console}"
    );
    assert_eq!(
        (state(&said.json("steady")), &said.json("steady")["restarts"]),
        ("ready", &0.into()),
        "{console}"
    );
}
