//! Approvals: answered once, used as often as permitted, and never lost.

use bay_types::approval::{Answer, Approval, ApprovalState, Asked, AskedExec, Reach};
use bay_types::{ApprovalId, BayId};
use jiff::{SignedDuration, Timestamp};

use super::*;

fn row(bay: BayId) -> ApprovalRow {
    let asked_at = column::now();
    ApprovalRow {
        key: "exec_1  GET https://a.test/".to_owned(),
        card: Approval {
            id: ApprovalId::generate(),
            bay,
            bay_name: "web".to_owned(),
            state: ApprovalState::Open,
            asked_at,
            expires: asked_at + SignedDuration::from_mins(15),
            asked: Asked::Exec(AskedExec {
                argv: vec!["true".to_owned()],
                cwd: None,
                user: None,
                service: None,
                env: Vec::new(),
                settings: Vec::new(),
                by: "uid 0".to_owned(),
            }),
            by: None,
            exec_number: None,
            exec_argv: Vec::new(),
            tool_call: None,
            rule: None,
            secrets: Vec::new(),
            warnings: Vec::new(),
            saved_as: None,
            digest: "0".repeat(64),
            differs: None,
            checkpoint: None,
            held: 0,
            answer: None,
        },
        uses_left: Some(0),
    }
}

fn answer(by: &str) -> Answer {
    Answer {
        by: by.to_owned(),
        at: Timestamp::UNIX_EPOCH,
        after_ms: 5,
        reach: Some(Reach::Once),
        bound: true,
        any_body: false,
        until: None,
        why: None,
    }
}

fn event(kind: &'static str) -> Draft {
    Draft::new(kind, json!({}))
}

#[tokio::test]
async fn the_first_answer_counts_and_an_allow_has_limited_uses() {
    let (dir, store) = store().await;
    let bay = bay(&store, "web").await.id;
    let new = row(bay);
    let id = new.card.id;
    store.approval_add(&new, &event("approval.asked")).await.unwrap();
    assert_eq!(store.approval_list(true).await.unwrap(), std::slice::from_ref(&new));
    assert_eq!(store.approval_use(id, bay, &event("act")).await.unwrap(), None, "nobody has allowed it");
    let allowed = answer("uid 0");
    let first = store
        .approval_answer(id, bay, ApprovalState::Allowed, &allowed, Some(2), None, &event("approval.allowed"))
        .await
        .unwrap();
    assert!(matches!(first, Answered::Yes(_)), "{first:?}");
    let second = store
        .approval_answer(
            id,
            bay,
            ApprovalState::Denied,
            &answer("uid 1"),
            None,
            None,
            &event("approval.denied"),
        )
        .await
        .unwrap();
    assert_eq!(second, Answered::TooLate, "somebody was faster, and nothing is recorded");
    drop(store);
    let store = Store::open(&dir.path().join("bay.db")).await.unwrap();
    let kept = store.approval_get(id).await.unwrap().unwrap();
    assert_eq!(
        (kept.card.state, kept.card.answer, kept.uses_left),
        (ApprovalState::Allowed, Some(allowed), Some(2))
    );
    let other = BayId::generate();
    assert_eq!(store.approval_use(id, other, &event("act")).await.unwrap(), None, "it is not that bay's");
    assert!(matches!(store.approval_use(id, bay, &event("act")).await.unwrap(), Some((_, false))));
    assert!(matches!(store.approval_use(id, bay, &event("act")).await.unwrap(), Some((_, true))));
    assert_eq!(store.approval_use(id, bay, &event("act")).await.unwrap(), None, "it is used up");
    assert!(store.approval_list(true).await.unwrap().is_empty());
    let kinds: Vec<String> =
        store.events_list(0, Some(bay)).await.unwrap().into_iter().map(|event| event.kind).collect();
    assert_eq!(kinds[1..], ["approval.asked", "approval.allowed", "act", "act"]);
    assert!(matches!(store.events_verify().await.unwrap(), Verdict::Intact { .. }));
}

#[tokio::test]
async fn approvals_close_with_their_bay_and_stay_readable() {
    let (_dir, store) = store().await;
    let bay = bay(&store, "web").await.id;
    assert!(store.approvals_drop(bay, "nothing there").await.unwrap().is_empty());
    let (open, allowed) = (row(bay), row(bay));
    for new in [&open, &allowed] {
        store.approval_add(new, &event("approval.asked")).await.unwrap();
    }
    store
        .approval_answer(
            allowed.card.id,
            bay,
            ApprovalState::Allowed,
            &answer("uid 0"),
            None,
            None,
            &event("x"),
        )
        .await
        .unwrap();
    assert!(matches!(
        store.approval_use(allowed.card.id, bay, &event("act")).await.unwrap(),
        Some((_, false))
    ));
    let mut dropped = store.approvals_drop(bay, "the bay was stopped").await.unwrap();
    dropped.sort();
    let mut both = vec![open.card.id, allowed.card.id];
    both.sort();
    assert_eq!(dropped, both);
    assert_eq!(store.approval_use(allowed.card.id, bay, &event("act")).await.unwrap(), None);
    let again = row(bay);
    store.approval_add(&again, &event("approval.asked")).await.unwrap();
    store.bay_delete(bay, &event("bay.deleted")).await.unwrap();
    for id in [open.card.id, again.card.id] {
        assert_eq!(store.approval_get(id).await.unwrap().unwrap().card.state, ApprovalState::Dropped);
    }
}

#[tokio::test]
async fn many_approvals_of_one_bay_displace_none_of_another() {
    let (_dir, store) = store().await;
    let (quiet, loud) = (bay(&store, "quiet").await.id, bay(&store, "loud").await.id);
    let first = row(quiet);
    store.approval_add(&first, &event("approval.asked")).await.unwrap();
    let id = first.card.id;
    store
        .approval_answer(id, quiet, ApprovalState::Allowed, &answer("uid 0"), Some(1), None, &event("a"))
        .await
        .unwrap();
    store.approval_use(id, quiet, &event("used")).await.unwrap();
    for _ in 0..250 {
        let one = row(loud);
        store.approval_add(&one, &event("approval.asked")).await.unwrap();
        let id = one.card.id;
        store
            .approval_answer(id, loud, ApprovalState::Allowed, &answer("uid 0"), Some(1), None, &event("a"))
            .await
            .unwrap();
        store.approval_use(id, loud, &event("used")).await.unwrap();
    }
    let kept = store.approval_list(false).await.unwrap();
    assert!(kept.iter().any(|row| row.card.bay == quiet));
    let of_loud = kept.iter().filter(|row| row.card.bay == loud).count();
    assert!((200..=201).contains(&of_loud), "{of_loud}");
}
