//! The envd interface on the wire: requests that well-behaved clients never send, and what clients rely on.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::time::Duration;

use bay_tests::suite;
use bay_text::percent::path_value;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::harness::{Guest, PATIENCE};

const CALL: &str = "application/json";
const STREAM: &str = "application/connect+json";

/// A guest whose root has a user `user`, who owns new files. Only root can set the owner.
fn guest() -> Option<Guest> {
    if !suite::has_root("giving files to users") {
        return None;
    }
    let guest = Guest::start();
    let root = guest.root();
    fs::create_dir_all(root.join("etc")).unwrap();
    fs::create_dir_all(root.join("home/user")).unwrap();
    fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
        .unwrap();
    fs::write(root.join("etc/group"), "root:x:0:\nuser:x:1000:\n").unwrap();
    Some(guest)
}

fn post(path: &str, kind: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::post(path)
        .header("host", "guest")
        .header("content-type", kind)
        .body(Full::new(body.into()))
        .unwrap()
}

fn get(path: &str) -> Request<Full<Bytes>> {
    Request::get(path).header("host", "guest").body(Full::default()).unwrap()
}

async fn ask(guest: &Guest, request: Request<Full<Bytes>>) -> (StatusCode, Bytes) {
    let response = guest.send(request).await;
    let status = response.status();
    (status, response.into_body().collect().await.unwrap().to_bytes())
}

/// A call and its answer as JSON.
async fn call(guest: &Guest, method: &str, message: &Value) -> (StatusCode, Value) {
    let service = if method.chars().next().is_some_and(|c| "LUSC".contains(c)) && PROCESS.contains(&method) {
        "process.Process"
    } else {
        "filesystem.Filesystem"
    };
    let (status, body) = ask(guest, post(&format!("/{service}/{method}"), CALL, message.to_string())).await;
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

const PROCESS: &[&str] = &["List", "Update", "SendInput", "SendSignal", "CloseStdin"];

fn envelope(flags: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[flags][..], &len, body].concat()
}

/// The messages of a streamed answer, each with its flags.
fn messages(mut body: &[u8]) -> Vec<(u8, Value)> {
    let mut all = Vec::new();
    while let Some((head, rest)) = body.split_first_chunk::<5>() {
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        all.push((head[0], serde_json::from_slice(&rest[..len]).unwrap()));
        body = &rest[len..];
    }
    assert!(body.is_empty(), "half a message");
    all
}

fn start_message(script: &str, more: &Value) -> Vec<u8> {
    let mut message =
        json!({ "process": { "cmd": "/bin/sh", "args": ["-c", script], "cwd": "/" }, "stdin": false });
    for (key, value) in more.as_object().into_iter().flatten() {
        message[key] = value.clone();
    }
    envelope(0, message.to_string().as_bytes())
}

async fn run(guest: &Guest, script: &str, more: &Value) -> Vec<(u8, Value)> {
    let (status, body) =
        ask(guest, post("/process.Process/Start", STREAM, start_message(script, more))).await;
    assert_eq!(status, StatusCode::OK);
    messages(&body)
}

/// Why a stream was refused.
fn refusal(all: &[(u8, Value)]) -> String {
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0].0, 2);
    all[0].1["error"]["code"].as_str().unwrap().to_owned()
}

/// A stream that is read message by message.
struct Following {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Following {
    async fn open(guest: &Guest, path: &str, message: Vec<u8>) -> Self {
        let response = guest.send(post(path, STREAM, message)).await;
        assert_eq!(response.status(), StatusCode::OK);
        Self { body: response.into_body(), buffer: Vec::new() }
    }

    async fn next(&mut self) -> (u8, Value) {
        loop {
            if let Some((head, rest)) = self.buffer.split_first_chunk::<5>() {
                let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                if rest.len() >= len {
                    let message = (head[0], serde_json::from_slice(&rest[..len]).unwrap());
                    self.buffer.drain(..5 + len);
                    return message;
                }
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.unwrap();
            self.buffer.extend(frame.expect("the stream goes on").unwrap().into_data().unwrap());
        }
    }

    async fn pid(&mut self) -> u64 {
        let (_, first) = self.next().await;
        first["event"]["start"]["pid"].as_u64().unwrap()
    }
}

#[tokio::test]
async fn a_process_reports_its_start_its_output_and_its_end() {
    let Some(guest) = guest() else { return };
    let all = run(&guest, "printf out; printf err >&2; exit 3", &json!({ "process_unknown": [1] })).await;
    assert!(all[0].1["event"]["start"]["pid"].as_u64().unwrap() > 0);
    let text = serde_json::to_string(&all.iter().map(|(_, m)| m).collect::<Vec<_>>()).unwrap();
    assert!(text.contains(r#"{"stdout":"b3V0"}"#) && text.contains(r#"{"stderr":"ZXJy"}"#), "{text}");
    let end = &all[all.len() - 2].1["event"]["end"];
    assert_eq!(
        (&end["exitCode"], &end["exited"], &end["status"]),
        (&json!(3), &json!(true), &json!("exit status 3"))
    );
    assert_eq!(all.last().unwrap(), &(2, json!({})));
    // It is an exec like any other.
    let execs: Value = serde_json::from_slice(&ask(&guest, get("/v1/execs")).await.1).unwrap();
    assert_eq!(execs[0]["spec"]["user"], "user");
    assert_eq!(execs[0]["exit"]["code"], 3);
}

#[tokio::test]
async fn a_process_outlives_its_client_and_dies_at_its_deadline() {
    let Some(guest) = guest() else { return };
    let mut first =
        Following::open(&guest, "/process.Process/Start", start_message("sleep 100", &json!({ "tag": "t" })))
            .await;
    let pid = first.pid().await;
    drop(first);
    let (_, listed) = call(&guest, "List", &json!({})).await;
    assert_eq!(listed["processes"][0]["pid"], pid);
    let by_tag = envelope(0, json!({ "process": { "tag": "t" } }).to_string().as_bytes());
    let mut second = Following::open(&guest, "/process.Process/Connect", by_tag.clone()).await;
    assert_eq!(second.pid().await, pid);
    let kill = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" });
    assert_eq!(call(&guest, "SendSignal", &kill).await.0, StatusCode::OK);
    assert_eq!(second.next().await.1["event"]["end"]["status"], "signal: killed");
    // Its end can still be read, but it is in no list and takes no signal.
    let mut third = Following::open(&guest, "/process.Process/Connect", by_tag).await;
    assert_eq!(third.pid().await, pid);
    assert_eq!(third.next().await.1["event"]["end"]["exitCode"], -1);
    assert_eq!(call(&guest, "List", &json!({})).await.1["processes"], json!([]));
    assert_eq!(call(&guest, "SendSignal", &kill).await.0, StatusCode::NOT_FOUND);

    let mut timed = post("/process.Process/Start", STREAM, start_message("sleep 100", &json!({})));
    timed.headers_mut().insert("connect-timeout-ms", "300".parse().unwrap());
    let (_, body) = ask(&guest, timed).await;
    assert_eq!(messages(&body).last().unwrap().1["error"]["code"], "deadline_exceeded");
    let listed =
        || async { call(&guest, "List", &json!({})).await.1["processes"].as_array().map(Vec::is_empty) };
    guest.eventually(|| async { listed().await.filter(|gone| *gone) }).await;
}

#[tokio::test]
async fn input_reaches_a_process_by_calls_and_by_a_stream() {
    let Some(guest) = guest() else { return };
    let mut cat =
        Following::open(&guest, "/process.Process/Start", start_message("cat", &json!({ "stdin": true })))
            .await;
    let process = json!({ "pid": cat.pid().await });
    let send = json!({ "process": process, "input": { "stdin": "YQ==" } });
    assert_eq!(call(&guest, "SendInput", &send).await.0, StatusCode::OK);
    assert_eq!(cat.next().await.1["event"]["data"]["stdout"], "YQ==");
    let stream = [
        envelope(0, json!({ "start": { "process": process } }).to_string().as_bytes()),
        envelope(0, br#"{"keepalive":{}}"#),
        envelope(0, br#"{"data":{"input":{"stdin":"Yg"}}}"#),
    ]
    .concat();
    let (_, body) = ask(&guest, post("/process.Process/StreamInput", STREAM, stream)).await;
    assert_eq!(messages(&body), [(0, json!({})), (2, json!({}))]);
    assert_eq!(cat.next().await.1["event"]["data"]["stdout"], "Yg==");
    for odd in [
        json!({ "process": process, "input": { "stdin": "!" } }),
        json!({ "process": process, "input": {} }),
        json!({ "process": process }),
        json!({ "process": process, "input": { "pty": "YQ==" } }),
        json!({ "input": { "stdin": "YQ==" } }),
    ] {
        assert_eq!(call(&guest, "SendInput", &odd).await.0, StatusCode::BAD_REQUEST, "{odd}");
    }
    let early = envelope(0, br#"{"data":{"input":{"stdin":"Yg"}}}"#);
    let (_, body) = ask(&guest, post("/process.Process/StreamInput", STREAM, early)).await;
    assert_eq!(refusal(&messages(&body)), "invalid_argument");
    assert_eq!(call(&guest, "CloseStdin", &json!({ "process": process })).await.0, StatusCode::OK);
    assert_eq!(cat.next().await.1["event"]["end"]["status"], "exit status 0");
}

#[tokio::test]
async fn malformed_streams_are_refused_and_end_nothing() {
    let Some(guest) = guest() else { return };
    let start = |body: Vec<u8>| ask(&guest, post("/process.Process/Start", STREAM, body));
    for (body, code) in [
        (vec![], "invalid_argument"),
        (b"\0\0".to_vec(), "invalid_argument"),
        (b"\0\xff\xff\xff\xff".to_vec(), "resource_exhausted"),
        (b"\0\0\0\0\x10{}".to_vec(), "invalid_argument"),
        (envelope(1, b"{}"), "unimplemented"),
        (envelope(0x40, b"{}"), "invalid_argument"),
        (envelope(0, b"{"), "invalid_argument"),
        (envelope(0, b"\xff\xfe"), "invalid_argument"),
        (envelope(0, b"{}"), "invalid_argument"),
        (envelope(2, b"{}"), "invalid_argument"),
        (envelope(0, br#"{"process":{"cmd":"/no/such/program","cwd":"/"}}"#), "invalid_argument"),
        (envelope(0, br#"{"process":{"cmd":"/bin/sh","cwd":"/no/such/directory"}}"#), "invalid_argument"),
        (envelope(0, br#"{"process":{"cmd":"/bin/sh","cwd":"/","envs":{"A=B":"c"}}}"#), "invalid_argument"),
        (envelope(0, b"{\"process\":{\"cmd\":\"a\\u0000b\",\"cwd\":\"/\"}}"), "invalid_argument"),
    ] {
        let (status, answer) = start(body.clone()).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(refusal(&messages(&answer)), code, "{}", String::from_utf8_lossy(&body));
    }
    let deep = envelope(0, "[".repeat(100_000).as_bytes());
    assert_eq!(refusal(&messages(&start(deep).await.1)), "invalid_argument");
    assert_eq!(
        ask(&guest, post("/process.Process/Start", CALL, "{}")).await.0,
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    );
    assert_eq!(
        ask(&guest, post("/process.Process/Nothing", CALL, "{}")).await.0,
        StatusCode::NOT_IMPLEMENTED
    );
    for user in ["Basic !", "Bearer dXNlcjo=", "Basic bm9ib2R5LWhlcmU6", "Basic", "Basic cm9vdDp1c2Vy=="] {
        let mut request = post("/process.Process/Start", STREAM, start_message("true", &json!({})));
        request.headers_mut().insert("authorization", user.parse().unwrap());
        let (_, answer) = ask(&guest, request).await;
        if user != "Basic cm9vdDp1c2Vy==" {
            assert_eq!(refusal(&messages(&answer)), "unauthenticated", "{user}");
        }
    }
    let gone = envelope(0, br#"{"process":{"pid":4294967295}}"#);
    let (_, answer) = ask(&guest, post("/process.Process/Connect", STREAM, gone)).await;
    assert_eq!(refusal(&messages(&answer)), "not_found");
    assert_eq!(ask(&guest, get("/health")).await.0, StatusCode::NO_CONTENT);
}

/// The client sends its whole request before it reads. The refusal must still reach it.
#[tokio::test]
async fn a_refusal_reaches_a_client_that_is_still_sending() {
    let Some(guest) = guest() else { return };
    let much = vec![b'x'; 20 << 20];
    let (status, answer) = ask(&guest, post("/files?path=/", "application/octet-stream", much.clone())).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer:?}");
    assert_eq!(
        ask(&guest, post("/files?path=a", "text/plain", much.clone())).await.0,
        StatusCode::BAD_REQUEST
    );
    let (status, _) = ask(&guest, post("/filesystem.Filesystem/Stat", CALL, much.clone())).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        ask(&guest, post("/filesystem.Filesystem/Stat", "text/plain", much)).await.0,
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    );
}

/// Some clients end their request a moment after its only message. The connection must stay usable.
#[tokio::test]
async fn a_request_that_ends_late_does_not_cut_its_answer() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let Some(guest) = guest() else { return };
    let message = start_message("head -c 3000000 /dev/zero; echo the end", &json!({}));
    let mut stream = tokio::net::UnixStream::connect(guest.dir().join("sock")).await.unwrap();
    let head = format!(
        "POST /process.Process/Start HTTP/1.1\r\nhost: guest\r\ncontent-type: {STREAM}\r\n\
         transfer-encoding: chunked\r\n\r\n{:x}\r\n",
        message.len()
    );
    stream.write_all(&[head.as_bytes(), &message, b"\r\n"].concat()).await.unwrap();
    // The answer has begun before the request has ended.
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 200");
    stream
        .write_all(b"0\r\n\r\nGET /health HTTP/1.1\r\nhost: guest\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&answer);
    assert!(text.contains("exit status 0"), "the answer was cut after {} bytes", answer.len());
    assert!(text.contains("HTTP/1.1 204"), "the connection did not live on");
}

#[tokio::test]
async fn entries_have_links_modes_and_odd_names() {
    let Some(guest) = guest() else { return };
    let home = guest.root().join("home/user");
    let (status, made) = call(&guest, "MakeDir", &json!({ "path": "a/b" })).await;
    assert_eq!((status, &made["entry"]["path"]), (StatusCode::OK, &json!("/home/user/a/b")));
    assert_eq!(fs::metadata(home.join("a")).unwrap().uid(), 1000);
    assert_eq!(call(&guest, "MakeDir", &json!({ "path": "~/a" })).await.0, StatusCode::CONFLICT);
    fs::write(home.join("a/new\nline \"'"), "x").unwrap();
    symlink("/home/user/a/b", home.join("a/link")).unwrap();
    symlink("nowhere", home.join("a/dangling")).unwrap();
    symlink("/home/../../../etc/passwd", home.join("a/out")).unwrap();
    symlink("loop", home.join("a/loop")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        home.join("a/pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let (_, listed) = call(&guest, "ListDir", &json!({ "path": "a", "depth": 9 })).await;
    let names: Vec<&str> =
        listed["entries"].as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["b", "dangling", "link", "loop", "new\nline \"'", "out", "pipe"]);
    let entry =
        |name: &str| listed["entries"].as_array().unwrap().iter().find(|e| e["name"] == name).unwrap();
    assert_eq!(entry("b")["permissions"], "drwxr-xr-x");
    assert_eq!(entry("link")["symlinkTarget"], "/home/user/a/b");
    assert_eq!(entry("link")["type"], "FILE_TYPE_DIRECTORY");
    assert_eq!(entry("dangling")["type"], "FILE_TYPE_SYMLINK");
    assert_eq!(entry("dangling")["symlinkTarget"], "/home/user/a/nowhere");
    // No link leads out of the root.
    assert_eq!(entry("out")["symlinkTarget"], "/etc/passwd");
    assert_eq!(entry("pipe")["type"], "FILE_TYPE_UNSPECIFIED");
    let (_, seen) = call(&guest, "Stat", &json!({ "path": "a/new\nline \"'" })).await;
    assert_eq!((&seen["entry"]["size"], &seen["entry"]["owner"]), (&json!("1"), &json!("root")));
    for odd in ["a\0b", &"x".repeat(5000), "~root", "a/pipe/x"] {
        let (status, _) = call(&guest, "Stat", &json!({ "path": odd })).await;
        assert!(status == StatusCode::BAD_REQUEST || status == StatusCode::NOT_FOUND, "{odd:?}: {status}");
    }
}

#[tokio::test]
async fn moving_and_removing_stay_inside_the_root() {
    let Some(guest) = guest() else { return };
    let home = guest.root().join("home/user");
    fs::create_dir_all(home.join("keep")).unwrap();
    fs::write(home.join("keep/file"), "x").unwrap();
    symlink("keep", home.join("link")).unwrap();
    assert_eq!(call(&guest, "Remove", &json!({ "path": "link" })).await.0, StatusCode::OK);
    assert!(home.join("keep/file").exists());
    assert_eq!(call(&guest, "Remove", &json!({ "path": "no/such/thing" })).await.0, StatusCode::OK);
    for root in ["/", "/..", "/home/.."] {
        assert_eq!(
            call(&guest, "Remove", &json!({ "path": root })).await.0,
            StatusCode::BAD_REQUEST,
            "{root}"
        );
    }
    let rename = |from: &str, to: &str| {
        let message = json!({ "source": from, "destination": to });
        let guest = &guest;
        async move { call(guest, "Move", &message).await.0 }
    };
    assert_eq!(rename("nothing", "made/here").await, StatusCode::NOT_FOUND);
    assert!(!home.join("made").exists());
    assert_eq!(rename("keep", "keep/inside").await, StatusCode::BAD_REQUEST);
    assert_eq!(rename("keep/file", "other/place/file").await, StatusCode::OK);
    assert_eq!(fs::read(home.join("other/place/file")).unwrap(), b"x");
}

#[tokio::test]
async fn files_are_uploaded_and_downloaded_in_every_way_clients_use() {
    let Some(guest) = guest() else { return };
    let home = guest.root().join("home/user");
    let raw = |path: &str, body: &[u8]| {
        post(&format!("/files?path={path}"), "application/octet-stream", body.to_vec())
    };
    let (status, answer) = ask(&guest, raw("deep/a+b%2B.txt", b"hello world")).await;
    assert_eq!(status, StatusCode::OK, "{answer:?}");
    let told: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(told[0], json!({ "path": "/home/user/deep/a b+.txt", "name": "a b+.txt", "type": "file" }));
    let made = fs::metadata(home.join("deep/a b+.txt")).unwrap();
    assert_eq!((made.uid(), made.mode() & 0o777), (1000, 0o644));
    let mut part = get("/files?path=deep/a%20b%2B.txt");
    part.headers_mut().insert("range", "bytes=-5".parse().unwrap());
    let (status, answer) = ask(&guest, part).await;
    assert_eq!((status, &answer[..]), (StatusCode::PARTIAL_CONTENT, &b"world"[..]));
    let mut outside = get("/files?path=deep/a%20b%2B.txt");
    outside.headers_mut().insert("range", "bytes=50-".parse().unwrap());
    assert_eq!(ask(&guest, outside).await.0, StatusCode::RANGE_NOT_SATISFIABLE);

    let form = "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/tmp/one\"\r\n\r\n1\r\n\
        --B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"two\nlines\"\r\n\r\n\r\n--B--\r\n";
    let (status, answer) = ask(&guest, post("/files", "multipart/form-data; boundary=B", form)).await;
    assert_eq!(status, StatusCode::OK, "{answer:?}");
    assert_eq!(fs::read(guest.root().join("tmp/one")).unwrap(), b"1");
    assert_eq!(fs::read(home.join("two\nlines")).unwrap(), b"");

    let mut marked = raw("marked", b"x");
    marked.headers_mut().insert("x-metadata-author", "me".parse().unwrap());
    let (status, answer) = ask(&guest, marked).await;
    assert_eq!(status, StatusCode::OK, "{answer:?}");
    assert_eq!(
        call(&guest, "Stat", &json!({ "path": "marked" })).await.1["entry"]["metadata"],
        json!({ "author": "me" })
    );
    // The next upload has no metadata, so the file has none.
    ask(&guest, raw("marked", b"y")).await;
    assert_eq!(call(&guest, "Stat", &json!({ "path": "marked" })).await.1["entry"].get("metadata"), None);

    let compose = json!({ "source_paths": ["/tmp/one", "marked"], "destination": "all" });
    let (status, answer) = ask(&guest, post("/files/compose", CALL, compose.to_string())).await;
    assert_eq!(status, StatusCode::OK, "{answer:?}");
    assert_eq!(fs::read(home.join("all")).unwrap(), b"1y");
    assert!(!home.join("marked").exists());
}

#[tokio::test]
async fn uploads_that_make_no_sense_are_refused_with_a_reason() {
    let Some(guest) = guest() else { return };
    fs::create_dir_all(guest.root().join("home/user/dir")).unwrap();
    let kind = "multipart/form-data; boundary=B";
    for (request, expected) in [
        (post("/files", "application/octet-stream", "x"), 400),
        (post("/files?path=dir", "application/octet-stream", "x"), 400),
        (post("/files?path=a%00b", "application/octet-stream", "x"), 400),
        (post("/files?path=%", "application/octet-stream", "x"), 400),
        (post("/files?path=a&username=nobody-here", "application/octet-stream", "x"), 401),
        (post("/files?path=a", "text/plain", "x"), 400),
        (post("/files", kind, ""), 400),
        (post("/files", kind, "--B--\r\n"), 400),
        (post("/files", kind, "--B\r\nContent-Disposition: form-data; name=file\r\n\r\nx\r\n--B--"), 400),
        (post("/files?path=cut", kind, "--B\r\nContent-Disposition: form-data; name=file\r\n\r\nx"), 400),
        (post("/files/compose", CALL, "{}"), 400),
        (post("/files/compose", CALL, r#"{"source_paths":["none"],"destination":"d"}"#), 404),
        (get("/files?path=none"), 404),
        (get("/files?path=dir"), 400),
        (get("/files"), 400),
        (get(&format!("/files?path={}", path_value(b"/\xff"))), 400),
        (Request::delete("/files?path=dir").header("host", "guest").body(Full::default()).unwrap(), 404),
    ] {
        let what = format!("{} {}", request.method(), request.uri());
        let (status, answer) = ask(&guest, request).await;
        let told: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(
            (status.as_u16(), told["code"].as_u64()),
            (expected, Some(u64::from(expected))),
            "{what}: {told}"
        );
        assert!(!told["message"].as_str().unwrap().is_empty(), "{what}");
    }
    let mut bomb = post("/files?path=bomb", "application/octet-stream", "this is not gzip");
    bomb.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
    assert_eq!(ask(&guest, bomb).await.0, StatusCode::BAD_REQUEST);
    let mut marked = post("/files?path=m", "application/octet-stream", "x");
    marked.headers_mut().insert("x-metadata-long", "v".repeat(5000).parse().unwrap());
    assert_eq!(ask(&guest, marked).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(ask(&guest, get("/health")).await.0, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_watcher_returns_what_happened_before_the_request() {
    let Some(guest) = guest() else { return };
    let home = guest.root().join("home/user");
    fs::create_dir(home.join("w")).unwrap();
    let wanted = json!({ "path": "w", "recursive": true, "includeEntry": true });
    let (status, made) = call(&guest, "CreateWatcher", &wanted).await;
    assert_eq!(status, StatusCode::OK, "{made}");
    let mut stream = Following::open(
        &guest,
        "/filesystem.Filesystem/WatchDir",
        envelope(0, wanted.to_string().as_bytes()),
    )
    .await;
    assert_eq!(stream.next().await.1, json!({ "start": {} }));
    ask(&guest, post("/files?path=w/sub/file", "application/octet-stream", "x")).await;
    let (_, told) = call(&guest, "GetWatcherEvents", &made).await;
    let events: Vec<(&str, &str)> = told["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| (e["name"].as_str().unwrap(), e["type"].as_str().unwrap()))
        .collect();
    assert!(events.contains(&("sub", "EVENT_TYPE_CREATE")), "{events:?}");
    assert!(events.contains(&("sub/file", "EVENT_TYPE_CREATE")), "{events:?}");
    assert_eq!(told["events"][0]["entry"]["path"], "/home/user/w/sub");
    assert_eq!(stream.next().await.1["filesystem"]["name"], "sub");
    assert_eq!(call(&guest, "RemoveWatcher", &made).await.0, StatusCode::OK);
    for method in ["GetWatcherEvents", "RemoveWatcher"] {
        assert_eq!(call(&guest, method, &made).await.0, StatusCode::NOT_FOUND);
    }
    assert_eq!(call(&guest, "CreateWatcher", &json!({ "path": "none" })).await.0, StatusCode::NOT_FOUND);
    assert_eq!(
        call(&guest, "CreateWatcher", &json!({ "path": "w/sub/file" })).await.0,
        StatusCode::BAD_REQUEST
    );
    // The directory is removed: first its changes are reported, then the end.
    fs::remove_dir_all(home.join("w")).unwrap();
    let last = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            let (flags, message) = stream.next().await;
            if flags == 2 {
                return message;
            }
        }
    });
    assert_eq!(last.await.unwrap()["error"]["code"], "not_found");
}
