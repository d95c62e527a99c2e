//! The record as a tree: what the database can prove, and what it cannot hide.

use bay_ledger::{Bundle, Evidence, Head, Header, SecretKey, Standing, Verified, Verifier};

use super::*;

fn key() -> SecretKey {
    SecretKey::new("workbay/test", &[7; 32]).unwrap()
}

async fn filled(events: u64) -> (TempDir, Store) {
    let (dir, store) = store().await;
    let appends = (0..events).map(|n| {
        let store = store.clone();
        async move { store.event_append(None, &Draft::new("test.event", json!({ "n": n }))).await.unwrap() }
    });
    let mut tasks: tokio::task::JoinSet<u64> = appends.collect();
    let mut given = vec![];
    while let Some(seq) = tasks.join_next().await {
        given.push(seq.unwrap());
    }
    given.sort_unstable();
    assert!(given.into_iter().eq(1..=events), "every event has a number of its own");
    (dir, store)
}

async fn signed(store: &Store, size: u64) -> String {
    key().sign(size, store.ledger_root(size).await.unwrap().unwrap(), jiff::Timestamp::UNIX_EPOCH)
}

async fn check(store: &Store, evidence: Evidence, size: u64, known: Vec<Head>) -> Verified {
    let mut verifier = Verifier::new(key().public(), known);
    let events = match &evidence {
        Evidence::Range { from, to, .. } => *from..*to + 1,
        Evidence::Inclusion { event, .. } => *event..*event + 1,
        Evidence::Consistency { .. } => 1..1,
    };
    verifier.line(&Bundle::line(&Header::new(signed(store, size).await, evidence))).unwrap();
    let mut next = events.start;
    while next < events.end {
        for event in store.ledger_events(next, events.end - 1).await.unwrap() {
            verifier.line(&Bundle::line(&event)).unwrap();
            next = event.seq + 1;
        }
    }
    verifier.finish().unwrap()
}

#[tokio::test]
async fn the_stored_nodes_give_proofs_for_every_size() {
    const EVENTS: u64 = 1100;
    let (_dir, store) = filled(EVENTS).await;
    let verdict = store.events_verify().await.unwrap();
    assert!(matches!(verdict, Verdict::Intact { events: EVENTS, .. }), "{verdict:?}");
    for size in [1, 2, 255, 256, 257, 512, 700, 1024, EVENTS] {
        for event in [1, 2, 255, 256, 257, 513, EVENTS].into_iter().filter(|event| *event <= size) {
            let proof = store.ledger_inclusion(event, size).await.unwrap().unwrap();
            assert_eq!(check(&store, proof, size, vec![]).await.events, Some((event, event)));
            let range = store.ledger_range(event, size, size).await.unwrap().unwrap();
            assert_eq!(check(&store, range, size, vec![]).await.events, Some((event, size)));
            let old = Head::open(&signed(&store, event).await, &key().public()).unwrap();
            let proof = store.ledger_consistency(event, size).await.unwrap().unwrap();
            assert_eq!(check(&store, proof, size, vec![old]).await.standing, [Standing::Continues]);
        }
    }
    assert_eq!(store.ledger_inclusion(0, 5).await.unwrap(), None);
    assert_eq!(store.ledger_inclusion(6, 5).await.unwrap(), None);
    assert_eq!(store.ledger_range(3, 1, 5).await.unwrap(), None);
    assert_eq!(store.ledger_root(EVENTS + 1).await.unwrap(), None);
}

/// An event that still has its hash must not be kept out of the pages that it belongs to.
#[tokio::test]
async fn a_change_to_the_selection_columns_is_detected() {
    for (sql, bad) in [
        ("UPDATE events SET traffic = 'look-up' WHERE seq = 1", 1),
        ("UPDATE events SET traffic = NULL WHERE seq = 2", 2),
        ("UPDATE events SET from_inside = 1 WHERE seq = 2", 2),
        ("UPDATE events SET from_inside = 0 WHERE seq = 3", 3),
    ] {
        let (dir, store) = store().await;
        let decided = json!({ "request": "GET https://a.test/", "outcome": "deny" });
        for (kind, body) in [
            ("egress.decided", decided.clone()),
            ("egress.decided", decided.clone()),
            ("hold.taken", json!({ "until": null, "by": "inside" })),
        ] {
            store.event_append(None, &Draft::new(kind, body)).await.unwrap();
        }
        let verdict = store.events_verify().await.unwrap();
        assert!(matches!(verdict, Verdict::Intact { events: 3, .. }), "{verdict:?}");
        tamper(&dir, sql).await;
        let verdict = store.events_verify().await.unwrap();
        assert!(matches!(verdict, Verdict::Broken { seq, .. } if seq == bad), "{sql}: {verdict:?}");
    }
}

#[tokio::test]
async fn a_change_to_inner_nodes_of_the_tree_is_detected() {
    for sql in [
        // Another last digit, whichever it is: a hash is not sure to have a certain one.
        "UPDATE ledger_nodes SET hash = substr(hash, 1, length(hash) - 1) || CASE substr(hash, -1) WHEN 'a' THEN 'b' ELSE 'a' END WHERE level = 8 AND place = 1",
        "DELETE FROM ledger_nodes WHERE level = 8 AND place = 0",
        "INSERT INTO ledger_nodes (level, place, hash) VALUES (8, 99, '')",
        "UPDATE meta SET value = substr(value, 1, length(value) - 1) || CASE substr(value, -1) WHEN 'a' THEN 'b' ELSE 'a' END WHERE key = 'ledger'",
        "UPDATE meta SET value = 'nonsense' WHERE key = 'ledger'",
        "DELETE FROM meta WHERE key = 'ledger'",
    ] {
        let (dir, store) = filled(600).await;
        tamper(&dir, sql).await;
        let verdict = store.events_verify().await.unwrap();
        assert!(matches!(verdict, Verdict::Broken { .. }), "{sql}");
    }
}

#[tokio::test]
async fn an_acknowledged_event_is_on_the_disk() {
    let (_dir, store) = store().await;
    let begin = std::time::Instant::now();
    for _ in 0..20 {
        let seq = store.event_append(None, &Draft::new("test.event", json!({}))).await.unwrap();
        store.event_durable(seq).await.unwrap();
        assert!(store.durable_frontier(seq).await.unwrap().size() >= seq);
    }
    // Twenty gathering delays would take 600 ms; a waiting caller does not wait for them.
    eprintln!("{:?} for each", begin.elapsed() / 20);
}

/// Measures only speed: `cargo test --release -p bay-store durable_appends -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures"]
async fn durable_appends_per_second() {
    const WRITERS: u64 = 256;
    const EACH: u64 = 400;
    let (_dir, store) = store().await;
    let body = json!({ "method": "GET", "url": "https://example.test/some/path", "decision": "allow", "rule": "coding/3" });
    let begin = std::time::Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..WRITERS {
        let (store, body) = (store.clone(), body.clone());
        tasks.spawn(async move {
            let mut last = 0;
            for _ in 0..EACH {
                last = store.event_append(None, &Draft::new("egress.allowed", body.clone())).await.unwrap();
            }
            store.event_durable(last).await.unwrap();
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let took = begin.elapsed();
    #[allow(clippy::cast_precision_loss)]
    let rate = (WRITERS * EACH) as f64 / took.as_secs_f64();
    eprintln!("{} events in {took:?}: {rate:.0}/s", WRITERS * EACH);
    assert!(matches!(store.events_verify().await.unwrap(), Verdict::Intact { .. }));
}
