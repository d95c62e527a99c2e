use bay_types::event::Event;
use bay_types::traffic::EgressOutcome;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::entry::{Meaning, meaning, over};

fn event(seq: u64, kind: &str, body: Value) -> Event {
    let at = jiff::Timestamp::UNIX_EPOCH;
    Event { seq, at, bay: None, kind: kind.to_owned(), body, hash: String::new() }
}

#[test]
fn a_request_that_was_let_out_is_one_entry_with_its_end() {
    let rule = json!({ "id": "origin", "origin": "p.toml:1 (bay layer)" });
    let decided = event(
        7,
        "egress.decided",
        json!({ "request": "GET https://a.example/", "outcome": "allow", "rule": rule }),
    );
    let Meaning::Begun(begun) = meaning(&decided) else { panic!("it is not over") };
    let end = json!({ "of": 7, "ending": "answered", "status": 200, "sent": 1, "received": 2, "ms": 3 });
    let end = event(9, "egress.ended", end);
    assert!(matches!(meaning(&end), Meaning::Over(7)));
    let entry = over(Some(begun), 7, &end);
    assert_eq!((entry.seq, entry.id, entry.outcome), (9, 7, EgressOutcome::Ended));
    assert_eq!((entry.status, entry.sent, entry.received, entry.ms), (Some(200), Some(1), Some(2), Some(3)));
    assert_eq!(entry.rule.unwrap().id, "origin");
    let entry = over(None, 7, &end);
    assert_eq!((entry.id, entry.status, entry.request.as_str()), (7, Some(200), "(not on record)"));
}

fn any_text() -> impl Strategy<Value = Value> {
    prop_oneof![".{0,40}".prop_map(Value::from), any::<u64>().prop_map(Value::from), Just(Value::Null)]
}

proptest! {
    #[test]
    fn any_body_makes_an_entry_that_no_terminal_obeys(
        kind in prop::sample::select(vec!["decided", "refused", "ended", "looked-up", "repeated", "odd"]),
        texts in prop::collection::vec(any_text(), 12),
    ) {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = &texts[..] else { unreachable!() };
        let body = json!({
            "request": a, "host": b, "port": c, "outcome": d, "why": e, "name": f, "of": g, "what": h,
            "explanation": { "reason": i }, "rule": { "id": j, "origin": k },
            "by": { "service": l, "process": { "pid": 1, "host_pid": 1, "exe": "x\u{1b}", "argv": ["\u{202e}"] } },
        });
        let (Meaning::Whole(entry) | Meaning::Begun(entry)) = meaning(&event(1, &format!("egress.{kind}"), body)) else {
            return Ok(());
        };
        let text = serde_json::to_string(&entry).unwrap();
        prop_assert!(!text.contains("\\u001b") && !text.contains('\u{202e}'), "{}", text);
    }
}
