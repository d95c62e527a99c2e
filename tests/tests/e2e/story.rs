//! `bay story`, and the filters and folds of `bay timeline`: what happened in a bay, readable and true.

use std::time::{Duration, Instant};

use bay_tests::lab::{Lab, lab};
use bay_tests::{Daemon, Repository, SMALL, until};
use bay_types::ErrorCode;
use bay_types::exec::ExecSpec;
use bay_types::story::Story;
use bay_types::timeline::TimelineLine;
use serde_json::{Value, json};

/// How many commands a session has, beside those that a test looks at. Each has two events.
const COMMANDS: usize = 250;

fn story(daemon: &Daemon, bay: &str) -> Story {
    serde_json::from_value(daemon.bay(&["story", bay, "--json"]).ok().json()).unwrap()
}

fn timeline(daemon: &Daemon, args: &[&str]) -> Vec<TimelineLine> {
    let all: Vec<&str> = ["timeline", "--json", "b"].iter().chain(args).copied().collect();
    let text = daemon.bay(&all).ok().text();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Runs many short commands without a client attached, and waits until the ends of all are on record.
fn many_commands(daemon: &Daemon, bay: &str) {
    for _ in 0..COMMANDS {
        let body = serde_json::to_value(ExecSpec::new(["true"])).unwrap();
        let answer = daemon.rest("POST", &format!("/v1/bays/{bay}/execs"), &body);
        assert_eq!(answer.status, 201, "{:?}", answer.json());
    }
    until("all commands are over", || {
        let execs = daemon.rest("GET", &format!("/v1/bays/{bay}/execs"), &Value::Null).json();
        execs.as_array().unwrap().iter().all(|exec| exec["ended_at"].is_string()).then_some(())
    });
}

/// A session as an agent has one: commands that succeed and fail, a refused request, a service that dies and comes back,
/// a checkpoint, a secret, and a branch that is taken home.
fn session(lab: &Lab, repository: &Repository) {
    let daemon = &lab.daemon;
    let _up = daemon.bay(&["up", &repository.arg(), "--name", "b", "--image", SMALL]).ok();
    let origin = lab.echo("origin.test");
    lab.set("b", &origin.allowed("path = \"/open/**\""));
    lab.until_open("b");
    many_commands(daemon, "b");
    let _asked = daemon
        .bay(&[
            "exec",
            "b",
            "--tool-call",
            "call-7",
            "--",
            "sh",
            "-c",
            "echo new > made; mkdir -p tests; echo t > tests/test_made.py",
        ])
        .ok();
    let _failed = daemon.sh("b", "exit 7").exits(7);
    assert_eq!(lab.get("b", &origin.url("https", "/open/door")).0, 200);
    assert_eq!(lab.get("b", &origin.url("https", "/shut")).0, 403);
    let dies_once = "test -e /tmp/ran || { touch /tmp/ran; exit 7; }; exec sleep 1000";
    let _served = daemon.bay(&["services", "add", "b", "db", "--", "sh", "-c", dies_once]).ok();
    let _kept = daemon.bay(&["checkpoint", "b", "-m", "before the migration", "--files-only"]).ok();
    let mut branch = daemon.command(&["branch", "b", "from-the-bay"]);
    let taken = branch.current_dir(repository.path()).output().unwrap();
    assert!(taken.status.success(), "{}", String::from_utf8_lossy(&taken.stderr));
    until("the session is on record", || {
        let lines = timeline(daemon, &["--limit", "0"]);
        let has = |kind: &str| lines.iter().any(|line| line.kind == kind);
        let again =
            lines.iter().any(|line| line.kind == "service.reached" && line.details["state"] == "ready");
        (has("exec.files") && has("work.left") && again && has("egress.ended")).then_some(())
    });
}

#[test]
fn the_story_of_a_session_answers_six_questions_on_one_page() {
    let lab = lab();
    let daemon = &lab.daemon;
    let repository = Repository::sample();
    session(&lab, &repository);
    let told = story(daemon, "b");
    assert!(told.events >= 500, "{}", told.events);

    // What was asked?
    assert_eq!(told.asked.commands, COMMANDS as u64 + 4, "{:?}", told.asked);
    assert_eq!(told.asked.by.shown[0].by, "uid 0");
    assert_eq!(told.asked.tool_calls.shown, ["call-7"]);
    assert!(told.asked.origin.as_ref().unwrap().starts_with(&repository.arg()), "{:?}", told.asked);
    // What was tried?
    let group = told.tried.shown.iter().find(|group| group.label == "true").unwrap();
    assert_eq!((group.count, group.failed, group.running), (COMMANDS as u64, 0, 0));
    let python = told.tried.shown.iter().find(|group| group.label.starts_with("python3")).unwrap();
    assert_eq!((python.requests, python.refused), (2, 1), "{python:?}");
    // What failed?
    let failed = &told.failed.shown[0];
    assert_eq!((failed.command.as_str(), failed.how.as_str()), ("sh -c 'exit 7'", "exit 7"));
    // What was refused, and by which rule?
    let refused = &told.refused.shown[0];
    assert!(refused.request.ends_with("/shut") && !refused.reason.is_empty(), "{refused:?}");
    let explained =
        daemon.bay(&["policy", "explain", "b", &refused.decision.unwrap().to_string()]).ok().text();
    assert!(explained.contains("/shut"), "{explained}");
    // What did it cost?
    assert!(
        told.cost.core_s.is_some_and(|seconds| seconds > 0.0) && told.cost.requests == 1,
        "{:?}",
        told.cost
    );
    // How is it now?
    assert_eq!(
        (told.now.state.as_str(), told.now.services_up.shown.as_slice()),
        ("running", &["db".to_owned()][..])
    );
    assert!(told.now.running.is_empty() && !told.now.untaken_work, "{:?}", told.now);

    let service = &told.services.shown[0];
    assert_eq!((service.deaths, service.came_back), (1, 1), "{service:?}");
    assert!(service.last_death.as_ref().unwrap().contains('7'), "{service:?}");
    assert_eq!(told.checkpoints.shown[0].message.as_deref(), Some("before the migration"));
    let left = &told.left.shown[0];
    assert_eq!((left.route.as_str(), left.branch.as_str()), ("branch", "from-the-bay"));
    assert_eq!(left.commit, repository.git(&["rev-parse", "from-the-bay"])[..8]);
    let whole: f64 = told.time.iter().map(|share| share.seconds).sum();
    assert!(whole > 0.5, "{:?}", told.time);

    let text = daemon.bay(&["story", "b"]).ok().text();
    assert!(text.lines().count() <= 60, "{text}");
    for part in [
        "asked     work on ",
        "sh -c 'exit 7': exit 7 · bay logs b ",
        "/shut",
        "fork from here: bay fork b --from v1",
        "left      branch from-the-bay to ",
        "estimated by rule",
        "cost      ",
        "now       running",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    // Every command that the page names is one.
    let named = text.lines().flat_map(|line| line.split(": ").flat_map(|part| part.split(" · ")));
    let named: Vec<&str> = named.filter(|part| part.starts_with("bay ")).collect();
    assert!(named.len() > 2, "{named:?}\n{text}");
    for command in named {
        let command = command.split(" shows").next().unwrap_or(command);
        let words: Vec<&str> = command.split(' ').skip(1).chain(["--help"]).collect();
        let _helped = daemon.bay(&words).ok();
    }
    let html = daemon.bay(&["story", "b", "--html"]).ok().text();
    assert!(html.starts_with("<!doctype html>") && html.contains("fork from here"), "{html}");
    assert!(!html.contains("<script") && !html.contains("src="), "{html}");

    // The comparison with the beginning of the workspace.
    until("the workspace is compared in time", || {
        story(daemon, "b").changed.not_compared.is_none().then_some(())
    });
    let changed = story(daemon, "b").changed;
    assert_eq!((changed.added, changed.deleted), (2, 0), "{changed:?}");
    assert_eq!(changed.tests_added.shown, ["tests/test_made.py"]);

    // The best of some, because other tests run beside it.
    let fastest = (0..5)
        .map(|_| {
            let began = Instant::now();
            let answer = daemon.rest("GET", "/v1/bays/b/story", &Value::Null);
            assert_eq!(answer.status, 200);
            began.elapsed()
        })
        .min()
        .unwrap();
    println!("the story of {} events took {fastest:?}", told.events);
    assert!(fastest < Duration::from_millis(300), "{fastest:?}");
}

#[test]
fn a_timeline_for_people_folds_like_events_and_shows_work_that_left_as_one() {
    let lab = lab();
    let daemon = &lab.daemon;
    let repository = Repository::sample();
    session(&lab, &repository);
    let text = daemon.bay(&["timeline", "b", "--limit", "0"]).ok().text();
    let all = daemon.bay(&["timeline", "b", "--limit", "0", "--all"]).ok().text();
    assert!(all.lines().count() > 2 * COMMANDS, "{}", all.lines().count());
    assert!(text.lines().count() < 100, "{text}");
    assert!(text.contains(" × true, each ended with 0"), "{text}");
    assert!(text.contains("work taken out as branch from-the-bay of "), "{text}");
    assert!(!text.contains(".bay-leaving-") && !text.contains("work packed"), "{text}");
    assert!(all.contains(".bay-leaving-"), "the whole timeline has the commands that packed:\n{all}");
    assert!(text.contains("exit 7"), "a failure keeps its line:\n{text}");
    // Programs read every event.
    let lines = timeline(daemon, &["--limit", "0"]);
    assert!(lines.iter().all(|line| line.folded.is_none()));
    assert!(lines.iter().filter(|line| line.kind == "exec.end").count() > COMMANDS);
    let left: Vec<&TimelineLine> = lines.iter().filter(|line| line.kind == "work.left").collect();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].details["by"], "uid 0");
    let execs = left[0].details["execs"].as_array().unwrap();
    assert_eq!(execs.len(), 2, "one packed, one cleaned up: {:?}", left[0].details);
    assert!(
        lines.iter().filter(|line| line.kind == "exec.start").any(|line| line.details["exec"] == execs[0])
    );
    // The last lines of a folded timeline are its last lines.
    let last = daemon.bay(&["timeline", "b", "--limit", "5"]).ok().text();
    let tail = |text: &str| text.lines().rev().take(5).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(tail(&last), tail(&text));
}

#[test]
fn a_timeline_can_be_filtered() {
    let lab = lab();
    let daemon = &lab.daemon;
    let origin = lab.echo_for(&["b"]);
    assert_eq!(lab.get("b", &origin.url("https", "/x")).0, 200);
    let _failed = daemon.sh("b", "exit 7").exits(7);
    let _fine = daemon.sh("b", "true").ok();
    let _dropped = daemon.sh("b", "nc -w 5 192.0.2.1 22 </dev/null");
    until("the traffic is on record", || {
        // Also the ends of the commands: a client learns of an end before it is on record.
        let ended = lab.record("b", "exec.end").len() == lab.record("b", "exec.start").len();
        (ended && lab.record("b", "egress.ended").len() == 1 && !lab.record("b", "egress.refused").is_empty())
            .then_some(())
    });
    let kinds =
        |args: &[&str]| -> Vec<String> { timeline(daemon, args).into_iter().map(|line| line.kind).collect() };
    assert_eq!(kinds(&["--kind", "exec.end"]), ["exec.end"; 4]);
    let several = kinds(&["--kind", "exec.start,bay"]);
    assert!(
        several.contains(&"bay.running".to_owned()) && several.contains(&"exec.start".to_owned()),
        "{several:?}"
    );
    assert!(several.iter().all(|kind| kind == "exec.start" || kind.starts_with("bay.")), "{several:?}");
    assert_eq!(kinds(&["--kind", "exec.end", "--limit", "2"]), ["exec.end"; 2]);
    let failed = timeline(daemon, &["--failed", "--kind", "exec"]);
    let codes: Vec<&Value> = failed.iter().map(|line| &line.details["exit"]["code"]).collect();
    assert_eq!(codes[0], 7, "{failed:?}");
    assert!(failed.iter().all(|line| line.kind == "exec.end"), "{failed:?}");
    assert!(kinds(&["--failed"]).contains(&"egress.refused".to_owned()));
    let of_one = timeline(daemon, &["--exec", "1"]);
    assert!(of_one.iter().any(|line| line.kind == "egress.ended"), "{of_one:?}");
    assert!(of_one.iter().all(|line| line.exec == of_one[0].exec), "{of_one:?}");
    assert!(kinds(&["--exec", "1", "--no-egress"]).iter().all(|kind| kind.starts_with("exec.")));
    assert!(!kinds(&["--no-egress"]).iter().any(|kind| kind.starts_with("egress.")));
    assert_eq!(kinds(&["--since", "10m", "--kind", "exec.end"]).len(), 4);
    let (message, next) =
        daemon.bay(&["timeline", "b", "--kind", "exce"]).fails_with(ErrorCode::InvalidInput);
    assert!(message.contains("exce") && next.contains("exec"), "{message} {next}");
    let _odd = daemon.bay(&["timeline", "b", "--exec", "two"]).fails_with(ErrorCode::InvalidInput);
}

#[test]
fn secrets_of_a_bay_are_on_its_timeline_and_those_of_others_are_not() {
    let lab = lab();
    let daemon = &lab.daemon;
    daemon.empty_bay("b");
    daemon.empty_bay("other");
    let set = |name: &str, bay: &str, value: &[u8]| {
        let line = ["secret", "set", name, "-", "--for", "api.test as bearer", "--bay", bay];
        let _set = daemon.bay_with_input(&line, value).ok();
    };
    set("OWN", "b", b"kX7pQ2vR9mT4wZ8sL3nB6yHd");
    set("OTHER", "other", b"gF5jC1xV8qN0rK6tM2bW9zPe");
    let _rotated = daemon.bay_with_input(&["secret", "rotate", "OWN", "-"], b"uH4aS7dY1eJ9oG3lX5cQ8vTi").ok();
    let _removed = daemon.bay(&["secret", "rm", "OWN"]).ok();
    let lines = timeline(daemon, &["--kind", "secret"]);
    let kinds: Vec<&str> = lines.iter().map(|line| line.kind.as_str()).collect();
    assert_eq!(kinds, ["secret.set", "secret.rotated", "secret.removed"], "{lines:?}");
    assert!(lines.iter().all(|line| line.details["name"] == "OWN"), "{lines:?}");
    let whole = timeline(daemon, &[]);
    assert!(whole.is_sorted_by(|a, b| a.seq < b.seq), "{whole:?}");
    assert_eq!(whole.iter().filter(|line| line.kind.starts_with("secret.")).count(), 3);
    assert!(
        whole.iter().any(|line| line.what.starts_with("secret OWN has a new value, by uid 0")),
        "{whole:?}"
    );
}

#[test]
fn hostile_names_control_neither_the_story_nor_the_timeline() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let evil = "a\u{1b}]52;c;aGk=\u{7}\r\u{202e}b<script>";
    for at in 0..5 {
        let mut spec = ExecSpec::new(["sh", "-c", "exit 3", evil]);
        spec.tool_call = Some(format!("call-{at}\u{202e}<b>"));
        let answer = daemon.rest("POST", "/v1/bays/b/execs", &json!(spec));
        assert_eq!(answer.status, 201, "{:?}", answer.json());
    }
    until("all ended", || (timeline(&daemon, &["--kind", "exec.end"]).len() == 5).then_some(()));
    let failed = &story(&daemon, "b").failed;
    assert_eq!(failed.shown[0].times, 5, "{failed:?}");
    for line in
        [&["story", "b"][..], &["story", "b", "--json"], &["story", "b", "--html"], &["timeline", "b"]]
    {
        let text = daemon.bay(line).ok().text();
        assert!(!text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'), "{line:?} {text:?}");
        assert!(!line.contains(&"--html") || !text.contains("<script"), "{text}");
    }
}

#[test]
fn the_story_of_a_removed_bay_is_read_by_its_id_and_its_keys_are_stable() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ran = daemon.sh("b", "true").ok();
    let id = daemon.show("b")["id"].as_str().unwrap().to_owned();
    let _removed = daemon.bay(&["rm", "b", "--yes"]).ok();
    let told = daemon.bay(&["story", &id, "--json"]).ok().json();
    let keys: Vec<&str> = told.as_object().unwrap().keys().map(String::as_str).collect();
    let mut wanted = vec![
        "bay",
        "id",
        "made_at",
        "from",
        "to",
        "events",
        "older_left_out",
        "asked",
        "failed",
        "refused",
        "approvals",
        "tried",
        "services",
        "checkpoints",
        "changed",
        "left",
        "uploads",
        "time",
        "cost",
        "now",
    ];
    wanted.sort_unstable();
    let mut keys = keys;
    keys.sort_unstable();
    assert_eq!(keys, wanted);
    assert_eq!(told["now"]["state"], "removed");
    assert_eq!(told["asked"]["commands"], 1);
    let _unknown = daemon.bay(&["story", "nobody"]).fails_with(ErrorCode::BayNotFound);
}
