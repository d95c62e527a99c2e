//! A daemon that was suspended, as by a suspended host, declares nothing dead. No process in a bay can set the host's
//! clock.

use std::time::Duration;

use bay_tests::wait::pause;
use bay_tests::{Daemon, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longer than the timeout of one of the commands, and longer than a connection to a guest may take.
const HELD_UP: Duration = Duration::from_secs(6);

fn exec_view(daemon: &Daemon, exec: &str) -> Value {
    daemon.rest("GET", &format!("/v1/bays/b/execs/{exec}"), &Value::Null).json()
}

#[test]
fn a_suspended_daemon_declares_nothing_dead_and_reports_what_happened_meanwhile() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let guest = daemon.host_pid("b");
    let start = |flags: &[&str], script: &str| {
        let mut args = vec!["exec", "b", "-d", "--json"];
        args.extend(flags);
        args.extend(["--", "sh", "-c", script]);
        daemon.bay(&args).ok().json()["id"].as_str().unwrap().to_owned()
    };
    let patient = start(&["--timeout", "600"], "until [ -e /tmp/go ]; do usleep 10000; done; exit 7");
    let hasty = start(&["--timeout", "1"], "sleep 600");
    let service = ["services", "add", "b", "web", "--", "sleep", "1003"];
    let _service = daemon.bay(&service).ok();
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    pause(HELD_UP);
    kill_process(pid, Signal::CONT).unwrap();
    assert_eq!(daemon.sh("b", "touch /tmp/go").code, 0);
    let view = until("the patient command to end", || {
        Some(exec_view(&daemon, &patient)).filter(|view| !view["exit"].is_null())
    });
    assert_eq!((&view["exit"]["reason"], &view["exit"]["code"]), (&"exited".into(), &7.into()), "{view}");
    // Its timeout passed while no daemon watched, and it is reported as timed out.
    let view = until("the hasty command to be told", || {
        Some(exec_view(&daemon, &hasty)).filter(|view| !view["exit"].is_null())
    });
    assert_eq!(view["exit"]["reason"], "timed-out", "{view}");
    let services = daemon.bay(&["services", "ls", "b", "--json"]).ok().json();
    assert_eq!(services[0]["state"], "ready", "{services}");
    assert_eq!(daemon.show("b")["state"], "running");
    assert_eq!(daemon.host_pid("b"), guest, "the guest was replaced");
}

#[test]
fn no_process_in_a_bay_can_set_the_hosts_clock() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let year = || daemon.sh("b", "date +%Y").ok().text();
    let before = year();
    let _tried = daemon.sh(
        "b",
        "date -s 2001-01-01; hwclock -w; adjtimex -f 1000000; unshare -U -r date -s 2001-01-01; true",
    );
    assert_eq!(year(), before);
    assert_ne!(before, "2001");
}
