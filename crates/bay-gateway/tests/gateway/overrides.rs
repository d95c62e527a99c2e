//! Requests that name a second method or path beside their own.

use std::sync::Arc;

use bay_gateway::{Ending, Failure};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::lab::client::raw;
use crate::lab::origin::{self, Body, Seen, text};
use crate::lab::{Entry, Lab, quick};

/// The policy allows forms but not deletion.
const POLICY: &str = r#"
[[rule]]
outcome = "allow"
host = "ok.test"
scheme = "http"
port = "*"
method = ["GET", "POST"]
path = "/open/**"
"#;

/// Answers with the number of bytes of the body.
async fn answer(request: Request<Incoming>) -> Response<Body> {
    match request.into_body().collect().await {
        Ok(body) => Response::new(text(format!("whole: {}", body.to_bytes().len()))),
        Err(_) => Response::new(text("broken off")),
    }
}

async fn lab() -> (Lab, Arc<Seen>) {
    let lab = Lab::with(POLICY, quick()).await;
    let (place, seen) = origin::serve(None, answer).await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    (lab, seen)
}

fn post(host: &str, more: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST /open/a HTTP/1.1\r\nHost: {host}\r\n{more}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}").into_bytes()
}

const ENCODED: &str = "Content-Type: application/x-www-form-urlencoded\r\n";
const PARTS: &str = "Content-Type: multipart/form-data; boundary=x\r\n";

fn part(name: &str, value: &str) -> String {
    format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n--x--\r\n")
}

#[tokio::test]
async fn http_override_no_header_or_query_names_another_request() {
    let (mut lab, seen) = lab().await;
    let door = lab.open("ok.test").await;
    let host = lab.authority("ok.test");
    for header in [
        "Forwarded: host=evil.test",
        "X-Forwarded-Uri: /closed",
        "X-Forwarded-Method: DELETE",
        "X-Forwarded-Prefix: /closed",
        "X-Forwarded-Server: evil.test",
        "X-Original-Method: DELETE",
        "X_Original_Method: DELETE",
        "X-Original-URI: /closed",
        "X-HTTP-Host-Override: evil.test",
        "X-Override-URL: /closed",
        "Base-Url: http://evil.test",
    ] {
        let line = format!("GET /open/a HTTP/1.1\r\nHost: {host}\r\n{header}\r\nConnection: close\r\n\r\n");
        let answer = raw(door, line.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("\"override\""), "{header}: {answer}");
    }
    for query in
        ["_METHOD=DELETE", "_method[]=DELETE", "_method%5B%5D=DELETE", "a=1&X-HTTP-Method-Override=DELETE"]
    {
        let line = format!(
            "POST /open/a?{query} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        let answer = raw(door, line.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("\"override\""), "{query}: {answer}");
    }
    assert_eq!(seen.connections(), 0);
    // A header that only describes the route of the request is removed.
    let line = format!(
        "GET /open/a HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-Proto: https\r\nX-Forwarded-For: 192.0.2.1\r\nConnection: close\r\n\r\n"
    );
    assert!(raw(door, line.as_bytes()).await.starts_with("HTTP/1.1 200"));
    let headers = seen.requests.lock().unwrap()[0].headers.clone();
    assert!(
        !headers.contains_key("x-forwarded-proto") && headers.contains_key("x-forwarded-for"),
        "{headers:?}"
    );
}

#[tokio::test]
async fn http_override_no_form_field_names_another_method() {
    let (mut lab, seen) = lab().await;
    let door = lab.open("ok.test").await;
    let host = lab.authority("ok.test");
    let encoded = ["_method=DELETE", "a=1&_METHOD=delete", "%5fmethod%5B%5D=PUT", "a=1;_method=PUT"];
    for body in encoded {
        for kind in [ENCODED, ""] {
            let answer = raw(door, &post(&host, kind, body)).await;
            assert!(
                answer.starts_with("HTTP/1.1 403") && answer.contains("another method"),
                "{body}: {answer}"
            );
        }
    }
    for name in ["_method", "_METHOD", "_method[]"] {
        let answer = raw(door, &post(&host, PARTS, &part(name, "DELETE"))).await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("another method"), "{name}: {answer}");
    }
    let packed = format!("{ENCODED}Content-Encoding: gzip\r\n");
    let answer = raw(door, &post(&host, &packed, "anything")).await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("Content-Encoding"), "{answer}");
    assert_eq!(seen.connections(), 0);
    let ended = |entry: Entry| matches!(entry, Entry::Ended { ended, .. } if ended.ending == Ending::Failed { failure: Failure::Override });
    assert_eq!(
        lab.ledger.entries().into_iter().filter(|entry| ended(entry.clone())).count(),
        encoded.len() * 2 + 4
    );
    // A field with the method of the request is no override, and a body that is not a form has no fields.
    for (kind, body) in [
        (ENCODED, "_method=POST&a=1".to_owned()),
        (PARTS, part("_method", "post")),
        (PARTS, part("page", "<input name=\"_method\" value=\"DELETE\">")),
        ("Content-Type: application/json\r\n", "{\"a\":\"&_method=DELETE\"}".to_owned()),
    ] {
        let answer = raw(door, &post(&host, kind, &body)).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.contains(&format!("whole: {}", body.len())),
            "{body}: {answer}"
        );
    }
    lab.ledger.all_ended_once().await;
}

#[tokio::test]
async fn http_override_a_long_form_is_cut_off_before_another_method() {
    let (mut lab, seen) = lab().await;
    let door = lab.open("ok.test").await;
    let host = lab.authority("ok.test");
    let filler = "x".repeat(300 * 1024);
    for (kind, body) in [
        (ENCODED, format!("a={filler}&_method=DELETE")),
        (PARTS, format!("{}{}", part("a", &filler), part("_method", "DELETE"))),
    ] {
        let answer = raw(door, &post(&host, kind, &body)).await;
        assert!(!answer.contains("whole"), "{answer}");
        lab.ledger
            .wait(|entry| match entry {
                Entry::Ended { ended, .. }
                    if ended.ending == (Ending::Failed { failure: Failure::Override }) =>
                {
                    Some(())
                }
                _ => None,
            })
            .await;
    }
    let fine = format!("a={filler}&b=1");
    let answer = raw(door, &post(&host, ENCODED, &fine)).await;
    assert!(answer.contains(&format!("whole: {}", fine.len())), "{answer}");
    assert!(seen.lines().iter().all(|line| line == "POST /open/a"), "{:?}", seen.lines());
    lab.ledger.all_ended_once().await;
}
