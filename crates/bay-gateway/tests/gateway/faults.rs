//! Origins that stall, reset, send invalid data or have wrong certificates. The client gets an answer with the reason
//! in time.

use std::time::Duration;

use bay_gateway::{Ending, FAILURE_HEADER, Failure};
use rcgen::CertificateParams;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::lab::client::{self, Read, send};
use crate::lab::origin::{self, text};
use crate::lab::{Lab, PATIENCE, POLICY, quick};

/// The answer to a GET if the origin sends these bytes, and then waits or closes.
async fn said(bytes: Vec<u8>, then_waits: bool) -> (Lab, Result<Read, hyper::Error>) {
    let mut lab = Lab::with(POLICY, quick()).await;
    let place = origin::accept_tls(lab.origins.server("ok.test", |_| {}), move |mut stream| {
        let bytes = bytes.clone();
        async move {
            // The requests have no body.
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n")
                && stream.read_buf(&mut request).await.is_ok_and(|read| read > 0)
            {}
            stream.write_all(&bytes).await.ok();
            stream.flush().await.ok();
            if then_waits {
                stream.read_to_end(&mut Vec::new()).await.ok();
            }
        }
    })
    .await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    let mut client = lab.https("ok.test").await;
    let asked = client.send_request(lab.get("ok.test", "/open/a"));
    let response = timeout(PATIENCE, asked).await.expect("never a hang").unwrap();
    let read = client::read(response).await;
    (lab, read)
}

async fn fails(bytes: impl Into<Vec<u8>>, then_waits: bool, status: u16, failure: Failure) {
    let (lab, read) = said(bytes.into(), then_waits).await;
    let read = read.unwrap();
    assert_eq!((read.status, read.json()["failure"].as_str()), (status, Some(failure.as_str())), "{read:?}");
    assert!(read.headers.contains_key(FAILURE_HEADER));
    assert_eq!(lab.ledger.ended().await.ending, Ending::Failed { failure });
}

#[tokio::test]
async fn a_silent_origin_is_a_504() {
    fails("", true, 504, Failure::AnswerTimeout).await;
    fails("HTTP/1.1 200 OK\r\nContent-", true, 504, Failure::AnswerTimeout).await;
}

#[tokio::test]
async fn an_origin_that_disconnects_or_answers_nonsense_is_a_502() {
    fails("", false, 502, Failure::Broken).await;
    fails("SSH-2.0-thing\r\n", false, 502, Failure::BadAnswer).await;
    fails("HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", false, 502, Failure::BadAnswer).await;
    fails(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: foo\r\nConnection: upgrade\r\n\r\n",
        true,
        502,
        Failure::BadAnswer,
    )
    .await;
}

#[tokio::test]
async fn an_answer_with_a_huge_head_is_a_502_in_bounded_memory() {
    let mut huge = b"HTTP/1.1 200 OK\r\nX: ".to_vec();
    huge.resize(4 << 20, b'y');
    fails(huge, true, 502, Failure::BadAnswer).await;
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(5000));
    fails(many, true, 502, Failure::BadAnswer).await;
}

#[tokio::test]
async fn a_truncated_or_malformed_body_is_visibly_truncated() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ] {
        let (lab, read) = said(answer.into(), false).await;
        read.expect_err("the client sees that it is not whole");
        let ended = lab.ledger.ended().await;
        assert_eq!(ended.ending, Ending::Broken { status: 200, failure: Failure::Broken });
    }
}

#[tokio::test]
async fn a_stalled_body_is_cut() {
    let (lab, read) = said(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome".to_vec(), true).await;
    read.expect_err("the client sees that it is not whole");
    let ended = lab.ledger.ended().await;
    assert_eq!(ended.ending, Ending::Broken { status: 200, failure: Failure::Stalled });
    assert_eq!(ended.received, 4);
}

#[tokio::test]
async fn bytes_beyond_the_announced_length_are_not_the_next_answer() {
    let two =
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    let (mut lab, read) = said(two.into(), true).await;
    assert_eq!(&read.unwrap().body[..], b"ok");
    let mut client = lab.https("ok.test").await;
    let answer = send(&mut client, lab.get("ok.test", "/open/a")).await;
    assert_eq!(&answer.body[..], b"ok");
}

#[tokio::test]
async fn a_certificate_that_is_not_the_origins_is_a_502_and_nothing_is_sent() {
    type Change = fn(&mut CertificateParams);
    let expired: Change = |params| params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let early: Change = |params| params.not_before = rcgen::date_time_ymd(3000, 1, 1);
    let nameless: Change = |params| params.subject_alt_names.clear();
    let none: Change = |_| {};
    for (name, change, own_authority) in [
        ("ok.test", expired, true),
        ("ok.test", early, true),
        ("ok.test", nameless, true),
        ("evil.test", none, true),
        ("ok.test", none, false),
    ] {
        let mut lab = Lab::with(POLICY, quick()).await;
        let other = origin::OriginAuthority::default();
        let authority = if own_authority { &lab.origins } else { &other };
        let (place, seen) =
            origin::serve(Some(authority.server(name, change)), |_| async { http::Response::new(text("")) })
                .await;
        lab.net.lead("ok.test", "192.0.2.10", place);
        let mut client = lab.https("ok.test").await;
        let answer = send(&mut client, lab.get("ok.test", "/open/a")).await;
        assert_eq!((answer.status, answer.json()["failure"].as_str()), (502, Some("certificate")), "{name}");
        assert!(seen.lines().is_empty());
    }
}

#[tokio::test]
async fn names_without_addresses_and_closed_ports_are_a_502() {
    let mut lab = Lab::with(POLICY, quick()).await;
    let mut client = lab.https("ok.test").await;
    let answer = send(&mut client, lab.get("ok.test", "/open/a")).await;
    assert_eq!((answer.status, answer.json()["failure"].as_str()), (502, Some("name")));
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    lab.net.lead("ok.test", "192.0.2.10", closed);
    let answer = send(&mut client, lab.get("ok.test", "/open/a")).await;
    assert_eq!((answer.status, answer.json()["failure"].as_str()), (502, Some("connect")));
}

#[tokio::test]
async fn a_long_upload_does_not_count_as_a_silent_origin() {
    let mut lab = Lab::with(POLICY, quick()).await;
    let tls = lab.origins.server("ok.test", |_| {});
    let (place, _) = origin::serve(Some(tls), |request: http::Request<hyper::body::Incoming>| async move {
        use http_body_util::BodyExt;
        let body = request.into_body().collect().await.unwrap().to_bytes();
        http::Response::new(text(body.len().to_string()))
    })
    .await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    let mut stream = lab.tls("ok.test", "ok.test", &["http/1.1"]).await;
    let head = format!(
        "POST /open/a HTTP/1.1\r\nHost: {}\r\nContent-Length: 15\r\nConnection: close\r\n\r\n",
        lab.authority("ok.test")
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // Longer in total than the timeout of an answer, but never silent for as long.
    let mut beat = tokio::time::interval(Duration::from_millis(100));
    for _ in 0..15 {
        beat.tick().await;
        stream.write_all(b"x").await.unwrap();
        stream.flush().await.unwrap();
    }
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().ok();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("15"), "{answer}");
}
