//! WebSockets, tcp and passthrough rules, and the explicit proxy.

use std::process::Stdio;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bay_gateway::{Ending, Failure};
use bay_tests::suite::{self, Lack};
use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::lab::client::{self, raw, send};
use crate::lab::origin::{self, Body, Seen, text};
use crate::lab::{Entry, Lab, PATIENCE, POLICY, quick};

async fn switching(request: Request<Incoming>) -> Response<Body> {
    switch(request, Bytes::new()).await
}

/// Switches to the requested protocol, sends the greeting, and then echoes.
pub(crate) async fn switch(mut request: Request<Incoming>, greeting: Bytes) -> Response<Body> {
    let key = request.headers().get("sec-websocket-key").cloned();
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgraded));
        writer.write_all(&greeting).await.ok();
        tokio::io::copy(&mut reader, &mut writer).await.ok();
    });
    let mut answer = Response::new(text(""));
    *answer.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
    let accept = match key {
        Some(key) => {
            let mut bytes = key.as_bytes().to_vec();
            bytes.extend(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
            STANDARD.encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, &bytes))
        }
        None => String::new(),
    };
    if request.uri().path() != "/open/liar" {
        answer.headers_mut().insert("sec-websocket-accept", HeaderValue::from_str(&accept).unwrap());
    }
    answer.headers_mut().insert("connection", HeaderValue::from_static("upgrade"));
    answer.headers_mut().insert("upgrade", HeaderValue::from_static("websocket"));
    answer
}

async fn switching_lab() -> (Lab, Arc<Seen>) {
    let lab = Lab::new(POLICY).await;
    let (place, seen) = origin::serve(Some(lab.origins.server("ok.test", |_| {})), switching).await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    (lab, seen)
}

pub(crate) fn websocket(lab: &Lab, path: &str) -> Request<client::Body> {
    let mut request = lab.get("ok.test", path);
    for (name, value) in [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ] {
        request.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    request
}

#[tokio::test]
async fn http_upgrade_ws_frames_pass_both_ways_and_are_counted() {
    let (mut lab, _) = switching_lab().await;
    let mut client = lab.https("ok.test").await;
    let mut answer = client.send_request(websocket(&lab, "/open/ws")).await.unwrap();
    assert_eq!(answer.status(), 101);
    assert_eq!(answer.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    let mut stream = TokioIo::new(hyper::upgrade::on(&mut answer).await.unwrap());
    stream.write_all(b"frame").await.unwrap();
    let mut back = [0; 5];
    timeout(PATIENCE, stream.read_exact(&mut back)).await.unwrap().unwrap();
    assert_eq!(&back, b"frame");
    drop(stream);
    let ended = lab.ledger.ended().await;
    assert_eq!((ended.sent, ended.received), (5, 5));
}

#[tokio::test]
async fn http_upgrade_ws_a_policy_change_ends_an_idle_socket() {
    let (mut lab, _) = switching_lab().await;
    let mut client = lab.https("ok.test").await;
    let mut answer = client.send_request(websocket(&lab, "/open/ws")).await.unwrap();
    let mut stream = TokioIo::new(hyper::upgrade::on(&mut answer).await.unwrap());
    lab.set_policy(&POLICY.replace("/open/secret/**", "/open/ws"));
    let mut rest = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it is closed").ok();
    assert_eq!(lab.ledger.ended().await.ending, Ending::Revoked);
}

#[tokio::test]
async fn http_upgrade_ws_only_a_complete_handshake_to_an_allowed_path_switches() {
    let (mut lab, seen) = switching_lab().await;
    let mut client = lab.https("ok.test").await;
    assert_eq!(send(&mut client, websocket(&lab, "/open/secret/ws")).await.status, 403);
    assert_eq!(send(&mut client, websocket(&lab, "/closed")).await.status, 403);
    for (name, value) in [
        ("upgrade", "h2c"),
        ("upgrade", "foo"),
        ("upgrade", "websocket, foo"),
        ("sec-websocket-version", "8"),
        ("sec-websocket-key", "short"),
        ("connection", "keep-alive"),
    ] {
        let mut request = websocket(&lab, "/open/ws");
        request.headers_mut().insert(name, HeaderValue::from_static(value));
        assert_eq!(send(&mut client, request).await.status, 403, "{name}: {value}");
    }
    let mut request = websocket(&lab, "/open/ws");
    *request.method_mut() = http::Method::POST;
    assert_eq!(send(&mut client, request).await.status, 403);
    assert_eq!(seen.connections(), 0);
    // An origin that did not complete the handshake gets no tunnel.
    let mut client = lab.https("ok.test").await;
    let answer = send(&mut client, websocket(&lab, "/open/liar")).await;
    assert_eq!((answer.status, answer.json()["failure"].as_str()), (502, Some("bad-answer")));
}

#[tokio::test]
async fn http_upgrade_ws_an_allow_to_read_permits_no_websocket() {
    let (mut lab, seen) = switching_lab().await;
    for (methods, status) in [("\"GET\"", 403), ("[\"GET\", \"POST\"]", 403), ("\"WEBSOCKET\"", 101)] {
        lab.set_policy(&POLICY.replace("method = \"*\"", &format!("method = {methods}")));
        let mut client = lab.https("ok.test").await;
        let answer = client.send_request(websocket(&lab, "/open/ws")).await.unwrap();
        assert_eq!(answer.status(), status, "{methods}");
        assert_eq!(seen.connections(), usize::from(status == 101), "{methods}");
    }
    let requests = lab.ledger.entries();
    let requests = requests.iter().filter_map(|entry| match entry {
        Entry::Decided { request, .. } => Some(request.as_str()),
        _ => None,
    });
    assert!(requests.into_iter().all(|request| request.starts_with("WEBSOCKET https://ok.test")));
}

const TUNNELS: &str = r#"
[[rule]]
id = "database"
outcome = "allow"
kind = "tcp"
host = "db.test"
port = "1-65535"

[[rule]]
id = "pinned"
outcome = "allow"
kind = "passthrough"
host = "pinned.test"
port = "1-65535"
"#;

async fn echo_place() -> std::net::SocketAddr {
    origin::accept(|mut stream| async move {
        // The server sends first, as databases do.
        stream.write_all(b"hello ").await.ok();
        let (mut reader, mut writer) = stream.split();
        tokio::io::copy(&mut reader, &mut writer).await.ok();
    })
    .await
}

#[tokio::test]
async fn a_tcp_rule_forwards_bytes_both_ways_and_half_closes() {
    let mut lab = Lab::new(TUNNELS).await;
    lab.net.lead("db.test", "192.0.2.20", echo_place().await);
    let mut stream = TcpStream::connect(lab.open("db.test").await).await.unwrap();
    let mut hello = [0; 6];
    timeout(PATIENCE, stream.read_exact(&mut hello)).await.unwrap().unwrap();
    stream.write_all(&[0x16, 1, 2, 3]).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert_eq!(rest, [0x16, 1, 2, 3]);
    let ended = lab.ledger.ended().await;
    assert_eq!((ended.ending, ended.sent, ended.received), (Ending::Closed, 4, 10));
    // A private address is refused here too.
    lab.net.lead("db.test", "10.1.1.1", echo_place().await);
    let door = lab.open("db.test").await;
    assert_eq!(raw(door, b"").await, "");
    let address = |entry: &Entry| match entry {
        Entry::Ended { ended, .. } if ended.ending == (Ending::Failed { failure: Failure::Address }) => {
            Some(())
        }
        _ => None,
    };
    lab.ledger.wait(address).await;
}

#[tokio::test]
async fn a_passthrough_rule_lets_the_client_see_the_origins_own_certificate() {
    let mut lab = Lab::new(TUNNELS).await;
    let answer = |_| async { Response::new(text("from the origin")) };
    let (place, _) = origin::serve(Some(lab.origins.server("pinned.test", |_| {})), answer).await;
    lab.net.lead("pinned.test", "192.0.2.30", place);
    let door = lab.open("pinned.test").await;
    let connector =
        tokio_rustls::TlsConnector::from(client::config(&lab.origins.certificate(), &["http/1.1"]));
    let stream = TcpStream::connect(door).await.unwrap();
    let stream = connector.connect("pinned.test".try_into().unwrap(), stream).await.unwrap();
    let read = send(&mut client::http1_over(stream).await, lab.get("pinned.test", "/any")).await;
    assert_eq!(&read.body[..], b"from the origin");
    // Another name in the handshake: no tunnel, and the gateway answers the client.
    let stream = lab.tls("pinned.test", "evil.test", &["http/1.1"]).await;
    let read = send(&mut client::http1_over(stream).await, lab.get("pinned.test", "/any")).await;
    assert_eq!(read.status, 403);
    // Bytes that are not TLS are not passed through.
    assert_eq!(raw(door, b"GET / HTTP/1.1\r\n\r\n").await, "");
    lab.ledger.refused("Protocol").await;
}

#[tokio::test]
async fn a_port_without_any_allow_is_refused_immediately_and_recorded() {
    let mut lab = Lab::with(TUNNELS, quick()).await;
    let door = lab.open("evil.test").await;
    assert_eq!(raw(door, b"").await, "");
    assert_eq!(raw(door, b"\0\0\0\x08\x04\xd2\x16\x2f").await, "");
    lab.ledger.refused("Connection").await;
    assert!(lab.net.resolved.lock().unwrap().is_empty());
}

async fn proxied() -> (Lab, Arc<Seen>) {
    let lab = Lab::new(POLICY).await;
    let answer = |_| async { Response::new(text("proxied")) };
    let (place, seen) = origin::serve(Some(lab.origins.server("ok.test", |_| {})), answer).await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    (lab, seen)
}

#[tokio::test]
async fn an_explicit_proxy_serves_whole_urls() {
    let lab = Lab::new(POLICY).await;
    let (place, seen) = origin::serve(None, |_| async { Response::new(text("proxied")) }).await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    let ask = |url: &str, host: &str| {
        let bytes = format!("GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let proxy = lab.proxy;
        async move { raw(proxy, bytes.as_bytes()).await }
    };
    let answer = ask("http://ok.test/open/a", "ok.test").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("proxied"), "{answer}");
    assert_eq!(seen.requests.lock().unwrap()[0].headers["host"], "ok.test");
    assert!(ask("http://ok.test/closed", "ok.test").await.starts_with("HTTP/1.1 403"));
    assert!(ask("http://ok.test/open/a", "evil.test").await.starts_with("HTTP/1.1 403"));
    assert!(ask("/open/a", "ok.test").await.starts_with("HTTP/1.1 400"));
    assert!(ask("https://ok.test/open/a", "ok.test").await.starts_with("HTTP/1.1 400"));
    assert_eq!(seen.lines().len(), 1);
}

#[tokio::test]
async fn net_connect_port_a_tunnel_opens_only_if_something_may_be_allowed() {
    let (lab, _) = proxied().await;
    let policy = POLICY.replace("port = \"*\"", "port = 443");
    lab.set_policy(&policy);
    for target in
        ["ok.test:22", "ok.test:25", "evil.test:443", "169.254.169.254:80", "127.0.0.1:443", "[::1]:443"]
    {
        let bytes = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n");
        let answer = raw(lab.proxy, bytes.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("\"line\""), "{target}: {answer}");
    }
    for target in ["ok.test:0", "ok.test:65536", "ok.test", "user@ok.test:443"] {
        let bytes = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n");
        let answer = raw(lab.proxy, bytes.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 40"), "{target}: {answer}");
    }
    let bytes = "CONNECT ok.test:443 HTTP/1.1\r\nHost: evil.test:443\r\nConnection: close\r\n\r\n";
    assert!(raw(lab.proxy, bytes.as_bytes()).await.starts_with("HTTP/1.1 400"));
}

#[tokio::test]
async fn curl_works_with_and_without_the_proxy() {
    if std::process::Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
        return suite::skip(Lack::Installable, "there is no curl");
    }
    let (mut lab, seen) = proxied().await;
    let door = lab.open("ok.test").await;
    let directory = tempfile::tempdir().unwrap();
    let authority = directory.path().join("ca.pem");
    let encoded = STANDARD.encode(&lab.bay_authority);
    let pem = format!("-----BEGIN CERTIFICATE-----\n{encoded}\n-----END CERTIFICATE-----\n");
    std::fs::write(&authority, pem).unwrap();
    let url = format!("https://ok.test:{}/open/a", lab.port);
    let proxy = format!("http://{}", lab.proxy);
    let resolve = format!("ok.test:{}:{}", lab.port, door.ip());
    for arguments in [&["--resolve", &*resolve][..], &["--proxy", &*proxy][..]] {
        for version in ["--http1.1", "--http2"] {
            let mut curl = tokio::process::Command::new("curl");
            curl.env_clear().args(["--disable", "-sS", "--max-time", "15", "--cacert"]).arg(&authority);
            curl.args(arguments).arg(version).args(["--data-binary", "x", &*url]);
            let output = curl.output().await.unwrap();
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(String::from_utf8_lossy(&output.stdout), "proxied", "{arguments:?} {version} {told}");
        }
    }
    assert_eq!(seen.lines().len(), 4);
    // The client reads a refusal even while it is still sending.
    let large = directory.path().join("large");
    std::fs::write(&large, vec![b'x'; 2 << 20]).unwrap();
    for version in ["--http1.1", "--http2"] {
        let mut curl = tokio::process::Command::new("curl");
        curl.env_clear().args(["--disable", "-sS", "--max-time", "15", "--cacert"]).arg(&authority);
        curl.args(["--resolve", &*resolve, version, "-H", "Expect:", "--data-binary"]);
        curl.arg(format!("@{}", large.display())).arg(url.replace("/open/a", "/closed"));
        let output = curl.output().await.unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(told.contains("\"error\":\"refused\""), "{version} {output:?}");
    }
}

#[tokio::test]
async fn connect_with_another_name_in_the_handshake_is_refused() {
    let (lab, seen) = proxied().await;
    let mut stream = TcpStream::connect(lab.proxy).await.unwrap();
    let target = lab.authority("ok.test");
    let bytes = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut answer = [0; 256];
    let length = timeout(PATIENCE, stream.read(&mut answer)).await.unwrap().unwrap();
    assert!(answer[..length].starts_with(b"HTTP/1.1 200"));
    let connector = tokio_rustls::TlsConnector::from(client::config(&lab.bay_authority, &["http/1.1"]));
    let stream = connector.connect("evil.test".try_into().unwrap(), stream).await.unwrap();
    let read = send(&mut client::http1_over(stream).await, lab.get("evil.test", "/open/a")).await;
    assert_eq!((read.status, read.json()["refusal"]["code"].as_str()), (403, Some("names-differ")));
    assert_eq!(seen.connections(), 0);
}
