//! Policies and grants: each change is recorded, and none outlives its bay or runtime.

use bay_types::bay::Lineage;
use bay_types::environment::Environment;
use jiff::{SignedDuration, Timestamp};

use super::*;

fn policy(text: &str) -> PolicyNew {
    PolicyNew { name: "p.toml".to_owned(), text: text.to_owned(), places: "{}".to_owned() }
}

fn set() -> Draft {
    Draft::new("policy.set", json!({ "by": "a test" }))
}

fn grant(id: &str, minutes: i64) -> GrantRow {
    let created_at = now();
    GrantRow {
        id: id.to_owned(),
        text: format!("[[grant]]\nid = \"{id}\"\n"),
        expires: created_at + SignedDuration::from_mins(minutes),
        created_at,
    }
}

fn now() -> Timestamp {
    column::now()
}

async fn kinds(store: &Store) -> Vec<String> {
    store.events_list(0, None).await.unwrap().into_iter().map(|event| event.kind).collect()
}

#[tokio::test]
async fn a_policy_is_set_replaced_and_removed_with_its_event() {
    let (dir, store) = store().await;
    let bay = bay(&store, "web").await;
    let scopes = [Scope::Host, Scope::Project("https://example.org/x.git".to_owned()), Scope::Bay(bay.id)];
    for scope in &scopes {
        assert_eq!(store.policy_get(scope).await.unwrap(), None);
        store.policy_set(scope, &policy("a"), &set()).await.unwrap();
        store.policy_set(scope, &policy("b"), &set()).await.unwrap();
    }
    let texts = store.policy_texts(bay.id, Some("https://example.org/x.git")).await.unwrap();
    for row in [&texts.host, &texts.project, &texts.bay] {
        assert_eq!(row.as_ref().unwrap().text, "b");
    }
    let other = store.policy_texts(bay.id, Some("https://example.org/y.git")).await.unwrap();
    assert!(other.project.is_none() && other.host.is_some());
    drop(store);
    let store = Store::open(&dir.path().join("bay.db")).await.unwrap();
    for scope in &scopes {
        assert_eq!(store.policy_get(scope).await.unwrap().unwrap().text, "b");
        assert!(store.policy_unset(scope, &set()).await.unwrap());
        assert!(!store.policy_unset(scope, &set()).await.unwrap(), "nothing was there, nothing is recorded");
    }
    assert_eq!(kinds(&store).await.iter().filter(|kind| *kind == "policy.set").count(), 9);
    let events = store.events_list(0, Some(bay.id)).await.unwrap();
    assert_eq!(events.len(), 4, "those of the host and the project belong to no bay");
    assert!(matches!(store.events_verify().await.unwrap(), Verdict::Intact { .. }));
}

#[tokio::test]
async fn grants_expire_are_revoked_and_dropped() {
    let (_dir, store) = store().await;
    let bay = bay(&store, "web").await;
    let add = Draft::new("grant.add", json!({}));
    let rm = Draft::new("grant.rm", json!({}));
    for one in [grant("a", 10), grant("b", -1), grant("c", 10)] {
        store.grant_add(bay.id, &one, 10, &add).await.unwrap().unwrap();
    }
    let held = async || -> Vec<String> {
        let texts = store.policy_texts(bay.id, None).await.unwrap();
        texts.grants.into_iter().map(|grant| grant.id).collect()
    };
    assert_eq!(held().await, ["a", "c"], "what has ended goes when another one comes");
    assert_eq!(store.grant_add(bay.id, &grant("d", 10), 2, &add).await.unwrap(), None, "there are enough");
    assert_eq!(held().await, ["a", "c"]);
    store.grant_add(bay.id, &grant("c", 20), 2, &add).await.unwrap().unwrap();
    assert_eq!(store.grant_rm(bay.id, "x", &rm).await.unwrap(), None);
    assert_eq!(store.grant_rm(bay.id, "a", &rm).await.unwrap().unwrap().id, "a");
    assert!(store.grants_drop(bay.id, "the bay was stopped").await.unwrap());
    assert!(!store.grants_drop(bay.id, "the bay was stopped").await.unwrap());
    assert!(held().await.is_empty());
    let last = store.events_list(0, None).await.unwrap().pop().unwrap();
    assert_eq!((last.kind.as_str(), &last.body["ids"]), ("grant.rm", &json!(["c"])));
}

#[tokio::test]
async fn grants_are_ordered_by_time_and_not_by_its_text() {
    let (_dir, store) = store().await;
    let bay = bay(&store, "web").await;
    let add = Draft::new("grant.add", json!({}));
    // Sorted as text, they would have another order.
    for (id, at) in [
        ("a", "2026-11-16T12:00:00.1Z"),
        ("b", "2026-11-16T12:00:00.100000001Z"),
        ("c", "2026-11-16T12:00:00.12Z"),
        ("d", "2026-11-16T12:00:01Z"),
        ("e", "2026-11-16T12:00:01.5Z"),
    ] {
        let one = GrantRow { created_at: at.parse().unwrap(), ..grant(id, 10) };
        store.grant_add(bay.id, &one, 10, &add).await.unwrap().unwrap();
    }
    let texts = store.policy_texts(bay.id, None).await.unwrap();
    let ids: Vec<&str> = texts.grants.iter().map(|grant| grant.id.as_str()).collect();
    assert_eq!(ids, ["a", "b", "c", "d", "e"]);
}

#[tokio::test]
async fn a_fork_has_its_parents_policy_and_none_of_its_grants_and_nothing_outlives_its_bay() {
    let (_dir, store) = store().await;
    let given = BayNew { policy: Some(policy("given")), ..new(NameChoice::Derived(name("web"))) };
    let parent = store.bay_create(given, made).await.unwrap();
    store.grant_add(parent.id, &grant("a", 10), 10, &Draft::new("grant.add", json!({}))).await.unwrap();
    let lineage = Lineage {
        bay: parent.id,
        name: parent.name.clone(),
        checkpoint: CheckpointName::FIRST,
        index: 0,
        memory: false,
    };
    let fork = BayNew { forked_from: Some(lineage), ..new(NameChoice::Derived(name("child"))) };
    let child = store.bay_create(fork, made).await.unwrap();
    let texts = store.policy_texts(child.id, None).await.unwrap();
    assert_eq!(texts.bay.unwrap().text, "given");
    assert!(texts.grants.is_empty());
    // A bay that only has its environment has neither.
    let environment =
        Environment { bay: parent.id, name: parent.name.clone(), checkpoint: CheckpointName::FIRST };
    let with = BayNew { environment: Some(environment.clone()), ..new(NameChoice::Derived(name("next"))) };
    let next = store.bay_create(with, made).await.unwrap();
    assert!(store.policy_texts(next.id, None).await.unwrap().bay.is_none());
    let listed = store.bay_list().await.unwrap();
    let listed = listed.iter().find(|row| row.id == next.id).unwrap();
    assert_eq!(listed.environment, Some(environment));
    store.bay_delete(parent.id, &Draft::new("bay.deleted", json!({}))).await.unwrap();
    let gone = store.policy_texts(parent.id, None).await.unwrap();
    assert_eq!(gone, PolicyTexts::default());
    assert!(store.policy_texts(child.id, None).await.unwrap().bay.is_some());
    let refused = store.policy_set(&Scope::Bay(parent.id), &policy("late"), &set()).await;
    assert!(matches!(refused, Err(StoreError::BayUnknown(_))), "{refused:?}");
}
