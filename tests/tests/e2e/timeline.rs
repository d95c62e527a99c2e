//! `bay timeline`: the events of a bay in order.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use bay_tests::wait::{PATIENCE, within};
use bay_tests::{Daemon, SMALL, until};
use bay_types::ErrorCode;
use bay_types::timeline::TimelineLine;

fn lines(daemon: &Daemon, args: &[&str]) -> Vec<TimelineLine> {
    let all: Vec<&str> = ["timeline", "--json"].iter().chain(args).copied().collect();
    let text = daemon.bay(&all).ok().text();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A daemon on a separate pool. On a shared one, unwritten data of other tests would make all counts lower bounds.
fn quiet() -> Daemon {
    Daemon::setup().own_pool(512).start()
}

/// Waits for a line of a bay.
#[track_caller]
fn until_line(daemon: &Daemon, bay: &str, what: &str, fits: impl Fn(&TimelineLine) -> bool) -> TimelineLine {
    within(PATIENCE, || lines(daemon, &[bay]).into_iter().find(|line| fits(line))).unwrap_or_else(|| {
        let told: Vec<String> = lines(daemon, &[bay]).into_iter().map(|line| line.what).collect();
        panic!("waited for {what}, and saw {told:#?}")
    })
}

/// A running `bay timeline --follow --json`.
struct Follower {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Follower {
    fn start(daemon: &Daemon, args: &[&str]) -> Self {
        let all: Vec<&str> = ["timeline", "--follow", "--json"].iter().chain(args).copied().collect();
        let mut command = daemon.command(&all);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn next(&mut self) -> Option<TimelineLine> {
        let mut line = String::new();
        if self.lines.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    /// Reads up to a line of this kind, and returns all lines including it.
    fn up_to(&mut self, kind: &str) -> Vec<TimelineLine> {
        let mut read = Vec::new();
        loop {
            read.push(self.next().unwrap_or_else(|| panic!("it ended before {kind}: {read:?}")));
            if read.last().is_some_and(|line| line.kind == kind) {
                return read;
            }
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_timeline_shows_a_bays_life_in_order() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ran = daemon.sh("b", "exit 3").exits(3);
    let _set = daemon.bay(&["set", "b", "--pids", "77"]).ok();
    let _served = daemon.bay(&["services", "add", "b", "idle", "--", "sleep", "1000"]).ok();
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let all = lines(&daemon, &["b"]);
    assert!(all.is_sorted_by(|a, b| a.seq < b.seq && a.at <= b.at), "{all:?}");
    let wanted = [
        "bay.create",
        "bay.start",
        "bay.running",
        "exec.start",
        "exec.end",
        "bay.set-asked",
        "bay.set",
        "service.define",
        "bay.stop-asked",
        "bay.stopping",
        "bay.stopped",
    ];
    let mut kinds = all.iter().map(|line| line.kind.as_str());
    for kind in wanted {
        assert!(kinds.any(|found| found == kind), "{kind} is missing or not in its place: {all:#?}");
    }
    let start = all.iter().find(|line| line.kind == "exec.start").unwrap();
    let end = all.iter().find(|line| line.kind == "exec.end").unwrap();
    assert_eq!(start.what, "exec 1 began: sh -c 'exit 3'");
    assert!(end.what.starts_with("exec 1 ended: exit 3 after "), "{}", end.what);
    assert!(start.exec.is_some() && start.exec == end.exec);
    assert!(all.iter().all(|line| line.checkpoint.is_none()), "there is no checkpoint yet");
    let set = all.iter().find(|line| line.kind == "bay.set-asked").unwrap();
    assert!(set.what.contains("pids 77"), "{}", set.what);
}

#[test]
fn files_that_changed_while_a_command_ran_are_counted_and_named() {
    let daemon = quiet();
    daemon.empty_bay("b");
    let files =
        |line: &TimelineLine, number: u64| line.kind == "exec.files" && line.details["number"] == number;
    let _made = daemon.sh("b", "mkdir src; echo a > src/one; echo b > two; echo c > three").ok();
    let line = until_line(&daemon, "b", "the summary of the first command", |line| files(line, 1));
    assert_eq!(line.details["created"], 3, "{line:?}");
    assert_eq!(line.details["changed"], 0, "{line:?}");
    assert!(line.what.starts_with("exec 1: 3 files created while it ran: "), "{line:?}");
    assert!(line.what.contains("src/one") && line.what.contains("two"), "{}", line.what);
    // Overwritten, appended to, replaced by a rename.
    let _changed = daemon.sh("b", "echo more >> two; echo new > three; echo x > .t; mv .t src/one").ok();
    let line = until_line(&daemon, "b", "the summary of the second", |line| files(line, 2));
    assert_eq!((&line.details["changed"], &line.details["created"]), (&2.into(), &1.into()), "{line:?}");
    let _removed = daemon.sh("b", "rm src/one").ok();
    let line = until_line(&daemon, "b", "the summary of the third", |line| files(line, 3));
    assert_eq!(line.what, "exec 3: entries of 1 directory changed while it ran: src/");
    // Reading and running change nothing.
    let _read = daemon.sh("b", "cat two three; ls -R; true").ok();
    let _marked = daemon.sh("b", "touch last").ok();
    until_line(&daemon, "b", "the summary of the last", |line| files(line, 5));
    assert!(
        !lines(&daemon, &["b"]).iter().any(|line| files(line, 4)),
        "a command that only read has a summary"
    );
}

#[test]
fn changes_before_or_after_a_command_are_not_attributed_to_it() {
    let daemon = quiet();
    daemon.empty_bay("b");
    let _before = daemon.sh("b", "for i in $(seq 300); do echo x > f$i; done").ok();
    let _pushed = daemon.bay_with_input(&["cp", "-", "b:pushed"], b"from outside\n").ok();
    // The clock of file times is some milliseconds behind, so the pause is longer.
    let _between = daemon.sh("b", "sleep 0.05").ok();
    let _one = daemon.sh("b", "echo x >> f7").ok();
    let _after = daemon.sh("b", "echo y > other").ok();
    let found = |number: u64| {
        until_line(&daemon, "b", "a summary", |line| {
            line.kind == "exec.files" && line.details["number"] == number
        })
    };
    assert_eq!(found(1).details["created"], 300);
    let one = found(3);
    assert_eq!((&one.details["created"], &one.details["changed"]), (&0.into(), &1.into()), "{one:?}");
    assert_eq!(one.details["names"], serde_json::json!(["f7"]));
    assert_eq!(found(4).details["names"], serde_json::json!(["other"]));
}

#[test]
fn a_follower_sees_new_lines_even_after_the_daemon_was_killed() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    daemon.empty_bay("other");
    let mut follower = Follower::start(&daemon, &["b"]);
    let mut seen = follower.up_to("bay.running");
    let _ran = daemon.sh("b", "true").ok();
    let _elsewhere = daemon.sh("other", "true").ok();
    seen.extend(follower.up_to("exec.end"));
    daemon.restart();
    let _again = daemon.sh("b", "true").ok();
    seen.extend(follower.up_to("exec.end"));
    assert!(seen.is_sorted_by(|a, b| a.seq < b.seq), "something was told twice: {seen:?}");
    let all = lines(&daemon, &["b"]);
    let known: Vec<u64> = all.iter().map(|line| line.seq).take(seen.len()).collect();
    assert_eq!(known, seen.iter().map(|line| line.seq).collect::<Vec<_>>(), "something was left out");
    let _removed = daemon.bay(&["rm", "b"]).ok();
    follower.up_to("bay.deleted");
    while follower.next().is_some() {}
    assert!(
        follower.child.wait().unwrap().success(),
        "the end of a bay is the end of its timeline, and no failure"
    );
}

#[test]
fn a_part_of_a_timeline_is_selected_by_number_time_and_count() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    for _ in 0..5 {
        let _ran = daemon.sh("b", "true").ok();
    }
    // Lines that are written while a part is read are part of it, so wait for the last end first.
    let all = until("all ends to be told", || {
        let all = lines(&daemon, &["b", "--limit", "0"]);
        (all.iter().filter(|line| line.kind == "exec.end").count() == 5).then_some(all)
    });
    let after = lines(&daemon, &["b", "--since", &all[2].seq.to_string()]);
    assert_eq!(after[0], all[3]);
    let last = daemon.bay(&["timeline", "b", "--limit", "3"]).ok();
    assert_eq!(last.text().lines().filter(|line| line.starts_with(' ')).count(), 3, "{last}");
    assert!(last.errors().contains("older lines are left out"), "{last}");
    assert_eq!(lines(&daemon, &["b", "--since", "1h"])[0], all[0]);
    assert!(lines(&daemon, &["b", "--since", "0s"]).is_empty());
    daemon.bay(&["timeline", "nobody"]).fails_with(ErrorCode::BayNotFound);
    let odd = daemon.bay(&["timeline", "b", "--since", "yesterday"]);
    assert_eq!(odd.code, 2, "{odd}");
}

#[test]
fn the_timeline_of_a_removed_bay_is_read_by_its_id() {
    let daemon = Daemon::start();
    let id = daemon.empty_bay("b")["id"].as_str().unwrap().to_owned();
    let _ran = daemon.sh("b", "echo gone").ok();
    let _removed = daemon.bay(&["rm", "b"]).ok();
    let unknown = daemon.rest("GET", "/v1/bays/b/timeline", &serde_json::Value::Null);
    assert_eq!(unknown.status, 404);
    assert!(String::from_utf8_lossy(&unknown.body).contains("by its id"));
    let all = lines(&daemon, &[&id]);
    assert!(all.iter().any(|line| line.what.contains("echo gone")), "{all:?}");
    assert!(all.iter().any(|line| line.kind == "bay.deleted"), "{all:?}");
}

#[test]
fn commands_and_names_in_a_timeline_cannot_move_the_cursor() {
    let daemon = Daemon::start();
    let _made = daemon.bay(&["up", "--name", "b", "--image", SMALL]).ok();
    let evil = "echo x > \"$(printf 'a\\033]0;t\\007b')\"; : '\u{1b}[2J\u{9b}31m'";
    let _ran = daemon.sh("b", evil).ok();
    until_line(&daemon, "b", "the summary", |line| line.kind == "exec.files");
    for args in [&["timeline", "b"][..], &["timeline", "b", "--json"]] {
        let shown = daemon.bay(args).ok().text();
        assert!(!shown.contains(['\u{1b}', '\u{7}', '\u{9b}']), "{shown:?}");
    }
}
