//! Faults at random moments, in many rounds. Whatever is killed: everything acknowledged is there afterwards, every
//! view is true, and nothing is left over.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bay_tests::daemon::listed;
use bay_tests::seeded_random::{SeededRandom, rounds};
use bay_tests::wait::{PATIENCE, pause, within};
use bay_tests::{Daemon, SMALL, leaks, rest, until};
use bay_types::ErrorCode;
use bay_types::ExecId;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// What a test knows about a bay from the answers that it got. After a missing answer several states are possible.
#[derive(Debug, Clone)]
struct Known {
    exists: Vec<bool>,
    desired: Vec<&'static str>,
    /// Lines that acknowledged commands wrote into the workspace.
    written: Vec<String>,
    /// Execs whose start was acknowledged.
    execs: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
enum Verb {
    Create,
    Stop,
    Start,
    Pause,
    Resume,
    Replace,
    Remove,
    Write,
    List,
}

const VERBS: &[Verb] = &[
    Verb::Create,
    Verb::Create,
    Verb::Stop,
    Verb::Start,
    Verb::Start,
    Verb::Pause,
    Verb::Resume,
    Verb::Replace,
    Verb::Remove,
    Verb::Write,
    Verb::Write,
    Verb::Write,
    Verb::List,
];

/// Names of the bays: few, because the rounds are about faults, not about size.
const NAMES: &[&str] = &["red", "green", "blue"];

impl Verb {
    /// Sends the request. `Some(true)` if the daemon reported success, `Some(false)` if it refused, `None` if no
    /// complete answer came.
    fn ask(self, socket: &Path, bay: &str, line: &str, exec: &str) -> Option<bool> {
        let post = |path: &str, body: &Value| {
            rest::request(socket, "POST", path, &serde_json::to_vec(body).unwrap_or_default()).ok()
        };
        let plain = |word: &str| {
            let answer = post(&format!("/v1/bays/{bay}/{word}"), &json!({}))?;
            Some((200..300).contains(&answer.status))
        };
        match self {
            Verb::Create => {
                let body = json!({ "name": bay, "source": { "kind": "empty" }, "image": SMALL });
                let answer = post("/v1/bays", &body)?;
                let text = String::from_utf8_lossy(&answer.body).into_owned();
                let last: Value = serde_json::from_str(text.lines().last()?).ok()?;
                match last["news"].as_str() {
                    Some("done") => Some(true),
                    Some("failed") => Some(false),
                    _ if last["code"].is_string() => Some(false),
                    _ => None,
                }
            }
            Verb::Stop => plain("stop"),
            Verb::Start => plain("start"),
            Verb::Pause => plain("pause"),
            Verb::Resume => plain("resume"),
            Verb::Replace => plain("replace"),
            Verb::Remove => {
                let answer = rest::request(socket, "DELETE", &format!("/v1/bays/{bay}"), b"").ok()?;
                Some((200..300).contains(&answer.status))
            }
            Verb::Write => {
                let script = format!("echo {line} >> /workspace/log; sync /workspace/log");
                let answer = post(
                    &format!("/v1/bays/{bay}/execs"),
                    &json!({ "id": exec, "argv": ["sh", "-c", script] }),
                )?;
                Some((200..300).contains(&answer.status))
            }
            Verb::List => Some(rest::request(socket, "GET", "/v1/bays", b"").ok()?.status == 200),
        }
    }

    /// The desired state of the bay after this verb, if the verb changes it.
    fn desired(self) -> Option<&'static str> {
        match self {
            Verb::Create | Verb::Start | Verb::Resume => Some("running"),
            Verb::Stop => Some("stopped"),
            Verb::Pause => Some("paused"),
            Verb::Replace | Verb::Remove | Verb::Write | Verb::List => None,
        }
    }
}

/// Updates what is known by the answer to a verb, or by its absence.
fn learn(
    known: &mut BTreeMap<&'static str, Known>,
    bay: &'static str,
    verb: Verb,
    answer: Option<bool>,
    exec: &str,
) {
    let entry = known.entry(bay).or_insert_with(|| Known {
        exists: vec![false],
        desired: vec![],
        written: vec![],
        execs: vec![],
    });
    match (verb, answer) {
        (_, Some(false)) | (Verb::List, _) => {}
        (Verb::Create, Some(true)) => {
            *entry = Known { exists: vec![true], desired: vec!["running"], written: vec![], execs: vec![] };
        }
        (Verb::Create, None) if entry.exists == [false] => {
            *entry =
                Known { exists: vec![false, true], desired: vec!["running"], written: vec![], execs: vec![] };
        }
        (Verb::Create, None) => {}
        (Verb::Remove, Some(true)) => entry.exists = vec![false],
        (Verb::Remove, None) => entry.exists = vec![false, true],
        (Verb::Write, Some(true)) => entry.execs.push(exec.to_owned()),
        (Verb::Write, None) => {}
        // A stopped bay stays stopped. A bay that was paused in memory loses that with its root, so it runs.
        (Verb::Replace, _) if entry.desired.contains(&"paused") => {
            if answer == Some(true) {
                entry.desired.retain(|desired| *desired != "paused");
            }
            entry.desired.push("running");
        }
        (Verb::Replace, _) => {}
        (_, Some(true)) => entry.desired = verb.desired().into_iter().collect(),
        (_, None) => entry.desired.extend(verb.desired()),
    }
}

/// Compares what is known with the views of a new daemon, and adopts its state if several are possible.
fn verify(daemon: &Daemon, known: &mut BTreeMap<&'static str, Known>) {
    // On the way to its desired state a bay may be in any state. In the end it is in that state, or failed.
    let settled = |bay: &Value| bay["state"] == bay["desired"] || bay["state"] == "failed";
    let bays = until("every bay to settle", || Some(daemon.list()).filter(|bays| bays.iter().all(settled)));
    let shown: BTreeMap<&str, &Value> = bays.iter().map(|bay| (bay["name"].as_str().unwrap(), bay)).collect();
    for (name, entry) in known.iter_mut() {
        let there = shown.contains_key(name);
        assert!(
            entry.exists.contains(&there),
            "{name} is {}there, known was {entry:?}",
            if there { "" } else { "not " }
        );
        entry.exists = vec![there];
        let Some(bay) = shown.get(name) else { continue };
        let desired = bay["desired"].as_str().unwrap();
        // A pause that cannot be restored after a loss becomes a stop, with the reason.
        let forsaken = desired == "stopped" && entry.desired.contains(&"paused");
        assert!(
            entry.desired.contains(&desired) || forsaken,
            "{name} wants to be {desired}, known was {entry:?}\n{bay}"
        );
        entry.desired = NAMES_OF_STATES.iter().copied().filter(|state| *state == desired).collect();
        assert_ne!(bay["state"], "failed", "{bay}\n{}", daemon.log());
        assert_eq!(bay["state"], bay["desired"], "{bay}");
        assert!(bay["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{bay}");
        match bay["host_pid"].as_i64() {
            // A request without an answer may be in progress now. Between the end of PID 1 and its entry in the store
            // the bay is `stopping`, never `running`.
            Some(pid) if leaks::ended(i32::try_from(pid).unwrap()) => {
                until(&format!("{name} to be shown without its dead PID 1"), || {
                    let now = daemon.show(name);
                    let gone = now["host_pid"].as_i64() != Some(pid);
                    assert!(gone || now["state"] != "running", "{name} runs with a dead PID 1: {now}");
                    gone.then_some(())
                });
            }
            Some(_) => {}
            None => assert_eq!(bay["state"], "stopped", "{bay}"),
        }
        if bay["state"] == "running" {
            let execs = daemon.rest("GET", &format!("/v1/bays/{name}/execs"), &Value::Null).json();
            let listed: Vec<&str> =
                execs.as_array().unwrap().iter().filter_map(|exec| exec["id"].as_str()).collect();
            for exec in &entry.execs {
                assert!(
                    listed.contains(&exec.as_str()),
                    "{exec} was acknowledged and is not listed in {name}"
                );
            }
            let log = until("the bay to take a command", || {
                let ran = daemon.sh(name, "cat /workspace/log 2>/dev/null; true");
                (ran.code == 0).then(|| ran.text())
            });
            for line in &entry.written {
                assert!(
                    log.lines().any(|have| have == line),
                    "{line} is missing from the workspace of {name}:\n{log}"
                );
            }
        }
    }
    assert!(shown.keys().all(|name| known.contains_key(name)), "bays nobody made: {shown:?}");
    let orphans = within(PATIENCE, || daemon.orphans().is_empty().then_some(()));
    assert!(orphans.is_some(), "left over:\n{}", listed(&daemon.orphans()));
}

const NAMES_OF_STATES: &[&str] = &["running", "paused", "stopped"];

#[test]
fn a_daemon_killed_at_random_moments_loses_nothing_it_acknowledged() {
    let mut chance = SeededRandom::announced("kill -9 of the daemon");
    let mut daemon = Daemon::start();
    let mut known: BTreeMap<&'static str, Known> = BTreeMap::new();
    let mut interrupted = 0;
    for round in 0..rounds() {
        // Some verbs without faults, so that there is something to lose; then one or two with the fault in the middle.
        for _ in 0..chance.below(3) {
            let (verb, bay) = (*chance.choose(VERBS), *chance.choose(NAMES));
            let (line, exec) = (format!("r{round}-{}", chance.draw()), ExecId::generate().to_string());
            let answer = verb.ask(&daemon.socket(), bay, &line, &exec);
            learn(&mut known, bay, verb, answer, &exec);
            if matches!(verb, Verb::Write) && answer == Some(true) {
                let ended = until("the write to end", || {
                    let view =
                        daemon.rest("GET", &format!("/v1/bays/{bay}/execs/{exec}"), &Value::Null).json();
                    (!view["exit"].is_null()).then(|| view["exit"]["code"] == 0)
                });
                if ended {
                    known.get_mut(bay).unwrap().written.push(line);
                }
            }
        }
        let count = 1 + chance.below(2);
        let asked: Vec<(Verb, &'static str, String)> = (0..count)
            .map(|n| {
                (
                    *chance.choose(VERBS),
                    NAMES[(chance.below(NAMES.len()) + n) % NAMES.len()],
                    ExecId::generate().to_string(),
                )
            })
            .collect();
        let moment = chance.moment(Duration::from_millis(400));
        let socket = daemon.socket();
        let answers: Vec<Option<bool>> = std::thread::scope(|scope| {
            let threads: Vec<_> = asked
                .iter()
                .map(|(verb, bay, exec)| {
                    let socket = &socket;
                    scope.spawn(move || verb.ask(socket, bay, "unacknowledged", exec))
                })
                .collect();
            pause(moment);
            daemon.kill_9();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        interrupted += answers.iter().filter(|answer| answer.is_none()).count();
        // Two concurrent verbs on one bay: either may have come first.
        let same_bay = asked.len() == 2 && asked[0].1 == asked[1].1;
        for ((verb, bay, exec), answer) in asked.iter().zip(&answers) {
            let answer = if same_bay && *answer == Some(true) { None } else { *answer };
            learn(&mut known, bay, *verb, answer, exec);
        }
        if same_bay && let Some(entry) = known.get_mut(asked[0].1) {
            entry.desired.extend(NAMES_OF_STATES);
            entry.exists = vec![true, false];
            entry.execs.clear();
            entry.written.clear();
        }
        daemon.launch();
        println!("round {round}: {asked:?} after {moment:?} -> {answers:?}");
        verify(&daemon, &mut known);
    }
    println!("{interrupted} verbs were interrupted in {} rounds", rounds());
}

#[test]
fn a_guest_killed_at_random_moments_is_never_shown_as_running_and_the_workspace_stays() {
    let mut chance = SeededRandom::announced("kill -9 of the guest");
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let mut written: Vec<String> = Vec::new();
    for round in 0..rounds() {
        let pid = daemon.host_pid("b");
        let line = format!("round-{round}");
        let script = format!("echo {line} >> log; sync log; echo done; sleep 0.0{}", chance.below(9));
        let moment = chance.moment(Duration::from_millis(80));
        let ran = std::thread::scope(|scope| {
            let command = scope.spawn(|| daemon.sh("b", &script));
            pause(moment);
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
            command.join().unwrap()
        });
        if ran.text().contains("done") {
            written.push(line);
        }
        assert!(
            ran.code != 0 || ran.text().contains("done"),
            "a command that did not end well was called a success: {ran}"
        );
        until("the process to be gone", || leaks::ended(pid).then_some(()));
        let view = daemon.show("b");
        assert!(
            view["state"] != "running" || view["host_pid"].as_i64() != Some(i64::from(pid)),
            "round {round}: {view}"
        );
        let _started = daemon.bay(&["start", "b"]).ok();
        let log = daemon.sh("b", "cat log 2>/dev/null; true").ok().text();
        for line in &written {
            assert!(log.lines().any(|have| have == line), "{line} is missing after round {round}:\n{log}");
        }
        assert_eq!(daemon.orphans(), [], "round {round}");
    }
}

#[test]
fn a_runtime_helper_killed_before_any_of_its_steps_leaves_nothing_behind() {
    let mut daemon = Daemon::start();
    let steps = daemon.bay(&["__runtime", "--steps"]).ok().text();
    assert!(steps.lines().count() > 5, "{steps}");
    daemon.empty_bay("old");
    let _written = daemon.sh("old", "echo kept > note").ok();
    for (count, step) in steps.lines().enumerate() {
        daemon.kill_9();
        daemon.set_environment(&[("BAY_FAULT", &format!("runtime:{step}"))]);
        daemon.launch();
        // A new bay cannot start. The error says so, and so does the list.
        let name = format!("new-{count}");
        let answer = daemon.rest(
            "POST",
            "/v1/bays",
            &json!({ "name": name, "source": { "kind": "empty" }, "image": SMALL }),
        );
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let last: Value = serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap_or_default();
        assert_eq!(last["error"]["code"], "bay-failed", "{step}: {text}");
        assert!(last["error"]["next"].as_str().is_some_and(|next| !next.is_empty()), "{text}");
        if let Some(bay) = daemon.list().iter().find(|bay| bay["name"] == name.as_str()) {
            assert!(bay["state"] != "running", "{step}: {bay}");
            assert!(bay["host_pid"].is_null(), "{step}: {bay}");
        }
        // An old one cannot be restarted, and its workspace is kept.
        let restarted = daemon.bay(&["replace", "old"]);
        restarted.fails_with(ErrorCode::BayFailed);
        assert_eq!(daemon.orphans(), [], "{step}");
        let alive: Vec<_> = leaks::processes(&daemon.data_dir, &[daemon.id().to_owned()].into())
            .into_iter()
            .filter(|leak| leak.to_string().contains("cgroup of daemon"))
            .collect();
        assert_eq!(alive, [], "{step}: processes of bays that are not running");
        // Without the fault both start.
        daemon.kill_9();
        daemon.set_environment(&[]);
        daemon.launch();
        let _started = daemon.bay(&["start", "old"]).ok();
        assert_eq!(daemon.sh("old", "cat note").ok().text(), "kept", "{step}");
        if daemon.list().iter().any(|bay| bay["name"] == name.as_str()) {
            let _started = daemon.bay(&["start", &name]).ok();
            assert_eq!(daemon.sh(&name, "echo up").ok().text(), "up", "{step}");
            let _removed = daemon.bay(&["rm", &name, "--yes"]).ok();
        }
    }
}

#[test]
fn a_daemon_that_dies_at_critical_moments_finds_everything_again() {
    const POINTS: &[&str] = &["after-intent", "after-disk", "after-start", "before-ack"];
    const CHANGES: &[Verb] =
        &[Verb::Create, Verb::Stop, Verb::Start, Verb::Pause, Verb::Resume, Verb::Replace, Verb::Remove];
    let mut daemon = Daemon::start();
    let mut known: BTreeMap<&'static str, Known> = BTreeMap::new();
    let mut died = 0;
    for point in POINTS {
        for verb in CHANGES {
            let bay = "red";
            // The state in which the verb has something to do.
            let created = Verb::Create.ask(&daemon.socket(), bay, "", "");
            learn(&mut known, bay, Verb::Create, created, "");
            let before = match verb {
                Verb::Create => Verb::Remove,
                Verb::Start => Verb::Stop,
                Verb::Resume => Verb::Pause,
                _ => Verb::Start,
            };
            let answer = before.ask(&daemon.socket(), bay, "", "");
            assert_eq!(answer, Some(true), "{before:?} before {verb:?} at {point}\n{}", daemon.log());
            learn(&mut known, bay, before, answer, "");
            daemon.kill_9();
            daemon.set_environment(&[("BAY_FAULT", &format!("daemon:{point}"))]);
            daemon.launch();
            let answer = verb.ask(&daemon.socket(), bay, "", "");
            died += usize::from(answer.is_none());
            learn(&mut known, bay, *verb, answer, "");
            daemon.kill_9();
            daemon.set_environment(&[]);
            daemon.launch();
            println!("{verb:?} at {point}: {answer:?}");
            verify(&daemon, &mut known);
        }
    }
    assert!(died >= POINTS.len(), "only {died} of the faults struck");
}

#[test]
fn a_daemon_killed_while_it_starts_starts_the_next_time() {
    let mut chance = SeededRandom::announced("kill -9 of a starting daemon");
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo kept > note").ok();
    let pid = daemon.host_pid("b");
    for _ in 0..rounds() / 2 {
        daemon.kill_9();
        daemon.launch_blindly();
        pause(chance.moment(Duration::from_millis(150)));
    }
    daemon.restart();
    assert_eq!(daemon.host_pid("b"), pid, "the bay lived through all of it");
    assert_eq!(daemon.sh("b", "cat note").ok().text(), "kept");
    assert_eq!(daemon.orphans(), []);
}
