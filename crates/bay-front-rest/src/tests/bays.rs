//! Bays: their views are true, and each request is either carried out or refused.

use super::*;

#[tokio::test]
async fn an_unknown_query_key_is_refused_by_every_route() {
    let rig = rig().await;
    rig.bay("web", State::Stopped).await;
    for (method, path) in [
        ("GET", "/v1/health"),
        ("GET", "/v1/events"),
        ("GET", "/v1/events/verify"),
        ("GET", "/v1/bays"),
        ("POST", "/v1/bays"),
        ("GET", "/v1/bays/web"),
        ("DELETE", "/v1/bays/web"),
        ("POST", "/v1/bays/web/start"),
        ("POST", "/v1/bays/web/stop"),
        ("POST", "/v1/bays/web/pause"),
        ("POST", "/v1/bays/web/resume"),
        ("POST", "/v1/bays/web/replace"),
        ("GET", "/v1/bays/web/execs"),
        ("POST", "/v1/bays/web/execs"),
        ("POST", "/v1/bays/web/execs/attach"),
        ("GET", "/v1/bays/web/execs/1"),
        ("POST", "/v1/bays/web/execs/1/attach"),
        ("GET", "/v1/bays/web/execs/1/output"),
        ("POST", "/v1/bays/web/execs/1/signal"),
        ("GET", "/v1/images"),
        ("POST", "/v1/images"),
        ("DELETE", "/v1/images/host"),
        ("GET", "/v1/repos"),
        ("POST", "/v1/repos/offer"),
        ("POST", "/v1/repos/sync"),
        ("POST", "/v1/repos/x/bundle"),
        ("DELETE", "/v1/repos/x"),
    ] {
        let got = rig.error(method, &format!("{path}?force=true"), Value::Null).await;
        assert_eq!(got, (400, "invalid-input".to_owned()), "{method} {path}");
    }
    for (method, noun) in
        [("GET", "stat"), ("GET", "files"), ("PUT", "files"), ("GET", "archive"), ("PUT", "archive")]
    {
        let path = format!("/v1/bays/web/{noun}?path=/x&force=true");
        let got = rig.error(method, &path, Value::Null).await;
        assert_eq!(got, (400, "invalid-input".to_owned()), "{method} {path}");
    }
}

#[tokio::test]
async fn the_daemon_opens_no_repository_path_of_this_host() {
    let rig = rig().await;
    for url in ["/srv/project", "file:///srv/project", "File:///srv/project"] {
        let body = json!({ "source": { "kind": "remote", "url": url } });
        let (status, body) = rig.json("POST", "/v1/bays", body).await;
        assert_eq!((status.as_u16(), body["code"].as_str()), (400, Some("invalid-input")), "{url}");
        assert!(body["next"].as_str().unwrap().contains("bay up PATH"), "{body}");
    }
}

#[tokio::test]
async fn the_record_of_events_can_be_verified() {
    let rig = rig().await;
    rig.bay("web", State::Stopped).await;
    let (status, whole) = rig.json("GET", "/v1/events/verify", Value::Null).await;
    assert_eq!(
        (status, &whole["ok"], &whole["events"]),
        (StatusCode::OK, &json!(true), &json!(1)),
        "{whole}"
    );
    let (_, events) = rig.json("GET", "/v1/events", Value::Null).await;
    assert_eq!(whole["head_hash"], events[0]["hash"]);
    assert!(whole["first_bad"].is_null());
}

#[tokio::test]
async fn a_reconciler_that_panics_is_restarted_and_the_verb_is_answered() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Running).await;
    guest(rig.listener(), |_, _| (404, Body::empty()));
    rig.defect.store(true, Ordering::SeqCst);
    testing::start_reconciler(Arc::clone(&rig.daemon), handle);
    let stopping = rig.json("POST", "/v1/bays/web/stop?grace_s=0", Value::Null);
    let (code, body) = tokio::time::timeout(Duration::from_secs(20), stopping).await.unwrap();
    assert_eq!((code, body["state"].as_str()), (StatusCode::OK, Some("stopped")), "{body}");
    assert!(!rig.defect.load(Ordering::SeqCst), "the defect showed");
}

#[tokio::test]
async fn a_bay_whose_guest_just_died_is_not_shown_as_running() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Running).await;
    let (code, body) = rig.json("POST", "/v1/bays/web/start", Value::Null).await;
    assert_eq!((code, body["state"].as_str()), (StatusCode::OK, Some("running")), "{body}");
    rig.gone.send_replace(true);
    testing::start_reconciler(Arc::clone(&rig.daemon), Arc::clone(&handle));
    // There is no disk to start it from, so it must fail. Which error it is depends on who notices the death first.
    let (_, code) = rig.error("POST", "/v1/bays/web/start", Value::Null).await;
    assert!(["interrupted", "bay-state"].contains(&code.as_str()), "{code}");
    assert_eq!(handle.row().state, State::Failed);
}

#[tokio::test]
async fn a_guest_of_another_protocol_is_reported_and_not_used() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Running).await;
    guest(rig.listener(), |_, path| match path {
        "/v1/info" => (200, Body::from(info(PROTOCOL + 1))),
        other => panic!("{other} was asked for"),
    });
    let (_gone, is_gone) = watch::channel(false);
    let following = tokio::spawn(testing::follow(Arc::clone(&rig.daemon), Arc::clone(&handle), is_gone));
    let told = async {
        while !handle.row().reason.contains("protocol") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), told).await.unwrap();
    following.abort();
    assert_eq!(handle.row().state, State::Running, "it goes on");
}

#[tokio::test]
async fn a_missing_backend_is_refused_with_the_names_of_the_available_ones() {
    let rig = rig().await;
    let body = json!({ "source": { "kind": "empty" }, "backend": "moon" });
    let (status, body) = rig.json("POST", "/v1/bays", body).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (400, Some("invalid-input")), "{body}");
    assert!(body["message"].as_str().unwrap().contains("moon"), "{body}");
    assert!(body["next"].as_str().unwrap().contains("script"), "{body}");
}

#[tokio::test]
async fn a_bay_whose_backend_is_missing_is_shown_with_the_reason_and_unchanged() {
    let rig = rig().await;
    let handle = rig.bay_on("moon", "web", State::Running).await;
    testing::start_reconciler(Arc::clone(&rig.daemon), Arc::clone(&handle));
    let before = handle.row();
    let (status, view) = rig.json("GET", "/v1/bays/web", Value::Null).await;
    assert_eq!((status, view["state"].as_str()), (StatusCode::OK, Some("failed")), "{view}");
    assert_eq!((&view["backend"], &view["isolation"]["grade"]), (&json!("moon"), &json!("unknown")));
    assert!(view["reason"].as_str().unwrap().contains("no backend moon"), "{view}");
    assert!(view["capabilities"].is_null(), "nobody knows: {view}");
    for (method, path) in [
        ("POST", "/v1/bays/web/stop"),
        ("POST", "/v1/bays/web/pause"),
        ("DELETE", "/v1/bays/web"),
        ("POST", "/v1/bays/web/checkpoints"),
        ("POST", "/v1/bays/web/forks"),
    ] {
        let body = match path.rsplit('/').next() {
            Some("checkpoints") => json!({}),
            Some("forks") => json!({ "count": 1 }),
            _ => Value::Null,
        };
        let (status, body) = rig.json(method, path, body).await;
        assert!(status.is_client_error() || status.is_server_error(), "{method} {path}: {status} {body}");
        assert!(body["message"].as_str().unwrap().contains("no backend moon"), "{method} {path}: {body}");
    }
    let (_, body) = rig.json("POST", "/v1/bays/web/execs", json!(exec())).await;
    assert!(body["message"].as_str().unwrap().contains("no backend moon"), "{body}");
    // When this lock is free, the pass that the wake above began is over.
    drop(handle.at_work.lock().await);
    assert_eq!(handle.row(), before);
    assert_eq!(rig.store.bay_list().await.unwrap(), [before]);
}
