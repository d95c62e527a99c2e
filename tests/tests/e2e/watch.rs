//! `bay watch`: changes in a bay, reported as they happen.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use bay_tests::{CliRun, Daemon, until};
use bay_types::ErrorCode;
use bay_types::bay::State;
use bay_types::watch::{WatchKind, WatchLine};

/// A running `bay watch --json` that has printed its first line.
struct Watcher {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Watcher {
    fn start(daemon: &Daemon, args: &[&str]) -> Self {
        let all: Vec<&str> = ["watch", "--json"].iter().chain(args).copied().collect();
        let mut command = daemon.command(&all);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut watcher = Self { child, lines };
        assert_eq!(watcher.next(), Some(WatchLine::Hello));
        watcher
    }

    fn next(&mut self) -> Option<WatchLine> {
        let mut line = String::new();
        if self.lines.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    /// Reads up to this change and returns everything before it.
    fn up_to(&mut self, kind: WatchKind, path: &str) -> Vec<WatchLine> {
        let mut before = Vec::new();
        loop {
            match self.next() {
                Some(WatchLine::Change { kind: k, path: p, .. }) if (k, p.as_str()) == (kind, path) => {
                    return before;
                }
                Some(line) => before.push(line),
                None => panic!("the watch ended before {kind} {path}: {before:?}"),
            }
        }
    }

    fn end(self) -> CliRun {
        CliRun::new("watch".to_owned(), self.child.wait_with_output().unwrap())
    }
}

#[test]
fn every_kind_of_change_is_reported_with_its_path() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let mut watcher = Watcher::start(&daemon, &["b"]);
    // Changes in a directory before the kernel watches it cannot be reported.
    let _made = daemon.sh("b", "mkdir -p d/e").ok();
    watcher.up_to(WatchKind::Create, "d/e");
    let script = "echo x > d/e/f; mv d/e/f d/g; chmod 600 d/g; echo new > .g.tmp; mv .g.tmp d/g; rm -r d";
    let _changed = daemon.sh("b", script).ok();
    for (kind, path) in [
        (WatchKind::Create, "d/e/f"),
        (WatchKind::Write, "d/e/f"),
        (WatchKind::Rename, "d/e/f"),
        (WatchKind::Create, "d/g"),
        (WatchKind::Chmod, "d/g"),
        (WatchKind::Rename, ".g.tmp"),
        (WatchKind::Create, "d/g"),
        (WatchKind::Remove, "d/g"),
        (WatchKind::Remove, "d"),
    ] {
        watcher.up_to(kind, path);
    }
    watcher.child.kill().unwrap();
    watcher.end();
}

#[test]
fn ten_thousand_changes_in_five_thousand_directories_are_reported_or_counted_as_dropped() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let make =
        "for a in $(seq 50); do for b in $(seq 99); do mkdir -p d$a/e$b; done; done; find . -type d | wc -l";
    assert_eq!(daemon.sh("b", make).ok().text(), "5001");
    let mut watcher = Watcher::start(&daemon, &["b"]);
    let change = "for a in $(seq 50); do for b in $(seq 50); do \
                  : > d$a/e$b/f; mv d$a/e$b/f d$a/e$b/g; rm d$a/e$b/g; done; done; : > last";
    let _changed = daemon.sh("b", change).ok();
    let told = watcher.up_to(WatchKind::Create, "last");
    let dropped = told.iter().any(|line| matches!(line, WatchLine::Dropped { .. }));
    // For each file: create, rename, create, remove.
    let count = told.iter().filter(|line| matches!(line, WatchLine::Change { .. })).count();
    assert!(dropped || count == 10_000, "{count} changes were told and nothing said to be dropped");
    watcher.child.kill().unwrap();
    watcher.end();
}

#[test]
fn the_end_of_the_directory_and_of_the_bay_are_reported() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _made = daemon.sh("b", "mkdir gone").ok();
    let of_dir = Watcher::start(&daemon, &["b", "gone"]);
    let of_bay = Watcher::start(&daemon, &["b"]);
    let _removed = daemon.sh("b", "rmdir gone").ok();
    let ended = of_dir.end();
    assert_eq!(ended.api_error().code, ErrorCode::PathNotFound, "{ended}");
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let ended = of_bay.end();
    assert_eq!(ended.api_error().code, ErrorCode::BayState, "{ended}");
    assert!(ended.api_error().message.contains("the bay b is"), "{ended}");
    daemon.bay(&["watch", "b"]).fails_with(ErrorCode::BayState);
}

#[test]
fn names_in_a_watch_cannot_move_the_cursor() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let mut command = daemon.command(&["watch", "b"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut talk = BufReader::new(child.stderr.take().unwrap());
    let mut hello = String::new();
    talk.read_line(&mut hello).unwrap();
    assert!(hello.contains("/workspace"), "{hello}");
    let _made = daemon.sh("b", "mkdir \"$(printf 'a\\n\\033[2Jb')\"; : > last").ok();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut all = String::new();
    while !all.contains("last") {
        assert!(lines.read_line(&mut all).unwrap() > 0, "{all}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(all.contains("a\\n\\x1b[2Jb/"), "{all}");
    assert!(!all.contains('\u{1b}'), "{all}");
}

/// A watch whose reader has stopped reading affects neither the bay nor the daemon nor other watches.
#[test]
fn a_reader_that_stops_reading_affects_nobody() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let still = Watcher::start(&daemon, &["b"]);
    let mut reading = Watcher::start(&daemon, &["b"]);
    let script = "n=$(printf 'n%.0s' $(seq 200)); i=0; \
                  while [ $i -lt 20000 ]; do : > $n$i; rm $n$i; i=$((i+1)); done; : > last";
    let run = daemon.command(&["exec", "b", "--", "sh", "-c", script]).spawn().unwrap();
    reading.up_to(WatchKind::Create, "last");
    assert!(run.wait_with_output().unwrap().status.success());
    assert_eq!(daemon.sh("b", "echo on").ok().text(), "on");
    for mut watcher in [still, reading] {
        watcher.child.kill().unwrap();
        watcher.end();
    }
}

#[test]
fn a_daemon_that_dies_ends_the_watch_and_not_the_bay() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let watcher = Watcher::start(&daemon, &["b"]);
    daemon.kill_9();
    assert_ne!(watcher.end().code, 0);
    daemon.launch();
    daemon.until_state("b", State::Running);
    // The guest closes the watch of the dead daemon.
    until("a new watch", || {
        let mut watcher = Watcher::start(&daemon, &["b"]);
        let _made = daemon.sh("b", ": > file; rm file").ok();
        watcher.up_to(WatchKind::Create, "file");
        watcher.child.kill().ok()?;
        watcher.end();
        Some(())
    });
}
