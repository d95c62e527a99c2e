//! HTTP through the gateway: allowed requests and refusals.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bay_gateway::{Ending, LINE_HEADER};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::lab::client::{self, send, send2};
use crate::lab::origin::{self, Body, Seen, text};
use crate::lab::{Entry, Lab, PATIENCE, POLICY};

async fn echo(request: Request<Incoming>) -> Response<Body> {
    let line = format!("{} {}", request.method(), request.uri());
    let body = request.into_body().collect().await.unwrap();
    let trailers = body.trailers().cloned();
    let body = body.to_bytes();
    let mut answer = Response::new(text(format!("{line}|{}", String::from_utf8_lossy(&body))));
    if let Some(trailers) = trailers {
        answer.headers_mut().insert("x-trailers", HeaderValue::from(trailers.len()));
    }
    answer.headers_mut().insert("alt-svc", HeaderValue::from_static("h3=\":443\""));
    answer.headers_mut().insert("x-origin", HeaderValue::from_static("yes"));
    answer
}

async fn tls_lab() -> (Lab, Arc<Seen>) {
    let lab = Lab::new(POLICY).await;
    let (place, seen) = origin::serve(Some(lab.origins.server("ok.test", |_| {})), echo).await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    (lab, seen)
}

#[tokio::test]
async fn an_allowed_request_reaches_its_origin_over_tls_and_is_recorded_to_its_end() {
    let (mut lab, seen) = tls_lab().await;
    let mut client = lab.https("ok.test").await;
    let answer = send(&mut client, lab.request("POST", "ok.test", "/open/%7Ea?q=1", "hello")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(&answer.body[..], b"POST /open/~a?q=1|hello", "what is sent is the canonical form");
    assert_eq!(answer.headers["x-origin"], "yes");
    assert!(!answer.headers.contains_key("alt-svc"));
    let ended = lab.ledger.ended().await;
    assert_eq!(ended.ending, Ending::Answered { status: 200 });
    assert_eq!((ended.sent, ended.received), (5, answer.body.len() as u64));
    let requests = seen.requests.lock().unwrap();
    assert_eq!(requests[0].headers["host"], lab.authority("ok.test").as_str());
}

#[tokio::test]
async fn a_connection_to_an_origin_is_reused() {
    let (mut lab, seen) = tls_lab().await;
    for _ in 0..3 {
        let mut client = lab.https("ok.test").await;
        for _ in 0..5 {
            assert_eq!(send(&mut client, lab.get("ok.test", "/open/a")).await.status, 200);
        }
    }
    assert_eq!(seen.lines().len(), 15);
    assert!(seen.connections() < 8, "{} connections for 15 requests", seen.connections());
}

#[tokio::test]
async fn http2_inside_the_bay_is_http2_outside_with_many_streams_on_one_connection() {
    let (mut lab, seen) = tls_lab().await;
    let client = lab.http2("ok.test").await;
    let url = format!("https://{}/open/x", lab.authority("ok.test"));
    // The first request opens the connection that the others share.
    let get = |url: &str| Request::get(url).body(client::Body::default()).unwrap();
    assert_eq!(send2(&mut client.clone(), get(&url)).await.status, 200);
    let all = (0..50).map(|_| {
        let (mut client, request) = (client.clone(), get(&url));
        tokio::spawn(async move { send2(&mut client, request).await.status })
    });
    for one in all.collect::<Vec<_>>() {
        assert_eq!(one.await.unwrap(), 200);
    }
    assert_eq!(seen.connections(), 1);
    let requests = seen.requests.lock().unwrap();
    assert!(requests.iter().all(|head| head.version == http::Version::HTTP_2));
}

#[tokio::test]
async fn a_client_of_a_registry_reads_a_refusal_in_the_form_that_it_shows() {
    let (mut lab, _) = tls_lab().await;
    let mut client = lab.https("ok.test").await;
    let pull = |lab: &Lab, agent: &str| {
        let mut request = lab.get("ok.test", "/v2/library/alpine/manifests/3");
        request.headers_mut().insert("user-agent", HeaderValue::from_str(agent).unwrap());
        request
    };
    let answer = send(&mut client, pull(&lab, "docker/27.3.1 go/go1.22.7 os/linux arch/amd64")).await;
    assert_eq!(answer.status, 403);
    let json = answer.json();
    let line = answer.headers[LINE_HEADER].to_str().unwrap();
    let error = &json["errors"][0];
    assert_eq!(error["message"], format!("the gateway of this bay: {line}"));
    assert!(line.contains("/v2/library/alpine/manifests/3"), "{line}");
    assert_eq!((&error["detail"]["record"], &error["code"]), (&json["record"], &"UNSUPPORTED".into()));
    // Everything that other clients read is there too.
    assert_eq!((&json["error"], &json["line"]), (&"refused".into(), &line.into()));
    assert!(json["would_allow"].is_array(), "{json}");
    let plain = send(&mut client, pull(&lab, "curl/8.5.0")).await.json();
    assert!(plain["errors"].is_null() && plain["error"] == "refused", "{plain}");
    // Allowed answers pass unchanged.
    let mut allowed = lab.get("ok.test", "/open/v2/");
    allowed.headers_mut().insert("user-agent", HeaderValue::from_static("docker/27.3.1"));
    assert_eq!(&send(&mut client, allowed).await.body[..], b"GET /open/v2/|");
}

#[tokio::test]
async fn plain_http_is_handled_in_the_same_way() {
    let mut lab = Lab::new(POLICY).await;
    let (place, _) = origin::serve(None, echo).await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    let mut client = lab.http("ok.test").await;
    let answer = send(&mut client, lab.get("ok.test", "/open/a")).await;
    assert_eq!(&answer.body[..], b"GET /open/a|");
}

#[tokio::test]
async fn a_refusal_has_the_request_the_reason_and_a_remedy() {
    let (mut lab, seen) = tls_lab().await;
    let mut client = lab.https("ok.test").await;
    let answer = send(&mut client, lab.get("ok.test", "/open/secret/a")).await;
    assert_eq!(answer.status, 403);
    let json = answer.json();
    assert_eq!(json["error"], "refused");
    assert_eq!(json["rule"]["id"], "never");
    assert!(json["would_allow"].is_array() && json["record"].is_string());
    let line = answer.headers[LINE_HEADER].to_str().unwrap();
    assert_eq!(json["line"], line);
    assert!(line.contains("never") && line.contains("/open/secret/a"), "{line}");
    // On the same connection, without a matching rule.
    let answer = send(&mut client, lab.get("ok.test", "/closed")).await;
    assert_eq!(answer.status, 403);
    assert_eq!(answer.json()["would_allow"][0]["step"], "add-rule");
    assert_eq!(lab.ledger.ended().await.ending, Ending::Refused);
    assert_eq!(seen.connections(), 0);
    assert!(lab.net.resolved.lock().unwrap().is_empty(), "names are looked up only for what is allowed");
}

#[tokio::test]
async fn a_request_to_a_host_without_any_allow_gets_an_answer_too() {
    let (mut lab, _) = tls_lab().await;
    let mut client = lab.https("evil.test").await;
    let answer = send(&mut client, lab.get("evil.test", "/")).await;
    assert_eq!((answer.status, answer.json()["outcome"].as_str()), (403, Some("deny")));
    let mut client = lab.http("evil.test").await;
    assert_eq!(send(&mut client, lab.get("evil.test", "/")).await.status, 403);
}

#[tokio::test]
async fn a_large_body_streams_through_both_ways_without_waiting_for_its_end() {
    let mut lab = Lab::new(POLICY).await;
    // The origin echoes each frame on arrival.
    let tls = lab.origins.server("ok.test", |_| {});
    let (place, _) = origin::serve(Some(tls), |request: Request<Incoming>| async move {
        let body = request.into_body();
        let frames = stream::unfold(body, |mut body| async move {
            let frame = body.frame().await?.ok()?;
            Some((Ok::<_, Infallible>(frame), body))
        });
        Response::new(StreamBody::new(frames).boxed_unsync())
    })
    .await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    let stream = lab.tls("ok.test", "ok.test", &["http/1.1"]).await;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let head = format!(
        "POST /open/x HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\n",
        lab.authority("ok.test")
    );
    writer.write_all(head.as_bytes()).await.unwrap();
    let mut got = Vec::new();
    for round in 0..50 {
        let chunk = vec![b'a' + (round % 26) as u8; 20_000];
        writer.write_all(format!("{:x}\r\n", chunk.len()).as_bytes()).await.unwrap();
        writer.write_all(&chunk).await.unwrap();
        writer.write_all(b"\r\n").await.unwrap();
        // The echo arrives while the request is still being sent.
        let wanted = (round + 1) * 20_000;
        while got.iter().filter(|byte: &&u8| byte.is_ascii_lowercase()).count() < wanted {
            let mut buffer = vec![0; 65536];
            let length = timeout(PATIENCE, reader.read(&mut buffer)).await.expect("it streams").unwrap();
            assert!(length > 0);
            got.extend_from_slice(&buffer[..length]);
        }
    }
    writer.write_all(b"0\r\n\r\n").await.unwrap();
    let ended = lab.ledger.ended().await;
    assert_eq!((ended.sent, ended.received), (1_000_000, 1_000_000));
}

#[tokio::test]
async fn ui_html_messages_of_the_gateway_contain_no_markup() {
    let (mut lab, _) = tls_lab().await;
    let markup = "/closed/%3Cscript%3Ealert(1)%3C/script%3E?q=<img%20src=x%20onerror=alert(1)>";
    for target in [markup, "/open/%3Cscript%3E/../x", "/<b>"] {
        let mut stream = lab.tls("ok.test", "ok.test", &["http/1.1"]).await;
        let authority = lab.authority("ok.test");
        let request = format!("GET {target} HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok();
        if answer.contains("x-workbay-record") {
            assert!(answer.contains("content-type: application/json"), "{answer}");
            assert!(answer.contains("x-content-type-options: nosniff"), "{answer}");
        }
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[tokio::test]
async fn trailers_of_a_request_are_dropped() {
    let (mut lab, seen) = tls_lab().await;
    let body = |length: usize| {
        let mut trailers = HeaderMap::new();
        trailers.insert("authorization", HeaderValue::from_static("Bearer of-somebody-else"));
        let frames = [Frame::data(Bytes::from(vec![b'x'; length])), Frame::trailers(trailers)];
        StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)))
    };
    // A body that was read ahead completely, and one that was not.
    for length in [1, 200 << 10] {
        for looks in [false, true] {
            lab.ledger.looks.store(looks, Ordering::Relaxed);
            let stream = TokioIo::new(lab.tls("ok.test", "ok.test", &["h2"]).await);
            let (mut client, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            tokio::spawn(connection);
            let url = format!("https://{}/open/a", lab.authority("ok.test"));
            let request = Request::post(url).header("trailer", "authorization").body(body(length)).unwrap();
            let answer = timeout(PATIENCE, client.send_request(request)).await.unwrap().unwrap();
            assert_eq!(answer.status(), 200);
            assert!(!answer.headers().contains_key("x-trailers"), "{length} {looks}");
        }
    }
    let mut stream = lab.tls("ok.test", "ok.test", &["http/1.1"]).await;
    let authority = lab.authority("ok.test");
    let request = format!(
        "POST /open/a HTTP/1.1\r\nhost: {authority}\r\ntransfer-encoding: chunked\r\ntrailer: authorization\r\n\
         connection: close\r\n\r\n1\r\nx\r\n0\r\nauthorization: Bearer of-somebody-else\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("200 OK") && !answer.contains("x-trailers"), "{answer}");
    assert!(seen.requests.lock().unwrap().iter().all(|head| !head.headers.contains_key("trailer")));
}

#[tokio::test]
async fn trailers_pass_over_http2() {
    let mut lab = Lab::new(POLICY).await;
    let tls = lab.origins.server("ok.test", |_| {});
    let (place, _) = origin::serve(Some(tls), |_| async {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        let frames = [Frame::data(Bytes::from_static(b"part")), Frame::trailers(trailers)];
        Response::new(StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>))).boxed_unsync())
    })
    .await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    let mut client = lab.http2("ok.test").await;
    let url = format!("https://{}/open/grpc", lab.authority("ok.test"));
    let request = Request::post(url).header("te", "trailers").body(client::Body::default()).unwrap();
    let answer = send2(&mut client, request).await;
    assert_eq!(&answer.body[..], b"part");
    assert_eq!(answer.trailers.unwrap()["grpc-status"], "0");
}

#[tokio::test]
async fn a_client_that_expects_continue_gets_it_only_for_what_is_allowed() {
    let (mut lab, seen) = tls_lab().await;
    for (path, status) in [("/open/a", "200 OK"), ("/closed", "403 Forbidden")] {
        let mut stream = lab.tls("ok.test", "ok.test", &["http/1.1"]).await;
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 4\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n",
            lab.authority("ok.test")
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut first = vec![0; 1024];
        let length = timeout(PATIENCE, stream.read(&mut first)).await.unwrap().unwrap();
        let first = String::from_utf8_lossy(&first[..length]).into_owned();
        if status.starts_with("403") {
            assert!(first.starts_with("HTTP/1.1 403"), "{first}");
            continue;
        }
        assert!(first.starts_with("HTTP/1.1 100 Continue"), "{first}");
        stream.write_all(b"body").await.unwrap();
        let mut rest = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut rest)).await.unwrap().ok();
        assert!(rest.contains(status) && rest.contains("PUT /open/a|body"), "{rest}");
    }
    assert_eq!(seen.lines(), ["PUT /open/a"]);
}

#[tokio::test]
async fn ranges_heads_and_redirects_are_forwarded_unchanged() {
    let mut lab = Lab::new(POLICY).await;
    let tls = lab.origins.server("ok.test", |_| {});
    let (place, seen) = origin::serve(Some(tls), |request: Request<Incoming>| async move {
        let mut answer = Response::new(text(""));
        if request.headers().contains_key("range") {
            *answer.status_mut() = http::StatusCode::PARTIAL_CONTENT;
            answer.headers_mut().insert("content-range", HeaderValue::from_static("bytes 0-1/9"));
            *answer.body_mut() = text("ab");
        } else if request.method() == "HEAD" {
            answer.headers_mut().insert("content-length", HeaderValue::from_static("12345"));
        } else {
            *answer.status_mut() = http::StatusCode::FOUND;
            answer.headers_mut().insert("location", HeaderValue::from_static("https://evil.test/"));
        }
        answer
    })
    .await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    let mut client = lab.https("ok.test").await;
    let mut request = lab.get("ok.test", "/open/a");
    request.headers_mut().insert("range", HeaderValue::from_static("bytes=0-1"));
    let answer = send(&mut client, request).await;
    assert_eq!((answer.status, &answer.body[..]), (206, &b"ab"[..]));
    let answer = send(&mut client, lab.request("HEAD", "ok.test", "/open/a", "")).await;
    assert_eq!((answer.status, answer.headers["content-length"].as_bytes()), (200, &b"12345"[..]));
    let answer = send(&mut client, lab.get("ok.test", "/open/a")).await;
    assert_eq!((answer.status, answer.headers["location"].as_bytes()), (302, &b"https://evil.test/"[..]));
    assert_eq!(seen.lines().len(), 3);
    assert_eq!(*lab.net.resolved.lock().unwrap().last().unwrap(), "ok.test", "redirects are not followed");
}

#[tokio::test]
async fn a_policy_change_ends_only_what_it_no_longer_allows() {
    let mut lab = Lab::new(POLICY).await;
    let served = Arc::new(AtomicUsize::new(0));
    let tls = lab.origins.server("ok.test", |_| {});
    let counted = served.clone();
    let (place, _) = origin::serve(Some(tls), move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        // Endless events.
        let events = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Some((Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"event\n"))), ()))
        });
        async { Response::new(StreamBody::new(events).boxed_unsync()) }
    })
    .await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    let mut bodies = Vec::new();
    for path in ["/open/a", "/open/b"] {
        let mut client = lab.https("ok.test").await;
        let answer = client.send_request(lab.get("ok.test", path)).await.unwrap();
        let mut body = answer.into_body();
        body.frame().await.unwrap().unwrap();
        bodies.push((client, body));
    }
    lab.set_policy(&POLICY.replace("/open/secret/**", "/open/a"));
    let cut = async { while let Some(Ok(_)) = bodies[0].1.frame().await {} };
    timeout(PATIENCE, cut).await.expect("the stream that is refused now ends");
    assert_eq!(lab.ledger.ended().await.ending, Ending::Revoked);
    for _ in 0..20 {
        timeout(PATIENCE, bodies[1].1.frame()).await.unwrap().unwrap().unwrap();
    }
    // A client that disconnects halfway is recorded too.
    drop(bodies);
    let abandoned = |entry: &Entry| match entry {
        Entry::Ended { ended, .. } if ended.ending == Ending::Abandoned => Some(()),
        _ => None,
    };
    lab.ledger.wait(abandoned).await;
    lab.ledger.all_ended_once().await;
}

#[tokio::test]
async fn a_policy_change_applies_to_a_held_request() {
    let (mut lab, seen) = tls_lab().await;
    let mut client = lab.https("ok.test").await;
    let (reached, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    *lab.ledger.hold.lock().unwrap() = Some((reached.clone(), go_on.clone()));
    let request = lab.get("ok.test", "/open/a");
    let asked = tokio::spawn(async move { send(&mut client, request).await });
    timeout(PATIENCE, reached.notified()).await.unwrap();
    lab.set_policy(&POLICY.replace("/open/secret/**", "/open/a"));
    go_on.notify_one();
    assert_eq!(asked.await.unwrap().status, 403);
    assert_eq!(lab.ledger.ended().await.ending, Ending::Revoked);
    assert!(seen.lines().is_empty(), "nothing of it was sent");
}

#[tokio::test]
async fn a_held_client_that_disconnects_is_released() {
    let (mut lab, _) = tls_lab().await;
    let door = lab.open("ok.test").await;
    let (reached, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    *lab.ledger.hold.lock().unwrap() = Some((reached.clone(), go_on.clone()));
    let mut stream = tokio::net::TcpStream::connect(door).await.unwrap();
    let head = format!("GET /open/a HTTP/1.1\r\nHost: {}\r\n\r\n", lab.authority("ok.test"));
    stream.write_all(head.as_bytes()).await.unwrap();
    timeout(PATIENCE, reached.notified()).await.unwrap();
    drop(stream);
    // The decision was dropped: only the test still holds the notification.
    let let_go = async {
        while Arc::strong_count(&go_on) > 1 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, let_go).await.expect("it is let go");
}
