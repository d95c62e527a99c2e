//! Databases of earlier releases, and what newer releases add to them.

use bay_types::event::EventBody;
use bay_types::exec::ExecEnd;
use bay_types::trace::ExecTrace;
use bay_types::usage::Usage;

use super::*;

/// A database of an earlier release.
async fn earlier(sql: &'static str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bay.db");
    let mut connection =
        SqliteConnection::connect_with(&options(&path).create_if_missing(true)).await.unwrap();
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    (dir, path)
}

#[tokio::test]
async fn a_database_of_version_1_is_migrated_completely() {
    let (_dir, path) = earlier(include_str!("version-1.sql")).await;
    for _ in 0..2 {
        let store = Store::open(&path).await.unwrap();
        let bays = store.bay_list().await.unwrap();
        assert_eq!(bays.iter().map(|bay| bay.name.as_str()).collect::<Vec<_>>(), ["one"]);
        assert_eq!(bays[0].backend.as_str(), "local", "there was no other");
        let execs = store.exec_list(bays[0].id).await.unwrap();
        assert_eq!(execs.len(), 2);
        assert_eq!(execs[0].spec.tool_call.as_deref(), Some("call-1"));
        assert_eq!(execs[0].exit.unwrap().code, Some(3));
        assert_eq!((execs[0].usage.user_us, execs[0].usage.max_rss_kib), (Some(1420), Some(1960)));
        assert_eq!((execs[0].usage.memory_peak_bytes, execs[0].trace), (None, None));
        assert_eq!(store.cost_list().await.unwrap(), []);
        // Its twelve events, and the event of the upgrade.
        assert_eq!(store.events_head().await.unwrap(), 13);
        let verdict = store.events_verify().await.unwrap();
        assert!(matches!(verdict, Verdict::Intact { events: 13, .. }), "{verdict:?}");
        let events = store.events_list(0, None).await.unwrap();
        assert_eq!((events[0].seq, events[11].seq), (1, 12));
        assert_eq!((events[12].kind.as_str(), &events[12].body["first_bad"]), ("ledger.begun", &json!(null)));
        store.close().await;
    }
}

#[tokio::test]
async fn a_database_of_the_first_release_with_a_ledger_is_migrated_and_still_verifies() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bay.db");
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/first-release/bay.db");
    std::fs::copy(kept, &path).unwrap();
    for _ in 0..2 {
        let store = Store::open(&path).await.unwrap();
        let verdict = store.events_verify().await.unwrap();
        assert!(matches!(verdict, Verdict::Intact { events: 87, .. }), "{verdict:?}");
        let bays = store.bay_list().await.unwrap();
        let mut names: Vec<&str> = bays.iter().map(|bay| bay.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["other", "web"]);
        let web = bays.iter().find(|bay| bay.name.as_str() == "web").unwrap();
        let execs = store.exec_list(web.id).await.unwrap();
        assert_eq!(execs[0].exit.unwrap().code, Some(3));
        // Every event has a type, and none of its fields is lost or has an unexpected shape.
        for event in store.events_list(0, None).await.unwrap() {
            let read = event.read();
            let shown = format!("{read:?}");
            assert!(!matches!(read, EventBody::Other(_)) && !shown.contains("Odd("), "{shown}");
            let written = read.body();
            for (field, value) in event.body.as_object().unwrap() {
                assert_eq!(&written[field], value, "{field} of {shown}");
            }
        }
        // Selected as that release selected it: 2 allowed requests with their ends, 2 refused, 8 lookups.
        let traffic = async |refused, look_ups| {
            let wanted = TrafficWanted { refused, look_ups };
            store.traffic_page(web.id, 0, wanted, 100).await.unwrap().len()
        };
        let found = [traffic(false, true).await, traffic(false, false).await, traffic(true, false).await];
        assert_eq!(found, [14, 6, 2]);
        let approvals = store.approval_list(false).await.unwrap();
        let answers: Vec<_> = approvals.iter().map(|row| row.card.answer.as_ref().unwrap()).collect();
        assert!(answers[0].bound && !answers[0].any_body, "{answers:?}");
        assert_eq!(answers[1].why.as_deref(), Some("no"));
        store.close().await;
    }
}

#[tokio::test]
async fn a_migration_does_not_hide_changes_to_an_older_record() {
    for (sql, bad) in [
        ("UPDATE events SET body = '{}' WHERE seq = 4", 4),
        ("DELETE FROM events WHERE seq = 5", 5),
        ("DELETE FROM events WHERE seq > 10", 11),
        ("UPDATE events SET hash = replace(hash, 'a', 'b') WHERE seq = 12", 12),
    ] {
        let (dir, path) = earlier(include_str!("version-1.sql")).await;
        tamper(&dir, sql).await;
        let store = Store::open(&path).await.unwrap();
        let verdict = store.events_verify().await.unwrap();
        assert!(matches!(verdict, Verdict::Broken { seq, .. } if seq == bad), "{sql}: {verdict:?}");
        let last = store.events_list(12, None).await.unwrap();
        assert_eq!(last[0].body["first_bad"], bad, "{sql}");
        store.close().await;
    }
}

#[tokio::test]
async fn an_exec_keeps_its_trace_and_its_usage() {
    let (_dir, store) = store().await;
    let row = bay(&store, "one").await;
    let trace = ExecTrace {
        trace_id: "4bf92f3577b34da6a3ce929d0e0e4736".parse().unwrap(),
        span_id: Some("00f067aa0ba902b7".parse().unwrap()),
        parent_span_id: None,
        sampled: true,
    };
    let spec = exec(&["true"]);
    let first = store.exec_insert(row.id, &spec, Some(trace), &started()).await.unwrap();
    // A repeated request has another trace context; the first one stays.
    let again = store.exec_insert(row.id, &spec, None, &started()).await.unwrap();
    assert_eq!(again.row().trace, Some(trace));
    let usage = Usage { user_us: Some(u64::MAX), system_us: Some(5), ..Usage::default() };
    let end = ExecEnd {
        at: "2999-01-01T00:00:00Z".parse().unwrap(),
        usage,
        output_bytes: 7,
        refused_bytes: 0,
        output_hashes: None,
    };
    let event = Draft::new("exec.end", json!({}));
    let ended = store
        .exec_end(row.id, first.row().id, OK, Some(&end), Findings::default(), &event)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(ended, store.exec_get(row.id, spec.id).await.unwrap().unwrap());
    assert_eq!((ended.trace, ended.output_bytes), (Some(trace), 7));
    assert_eq!(ended.usage.user_us, Some(Usage::MAX_CLAIM));
    assert!(ended.duration_s().unwrap() < 60.0, "a guest's word on the future is not believed");
}

#[tokio::test]
async fn the_cost_of_a_bay_survives_the_daemon_and_is_deleted_with_the_bay() {
    let (_dir, store) = store().await;
    let (row, gone) = (bay(&store, "one").await, bay(&store, "two").await);
    let account = |bay, cpu_us| CostRow {
        bay,
        cpu_us,
        memory_gib_s: 1.5,
        disk_gib_s: 0.25,
        disk_bytes: Some(4096),
        since: row.created_at,
        runtime: Some("7 100 boot".to_owned()),
        runtime_cpu_us: 3,
    };
    store.cost_save(&[account(row.id, 5), account(gone.id, 6)]).await.unwrap();
    store.cost_save(&[account(row.id, 9)]).await.unwrap();
    store.bay_delete(gone.id, &Draft::new("bay.deleted", json!({}))).await.unwrap();
    // Measured before the bay was removed, stored after it.
    store.cost_save(&[account(gone.id, 7)]).await.unwrap();
    assert_eq!(store.cost_list().await.unwrap(), [account(row.id, 9)]);
}
