//! Interrupted captures, restores and forks with memory. The bay still works, or its view says truthfully that it does
//! not. Memory and files are of one moment, every listed checkpoint is whole, and nothing is left behind.
//!
//! The rounds are divided among the victims: the daemon, the tools (the runtime helper and CRIU) and the guest.

use std::fs;
use std::path::Path;
use std::time::Duration;

use bay_tests::checkpoint_invariants::{checkpoints, checkpoints_are_whole, nothing_is_left_over};
use bay_tests::seeded_random::{SeededRandom, rounds};
use bay_tests::wait::{pause, within};
use bay_tests::{Daemon, consistency_probe, rest, until};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

const PARENT: &str = "red";
/// The only child. A second one would only make the rounds longer.
const CHILD: &str = "fix-1";
/// The prefix of words that only the child got.
const CHILD_WORD: &str = "child-";
/// About the duration of the longest verb, in milliseconds.
const LONGEST: u64 = 400;
/// Checkpoints of the parent that stay between rounds. Each contains its memory.
const KEPT: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Checkpoint,
    Restore,
    Fork,
    PauseToDisk,
    Resume,
    Promote,
}

const VERBS: &[Verb] =
    &[Verb::Checkpoint, Verb::Restore, Verb::Fork, Verb::PauseToDisk, Verb::Resume, Verb::Promote];

impl Verb {
    /// The answer, if one came.
    fn ask(self, socket: &Path, checkpoint: &str) -> Option<Value> {
        let post = |path: &str, body: &Value| {
            let path = format!("/v1/bays/{PARENT}/{path}");
            let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
            serde_json::from_slice(&rest::request(socket, "POST", &path, &body).ok()?.body).ok()
        };
        match self {
            Verb::Checkpoint => post("checkpoints", &json!({ "kind": "memory" })),
            Verb::Restore => post("restore", &json!({ "checkpoint": checkpoint })),
            Verb::Fork => post("forks", &json!({ "count": 1, "name": "fix" })),
            Verb::PauseToDisk => post("pause?to_disk=true", &Value::Null),
            Verb::Resume => post("resume", &Value::Null),
            Verb::Promote => post("promote", &json!({ "from": CHILD })),
        }
    }
}

/// What a fault may cost besides the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cost {
    Nothing,
    /// The bay may have to be started again, and continues from its checkpoint.
    AStart,
    /// The processes of a bay that was being captured or restored. Its files are whole.
    WhatRan,
}

struct Rounds {
    daemon: Daemon,
    chance: SeededRandom,
    /// Probes that were lost to faults.
    lost: usize,
    /// Verbs without an answer, or with a refusal.
    struck: usize,
}

impl Rounds {
    /// A bay with a probe and one memory checkpoint. `None` if memory cannot be captured.
    fn begin(what: &str) -> Option<Self> {
        let chance = SeededRandom::announced(what);
        let daemon = Daemon::start();
        if !consistency_probe::can_run(&daemon) {
            return None;
        }
        daemon.empty_bay(PARENT);
        consistency_probe::start(&daemon, PARENT);
        let _ = Verb::Checkpoint.ask(&daemon.socket(), "");
        Some(Self { daemon, chance, lost: 0, struck: 0 })
    }

    /// Prepares what the verb needs, and returns the checkpoint to restore.
    fn prepare(&mut self, verb: Verb, round: usize) -> String {
        let socket = self.daemon.socket();
        consistency_probe::set_word(&self.daemon, PARENT, &format!("word-{round}"));
        let of_memory = || -> Vec<String> {
            let all = checkpoints(&self.daemon, PARENT).into_iter();
            all.filter(|one| one["kind"] == "memory")
                .filter_map(|one| one["name"].as_str().map(str::to_owned))
                .collect()
        };
        if of_memory().is_empty() {
            let made = Verb::Checkpoint.ask(&socket, "").unwrap();
            assert_eq!(made["kind"], "memory", "{made}");
        }
        if matches!(verb, Verb::Fork | Verb::Promote) {
            let _ = self.daemon.bay(&["rm", CHILD, "--yes"]);
        }
        if verb == Verb::Promote {
            let made = Verb::Fork.ask(&socket, "").unwrap();
            assert_eq!(made["checkpoint"]["kind"], "memory", "{made}");
            consistency_probe::set_word(&self.daemon, CHILD, &format!("{CHILD_WORD}{round}"));
        }
        if verb == Verb::Resume {
            let paused = Verb::PauseToDisk.ask(&socket, "").unwrap();
            assert_eq!(paused["state"], "paused", "{paused}");
        }
        self.chance.choose(&of_memory()).clone()
    }

    /// Sends the request, and calls `fault` while it runs.
    fn strike(
        &mut self,
        verb: Verb,
        round: usize,
        fault: impl FnOnce(&mut Daemon, Duration, &dyn Fn() -> bool),
    ) {
        let checkpoint = self.prepare(verb, round);
        let moment = match self.chance.below(3) {
            0 => self.chance.moment(Duration::from_millis(LONGEST)),
            _ => Duration::from_millis(self.chance.draw() % LONGEST),
        };
        let socket = self.daemon.socket();
        let answer = std::thread::scope(|scope| {
            let asking = scope.spawn(|| verb.ask(&socket, &checkpoint));
            fault(&mut self.daemon, moment, &|| asking.is_finished());
            asking.join().unwrap()
        });
        let short = answer.as_ref().map(|answer| match &answer["code"] {
            Value::Null => "done".to_owned(),
            code => format!("{code}: {}", answer["message"]),
        });
        self.struck += usize::from(short.as_deref() != Some("done"));
        println!("round {round}: {verb:?} {checkpoint} after {moment:?} -> {short:?}");
    }

    /// Asserts everything that must hold after a fault.
    fn verify(&mut self, cost: Cost) {
        let daemon = &self.daemon;
        let settled = |bay: &Value| bay["state"] == bay["desired"] || bay["state"] == "failed";
        let all =
            within(bay_tests::wait::PATIENCE, || Some(daemon.list()).filter(|bays| bays.iter().all(settled)));
        for bay in all.unwrap_or_else(|| panic!("bays do not settle: {:?}", daemon.list())) {
            let name = bay["name"].as_str().unwrap();
            assert!([PARENT, CHILD].contains(&name), "{bay}");
            if bay["state"] == "failed" {
                println!("  {name} failed: {}", bay["reason"]);
                assert_ne!(cost, Cost::Nothing, "{bay}");
                let _started = daemon.bay(&["start", name]).ok();
            }
            assert_ne!(bay["state"], "stopped", "nobody asked for that: {bay}");
            if bay["state"] == "paused" {
                assert!(bay["reason"].as_str().unwrap().contains("on disk as v"), "{bay}");
                let _resumed = daemon.bay(&["resume", name]).ok();
            }
            let word = consistency_probe::word_in_files(daemon, name);
            // A promotion starts the parent again, from the child's files.
            let anew = name == PARENT && word.starts_with(CHILD_WORD);
            match consistency_probe::word(daemon, name) {
                Some(kept) => assert_eq!(kept, word, "{name}"),
                None => {
                    assert!(anew || cost == Cost::WhatRan, "what ran is lost: {}", daemon.show(name));
                    self.lost += usize::from(!anew);
                    consistency_probe::start(daemon, name);
                }
            }
            let known = checkpoints_are_whole(daemon, name);
            let mut known: Vec<&String> = known.iter().collect();
            known.sort_by_key(|name| name[1..].parse::<u32>().unwrap());
            for old in known.iter().rev().skip(KEPT) {
                let _removed = daemon.bay(&["checkpoints", "rm", name, old]).ok();
            }
        }
        nothing_is_left_over(daemon);
    }
}

#[test]
fn a_daemon_killed_during_a_capture_or_a_restore_costs_no_process() {
    let Some(mut at) = Rounds::begin("kill -9 of the daemon while memory is captured and brought back")
    else {
        return;
    };
    for round in 0..rounds() * 2 / 5 {
        let verb = *at.chance.choose(VERBS);
        at.strike(verb, round, |daemon, moment, _| {
            pause(moment);
            daemon.kill_9();
        });
        at.daemon.launch();
        at.verify(Cost::Nothing);
    }
    println!("{} of {} had no answer", at.struck, rounds() * 2 / 5);
}

#[test]
fn a_daemon_that_dies_at_critical_moments_of_memory_work_costs_no_process() {
    const POINTS: &[(&str, &[Verb])] = &[
        ("after-intent", &[Verb::Restore, Verb::PauseToDisk, Verb::Resume]),
        ("after-disk", &[Verb::Restore, Verb::Fork]),
        ("bay-stands-still", &[Verb::Checkpoint, Verb::Fork, Verb::PauseToDisk]),
        ("after-snapshot", &[Verb::Checkpoint, Verb::PauseToDisk]),
        ("after-start", &[Verb::Restore, Verb::Fork, Verb::Resume]),
        ("before-ack", &[Verb::Checkpoint, Verb::Restore, Verb::PauseToDisk]),
    ];
    let Some(mut at) = Rounds::begin("the daemon dies at named points of memory work") else { return };
    let mut round = 0;
    for (point, verbs) in POINTS {
        for verb in *verbs {
            round += 1;
            let checkpoint = at.prepare(*verb, round);
            at.daemon.kill_9();
            at.daemon.set_environment(&[("BAY_FAULT", &format!("daemon:{point}"))]);
            at.daemon.launch();
            let answer = verb.ask(&at.daemon.socket(), &checkpoint);
            at.daemon.kill_9();
            at.daemon.set_environment(&[]);
            at.daemon.launch();
            println!("{verb:?} at {point}: {answer:?}");
            assert!(answer.is_none(), "{point} did not strike {verb:?}");
            at.verify(Cost::Nothing);
        }
    }
}

/// Running helpers of a daemon, or the processes that they started.
fn at_work(daemon: &Daemon, helpers: bool) -> Vec<Pid> {
    let children = |pid: i32| -> Vec<i32> {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        lists.collect::<String>().split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    };
    let is_helper = |pid: &i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains("__runtime")
    };
    let mut found: Vec<i32> = children(daemon.pid().cast_signed()).into_iter().filter(is_helper).collect();
    if !helpers {
        found = found.into_iter().flat_map(children).collect();
    }
    found.into_iter().filter_map(Pid::from_raw).collect()
}

#[test]
fn a_helper_or_criu_killed_at_work_costs_neither_files_nor_the_bay() {
    let Some(mut at) = Rounds::begin("kill -9 of the helper and of CRIU") else { return };
    let rounds = rounds() * 2 / 5;
    for round in 0..rounds {
        // A promotion copies files only, so only the guest and the daemon can be lost.
        let verb = *at.chance.choose(&VERBS[..5]);
        let helpers = at.chance.below(2) == 0;
        at.strike(verb, round, |daemon, moment, done| {
            pause(moment);
            until("something to kill", || {
                let victims = at_work(daemon, helpers);
                for pid in &victims {
                    let _ = kill_process(*pid, Signal::KILL);
                }
                (done() || !victims.is_empty()).then_some(())
            });
        });
        // After a helper is killed, CRIU undoes its work. The memory of a bay that is being restored exists only in
        // CRIU.
        at.verify(match verb {
            Verb::Checkpoint if helpers => Cost::Nothing,
            Verb::PauseToDisk if helpers => Cost::AStart,
            _ => Cost::WhatRan,
        });
    }
    println!("{} of {rounds} did not come to their end; {} keepers were lost", at.struck, at.lost);
}

#[test]
fn a_guest_killed_at_work_costs_the_processes_and_no_files() {
    let Some(mut at) = Rounds::begin("kill -9 of the guest while its memory is captured") else { return };
    for round in 0..rounds() / 5 {
        let verb = *at.chance.choose(&[Verb::Checkpoint, Verb::Restore, Verb::Fork, Verb::PauseToDisk]);
        let number = at.daemon.host_pid(PARENT);
        // By a handle: meanwhile the bay may have another PID 1, and another process the number.
        let guest = pidfd_open(Pid::from_raw(number).unwrap(), PidfdFlags::empty()).unwrap();
        at.strike(verb, round, |_, moment, _| {
            pause(moment);
            let _ = pidfd_send_signal(&guest, Signal::KILL);
        });
        // Until then the bay still counts as running.
        let noticed = || (at.daemon.show(PARENT)["host_pid"] != number).then_some(());
        until("the daemon to see that the guest is gone", noticed);
        at.verify(Cost::WhatRan);
    }
}
