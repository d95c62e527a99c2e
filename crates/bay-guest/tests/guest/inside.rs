//! Watches, ports, and requests of the bay's own processes.

use std::fs;
use std::net::TcpListener;
use std::time::Duration;

use bay_types::ErrorCode;
use bay_types::inside::{Activity, Can, Hold, Port, WhoAmI};
use bay_types::watch::{WatchKind, WatchLine};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::harness::{Guest, Options, PATIENCE, tty};

/// Lines of a watch, as they arrive.
struct Lines {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Lines {
    async fn of(guest: &Guest, query: &str) -> Self {
        let response = guest.stream(Method::GET, &format!("/v1/watch?{query}"), vec![]).await;
        assert_eq!(response.status(), StatusCode::OK);
        Self { body: response.into_body(), buffer: Vec::new() }
    }

    async fn next(&mut self) -> Option<WatchLine> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let piece = tokio::time::timeout(PATIENCE, self.body.frame()).await.unwrap()?;
            self.buffer.extend_from_slice(piece.unwrap().data_ref().unwrap());
        }
    }

    async fn change(&mut self) -> (WatchKind, String) {
        match self.next().await {
            Some(WatchLine::Change { kind, path, .. }) => (kind, path),
            other => panic!("{other:?} is no change"),
        }
    }
}

/// A guest that serves. Its socket for the bay's processes then exists.
async fn started() -> Guest {
    let guest = Guest::with(&Options { home: true, ..Options::default() });
    guest.ok(Method::GET, "/v1/info", vec![]).await;
    guest
}

async fn ctl_stream(guest: &Guest) -> UnixStream {
    UnixStream::connect(guest.root().join(".bay/ctl.sock")).await.unwrap()
}

/// One request of a process in the bay.
async fn ask(guest: &Guest, method: Method, path: &str) -> (StatusCode, Bytes) {
    let stream = ctl_stream(guest).await;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "bay")
        .body(Full::<Bytes>::default())
        .unwrap();
    let response = tokio::time::timeout(PATIENCE, sender.send_request(request)).await.unwrap().unwrap();
    let status = response.status();
    (status, response.into_body().collect().await.unwrap().to_bytes())
}

async fn activity(guest: &Guest) -> Activity {
    serde_json::from_slice(&guest.ok(Method::GET, "/v1/activity", vec![]).await).unwrap()
}

#[tokio::test]
async fn a_watch_sends_hello_then_each_change_and_last_the_end_of_the_directory() {
    let guest = Guest::start();
    let dir = guest.root().join("workspace/dir");
    fs::create_dir_all(dir.join("sub")).unwrap();
    let mut lines = Lines::of(&guest, "path=dir").await;
    assert_eq!(lines.next().await, Some(WatchLine::Hello));
    fs::write(dir.join("sub/file"), "x").unwrap();
    assert_eq!(lines.change().await, (WatchKind::Create, "sub/file".to_owned()));
    assert_eq!(lines.change().await, (WatchKind::Write, "sub/file".to_owned()));
    fs::remove_dir_all(&dir).unwrap();
    loop {
        match lines.next().await {
            Some(WatchLine::Change { kind: WatchKind::Remove, .. }) => {}
            Some(WatchLine::Gone { .. }) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(lines.next().await, None);
}

#[tokio::test]
async fn a_name_that_is_not_utf_8_is_reported_exactly() {
    use std::os::unix::ffi::OsStrExt;
    let guest = Guest::start();
    fs::create_dir(guest.root().join("workspace")).unwrap();
    let mut lines = Lines::of(&guest, "path=/workspace&recursive=false").await;
    assert_eq!(lines.next().await, Some(WatchLine::Hello));
    let name = std::ffi::OsStr::from_bytes(b"a\n\xff");
    fs::create_dir(guest.root().join("workspace").join(name)).unwrap();
    let Some(WatchLine::Change { path, path_escaped, is_dir, .. }) = lines.next().await else { panic!() };
    assert_eq!((path.as_str(), path_escaped.as_deref(), is_dir), ("a\n\u{fffd}", Some("a%0A%FF"), true));
}

#[tokio::test]
async fn a_path_that_cannot_be_watched_is_refused() {
    let guest = Guest::start();
    fs::write(guest.root().join("file"), "").unwrap();
    for (query, code) in [
        ("path=/nowhere", ErrorCode::PathNotFound),
        ("path=/file", ErrorCode::PathRefused),
        ("recursive=true", ErrorCode::InvalidInput),
        ("path=/&recursive=perhaps", ErrorCode::InvalidInput),
    ] {
        let error = guest.refused(Method::GET, &format!("/v1/watch?{query}"), vec![]).await;
        assert_eq!(error.code, code, "{query}: {error}");
    }
}

#[tokio::test]
async fn a_reader_that_does_not_read_delays_nobody_and_gets_a_report_of_what_it_missed() {
    let guest = Guest::start();
    let dir = guest.root().join("workspace");
    fs::create_dir(&dir).unwrap();
    let mut lines = Lines::of(&guest, "path=/workspace").await;
    assert_eq!(lines.next().await, Some(WatchLine::Hello));
    let long = "n".repeat(250);
    for n in 0..50_000 {
        let path = dir.join(format!("{long}{n:05}"));
        fs::write(&path, "").unwrap();
        fs::remove_file(&path).unwrap();
    }
    guest.ok(Method::GET, "/v1/info", vec![]).await;
    while !matches!(lines.next().await.expect("the watch goes on"), WatchLine::Dropped { .. }) {}
}

#[tokio::test]
async fn listening_sockets_are_reported() {
    let guest = started().await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    let ports: Vec<Port> = serde_json::from_slice(&guest.ok(Method::GET, "/v1/ports", vec![]).await).unwrap();
    assert!(ports.iter().any(|port| port.port == own && port.loopback), "{ports:?}");
    let (status, bytes) = ask(&guest, Method::GET, "/v1/ports").await;
    assert_eq!(status, StatusCode::OK);
    let ports: Vec<Port> = serde_json::from_slice(&bytes).unwrap();
    assert!(ports.iter().any(|port| port.port == own), "{ports:?}");
}

#[tokio::test]
async fn a_process_in_the_bay_can_ask_who_it_is_and_what_it_may_do() {
    let guest = started().await;
    let me: WhoAmI = serde_json::from_slice(&ask(&guest, Method::GET, "/v1/whoami").await.1).unwrap();
    assert_eq!((me.bay.as_str(), me.name.as_str()), ("bay_test", "testbay"));
    assert_eq!(me.uid, rustix::process::geteuid().as_raw());
    let can: Can = serde_json::from_slice(&ask(&guest, Method::GET, "/v1/can").await.1).unwrap();
    assert_eq!(can.network.outbound, "policy");
}

#[tokio::test]
async fn a_hold_is_visible_to_the_daemon_until_it_is_released() {
    let guest = started().await;
    assert_eq!(activity(&guest).await, Activity::default());
    let (status, bytes) = ask(&guest, Method::POST, "/v1/hold?seconds=600").await;
    assert_eq!(status, StatusCode::OK);
    let hold: Hold = serde_json::from_slice(&bytes).unwrap();
    assert!(hold.hold_until.is_some());
    assert_eq!(activity(&guest).await.hold_until, hold.hold_until);
    for odd in ["seconds=0", "seconds=86401", "seconds=18446744073709551616", "seconds=-1", ""] {
        let (status, _) = ask(&guest, Method::POST, &format!("/v1/hold?{odd}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{odd}");
    }
    assert_eq!(activity(&guest).await.hold_until, hold.hold_until);
    assert_eq!(ask(&guest, Method::DELETE, "/v1/hold").await.0, StatusCode::OK);
    assert_eq!(activity(&guest).await.hold_until, None);
}

#[tokio::test]
async fn a_terminals_use_is_activity() {
    let guest = started().await;
    guest.sh("echo no terminal").await;
    assert_eq!(activity(&guest).await.last_input_at, None);
    let before = jiff::Timestamp::now();
    guest.run(&tty("echo hi")).await;
    let last = activity(&guest).await.last_input_at.unwrap();
    assert!(last.as_second() >= before.as_second(), "{last} is before {before}");
}

#[tokio::test]
async fn processes_of_the_bay_cannot_send_the_requests_of_the_daemon() {
    let guest = started().await;
    for (method, path) in [
        (Method::GET, "/v1/execs"),
        (Method::POST, "/v1/shutdown"),
        (Method::GET, "/v1/files?path=/etc/shadow"),
        (Method::GET, "/v1/watch?path=/"),
    ] {
        assert_eq!(ask(&guest, method, path).await.0, StatusCode::BAD_REQUEST, "{path}");
    }
}

#[tokio::test]
async fn garbage_on_the_bays_own_socket_ends_its_connection_and_nothing_else() {
    let guest = started().await;
    let long = [b"GET /".as_slice(), &vec![b'a'; 1 << 20]].concat();
    for garbage in [
        b"\0\xff\x16\x03\x01 nonsense\r\n\r\n".as_slice(),
        b"GET",
        b"PUT /v1/execs/x HTTP/1.1\r\n\r\n",
        &long,
    ] {
        let mut stream = ctl_stream(&guest).await;
        // The connection may be closed before everything is sent.
        let _ = stream.write_all(garbage).await;
        let _ = stream.shutdown().await;
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await.unwrap();
    }
    guest.ok(Method::GET, "/v1/info", vec![]).await;
    assert_eq!(ask(&guest, Method::GET, "/v1/whoami").await.0, StatusCode::OK);
}

#[tokio::test]
async fn two_hundred_idle_connections_from_inside_block_nobody() {
    let guest = started().await;
    let mut idle = Vec::new();
    let socket = guest.root().join(".bay/ctl.sock");
    for _ in 0..200 {
        // The kernel refuses more than fit in its queue, which is fine here.
        let connect = tokio::time::timeout(Duration::from_millis(200), UnixStream::connect(&socket));
        idle.extend(connect.await.ok().and_then(Result::ok));
    }
    assert!(idle.len() >= 32, "{}", idle.len());
    for _ in 0..20 {
        let quick = tokio::time::timeout(Duration::from_secs(5), guest.ok(Method::GET, "/v1/info", vec![]));
        quick.await.expect("an answer while the bay's own socket is full");
    }
    assert_eq!(guest.sh("echo on").await.out(), "on\n");
    drop(idle);
    assert_eq!(ask(&guest, Method::GET, "/v1/whoami").await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_directory_with_the_name_of_the_socket_is_removed_in_the_background() {
    let options = Options { home: true, ..Options::default() };
    let guest = Guest::prepared(&options, |root| {
        let in_the_way = root.join(".bay/ctl.sock/deep/er");
        fs::create_dir_all(&in_the_way).unwrap();
        for n in 0..1000 {
            fs::write(in_the_way.join(n.to_string()), "").unwrap();
        }
    });
    guest.ok(Method::GET, "/v1/info", vec![]).await;
    drop(ctl_stream(&guest).await);
    let gone = async {
        while fs::read_dir(guest.root().join(".bay"))
            .unwrap()
            .flatten()
            .any(|e| e.path().is_dir() && e.file_name().as_encoded_bytes().starts_with(b".bay-old-"))
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
}
