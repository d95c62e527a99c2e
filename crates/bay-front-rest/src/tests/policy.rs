//! Policies and grants. A new policy applies immediately and is recorded. A policy that cannot be parsed denies
//! everything. Recorded decisions are explained, but not trusted.

use bay_policy::{CanonicalRequest, decide};
use bay_store::{GrantRow, PolicyNew, Scope};
use bay_types::policy::{Explained, Finding, Lesson, PolicyView, Recalled};
use serde::de::DeserializeOwned;

use super::*;

const DOCS: &str = r#"
[[rule]]
id = "docs"
outcome = "allow"
host = "docs.example.com"
path = "/guide/**"

[[rule]]
id = "api"
outcome = "ask"
host = "api.example.com"
method = "*"
"#;

impl Rig {
    async fn put_policy(&self, path: &str, text: &str) {
        let body = json!({ "name": "p.toml", "text": text });
        let (status, body) = self.json("PUT", path, body).await;
        assert_eq!(status, StatusCode::OK, "{body}");
    }

    async fn outcome(&self, request: &str) -> String {
        let (status, body) =
            self.json("POST", "/v1/bays/web/policy/check", json!({ "request": request })).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        serde_json::from_value::<Explained>(body).unwrap().outcome
    }

    async fn kinds(&self) -> Vec<String> {
        let events = self.store.events_list(0, None).await.unwrap();
        events.into_iter().map(|event| event.kind).collect()
    }
}

fn read<T: DeserializeOwned>(body: Value) -> T {
    let text = body.to_string();
    serde_json::from_value(body).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test]
async fn a_bay_without_a_policy_is_denied_everything_until_one_is_set() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Stopped).await;
    let (_, shown) = rig.json("GET", "/v1/bays/web/policy", Value::Null).await;
    let shown: PolicyView = read(shown);
    assert_eq!(shown.layers.len(), 1);
    assert_eq!(
        (shown.layers[0].name.as_str(), shown.layers[0].otherwise.as_str()),
        ("preset:closed", "deny")
    );
    assert_eq!(rig.outcome("GET https://docs.example.com/guide/a").await, "deny");

    let first = testing::effective(&rig.daemon, &handle).await;
    assert!(
        Arc::ptr_eq(&first, &testing::effective(&rig.daemon, &handle).await),
        "it is kept until a change"
    );
    let mut changes = testing::policy_changes(&rig.daemon, handle.id);
    let before = *changes.borrow_and_update();
    rig.put_policy("/v1/bays/web/policy", DOCS).await;
    assert!(*changes.borrow_and_update() > before);
    assert!(!Arc::ptr_eq(&first, &testing::effective(&rig.daemon, &handle).await));
    for (request, wanted) in [
        ("GET https://docs.example.com/guide/a", "allow"),
        ("POST https://docs.example.com/guide/a", "deny"),
        ("POST https://api.example.com/v1", "ask"),
        ("GET https://docs.example.com/guide/../x", "refused"),
        ("nonsense", "refused"),
    ] {
        assert_eq!(rig.outcome(request).await, wanted, "{request}");
    }
    let (_, shown) = rig.json("GET", "/v1/bays/web/policy", Value::Null).await;
    let shown: PolicyView = read(shown);
    let docs = shown.layers[0].rules.iter().find(|rule| rule.id == "docs").unwrap();
    assert_eq!((docs.origin.file.as_str(), docs.origin.line, docs.effect.as_str()), ("p.toml", 2, "active"));
    assert_eq!(docs.what, "GET|HEAD https://docs.example.com/guide/**");

    let events = rig.store.events_list(0, Some(handle.id)).await.unwrap();
    let set = events.iter().find(|event| event.kind == "policy.set").unwrap();
    assert_eq!(set.body["rules"], json!({ "allow": 1, "ask": 1, "deny": 0 }));
    assert_eq!(set.body["sha256"].as_str().unwrap().len(), 64);
    assert_eq!(Some(&set.body["sha256"]), serde_json::to_value(&shown.layers[0].sha256).ok().as_ref());

    let (status, _) = rig.json("DELETE", "/v1/bays/web/policy", Value::Null).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(rig.outcome("GET https://docs.example.com/guide/a").await, "deny");
}

#[tokio::test]
async fn a_policy_with_a_mistake_is_refused_with_file_and_line_and_changes_nothing() {
    let rig = rig().await;
    rig.bay("web", State::Stopped).await;
    rig.put_policy("/v1/bays/web/policy", DOCS).await;
    for (text, line) in [
        ("[[rule]]\noutcome = \"allow\"\nhots = \"x\"\n", "p.toml:3:"),
        ("[[rule]]\nid = 1\n= 2", "p.toml:3:"),
    ] {
        let body = json!({ "name": "p.toml", "text": text });
        let (status, body) = rig.json("PUT", "/v1/bays/web/policy", body).await;
        assert_eq!((status.as_u16(), body["code"].as_str()), (422, Some("policy-invalid")), "{body}");
        assert!(body["message"].as_str().unwrap().contains(line), "{body}");
    }
    for body in [
        json!({ "name": "codign" }),
        json!({ "name": "" }),
        json!({ "name": "a\nb", "text": "" }),
        json!({ "name": "coding", "places": { "registries": [{ "url": "https://u:p@h.example.com/" }] } }),
        json!({ "name": "coding", "places": { "registries": [{ "url": "ftp://h.example.com/" }] } }),
        json!({ "name": "coding", "why": 1 }),
    ] {
        let got = rig.error("PUT", "/v1/bays/web/policy", body.clone()).await;
        assert_eq!(got, (400, "invalid-input".to_owned()), "{body}");
    }
    assert_eq!(rig.outcome("GET https://docs.example.com/guide/a").await, "allow");
    assert_eq!(rig.kinds().await.iter().filter(|kind| *kind == "policy.set").count(), 1);
}

#[tokio::test]
async fn layers_of_host_and_project_narrow_all_of_their_bays() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Stopped).await;
    rig.put_policy("/v1/bays/web/policy", DOCS).await;
    assert_eq!(
        rig.error("PUT", "/v1/bays/web/policy/project", json!({ "name": "open" })).await,
        (400, "invalid-input".to_owned()),
        "it was made from no repository"
    );
    let mut changes = testing::policy_changes(&rig.daemon, handle.id);
    changes.mark_unchanged();
    rig.put_policy("/v1/policy/host", "extends = \"open\"\n[[rule]]\noutcome = \"deny\"\nhost = \"docs.example.com\"\npath = \"/guide/secret\"\n").await;
    assert!(changes.has_changed().unwrap());
    assert_eq!(rig.outcome("GET https://docs.example.com/guide/secret").await, "deny");
    assert_eq!(rig.outcome("GET https://docs.example.com/guide/a").await, "allow");
    let (_, host) = rig.json("GET", "/v1/policy/host", Value::Null).await;
    assert_eq!((&host["scope"], &host["set"]["name"]), (&json!("host"), &json!("p.toml")));
    let (_, host) = rig.json("DELETE", "/v1/policy/host", Value::Null).await;
    assert_eq!(host["set"], Value::Null);
    assert_eq!(rig.outcome("GET https://docs.example.com/guide/secret").await, "allow");
}

#[tokio::test]
async fn a_layer_that_no_longer_parses_denies_everything_with_the_reason() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Stopped).await;
    rig.put_policy("/v1/bays/web/policy", DOCS).await;
    let (status, _) = rig
        .json(
            "POST",
            "/v1/bays/web/grants",
            json!({ "request": "GET https://granted.example.com/", "for_s": 60 }),
        )
        .await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(rig.outcome("GET https://granted.example.com/").await, "allow");
    // A later release may no longer be able to parse it.
    for (text, places) in [("[[rule]]\noutcome = \"maybe\"\n", "{}"), (DOCS, "{ broken")] {
        let new = PolicyNew { name: "p.toml".to_owned(), text: text.to_owned(), places: places.to_owned() };
        let set = Draft::of(OtherEvent::new("policy.set", json!({})));
        rig.store.policy_set(&Scope::Bay(handle.id), &new, &set).await.unwrap();
        testing::forget_policy(&rig.daemon, handle.id);
        for request in ["GET https://docs.example.com/guide/a", "GET https://granted.example.com/"] {
            assert_eq!(rig.outcome(request).await, "deny", "{request}");
        }
        let (_, shown) = rig.json("GET", "/v1/bays/web/policy", Value::Null).await;
        let shown: PolicyView = read(shown);
        assert_eq!(shown.layers[0].problems.len(), 1, "{shown:?}");
        assert!(!shown.ingress);
        assert!(!shown.grants[0].active);
    }
    rig.put_policy("/v1/bays/web/policy", DOCS).await;
    assert_eq!(rig.outcome("GET https://granted.example.com/").await, "allow");
}

#[tokio::test]
async fn a_grant_allows_one_request_for_a_while_and_can_be_revoked() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Stopped).await;
    let add = json!({ "request": "PUT https://files.example.com/a?x=1", "for_s": 600, "id": "once" });
    let (status, made) = rig.json("POST", "/v1/bays/web/grants", add).await;
    assert_eq!(status, StatusCode::OK, "{made}");
    assert_eq!(made["what"], "PUT https://files.example.com/a with the query x=1 and no other");
    assert_eq!(rig.outcome("PUT https://files.example.com/a?x=1").await, "allow");
    assert_eq!(rig.outcome("PUT https://files.example.com/a?x=2").await, "deny");
    assert_eq!(rig.outcome("GET https://files.example.com/a?x=1").await, "deny");
    for odd in [
        json!({ "request": "PUT https://files.example.com/a", "for_s": 0 }),
        json!({ "request": "PUT https://files.example.com/a", "for_s": u64::MAX }),
        json!({ "request": "files", "for_s": 60 }),
        json!({ "request": "x".repeat(20_000), "for_s": 60 }),
    ] {
        assert_eq!(rig.error("POST", "/v1/bays/web/grants", odd).await.1, "invalid-input");
    }
    let odd = json!({ "request": "PUT https://files.example.com/a", "for_s": 60, "id": "a/b" });
    assert_eq!(rig.error("POST", "/v1/bays/web/grants", odd).await.1, "invalid-name");
    let (_, all) = rig.json("GET", "/v1/bays/web/grants", Value::Null).await;
    assert_eq!((all.as_array().unwrap().len(), &all[0]["active"]), (1, &json!(true)));
    // An expired grant stays on the list until another is added, and allows nothing.
    let now = jiff::Timestamp::now();
    let over = GrantRow {
        id: "over".to_owned(),
        text: format!("[[grant]]\nid = \"over\"\nhost = \"old.example.com\"\nexpires = {now}\n"),
        expires: now,
        created_at: now,
    };
    let draft = Draft::of(OtherEvent::new("grant.add", json!({})));
    rig.store.grant_add(handle.id, &over, 10, &draft).await.unwrap();
    testing::forget_policy(&rig.daemon, handle.id);
    assert_eq!(rig.outcome("GET https://old.example.com/").await, "deny");

    let (status, _) = rig.json("DELETE", "/v1/bays/web/grants/once", Value::Null).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(rig.outcome("PUT https://files.example.com/a?x=1").await, "deny");
    let again = rig.error("DELETE", "/v1/bays/web/grants/once", Value::Null).await;
    assert_eq!(again, (404, "grant-not-found".to_owned()));
    assert!(rig.kinds().await.ends_with(&[
        "grant.add".to_owned(),
        "grant.add".to_owned(),
        "grant.rm".to_owned()
    ]));
}

#[tokio::test]
async fn grants_end_with_the_runtime_that_they_were_for() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Stopped).await;
    let add = json!({ "request": "GET https://files.example.com/a", "for_s": 600 });
    rig.json("POST", "/v1/bays/web/grants", add).await;
    assert_eq!(rig.outcome("GET https://files.example.com/a").await, "allow");
    let mut changes = testing::policy_changes(&rig.daemon, handle.id);
    changes.mark_unchanged();
    testing::drop_grants(&rig.daemon, &handle, "the bay was stopped").await.unwrap();
    assert!(changes.has_changed().unwrap());
    assert_eq!(rig.outcome("GET https://files.example.com/a").await, "deny");
    changes.mark_unchanged();
    testing::drop_grants(&rig.daemon, &handle, "the bay was stopped").await.unwrap();
    assert!(!changes.has_changed().unwrap(), "there was nothing to drop");
}

#[tokio::test]
async fn a_policy_is_checked_and_compared_without_being_set() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Stopped).await;
    rig.put_policy("/v1/bays/web/policy", DOCS).await;
    let decided = json!({ "request": "GET https://new.example.com/", "outcome": "deny" });
    let seen = Draft::of(OtherEvent::new("egress.decided", decided));
    rig.store.event_append(Some(handle.id), &seen).await.unwrap();
    let next = format!("{DOCS}\n[[rule]]\nid = \"all\"\noutcome = \"allow\"\nhost = \"*\"\n");
    let body = json!({ "name": "p.toml", "text": next });
    let (status, change) = rig.json("POST", "/v1/bays/web/policy/diff", body).await;
    assert_eq!(status, StatusCode::OK, "{change}");
    assert_eq!(change["added"][0]["id"], "all");
    assert_eq!(change["removed"], json!([]));
    assert_eq!(
        change["decisions"],
        json!([{ "request": "GET https://new.example.com/", "before": "deny", "after": "allow" }])
    );
    assert_eq!(rig.outcome("GET https://new.example.com/").await, "deny", "nothing was set");
    rig.put_policy("/v1/bays/web/policy", &next).await;
    let (_, found) = rig.json("GET", "/v1/bays/web/policy/lint", Value::Null).await;
    let found: Vec<Finding> = read(found);
    assert!(found.iter().any(|finding| finding.code == "too-wide"), "{found:?}");
    assert!(found.iter().any(|finding| finding.code == "redundant" || finding.origin.line > 0), "{found:?}");
}

#[tokio::test]
async fn a_recorded_decision_is_explained_without_being_trusted() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Stopped).await;
    rig.bay("other", State::Stopped).await;
    // The explanation in the form in which the decider records it.
    let effective = testing::effective(&rig.daemon, &handle).await;
    let request = CanonicalRequest::from_line("GET https://docs.example.com/guide/a").unwrap();
    let now = jiff::Timestamp::now();
    let decision = decide(&effective, &request, now);
    let explanation = bay_policy::explain(&effective, &request, &decision, now);
    let append = async |kind, body| {
        rig.store.event_append(Some(handle.id), &Draft::of(OtherEvent::new(kind, body))).await.unwrap()
    };
    let body = json!({ "request": request.to_string(), "outcome": "deny", "explanation": explanation, "by": { "exec": "exec_0190000000007000800000000000abcd" } });
    let id = append("egress.decided", body).await;
    let explain = async |bay: &str, id: u64| {
        rig.json("GET", &format!("/v1/bays/{bay}/policy/explain/{id}"), Value::Null).await
    };
    let (_, told) = explain("web", id).await;
    let told: Recalled = read(told);
    let then = told.then.unwrap();
    assert_eq!(
        (told.outcome.as_str(), told.request.as_str()),
        ("deny", "GET https://docs.example.com/guide/a")
    );
    assert_eq!(then, read(serde_json::to_value(&explanation).unwrap()), "nothing of it is lost");
    assert!(
        !then.would_allow.is_empty() && told.exec.as_deref() == Some("exec_0190000000007000800000000000abcd")
    );
    assert_eq!(told.now.unwrap().outcome, "deny");
    rig.put_policy("/v1/bays/web/policy", DOCS).await;
    let (_, told) = explain("web", id).await;
    assert_eq!((&told["outcome"], &told["now"]["outcome"]), (&json!("deny"), &json!("allow")));

    let hostile = json!({ "what": "nameless\u{1b}[2J", "host": "\u{1b}]0;x\u{7}", "port": 99, "why": "a\nb\u{9b}",
        "explanation": { "reason": "\u{1b}[31m", "would_allow": [{ "step": "add-rule", "layer": "bay", "file": "f", "toml": "a\n\u{1b}b" }] } });
    let id = append("egress.refused", hostile).await;
    let (status, told) = explain("web", id).await;
    assert_eq!(status, StatusCode::OK, "{told}");
    let text = read::<Recalled>(told);
    assert!(!format!("{text:?}").contains("\\u{1b}"), "{text:?}");
    for odd in [
        json!({ "request": 7, "outcome": [] }),
        json!([]),
        json!({ "request": "x".repeat(15_000) }),
        json!({ "explanation": { "layers": 3 } }),
    ] {
        let id = append("egress.decided", odd.clone()).await;
        let (status, told) = explain("web", id).await;
        assert_eq!((status, told["now"].is_null()), (StatusCode::OK, true), "{odd}: {told}");
    }
    for (bay, number) in [("web", 1), ("web", 999_999), ("web", 0), ("other", id)] {
        let path = format!("/v1/bays/{bay}/policy/explain/{number}");
        assert_eq!(rig.error("GET", &path, Value::Null).await, (404, "event-not-found".to_owned()), "{path}");
    }
    assert_eq!(rig.error("GET", "/v1/bays/web/policy/explain/x", Value::Null).await.0, 400);
}

#[tokio::test]
async fn the_narrowest_rules_are_learned_from_refused_requests() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Stopped).await;
    let append = async |kind, body| {
        rig.store.event_append(Some(handle.id), &Draft::of(OtherEvent::new(kind, body))).await.unwrap();
    };
    for request in ["GET https://a.example.com/x", "HEAD https://a.example.com/x", "GET https://10.0.0.1/"] {
        append("egress.decided", json!({ "request": request, "outcome": "deny" })).await;
    }
    append("egress.decided", json!({ "request": "GET https://fine.example.com/", "outcome": "allow" })).await;
    append("egress.decided", json!({ "request": "\u{1b}[2J", "outcome": "deny" })).await;
    append("egress.refused", json!({ "what": "connection", "host": "db.example.com", "port": 5432 })).await;
    append("egress.refused", json!({ "what": "nameless", "host": "192.0.2.9", "port": 443 })).await;
    let (status, told) = rig.json("GET", "/v1/bays/web/policy/learn", Value::Null).await;
    assert_eq!(status, StatusCode::OK, "{told}");
    let told: Lesson = read(told);
    assert_eq!((told.rules, told.refusals, told.left_out), (2, 6, 0), "{told:?}");
    assert_eq!(told.not_learned.len(), 3, "{told:?}");
    assert!(!format!("{told:?}").contains("\\u{1b}"), "{told:?}");
    rig.put_policy("/v1/bays/web/policy", &told.toml).await;
    for (request, wanted) in [
        ("GET https://a.example.com/x", "allow"),
        ("GET https://a.example.com/y", "deny"),
        ("tcp://db.example.com:5432", "allow"),
        ("GET https://fine.example.com/", "deny"),
    ] {
        assert_eq!(rig.outcome(request).await, wanted, "{request}");
    }
}
