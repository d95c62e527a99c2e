//! Secrets in requests: only in their slot, recorded before they are sent, and ended when they are revoked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bay_gateway::secrets::{Held, Named, Secrets};
use bay_gateway::{Ending, Failure, LINE_HEADER};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, Version};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use secrecy::SecretString;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::lab::client::{Read, send, send2};
use crate::lab::origin::{self, Body, Seen, text};
use crate::lab::{Entry, Lab, PATIENCE, POLICY};
use crate::tunnels::{switch, websocket};

pub(crate) const SENTINEL: &str = "ghp_sentinelSENTINELsentinelSENTINEL0000";
pub(crate) const CANARY: &str = "ghp_canaryCANARYcanaryCANARYcanaryCANARY";

pub(crate) fn held(lab: &Lab, value: &str, uses: &[&str]) -> Held {
    let port = lab.port;
    let uses =
        uses.iter().map(|text| match Named::parse(&text.replace("PORT", &port.to_string())).unwrap() {
            Named::Place(one) => *one,
            Named::Rule { .. } => panic!("{text}"),
        });
    Held {
        name: "TOKEN".to_owned(),
        incarnation: 1,
        uses: uses.collect(),
        sentinels: vec![SENTINEL.to_owned()],
        values: vec![Arc::new(SecretString::from(value.to_owned()))],
        public: 0,
        weak: false,
        managed: true,
        literal_bodies: false,
        guesses: Arc::default(),
    }
}

pub(crate) fn set(lab: &Lab, held: Vec<Held>) {
    *lab.ledger.secrets.lock().unwrap() = Arc::new(Secrets::new(held));
    lab.gateway.policy_changed();
}

/// Echoes the credentials in the body, and the number of bytes of the request's body.
async fn echo(request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let length = match body.collect().await {
        Ok(body) => body.to_bytes().len(),
        Err(_) => 0,
    };
    let sent = head.headers.get("authorization").map(|value| value.to_str().unwrap_or_default().to_owned());
    let mut answer = Response::new(text(format!("{} {} {length}", head.uri, sent.unwrap_or_default())));
    if let Some(sent) = head.headers.get("authorization") {
        answer.headers_mut().insert("location", sent.clone());
    }
    answer.headers_mut().insert("x-origin", HeaderValue::from_static("yes"));
    answer
}

async fn secret_lab() -> (Lab, Arc<Seen>, Arc<Seen>) {
    let lab = Lab::new(POLICY).await;
    let (place, seen) = origin::serve(Some(lab.origins.server("ok.test", |_| {})), echo).await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    let (place, other) = origin::serve(Some(lab.origins.server("also.ok.test", |_| {})), echo).await;
    lab.net.lead("also.ok.test", "192.0.2.11", place);
    let uses = [
        "GET,POST ok.test:PORT/open/api/** as bearer",
        "ok.test:PORT/open/api/** as basic",
        "ok.test:PORT/open/q as query key",
    ];
    set(&lab, vec![held(&lab, CANARY, &uses)]);
    (lab, seen, other)
}

pub(crate) fn with(
    mut request: Request<crate::lab::client::Body>,
    lines: &[(&'static str, &str)],
) -> Request<crate::lab::client::Body> {
    for (name, value) in lines {
        request.headers_mut().append(*name, HeaderValue::from_str(value).unwrap());
    }
    request
}

pub(crate) fn bearer() -> String {
    format!("Bearer {SENTINEL}")
}

/// Everything that an origin received, as text.
fn told(seen: &Seen) -> String {
    let requests = seen.requests.lock().unwrap();
    requests.iter().map(|head| format!("{} {:?}\n", head.uri, head.headers)).collect()
}

fn no_value_in(read: &Read) {
    let all = format!("{:?} {}", read.headers, String::from_utf8_lossy(&read.body));
    assert!(!all.contains(CANARY), "{all}");
}

#[tokio::test]
async fn a_value_replaces_the_sentinel_and_its_use_is_recorded_first() {
    let (mut lab, seen, _) = secret_lab().await;
    let mut client = lab.https("ok.test").await;
    let request =
        with(lab.get("ok.test", "/open/api/x"), &[("authorization", &bearer()), ("range", "bytes=0-3")]);
    let answer = send(&mut client, request).await;
    assert_eq!(answer.status, 200);
    no_value_in(&answer);
    assert_eq!(answer.headers["location"], bearer(), "the sentinel stands where the value was");
    assert!(answer.body.ends_with(format!("{} 0", bearer()).as_bytes()));
    let head = seen.requests.lock().unwrap()[0].clone();
    assert_eq!(head.headers["authorization"], format!("Bearer {CANARY}"));
    assert!(!head.headers.contains_key("range"), "half a value could not be scrubbed");
    assert_eq!(head.headers["accept-encoding"], "identity");
    let entries = lab.ledger.entries();
    let attached = entries.iter().find_map(|entry| match entry {
        Entry::Attached { id, secrets } => Some((id.clone(), secrets.clone())),
        _ => None,
    });
    let decided = entries.iter().find_map(|entry| match entry {
        Entry::Decided { id, .. } => Some(id.clone()),
        _ => None,
    });
    assert_eq!(attached, Some((decided.unwrap(), vec!["TOKEN".to_owned()])));
    assert!(!format!("{entries:?}").contains(CANARY));

    let client2 = lab.http2("ok.test").await;
    let url = format!("https://{}/open/q?a=1&key={SENTINEL}", lab.authority("ok.test"));
    let request = Request::get(&url).body(crate::lab::client::Body::default()).unwrap();
    assert_eq!(send2(&mut client2.clone(), request).await.status, 200);
    let uri = seen.requests.lock().unwrap().last().unwrap().uri.clone();
    assert_eq!(uri.query(), Some(format!("a=1&key={CANARY}").as_str()));
}

/// An origin that returns a stored credential in the format that the path names.
async fn telling(request: Request<Incoming>) -> Response<Body> {
    let said = format!("you are {CANARY}, as {}", STANDARD.encode(format!("me:{CANARY}")));
    let zipped = |coding: &str| {
        use std::io::Write;
        if coding == "gzip" {
            let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            out.write_all(said.as_bytes()).unwrap();
            return out.finish().unwrap();
        }
        let mut out = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        out.write_all(said.as_bytes()).unwrap();
        out.finish().unwrap()
    };
    let path = request.uri().path().to_owned();
    let way = path.rsplit('/').next().unwrap_or_default();
    let head = |value: &str| HeaderValue::from_str(value).unwrap();
    let mut answer = match way {
        "gzip" | "deflate" => Response::new(text(zipped(way))),
        // Byte by byte.
        "pieces" => {
            let bytes: Vec<_> =
                said.bytes().map(|byte| Ok(Frame::data(Bytes::copy_from_slice(&[byte])))).collect();
            Response::new(StreamBody::new(futures_util::stream::iter(bytes)).boxed_unsync())
        }
        "trailer" => {
            let mut trailers = http::HeaderMap::new();
            trailers.insert("x-was", head(CANARY));
            let frames = [Ok(Frame::data(Bytes::from_static(b"see below"))), Ok(Frame::trailers(trailers))];
            Response::new(StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync())
        }
        _ => Response::new(text(said)),
    };
    let headers = answer.headers_mut();
    match way {
        "gzip" | "deflate" | "compress" => drop(headers.insert("content-encoding", head(way))),
        "partial" => drop(headers.insert("content-range", head("bytes 0-9/99"))),
        _ => {}
    }
    headers.insert("etag", head(&format!("\"{CANARY}\"")));
    headers.insert("set-cookie", head(&format!("session={CANARY}; Secure")));
    headers.insert("x-escaped", head(&CANARY.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>()));
    if way == "partial" {
        *answer.status_mut() = http::StatusCode::PARTIAL_CONTENT;
    }
    answer
}

#[tokio::test]
async fn cred_echo_answers_are_scrubbed_with_any_compression_division_and_range() {
    let mut lab = Lab::new(POLICY).await;
    let (place, seen) = origin::serve(Some(lab.origins.server("ok.test", |_| {})), telling).await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    set(&lab, vec![held(&lab, CANARY, &["ok.test:PORT/open/api/** as bearer"])]);
    let escaped: String = CANARY.bytes().map(|byte| format!("%{byte:02x}")).collect();
    // A server that stored the value can return it whether or not the request carried the secret.
    for carries in [true, false] {
        for way in ["plain", "gzip", "deflate", "pieces", "trailer", "compress", "partial"] {
            for version in [Version::HTTP_11, Version::HTTP_2] {
                // A server that returns it without a reason is closed after a few answers. Each of these answers is
                // the first one.
                set(&lab, vec![held(&lab, CANARY, &["ok.test:PORT/open/api/** as bearer"])]);
                let path = format!("/open/api/{way}");
                let mut lines = vec![("te", "trailers".to_owned())];
                lines.extend(carries.then(|| ("authorization", bearer())));
                let lines: Vec<(&'static str, &str)> =
                    lines.iter().map(|(name, value)| (*name, value.as_str())).collect();
                let answer = if version == Version::HTTP_2 {
                    let url = format!("https://{}{path}", lab.authority("ok.test"));
                    let request = Request::get(url).body(crate::lab::client::Body::default()).unwrap();
                    send2(&mut lab.http2("ok.test").await, with(request, &lines)).await
                } else {
                    send(&mut lab.https("ok.test").await, with(lab.get("ok.test", &path), &lines)).await
                };
                let what = format!("{way} {version:?} {carries}");
                let all = format!(
                    "{:?} {:?} {}",
                    answer.headers,
                    answer.trailers,
                    String::from_utf8_lossy(&answer.body)
                );
                assert!(!all.contains(CANARY) && !all.contains(&escaped), "{what}: {all}");
                assert!(!all.contains(&STANDARD.encode(format!("me:{CANARY}"))[8..40]), "{what}: {all}");
                if matches!(way, "compress" | "partial") {
                    assert_eq!(
                        (answer.status, answer.json()["failure"].as_str()),
                        (502, Some("bad-answer")),
                        "{what}"
                    );
                    continue;
                }
                assert_eq!(answer.status, 200, "{what}: {all}");
                assert_eq!(answer.headers["set-cookie"], format!("session={SENTINEL}; Secure"), "{what}");
                match way {
                    "trailer" => {
                        let trailers = answer.trailers.as_ref();
                        assert!(
                            trailers.is_none_or(|trailers| trailers["x-was"] == SENTINEL),
                            "{what}: {all}"
                        );
                    }
                    // With a pause after each byte, a prefix that is not significant is released.
                    "pieces" => {
                        let said = String::from_utf8_lossy(&answer.body).into_owned();
                        let (known, seen) = ("ghp_".len(), 5);
                        assert!(!said.contains(&CANARY[..known + seen + 1]), "{what}: {said}");
                        assert!(said.contains(&SENTINEL[known + seen..]), "{what}: {said}");
                    }
                    _ => {
                        let said = String::from_utf8_lossy(&answer.body).into_owned();
                        let expected =
                            format!("you are {SENTINEL}, as {}", STANDARD.encode(format!("me:{SENTINEL}")));
                        assert_eq!(said, expected, "{what}");
                    }
                }
            }
        }
    }
    // The head alone is scrubbed too.
    let mut request = with(lab.get("ok.test", "/open/api/plain"), &[("authorization", &bearer())]);
    *request.method_mut() = http::Method::HEAD;
    let answer = send(&mut lab.https("ok.test").await, request).await;
    no_value_in(&answer);
    assert!(answer.headers["etag"].to_str().unwrap().contains(SENTINEL));
    assert!(told(&seen).contains(CANARY));
}

#[tokio::test]
async fn a_server_with_another_certificate_gets_no_value() {
    let mut lab = Lab::new(POLICY).await;
    for (name, own) in [("evil.test", true), ("ok.test", false)] {
        let other = origin::OriginAuthority::default();
        let authority = if own { &lab.origins } else { &other };
        let (place, seen) = origin::serve(Some(authority.server(name, |_| {})), telling).await;
        lab.net.lead("ok.test", "192.0.2.10", place);
        set(&lab, vec![held(&lab, CANARY, &["ok.test:PORT/open/api/** as bearer"])]);
        let request = with(lab.get("ok.test", "/open/api/x"), &[("authorization", &bearer())]);
        let answer = send(&mut lab.https("ok.test").await, request).await;
        assert_eq!((answer.status, answer.json()["failure"].as_str()), (502, Some("certificate")), "{name}");
        no_value_in(&answer);
        assert!(seen.lines().is_empty(), "{name}");
    }
}

#[tokio::test]
async fn a_sentinel_anywhere_else_is_refused_reported_and_not_forwarded() {
    let (mut lab, seen, other) = secret_lab().await;
    let agent = format!("curl {SENTINEL}");
    let query = format!("/open/api/x?q={SENTINEL}");
    let path = format!("/open/{SENTINEL}");
    type Lines = Vec<(&'static str, String)>;
    let cases: [(&str, &str, &str, Lines); 8] = [
        ("GET", "also.ok.test", "/open/api/x", vec![("authorization", bearer())]),
        ("GET", "ok.test", "/open/other", vec![("authorization", bearer())]),
        ("DELETE", "ok.test", "/open/api/x", vec![("authorization", bearer())]),
        ("GET", "ok.test", "/open/api/x", vec![("x-api-key", SENTINEL.to_owned())]),
        ("GET", "ok.test", "/open/api/x", vec![("user-agent", agent)]),
        ("GET", "ok.test", "/open/api/x", vec![("x-custom", bearer())]),
        ("GET", "ok.test", &query, vec![]),
        ("GET", "ok.test", &path, vec![]),
    ];
    for (method, host, target, lines) in cases {
        let mut client = lab.https(host).await;
        let lines: Vec<(&'static str, &str)> =
            lines.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let answer = send(&mut client, with(lab.request(method, host, target, ""), &lines)).await;
        assert_eq!(answer.status, 403, "{method} {host} {target} {lines:?}");
        let line = answer.headers[LINE_HEADER].to_str().unwrap().to_owned();
        assert!(line.contains("TOKEN"), "{line}");
        no_value_in(&answer);
    }
    let mut plain = lab.http("ok.test").await;
    let answer =
        send(&mut plain, with(lab.get("ok.test", "/open/api/x"), &[("authorization", &bearer())])).await;
    assert_eq!(answer.status, 403);
    assert!(seen.lines().is_empty() && other.lines().is_empty(), "{:?} {:?}", seen.lines(), other.lines());
    let refused = lab
        .ledger
        .entries()
        .iter()
        .filter(|entry| matches!(entry, Entry::Refused(what) if what.contains("Secret")))
        .count();
    assert_eq!(refused, 9);
    assert!(!format!("{:?}", lab.ledger.entries()).contains("Decided"), "nobody has to decide on it");
}

#[tokio::test]
async fn another_credential_to_a_managed_host_is_refused_and_cookies_are_dropped() {
    let (mut lab, seen, other) = secret_lab().await;
    let mut client = lab.https("ok.test").await;
    for line in [("authorization", "Bearer attackers-own-key"), ("x-api-key", "attackers-own-key")] {
        let answer = send(&mut client, with(lab.get("ok.test", "/open/api/x"), &[line])).await;
        assert_eq!(answer.status, 403);
        assert!(answer.headers[LINE_HEADER].to_str().unwrap().contains("managed"));
    }
    let answer =
        send(&mut client, with(lab.get("ok.test", "/open/api/x"), &[("cookie", "session=own")])).await;
    assert_eq!(answer.status, 200);
    assert!(!seen.requests.lock().unwrap()[0].headers.contains_key("cookie"));
    // No secret is for this host.
    let mut free = lab.https("also.ok.test").await;
    let own = [("authorization", "Bearer own-key"), ("cookie", "session=own")];
    assert_eq!(send(&mut free, with(lab.get("also.ok.test", "/open/x"), &own)).await.status, 200);
    assert!(told(&other).contains("session=own"));
}

#[tokio::test]
async fn a_body_is_cut_before_a_sentinel_which_is_reported() {
    let (mut lab, seen, _) = secret_lab().await;
    let mut client = lab.https("ok.test").await;
    let form = format!("--x\r\ncontent-disposition: form-data; name=\"f\"\r\n\r\n{SENTINEL}\r\n--x--\r\n");
    let request =
        with(lab.request("POST", "ok.test", "/open/api/gists", form), &[("authorization", &bearer())]);
    let answer = send(&mut client, request).await;
    assert_eq!(answer.status, 403);
    assert!(answer.headers[LINE_HEADER].to_str().unwrap().contains("body"));
    no_value_in(&answer);
    lab.ledger.refused("Body").await;
    lab.ledger.all_ended_once().await;
    let ended = lab.ledger.ended().await;
    assert_eq!(ended.ending, Ending::Failed { failure: Failure::Sentinel });
    assert!(!told(&seen).contains(SENTINEL));
    // A prompt may contain what an agent printed, so a sentinel is passed on unchanged.
    let mut open = held(&lab, CANARY, &["ok.test:PORT/open/api/** as bearer"]);
    open.literal_bodies = true;
    set(&lab, vec![open]);
    let mut client = lab.https("ok.test").await;
    let request =
        with(lab.request("POST", "ok.test", "/open/api/chat", SENTINEL), &[("authorization", &bearer())]);
    let answer = send(&mut client, request).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body.ends_with(format!(" {}", SENTINEL.len()).as_bytes()));
}

#[tokio::test]
async fn an_early_answer_to_a_request_with_a_sentinel_in_its_body_is_dropped() {
    let mut lab = Lab::new(POLICY).await;
    let hasty = |_request: Request<Incoming>| async { Response::new(text("read nothing")) };
    let (place, seen) = origin::serve(Some(lab.origins.server("ok.test", |_| {})), hasty).await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    set(&lab, vec![held(&lab, CANARY, &["ok.test:PORT/open/api/** as bearer"])]);
    for _ in 0..5 {
        let mut stream = lab.tls("ok.test", "ok.test", &["http/1.1"]).await;
        let head = format!(
            "POST /open/api/x HTTP/1.1\r\nHost: {}\r\nAuthorization: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            lab.authority("ok.test"),
            bearer(),
            SENTINEL.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        // The body follows shortly after the head. A fast origin would have answered by then.
        tokio::time::sleep(Duration::from_millis(50)).await;
        stream.write_all(SENTINEL.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 403"), "{}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(told(&seen), "");
}

#[tokio::test]
async fn a_new_value_applies_from_the_next_request_on_the_same_connection() {
    let (mut lab, seen, _) = secret_lab().await;
    let mut client = lab.https("ok.test").await;
    let ask = |lab: &Lab| with(lab.get("ok.test", "/open/api/x"), &[("authorization", &bearer())]);
    assert_eq!(send(&mut client, ask(&lab)).await.status, 200);
    let rotated =
        held(&lab, "ghp_another0another0another0another0anot", &["ok.test:PORT/open/api/** as bearer"]);
    set(&lab, vec![rotated]);
    assert_eq!(send(&mut client, ask(&lab)).await.status, 200);
    let requests = seen.requests.lock().unwrap();
    let sent: Vec<&HeaderValue> = requests.iter().map(|head| &head.headers["authorization"]).collect();
    assert_eq!(sent, [&format!("Bearer {CANARY}"), "Bearer ghp_another0another0another0another0anot"]);
}

#[tokio::test]
async fn a_held_request_whose_secret_moved_to_another_host_is_not_sent() {
    let (mut lab, seen, _) = secret_lab().await;
    let (reached, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    *lab.ledger.hold.lock().unwrap() = Some((reached.clone(), go_on.clone()));
    let mut client = lab.https("ok.test").await;
    let request = with(lab.get("ok.test", "/open/api/x"), &[("authorization", &bearer())]);
    let asked = tokio::spawn(async move { send(&mut client, request).await });
    timeout(PATIENCE, reached.notified()).await.unwrap();
    let elsewhere = "ghp_elsewhere0elsewhere0elsewhere0elsewh";
    set(&lab, vec![held(&lab, elsewhere, &["also.ok.test:PORT/open/api/** as bearer"])]);
    go_on.notify_one();
    let answer = asked.await.unwrap();
    assert_eq!(answer.status, 503);
    assert_eq!(told(&seen), "");
}

#[tokio::test]
async fn the_removal_of_a_secret_ends_its_streams_even_if_they_are_idle() {
    let mut lab = Lab::new(POLICY).await;
    let begun = Arc::new(AtomicUsize::new(0));
    let count = begun.clone();
    // One piece, and then silence.
    let silent = move |_request: Request<Incoming>| {
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            let first = futures_util::stream::iter([Ok::<_, std::convert::Infallible>(Frame::data(
                Bytes::from_static(b"first"),
            ))]);
            let rest = futures_util::stream::pending();
            Response::new(StreamBody::new(futures_util::StreamExt::chain(first, rest)).boxed_unsync())
        }
    };
    let (place, _) = origin::serve(Some(lab.origins.server("ok.test", |_| {})), silent).await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    set(&lab, vec![held(&lab, CANARY, &["ok.test:PORT/open/** as bearer"])]);
    let mut client = lab.https("ok.test").await;
    let request = with(lab.get("ok.test", "/open/events"), &[("authorization", &bearer())]);
    let response = client.send_request(request).await.unwrap();
    let mut body = response.into_body();
    // The end of the piece, which was held back, arrives a moment later.
    let mut first = Vec::new();
    while first.len() < b"first".len() {
        first.extend(body.frame().await.unwrap().unwrap().into_data().unwrap());
    }
    assert_eq!(first, b"first");
    set(&lab, vec![Held::gone("TOKEN".to_owned(), vec![SENTINEL.to_owned()])]);
    let ended = lab.ledger.ended().await;
    assert_eq!(ended.ending, Ending::Revoked);
    assert!(timeout(PATIENCE, body.frame()).await.unwrap().is_none_or(|frame| frame.is_err()));
    let mut client = lab.https("ok.test").await;
    let request = with(lab.get("ok.test", "/open/events"), &[("authorization", &bearer())]);
    let answer = send(&mut client, request).await;
    assert_eq!(answer.status, 403);
    assert!(answer.headers[LINE_HEADER].to_str().unwrap().contains("taken back"));
    assert_eq!(begun.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_stream_open_over_a_rotation_is_scrubbed_of_both_values() {
    let mut lab = Lab::new(POLICY).await;
    let (place, _) =
        origin::serve(Some(lab.origins.server("ok.test", |_| {})), |request| switch(request, Bytes::new()))
            .await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    set(&lab, vec![held(&lab, CANARY, &["ok.test:PORT/open/api/** as bearer"])]);
    let mut client = lab.https("ok.test").await;
    let request = with(websocket(&lab, "/open/api/ws"), &[("authorization", &bearer())]);
    let mut answer = client.send_request(request).await.unwrap();
    let mut stream = TokioIo::new(hyper::upgrade::on(&mut answer).await.unwrap());
    // The bay's own data is echoed. It stands for both values in a server's answer.
    let new = CANARY.replace("canary", "second");
    let mut after = held(&lab, &new, &["ok.test:PORT/open/api/** as bearer"]);
    after.values.push(Arc::new(SecretString::from(CANARY.to_owned())));
    set(&lab, vec![after]);
    lab.gateway.policy_changed();
    for value in [CANARY, new.as_str()] {
        stream.write_all(value.as_bytes()).await.unwrap();
        let mut back = vec![0; value.len()];
        timeout(PATIENCE, stream.read_exact(&mut back)).await.unwrap().unwrap();
        assert_eq!(String::from_utf8_lossy(&back), SENTINEL);
    }
    // Revoking the secret ends the stream.
    set(&lab, vec![Held::gone("TOKEN".to_owned(), vec![SENTINEL.to_owned()])]);
    lab.gateway.policy_changed();
    let mut rest = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it is closed").ok();
    assert_eq!(lab.ledger.ended().await.ending, Ending::Revoked);
}

#[tokio::test]
async fn cred_ws_a_handshake_gets_the_value_and_frames_are_scrubbed() {
    let mut lab = Lab::new(POLICY).await;
    // The origin sends the credential in a frame, and then echoes.
    let telling = |request: Request<Incoming>| async {
        let sent = request.headers()["authorization"].as_bytes().to_vec();
        let mut frame = vec![0x81, u8::try_from(sent.len()).unwrap()];
        frame.extend(sent);
        switch(request, frame.into()).await
    };
    let (place, seen) = origin::serve(Some(lab.origins.server("ok.test", |_| {})), telling).await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    set(&lab, vec![held(&lab, CANARY, &["ok.test:PORT/open/api/** as bearer"])]);

    let mut client = lab.https("ok.test").await;
    let request = with(websocket(&lab, "/open/api/ws"), &[("authorization", &bearer())]);
    let mut answer = client.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 101);
    assert!(told(&seen).contains(CANARY), "the handshake carried the value");
    let upgraded = hyper::upgrade::on(&mut answer).await.unwrap();
    let mut stream = TokioIo::new(upgraded);
    let mut frame = vec![0; 2 + bearer().len()];
    timeout(PATIENCE, stream.read_exact(&mut frame)).await.unwrap().unwrap();
    assert_eq!(frame[2..], *bearer().as_bytes(), "the sentinel stands where the value was");
    // The bay can only send what it has.
    stream.write_all(SENTINEL.as_bytes()).await.unwrap();
    let mut back = vec![0; SENTINEL.len()];
    timeout(PATIENCE, stream.read_exact(&mut back)).await.unwrap().unwrap();
    assert_eq!(back, SENTINEL.as_bytes());
}

/// An origin that reads the head of a request and writes `answer`. In it, `{token}` is the credential, `{hex}` its
/// hexadecimal form, and `{begin}` and `{end}` are its halves.
async fn repeating(lab: &Lab, answer: &'static str) -> std::net::SocketAddr {
    origin::accept_tls(lab.origins.server("ok.test", |_| {}), move |mut stream| async move {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n")
            && stream.read_buf(&mut request).await.is_ok_and(|read| read > 0)
        {}
        let request = String::from_utf8_lossy(&request).into_owned();
        let token = request.split_once("Bearer ").or_else(|| request.split_once("bearer "));
        let token = token.and_then(|(_, rest)| rest.split_ascii_whitespace().next()).expect("a token");
        let (begin, end) = token.split_at(token.len() / 2);
        let answer = answer
            .replace("{token}", token)
            .replace("{hex}", &bay_text::hex::encode(token))
            .replace("{begin}", begin)
            .replace("{end}", end);
        stream.write_all(answer.as_bytes()).await.ok();
        stream.flush().await.ok();
        stream.read_to_end(&mut Vec::new()).await.ok();
    })
    .await
}

/// Asserts that a text of the gateway contains no part of the value, plain or in hexadecimal.
fn no_piece_of_the_value_in(what: &str, read: &Read) {
    let all = format!("{:?} {}", read.headers, String::from_utf8_lossy(&read.body));
    let (known, hex) = ("ghp_".len(), bay_text::hex::encode(CANARY));
    let pieces =
        CANARY.as_bytes()[known..].windows(8).map(|piece| String::from_utf8_lossy(piece).into_owned());
    let written =
        hex.as_bytes()[2 * known..].windows(16).map(|piece| String::from_utf8_lossy(piece).into_owned());
    for piece in pieces.chain(written) {
        assert!(!all.contains(&piece), "{what}: {piece} is in {all}");
    }
}

#[tokio::test]
async fn cred_echo_error_no_answer_of_the_gateway_quotes_an_origin() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Encoding: {token}\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Encoding: {hex}\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Encoding: {begin}\r\nContent-Encoding: {end}\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Encoding: br, {end}\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: {token}, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: {token}\r\n\r\n",
        "HTTP/1.1 200 OK\r\nGrpc-Encoding: {token}\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: {token}\r\n\r\n",
        "HTTP/1.1 {token}\r\n\r\n",
        "{token}\r\n\r\n",
        "HTTP/1.1 101 {token}\r\nConnection: upgrade\r\nUpgrade: {token}\r\n\r\n",
    ] {
        let mut lab = Lab::with(POLICY, crate::lab::quick()).await;
        let place = repeating(&lab, answer).await;
        lab.net.lead("ok.test", "192.0.2.10", place);
        set(&lab, vec![held(&lab, CANARY, &["ok.test:PORT/open/api/** as bearer"])]);
        let request = with(lab.get("ok.test", "/open/api/a"), &[("authorization", &bearer())]);
        let read = send(&mut lab.https("ok.test").await, request).await;
        assert_eq!(read.status, 502, "{answer}: {read:?}");
        assert_eq!(read.json()["failure"].as_str(), Some("bad-answer"), "{answer}");
        no_piece_of_the_value_in(answer, &read);
    }
}

#[tokio::test]
async fn cred_echo_error_an_origins_http2_close_message_is_not_quoted() {
    let mut lab = Lab::with(POLICY, crate::lab::quick()).await;
    let mut tls = (*lab.origins.server("ok.test", |_| {})).clone();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let tls = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    let place = origin::accept(move |stream| {
        let tls = tls.clone();
        async move {
            let mut stream = tls.accept(stream).await.unwrap();
            // The preface, and frames up to the one with the request's head.
            let mut preface = [0; 24];
            stream.read_exact(&mut preface).await.ok();
            stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.ok();
            loop {
                let mut head = [0; 9];
                if stream.read_exact(&mut head).await.is_err() {
                    return;
                }
                let length = usize::from(head[1]) << 8 | usize::from(head[2]);
                stream.read_exact(&mut vec![0; length]).await.ok();
                if head[3] == 1 {
                    break;
                }
            }
            let length = u8::try_from(8 + CANARY.len()).unwrap();
            let go_away = [&[0, 0, length, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11][..], CANARY.as_bytes()];
            stream.write_all(&go_away.concat()).await.ok();
            stream.flush().await.ok();
            stream.read_to_end(&mut Vec::new()).await.ok();
        }
    })
    .await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    set(&lab, vec![held(&lab, CANARY, &["ok.test:PORT/open/api/** as bearer"])]);
    let url = format!("https://{}/open/api/a", lab.authority("ok.test"));
    let request = Request::get(url).body(crate::lab::client::Body::default()).unwrap();
    let request = with(request, &[("authorization", &bearer())]);
    let read = send2(&mut lab.http2("ok.test").await, request).await;
    assert_eq!((read.status, read.json()["failure"].as_str()), (502, Some("broken")), "{read:?}");
    no_piece_of_the_value_in("GOAWAY", &read);
}

#[tokio::test]
async fn cred_echo_error_the_names_of_a_certificate_are_not_quoted() {
    let mut lab = Lab::with(POLICY, crate::lab::quick()).await;
    let hex = bay_text::hex::encode(CANARY);
    let name = format!("{}.{}.test", &hex[..40], &hex[40..]);
    let tls = lab.origins.server(&name, |_| {});
    let (place, _) = origin::serve(Some(tls), echo).await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    let read = send(&mut lab.https("ok.test").await, lab.get("ok.test", "/open/a")).await;
    assert_eq!((read.status, read.json()["failure"].as_str()), (502, Some("certificate")), "{read:?}");
    no_piece_of_the_value_in("certificate", &read);
}

#[tokio::test]
async fn cred_ws_extension_an_extension_that_was_not_offered_ends_the_handshake() {
    let mut lab = Lab::new(POLICY).await;
    let telling = |request: Request<Incoming>| async {
        let mut answer = switch(request, Bytes::from_static(b"packed")).await;
        let name = HeaderValue::from_static("permessage-deflate");
        answer.headers_mut().insert("sec-websocket-extensions", name);
        answer
    };
    let (place, seen) = origin::serve(Some(lab.origins.server("ok.test", |_| {})), telling).await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    let offer = ("sec-websocket-extensions", "permessage-deflate");
    // On other hosts the two ends may agree on an extension that the client offered.
    let request = with(websocket(&lab, "/open/api/ws"), &[offer]);
    let answer = lab.https("ok.test").await.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 101);
    let read = send(&mut lab.https("ok.test").await, websocket(&lab, "/open/api/ws")).await;
    assert_eq!((read.status, read.json()["failure"].as_str()), (502, Some("bad-answer")), "not offered");

    set(&lab, vec![held(&lab, CANARY, &["ok.test:PORT/open/api/** as bearer"])]);
    for lines in [vec![("authorization", bearer())], vec![]] {
        let mut lines: Vec<(&'static str, &str)> =
            lines.iter().map(|(name, value)| (*name, value.as_str())).collect();
        lines.push(offer);
        let request = with(websocket(&lab, "/open/api/ws"), &lines);
        let read = send(&mut lab.https("ok.test").await, request).await;
        assert_eq!((read.status, read.json()["failure"].as_str()), (502, Some("bad-answer")), "{read:?}");
        assert!(read.json()["line"].as_str().unwrap().contains("extension"), "{read:?}");
    }
    let offered = |head: &http::request::Parts| head.headers.contains_key("sec-websocket-extensions");
    let offers: Vec<bool> = seen.requests.lock().unwrap().iter().map(offered).collect();
    assert_eq!(offers, [true, false, false, false], "it is offered only where nothing is to be hidden");
}
