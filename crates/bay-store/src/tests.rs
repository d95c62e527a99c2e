use std::path::PathBuf;

use bay_types::bay::{BayCreate, Desired, Limits, Source, State};
use bay_types::blame::Blame;
use bay_types::checkpoint::CheckpointKind;
use bay_types::exec::{EndReason, ExecSpec, ExecView, Exit, LimitHit};
use bay_types::{BayId, BayName, CheckpointName, ErrorCode, ImageId};
use serde_json::json;
use sqlx::Connection;
use sqlx::sqlite::SqliteConnection;
use tempfile::TempDir;

use super::*;
use crate::store::options;

mod approval;
mod ledger;
mod policy;
mod traffic;
mod upgrade;

async fn store() -> (TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("bay.db")).await.unwrap();
    (dir, store)
}

fn spec() -> BayCreate {
    BayCreate {
        name: None,
        source: Source::Empty,
        image: "host".to_owned(),
        limits: Limits::default(),
        mounts: vec![],
        idle_stop_s: None,
        durability: bay_types::durability::Durability::Strict,
        author: None,
        user: None,
        reach: vec![],
        backend: None,
        policy: None,
        environment: None,
    }
}

fn new(name: NameChoice) -> BayNew {
    BayNew {
        name,
        spec: spec(),
        image_id: ImageId::generate(),
        origin: None,
        forked_from: None,
        environment: None,
        backend: "local".into(),
        policy: None,
        reason: "asked for".to_owned(),
    }
}

fn name(text: &str) -> BayName {
    text.parse().unwrap()
}

impl Draft {
    /// An event of any kind, with any body.
    fn new(kind: &str, body: serde_json::Value) -> Self {
        Self::of(bay_types::event::OtherEvent::new(kind, body))
    }
}

fn made(row: &BayRow) -> Draft {
    Draft::new("bay.create", json!({ "name": row.name }))
}

async fn bay(store: &Store, text: &str) -> BayRow {
    store.bay_create(new(NameChoice::Derived(name(text))), made).await.unwrap()
}

fn exec(argv: &[&str]) -> ExecSpec {
    ExecSpec { env: vec![("TOKEN".to_owned(), "hunter2".to_owned())], ..ExecSpec::new(argv.iter().copied()) }
}

fn started() -> Draft {
    Draft::new("exec.start", json!({}))
}

const OK: Exit = Exit { reason: EndReason::Exited, code: Some(0), signal: None };

/// Runs SQL on the database directly.
async fn tamper(dir: &TempDir, sql: &'static str) {
    let mut connection =
        SqliteConnection::connect_with(&options(&dir.path().join("bay.db")).foreign_keys(false))
            .await
            .unwrap();
    let done = sqlx::query(sql).execute(&mut connection).await.unwrap();
    assert!(done.rows_affected() > 0, "nothing was changed by: {sql}");
    connection.close().await.unwrap();
}

#[tokio::test]
async fn a_reopened_store_has_the_same_bay() {
    let (dir, store) = store().await;
    let made = bay(&store, "one").await;
    let changed = store
        .bay_update(made.id, Some(Draft::new("bay.run", json!({}))), |row| {
            row.state = State::Running;
            row.disk_ready = true;
        })
        .await
        .unwrap();
    assert!(changed.since >= made.since);
    let id = store.daemon_id().to_owned();
    drop(store);
    let store = Store::open(&dir.path().join("bay.db")).await.unwrap();
    assert_eq!(store.bay_list().await.unwrap(), vec![changed]);
    assert_eq!(store.daemon_id(), id);
    assert!(matches!(store.events_verify().await.unwrap(), Verdict::Intact { events: 2, .. }));
}

#[tokio::test]
async fn a_name_is_taken_once_and_a_derived_one_gets_a_number() {
    let (_dir, store) = store().await;
    bay(&store, "web").await;
    assert_eq!(bay(&store, "web").await.name, name("web-2"));
    assert_eq!(bay(&store, "web").await.name, name("web-3"));
    let error = store.bay_create(new(NameChoice::Exact(name("web"))), made).await.unwrap_err();
    assert_eq!(error.to_api().code, ErrorCode::BayExists);
    let long = "x".repeat(BayName::MAX_LEN);
    bay(&store, &long).await;
    assert!(bay(&store, &long).await.name.as_str().ends_with("x-2"));
}

#[tokio::test]
async fn id_ranges_are_distinct_and_a_freed_one_is_not_reused_at_first() {
    let (_dir, store) = store().await;
    let one = bay(&store, "one").await;
    let two = bay(&store, "two").await;
    assert_ne!(one.id_base, two.id_base);
    store.bay_delete(one.id, &Draft::new("bay.gone", json!({}))).await.unwrap();
    let three = bay(&store, "three").await;
    assert!(three.id_base != one.id_base && three.id_base != two.id_base);
    assert!((FIRST_ID_BASE..=LAST_ID_BASE).contains(&three.id_base));
}

#[tokio::test]
async fn deleting_a_bay_deletes_its_execs_and_keeps_its_events() {
    let (_dir, store) = store().await;
    let row = bay(&store, "one").await;
    store.exec_insert(row.id, &exec(&["true"]), None, &started()).await.unwrap();
    store.bay_delete(row.id, &Draft::new("bay.gone", json!({}))).await.unwrap();
    assert!(store.bay_list().await.unwrap().is_empty());
    assert!(store.exec_list(row.id).await.unwrap().is_empty());
    assert_eq!(store.events_list(0, Some(row.id)).await.unwrap().len(), 3);
    bay(&store, "one").await;
}

#[tokio::test]
async fn a_repeated_exec_is_the_same_and_a_different_one_with_its_id_is_refused() {
    let (_dir, store) = store().await;
    let row = bay(&store, "one").await;
    let other = bay(&store, "two").await;
    let spec = exec(&["true"]);
    let first = store.exec_insert(row.id, &spec, None, &started()).await.unwrap();
    assert!(matches!(first, Inserted::New(_)));
    let again = store.exec_insert(row.id, &spec, None, &started()).await.unwrap();
    assert_eq!(again, Inserted::Known(first.row().clone()));
    let mut different = spec.clone();
    different.env.clear();
    let error = store.exec_insert(row.id, &different, None, &started()).await.unwrap_err();
    assert_eq!(error.to_api().code, ErrorCode::ExecConflict);
    // An exec that runs in a bay runs in its forks with the same id; each bay has its own rows.
    let elsewhere = store.exec_insert(other.id, &spec, None, &started()).await.unwrap();
    assert!(matches!(elsewhere, Inserted::New(_)));
    assert_eq!(store.exec_list(row.id).await.unwrap().len(), 1);
}

#[tokio::test]
async fn execs_are_numbered_per_bay_and_found_by_id_number_and_suffix() {
    let (_dir, store) = store().await;
    let row = bay(&store, "one").await;
    let other = bay(&store, "two").await;
    store.exec_insert(other.id, &exec(&["x"]), None, &started()).await.unwrap();
    let first = store.exec_insert(row.id, &exec(&["a"]), None, &started()).await.unwrap().row().clone();
    let second = store.exec_insert(row.id, &exec(&["b"]), None, &started()).await.unwrap().row().clone();
    assert_eq!((first.number, second.number), (1, 2));
    assert_eq!(store.exec_get(row.id, second.id).await.unwrap().as_ref(), Some(&second));
    assert_eq!(store.exec_by_number(row.id, 1).await.unwrap().as_ref(), Some(&first));
    assert_eq!(store.exec_by_suffix(row.id, &second.id.short()).await.unwrap(), vec![second]);
    assert!(first.spec.env.is_empty());
}

#[tokio::test]
async fn the_first_reported_end_of_an_exec_counts() {
    let (_dir, store) = store().await;
    let row = bay(&store, "one").await;
    let one = store.exec_insert(row.id, &exec(&["a"]), None, &started()).await.unwrap().row().clone();
    let lost = Exit { reason: EndReason::Lost, code: None, signal: None };
    let event = Draft::new("exec.end", json!({}));
    assert!(store.exec_end(row.id, one.id, OK, None, Findings::default(), &event).await.unwrap().is_some());
    assert!(store.exec_end(row.id, one.id, lost, None, Findings::default(), &event).await.unwrap().is_none());
    assert_eq!(store.exec_get(row.id, one.id).await.unwrap().unwrap().exit, Some(OK));
    assert!(store.exec_list_open(row.id).await.unwrap().is_empty());
    assert!(matches!(store.events_verify().await.unwrap(), Verdict::Intact { events: 3, .. }));
}

#[tokio::test]
async fn reached_limits_are_stored_with_the_exec_and_older_rows_have_none() {
    let (_dir, store) = store().await;
    let row = bay(&store, "one").await;
    let event = Draft::new("exec.end", json!({}));
    let one = store.exec_insert(row.id, &exec(&["a"]), None, &started()).await.unwrap().row().clone();
    assert!(one.limits_hit.is_empty());
    let hit = [LimitHit::Memory, LimitHit::Disk];
    let blame = [Blame::Memory];
    assert!(
        store
            .exec_end(row.id, one.id, OK, None, Findings { limits_hit: &hit, blame: &blame }, &event)
            .await
            .unwrap()
            .is_some()
    );
    let view = store.exec_get(row.id, one.id).await.unwrap().unwrap().view();
    assert_eq!(view.limits_hit, hit);
    assert_eq!(view.blame, blame);
    let mut json = serde_json::to_value(&view).unwrap();
    assert_eq!(json["limits_hit"], json!(["memory", "disk"]));
    // The row as an older daemon wrote it.
    json.as_object_mut().unwrap().retain(|key, _| key != "limits_hit" && key != "blame");
    let older = serde_json::from_value::<ExecView>(json).unwrap();
    assert!(older.limits_hit.is_empty() && older.blame.is_empty());
}

#[tokio::test]
async fn old_finished_execs_are_forgotten_and_running_ones_are_not() {
    let (_dir, store) = store().await;
    let row = bay(&store, "one").await;
    let mut ids = vec![];
    for _ in 0..5 {
        ids.push(store.exec_insert(row.id, &exec(&["a"]), None, &started()).await.unwrap().row().id);
    }
    for id in &ids[1..] {
        store
            .exec_end(row.id, *id, OK, None, Findings::default(), &Draft::new("exec.end", json!({})))
            .await
            .unwrap();
    }
    assert_eq!(store.exec_prune(row.id, 2).await.unwrap(), ids[1..3].to_vec());
    let left: Vec<_> = store.exec_list(row.id).await.unwrap().into_iter().map(|e| e.id).collect();
    assert_eq!(left, vec![ids[0], ids[3], ids[4]]);
}

async fn broken_at(sql: &'static str) -> u64 {
    let (dir, store) = store().await;
    for n in 0..5 {
        store.event_append(None, &Draft::new("test.event", json!({ "n": n }))).await.unwrap();
    }
    assert!(matches!(store.events_verify().await.unwrap(), Verdict::Intact { events: 5, .. }));
    tamper(&dir, sql).await;
    match store.events_verify().await.unwrap() {
        Verdict::Broken { seq, .. } => seq,
        Verdict::Intact { .. } => panic!("not noticed: {sql}"),
    }
}

#[tokio::test]
async fn an_edited_event_is_found() {
    assert_eq!(broken_at(r#"UPDATE events SET body = '{"n":9}' WHERE seq = 3"#).await, 3);
    assert_eq!(broken_at("UPDATE events SET kind = 'other' WHERE seq = 1").await, 1);
    assert_eq!(broken_at("UPDATE events SET bay = 'bay_x' WHERE seq = 5").await, 5);
}

#[tokio::test]
async fn a_deleted_event_is_found_even_at_either_end() {
    assert_eq!(broken_at("DELETE FROM events WHERE seq = 1").await, 1);
    assert_eq!(broken_at("DELETE FROM events WHERE seq = 3").await, 3);
    assert_eq!(broken_at("DELETE FROM events WHERE seq = 5").await, 5);
    assert_eq!(broken_at("DELETE FROM events").await, 1);
}

#[tokio::test]
async fn reordered_events_are_found() {
    let swap = "UPDATE events SET seq = CASE seq WHEN 2 THEN -3 ELSE -2 END WHERE seq IN (2, 3)";
    let (dir, store) = store().await;
    for n in 0..5 {
        store.event_append(None, &Draft::new("test.event", json!({ "n": n }))).await.unwrap();
    }
    tamper(&dir, swap).await;
    tamper(&dir, "UPDATE events SET seq = -seq WHERE seq < 0").await;
    assert!(matches!(store.events_verify().await.unwrap(), Verdict::Broken { seq: 2, .. }));
}

#[tokio::test]
async fn a_cut_tail_stays_visible_after_more_events() {
    let (dir, store) = store().await;
    for n in 0..3 {
        store.event_append(None, &Draft::new("test.event", json!({ "n": n }))).await.unwrap();
    }
    drop(store);
    tamper(&dir, "DELETE FROM events WHERE seq = 3").await;
    let store = Store::open(&dir.path().join("bay.db")).await.unwrap();
    store.event_append(None, &Draft::new("test.event", json!({}))).await.unwrap();
    assert!(matches!(store.events_verify().await.unwrap(), Verdict::Broken { seq: 3, .. }));
}

#[tokio::test]
async fn a_deferrable_event_is_stored_by_the_time_the_store_is_closed() {
    let (dir, store) = store().await;
    let draft = |n: u64| Draft::new("test.event", json!({ "n": n }));
    assert_eq!(store.event_append_later(None, &draft(1)).await.unwrap(), 1);
    let (first, second) = (draft(2), draft(3));
    let (late, now) = tokio::join!(store.event_append_later(None, &first), store.event_append(None, &second));
    let mut numbers = [late.unwrap(), now.unwrap()];
    numbers.sort_unstable();
    assert_eq!(numbers, [2, 3]);
    let late = tokio::spawn({
        let (store, draft) = (store.clone(), draft(4));
        async move { store.event_append_later(None, &draft).await }
    });
    tokio::task::yield_now().await;
    store.close().await;
    assert_eq!(late.await.unwrap().unwrap(), 4);
    drop(store);
    let store = Store::open(&dir.path().join("bay.db")).await.unwrap();
    assert!(matches!(store.events_verify().await.unwrap(), Verdict::Intact { events: 4, .. }));
}

#[tokio::test]
async fn an_event_that_is_too_long_is_replaced_by_its_size() {
    let (_dir, store) = store().await;
    let draft = Draft::new("test.event", json!({ "text": "x".repeat(MAX_BODY) }));
    store.event_append(None, &draft).await.unwrap();
    let events = store.events_list(0, None).await.unwrap();
    assert!(events[0].body["left_out_bytes"].as_u64().unwrap() > MAX_BODY as u64);
}

#[tokio::test]
async fn a_dropped_write_changes_nothing_and_the_next_one_works() {
    let (_dir, store) = store().await;
    let row = bay(&store, "one").await;
    for polls in 0..12 {
        let write = store.bay_update(row.id, Some(Draft::new("bay.x", json!({}))), |row| {
            row.desired = Desired::Stopped;
        });
        let mut write = Box::pin(write);
        // Poll a few times, then drop it wherever it is.
        for _ in 0..polls {
            let tick = tokio::task::yield_now();
            tokio::select! {
                biased;
                _ = &mut write => break,
                () = tick => {}
            }
        }
    }
    store.bay_update(row.id, Some(Draft::new("bay.y", json!({}))), |_| {}).await.unwrap();
    assert!(matches!(store.events_verify().await.unwrap(), Verdict::Intact { .. }));
}

#[tokio::test]
async fn a_damaged_database_is_reported_and_stays_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bay.db");
    for content in
        [&b""[..], &b"this is no database at all, whatever its name may say ................"[..], &[0; 8192]]
    {
        std::fs::write(&path, content).unwrap();
        let error = Store::open(&path).await.unwrap_err();
        assert_eq!(error.to_api().code, ErrorCode::StoreDamaged, "{error}");
        assert!(error.to_string().contains("bay.db"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
}

#[tokio::test]
async fn damage_in_the_middle_of_a_database_is_detected_on_opening() {
    let (dir, store) = store().await;
    for n in 0..200 {
        store
            .event_append(None, &Draft::new("test.event", json!({ "n": n, "pad": "x".repeat(500) })))
            .await
            .unwrap();
    }
    let path = dir.path().join("bay.db");
    store.close().await;
    drop(store);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].fill(0xA5);
    std::fs::write(&path, &bytes).unwrap();
    let error = Store::open(&path).await.unwrap_err();
    assert_eq!(error.to_api().code, ErrorCode::StoreDamaged, "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[tokio::test]
async fn a_database_of_a_newer_release_stays_unchanged() {
    let (dir, store) = store().await;
    drop(store);
    tamper(&dir, "INSERT INTO schema_version (version) VALUES (99)").await;
    let error = Store::open(&dir.path().join("bay.db")).await.unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 99, .. }));
}

#[tokio::test]
async fn a_full_disk_loses_nothing_and_writes_continue_once_there_is_space() {
    let (_dir, store) = store().await;
    let row = bay(&store, "one").await;
    // SQLite's own limit of pages causes exactly the error of a full disk.
    sqlx::query("PRAGMA max_page_count = 1").execute(store.writer().await.connection()).await.unwrap();
    let mut error = None;
    for _ in 0..200 {
        let draft = Draft::new("test.event", json!({ "pad": "x".repeat(4000) }));
        if let Err(e) = store.event_append(Some(row.id), &draft).await {
            error = Some(e);
            break;
        }
    }
    assert_eq!(error.unwrap().to_api().code, ErrorCode::PoolFull);
    assert_eq!(store.bay_list().await.unwrap(), vec![row.clone()]);
    sqlx::query("PRAGMA max_page_count = 1000000").execute(store.writer().await.connection()).await.unwrap();
    store.event_append(Some(row.id), &Draft::new("test.event", json!({}))).await.unwrap();
    assert!(matches!(store.events_verify().await.unwrap(), Verdict::Intact { .. }));
}

#[tokio::test]
async fn a_read_only_database_is_reported() {
    let (_dir, store) = store().await;
    sqlx::query("PRAGMA query_only = 1").execute(store.writer().await.connection()).await.unwrap();
    let error = store.event_append(None, &Draft::new("test.event", json!({}))).await.unwrap_err();
    assert_eq!(error.to_api().code, ErrorCode::PoolReadOnly);
}

#[tokio::test]
async fn a_database_that_cannot_be_opened_is_a_disk_error() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("bay.db");
    std::fs::create_dir(&place).unwrap();
    let error = Store::open(&place).await.unwrap_err();
    assert!(matches!(error, StoreError::Reach { .. }), "{error:?}");
    assert_eq!(error.to_api().code, ErrorCode::StoreDamaged);
}

#[tokio::test]
async fn verification_of_the_record_does_not_block_writers() {
    let (_dir, store) = store().await;
    store.event_append(None, &Draft::new("test.event", json!({}))).await.unwrap();
    // Another writer holds the lock.
    let writer = store.writer().await;
    let verdict = store.events_verify().await.unwrap();
    assert!(matches!(verdict, Verdict::Intact { events: 1, .. }), "{verdict:?}");
    drop(writer);
}

fn captured(bay: BayId, name: CheckpointName) -> CheckpointNew {
    CheckpointNew {
        bay,
        name,
        kind: CheckpointKind::Files,
        message: Some("before".to_owned()),
        by: "uid 0".to_owned(),
        automatic: None,
        pause_us: 1500,
        without_memory: vec!["a process".to_owned()],
    }
}

#[tokio::test]
async fn checkpoints_form_a_tree_and_no_number_is_reused() {
    let (dir, store) = store().await;
    let row = bay(&store, "one").await;
    let event = |_: &CheckpointRow| Draft::new("checkpoint.made", json!({}));
    let mut next = row.next_checkpoint;
    let mut made = Vec::new();
    for _ in 0..3 {
        let (checkpoint, bay) = store.checkpoint_add(captured(row.id, next), event).await.unwrap();
        assert_eq!(bay.checkpoint, Some(next));
        next = bay.next_checkpoint;
        made.push(checkpoint);
    }
    assert_eq!(made[2].parent, Some(made[1].name));
    let gone = Draft::new("checkpoint.removed", json!({}));
    let bay = store.checkpoint_remove(row.id, made[1].name, &gone).await.unwrap();
    assert_eq!(bay.checkpoint, Some(made[2].name));
    let bay = store.checkpoint_remove(row.id, made[2].name, &gone).await.unwrap();
    assert_eq!(bay.checkpoint, Some(made[0].name), "it descends from what the removed ones descended from");
    let (last, _) = store.checkpoint_add(captured(row.id, bay.next_checkpoint), event).await.unwrap();
    assert_eq!((last.name.number(), last.parent), (4, Some(made[0].name)));
    drop(store);
    let store = Store::open(&dir.path().join("bay.db")).await.unwrap();
    assert_eq!(store.checkpoint_list(row.id).await.unwrap(), [made[0].clone(), last]);
    store.bay_delete(row.id, &Draft::new("bay.deleted", json!({}))).await.unwrap();
    assert!(store.checkpoint_list(row.id).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_checkpoint_is_unfinished_until_its_bay_has_an_end_of_it_on_record() {
    let (_dir, store) = store().await;
    let (one, two) = (bay(&store, "one").await, bay(&store, "two").await);
    let event = async |bay: &BayRow, kind: &str, name: &str| {
        store.event_append(Some(bay.id), &Draft::new(kind, json!({ "name": name }))).await.unwrap()
    };
    let unfinished = async || -> Vec<u64> {
        store.checkpoints_unfinished().await.unwrap().iter().map(|event| event.seq).collect()
    };
    assert!(unfinished().await.is_empty());
    let first = event(&one, "checkpoint.asked", "v1").await;
    let other = event(&two, "checkpoint.asked", "v1").await;
    event(&one, "exec.start", "v1").await;
    assert_eq!(unfinished().await, [first, other]);
    event(&one, "checkpoint.failed", "v1").await;
    event(&two, "checkpoint.made", "v1").await;
    event(&two, "checkpoint.removed", "v1").await;
    assert!(unfinished().await.is_empty());
    let again = event(&one, "checkpoint.asked", "v1").await;
    assert_eq!(unfinished().await, [again]);
}

#[tokio::test]
async fn unfinished_checkpoints_are_found_by_an_index_and_not_in_whole_timelines() {
    let (_dir, store) = store().await;
    let plan = format!("EXPLAIN QUERY PLAN {}", checkpoint::UNFINISHED);
    let steps: Vec<(i64, i64, i64, String)> = sqlx::query_as(sqlx::AssertSqlSafe(plan))
        .bind("checkpoint.asked")
        .fetch_all(&store.inner.readers)
        .await
        .unwrap();
    let events: Vec<&str> =
        steps.iter().map(|step| step.3.as_str()).filter(|step| step.contains("events")).collect();
    assert!(events.iter().any(|step| step.contains("events_checkpoints")), "{events:?}");
    assert!(events.iter().all(|step| step.starts_with("SEARCH")), "{events:?}");
}

#[tokio::test]
async fn a_timeline_is_read_in_pages_and_from_a_time_on() {
    let (_dir, store) = store().await;
    let (one, other) = (bay(&store, "one").await, bay(&store, "other").await);
    let mut told = store.events_told();
    let mut times = vec![];
    for _ in 0..20 {
        for row in [&one, &other] {
            store.event_append(Some(row.id), &Draft::new("bay.odd", json!({}))).await.unwrap();
        }
        times.push(jiff::Timestamp::now());
    }
    assert!(told.has_changed().unwrap());
    assert_eq!(*told.borrow_and_update(), store.events_head().await.unwrap());
    let all = store.timeline_page(one.id, 0, 1000).await.unwrap();
    assert_eq!(all.len(), 21);
    let page = store.timeline_page(one.id, all[4].seq, 3).await.unwrap();
    assert_eq!(page, all[5..8]);
    let begin = store.timeline_begin(one.id, 0, 3).await.unwrap();
    assert!(begin.older);
    assert_eq!(store.timeline_page(one.id, begin.after, 1000).await.unwrap(), all[18..]);
    let begin = store.timeline_begin(one.id, all[18].seq, 3).await.unwrap();
    assert_eq!((begin.after, begin.older), (all[18].seq, false));
    for (index, time) in times.iter().enumerate() {
        let before = store.timeline_before(one.id, *time).await.unwrap();
        assert_eq!(before, all[index + 1].seq, "{index}");
    }
    assert_eq!(
        store.timeline_before(one.id, one.created_at - jiff::SignedDuration::from_secs(9)).await.unwrap(),
        0
    );
    assert!(!store.timeline_exists(BayId::generate()).await.unwrap());
}

#[tokio::test]
async fn the_record_has_the_number_and_duration_of_an_exec() {
    let (_dir, store) = store().await;
    let row = bay(&store, "one").await;
    let one = store.exec_insert(row.id, &exec(&["a"]), None, &started()).await.unwrap().row().clone();
    let event = Draft::new("exec.end", json!({ "exec": one.id }));
    store.exec_end(row.id, one.id, OK, None, Findings::default(), &event).await.unwrap();
    let [.., start, end] = &store.timeline_page(row.id, 0, 10).await.unwrap()[..] else {
        panic!("two events")
    };
    assert_eq!((&start.body["number"], &end.body["number"]), (&1.into(), &1.into()));
    assert!(end.body["duration_s"].as_f64().is_some() && end.body["tty"] == false, "{end:?}");
}

#[tokio::test]
async fn traffic_is_selected_by_kind_and_most_of_it_is_not_in_the_timeline() {
    let (_dir, store) = store().await;
    let one = bay(&store, "one").await;
    let after = store.events_head().await.unwrap();
    let allow = json!({ "request": "GET https://x/?q=\"outcome\":\"deny\",\"port\":", "outcome": "allow", "port": 443 });
    let deny = json!({ "request": "GET https://x/?q=\"outcome\":\"allow\",\"port\":", "outcome": "deny", "port": 443 });
    for (kind, body) in [
        ("egress.decided", allow),
        ("egress.decided", deny),
        ("egress.looked-up", json!({ "name": "x", "answer": "answered" })),
        ("egress.repeated", json!({ "what": "answered", "of": "x" })),
        ("egress.repeated", json!({ "what": "deny", "of": "\"what\":\"answered\"" })),
        ("egress.ended", json!({ "of": 1, "ending": "answered", "status": 200 })),
        ("egress.ended", json!({ "of": 1, "ending": "revoked" })),
        ("bay.odd", json!({})),
    ] {
        store.event_append(Some(one.id), &Draft::new(kind, body)).await.unwrap();
    }
    let numbers = |events: Vec<bay_types::event::Event>| -> Vec<u64> {
        events.iter().map(|event| event.seq - after).collect()
    };
    let page = async |refused, look_ups| {
        numbers(store.traffic_page(one.id, 0, TrafficWanted { refused, look_ups }, 100).await.unwrap())
    };
    assert_eq!(page(false, true).await, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(page(false, false).await, [1, 2, 5, 6, 7]);
    assert_eq!(page(true, false).await, [2, 5, 7]);
    assert_eq!(numbers(store.timeline_page(one.id, after, 100).await.unwrap()), [2, 5, 6, 7, 8]);
    let begin = store.traffic_begin(one.id, 0, TrafficWanted::default(), 3).await.unwrap();
    assert_eq!((begin.after - after, begin.older), (2, true));
    assert!(store.event_of(one.id, after + 1).await.unwrap().is_some());
    assert!(store.event_of(BayId::generate(), after + 1).await.unwrap().is_none());
}
