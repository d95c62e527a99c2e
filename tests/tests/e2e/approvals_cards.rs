//! Cards: what the approver is shown, and that the answer covers exactly that.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use bay_tests::canary::{CANARY, everybody_is_clean, once_there, set};
use bay_tests::lab::{Lab, READS_A_STREAM, lab};
use bay_tests::open_approvals::{
    Client, approvals, ask_policy, curl, curl_result, id, lab_with_short_hold, the_open_approval,
};
use bay_tests::test_servers::Origin;
use bay_tests::wait::within;
use bay_tests::{CliRun, until};
use bay_types::ErrorCode;
use serde_json::Value;

/// Asserts that the text has no terminal sequences and no characters that change the order of a line.
fn is_plain(text: &str) {
    let odd = |char: char| (char.is_control() && char != '\n') || "\u{202e}\u{200b}\u{2066}".contains(char);
    assert!(!text.chars().any(odd), "{text:?}");
}

fn answer(lab: &Lab, card: &Value, words: &[&str]) -> CliRun {
    let id = id(card);
    lab.daemon.bay(&[&["approvals", words[0], id.as_str()], &words[1..]].concat())
}

/// A bay whose requests to the origin need an approval, and that has a secret for it.
fn with_secret(lab: &Lab) -> Origin {
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    let uses = format!("GET,POST origin.test:{}/** as bearer", origin.port());
    let _set = set(lab, "TOKEN", &["--for", &uses]).ok();
    let _there = once_there(lab, "b");
    origin
}

#[test]
fn a_card_names_the_secret_that_would_be_attached_and_the_value_is_on_none() {
    let lab = lab();
    let origin = with_secret(&lab);
    let url = origin.url("https", "/pay");
    curl(&lab, "b", "one", &format!("-H \"Authorization: Bearer $TOKEN\" -d amount=1 '{url}'"));
    let card = the_open_approval(&lab);
    assert_eq!(card["secrets"], serde_json::json!(["TOKEN"]), "{card:#}");
    let shown = lab.daemon.bay(&["approvals", "show", &id(&card)]).ok().text();
    assert!(shown.lines().any(|line| line.trim() == "secrets    TOKEN"), "{shown}");
    assert!(!card.to_string().contains(CANARY) && !shown.contains(CANARY));
    let _allowed = answer(&lab, &card, &["allow"]).ok();
    assert!(curl_result(&lab, "b", "one").starts_with("200"));
    let sent = bay_tests::canary::credentials(&origin);
    assert_eq!(sent, [format!("Bearer {CANARY}")]);
    everybody_is_clean(&lab, "b");
}

/// Sends the same request with and without the secret, one after the other, from one exec.
const WITH_AND_WITHOUT: &str = r#"
import json, os, sys, time, urllib.request, urllib.error
def send(method, secret):
    headers = {"Authorization": "Bearer " + os.environ["TOKEN"]} if secret else {}
    try:
        return urllib.request.urlopen(urllib.request.Request(sys.argv[1], method=method, headers=headers), timeout=30).status
    except urllib.error.HTTPError as refused:
        return refused.code
first = send("GET", True)
open("/tmp/asked", "w").close()
while not os.path.exists("/tmp/go"):
    time.sleep(0.01)
print(json.dumps([first, send("GET", False), send("POST", True), send("GET", True), send("GET", True)]))
"#;

#[test]
fn an_unused_allow_covers_only_its_method_and_its_secret() {
    let lab = lab_with_short_hold();
    let origin = with_secret(&lab);
    let url = origin.url("https", "/pay");
    std::thread::scope(|scope| {
        let client = scope.spawn(|| lab.python("b", WITH_AND_WITHOUT, &[&url]));
        until("it was told to come again", || {
            (lab.daemon.sh("b", "test -e /tmp/asked").code == 0).then_some(())
        });
        let card = the_open_approval(&lab);
        assert_eq!(card["held"], 0);
        let _allowed = answer(&lab, &card, &["allow"]).ok();
        let _go = lab.daemon.sh("b", "touch /tmp/go").ok();
        let statuses = client.join().unwrap().ok().json();
        assert_eq!(statuses, serde_json::json!([503, 503, 503, 200, 503]), "{statuses}");
    });
    assert_eq!(origin.seen.lines(), ["GET /pay"]);
}

#[test]
fn a_request_with_another_header_is_another_approval() {
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    let url = origin.url("https", "/x");
    // Bodies are longer than the part that is read ahead. They differ within it, or not at all.
    let body =
        |at: usize| format!("head -c 66560 /dev/zero | tr '\\0' a | sed 's/./{at}/10' > /tmp/body{at}");
    let _made = lab.daemon.sh("b", &format!("{} && {}", body(1), body(2))).ok();
    for (name, header, body) in [("one", "a", 1), ("two", "b", 1), ("three", "a", 2)] {
        curl(
            &lab,
            "b",
            name,
            &format!("-H 'X-To: {header}' -H 'Expect:' --data-binary @/tmp/body{body} '{url}'"),
        );
    }
    let mut open = until("three questions", || Some(approvals(&lab, &[])).filter(|open| open.len() == 3));
    open.sort_by_key(|card| card["digest"].to_string());
    open.dedup_by_key(|card| card["digest"].to_string());
    assert_eq!(open.len(), 3, "{open:#?}");
    let _allowed = answer(&lab, &open[0], &["allow"]).ok();
    let over =
        || ["one", "two", "three"].map(|name| lab.daemon.sh("b", &format!("cat /tmp/{name}")).code == 0);
    until("one of them to go on", || over().contains(&true).then_some(()));
    for card in &open[1..] {
        let _denied = answer(&lab, card, &["deny"]).ok();
    }
    let said = ["one", "two", "three"].map(|name| curl_result(&lab, "b", name)[..3].to_owned());
    assert_eq!(said.iter().filter(|status| *status == "200").count(), 1, "{said:?}");
    assert_eq!(origin.seen.lines().len(), 1);
}

#[test]
fn a_host_that_looks_like_another_is_flagged() {
    let lab = lab();
    let known = lab.echo("origin.test");
    // It contains a Cyrillic letter and looks like the other host.
    let odd = "xn--rigin-iye.test";
    let rule = |host: &str| {
        ask_policy(&known, "")
            .replace("\"origin.test\"", &format!("\"{host}\""))
            .replace("\"origin\"", &format!("\"{host}\""))
    };
    lab.bay("b", &format!("{}{}", rule("origin.test"), rule(odd)));
    curl(&lab, "b", "odd", &format!("'https://{odd}:{}/x'", known.port()));
    let card = the_open_approval(&lab);
    assert_eq!(card["asked"]["host"], odd);
    let warnings = card["warnings"].to_string();
    assert!(warnings.contains("to the eye it is origin.test"), "{warnings}");
    let shown = lab.daemon.bay(&["approvals", "show", &id(&card)]).ok().text();
    assert!(shown.contains("careful") && shown.contains(odd), "{shown}");
    is_plain(&shown);
    let _denied = answer(&lab, &card, &["deny"]).ok();
    assert!(curl_result(&lab, "b", "odd").starts_with("403"));
}

/// A command line, a tool call and a body with sequences that would control the reader's terminal.
const DISGUISED: &str = "\u{1b}]0;mine\u{7}\u{1b}[2K\ry\u{202e}lop\u{200b}";

#[test]
fn no_terminal_obeys_text_of_a_bay_in_any_view() {
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    let mut watching = lab
        .daemon
        .command(&["approvals", "--watch"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let url = origin.url("https", "/x");
    let call = format!("call_42{DISGUISED}");
    let agent = format!("agent {}", DISGUISED.replace(['\r', '\u{7}', '\u{1b}'], ""));
    let line = [
        "exec",
        "--detach",
        "--tool-call",
        &call,
        "b",
        "--",
        "curl",
        "-sS",
        "-A",
        &agent,
        "-d",
        DISGUISED,
        &url,
    ];
    let refused = lab.daemon.bay(&line);
    let line = if refused.code == 0 {
        None
    } else {
        Some(line.map(|word| if word == call { "call_42" } else { word }))
    };
    if let Some(line) = line {
        // The daemon accepts a tool call only as one plain word.
        assert!(refused.errors().contains("tool call"), "{refused}");
        let _begun = lab.daemon.bay(&line).ok();
    }
    let card = the_open_approval(&lab);
    assert!(card["tool_call"].as_str().is_some_and(|call| call.starts_with("call_42")), "{card:#}");
    for line in
        [&["approvals"][..], &["approvals", "show", &id(&card)], &["approvals", "--json"], &["timeline", "b"]]
    {
        is_plain(&lab.daemon.bay(line).ok().text());
    }
    let shown = lab.daemon.bay(&["approvals", "show", &id(&card)]).ok().text();
    assert!(shown.contains("tool call  call_42") && shown.contains("curl"), "{shown}");
    let _denied = answer(&lab, &card, &["deny", "-m", "no"]).ok();
    let mut seen = String::new();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    while !seen.contains("denied") {
        seen += &format!("{}\n", lines.next().expect("it goes on").unwrap());
    }
    is_plain(&seen);
    watching.kill().unwrap();
    watching.wait().unwrap();
}

#[test]
fn a_watch_shows_new_cards_and_their_answers_over_a_restart_too() {
    let mut lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    let begin = |lab: &Lab, args: &[&str]| {
        let mut child = lab.daemon.command(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        (child, lines)
    };
    let (mut person, mut read) = begin(&lab, &["approvals", "--watch"]);
    let (mut program, mut json) = begin(&lab, &["approvals", "--watch", "--json"]);
    let mut next = |wanted: &str| -> Value {
        loop {
            let line = json.next().expect("the stream goes on").unwrap();
            let card: Value = serde_json::from_str(&line).unwrap();
            if card["state"] == wanted {
                return card;
            }
        }
    };
    curl(&lab, "b", "one", &format!("-d amount=1 '{}'", origin.url("https", "/pay")));
    let card = next("open");
    assert_eq!((&card["bay_name"], &card["asked"]["body"]["preview"]), (&"b".into(), &"amount=1".into()));
    lab.daemon.restart();
    let _denied = answer(&lab, &card, &["deny", "-m", "wrong account"]).ok();
    let denied = next("denied");
    assert_eq!((&denied["id"], &denied["answer"]["why"]), (&card["id"], &"wrong account".into()));
    let mut seen = String::new();
    while !seen.contains("wrong account") {
        seen += &format!("{}\n", read.next().expect("it goes on").unwrap());
    }
    for part in ["POST https://origin.test", "amount=1", "exec 1: sh", "denied   b", "by uid 0"] {
        assert!(seen.contains(part), "{part}: {seen}");
    }
    assert_eq!(seen.matches("── open").count(), 1, "a card is shown once: {seen}");
    for child in [&mut person, &mut program] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Long enough to be distinguishable from a hold of half a second.
const A_WHILE: Duration = Duration::from_secs(3);

#[test]
fn a_client_is_held_in_silence_and_a_patient_one_for_longer() {
    let lab = lab_with_short_hold();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    curl(&lab, "b", "patient", &format!("'{}'", origin.url("https", "/patient")));
    let card = the_open_approval(&lab);
    // A client that is not known to wait gets its answer only after the hold, and no byte before.
    let raw = r#"
import socket, ssl, sys, time
host, port = sys.argv[1], int(sys.argv[2])
stream = ssl.create_default_context().wrap_socket(socket.create_connection((host, port)), server_hostname=host)
stream.sendall(f"GET /hasty HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
begun = time.monotonic()
first = stream.recv(65536)
print(time.monotonic() - begun >= 0.4, first.split(b"\r\n")[0].decode())
"#;
    let told = lab.python("b", raw, &["origin.test", &origin.port().to_string()]).ok().text();
    assert_eq!(told.trim(), "True HTTP/1.1 503 Service Unavailable");
    let let_go = within(A_WHILE, || {
        let now = lab.daemon.bay(&["approvals", "show", &id(&card), "--json"]).ok().json();
        (now["held"] != 1).then_some(())
    });
    assert!(let_go.is_none(), "curl waits for as long as it takes");
    let _allowed = answer(&lab, &card, &["allow"]).ok();
    assert!(curl_result(&lab, "b", "patient").starts_with("200"));
}

#[test]
fn no_grant_is_made_for_a_request_that_is_shown_in_part() {
    let lab = lab_with_short_hold();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    let mut client = Client::new(&lab, "b", &origin);
    let long = format!("/{}", "a".repeat(4000));
    assert_eq!(client.status("GET", &long), 503);
    let card = the_open_approval(&lab);
    let shown = card["asked"]["request"].as_str().unwrap();
    assert!(
        shown.starts_with("GET https://origin.test")
            && shown.ends_with("aaa")
            && shown.contains(" characters … ")
    );
    assert!(
        card["saved_as"].is_null() && card["warnings"].to_string().contains("the middle is not shown"),
        "{card:#}"
    );
    for reach in [&["allow", "--for", "10m", "--any-body"][..], &["allow", "--save", "--any-body"]] {
        let _not = answer(&lab, &card, reach).fails_with(ErrorCode::InvalidInput);
    }
    let _allowed = answer(&lab, &card, &["allow"]).ok();
    assert_eq!(client.status("GET", &format!("{long}b")), 503, "what is not shown counts too");
    assert_eq!(client.status("GET", &long), 200);
}

#[test]
fn an_allow_without_a_secret_does_not_cover_the_request_with_one() {
    for reach in [
        &["allow", "--for", "10m"][..],
        &["allow", "--for", "10m", "--any-body"],
        &["allow", "--save", "--any-body"],
    ] {
        let lab = lab_with_short_hold();
        let origin = with_secret(&lab);
        let url = origin.url("https", "/thing");
        let send = |header: &str| {
            let script = format!("curl -s -A other -o /dev/null -w '%{{http_code}}' {header} -d x=1 '{url}'");
            lab.daemon.sh("b", &script).text()
        };
        assert_eq!(send(""), "503");
        let _allowed = answer(&lab, &the_open_approval(&lab), reach).ok();
        assert_eq!(send(""), "200");
        assert_eq!(send("-H \"Authorization: Bearer $TOKEN\""), "503", "the value is another matter");
        let card = the_open_approval(&lab);
        assert_eq!(card["secrets"], serde_json::json!(["TOKEN"]));
        let _allowed = answer(&lab, &card, reach).ok();
        assert_eq!(send("-H \"Authorization: Bearer $TOKEN\""), "200");
        let sent = bay_tests::canary::credentials(&origin);
        assert_eq!(sent, [format!("Bearer {CANARY}")]);
    }
}

#[test]
fn a_flood_of_approvals_removes_no_checkpoint_that_a_card_names() {
    let lab = lab_with_short_hold();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, "checkpoint = true"));
    let _clean = lab.daemon.sh("b", "echo clean > /workspace/file").ok();
    curl(&lab, "b", "one", &format!("-d amount=1 '{}'", origin.url("https", "/pay")));
    let card = the_open_approval(&lab);
    let promised = card["checkpoint"].as_str().unwrap().to_owned();
    let _changed = lab.daemon.sh("b", "echo changed > /workspace/file").ok();
    // More automatic checkpoints than are kept, each for its own approval. Twenty may be open at a time.
    for round in 0..24 {
        let url = origin.url("https", &format!("/other/{round}"));
        curl(&lab, "b", &format!("other{round}"), &format!("-A other -d x=1 '{url}'"));
        let other = until("its question", || {
            approvals(&lab, &[]).into_iter().find(|open| open["asked"]["request"] == format!("POST {url}"))
        });
        let _no = answer(&lab, &other, &["deny"]).ok();
    }
    let kept = lab.daemon.bay(&["checkpoints", "ls", "b", "--json"]).ok().text();
    assert!(kept.contains(&format!("\"{promised}\"")), "{kept}");
    let _back = answer(&lab, &card, &["deny", "--rollback"]).ok();
    assert_eq!(lab.daemon.sh("b", "cat /workspace/file").ok().text(), "clean");
    // The repeated request with another body restores the same checkpoint as the first.
    let mut client = Client::new(&lab, "b", &origin);
    let first = client.send("POST", "/pay", "1");
    assert_eq!(client.answer(first).0, 503);
    let first = the_open_approval(&lab);
    let second = client.send("POST", "/pay", "2");
    assert_eq!(client.answer(second).0, 503);
    let second = the_open_approval(&lab);
    assert_ne!(first["id"], second["id"]);
    assert_eq!(first["checkpoint"], second["checkpoint"]);
}

#[test]
fn streams_that_a_grant_permitted_end_with_it() {
    let lab = lab();
    let origin = lab.servers.https("origin.test", |_request| async move {
        use http_body_util::{BodyExt, StreamBody};
        // A line from time to time, until the reader leaves.
        let body = futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let line = hyper::body::Frame::data(bytes::Bytes::from_static(b"line\n"));
            Some((Ok::<_, std::convert::Infallible>(line), ()))
        });
        http::Response::new(StreamBody::new(body).boxed_unsync())
    });
    lab.bay("b", &ask_policy(&origin, ""));
    let url = origin.url("https", "/stream");
    let _granted = lab.daemon.bay(&["grants", "add", "b", &format!("GET {url}"), "--for", "4s"]).ok();
    let _begun = lab.daemon.bay(&["exec", "--detach", "b", "--", "python3", "-c", READS_A_STREAM, &url]).ok();
    until("the stream to begin", || (lab.daemon.sh("b", "test -e /tmp/begun").code == 0).then_some(()));
    until("the stream to end", || (lab.daemon.sh("b", "test -e /tmp/over").code == 0).then_some(()));
    until("its end on record", || {
        lab.record("b", "egress.ended").iter().any(|body| body["ending"] == "revoked").then_some(())
    });
}

#[test]
fn a_login_is_shown_with_its_user_and_its_database() {
    let lab = lab_with_short_hold();
    // No connection gets as far as this server.
    let origin = lab.servers.tcp("origin.test", |_stream| async {});
    let policy = origin.allowed("kind = \"tcp\"").replace("\"allow\"", "\"ask\"");
    lab.bay("b", &policy);
    let uses = format!("origin.test:{} as postgres", origin.port());
    let _set = set(&lab, "TOKEN", &["--for", &uses]).ok();
    let _there = once_there(&lab, "b");
    let (Some(directory), Some(home)) = (bay_tests::image::postgres(), bay_tests::image::postgres_home())
    else {
        return;
    };
    lab.daemon.import(&directory, bay_tests::image::POSTGRES);
    lab.daemon.bay_from("p", bay_tests::image::POSTGRES);
    lab.set("p", &policy);
    let _there = once_there(&lab, "p");
    let psql = |user: &str, database: &str| {
        // By its URL, as applications configure their database.
        let url = format!("postgres://{user}:$TOKEN@origin.test:{}/{database}", origin.port());
        format!("{}/bin/psql \"{url}\" -c 'select 1'", home.display())
    };
    let mut digests = Vec::new();
    for (user, database) in [("app", "orders"), ("app", "payroll"), ("admin", "orders")] {
        let _begun = lab.daemon.bay(&["exec", "--detach", "p", "--", "sh", "-c", &psql(user, database)]).ok();
        let card = the_open_approval(&lab);
        let login = format!("user {user} to database {database}");
        assert_eq!(card["asked"]["login"], login, "{card:#}");
        let shown = lab.daemon.bay(&["approvals", "show", &id(&card)]).ok().text();
        assert!(shown.contains(&login) && shown.contains("secrets    TOKEN"), "{shown}");
        digests.push(card["digest"].clone());
        let _no = answer(&lab, &card, &["deny"]).ok();
        until("nothing to be open", || approvals(&lab, &[]).is_empty().then_some(()));
    }
    digests.dedup();
    assert_eq!(digests.len(), 3);
}

#[test]
fn an_allow_for_a_command_that_has_ended_is_refused_with_a_remedy() {
    let lab = lab_with_short_hold();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    let url = origin.url("https", "/x");
    assert_eq!(lab.get("b", &url).0, 503, "its exec ends with that");
    let card = the_open_approval(&lab);
    until("its end to be known", || {
        let exec = lab.daemon.bay(&["execs", "show", "b", "1", "--json"]).ok().json();
        (!exec["exit"].is_null()).then_some(())
    });
    let (message, next) = answer(&lab, &card, &["allow"]).fails_with(ErrorCode::InvalidInput);
    assert!(message.contains("exec 1 has ended") && next.contains("--for 10m"), "{message}: {next}");
    let _allowed = answer(&lab, &card, &["allow", "--for", "10m"]).ok();
    assert_eq!(lab.get("b", &url).0, 200);
}
