//! Tests of questions and allows that a new daemon takes up from an earlier one.

use bay_store::Draft;
use bay_types::approval::AskedExec;

use serde_json::json;

use super::*;
use bay_types::event::OtherEvent;

fn row(bay: BayId, asked_at: Timestamp, minutes: i64) -> ApprovalRow {
    let card = Approval {
        id: ApprovalId::generate(),
        bay,
        bay_name: "b".to_owned(),
        state: ApprovalState::Open,
        asked_at,
        expires: asked_at + SignedDuration::from_mins(minutes),
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
        digest: String::new(),
        differs: None,
        checkpoint: None,
        held: 0,
        answer: None,
    };
    ApprovalRow { key: card.id.to_string(), card, uses_left: None }
}

#[tokio::test]
async fn a_clock_that_was_ahead_makes_no_time_longer_and_one_that_was_behind_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("bay.db")).await.unwrap();
    let (bay, now) = (BayId::generate(), Timestamp::now());
    let day = SignedDuration::from_hours(24);
    // Asked a moment ago; by a clock that was a day ahead; by one that was a day behind.
    let rows = [row(bay, now, 15), row(bay, now + day, 15), row(bay, now - day, 15)];
    for row in &rows {
        store.approval_add(row, &Draft::of(OtherEvent::new("approval.asked", json!({})))).await.unwrap();
    }
    let config = ApprovalsConfig { timeout: Some(Duration::from_secs(15 * 60)), hold: None };
    let approvals = Approvals::new(config, store, Arc::default());
    approvals.restore().await.unwrap();
    let left = |row: &ApprovalRow| {
        let question = approvals.find(row.card.id).unwrap();
        assert!(question.is_open());
        question.deadline.saturating_duration_since(Instant::now())
    };
    assert!(left(&rows[0]) > Duration::from_secs(14 * 60));
    assert!(left(&rows[1]) <= Duration::from_secs(15 * 60), "a day ahead is not a day longer");
    assert_eq!(left(&rows[2]), Duration::ZERO, "what is over ends as time's answer, with its event");
}

#[tokio::test]
async fn an_allow_that_an_earlier_release_left_unbound_covers_only_its_digest() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("bay.db")).await.unwrap();
    let (bay, now) = (BayId::generate(), Timestamp::now());
    let mut row = row(bay, now, 15);
    row.card.digest = "a".repeat(64);
    store.approval_add(&row, &Draft::of(OtherEvent::new("approval.asked", json!({})))).await.unwrap();
    // As that release stored it: it has nothing about a body.
    let until = now + SignedDuration::from_mins(10);
    let answer = json!({ "by": "uid 0", "at": now, "after_ms": 1, "reach": "once", "until": until });
    let answer: Answer = serde_json::from_value(answer).unwrap();
    let (id, state) = (row.card.id, ApprovalState::Allowed);
    let event = Draft::of(OtherEvent::new("approval.allowed", json!({})));
    let _seq = store.approval_answer(id, bay, state, &answer, Some(1), None, &event).await.unwrap();
    let approvals = Approvals::new(ApprovalsConfig::default(), store, Arc::default());
    approvals.restore().await.unwrap();
    let question = approvals.find(id).unwrap();
    let key = Key(row.key.clone());
    assert!(question.covers(&key, &"a".repeat(64), Instant::now()));
    assert!(!question.covers(&key, &"b".repeat(64), Instant::now()));
}
