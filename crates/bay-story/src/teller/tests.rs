use bay_types::BayId;
use bay_types::diff::{Change, Content, DiffEntry, Node, NodeKind};
use bay_types::story::{Story, TimeKind};
use jiff::tz::TimeZone;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::page::{self, MAX_LINES, WIDTH};

/// A record in the making: one event every second.
#[derive(Default)]
struct Record {
    teller: Teller,
    seq: u64,
}

impl Record {
    fn at(&self) -> Timestamp {
        Timestamp::from_second(1_780_000_000 + i64::try_from(self.seq).unwrap()).unwrap()
    }

    fn add(&mut self, kind: &str, body: Value) -> u64 {
        self.seq += 1;
        let event = Event {
            seq: self.seq,
            at: self.at(),
            bay: None,
            kind: kind.to_owned(),
            body,
            hash: String::new(),
        };
        self.teller.push(&event);
        self.seq
    }

    fn ran(&mut self, number: u64, argv: &[&str], code: i32) -> ExecId {
        let id = ExecId::generate();
        self.add("exec.start", json!({ "exec": id, "number": number, "argv": argv, "by": "uid 0", "tool_call": format!("call-{number}") }));
        self.add("exec.end", json!({ "exec": id, "number": number, "duration_s": 1.0, "exit": { "reason": "exited", "code": code } }));
        id
    }

    fn story(self, situation: Situation) -> Story {
        let made_at = self.at();
        self.teller.finish("web", BayId::generate(), made_at, false, situation)
    }
}

fn text(story: &Story) -> String {
    page::lines(story, &TimeZone::UTC).join("\n")
}

/// A record of a session, with everything that a story tells of.
fn session() -> Story {
    let mut record = Record::default();
    record.add("bay.create", json!({ "name": "web", "by": "uid 0", "origin": { "repo": "repo_0190000000007000800000000000000d", "location": "/home/ann/web", "commit": "426251c2d1f0a7c3b5e8d9f0a1b2c3d4e5f60718", "branch": "main" } }));
    record.add("bay.running", json!({ "reason": "ready" }));
    let agent = ExecId::generate();
    record.add(
        "exec.start",
        json!({ "exec": agent, "number": 1, "argv": ["claude", "-p", "fix the login"], "by": "uid 0" }),
    );
    let pip = ExecId::generate();
    record.add(
        "exec.start",
        json!({ "exec": pip, "number": 2, "argv": ["pip", "install", "six"], "by": "uid 0" }),
    );
    for _ in 0..25 {
        let of = record
            .add("egress.decided", json!({ "outcome": "allow", "host": "pypi.org", "by": { "exec": pip } }));
        record.add(
            "egress.ended",
            json!({ "of": of, "ending": "answered", "status": 200, "received": 2048, "sent": 10, "ms": 400 }),
        );
    }
    record.add(
        "exec.end",
        json!({ "exec": pip, "number": 2, "duration_s": 50.0, "exit": { "reason": "exited", "code": 0 } }),
    );
    record.ran(3, &["cargo", "test"], 101);
    record.ran(4, &["cargo", "test"], 101);
    record.ran(5, &["cargo", "test"], 0);
    record.ran(6, &["make", "deploy"], 2);
    let refused = record.add("egress.decided", json!({ "outcome": "deny", "request": "POST https://api.example/", "host": "api.example", "by": { "exec": agent }, "rule": { "id": "no-api", "origin": "bay" }, "explanation": { "reason": "the rule denies it" } }));
    record.add(
        "egress.repeated",
        json!({ "like": refused, "count": 11, "what": "deny", "of": "api.example:443", "within_s": 10 }),
    );
    record.add(
        "approval.asked",
        json!({ "approval": "ask_0190000000007000800000000000000c", "request": "git push origin" }),
    );
    record.add(
        "approval.allowed",
        json!({ "approval": "ask_0190000000007000800000000000000c", "by": "uid 1000", "why": "looks good" }),
    );
    for state in ["ready", "backing-off", "ready"] {
        record.add("service.reached", json!({ "service": "db", "state": state, "reason": "exited with 1" }));
    }
    record.add("checkpoint.made", json!({ "name": "v1", "kind": "files", "message": "before the migration", "automatic": null, "by": "uid 0" }));
    record.add("work.left", json!({ "route": "branch", "branch": "fix-login", "place": "/home/ann/web", "commit": "5f0c1a9e26251c2d", "commits": 2, "files": 3, "by": "uid 0" }));
    record.add(
        "exec.files",
        json!({ "exec": agent, "number": 1, "created": 1, "changed": 2, "names": ["src/login.rs"] }),
    );
    let mut changes = Changes::default();
    let node = Node { kind: NodeKind::File, mode: 0o644, uid: 0, gid: 0, size: 1, target: None };
    for (change, path) in
        [(Change::Modified, "src/login.rs"), (Change::Added, "tests/login.rs"), (Change::Deleted, "README")]
    {
        let content = Content::Text { added: 3, removed: 1, patch: None, lossy: false };
        changes.push(&DiffEntry::new(
            change,
            path.as_bytes(),
            Some(node.clone()),
            Some(node.clone()),
            content,
        ));
    }
    let cost = BayCost {
        core_s: 12.5,
        memory_gib_s: 3.0,
        disk_gib_s: 1.0,
        disk_bytes: Some(5 << 20),
        since: Timestamp::UNIX_EPOCH,
    };
    record.story(Situation {
        state: "running".to_owned(),
        reason: "ready".to_owned(),
        cost: Some(cost),
        changes: Some(changes),
        ..Situation::default()
    })
}

#[test]
fn a_story_answers_the_questions_of_a_fresh_reader() {
    let text = text(&session());
    for (question, answer) in [
        ("what was asked?", "asked     work on /home/ann/web at main (426251c2)"),
        ("by whom?", "6 commands, by uid 0 (6)"),
        ("of which agent?", "agent, exec 1: claude -p 'fix the login'"),
        ("what failed?", "failed    make deploy: exit 2 · bay logs web 6"),
        ("and passed later?", "cargo test: exit 101, 2 times · passed later as exec 5"),
        (
            "what was refused?",
            "refused   12 × POST https://api.example/ · rule no-api: the rule denies it · by exec 1",
        ),
        ("how is it explained?", "bay policy explain web "),
        ("what was approved?", "approvals allowed by uid 1000: git push origin (looks good)"),
        ("what was tried?", "tried     pip install (exec 2) · 50.0 s · 25 requests · 50 KiB received"),
        ("how often?", "3 × cargo test, 2 failed · 3.0 s"),
        (
            "what died?",
            "services  db is ready · ended or failed once, came back once; the last time: exited with 1",
        ),
        ("where can one go back to?", ": before the migration · fork from here: bay fork web --from v1"),
        ("what changed?", "changed   1 file added, 1 modified, 1 deleted · +9 −3 lines"),
        ("which tests?", "1 test file added: tests/login.rs"),
        ("what left?", "left      branch fix-login to /home/ann/web at 5f0c1a9e"),
        ("with which data?", "data in requests: 250 B to pypi.org in 25 requests"),
        (
            "what did it cost?",
            "cost      12.5 core-seconds · 3.0 GiB-seconds of memory · 5 MiB of disk · 25 requests: 250 B sent, 50 KiB received",
        ),
        ("how is it now?", "now       running: ready"),
        ("what runs?", "running: exec 1 claude -p 'fix the login'"),
        (
            "is there work?",
            "files changed (last by exec 1) and were not taken out since: bay branch web BRANCH",
        ),
    ] {
        assert!(text.contains(answer), "{question} {answer:?} is not in\n{text}");
    }
    assert!(text.contains("estimated by rule: "), "{text}");
}

#[test]
fn an_empty_record_has_a_story_too() {
    let story = Record::default().story(Situation { state: "stopped".to_owned(), ..Situation::default() });
    let text = text(&story);
    for line in
        ["no command failed", "no request was refused", "no command ran", "no requests", "now       stopped"]
    {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn the_commands_of_a_client_that_takes_work_out_are_no_commands_of_the_story() {
    let mut record = Record::default();
    let packing = ExecId::generate();
    let directory = format!("{}{packing}", crate::fold::PACK_DIRECTORY);
    record.add(
        "exec.start",
        json!({ "exec": packing, "number": 1, "argv": ["sh", "-s", "--", "pack", directory, "all"] }),
    );
    record.add("exec.files", json!({ "exec": packing, "number": 1, "created": 9 }));
    record.add(
        "exec.start",
        json!({ "exec": ExecId::generate(), "number": 2, "argv": ["rm", "-rf", "--", directory] }),
    );
    record.ran(3, &["true"], 0);
    let story = record.story(Situation::default());
    assert_eq!((story.asked.commands, story.tried.total(), story.now.untaken_work), (1, 1, false));
}

#[test]
fn a_stopped_bay_spends_no_idle_time() {
    let mut record = Record::default();
    record.add("bay.running", json!({}));
    record.ran(1, &["cargo", "test"], 0);
    record.add("bay.stopped", json!({}));
    for _ in 0..10 {
        record.add("bay.set-asked", json!({}));
    }
    record.add("bay.running", json!({}));
    let story = record.story(Situation::default());
    let stopped = story.time.iter().find(|share| share.kind == TimeKind::Stopped).unwrap();
    assert!((stopped.seconds - 11.0).abs() < 0.01, "{:?}", story.time);
}

#[test]
fn a_story_of_many_events_is_short() {
    let mut record = Record::default();
    for number in 1..=3000 {
        let host = format!("host-{number}.example");
        record.ran(number, &["tool", &format!("--number={number}")], i32::try_from(number % 3).unwrap());
        record.ran(number, &[&format!("tool-{number}"), "x"], 1);
        record.add("egress.refused", json!({ "host": host, "port": 443, "why": format!("reason {number}") }));
        record.add("checkpoint.made", json!({ "name": format!("v{number}"), "kind": "files" }));
        record.add("service.reached", json!({ "service": format!("s{number}"), "state": "ready" }));
        record
            .add("approval.asked", json!({ "approval": bay_types::ApprovalId::generate(), "request": "x" }));
        record.add("work.left", json!({ "route": "bundle", "branch": "b", "commit": "c" }));
    }
    let story = record.story(Situation::default());
    let lines = page::lines(&story, &TimeZone::UTC);
    assert!(lines.len() <= MAX_LINES, "{} lines:\n{}", lines.len(), lines.join("\n"));
    assert!(serde_json::to_string(&story).unwrap().len() < 100_000);
    assert!(lines.iter().filter(|line| line.contains(" more: bay ")).count() >= 6, "{}", lines.join("\n"));
}

#[test]
fn markup_in_a_name_is_no_markup_of_the_page() {
    let mut record = Record::default();
    record.ran(1, &["<script>alert(1)</script>", "\"'&"], 1);
    let html = crate::html::page(&record.story(Situation::default()), &TimeZone::UTC);
    assert!(!html.contains("<script") && html.contains("&lt;script&gt;"), "{html}");
    assert!(html.contains("default-src 'none'"), "{html}");
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(|text| Value::from(format!("\u{1b}]0;{text}\u{7}\u{202e}\n"))),
        "[a-z -]{0,8}".prop_map(Value::from),
        prop::collection::vec("\\PC{0,6}".prop_map(Value::from), 0..4).prop_map(Value::from),
        Just(json!("exec_0190000000007000800000000000abcd")),
        Just(
            json!({ "exec": "exec_0190000000007000800000000000abcd", "process": { "pid": 1, "host_pid": 1, "exe": "\u{1b}x", "argv": ["", "\u{7}"] } })
        ),
        Just(json!({ "reason": "exited", "code": 3 })),
        Just(json!({ "reason": "\u{1b}[2J" })),
    ]
}

proptest! {
    /// Whatever a record contains, a story never panics, is never long, and controls no terminal.
    #[test]
    fn any_record_has_a_bounded_and_safe_story(
        events in prop::collection::vec((any::<prop::sample::Index>(), prop::collection::vec(any_value(), 12), any::<i32>()), 0..60),
        situation in "\\PC{0,20}",
    ) {
        let kinds: Vec<_> = EventBody::AREAS.iter().flat_map(|(_, _, kinds)| kinds.iter()).collect();
        let mut record = Record::default();
        for (kind, values, at) in events {
            let kind = kinds[kind.index(kinds.len())];
            let names = kind.fields.iter().map(|field| field.name.trim_start_matches("r#").to_owned());
            let body = Value::Object(names.zip(values).collect());
            record.seq += 1;
            let at = Timestamp::from_second(i64::from(at)).unwrap();
            let event = Event { seq: record.seq, at, bay: None, kind: kind.kind.to_owned(), body, hash: String::new() };
            record.teller.push(&event);
        }
        let situation = Situation { state: situation.clone(), reason: format!("\u{1b}{situation}"), ..Situation::default() };
        let story = record.story(situation);
        let lines = page::lines(&story, &TimeZone::UTC);
        prop_assert!(lines.len() <= MAX_LINES);
        for line in &lines {
            prop_assert!(line.chars().count() <= WIDTH + 12, "{line}");
            prop_assert!(!line.chars().any(|c| c.is_control() || c == '\u{202e}'), "{line:?}");
        }
        let json = serde_json::to_string(&story).unwrap();
        prop_assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), serde_json::to_value(&story).unwrap());
        let _ = crate::html::page(&story, &TimeZone::UTC);
    }
}
