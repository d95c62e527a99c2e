//! Services, watches and ports of a guest that lies.

use bay_types::guest::GuestEvent;
use bay_types::inside::{Ask, InsideChange};
use bay_types::service::MAX_SERVICES;
use futures_util::StreamExt;
use tokio::sync::mpsc;

use super::*;

/// Longer than any text of a guest that a person wants to see.
const LONG: usize = 9000;

fn service(name: &str) -> Value {
    json!({
        "name": name, "state": "ready", "reason": format!("fine\u{1b}]0;mine\u{7} {}", "x".repeat(LONG)),
        "since": jiff::Timestamp::now(), "wanted": true, "restarts": 0, "attempt": 0, "runs": [],
        "log_start": 0, "log_end": 0, "spec": { "argv": ["true"] },
    })
}

fn is_plain(text: &Value) -> bool {
    text.as_str().is_some_and(|text| !text.chars().any(char::is_control) && text.len() < LONG)
}

#[tokio::test]
async fn service_views_of_a_guest_are_escaped_and_limited_in_number() {
    let rig = rig().await;
    rig.bay("web", State::Running).await;
    guest(rig.listener(), |_, path| match path {
        "/v1/services" => {
            let all: Vec<Value> = (0..MAX_SERVICES * 3).map(|n| service(&format!("s{n}"))).collect();
            (200, Body::from(json!(all).to_string()))
        }
        _ => (200, Body::from(service("db").to_string())),
    });
    let (status, all) = rig.json("GET", "/v1/bays/web/services", Value::Null).await;
    assert_eq!((status, all.as_array().unwrap().len()), (StatusCode::OK, MAX_SERVICES));
    assert!(all.as_array().unwrap().iter().all(|one| is_plain(&one["reason"])));
    let (_, one) = rig.json("GET", "/v1/bays/web/services/db", Value::Null).await;
    assert!(one["name"] == "db" && is_plain(&one["reason"]), "{one}");
}

#[tokio::test]
async fn a_guest_that_answers_for_another_service_is_not_believed() {
    let rig = rig().await;
    rig.bay("web", State::Running).await;
    guest(rig.listener(), |_, _| (200, Body::from(service("other").to_string())));
    for (method, path, body) in [
        ("GET", "/v1/bays/web/services/db", Value::Null),
        ("PUT", "/v1/bays/web/services/db", json!({ "argv": ["true"] })),
        ("POST", "/v1/bays/web/services/db/restart", Value::Null),
        ("DELETE", "/v1/bays/web/services/db", Value::Null),
    ] {
        let got = rig.error(method, path, body).await;
        assert_eq!(got, (503, "guest-unreachable".to_owned()), "{method} {path}");
    }
}

#[tokio::test]
async fn an_endless_or_invalid_answer_about_services_or_ports_is_only_an_error() {
    let rig = rig().await;
    rig.bay("web", State::Running).await;
    // One of three bad answers after the other.
    let turn = Arc::new(AtomicU64::new(0));
    guest(rig.listener(), move |_, _| match turn.fetch_add(1, Ordering::Relaxed) % 3 {
        0 => (200, endless()),
        1 => (200, Body::from("[{]")),
        _ => (500, Body::from("\u{1b}[2J not even JSON")),
    });
    for path in ["services", "services/db", "ports"] {
        for _ in 0..3 {
            let (status, body) = rig.json("GET", &format!("/v1/bays/web/{path}"), Value::Null).await;
            assert!(status.is_server_error() && is_plain(&body["message"]), "{path}: {status} {body}");
        }
    }
}

#[tokio::test]
async fn a_service_that_the_guest_refuses_is_refused_with_an_escaped_message() {
    let rig = rig().await;
    rig.bay("web", State::Running).await;
    guest(rig.listener(), |_, _| {
        let message = format!("no\u{1b}[2J {}", "x".repeat(LONG));
        (
            409,
            Body::from(json!({ "code": "service-in-use", "message": message, "next": "\u{7}" }).to_string()),
        )
    });
    let (status, body) = rig.json("DELETE", "/v1/bays/web/services/db", Value::Null).await;
    assert_eq!((status.as_u16(), &body["code"]), (409, &json!("service-in-use")));
    assert!(
        is_plain(&body["message"]) && body["next"].as_str().is_none_or(|next| !next.contains('\u{7}')),
        "{body}"
    );
}

#[tokio::test]
async fn logs_and_changes_are_forwarded_as_they_arrive_without_the_guests_headers() {
    let rig = rig().await;
    rig.bay("web", State::Running).await;
    guest(rig.listener(), |_, path| {
        assert!(
            matches!(
                path,
                "/v1/services/db/output?since=7&follow=true" | "/v1/watch?path=/a%20b&recursive=false"
            ),
            "{path}"
        );
        (200, endless())
    });
    for (path, kind) in [
        ("/v1/bays/web/services/db/output?since=7&follow=true", "application/octet-stream"),
        ("/v1/bays/web/watch?path=/a%20b&recursive=false", "application/x-ndjson"),
    ] {
        let response = rig.send("GET", path, Body::empty()).await;
        assert_eq!(response.headers()[header::CONTENT_TYPE], kind);
        assert!(response.headers().get(header::DATE).is_none());
        // Endless, and at the reader's pace; dropping it is enough.
        let mut pieces = response.into_body().into_data_stream();
        for _ in 0..100 {
            assert!(!pieces.next().await.unwrap().unwrap().is_empty());
        }
    }
}

#[tokio::test]
async fn invalid_paths_and_names_are_refused_before_the_guest_is_asked() {
    let rig = rig().await;
    rig.bay("web", State::Running).await;
    guest(rig.listener(), |_, path| panic!("asked for {path}"));
    for path in [
        "/v1/bays/web/watch",
        "/v1/bays/web/watch?path=relative",
        "/v1/bays/web/watch?path=/a&recursive=perhaps",
        "/v1/bays/web/watch?path=/a&other=1",
        "/v1/bays/web/services/Bad%20Name",
        "/v1/bays/web/services/..%2f..%2finfo",
        "/v1/bays/web/services/db/output?since=-1",
    ] {
        let (status, code) = rig.error("GET", path, Value::Null).await;
        assert_eq!((status, code.as_str()), (400, "invalid-input"), "{path}");
    }
}

#[tokio::test]
async fn the_list_of_ports_is_limited_and_process_names_are_escaped() {
    let rig = rig().await;
    rig.bay("web", State::Running).await;
    guest(rig.listener(), |_, path| {
        if path == "/v1/services" {
            return (500, Body::from("nonsense"));
        }
        let port = |n: u32| {
            json!({
                "protocol": "tcp", "address": "127.0.0.1", "port": n % 65536, "loopback": true, "pid": 1,
                "process": "x\u{1b}[2J", "exec": ExecId::generate(), "service": "forged",
            })
        };
        (200, Body::from(json!((0..3000).map(port).collect::<Vec<_>>()).to_string()))
    });
    let (status, ports) = rig.json("GET", "/v1/bays/web/ports", Value::Null).await;
    assert_eq!((status, ports.as_array().unwrap().len()), (StatusCode::OK, 1024));
    for port in ports.as_array().unwrap() {
        assert!(is_plain(&port["process"]) && port["service"].is_null(), "{port}");
    }
}

/// A guest that sends these events, and forwards the answers to its requests.
fn asking_guest(listener: UnixListener, events: Vec<GuestEvent>) -> mpsc::UnboundedReceiver<Value> {
    let (answers, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (answers, events) = (answers.clone(), events.clone());
            tokio::spawn(async move {
                let service =
                    hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                        let (answers, events) = (answers.clone(), events.clone());
                        async move {
                            let path = request.uri().path().to_owned();
                            let sent = request.into_body().collect().await.unwrap().to_bytes();
                            let body = match path.as_str() {
                                "/v1/info" => Body::from(info(PROTOCOL)),
                                "/v1/events" => {
                                    let lines: String =
                                        events.iter().map(|event| json!(event).to_string() + "\n").collect();
                                    // The stream stays open after these lines.
                                    let lines =
                                        futures_util::stream::once(async { Ok::<_, std::io::Error>(lines) });
                                    Body::from_stream(lines.chain(futures_util::stream::pending()))
                                }
                                path if path.starts_with("/v1/asks/") => {
                                    answers.send(serde_json::from_slice(&sent).unwrap()).ok();
                                    Body::empty()
                                }
                                _ => Body::from("[]"),
                            };
                            Ok::<_, std::convert::Infallible>(http::Response::new(body))
                        }
                    });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    heard
}

/// Attack: restores and service changes from inside, repeated until the record's disk would be full.
#[tokio::test]
async fn a_bay_that_used_up_its_share_of_the_record_can_change_nothing_from_inside() {
    let rig = rig().await;
    let bay = rig.bay("web", State::Running).await;
    // As much as the record stores of what one bay causes from inside.
    let long = json!({ "by": "inside", "argv": ["x".repeat(15_000)] });
    let draft = Draft::of(OtherEvent::new("service.define", long));
    let fill = futures_util::stream::iter(0..(64 << 20) / 15_000 + 1)
        .map(|_| rig.store.event_append(Some(bay.id), &draft))
        .buffer_unordered(64);
    assert!(fill.all(|written| async move { written.is_ok() }).await);
    let changed = || GuestEvent::Changed { change: InsideChange::HoldReleased };
    let events = vec![
        GuestEvent::Hello,
        changed(),
        changed(),
        GuestEvent::Asked { id: 1, ask: Ask::Restore { checkpoint: "v1".parse().unwrap() } },
        GuestEvent::Asked { id: 2, ask: Ask::Checkpoint { message: None } },
        GuestEvent::Asked { id: 3, ask: Ask::Checkpoints },
    ];
    let mut answers = asking_guest(rig.listener(), events);
    let (_gone, is_gone) = watch::channel(false);
    let follower = tokio::spawn(testing::follow(Arc::clone(&rig.daemon), Arc::clone(&bay), is_gone));
    for _ in 0..2 {
        let refused = answers.recv().await.unwrap();
        assert_eq!(refused["error"]["code"], "not-enough", "{refused}");
        assert!(refused["error"]["message"].as_str().unwrap().contains("used up"), "{refused}");
    }
    assert_eq!(answers.recv().await.unwrap(), json!({ "value": [] }), "looking costs the record nothing");
    follower.abort();
    let told = rig.store.events_of(bay.id, ["inside.left-out", "hold.released"], 10).await.unwrap();
    let kinds: Vec<&str> = told.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["inside.left-out"], "that it is full is on record once: {told:?}");
    let asked = ["bay.restore-asked", "checkpoint.asked"];
    assert!(rig.store.events_of(bay.id, asked, 10).await.unwrap().is_empty());
}
