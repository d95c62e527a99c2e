use bay_types::event::EgressEvent;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// A record in the making.
#[derive(Default)]
struct Record {
    fold: Fold,
    seq: u64,
    shown: Vec<TimelineLine>,
    decided: HashMap<u64, EgressDecided>,
}

impl Record {
    fn add(&mut self, kind: &str, body: &Value) -> u64 {
        self.add_of(kind, body, &[])
    }

    fn add_of(&mut self, kind: &str, body: &Value, argv: &[&str]) -> u64 {
        self.seq += 1;
        let event = EventBody::read(kind, body);
        let line = TimelineLine {
            seq: self.seq,
            at: jiff::Timestamp::UNIX_EPOCH,
            kind: kind.to_owned(),
            what: format!("{kind} #{}", self.seq),
            exec: event.exec(),
            checkpoint: None,
            details: body.clone(),
            folded: None,
        };
        let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
        let decided = match &event {
            EventBody::Egress(EgressEvent::Ended(ended)) => {
                ended.of.get().and_then(|of| self.decided.get(of)).cloned()
            }
            EventBody::Egress(EgressEvent::Decided(decided)) => {
                self.decided.insert(self.seq, decided.clone());
                if decided.outcome == Field::Is(bay_types::event::egress::Outcome::Allow) {
                    // What was let out has a line for its end.
                    return self.seq;
                }
                None
            }
            _ => None,
        };
        let item = Item { line, event: &event, decided: decided.as_ref(), number: Some(5), argv: &argv };
        self.shown.extend(self.fold.push(item));
        self.seq
    }

    fn ran(&mut self, number: u64, argv: &[&str], code: i32) {
        let id = ExecId::generate();
        self.add("exec.start", &json!({ "exec": id, "number": number, "argv": argv, "by": "uid 0" }));
        self.add("exec.end", &json!({ "exec": id, "number": number, "duration_s": 0.1, "exit": { "reason": "exited", "code": code } }));
    }

    fn sent(&mut self, host: &str, status: u16, who: &Value) {
        let of =
            self.add("egress.decided", &json!({ "outcome": "allow", "host": host, "port": 443, "by": who }));
        self.add(
            "egress.ended",
            &json!({ "of": of, "ending": "answered", "status": status, "received": 1024, "sent": 0 }),
        );
    }

    fn whats(mut self) -> Vec<String> {
        self.shown.extend(self.fold.flush());
        assert!(self.shown.is_sorted_by_key(|line| line.seq), "{:?}", self.shown);
        self.shown.into_iter().map(|line| line.what).collect()
    }
}

fn who(exe: &str) -> Value {
    json!({ "exec": "exec_0190000000007000800000000000abcd", "process": { "pid": 1, "host_pid": 2, "exe": exe, "argv": [exe] } })
}

#[test]
fn the_requests_of_an_installation_are_one_line() {
    let mut record = Record::default();
    for at in 0..25 {
        record.sent(["pypi.org", "files.pythonhosted.org"][at % 2], 200, &who("/usr/bin/pip"));
    }
    record.add("bay.stopped", &json!({}));
    let lines = record.whats();
    assert_eq!(
        lines,
        [
            "25 requests to pypi.org, files.pythonhosted.org answered · 25 KiB received · by exec 5 (pip)",
            "bay.stopped #51"
        ]
    );
}

#[test]
fn floods_of_refusals_and_calls_of_a_browser_are_folded_apart() {
    let mut record = Record::default();
    let refused = |host: &str, exe: &str| json!({ "outcome": "deny", "host": host, "port": 443, "by": who(exe), "explanation": { "reason": "no rule covers it" } });
    let mut last = 0;
    for _ in 0..3 {
        last = record.add("egress.decided", &refused("evil.example", "/usr/bin/curl"));
        record.add("egress.decided", &refused("update.googleapis.com", "/opt/chrome/chrome"));
    }
    record.add(
        "egress.repeated",
        &json!({ "what": "deny", "of": "evil.example:443", "like": last, "count": 980, "within_s": 10 }),
    );
    let lines = record.whats();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0], "3 background calls of a browser to update.googleapis.com (3 refused)");
    assert_eq!(lines[1], "983 requests to evil.example refused: no rule covers it · by exec 5 (curl)");
}

#[test]
fn like_commands_that_succeed_are_one_line_and_a_failure_has_its_own() {
    let mut record = Record::default();
    (1..=4).for_each(|number| record.ran(number, &["git", "status"], 0));
    record.ran(5, &["git", "status"], 1);
    (6..=7).for_each(|number| record.ran(number, &["git", "status"], 0));
    let lines = record.whats();
    assert_eq!(lines[0], "execs 1 to 4: 4 × git status, each ended with 0 · 400 ms in all");
    assert_eq!(lines.len(), 1 + 2 + 4, "two more keep their lines: {lines:?}");
}

#[test]
fn a_service_that_flaps_is_one_line_with_its_present_state() {
    let mut record = Record::default();
    for state in ["ready", "backing-off", "ready", "backing-off", "crash-loop"] {
        record
            .add("service.reached", &json!({ "service": "web", "state": state, "reason": "exited with 1" }));
    }
    record.add("service.reached", &json!({ "service": "db", "state": "ready" }));
    assert_eq!(
        record.whats(),
        [
            "service web is crash-loop: exited with 1 · 5 changes of state: ready 2 times, backing-off 2 times, crash-loop",
            "service.reached #6"
        ]
    );
}

#[test]
fn work_that_left_is_one_line_without_the_commands_that_packed_it() {
    let packing = ExecId::generate();
    let directory = format!("{PACK_DIRECTORY}{packing}");
    let pack = |record: &mut Record| {
        let argv = ["sh", "-s", "--", "pack", &directory, "all", "-", "-", "1", "web", "message"];
        record.add("exec.start", &json!({ "exec": packing, "number": 3, "argv": argv }));
        // The end is read with the command from the row.
        record.add_of(
            "exec.end",
            &json!({ "exec": packing, "number": 3, "exit": { "reason": "exited", "code": 0 } }),
            &argv,
        );
        let cleaning = ExecId::generate();
        record.add(
            "exec.start",
            &json!({ "exec": cleaning, "number": 4, "argv": ["rm", "-rf", "--", directory] }),
        );
        record.add(
            "exec.end",
            &json!({ "exec": cleaning, "number": 4, "exit": { "reason": "exited", "code": 0 } }),
        );
    };
    let mut record = Record::default();
    pack(&mut record);
    record.ran(5, &["ls"], 0);
    assert!(record.shown.is_empty(), "nothing is certain before the report: {:?}", record.shown);
    record.add("work.left", &json!({ "execs": [packing], "branch": "fix" }));
    assert_eq!(record.whats(), ["exec.start #5", "exec.end #6", "work.left #7"]);
    // A client that never reported.
    let mut record = Record::default();
    pack(&mut record);
    record.ran(5, &["ls"], 0);
    assert_eq!(record.whats(), ["work packed to be taken out, by exec 5", "exec.start #5", "exec.end #6"]);
    // An exec that only looks like it: the directory has the name of another exec.
    let mut record = Record::default();
    record.add(
        "exec.start",
        &json!({ "exec": ExecId::generate(), "argv": ["sh", "-s", "--", "pack", directory] }),
    );
    assert_eq!(record.whats(), ["exec.start #1"]);
}

#[test]
fn many_lines_do_not_wait_for_a_report() {
    let packing = ExecId::generate();
    let mut record = Record::default();
    record.add(
        "exec.start",
        &json!({ "exec": packing, "argv": ["sh", "-s", "--", "pack", format!("{PACK_DIRECTORY}{packing}")] }),
    );
    for _ in 0..HELD + 2 {
        record.add("bay.running", &json!({}));
    }
    assert!(record.shown.len() > HELD, "{}", record.shown.len());
}

proptest! {
    /// Any record: nothing is lost, the order holds, no text controls a terminal, and no line is long.
    #[test]
    fn every_event_is_in_exactly_one_line(
        events in prop::collection::vec((0_usize..10, 0_u8..3, "\\PC{0,8}"), 0..120), flush in any::<u8>(),
    ) {
        let mut record = Record::default();
        let ids = [ExecId::generate(), ExecId::generate(), ExecId::generate()];
        let mut lines = 0;
        for (at, (kind, which, text)) in events.into_iter().enumerate() {
            let id = ids[usize::from(which)];
            let evil = format!("\u{1b}]0;{text}\u{7}\u{202e}");
            let by = json!({ "exec": id, "service": evil, "process": { "pid": 1, "host_pid": 1, "exe": evil, "argv": [evil] } });
            let (kind, body) = match kind {
                0 => ("exec.start", json!({ "exec": id, "argv": [evil], "number": which })),
                1 => ("exec.end", json!({ "exec": id, "exit": { "reason": "exited", "code": which }, "duration_s": -1.0 })),
                2 => ("exec.files", json!({ "exec": id, "created": u64::MAX, "changed": 3, "number": which })),
                3 => ("egress.decided", json!({ "outcome": "deny", "host": evil, "by": by })),
                4 => ("egress.repeated", json!({ "of": evil, "count": u64::MAX, "like": at, "what": "deny" })),
                5 => ("egress.refused", json!({ "host": evil, "why": evil, "by": by })),
                6 => ("service.reached", json!({ "service": "web", "state": "ready", "reason": evil })),
                7 => ("file.write", json!({ "path": evil, "by": evil })),
                8 => ("egress.ended", json!({ "of": 0, "ending": "answered" })),
                _ => ("later.kind", json!({ "evil": evil })),
            };
            record.add(kind, &body);
            lines += 1;
            if at % 7 == usize::from(flush % 7) {
                let more = record.fold.flush();
                record.shown.extend(more);
            }
        }
        let rest = record.fold.flush();
        record.shown.extend(rest);
        let events: u64 = record.shown.iter().map(|line| line.folded.map_or(1, |folded| folded.events)).sum();
        prop_assert_eq!(events, lines);
        prop_assert!(record.shown.is_sorted_by_key(|line| line.seq));
        for line in &record.shown {
            prop_assert!(!line.what.chars().any(|c| c.is_control() || c == '\u{202e}'), "{:?}", line.what);
            prop_assert!(line.what.chars().count() < 600, "{:?}", line.what);
        }
    }
}
