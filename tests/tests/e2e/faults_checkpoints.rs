//! Interrupted checkpoints, restores, forks and promotions. The bay still works, every listed checkpoint is whole, and
//! nothing is left on disk that is not listed.
//!
//! The bay always holds the same word in its workspace and in its root. Whatever is killed, both must be of one moment.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bay_tests::checkpoint_invariants::{
    checkpoint_files, checkpoints, checkpoints_are_whole, files_at, nothing_is_left_over,
};
use bay_tests::seeded_random::{SeededRandom, rounds};
use bay_tests::wait::pause;
use bay_tests::{Daemon, rest, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy)]
enum Verb {
    Checkpoint,
    Restore,
    Fork,
    Promote,
    Forget,
    Remove,
}

const VERBS: &[Verb] = &[
    Verb::Checkpoint,
    Verb::Checkpoint,
    Verb::Restore,
    Verb::Restore,
    Verb::Fork,
    Verb::Promote,
    Verb::Forget,
    Verb::Remove,
];

const PARENT: &str = "red";
/// The only child. A second one would only make the rounds longer.
const CHILD: &str = "fix-1";

impl Verb {
    /// The answer, if one came.
    fn ask(self, socket: &Path, checkpoint: &str) -> Option<Value> {
        let ask = |method: &str, path: &str, body: &Value| {
            let answer = rest::request(socket, method, path, &serde_json::to_vec(body).unwrap()).ok()?;
            serde_json::from_slice(&answer.body).ok()
        };
        let at = |path: &str| format!("/v1/bays/{PARENT}/{path}");
        match self {
            Verb::Checkpoint => ask("POST", &at("checkpoints"), &json!({ "kind": "files" })),
            Verb::Restore => ask("POST", &at("restore"), &json!({ "checkpoint": checkpoint })),
            Verb::Fork => {
                ask("POST", &at("forks"), &json!({ "count": 1, "name": "fix", "files_only": true }))
            }
            Verb::Promote => ask("POST", &at("promote"), &json!({ "from": CHILD })),
            Verb::Forget => ask("DELETE", &at(&format!("checkpoints/{checkpoint}")), &json!(null)),
            Verb::Remove => ask("DELETE", &format!("/v1/bays/{CHILD}"), &json!(null)),
        }
    }
}

/// The words in a checkpoint, read from the pool.
fn words_at(files: &Path, name: &str) -> (String, String) {
    let dir = files_at(files, name);
    let read = |path: &str| std::fs::read_to_string(dir.join(path)).unwrap().trim().to_owned();
    (read("workspace/word"), read("root/etc/word"))
}

fn words_now(daemon: &Daemon, bay: &str) -> (String, String) {
    let text = until("the bay to take a command", || {
        let ran = daemon.sh(bay, "cat /workspace/word /etc/word");
        (ran.code == 0).then(|| ran.text())
    });
    let (workspace, root) = text.split_once('\n').unwrap();
    (workspace.to_owned(), root.to_owned())
}

/// Writes another word to both places of a bay, atomically for every observer.
fn say(daemon: &Daemon, bay: &str, word: &str) {
    let _said = daemon.sh(bay, &format!("echo {word} > /workspace/word; echo {word} > /etc/word")).ok();
}

/// Asserts everything that must hold after a fault. `captured` has the word of each checkpoint.
fn verify(daemon: &Daemon, captured: &mut BTreeMap<String, String>) {
    let settled = |bay: &Value| bay["state"] == bay["desired"];
    until("every bay to settle", || Some(()).filter(|()| daemon.list().iter().all(settled)));
    for bay in daemon.list() {
        let name = bay["name"].as_str().unwrap();
        assert!([PARENT, CHILD].contains(&name), "{bay}");
        let (workspace, root) = words_now(daemon, name);
        assert_eq!(workspace, root, "{name} is of two moments");
        let known = checkpoints_are_whole(daemon, name);
        if name != PARENT {
            continue;
        }
        let files = checkpoint_files(daemon, name);
        captured.retain(|checkpoint, _| known.contains(checkpoint));
        for checkpoint in &known {
            let (workspace, root) = words_at(&files, checkpoint);
            assert_eq!(workspace, root, "{checkpoint} is of two moments");
            let before = captured.entry(checkpoint.clone()).or_insert_with(|| workspace.clone());
            assert_eq!(*before, workspace, "{checkpoint} has changed");
        }
    }
    every_checkpoint_that_began_has_an_end(daemon);
    nothing_is_left_over(daemon);
}

/// Each checkpoint that began either succeeded or failed in the record.
fn every_checkpoint_that_began_has_an_end(daemon: &Daemon) {
    let (mut since, mut begun, mut ended) = (0, 0, 0);
    loop {
        let page = daemon.rest("GET", &format!("/v1/events?bay={PARENT}&since={since}"), &Value::Null).json();
        let Some(last) = page.as_array().unwrap().last() else { break };
        since = last["seq"].as_u64().unwrap();
        for event in page.as_array().unwrap() {
            match event["kind"].as_str().unwrap() {
                "checkpoint.asked" => begun += 1,
                "checkpoint.made" | "checkpoint.failed" => ended += 1,
                _ => {}
            }
        }
    }
    assert_eq!(begun, ended);
}

/// An existing checkpoint, or a name that no checkpoint has.
fn some_checkpoint(chance: &mut SeededRandom, captured: &BTreeMap<String, String>) -> String {
    let names: Vec<&String> = captured.keys().collect();
    if names.is_empty() { "v9999".to_owned() } else { (*chance.choose(&names)).clone() }
}

#[test]
fn a_daemon_killed_during_a_checkpoint_leaves_whole_checkpoints_and_a_working_bay() {
    let mut chance = SeededRandom::announced("kill -9 of the daemon during checkpoints and forks");
    let mut daemon = Daemon::start();
    daemon.empty_bay(PARENT);
    say(&daemon, PARENT, "first");
    let mut captured = BTreeMap::new();
    let mut interrupted = 0;
    for round in 0..rounds() {
        let verb = *chance.choose(VERBS);
        if chance.below(3) == 0 {
            say(&daemon, PARENT, &format!("word-{round}"));
        }
        if matches!(verb, Verb::Promote) && !daemon.list().iter().any(|bay| bay["name"] == CHILD) {
            let _ = Verb::Fork.ask(&daemon.socket(), "");
            say(&daemon, CHILD, &format!("child-{round}"));
        }
        if matches!(verb, Verb::Fork) {
            let _ = Verb::Remove.ask(&daemon.socket(), "");
        }
        verify(&daemon, &mut captured);
        let checkpoint = some_checkpoint(&mut chance, &captured);
        let moment = chance.moment(Duration::from_millis(120));
        let socket = daemon.socket();
        let answer = std::thread::scope(|scope| {
            let asking = scope.spawn(|| verb.ask(&socket, &checkpoint));
            pause(moment);
            daemon.kill_9();
            asking.join().unwrap()
        });
        interrupted += usize::from(answer.is_none());
        daemon.launch();
        println!("round {round}: {verb:?} {checkpoint} after {moment:?} -> {answer:?}");
        if let (Verb::Checkpoint, Some(made)) = (verb, &answer)
            && let Some(name) = made["name"].as_str()
        {
            let names = checkpoints(&daemon, PARENT);
            assert!(names.iter().any(|known| known["name"] == name), "{name} was acknowledged and is gone");
        }
        verify(&daemon, &mut captured);
    }
    println!("{interrupted} of {} were interrupted", rounds());
}

#[test]
fn a_guest_killed_during_a_checkpoint_costs_neither_the_checkpoint_nor_the_files() {
    let mut chance = SeededRandom::announced("kill -9 of the guest during checkpoints and forks");
    let daemon = Daemon::start();
    daemon.empty_bay(PARENT);
    say(&daemon, PARENT, "first");
    let mut captured = BTreeMap::new();
    let _ = Verb::Checkpoint.ask(&daemon.socket(), "");
    verify(&daemon, &mut captured);
    for round in 0..rounds() / 2 {
        let verb = *chance.choose(&[Verb::Checkpoint, Verb::Restore, Verb::Fork]);
        if matches!(verb, Verb::Fork) {
            let _ = Verb::Remove.ask(&daemon.socket(), "");
        }
        let _started = daemon.bay(&["start", PARENT]).ok();
        let checkpoint = some_checkpoint(&mut chance, &captured);
        let (pid, socket) = (daemon.host_pid(PARENT), daemon.socket());
        let moment = chance.moment(Duration::from_millis(60));
        let answer = std::thread::scope(|scope| {
            let asking = scope.spawn(|| verb.ask(&socket, &checkpoint));
            pause(moment);
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
            asking.join().unwrap()
        });
        println!("round {round}: {verb:?} {checkpoint} after {moment:?} -> {answer:?}");
        let _started = daemon.bay(&["start", PARENT]).ok();
        verify(&daemon, &mut captured);
    }
}

#[test]
fn a_daemon_that_dies_at_critical_moments_of_a_checkpoint_leaves_nothing_half_made() {
    let mut daemon = Daemon::start();
    daemon.empty_bay(PARENT);
    say(&daemon, PARENT, "first");
    let mut captured = BTreeMap::new();
    let mut died = 0;
    for point in ["bay-stands-still", "after-snapshot", "after-intent", "after-disk", "before-ack"] {
        for verb in [Verb::Checkpoint, Verb::Restore, Verb::Fork, Verb::Promote] {
            // So that there is a checkpoint to restore and a child to promote, whatever happened in earlier rounds.
            let _ = Verb::Checkpoint.ask(&daemon.socket(), "");
            let _ = Verb::Remove.ask(&daemon.socket(), "");
            if matches!(verb, Verb::Promote) {
                let _ = Verb::Fork.ask(&daemon.socket(), "");
            }
            verify(&daemon, &mut captured);
            let checkpoint = captured.keys().next().unwrap().clone();
            daemon.kill_9();
            daemon.set_environment(&[("BAY_FAULT", &format!("daemon:{point}"))]);
            daemon.launch();
            let answer = verb.ask(&daemon.socket(), &checkpoint);
            died += usize::from(answer.is_none());
            daemon.kill_9();
            daemon.set_environment(&[]);
            daemon.launch();
            println!("{verb:?} at {point}: {answer:?}");
            verify(&daemon, &mut captured);
        }
    }
    assert!(died >= 12, "only {died} of the faults struck");
}

#[test]
fn a_checkpoint_cut_short_by_the_death_of_the_daemon_has_one_end_in_the_record() {
    let mut daemon = Daemon::start();
    daemon.empty_bay(PARENT);
    let points = ["bay-stands-still", "after-snapshot"];
    for (ends, point) in (1..).zip(points) {
        daemon.kill_9();
        daemon.set_environment(&[("BAY_FAULT", &format!("daemon:{point}"))]);
        daemon.launch();
        let answer = Verb::Checkpoint.ask(&daemon.socket(), "");
        assert!(answer.is_none(), "{point}: {answer:?}");
        daemon.kill_9();
        daemon.set_environment(&[]);
        // A second daemon finds the end that the first one recorded.
        for _ in 0..2 {
            daemon.launch();
            let failed = daemon.events(PARENT, "checkpoint.failed");
            assert_eq!(failed.len(), ends, "{point}: {failed:#?}");
            let end = failed.last().unwrap();
            assert_eq!(end["name"], "v1", "{point}: {end}");
            assert!(end["why"].as_str().unwrap().contains("daemon ended"), "{point}: {end}");
            daemon.kill_9();
        }
    }
    daemon.launch();
    let made = Verb::Checkpoint.ask(&daemon.socket(), "").unwrap();
    assert_eq!(made["name"], "v1", "{made}");
    let timeline = daemon.bay(&["timeline", PARENT]).ok().text();
    let count = |words: &str| timeline.matches(words).count();
    assert_eq!((count("checkpoint v1 begun"), count("checkpoint v1 failed")), (3, 2), "{timeline}");
}
