//! Attacks by an agent: smuggling, odd paths, fronting, floods. The prefixes of the names are the classes of the
//! threat list.

use std::sync::Arc;
use std::time::Duration;

use bay_gateway::limits::{MAX_REQUESTS, MAX_STREAMS};
use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::lab::client::{self, raw, send, send2};
use crate::lab::origin::{self, Body, Seen, text};
use crate::lab::{Entry, Lab, PATIENCE, POLICY, quick};

async fn answer(request: Request<Incoming>) -> Response<Body> {
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    Response::new(text(body))
}

async fn lab(tls: bool) -> (Lab, Arc<Seen>) {
    let lab = Lab::with(POLICY, quick()).await;
    let config = tls.then(|| lab.origins.server("ok.test", |_| {}));
    let (place, seen) = origin::serve(config, answer).await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    (lab, seen)
}

/// Asserts that the origin received only requests that the decider allowed.
fn only_decided(lab: &Lab, seen: &Seen) {
    let decided: Vec<String> = lab
        .ledger
        .entries()
        .into_iter()
        .filter_map(|entry| match entry {
            Entry::Decided { request, allowed: true, .. } => Some(request),
            _ => None,
        })
        .collect();
    for line in seen.lines() {
        let (method, target) = line.split_once(' ').unwrap();
        let wanted = |request: &String| request.starts_with(method) && request.ends_with(target);
        assert!(decided.iter().any(wanted), "{line} was not decided on: {decided:?}");
        assert!(!line.contains("secret"), "{line}");
    }
}

#[tokio::test]
async fn http_smuggle_only_the_decided_request_reaches_an_origin() {
    let (mut lab, seen) = lab(false).await;
    let door = lab.open("ok.test").await;
    let host = lab.authority("ok.test");
    let smuggled = format!("GET /open/secret/x HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let cases: &[(&str, &str, bool)] = &[
        ("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n", false),
        ("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "0\r\n\r\n", false),
        ("Transfer-Encoding: xchunked\r\n", "", true),
        ("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n", true),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "0\r\n\r\n", true),
        ("Transfer-Encoding : chunked\r\n", "0\r\n\r\n", true),
        ("Transfer-Encoding:\x0bchunked\r\n", "0\r\n\r\n", true),
        ("Content-Length: 3\r\nContent-Length: 0\r\n", "abc", true),
        ("Content-Length: +3\r\n", "abc", true),
        ("Content-Length: 0x3\r\n", "abc", true),
        ("Content-Length: 3, 3\r\n", "abc", true),
        ("X: a\r\n folded\r\n", "", true),
        ("X: a\rTransfer-Encoding: chunked\r\n", "0\r\n\r\n", true),
        // Line endings of which one half is missing: parsers may disagree about them.
        ("X: a\nContent-Length: 3\r\n", "abc", false),
        ("Content-Length: 3\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n", false),
        ("Transfer-Encoding: chunked\r\n", "3\nabc\n0\n\n", false),
        ("Transfer-Encoding: chunked\r\n", "zz\r\nabc\r\n0\r\n\r\n", false),
        ("Transfer-Encoding: chunked\r\n", "3;x=\ry\r\nabc\r\n0\r\n\r\n", false),
        ("Transfer-Encoding: chunked\r\n", "0\r\njunk\r\n\r\n", false),
        ("Transfer-Encoding: chunked\r\n", "ffffffffffffffffff\r\n", false),
    ];
    for (headers, body, must_be_400) in cases {
        let bytes = format!("POST /open/a HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n{body}{smuggled}");
        let answer = raw(door, bytes.as_bytes()).await;
        if *must_be_400 {
            assert!(answer.starts_with("HTTP/1.1 400"), "{headers:?}: {answer}");
            assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "the connection is closed: {answer}");
        }
        assert!(!answer.starts_with("HTTP/1.1 5"), "{headers:?}: {answer}");
    }
    only_decided(&lab, &seen);
    assert!(!seen.lines().is_empty(), "some of it is harmless and passes");
    // Every request at the origin has one length.
    for head in seen.requests.lock().unwrap().iter() {
        let lengths = head.headers.get_all("content-length").iter().count();
        let chunked = head.headers.get_all("transfer-encoding").iter().count();
        assert!(lengths + chunked <= 1, "{head:?}");
    }
    lab.ledger.refused("Protocol").await;
    lab.ledger.all_ended_once().await;
}

#[tokio::test]
async fn http_path_an_ambiguous_path_is_refused_before_rules_apply() {
    let (mut lab, seen) = lab(false).await;
    let door = lab.open("ok.test").await;
    let host = lab.authority("ok.test");
    let paths = [
        "/open/../closed",
        "/open/%2e%2e/closed",
        "/open/%252e%252e/closed",
        "/open//a",
        "/open/./a",
        "/open/a;x",
        "/open/a\\b",
        "/open/%00",
        "/open/%c0%ae",
        "/open/%zz",
        "/open/%5c..%5cx",
    ];
    for path in paths {
        let answer =
            raw(door, format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes())
                .await;
        let refused = answer.starts_with("HTTP/1.1 403") || answer.starts_with("HTTP/1.1 400");
        assert!(refused, "{path}: {answer}");
    }
    // The deny rule matches other capitals and a trailing dot too, because forgiving servers do.
    for path in ["/open/SECRET/a", "/open/secret./a", "/open/secret%2Fa"] {
        let answer =
            raw(door, format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes())
                .await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{path}: {answer}");
    }
    let lines = [
        format!("GET http://evil.test/open/a HTTP/1.1\r\nHost: {host}\r\n"),
        format!("GET /open/a HTTP/1.1\r\nHost: {host}\r\nHost: evil.test\r\n"),
        format!("GET /open/a HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n"),
        "GET /open/a HTTP/1.1\r\nHost: evil.test\r\n".to_owned(),
        format!("GET /open/a HTTP/1.1\r\nHost: user@{host}\r\n"),
        "GET /open/a HTTP/1.1\r\n".to_owned(),
        format!("GET /open/a HTTP/1.1\r\nHost: {host}\r\nX-Original-URL: /closed\r\n"),
        format!("GET /open/a HTTP/1.1\r\nHost: {host}\r\nX-HTTP-Method-Override: DELETE\r\n"),
        format!("get /open/a HTTP/1.1\r\nHost: {host}\r\n"),
        format!("TRACE /open/a HTTP/1.1\r\nHost: {host}\r\n"),
        format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n"),
    ];
    for line in lines {
        let answer = raw(door, format!("{line}Connection: close\r\n\r\n").as_bytes()).await;
        let refused = answer.starts_with("HTTP/1.1 403") || answer.starts_with("HTTP/1.1 400");
        assert!(refused, "{line}: {answer}");
    }
    assert_eq!(seen.connections(), 0);
}

#[tokio::test]
async fn net_front_sni_all_names_of_a_connection_must_be_equal() {
    let (mut lab, seen) = lab(true).await;
    // The address of ok.test with evil.test in the handshake, and the other way round.
    for (looked_up, sni, host) in [
        ("ok.test", "evil.test", "ok.test"),
        ("ok.test", "evil.test", "evil.test"),
        ("evil.test", "ok.test", "ok.test"),
        ("ok.test", "ok.test", "evil.test"),
    ] {
        let stream = lab.tls(looked_up, sni, &["http/1.1"]).await;
        let mut client = client::http1_over(stream).await;
        let answer = send(&mut client, lab.get(host, "/open/a")).await;
        assert_eq!(answer.status, 403, "{looked_up} {sni} {host}");
        assert_eq!(answer.json()["refusal"]["code"], "names-differ", "{looked_up} {sni} {host}");
    }
    // Without SNI the certificate is the destination's, so the client can read the reason.
    let door = lab.open("ok.test").await;
    let mut config = (*client::config(&lab.bay_authority, &["http/1.1"])).clone();
    config.enable_sni = false;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(door).await.unwrap();
    let stream = connector.connect("ok.test".try_into().unwrap(), stream).await.unwrap();
    let answer = send(&mut client::http1_over(stream).await, lab.get("ok.test", "/open/a")).await;
    assert_eq!(answer.json()["refusal"]["code"], "name-missing");
    assert_eq!(seen.connections(), 0);
}

#[tokio::test]
async fn net_front_sni_a_handshake_in_many_small_pieces_still_works() {
    let (mut lab, _) = lab(true).await;
    let door = lab.open("ok.test").await;
    // Each byte of the client travels alone.
    let (near, far) = tokio::io::duplex(1);
    tokio::spawn(async move {
        let stream = TcpStream::connect(door).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut far = far;
        let mut stream = stream;
        tokio::io::copy_bidirectional_with_sizes(&mut far, &mut stream, 1, 1).await.ok();
    });
    let connector = tokio_rustls::TlsConnector::from(client::config(&lab.bay_authority, &["http/1.1"]));
    let stream =
        timeout(PATIENCE, connector.connect("ok.test".try_into().unwrap(), near)).await.unwrap().unwrap();
    let answer = send(&mut client::http1_over(stream).await, lab.get("ok.test", "/open/a")).await;
    assert_eq!(answer.status, 200);
    lab.ledger.all_ended_once().await;
}

#[tokio::test]
async fn net_h2_authority_each_stream_must_have_the_name_of_its_connection() {
    let (mut lab, seen) = lab(true).await;
    let mut client = lab.http2("ok.test").await;
    let good = lab.authority("ok.test");
    let get = |url: String| Request::get(url).body(client::Body::default()).unwrap();
    // A second origin on the same connection, as browsers coalesce them.
    let answer = send2(&mut client, get(format!("https://{}/open/a", lab.authority("evil.test")))).await;
    assert_eq!((answer.status, answer.json()["refusal"]["code"].as_str()), (403, Some("names-differ")));
    let answer = send2(&mut client, get(format!("https://{}/open/a", lab.authority("other.ok.test")))).await;
    assert_eq!(answer.status, 403);
    let mut request = get(format!("https://{good}/open/a"));
    request.headers_mut().insert("host", HeaderValue::from_static("evil.test"));
    assert_eq!(send2(&mut client, request).await.status, 403);
    let answer = send2(&mut client, get(format!("https://{good}/open/a"))).await;
    assert_eq!(answer.status, 200, "the connection goes on for what is right");
    assert_eq!(seen.lines().len(), 1);
}

#[tokio::test]
async fn net_h2_authority_http2_without_tls_is_refused() {
    let (mut lab, seen) = lab(false).await;
    let door = lab.open("ok.test").await;
    let answer = raw(door, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    assert!(!answer.contains("200"), "{answer}");
    lab.ledger.refused("Protocol").await;
    let host = lab.authority("ok.test");
    let upgrade = format!(
        "GET /open/a HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    );
    let answer = raw(door, upgrade.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert_eq!(seen.connections(), 0);
}

#[tokio::test]
async fn net_dns_rebind_a_private_address_is_refused_at_the_dial_and_on_kept_connections() {
    let policy = r#"
[[rule]]
id = "private"
outcome = "allow"
host = "ok.test"
port = "*"
path = "/private/**"
address = "10.0.0.0/8"

[[rule]]
id = "public"
outcome = "allow"
host = "ok.test"
port = "*"
path = "/open/**"
"#;
    let mut lab = Lab::new(policy).await;
    let (place, seen) = origin::serve(Some(lab.origins.server("ok.test", |_| {})), answer).await;
    lab.net.lead("ok.test", "10.0.0.7", place);
    let mut client = lab.https("ok.test").await;
    let refused = send(&mut client, lab.get("ok.test", "/open/a")).await;
    assert_eq!((refused.status, refused.json()["address"]["class"].as_str()), (403, Some("private")));
    assert!(lab.net.dialled.lock().unwrap().is_empty());
    assert_eq!(send(&mut client, lab.get("ok.test", "/private/a")).await.status, 200);
    // A kept connection exists now, to an address that the policy does not permit for this request.
    assert_eq!(send(&mut client, lab.get("ok.test", "/open/a")).await.status, 403);
    assert_eq!(seen.lines().len(), 1);
    for address in ["169.254.169.254", "127.0.0.1", "::ffff:10.0.0.1", "fd00:ec2::254", "0.0.0.0"] {
        lab.net.lead("ok.test", address, place);
        let refused = send(&mut client, lab.get("ok.test", "/open/a")).await;
        assert_eq!(refused.status, 403, "{address}");
    }
}

#[tokio::test]
async fn an_address_without_a_name_leads_nowhere() {
    let (lab, _) = lab(true).await;
    let door = lab.open_address(200).await;
    assert_eq!(raw(door, b"GET /open/a HTTP/1.1\r\nHost: ok.test\r\n\r\n").await, "");
    lab.ledger.refused("Nameless").await;
}

#[tokio::test]
async fn http_slowloris_an_endless_head_and_a_silent_client_are_disconnected() {
    let (mut lab, seen) = lab(true).await;
    let door = lab.open("ok.test").await;
    let mut slow = TcpStream::connect(door).await.unwrap();
    slow.write_all(b"GET /open/a HTTP/1.1\r\nHost: ok").await.unwrap();
    let mut silent = TcpStream::connect(door).await.unwrap();
    let mut half_tls = TcpStream::connect(door).await.unwrap();
    half_tls.write_all(&[0x16, 3, 1, 2, 0, 1, 0]).await.unwrap();
    let mut idle_h2 = lab.tls("ok.test", "ok.test", &["h2"]).await;
    let mut rest = Vec::new();
    for stream in [&mut slow, &mut silent, &mut half_tls] {
        timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it is closed").ok();
    }
    timeout(PATIENCE, idle_h2.read_to_end(&mut rest))
        .await
        .expect("an idle HTTP/2 connection is closed")
        .ok();
    assert_eq!(seen.connections(), 0);
}

#[tokio::test]
async fn heads_beyond_the_limits_are_refused() {
    let (mut lab, seen) = lab(false).await;
    let door = lab.open("ok.test").await;
    let host = lab.authority("ok.test");
    let many = "X: y\r\n".repeat(100_000);
    let long = format!("X: {}\r\n", "y".repeat(1 << 20));
    for headers in [many, long] {
        let mut stream = TcpStream::connect(door).await.unwrap();
        let bytes = format!("GET /open/a HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n");
        // The gateway may close before all of it is written.
        stream.write_all(bytes.as_bytes()).await.ok();
        let mut answer = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().ok();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
    assert_eq!(seen.connections(), 0);
}

#[tokio::test]
async fn http_h2_rapid_reset_ends_the_connection_and_not_the_gateway() {
    let (mut lab, _) = lab(true).await;
    let mut stream = lab.tls("ok.test", "ok.test", &["h2"]).await;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    let authority = lab.authority("ok.test");
    // GET, https, literal authority and path. The stream is reset at once.
    let mut block = vec![0x82, 0x87, 0x41, authority.len() as u8];
    block.extend(authority.as_bytes());
    block.extend([0x44, 7]);
    block.extend(b"/open/a");
    for number in 0..5000u32 {
        let id = (2 * number + 1).to_be_bytes();
        bytes.extend([0, 0, block.len() as u8, 1, 5]);
        bytes.extend(id);
        bytes.extend(&block);
        bytes.extend([0, 0, 4, 3, 0]);
        bytes.extend(id);
        bytes.extend([0, 0, 0, 8]);
    }
    stream.write_all(&bytes).await.ok();
    let mut answer = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the connection is ended").ok();
    let mut client = lab.https("ok.test").await;
    let request = lab.get("ok.test", "/open/a");
    let answer = timeout(Duration::from_secs(5), send(&mut client, request)).await.unwrap();
    assert_eq!(answer.status, 200);
    lab.ledger.all_ended_once().await;
}

#[tokio::test]
async fn requests_beyond_the_limit_of_a_bay_are_refused_without_affecting_others() {
    let mut lab = Lab::new(POLICY).await;
    let tls = lab.origins.server("ok.test", |_| {});
    // An origin that never answers, so each request stays under way.
    let (place, _) = origin::serve(Some(tls), |_| std::future::pending::<Response<Body>>()).await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    let authority = lab.authority("ok.test");
    let get = |path: &str| {
        Request::get(format!("https://{authority}{path}")).body(client::Body::default()).unwrap()
    };
    let mut held = Vec::new();
    while held.len() < MAX_REQUESTS {
        let client = lab.http2("ok.test").await;
        for _ in 0..(MAX_STREAMS as usize).min(MAX_REQUESTS - held.len()) {
            let (mut client, request) = (client.clone(), get("/open/held"));
            held.push(tokio::spawn(async move { client.send_request(request).await.map(|_| ()) }));
        }
    }
    // The request is refused in any case. With a free permit the reason would be the policy.
    let mut late = lab.http2("ok.test").await;
    let full = async {
        loop {
            let answer = send2(&mut late, get("/closed")).await;
            if answer.status != 403 {
                break answer;
            }
        }
    };
    let refused = timeout(PATIENCE, full).await.expect("all that fit are let through");
    assert_eq!(refused.status, 503);
    assert!(refused.json()["line"].as_str().unwrap().contains("as many requests"), "{refused:?}");
    lab.ledger.refused("TooMany").await;
    held.iter().for_each(tokio::task::JoinHandle::abort);
    let again = async { while send2(&mut late, get("/closed")).await.status != 403 {} };
    timeout(PATIENCE, again).await.expect("there is room again");
}

#[tokio::test]
async fn while_the_hosts_own_addresses_are_unknown_no_connection_is_made() {
    let (mut lab, seen) = lab(true).await;
    let mut client = lab.https("ok.test").await;
    *lab.net.own.lock().unwrap() = Some(vec!["192.0.2.10".parse().unwrap()]);
    let refused = send(&mut client, lab.get("ok.test", "/open/a")).await;
    assert_eq!(refused.status, 403, "a name that leads to the host itself");
    *lab.net.own.lock().unwrap() = None;
    let failed = send(&mut client, lab.get("ok.test", "/open/a")).await;
    assert_eq!((failed.status, failed.json()["failure"].as_str()), (502, Some("connect")));
    assert_eq!(seen.connections(), 0);
    *lab.net.own.lock().unwrap() = Some(Vec::new());
    assert_eq!(send(&mut client, lab.get("ok.test", "/open/a")).await.status, 200);
}

/// The beginning of an HTTP/2 connection, with a request whose head never ends.
fn endless_head(block: &[u8]) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    bytes.extend(&u32::try_from(block.len()).unwrap().to_be_bytes()[1..]);
    bytes.extend([1, 1, 0, 0, 0, 1]);
    bytes.extend(block);
    bytes
}

#[tokio::test]
async fn http_continuation_and_hpack_endless_or_expanding_heads_end_only_their_connection() {
    let (mut lab, seen) = lab(true).await;
    let authority = lab.authority("ok.test");
    let mut start = vec![0x82, 0x87, 0x41, u8::try_from(authority.len()).unwrap()];
    start.extend(authority.as_bytes());
    start.extend([0x44, 7]);
    start.extend(b"/open/a");
    // Endless pieces of one head, each a header of its own.
    let piece: Vec<u8> = b"\0\x01x\x01y".repeat(3000);
    // One long header in the compression table, and a thousand one-byte references to it.
    let mut swelling = vec![0x40, 1, b'z', 0x7f, 0xa1, 0x1e];
    swelling.extend(vec![b'z'; 4000]);
    swelling.extend(vec![0xbe; 10_000]);
    for (piece, count) in [(piece, 2000), (swelling, 2), (Vec::new(), 200_000)] {
        let mut stream = lab.tls("ok.test", "ok.test", &["h2"]).await;
        let mut frame = u32::try_from(piece.len()).unwrap().to_be_bytes()[1..].to_vec();
        frame.extend([9, 0, 0, 0, 0, 1]);
        frame.extend(&piece);
        let flood = async {
            stream.write_all(&endless_head(&start)).await?;
            for _ in 0..count {
                stream.write_all(&frame).await?;
            }
            stream.write_all(&[0, 0, 0, 9, 4, 0, 0, 0, 1]).await?;
            stream.flush().await?;
            // A refusal, or the end of the connection.
            let mut answer = Vec::new();
            while stream.read_buf(&mut answer).await? > 0 && answer.len() < 1 << 16 {}
            std::io::Result::Ok(())
        };
        let ended = timeout(PATIENCE, flood).await;
        assert!(ended.is_ok(), "{count} pieces of {} bytes are taken for ever", piece.len());
        assert_eq!(seen.lines().len(), 0);
    }
    let mut client = lab.https("ok.test").await;
    assert_eq!(send(&mut client, lab.get("ok.test", "/open/a")).await.status, 200);
}
