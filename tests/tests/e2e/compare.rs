//! `bay compare`: the same command in several bays, side by side.

use std::process::Stdio;

use bay_tests::{CliRun, Daemon, until};
use bay_types::ErrorCode;
use serde_json::Value;

fn three(daemon: &Daemon) {
    for (bay, script) in [("a", "echo 5 > n"), ("b", "echo 4 > n"), ("c", "echo 6 > n")] {
        daemon.empty_bay(bay);
        let _made = daemon.sh(bay, script).ok();
    }
}

fn row<'a>(compared: &'a Value, bay: &str) -> &'a Value {
    compared["bays"].as_array().unwrap().iter().find(|row| row["bay"] == bay).unwrap()
}

/// Prints the summary of a test runner. Fails if fewer than five tests passed.
const SUITE: &str = "n=$(cat n); echo \"== $n passed, 1 skipped in 0.01s ==\"; test $n -ge 5";

#[test]
fn the_same_command_is_shown_side_by_side() {
    let daemon = Daemon::start();
    three(&daemon);
    let compared = daemon.bay(&["compare", "a", "b", "c", "--run", SUITE, "--json"]).ok().json();
    for (bay, passed, code) in [("a", 5, 0), ("b", 4, 1), ("c", 6, 0)] {
        let row = row(&compared, bay);
        assert_eq!(row["tests"]["passed"], passed, "{row}");
        assert_eq!((&row["tests"]["skipped"], &row["exit_code"]), (&1.into(), &code.into()), "{row}");
        assert!(row["wall_s"].as_f64().unwrap() > 0.0 && row["output_bytes"].as_u64().unwrap() > 20, "{row}");
        assert!(row["error"].is_null(), "{row}");
        assert_eq!((&row["diff"]["files"], &row["diff"]["added"]), (&1.into(), &1.into()), "{row}");
        let said = daemon.bay(&["logs", bay, row["exec"].as_str().unwrap()]).ok();
        assert!(said.text().contains(&format!("{passed} passed")), "{said}");
    }
    let shown = daemon.bay(&["compare", "a", "b", "c", "--run", SUITE]).ok();
    let line = |bay: &str| shown.text().lines().find(|line| line.starts_with(bay)).unwrap().to_owned();
    assert!(line("b").contains("1 !") && line("b").contains("4 passed, 1 skipped"), "{shown}");
    assert!(line("c").contains("6 passed, 1 skipped *"), "{shown}");
    assert!(shown.errors().contains("succeeded: a, c; failed: b"), "{shown}");
    assert!(shown.errors().contains("`bay logs a 3`"), "{shown}");
}

#[test]
fn a_comparison_is_a_page_that_runs_nothing_and_loads_nothing() {
    let daemon = Daemon::start();
    three(&daemon);
    let hostile = format!("{SUITE}; : '<script>alert(1)</script><img src=x>'");
    let compared = daemon.bay(&["compare", "a", "b", "nobody", "--run", &hostile, "--html"]);
    assert_eq!(compared.code, 3, "{compared}");
    let html = compared.text();
    assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>"), "{html}");
    assert!(html.contains("Content-Security-Policy") && html.contains("default-src 'none'"), "{html}");
    for part in ["Comparison of 3 bays", "5 passed, 1 skipped", "nobody", "bay-not-found", "&lt;script&gt;"] {
        assert!(html.contains(part), "{part} is missing: {html}");
    }
    for harm in ["<script", "<img", "<link", "http://", "https://", "@import", "url("] {
        assert!(!html.contains(harm), "{harm}: {html}");
    }
    assert!(compared.errors().contains("succeeded: a"), "{compared}");
}

#[test]
fn compare_runs_one_bay_after_another_by_default() {
    let daemon = Daemon::start();
    three(&daemon);
    let overlap = |compared: &Value| {
        let times: Vec<(String, String)> = ["a", "b"]
            .iter()
            .map(|bay| {
                let exec = row(compared, bay)["exec"].as_str().unwrap().to_owned();
                let view = daemon.rest("GET", &format!("/v1/bays/{bay}/execs/{exec}"), &Value::Null).json();
                (
                    view["started_at"].as_str().unwrap().to_owned(),
                    view["ended_at"].as_str().unwrap().to_owned(),
                )
            })
            .collect();
        let at = |text: &str| -> i64 {
            let view: bay_types::event::Event = serde_json::from_value(serde_json::json!({
                "seq": 1, "at": text, "kind": "", "body": {}, "hash": "",
            }))
            .unwrap();
            view.at.as_microsecond()
        };
        at(&times[1].0) < at(&times[0].1)
    };
    let apart = daemon.bay(&["compare", "a", "b", "--run", "sleep 0.3", "--json"]).ok().json();
    assert!(!overlap(&apart), "{apart}");
    let together = daemon.bay(&["compare", "a", "b", "--run", "sleep 1", "--parallel", "--json"]).ok().json();
    assert!(overlap(&together), "{together}");
}

#[test]
fn a_bay_that_cannot_run_the_command_is_a_row_and_does_not_end_the_comparison() {
    let daemon = Daemon::start();
    three(&daemon);
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let args = ["compare", "a", "b", "nobody", "c", "--run", "true", "--json"];
    let ran = daemon.bay(&args).exits(i32::from(ErrorCode::BayState.exit_code()));
    let compared = ran.json();
    assert_eq!(row(&compared, "b")["error"]["code"], "bay-state", "{compared}");
    assert_eq!(row(&compared, "nobody")["error"]["code"], "bay-not-found", "{compared}");
    assert_eq!(row(&compared, "c")["exit_code"], 0, "{compared}");
    let shown = daemon.bay(&["compare", "a", "b", "--run", "true"]);
    assert!(shown.text().contains("the bay b is stopped"), "{shown}");
}

#[test]
fn a_command_that_takes_too_long_is_ended_in_its_bay_only() {
    let daemon = Daemon::start();
    three(&daemon);
    let script = "test $(cat n) = 5 && sleep 1000; true";
    let compared =
        daemon.bay(&["compare", "a", "c", "--run", script, "--timeout", "1", "--json"]).ok().json();
    assert_eq!(row(&compared, "a")["exit"]["reason"], "timed-out", "{compared}");
    assert_eq!(row(&compared, "a")["exit_code"], 124, "{compared}");
    assert_eq!(row(&compared, "c")["exit_code"], 0, "{compared}");
}

#[test]
fn ctrl_c_ends_the_running_commands_and_shows_the_results_so_far() {
    let daemon = Daemon::start();
    three(&daemon);
    let script = "test $(cat n) = 5 || sleep 1000";
    let mut command = daemon.command(&["compare", "a", "b", "c", "--run", script]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let running = || daemon.show("b")["execs_running"] == 1;
    until("the command in b", || running().then_some(()));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ran = CliRun::new("compare".to_owned(), child.wait_with_output().unwrap());
    assert_eq!(ran.code, 130, "{ran}");
    assert!(ran.text().lines().any(|line| line.starts_with('a')), "{ran}");
    until("nothing in b", || (daemon.show("b")["execs_running"] == 0).then_some(()));
    assert_eq!(daemon.show("c")["execs_running"], 0, "it was started after Ctrl-C");
}

#[test]
fn output_of_a_bay_cannot_reach_the_terminal_through_the_table() {
    let daemon = Daemon::start();
    three(&daemon);
    let ran = daemon
        .bay(&["compare", "a", "b", "--run", "printf '\\033]0;t\\007'; echo; head -c 3000000 /dev/zero"])
        .ok();
    assert!(!ran.text().contains('\u{1b}') && !ran.errors().contains('\u{1b}'), "{ran}");
    assert!(ran.text().contains("2.9 MiB"), "{ran}");
}
