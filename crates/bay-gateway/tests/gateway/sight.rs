//! Bodies that are read before the decision, and requests that wait for a person.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bay_gateway::limits::MAX_LOOK_BYTES;
use bay_gateway::{LINE_HEADER, Waiting};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::lab::client::{self, send, send2};
use crate::lab::origin::{self, Body, text};
use crate::lab::{Lab, POLICY};

async fn echo(request: Request<Incoming>) -> Response<Body> {
    let length = request.headers().get("content-length").map(|value| value.to_str().unwrap().to_owned());
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let sum: u64 = body.iter().map(|byte| u64::from(*byte)).sum();
    Response::new(text(format!("{length:?} {} {sum}", body.len())))
}

async fn looking_lab() -> Lab {
    let lab = Lab::new(POLICY).await;
    let (place, _) = origin::serve(Some(lab.origins.server("ok.test", |_| {})), echo).await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    lab.ledger.looks.store(true, Ordering::Relaxed);
    lab
}

#[tokio::test]
async fn a_body_that_was_read_ahead_arrives_complete_with_its_length() {
    let mut lab = looking_lab().await;
    let large: String = (0..MAX_LOOK_BYTES * 3).map(|at| char::from(b'a' + (at % 23) as u8)).collect();
    for body in ["", "hello", large.as_str()] {
        let sum: u64 = body.bytes().map(u64::from).sum();
        let mut client = lab.https("ok.test").await;
        let answer = send(&mut client, lab.request("POST", "ok.test", "/open/a", body.to_owned())).await;
        // Some clients send no length for an empty body.
        let length = (!body.is_empty()).then(|| body.len().to_string());
        assert_eq!(String::from_utf8_lossy(&answer.body), format!("{length:?} {} {sum}", body.len()));
        let mut client = lab.http2("ok.test").await;
        let url = format!("https://{}/open/a", lab.authority("ok.test"));
        let request = Request::post(url).body(client::Body::from(body.to_owned())).unwrap();
        let answer = send2(&mut client, request).await;
        assert!(answer.body.ends_with(format!(" {} {sum}", body.len()).as_bytes()), "{:?}", answer.body);
        for seen in lab.ledger.seen.lock().unwrap().drain(..) {
            assert_eq!(seen.whole, body.len() <= MAX_LOOK_BYTES);
            assert_eq!(seen.length, Some(body.len() as u64));
            assert_eq!(seen.bytes, &body.as_bytes()[..seen.bytes.len()]);
            assert_eq!(seen.bytes.len(), body.len().min(MAX_LOOK_BYTES));
        }
    }
}

#[tokio::test]
async fn reading_ahead_sends_continue_to_a_waiting_client() {
    let mut lab = looking_lab().await;
    let mut stream = lab.tls("ok.test", "ok.test", &["http/1.1"]).await;
    let authority = lab.authority("ok.test");
    let head = format!(
        "POST /open/a HTTP/1.1\r\nhost: {authority}\r\ncontent-length: 5\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut said = [0; 25];
    stream.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"hello").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("200 OK") && answer.contains(" 5 532"), "{answer}");
}

#[tokio::test]
async fn a_request_without_an_answer_is_told_to_retry() {
    let policy = POLICY.replace("\"allow\"", "\"ask\"");
    let mut lab = Lab::new(&policy).await;
    let waiting = Waiting { question: "ask_1".to_owned(), retry_after: Duration::from_secs(3) };
    *lab.ledger.waiting.lock().unwrap() = Some(waiting);
    let mut client = lab.https("ok.test").await;
    let answer = send(&mut client, lab.request("POST", "ok.test", "/open/a", "hello")).await;
    assert_eq!((answer.status, &answer.headers["retry-after"]), (503, &"3".parse().unwrap()));
    let line = answer.headers[LINE_HEADER].to_str().unwrap();
    assert!(line.contains("ask_1") && line.contains("send it again in 3 s"), "{line}");
    let told: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!((&told["error"], &told["question"]), (&"waiting".into(), &"ask_1".into()), "{told:#}");
    assert_eq!((&told["retry_after_s"], &told["outcome"]), (&3.into(), &"ask".into()), "{told:#}");
    assert_eq!(told["record"], answer.headers["x-workbay-record"].to_str().unwrap());
}

#[tokio::test]
async fn git_push_options_are_allowed_by_no_rule_on_branches() {
    let policy = r#"
[[rule]]
id = "agents"
outcome = "allow"
host = "ok.test"
port = "*"
path = "/team/app.git/**"
branch = "agent/**"
"#;
    let mut lab = Lab::new(policy).await;
    let (place, seen) = origin::serve(Some(lab.origins.server("ok.test", |_| {})), echo).await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    let line = |text: &str| format!("{:04x}{text}", text.len() + 4);
    let (zero, new) = ("0".repeat(40), "1".repeat(40));
    let commands = |capabilities: &str| {
        line(&format!("{zero} {new} refs/heads/agent/x\0 report-status{capabilities}\n")) + "0000"
    };
    let options = line("merge_request.target=prod") + &line("ci.variable=EVIL=1") + "0000";
    let mut push = async |body: String| {
        let request = lab.request("POST", "ok.test", "/team/app.git/git-receive-pack", body);
        let answer = send(&mut lab.https("ok.test").await, request).await;
        (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
    };
    let (status, told) = push(commands(" push-options") + &options + "PACK").await;
    assert_eq!(status, 403, "{told}");
    assert!(told.contains("2 push options"), "the reason is said: {told}");
    for unreadable in [
        // Git reads each of these as the same capability, followed by options.
        commands("\tpush-options") + &options + "PACK",
        commands(" push-options=1") + &options + "PACK",
        // Announced but incomplete options, and bytes that git does not send.
        commands(" push-options") + &line("merge_request.target=prod"),
        commands(" push-options") + "zzzz0000PACK",
        commands(" push-options") + &line("a\0b") + "0000PACK",
        commands(" push-options") + &line("x").repeat(1000) + "0000PACK",
    ] {
        let (status, told) = push(unreadable.clone()).await;
        assert_eq!(status, 403, "{unreadable}: {told}");
    }
    assert!(seen.lines().is_empty(), "{:?}", seen.lines());
    // Without options nothing changes.
    for plain in [commands("") + "PACK", commands(" push-options") + "0000PACK"] {
        let (status, told) = push(plain).await;
        assert_eq!(status, 200, "{told}");
    }
}
