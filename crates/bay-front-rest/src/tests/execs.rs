//! Execs: every end is reported, and reported once.

use bay_types::frame::Frame;
use futures_util::StreamExt;

use super::*;

/// An exec that the daemon lists as running.
async fn open(rig: &Rig, handle: &BayHandle) -> ExecSpec {
    let spec = exec();
    rig.store
        .exec_insert(handle.id, &spec, None, &Draft::of(OtherEvent::new("exec.start", json!({}))))
        .await
        .unwrap();
    handle.exec_opened(spec.id);
    spec
}

#[tokio::test]
async fn every_exec_that_ended_while_no_daemon_listened_is_closed() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Running).await;
    for _ in 0..150 {
        open(&rig, &handle).await;
    }
    guest(rig.listener(), |_, path| match path {
        "/v1/info" => (200, Body::from(info(PROTOCOL))),
        "/v1/events" => {
            let hello = bytes::Bytes::from(json!({ "event": "hello" }).to_string() + "\n");
            let first = futures_util::stream::iter([Ok::<_, std::convert::Infallible>(hello)]);
            (200, Body::from_stream(first.chain(futures_util::stream::pending())))
        }
        path => {
            let mut spec = exec();
            spec.id = path.rsplit('/').next().unwrap().parse().unwrap();
            (200, Body::from(status(&spec, Some(OK))))
        }
    });
    let (_gone, is_gone) = watch::channel(false);
    let following = tokio::spawn(testing::follow(Arc::clone(&rig.daemon), Arc::clone(&handle), is_gone));
    let closed = async {
        while handle.execs_open() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), closed).await.unwrap();
    following.abort();
}

/// A guest that closes the connection when something is started, and knows no exec.
fn forgetful(listener: UnixListener) {
    let said = json!({ "code": "exec-not-found", "message": "" }).to_string();
    let answer = format!("HTTP/1.1 404 Not Found\r\ncontent-length: {}\r\n\r\n{said}", said.len());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            let length = stream.read(&mut head).await.unwrap_or(0);
            if head[..length].starts_with(b"GET") {
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        }
    });
}

#[tokio::test]
async fn a_start_without_an_answer_is_not_lost_before_the_deadline() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Running).await;
    forgetful(rig.listener());
    let spec = exec();
    let got = rig.error("POST", "/v1/bays/web/execs", json!(spec)).await;
    assert_eq!(got, (503, "guest-unreachable".to_owned()));
    let (_, list) = rig.json("GET", "/v1/bays/web/execs", Value::Null).await;
    assert!(list[0]["exit"].is_null(), "the guest may still come to it: {list}");
    assert_eq!(handle.execs_starting().len(), 1);
    // After that time, the guest's answer that it does not know the exec counts.
    let other = open(&rig, &handle).await;
    let starting = handle.exec_starting(other.id);
    testing::recheck_later(Arc::clone(&rig.daemon), Arc::clone(&handle), starting, Duration::ZERO).await;
    let row = rig.store.exec_get(handle.id, other.id).await.unwrap().unwrap();
    assert_eq!(row.exit.unwrap().reason, EndReason::Lost);
}

#[tokio::test]
async fn a_repeated_start_is_marked_until_both_requests_are_answered() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Running).await;
    let id = ExecId::generate();
    let (one, two) = (handle.exec_starting(id), handle.exec_starting(id));
    drop(one);
    assert!(handle.execs_starting().contains(&id));
    drop(two);
    assert!(handle.execs_starting().is_empty());
}

#[tokio::test]
async fn a_missing_command_is_recorded_with_the_exit_code_of_a_shell() {
    let rig = rig().await;
    rig.bay("web", State::Running).await;
    guest(rig.listener(), |_, _| {
        let error =
            json!({ "code": "command-not-found", "message": "\"nope\": command not found in the bay" });
        (422, Body::from(error.to_string()))
    });
    let got = rig.error("POST", "/v1/bays/web/execs", json!(exec())).await;
    assert_eq!(got, (422, "command-not-found".to_owned()));
    let (_, list) = rig.json("GET", "/v1/bays/web/execs", Value::Null).await;
    assert_eq!(list[0]["exit"]["code"], 127);
}

#[tokio::test]
async fn a_spec_beyond_the_kernels_limit_is_refused_before_it_is_recorded() {
    let rig = rig().await;
    rig.bay("web", State::Running).await;
    let mut spec = exec();
    // It fits without the NUL after each argument; the kernel counts those.
    spec.argv = vec!["echo".to_owned(), "x".repeat(ExecSpec::MAX_ARGUMENT_BYTES - 4)];
    let got = rig.error("POST", "/v1/bays/web/execs", json!(spec)).await;
    assert_eq!(got, (400, "invalid-input".to_owned()));
    let (_, list) = rig.json("GET", "/v1/bays/web/execs", Value::Null).await;
    assert_eq!(list, json!([]));
}

#[tokio::test]
async fn following_an_exec_of_a_paused_bay_says_that_it_is_paused() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Paused).await;
    let spec = open(&rig, &handle).await;
    let path = format!("/v1/bays/web/execs/{}/output?follow=true", spec.id);
    assert_eq!(rig.error("GET", &path, Value::Null).await, (409, "bay-state".to_owned()));
}

#[tokio::test]
async fn a_follower_of_an_exec_gets_its_end_after_the_bay_stopped() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Stopped).await;
    let spec = open(&rig, &handle).await;
    let (daemon, at) = (Arc::clone(&rig.daemon), Arc::clone(&handle));
    let following = tokio::spawn(async move { testing::end_of(&daemon, &at, spec.id).await });
    tokio::task::yield_now().await;
    testing::close_all(&rig.daemon, &handle, EndReason::Stopped).await;
    match following.await.unwrap().unwrap() {
        Frame::Exit(exit, _) => assert_eq!(exit.reason, EndReason::Stopped),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_follower_of_an_exec_is_told_to_retry_while_the_guest_is_unreachable() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Running).await;
    let spec = open(&rig, &handle).await;
    let refused = testing::end_of(&rig.daemon, &handle, spec.id).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Interrupted);
}

#[tokio::test]
async fn only_a_failed_exec_reports_that_memory_ran_out() {
    let rig = rig().await;
    let handle = rig.bay("web", State::Running).await;
    let failed = Exit { reason: EndReason::Signaled, code: None, signal: Some(9) };
    for (exit, kills, expected) in
        [(failed, 1, json!(["memory"])), (failed, 0, json!([])), (OK, 1, json!([]))]
    {
        let spec = open(&rig, &handle).await;
        handle.exec_began(spec.id, handle.backend.limit_events(handle.id));
        rig.oom_kills.fetch_add(kills, Ordering::SeqCst);
        testing::ended(&rig.daemon, &handle, spec.id, exit).await;
        let (_, view) = rig.json("GET", &format!("/v1/bays/web/execs/{}", spec.id), Value::Null).await;
        assert_eq!(view["limits_hit"], expected, "{view}");
    }
}
