//! An allow covers exactly what the approver was shown, unless the approver allows any body. An agent that shows one
//! request and sends another is asked again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bay_tests::lab::{Lab, READS_A_STREAM, lab};
use bay_tests::open_approvals::{
    Client, approvals, ask_policy, id, lab_with_short_hold, paths, the_open_approval,
};
use bay_tests::origin::text;
use bay_tests::test_servers::Origin;
use bay_tests::{CliRun, until};
use bay_types::ErrorCode;
use http::Response;
use http_body_util::BodyExt;
use serde_json::{Value, json};

/// An origin that keeps the bodies it receives.
fn payments(lab: &Lab) -> (Origin, Arc<Mutex<Vec<String>>>) {
    let received = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&received);
    let origin = lab.servers.https("origin.test", move |request| {
        let keep = Arc::clone(&keep);
        async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            keep.lock().unwrap().push(String::from_utf8_lossy(&body).into_owned());
            Response::new(text("paid".to_owned()))
        }
    });
    (origin, received)
}

fn allow(lab: &Lab, card: &Value, words: &[&str]) -> CliRun {
    lab.daemon.bay(&[&["approvals", "allow", id(card).as_str()], words].concat())
}

/// Sends a request whose client leaves with a 503 before there is an answer.
fn leave(client: &mut Client<'_>, path: &str, body: &str) -> u64 {
    let number = client.send("POST", path, body);
    client.answer(number).0
}

const ALICE: &str = "amount=1&to=alice";
const MALLORY: &str = "amount=1000000&to=mallory";

/// A bay `b` whose client requested a payment to Alice and left, and the card.
fn asks_to_pay_alice<'lab>(lab: &'lab Lab, origin: &Origin) -> (Client<'lab>, Value) {
    lab.bay("b", &ask_policy(origin, ""));
    let mut client = Client::new(lab, "b", origin);
    assert_eq!(leave(&mut client, "/payments", ALICE), 503);
    let card = the_open_approval(lab);
    (client, card)
}

#[test]
fn approval_switch_an_allow_covers_only_the_body_on_the_card_even_after_its_client_left() {
    let mut lab = lab_with_short_hold();
    let (origin, received) = payments(&lab);
    let (mut client, card) = asks_to_pay_alice(&lab, &origin);
    assert_eq!(card["held"], 0, "{card:#}");
    let said = allow(&lab, &card, &[]).ok();
    let talk = said.errors();
    assert!(talk.contains("exactly what the card shows") && talk.contains("its client has left"), "{talk}");

    assert_eq!(leave(&mut client, "/payments", MALLORY), 503);
    assert!(received.lock().unwrap().is_empty(), "{received:?}");
    let other = the_open_approval(&lab);
    assert_ne!(other["id"], card["id"]);
    assert_eq!(other["differs"]["from"], card["id"], "{other:#}");
    assert_eq!(other["differs"]["state"], "allowed");
    let how = other["differs"]["how"].to_string();
    assert!(how.contains("to=alice") && how.contains("to=mallory"), "{how}");
    let shown = lab.daemon.bay(&["approvals", "show", &id(&other)]).ok().text();
    assert!(shown.contains("DIFFERS") && shown.contains(MALLORY), "{shown}");
    let recorded = lab.record("b", "approval.asked");
    assert_eq!(recorded[1]["differs"]["from"], card["id"], "{recorded:#?}");

    // A new daemon still knows what the allow covered.
    let sent = client.sent();
    lab.daemon.kill_9();
    lab.daemon.launch();
    lab.until_open("b");
    let mut client = Client::running(&lab, "b", sent);
    assert_eq!(leave(&mut client, "/payments", MALLORY), 503);
    assert_eq!(the_open_approval(&lab)["id"], other["id"]);
    assert_eq!(leave(&mut client, "/payments", ALICE), 200);
    assert_eq!(*received.lock().unwrap(), [ALICE]);
    assert_eq!(lab.record("b", "approval.allowed")[0]["bound"], true);
}

#[test]
fn an_allow_is_used_by_the_same_request_and_by_no_other() {
    let lab = lab_with_short_hold();
    let (origin, received) = payments(&lab);
    let (mut client, card) = asks_to_pay_alice(&lab, &origin);
    // An allow through the API without a digest covers no more than one with a digest.
    let target = format!("/v1/approvals/{}/allow", id(&card));
    assert_eq!(lab.daemon.rest("POST", &target, &json!({})).status, 200);
    assert_eq!(leave(&mut client, "/payments", MALLORY), 503);
    assert_eq!(leave(&mut client, "/payments", ALICE), 200);
    assert_eq!(*received.lock().unwrap(), [ALICE]);
}

#[test]
fn an_allow_for_any_body_is_visible_on_the_card_and_in_the_ledger() {
    let lab = lab_with_short_hold();
    let (origin, received) = payments(&lab);
    let (mut client, card) = asks_to_pay_alice(&lab, &origin);
    let said = allow(&lab, &card, &["--any-body"]).ok();
    assert!(said.errors().contains("ANY body"), "{}", said.errors());
    assert_eq!(leave(&mut client, "/payments", MALLORY), 200);
    assert_eq!(*received.lock().unwrap(), [MALLORY]);
    assert_eq!(leave(&mut client, "/payments", MALLORY), 503, "it was for one");
    let shown = lab.daemon.bay(&["approvals", "show", &id(&card)]).ok().text();
    assert!(shown.contains("with any body"), "{shown}");
    let recorded = lab.record("b", "approval.allowed");
    assert_eq!(
        (&recorded[0]["any_body"], &recorded[0]["bound"]),
        (&json!(true), &Value::Null),
        "{recorded:#?}"
    );
    let timeline = lab.daemon.bay(&["timeline", "b"]).ok().text();
    assert!(timeline.contains("allowed once with any body"), "{timeline}");
}

#[test]
fn an_allow_for_an_exec_or_a_time_covers_the_same_request_only() {
    for reach in [&["--exec"][..], &["--for", "10m"]] {
        let lab = lab_with_short_hold();
        let (origin, received) = payments(&lab);
        let (mut client, card) = asks_to_pay_alice(&lab, &origin);
        let digest = card["digest"].as_str().unwrap();
        let _allowed = allow(&lab, &card, &[reach, &["--digest", digest]].concat()).ok();
        for _again in 0..2 {
            assert_eq!(leave(&mut client, "/payments", ALICE), 200, "{reach:?}");
        }
        assert_eq!(leave(&mut client, "/payments", MALLORY), 503, "{reach:?}");
        let other = the_open_approval(&lab);
        assert_eq!(other["differs"]["from"], card["id"], "{other:#}");
        assert_eq!(*received.lock().unwrap(), [ALICE, ALICE]);
        let grants = lab.daemon.bay(&["grants", "ls", "b", "--json"]).ok().json();
        assert_eq!(grants, json!([]), "a grant would cover any body");
    }
}

#[test]
fn a_rule_is_saved_only_by_an_approver_who_allows_any_body() {
    let lab = lab_with_short_hold();
    let (origin, _received) = payments(&lab);
    let (mut client, card) = asks_to_pay_alice(&lab, &origin);
    let (message, next) = allow(&lab, &card, &["--save"]).fails_with(ErrorCode::InvalidInput);
    assert!(message.contains("cannot depend on a body") && next.contains("--any-body"), "{message}: {next}");
    assert_eq!(the_open_approval(&lab)["id"], card["id"], "it is still open");
    let _saved = allow(&lab, &card, &["--save", "--any-body"]).ok();
    assert_eq!(leave(&mut client, "/payments", MALLORY), 200);
}

#[test]
fn a_revoked_allow_covers_nothing_more_and_its_streams_are_cut() {
    let lab = lab();
    let origin = lab.servers.https("origin.test", |_request| async move {
        // A line from time to time, until the reader leaves.
        let body = futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let line = hyper::body::Frame::data(bytes::Bytes::from_static(b"line\n"));
            Some((Ok::<_, std::convert::Infallible>(line), ()))
        });
        Response::new(http_body_util::StreamBody::new(body).boxed_unsync())
    });
    lab.bay("b", &ask_policy(&origin, ""));
    let url = origin.url("https", "/stream");
    let read = || {
        let begun = ["exec", "--detach", "b", "--", "python3", "-c", READS_A_STREAM, &url];
        let _begun = lab.daemon.bay(&begun).ok();
    };
    read();
    let card = the_open_approval(&lab);
    let _allowed = allow(&lab, &card, &["--for", "10m"]).ok();
    until("the stream to begin", || (lab.daemon.sh("b", "test -e /tmp/begun").code == 0).then_some(()));
    let revoked = lab.daemon.bay(&["approvals", "revoke", &id(&card), "--json"]).ok().json();
    assert_eq!(revoked["state"], "revoked", "{revoked:#}");
    until("the stream to end", || (lab.daemon.sh("b", "test -e /tmp/over").code == 0).then_some(()));
    read();
    let again = the_open_approval(&lab);
    assert_ne!(again["id"], card["id"]);
    assert_eq!(paths(&origin), ["/stream"]);
    assert_eq!(lab.record("b", "approval.revoked")[0]["by"], "uid 0");
    let twice = lab.daemon.bay(&["approvals", "revoke", &id(&card)]);
    let (message, _) = twice.fails_with(ErrorCode::ApprovalAnswered);
    assert!(message.contains("revoked"), "{message}");
}

#[test]
fn a_client_that_counts_its_tries_finds_its_answer() {
    let lab = lab_with_short_hold();
    let (origin, received) = payments(&lab);
    lab.bay("b", &ask_policy(&origin, ""));
    let url = origin.url("https", "/payments");
    // One command. Like clients with retries and tracing, each try has another count and another span.
    let trace = |count: u32| {
        format!("-H 'traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b{count}-01'")
    };
    let pay = |count: u32, body: &str| {
        format!(
            "curl -s -A pay -o /dev/null -w '%{{http_code}} ' -H 'x-stainless-retry-count: {count}' {} -d '{body}' {url}",
            trace(count)
        )
    };
    // If several headers could vary, an agent could send any data to a host that was allowed once.
    let carry = format!("{} {}", pay(3, ALICE), trace(4));
    let go = "until [ -e /tmp/go ]; do sleep 0.05; done";
    let script = format!(
        "{{ {}; touch /tmp/asked; {go}; {}; {carry}; {}; }} > /tmp/out; mv /tmp/out /tmp/all",
        pay(0, ALICE),
        pay(1, MALLORY),
        pay(2, ALICE)
    );
    let _begun = lab.daemon.bay(&["exec", "--detach", "b", "--", "sh", "-c", &script]).ok();
    until("its client to leave", || (lab.daemon.sh("b", "test -e /tmp/asked").code == 0).then_some(()));
    let card = the_open_approval(&lab);
    let _allowed = allow(&lab, &card, &[]).ok();
    let _go = lab.daemon.sh("b", "touch /tmp/go").ok();
    let all = until("all three answers", || {
        let ran = lab.daemon.sh("b", "cat /tmp/all");
        (ran.code == 0).then(|| ran.text())
    });
    assert_eq!(all.trim(), "503 503 503 200");
    assert_eq!(*received.lock().unwrap(), [ALICE]);
    let open = approvals(&lab, &[]);
    let differs = |at: usize| open[at]["differs"]["how"].to_string();
    let (carried, other): (Vec<_>, Vec<_>) =
        (0..open.len()).map(differs).partition(|how| how.contains("header traceparent"));
    assert!(carried.len() <= 1 && other.iter().all(|how| how.contains("mallory")), "{open:#?}");
}
