//! Which events count as a bay's traffic, independent of unknown fields beside the known ones.

use bay_types::event::Event;
use serde_json::Value;

use super::*;

const KINDS: [(&str, &str); 9] = [
    ("egress.decided", r#"{"outcome":"allow","port":443}"#),
    // Unknown keys before, between and after the known ones; values that look like keys.
    (
        "egress.decided",
        r#"{"asked":{"outcome":"ask"},"outcome":"allow","pending":1,"port":443,"z":"\"outcome\":\"deny\""}"#,
    ),
    ("egress.decided", r#"{"explanation":{"outcome":"allow","port":1},"outcome":"deny","port":443}"#),
    ("egress.decided", r#"{"request":"\"outcome\":\"allow\",\"port\":1"}"#),
    ("egress.looked-up", r#"{"name":"a.test"}"#),
    ("egress.repeated", r#"{"a":1,"what":"answered"}"#),
    ("egress.repeated", r#"{"of":{"what":"answered"},"what":"deny"}"#),
    ("egress.ended", r#"{"ending":"answered","of":1,"secret":{"failure":"address"}}"#),
    ("egress.ended", r#"{"ending":"failed","failure":"address","of":2}"#),
];

#[tokio::test]
async fn events_are_distinguished_by_their_own_keys_only() {
    let (_dir, store) = store().await;
    let bay = bay(&store, "web").await;
    let mut first = 0;
    for (at, (kind, body)) in KINDS.into_iter().enumerate() {
        let body: Value = serde_json::from_str(body).unwrap();
        let seq = store.event_append(Some(bay.id), &Draft::new(kind, body)).await.unwrap();
        if at == 0 {
            first = seq;
        }
    }
    let numbers = |events: Vec<Event>| -> Vec<u64> {
        events.iter().filter(|event| event.seq >= first).map(|event| event.seq - first).collect()
    };
    let page = async |refused, look_ups| {
        let wanted = TrafficWanted { refused, look_ups };
        numbers(store.traffic_page(bay.id, 0, wanted, 100).await.unwrap())
    };
    assert_eq!(page(false, true).await, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(page(false, false).await, [0, 1, 2, 3, 6, 7, 8]);
    assert_eq!(page(true, false).await, [2, 3, 6, 8]);
    // The timeline has refusals and ends.
    assert_eq!(numbers(store.timeline_page(bay.id, 0, 100).await.unwrap()), [2, 3, 6, 7, 8]);
    let begin = store.traffic_begin(bay.id, 0, TrafficWanted::default(), 2).await.unwrap();
    assert_eq!(begin, Begin { after: first + 6, older: true });
}
