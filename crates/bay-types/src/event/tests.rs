//! The JSON of every event, pinned. Exported bundles have these shapes, and scripts that read `--json` rely on them.
//!
//! `event/shapes.json` has one full example of every kind. A test fails if a kind has no example, if an example is not
//! parsed and written back unchanged, or if it lacks a field.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;

const SHAPES: &str = include_str!("shapes.json");

pub(super) fn shapes() -> BTreeMap<String, Value> {
    serde_json::from_str(SHAPES).unwrap()
}

fn kinds() -> impl Iterator<Item = &'static KindInfo> {
    EventBody::AREAS.iter().flat_map(|(_, _, kinds)| kinds.iter())
}

#[test]
fn every_kind_has_one_example_and_every_example_a_kind() {
    let mut known: Vec<&str> = kinds().map(|kind| kind.kind).collect();
    known.sort_unstable();
    let shapes = shapes();
    let shown: Vec<&str> = shapes.keys().map(String::as_str).collect();
    assert_eq!(shown, known, "event/shapes.json (left) and the kinds of events (right) differ");
    assert!(known.windows(2).all(|pair| pair[0] != pair[1]), "a kind is defined twice: {known:?}");
}

#[test]
fn every_example_is_written_back_unchanged() {
    for (kind, body) in shapes() {
        let event = EventBody::read(&kind, &body);
        assert!(!matches!(event, EventBody::Other(_)), "{kind} is not known by its example");
        assert_eq!(event.kind(), kind);
        assert_eq!(event.body(), body, "{kind} is written in another shape");
    }
}

/// A field with an unexpected type is parsed as empty or `Odd`. So every field of an example has a value, and none is
/// `Odd`: the example is written back unchanged only if every field has its type.
#[test]
fn every_example_has_every_field_in_the_shape_that_is_written_today() {
    for kind in kinds() {
        let body = &shapes()[kind.kind];
        let keys: Vec<&str> = body.as_object().unwrap().keys().map(String::as_str).collect();
        let mut fields: Vec<&str> =
            kind.fields.iter().map(|field| field.name.trim_start_matches("r#")).collect();
        fields.sort_unstable();
        assert_eq!(keys, fields, "{}: its example (left) and its fields (right)", kind.kind);
        for (key, value) in body.as_object().unwrap() {
            let nothing = [json!(null), json!(false), json!(0), json!(""), json!([])];
            assert!(!nothing.contains(value), "{}: the example says nothing of {key}", kind.kind);
        }
        let event = format!("{:?}", EventBody::read(kind.kind, body));
        assert!(!event.contains("Odd("), "{}: a field of its example has an odd shape: {event}", kind.kind);
    }
}

#[test]
fn every_kind_and_field_is_documented() {
    for (area, about, kinds) in EventBody::AREAS {
        assert!(!about.is_empty(), "{area}");
        for kind in *kinds {
            assert!(!kind.about.is_empty() && kind.version > 0, "{}", kind.kind);
            for field in kind.fields {
                assert!(!field.about.is_empty(), "{}: {}", kind.kind, field.name);
            }
        }
    }
}

#[test]
fn unknown_events_are_kept_unchanged() {
    let later = json!({ "exec": 5, "version": 2 });
    for (kind, body) in [("task.start", json!({ "a": 1 })), ("exec.start", later), ("exec.end", json!([1]))] {
        let event = EventBody::read(kind, &body);
        assert_eq!(event, OtherEvent { kind: kind.to_owned(), body: body.clone() }.into());
        assert_eq!((event.kind(), event.body()), (kind, body));
    }
}

#[test]
fn an_event_of_an_earlier_shape_lacks_newer_fields() {
    let event = EventBody::read("exec.start", &json!({ "argv": ["ls"], "tty": "no", "number": 3 }));
    let EventBody::Exec(ExecEvent::Start(start)) = event else { panic!("{event:?}") };
    assert_eq!((start.argv, start.number, start.tty), (vec!["ls".to_owned()], Some(3), false));
    assert_eq!((start.exec.get(), start.by.as_str()), (None, ""));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((".{0,8}", inner), 0..6)
                .prop_map(|all| Value::Object(all.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Whatever a field contains, the event is parsed, and the other fields are unaffected.
    #[test]
    fn an_unexpected_value_affects_only_its_field(
        kind in prop::sample::select(kinds().collect::<Vec<_>>()), at in any::<prop::sample::Index>(), odd in any_json(),
    ) {
        let whole = &shapes()[kind.kind];
        let mut body = whole.clone();
        let changed = (!kind.fields.is_empty()).then(|| kind.fields[at.index(kind.fields.len())].name);
        let changed = changed.map(|name| name.trim_start_matches("r#"));
        if let Some(changed) = changed {
            body[changed] = odd;
        }
        let event = EventBody::read(kind.kind, &body);
        prop_assert!(!matches!(event, EventBody::Other(_)));
        let written = event.body();
        for (key, value) in whole.as_object().unwrap() {
            if Some(key.as_str()) != changed {
                prop_assert_eq!(&written[key], value, "{} beside {:?}", key, changed);
            }
        }
    }

    #[test]
    fn any_body_of_any_kind_can_be_parsed(kind in "[a-z.-]{0,12}", body in any_json()) {
        let event = EventBody::read(&kind, &body);
        prop_assert_eq!(event.kind(), kind);
    }
}
