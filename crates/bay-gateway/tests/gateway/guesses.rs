//! A bay makes a server store guesses of a value, and observes which of them are scrubbed.

use std::sync::Arc;

use bay_gateway::scrub::{ECHOES, MAX_HITS};
use bay_gateway::secrets::{Covered, Secrets};
use bay_gateway::{Ending, Failure, LINE_HEADER};
use bytes::Bytes;
use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use secrecy::SecretString;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::lab::client::{Read, read, send};
use crate::lab::origin::{self, text};
use crate::lab::{Lab, PATIENCE, POLICY};
use crate::secrets::{CANARY, SENTINEL, bearer, held, set, with};
use crate::tunnels::{switch, websocket};

/// More answers than a bay gets before its host is closed.
const MANY: usize = 20;

/// Answers with a list of words that contains the value, and with the credential of the request.
async fn list(request: Request<Incoming>) -> http::Response<origin::Body> {
    let sent = request.headers().get("authorization").map_or(String::new(), |sent| format!("{sent:?}"));
    let words: String = (0..500).map(|word| format!("word-{word:032}\n")).collect();
    http::Response::new(text(format!("{words}{CANARY}\n{words}{sent}")))
}

/// An answer that was passed on completely. A cut answer may not even have begun.
async fn whole(sent: Result<http::Response<Incoming>, hyper::Error>) -> Option<Read> {
    read(sent.ok()?).await.ok()
}

async fn lab_with_list() -> Lab {
    let lab = Lab::new(POLICY).await;
    let (place, _) = origin::serve(Some(lab.origins.server("ok.test", |_| {})), list).await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    set(&lab, vec![held(&lab, CANARY, &["ok.test:PORT/open/api/** as bearer"])]);
    lab
}

#[tokio::test]
async fn cred_guess_list_values_that_the_bay_did_not_send_close_the_host_after_a_few_answers() {
    for http2 in [false, true] {
        let mut lab = lab_with_list().await;
        let mut shown = 0;
        for _ in 0..MANY {
            let sent = if http2 {
                let url = format!("https://{}/open/x", lab.authority("ok.test"));
                let request = Request::get(url).body(crate::lab::client::Body::default()).unwrap();
                lab.http2("ok.test").await.send_request(request).await
            } else {
                let request = lab.get("ok.test", "/open/x");
                lab.https("ok.test").await.send_request(request).await
            };
            let Some(answer) = whole(sent).await else { continue };
            assert!(!String::from_utf8_lossy(&answer.body).contains(CANARY));
            if answer.status == 403 {
                break;
            }
            shown += 1;
        }
        assert!(
            (1..8).contains(&shown),
            "http2 {http2}: {shown} answers with the value in them were passed on"
        );
        lab.ledger.refused("Guessed").await;
    }
}

#[tokio::test]
async fn a_server_that_repeats_the_token_it_was_sent_is_scrubbed_and_stays_open() {
    let mut lab = lab_with_list().await;
    for _ in 0..MANY {
        let request = with(lab.get("ok.test", "/open/api/x"), &[("authorization", &bearer())]);
        let answer = send(&mut lab.https("ok.test").await, request).await;
        assert_eq!(answer.status, 200);
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(!body.contains(CANARY) && body.contains(&bearer()), "{body}");
    }
}

/// The gateway's knowledge of a secret that other bays have.
fn covering(hosts: &[&str], weak: bool) -> Arc<Secrets> {
    let covered = Covered {
        name: "TOKEN".to_owned(),
        value: Arc::new(SecretString::from(CANARY.to_owned())),
        hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
        sentinel: None,
        public: "ghp_".len(),
        weak,
        guesses: Arc::default(),
    };
    Arc::new(Secrets::new(Vec::new()).covering(vec![covered]))
}

#[tokio::test]
async fn cred_other_bay_a_bay_without_the_secret_reads_no_value_and_may_not_guess_it() {
    let mut lab = lab_with_list().await;
    *lab.ledger.secrets.lock().unwrap() = covering(&["ok.test"], false);
    lab.gateway.policy_changed();
    let request = with(lab.get("ok.test", "/open/x"), &[("range", "bytes=0-9"), ("cookie", "own=1")]);
    let answer = send(&mut lab.https("ok.test").await, request).await;
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(!body.contains(CANARY) && body.contains("\nREDACTED-REDACTED-REDACTED-"), "{body}");
    // The bay's own credentials are not affected.
    let request = with(lab.get("ok.test", "/open/x"), &[("authorization", "Bearer its-own")]);
    assert_eq!(send(&mut lab.https("ok.test").await, request).await.status, 200);
    let mut closed = false;
    for _ in 0..MANY {
        let sent = lab.https("ok.test").await.send_request(lab.get("ok.test", "/open/x")).await;
        let Some(answer) = whole(sent).await else { continue };
        closed |= answer.status == 403;
        if closed {
            let line = answer.headers[LINE_HEADER].to_str().unwrap();
            assert!(line.contains("closed to this bay") && !line.contains("TOKEN"), "{line}");
        }
    }
    assert!(closed);
}

#[tokio::test]
async fn cred_weak_an_answer_ends_before_a_value_that_is_easy_to_guess() {
    let mut lab = lab_with_list().await;
    let mut weak = held(&lab, CANARY, &["ok.test:PORT/open/api/** as bearer"]);
    weak.weak = true;
    set(&lab, vec![weak]);
    // Even if the request carried the secret, the answer is cut. So it reveals nothing about the list.
    let request = with(lab.get("ok.test", "/open/api/x"), &[("authorization", &bearer())]);
    let sent = lab.https("ok.test").await.send_request(request).await;
    assert!(whole(sent).await.is_none());
    let ended = lab.ledger.ended().await;
    assert_eq!(ended.ending, Ending::Broken { status: 200, failure: Failure::SecretShown });
}

#[tokio::test]
async fn cred_guess_ws_a_socket_that_carried_the_secret_may_repeat_it_a_few_times() {
    let mut lab = Lab::new(POLICY).await;
    let (place, _) =
        origin::serve(Some(lab.origins.server("ok.test", |_| {})), |request| switch(request, Bytes::new()))
            .await;
    lab.net.lead("ok.test", "192.0.2.10", place);
    for carries in [true, false] {
        set(&lab, vec![held(&lab, CANARY, &["ok.test:PORT/open/api/** as bearer"])]);
        let mut client = lab.https("ok.test").await;
        let authorization = bearer();
        let lines = [("authorization", authorization.as_str())];
        let lines = if carries { &lines[..] } else { &[] };
        let mut answer = client.send_request(with(websocket(&lab, "/open/api/ws"), lines)).await.unwrap();
        let mut stream = TokioIo::new(hyper::upgrade::on(&mut answer).await.unwrap());
        let mut shown = 0;
        for _ in 0..MANY {
            if stream.write_all(CANARY.as_bytes()).await.is_err() {
                break;
            }
            let mut back = vec![0; CANARY.len()];
            if timeout(PATIENCE, stream.read_exact(&mut back)).await.unwrap().is_err() {
                break;
            }
            assert_eq!(String::from_utf8_lossy(&back), SENTINEL);
            shown += 1;
        }
        let free = if carries { ECHOES } else { 0 };
        assert_eq!(shown, free + MAX_HITS - 1, "carries {carries}");
        let request = lab.get("ok.test", "/open/x");
        assert_eq!(send(&mut lab.https("ok.test").await, request).await.status, 403);
    }
}

#[tokio::test]
async fn cred_other_bay_bytes_that_a_tcp_rule_forwards_are_scrubbed_too() {
    let policy =
        "[[rule]]\nid = \"raw\"\noutcome = \"allow\"\nkind = \"tcp\"\nhost = \"ok.test\"\nport = \"*\"\n";
    let mut lab = Lab::new(policy).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    lab.net.lead("ok.test", "192.0.2.10", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(format!("it is {CANARY}.").as_bytes()).await.ok();
        }
    });
    *lab.ledger.secrets.lock().unwrap() = covering(&["ok.test"], false);
    let door = lab.open("ok.test").await;
    let said = crate::lab::client::raw(door, b"").await;
    assert!(said.starts_with("it is REDACTED-") && said.ends_with('.'), "{said}");
    for _ in 0..MANY {
        let said = crate::lab::client::raw(door, b"").await;
        assert!(!said.contains(CANARY), "{said}");
    }
    lab.ledger.refused("Guessed").await;
}
