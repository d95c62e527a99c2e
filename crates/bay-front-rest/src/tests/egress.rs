//! The entries of a bay's traffic, made from events as a gateway writes them.

use futures_util::StreamExt;

use super::*;

impl Rig {
    async fn sent(&self, bay: &BayHandle, kind: &'static str, body: Value) -> u64 {
        self.store.event_append(Some(bay.id), &Draft::of(OtherEvent::new(kind, body))).await.unwrap()
    }

    async fn entries(&self, query: &str) -> Vec<Value> {
        let response = self.send("GET", &format!("/v1/bays/{query}"), Body::empty()).await;
        assert_eq!(response.status(), StatusCode::OK);
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let text = std::str::from_utf8(&bytes).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn allowed(request: &str) -> Value {
    json!({ "request": request, "host": "a.example", "port": 443, "outcome": "allow", "rule": { "id": "r", "origin": "p:1" } })
}

fn ended(of: u64) -> Value {
    json!({ "of": of, "ending": "answered", "status": 200, "sent": 0, "received": 5, "ms": 1 })
}

#[tokio::test]
async fn a_decision_and_its_end_are_one_entry_and_a_missing_end_is_marked() {
    let rig = rig().await;
    let bay = rig.bay("web", State::Stopped).await;
    let other = rig.bay("other", State::Stopped).await;
    rig.sent(&other, "egress.decided", allowed("GET https://secret.example/")).await;
    let one = rig.sent(&bay, "egress.decided", allowed("GET https://a.example/1")).await;
    let two = rig.sent(&bay, "egress.decided", allowed("GET https://a.example/2")).await;
    let deny = json!({ "request": "POST https://a.example/", "outcome": "deny", "port": 443, "explanation": { "reason": "no rule\u{1b}[2J" } });
    let denied = rig.sent(&bay, "egress.decided", deny).await;
    rig.sent(&bay, "egress.looked-up", json!({ "name": "a.example", "type": "A", "answer": "answered" }))
        .await;
    rig.sent(&bay, "egress.ended", ended(one)).await;
    let repeated =
        json!({ "what": "deny", "of": "a.example:443", "like": denied, "count": 980, "within_s": 10 });
    rig.sent(&bay, "egress.repeated", repeated).await;

    let all = rig.entries("web/egress/entries").await;
    let told: Vec<(&str, u64)> =
        all.iter().filter_map(|entry| Some((entry["outcome"].as_str()?, entry["id"].as_u64()?))).collect();
    // So recent a decision may still be under way, although this bay has no gateway.
    assert_eq!(
        told,
        [("denied", denied), ("ended", one), ("repeated", denied), ("under-way", two)],
        "{all:#?}"
    );
    assert_eq!(all[0]["reason"], "no rule\u{fffd}[2J");
    assert_eq!((&all[1]["status"], &all[1]["request"]), (&json!(200), &json!("GET https://a.example/1")));
    assert_eq!((&all[2]["count"], &all[2]["within_s"]), (&json!(980), &json!(10)));
    assert_eq!(all[4], json!({ "end": "up-to-date", "older": false }));

    let denied = rig.entries("web/egress/entries?denied=true").await;
    assert_eq!(denied.len(), 3, "{denied:#?}");
    let names = rig.entries("web/egress/entries?lookups=true").await;
    assert!(names.iter().any(|entry| entry["outcome"] == "looked-up"), "{names:#?}");
    // Its beginning is found although it lies outside the part that is read.
    let last = rig.entries(&format!("web/egress/entries?since={two}")).await;
    assert!(last.iter().any(|entry| entry["request"] == "GET https://a.example/1"), "{last:#?}");
    let last = rig.entries("web/egress/entries?limit=1").await;
    assert_eq!(
        (&last[0]["outcome"], &last.last().unwrap()["older"]),
        (&json!("repeated"), &json!(true)),
        "{last:#?}"
    );

    let timeline = rig.entries("web/timeline").await;
    let kinds: Vec<&str> = timeline.iter().filter_map(|line| line["kind"].as_str()).collect();
    assert_eq!(kinds, ["bay.create", "egress.decided", "egress.ended", "egress.repeated"], "{timeline:#?}");
    assert_eq!(timeline[2]["what"], "GET https://a.example/1 answered 200 · 5 B received · 1 ms");
}

#[tokio::test]
async fn a_follower_gets_every_later_entry() {
    let rig = rig().await;
    let bay = rig.bay("web", State::Running).await;
    let response = rig.send("GET", "/v1/bays/web/egress/entries?follow=true", Body::empty()).await;
    let mut body = response.into_body().into_data_stream();
    let one = rig.sent(&bay, "egress.decided", allowed("GET https://a.example/1")).await;
    rig.sent(&bay, "egress.ended", ended(one)).await;
    let entry = loop {
        let line = body.next().await.unwrap().unwrap();
        let entry: Value = serde_json::from_slice(&line).unwrap();
        if entry["outcome"] != "under-way" {
            break entry;
        }
    };
    assert_eq!((&entry["outcome"], &entry["id"]), (&json!("ended"), &json!(one)));
}

#[tokio::test]
async fn invalid_queries_are_refused_with_a_message() {
    let rig = rig().await;
    rig.bay("web", State::Stopped).await;
    for (path, status, code) in [
        ("/v1/bays/web/egress/entries?limit=0", 400, "invalid-input"),
        ("/v1/bays/web/egress/entries?odd=1", 400, "invalid-input"),
        ("/v1/bays/none/egress/entries", 404, "bay-not-found"),
    ] {
        assert_eq!(rig.error("GET", path, Value::Null).await, (status, code.to_owned()), "{path}");
    }
}

/// The output of the first release in this file, line by line.
fn printed(file: &str) -> Vec<Value> {
    let path = format!("{FIRST_RELEASE}/{file}");
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const FIRST_RELEASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/first-release");

/// A later release may reword texts, and shows also events of secrets. All other fields stay the same.
#[tokio::test]
async fn a_record_of_the_first_release_reads_the_same() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(format!("{FIRST_RELEASE}/bay.db"), dir.path().join("bay.db")).unwrap();
    let rig = rig_in(dir).await;
    let bays = rig.store.bay_list().await.unwrap();
    let web = bays.iter().find(|bay| bay.name.as_str() == "web").unwrap().id;

    let then = printed("timeline-web.json");
    let mut now = rig.entries(&format!("{web}/timeline")).await;
    assert_eq!(now.pop().unwrap()["end"], "bay-removed");
    let with_secrets = now.len();
    now.retain(|line| !line["kind"].as_str().unwrap().starts_with("secret."));
    assert_eq!((now.len(), with_secrets), (then.len(), then.len() + 1));
    for (mut now, mut then) in now.into_iter().zip(then) {
        let words = now["what"].take();
        assert!(!words.as_str().unwrap().starts_with(then["kind"].as_str().unwrap()), "{words}");
        then["what"].take();
        assert_eq!(now, then);
    }

    let then = printed("egress-web.json");
    let mut now = rig.entries(&format!("{web}/egress/entries")).await;
    assert_eq!(now.pop().unwrap()["end"], "bay-removed");
    assert_eq!(now, then);
}
