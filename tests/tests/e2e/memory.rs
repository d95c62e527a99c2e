//! The memory of a bay is captured, restored, and forked into several bays.

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStderr, ChildStdout, Stdio};

use bay_tests::consistency_probe::can_run;
use bay_tests::{Daemon, until};
use bay_types::ErrorCode;
use serde_json::Value;

fn read(daemon: &Daemon, bay: &str, script: &str) -> String {
    daemon.sh(bay, script).ok().text()
}

/// Counts in memory, through a pipe, a loopback connection and a timer, and writes the count.
const COUNTER: &str = r#"
import os, socket, threading, time
r, w = os.pipe()
server = socket.create_server(("127.0.0.1", 7777))
client = socket.create_connection(("127.0.0.1", 7777))
other, _ = server.accept()
n = 0
while True:
    n += 1
    os.write(w, b"p"); os.read(r, 1)
    client.sendall(b"c"); assert other.recv(1) == b"c"
    with open("/workspace/n.new", "w") as f: f.write(str(n))
    os.rename("/workspace/n.new", "/workspace/n")
    print(n, flush=True)
    time.sleep(0.02)
"#;

fn count(daemon: &Daemon, bay: &str) -> u64 {
    until("it to have counted", || daemon.sh(bay, "cat n").text().parse().ok())
}

fn counting(daemon: &Daemon, bay: &str) -> String {
    let exec = daemon.bay(&["exec", bay, "-d", "--json", "--", "python3", "-c", COUNTER]).ok().json();
    until("it to count", || (count(daemon, bay) > 3).then_some(()));
    exec["id"].as_str().unwrap().to_owned()
}

#[test]
fn running_processes_are_captured_and_restored_in_the_middle_of_their_work() {
    let daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    let exec = counting(&daemon, "b");
    let made = daemon.bay(&["checkpoint", "b", "--memory", "--json"]).ok().json();
    assert_eq!(made["kind"], "memory", "{made}");
    let at = count(&daemon, "b");
    until("it to go on", || (count(&daemon, "b") > at + 100).then_some(()));
    let _ = daemon.sh("b", "echo later > later").ok();
    let done = daemon.bay(&["restore", "b", "v1", "--json"]).ok().json();
    assert_eq!(done["bay"]["state"], "running");
    let back = count(&daemon, "b");
    assert!(back < at + 90, "it counted on from {back}, and had come to {at} when it was captured");
    until("it to go on from there", || (count(&daemon, "b") > back + 5).then_some(()));
    let _ = daemon.sh("b", "test ! -e later").ok();
    let view = daemon.rest("GET", &format!("/v1/bays/b/execs/{exec}"), &Value::Null).json();
    assert!(view["exit"].is_null(), "the exec that ran is running: {view}");
    let before = daemon.bay(&["logs", "b", &exec]).text().lines().count();
    until("its output to go on", || {
        (daemon.bay(&["logs", "b", &exec]).text().lines().count() > before + 5).then_some(())
    });
    let _ = daemon.bay(&["kill", "b", &exec]).ok();
    let _ = daemon.bay(&["stop", "b"]).ok();
    let _ = daemon.bay(&["start", "b"]).ok();
}

#[test]
fn live_children_of_one_capture_continue_independently() {
    let daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("web");
    let exec = counting(&daemon, "web");
    let made = daemon.bay(&["fork", "web", "--count", "2", "--json"]).ok().json();
    assert_eq!(made["checkpoint"]["kind"], "memory", "{made}");
    let all = ["web", "web-fork-1", "web-fork-2"];
    for child in &all[1..] {
        assert_eq!(read(&daemon, child, "hostname"), **child);
        let view = daemon.rest("GET", &format!("/v1/bays/{child}/execs/{exec}"), &Value::Null).json();
        assert!(view["exit"].is_null(), "{view}");
    }
    let before: Vec<u64> = all.iter().map(|bay| count(&daemon, bay)).collect();
    for (bay, before) in all.iter().zip(before) {
        until("each to go on", || (count(&daemon, bay) > before + 5).then_some(()));
    }
    let ids: std::collections::HashSet<String> =
        all.iter().map(|bay| read(&daemon, bay, "cat /etc/machine-id")).collect();
    assert_eq!(ids.len(), 3);
    let ranges: std::collections::HashSet<String> = all
        .iter()
        .map(|bay| std::fs::read_to_string(format!("/proc/{}/uid_map", daemon.host_pid(bay))).unwrap())
        .collect();
    assert_eq!(ranges.len(), 3, "{ranges:?}");
    // A child's changes affect no other bay. A child can be captured and forked too.
    let _ = daemon.bay(&["kill", "web-fork-1", &exec]).ok();
    let again = count(&daemon, "web-fork-2");
    until("the others to go on", || (count(&daemon, "web-fork-2") > again + 5).then_some(()));
    let _ = daemon.bay(&["fork", "web-fork-2", "--name", "second"]).ok();
    let on = count(&daemon, "second-1");
    until("the grandchild to go on", || (count(&daemon, "second-1") > on + 5).then_some(()));
}

#[test]
fn a_bay_paused_to_disk_continues_after_its_runtime_was_removed() {
    let mut daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    let exec = counting(&daemon, "b");
    let paused = daemon.bay(&["pause", "b", "--to-disk", "--json"]).ok().json();
    assert_eq!(paused["state"], "paused");
    assert!(paused["host_pid"].is_null(), "{paused}");
    daemon.restart();
    assert_eq!(daemon.show("b")["state"], "paused");
    let _ = daemon.bay(&["resume", "b"]).ok();
    let on = count(&daemon, "b");
    until("it to go on", || (count(&daemon, "b") > on + 5).then_some(()));
    let _ = daemon.bay(&["kill", "b", &exec]).ok();
}

#[test]
fn a_bay_with_an_attached_client_is_captured_and_the_client_reconnects() {
    let daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    let counted = std::thread::scope(|scope| {
        let attached = scope.spawn(|| daemon.sh("b", "for n in $(seq 60); do echo $n; sleep 0.05; done"));
        until("it to run", || (daemon.show("b")["execs_running"] == 1).then_some(()));
        let made = daemon.bay(&["checkpoint", "b", "--memory", "--json"]).ok().json();
        assert_eq!(made["kind"], "memory", "{made}");
        attached.join().unwrap()
    });
    let all: Vec<String> = (1..=60).map(|n| n.to_string()).collect();
    assert_eq!(counted.ok().text(), all.join("\n"), "nothing is said twice or left out");
}

#[test]
fn failed_and_crash_looping_services_do_not_prevent_a_memory_capture() {
    let daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    for (name, restart) in [("once", "never"), ("loop", "always")] {
        let add = ["services", "add", "b", name, "--restart", restart, "--no-wait", "--", "false"];
        let _ = daemon.bay(&add).ok();
    }
    until("both to have ended", || {
        let all = daemon.bay(&["services", "ls", "b", "--json"]).ok().json();
        let ended = |one: &Value| !one["runs"][0]["exit"].is_null();
        all.as_array().is_some_and(|all| all.len() == 2 && all.iter().all(ended)).then_some(())
    });
    let made = daemon.bay(&["checkpoint", "b", "--memory", "--json"]).ok().json();
    assert_eq!(made["kind"], "memory", "{made}");
}

#[test]
fn an_obstacle_to_a_capture_is_named_with_its_process_and_the_reason() {
    let daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    let hold = "import os, time; d = '/sys/fs/cgroup/unified'; d = d if os.path.isdir(d) else '/sys/fs/cgroup'\n\
                os.mkdir(d + '/mine'); f = os.open(d + '/mine', os.O_RDONLY); os.rmdir(d + '/mine')\n\
                if os.fork() == 0 and os.fork() == 0: open('/workspace/held', 'w')\n\
                time.sleep(1000)";
    let _ = daemon.bay(&["exec", "b", "-d", "--", "python3", "-c", hold]).ok();
    until("it to hold on", || (daemon.sh("b", "test -e held").code == 0).then_some(()));
    let refused = daemon.bay(&["checkpoint", "b", "--memory"]);
    let said = refused.errors();
    for word in ["python3", "a control group that was removed", "CRIU cannot keep it", "and 2 others"] {
        assert!(said.contains(word), "{said}");
    }
    assert_eq!(said.matches("a control group that was removed").count(), 1, "a cause is named once: {said}");
    let seen = daemon.sh("b", "pgrep python3 || pidof python3").ok().text();
    let named = seen.split_whitespace().any(|pid| said.contains(&format!("process {pid} (python3)")));
    assert!(named, "it is named by its number in the bay: {seen}; {said}");
    let failed = daemon.events("b", "checkpoint.failed");
    assert_eq!((failed.len(), &failed[0]["name"]), (1, &"v1".into()), "{failed:#?}");
    assert!(failed[0]["why"].to_string().contains("a control group that was removed"), "{failed:#?}");
}

/// The output of a CLI command, line by line, while it runs.
struct Following {
    child: std::process::Child,
    lines: BufReader<ChildStdout>,
    talk: BufReader<ChildStderr>,
}

impl Following {
    fn start(daemon: &Daemon, args: &[&str]) -> Self {
        let mut command = daemon.command(args);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let talk = BufReader::new(child.stderr.take().unwrap());
        Self { child, lines, talk }
    }

    #[track_caller]
    fn up_to(&mut self, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let mut seen = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "it ended after {seen:?}: {}", self.said());
            seen.push(line.trim_end().to_owned());
            if wanted(line.trim_end()) {
                return seen;
            }
        }
    }

    /// Waits until it also reports that the bay is paused.
    #[track_caller]
    fn says_paused(&mut self) {
        let mut said = String::new();
        while !said.contains("the bay b is paused") {
            assert!(self.talk.read_line(&mut said).unwrap() > 0, "{said}");
        }
        assert!(said.contains("`bay resume b`"), "{said}");
    }

    /// Ends it, and returns the rest of its output.
    fn said(&mut self) -> String {
        let _ = self.child.kill();
        self.child.wait().unwrap();
        let mut said = String::new();
        self.talk.read_to_string(&mut said).unwrap();
        said
    }
}

fn beyond(number: u64) -> impl Fn(&str) -> bool {
    move |line| line.parse().is_ok_and(|counted: u64| counted > number)
}

#[test]
fn a_watch_continues_over_a_capture_and_reports_what_may_be_missing() {
    let daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    let mut watch = Following::start(&daemon, &["watch", "b", "--json"]);
    watch.up_to(|line| line.contains("hello"));
    for verb in [&["checkpoint", "b", "--memory"][..], &["pause", "b", "--to-disk"]] {
        let _ = daemon.bay(verb).ok();
        if verb[0] == "pause" {
            watch.says_paused();
            let _ = daemon.bay(&["resume", "b"]).ok();
        }
        let again = watch.up_to(|line| line.contains("hello"));
        assert!(again.iter().any(|line| line.contains("dropped")), "{again:?}");
        let _ = daemon.sh("b", ": > after; rm after").ok();
        watch.up_to(|line| line.contains("\"after\""));
    }
    watch.said();
}

#[test]
fn a_follower_of_a_command_waits_while_its_bay_is_paused_to_disk() {
    let daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    let exec = counting(&daemon, "b");
    let mut logs = Following::start(&daemon, &["logs", "b", &exec, "--follow"]);
    let attached = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done";
    let mut attached = Following::start(&daemon, &["exec", "b", "--", "sh", "-c", attached]);
    for one in [&mut logs, &mut attached] {
        one.up_to(beyond(3));
    }
    let _ = daemon.bay(&["pause", "b", "--to-disk"]).ok();
    let execs = daemon.bay(&["execs", "ls", "b", "--json"]).ok().json();
    let open = execs.as_array().unwrap().iter().filter(|one| one["exit"].is_null()).count();
    assert_eq!(open, 2, "{execs}");
    for one in [&mut logs, &mut attached] {
        one.says_paused();
    }
    let _ = daemon.bay(&["resume", "b"]).ok();
    let at = count(&daemon, "b");
    logs.up_to(beyond(at + 5));
    let seen = attached.up_to(beyond(20));
    let numbers: Vec<u64> = seen.iter().filter_map(|line| line.parse().ok()).collect();
    assert!(
        numbers.windows(2).all(|pair| pair[1] == pair[0] + 1),
        "nothing twice, nothing left out: {seen:?}"
    );
    for one in [&mut logs, &mut attached] {
        let said = one.said();
        assert_eq!(said, "");
    }
}

#[test]
fn memory_on_disk_is_not_restored_after_a_stop_or_on_a_fresh_root() {
    let daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    let ended = |exec: &str| {
        let view = daemon.rest("GET", &format!("/v1/bays/b/execs/{exec}"), &Value::Null).json();
        assert_eq!(view["exit"]["reason"], "stopped", "{view}");
        let _ = daemon.sh("b", "! pgrep python3").ok();
    };
    let exec = counting(&daemon, "b");
    let _ = daemon.bay(&["pause", "b", "--to-disk"]).ok();
    let _ = daemon.bay(&["stop", "b"]).ok();
    let _ = daemon.bay(&["start", "b"]).ok();
    ended(&exec);
    let exec = counting(&daemon, "b");
    let _ = daemon.bay(&["pause", "b", "--to-disk"]).ok();
    let _ = daemon.bay(&["replace", "b"]).ok();
    ended(&exec);
}

#[test]
fn an_error_about_a_paused_or_stopped_bay_has_a_remedy() {
    let daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    let _ = daemon.bay(&["pause", "b"]).ok();
    let (message, next) = daemon.bay(&["pause", "b", "--to-disk"]).fails_with(ErrorCode::BayState);
    assert!(
        message.contains("frozen in memory") && next.contains("`bay resume b` first"),
        "{message} {next}"
    );
    let _ = daemon.bay(&["resume", "b"]).ok();
    for _ in 0..2 {
        assert_eq!(daemon.bay(&["pause", "b", "--to-disk", "--json"]).ok().json()["state"], "paused");
    }
    let all = daemon.bay(&["checkpoints", "ls", "b", "--json"]).ok().json();
    assert_eq!(all.as_array().unwrap().len(), 1, "{all}");
    let (message, next) = daemon.bay(&["checkpoints", "rm", "b", "v1"]).fails_with(ErrorCode::BayState);
    assert!(
        message.contains("b is paused on it") && next.contains("`bay resume b` first"),
        "{message} {next}"
    );
    let made = daemon.bay(&["checkpoint", "b"]).ok();
    assert!(made.errors().contains("what ran is in v1"), "{made}");
    let _ = daemon.bay(&["stop", "b"]).ok();
    let (_, next) = daemon.bay(&["pause", "b", "--to-disk"]).fails_with(ErrorCode::BayState);
    assert!(next.contains("`bay start b`"), "{next}");
    let made = daemon.bay(&["checkpoint", "b"]).ok();
    assert!(made.errors().contains("nothing runs in it: it is stopped"), "{made}");
    let _ = daemon.bay(&["checkpoints", "rm", "b", "v1"]).ok();
}

#[test]
fn a_command_of_a_live_fork_is_attached_to_with_its_output_and_its_input() {
    let daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    let mut client = daemon
        .command(&[
            "exec",
            "b",
            "-i",
            "--",
            "sh",
            "-c",
            "echo asked; read line; echo \"answered $line\"; exit 4",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut asked = [0; 6];
    client.stdout.as_mut().unwrap().read_exact(&mut asked).unwrap();
    let _forked = daemon.bay(&["fork", "b", "--name", "child"]).ok();
    let attached = daemon.bay_with_input(&["attach", "child-1", "1"], b"yes\n");
    assert_eq!((attached.code, attached.text().as_str()), (4, "asked\nanswered yes"), "{attached}");
    // The parent's command still waits for its own client.
    assert_eq!(daemon.bay(&["execs", "show", "b", "1", "--json"]).ok().json()["state"], "running");
    drop(client.stdin.take());
    assert_eq!(client.wait().unwrap().code(), Some(4));
}
