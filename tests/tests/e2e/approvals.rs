//! Requests that wait for an approval: held, answered, repeated; and that a bay cannot influence the answer.

use std::time::Instant;

use bay_tests::lab::{Lab, lab, lab_with};
use bay_tests::open_approvals::{
    Client, approvals, ask_policy, curl, curl_result, id, lab_with_short_hold, paths, short,
    the_open_approval,
};
use bay_tests::{Daemon, until};
use bay_types::ErrorCode;
use serde_json::{Value, json};

#[test]
fn a_held_request_continues_after_an_allow_and_is_on_record() {
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, "reason = \"a person looks\""));
    let url = origin.url("https", "/pay?n=1");
    curl(&lab, "b", "one", &format!("-H 'X-Why: yes' -d 'amount=1' '{url}'"));
    let card = the_open_approval(&lab);
    assert_eq!(card["state"], "open", "{card:#}");
    assert_eq!((&card["bay_name"], &card["held"]), (&"b".into(), &1.into()), "{card:#}");
    let what = &card["asked"];
    assert_eq!((&what["request"], &what["host"]), (&format!("POST {url}").into(), &"origin.test".into()));
    assert_eq!((&what["body"]["preview"], &what["body"]["length"]), (&"amount=1".into(), &8.into()));
    let headers = what["headers"].to_string();
    assert!(
        headers.contains("x-why") && headers.contains("user-agent") && !headers.contains("yes"),
        "{headers}"
    );
    assert_eq!((&card["rule"]["id"], &card["rule"]["reason"]), (&"origin".into(), &"a person looks".into()));
    assert_eq!((&card["exec_number"], &card["exec_argv"][0]), (&1.into(), &"sh".into()), "{card:#}");
    assert!(card["saved_as"].as_str().is_some_and(|rule| rule.contains("/pay")), "{card:#}");
    let text = lab.daemon.bay(&["approvals", "show", &short(&card)]).ok().text();
    for part in ["origin.test", "amount=1", "exec 1: sh", "a person looks", "none would be attached"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(origin.seen.lines().is_empty(), "nothing leaves before the answer");

    let told = lab.daemon.bay(&["approvals", "allow", &short(&card), "--json"]).ok().json();
    assert_eq!((&told["state"], &told["answer"]["reach"]), (&"allowed".into(), &"once".into()), "{told:#}");
    assert_eq!(curl_result(&lab, "b", "one").trim(), "200 POST /pay");
    assert_eq!(origin.seen.lines().len(), 1);
    assert!(approvals(&lab, &[]).is_empty());

    let asked = lab.record("b", "approval.asked");
    assert_eq!((asked.len(), &asked[0]["digest"]), (1, &card["digest"]), "{asked:#?}");
    let allowed = lab.record("b", "approval.allowed");
    assert_eq!((&allowed[0]["approval"], &allowed[0]["by"]), (&card["id"], &"uid 0".into()), "{allowed:#?}");
    assert!(allowed[0]["after_ms"].is_u64(), "{allowed:#?}");
    let decided = lab.record("b", "egress.decided");
    assert_eq!((decided.len(), &decided[0]["approval"]), (1, &card["id"]), "{decided:#?}");
    assert_eq!(decided[0]["outcome"], "allow");
    // The allow was for one request; the next one needs a new approval.
    curl(&lab, "b", "two", &format!("-d 'amount=1' '{url}'"));
    let again = the_open_approval(&lab);
    assert_ne!(again["id"], card["id"]);
    let _no = lab.daemon.bay(&["approvals", "deny", &id(&again), "-m", "one was enough"]).ok();
    let refused = curl_result(&lab, "b", "two");
    assert!(refused.starts_with("403 ") && refused.contains("one was enough"), "{refused}");
    assert_eq!(origin.seen.lines().len(), 1);
    assert_eq!(lab.record("b", "approval.denied")[0]["why"], "one was enough");
    // No rule is proposed for a request that a person denied.
    let learned = lab.daemon.bay(&["policy", "learn", "b", "--json"]).ok().json();
    assert_eq!(learned["rules"], 0, "{learned:#}");
    assert!(learned["not_learned"].to_string().contains("a person was asked"), "{learned:#}");
    let timeline = lab.daemon.bay(&["timeline", "b"]).ok().text();
    assert!(timeline.contains("a person was asked") && timeline.contains("denied by uid 0"), "{timeline}");
}

#[test]
fn a_client_that_retries_meets_the_same_approval_and_later_its_answer() {
    let lab = lab_with_short_hold();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    let mut client = Client::new(&lab, "b", &origin);
    let first = client.send("GET", "/x", "");
    let (status, retry, body) = client.answer(first);
    assert_eq!((status, retry), (503, json!("3")), "{body}");
    let told: Value = serde_json::from_str(&body).unwrap();
    let card = the_open_approval(&lab);
    assert_eq!((&told["error"], &told["question"]), (&"waiting".into(), &card["id"]), "{told:#}");
    assert_eq!(card["held"], 0);
    assert_eq!(client.status("GET", "/x"), 503, "it is the same question");
    assert_eq!(the_open_approval(&lab)["id"], card["id"]);
    let _allowed = lab.daemon.bay(&["approvals", "allow", &id(&card)]).ok();
    assert_eq!(lab.get("b", &origin.url("https", "/x")).0, 503, "another exec has to ask for itself");
    assert_eq!(client.status("GET", "/other"), 503, "and so has another request");
    assert_eq!(client.status("GET", "/x"), 200);
    assert_eq!(client.status("GET", "/x"), 503, "once is once");
    assert_eq!(paths(&origin), ["/x"]);
}

#[test]
fn an_allow_covers_exactly_its_reach() {
    let lab = lab_with_short_hold();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    let mut client = Client::new(&lab, "b", &origin);
    let mut ask = |path: &str, reach: &[&str]| {
        assert_eq!(client.status("GET", path), 503);
        let card = the_open_approval(&lab);
        let line: Vec<&str> = ["approvals", "allow"].iter().chain(reach).copied().collect();
        let line: Vec<String> = line.iter().map(|word| (*word).to_owned()).chain([id(&card)]).collect();
        let _allowed = lab.daemon.bay(&line).ok();
        (client.status("GET", path), client.status("GET", path), lab.get("b", &origin.url("https", path)).0)
    };
    assert_eq!(ask("/exec", &["--exec"]), (200, 200, 503));
    let mine = the_open_approval(&lab);
    let _no = lab.daemon.bay(&["approvals", "deny", &id(&mine)]).ok();
    assert_eq!(ask("/time", &["--for", "10m"]), (200, 200, 200));
    assert_eq!(ask("/grant", &["--for", "10m", "--any-body"]), (200, 200, 200));
    assert_eq!(ask("/save", &["--save", "--any-body"]), (200, 200, 200));
    let grants = lab.daemon.bay(&["grants", "ls", "b", "--json"]).ok().json();
    assert_eq!(grants.as_array().map(Vec::len), Some(1), "{grants:#}");
    let policy = lab.daemon.bay(&["policy", "show", "b"]).ok().text();
    assert!(policy.contains("/save"), "{policy}");
    // An allow for a run of the bay does not cover its next run; a rule does.
    let _stopped = lab.daemon.bay(&["stop", "b"]).ok();
    let _started = lab.daemon.bay(&["start", "b"]).ok();
    assert_eq!(lab.get("b", &origin.url("https", "/time")).0, 503);
    assert_eq!(lab.get("b", &origin.url("https", "/grant")).0, 503);
    assert_eq!(lab.get("b", &origin.url("https", "/save")).0, 200);
}

#[test]
fn an_approval_without_an_answer_is_denied() {
    let lab = lab_with(Daemon::setup().argument("--ask-timeout").argument("2s"));
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    let (status, body) = lab.get("b", &origin.url("https", "/x"));
    assert_eq!(status, 403);
    assert!(body.contains("nobody answered"), "{body}");
    let card = approvals(&lab, &["--all"]).remove(0);
    assert_eq!(card["state"], "expired", "{card:#}");
    let late = lab.daemon.bay(&["approvals", "allow", &id(&card)]);
    let (message, _) = late.fails_with(ErrorCode::ApprovalAnswered);
    assert!(message.contains("nobody answered"), "{message}");
    assert_eq!(lab.record("b", "approval.expired").len(), 1);
    assert!(origin.seen.lines().is_empty());
}

#[test]
fn an_open_approval_and_an_allow_survive_a_killed_daemon() {
    let mut lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    let url = origin.url("https", "/x");
    // The client retries when its connection breaks.
    curl(&lab, "b", "one", &format!("--retry 20 --retry-delay 1 --retry-all-errors '{url}'"));
    let card = the_open_approval(&lab);
    let seen = Instant::now();
    lab.daemon.kill_9();
    lab.daemon.launch();
    let after = the_open_approval(&lab);
    assert_eq!((&after["id"], &after["digest"]), (&card["id"], &card["digest"]));
    let waited = seen.elapsed().as_millis();
    let allowed = lab.daemon.bay(&["approvals", "allow", &id(&card), "--json"]).ok().json();
    assert!(
        allowed["answer"]["after_ms"].as_u64().is_some_and(|took| u128::from(took) >= waited),
        "{allowed:#}"
    );
    assert_eq!(curl_result(&lab, "b", "one").trim(), "200 GET /x");

    // An unused allow is kept too.
    let waiting = origin.url("https", "/y");
    curl(&lab, "b", "two", &format!("--retry 20 --retry-delay 1 --retry-all-errors '{waiting}'"));
    let card = the_open_approval(&lab);
    lab.daemon.kill_9();
    lab.daemon.launch();
    let _allowed = lab.daemon.bay(&["approvals", "allow", &id(&card)]).ok();
    lab.daemon.kill_9();
    lab.daemon.launch();
    assert_eq!(curl_result(&lab, "b", "two").trim(), "200 GET /y");
    assert_eq!(paths(&origin), ["/x", "/y"]);
}

#[test]
fn held_clients_of_an_ending_daemon_are_told_to_retry() {
    let mut lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    let url = origin.url("https", "/x");
    let held = |lab: &Lab| {
        until("one to be held", || approvals(lab, &[]).into_iter().find(|card| card["held"] == json!(1)))
    };
    for version in ["--http1.1", "--http2"] {
        for round in 0..3 {
            let name = format!("one{round}{version}");
            lab.until_open("b");
            curl(&lab, "b", &name, &format!("{version} -D /tmp/{name}.head '{url}'"));
            let _card = held(&lab);
            lab.daemon.terminate();
            lab.daemon.launch();
            let told = curl_result(&lab, "b", &name);
            assert!(told.starts_with("503 "), "{told}");
            let head = lab.daemon.sh("b", &format!("cat /tmp/{name}.head")).ok().text().to_lowercase();
            assert!(head.contains("retry-after:"), "{head}");
        }
    }
    lab.until_open("b");
    // A client that retries waits for the same approval, and then continues.
    curl(&lab, "b", "two", &format!("--retry 20 --retry-delay 1 '{url}'"));
    let card = held(&lab);
    lab.daemon.terminate();
    lab.daemon.launch();
    assert_eq!(held(&lab)["id"], card["id"]);
    let _allowed = lab.daemon.bay(&["approvals", "allow", &id(&card)]).ok();
    assert!(curl_result(&lab, "b", "two").contains("200 GET /x"));
    assert_eq!(paths(&origin), ["/x"]);
}

#[test]
fn no_approval_is_made_before_the_body_has_arrived() {
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    let url = origin.url("https", "/pay");
    let stalled = format!("(printf amount=1; sleep 8) | curl -sS -X POST -T - '{url}'");
    let told = lab.daemon.sh("b", &stalled).text();
    assert!(told.contains("its body did not arrive"), "{told}");
    assert!(approvals(&lab, &["--all"]).is_empty());
    assert!(paths(&origin).is_empty());
}

#[test]
fn of_two_concurrent_answers_the_second_is_refused_with_the_first() {
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    curl(&lab, "b", "one", &origin.url("https", "/x"));
    let card = the_open_approval(&lab);
    let answers: Vec<bay_tests::rest::Answer> = std::thread::scope(|scope| {
        let each = ["allow", "deny"].map(|word| {
            let target = format!("/v1/approvals/{}/{word}", id(&card));
            let daemon = &lab.daemon;
            scope.spawn(move || daemon.rest("POST", &target, &json!({})))
        });
        each.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let lost: Vec<Value> =
        answers.iter().filter(|answer| answer.status != 200).map(bay_tests::rest::Answer::json).collect();
    assert_eq!((answers.len(), lost.len()), (2, 1));
    assert_eq!(lost[0]["code"], "approval-answered", "{lost:#?}");
    assert!(
        lost[0]["message"].as_str().is_some_and(|message| message.contains("uid 0 has already")),
        "{lost:#?}"
    );
    let code = curl_result(&lab, "b", "one");
    assert!(code.starts_with(if answers[0].status == 200 { "200" } else { "403" }), "{code}");
    let wrong = lab.daemon.bay(&["approvals", "allow", "deadbeef"]);
    let _unknown = wrong.fails_with(ErrorCode::ApprovalNotFound);
}

#[test]
fn open_approvals_of_a_bay_end_with_its_runtime() {
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    for verb in ["stop", "rm"] {
        curl(&lab, "b", verb, &origin.url("https", "/x"));
        let card = the_open_approval(&lab);
        let _gone = lab.daemon.bay(&[verb, "b"]).ok();
        assert!(approvals(&lab, &[]).is_empty());
        let late = lab.daemon.bay(&["approvals", "allow", &id(&card)]);
        let (message, _) = late.fails_with(ErrorCode::ApprovalAnswered);
        assert!(message.contains("dropped"), "{message}");
        if verb == "stop" {
            let _started = lab.daemon.bay(&["start", "b"]).ok();
        }
    }
    assert!(origin.seen.lines().is_empty());
}

/// Many concurrent requests, each in a thread; prints the statuses and one refusal.
const FLOOD: &str = r#"
import sys, threading, urllib.request, urllib.error
said, lock = [], threading.Lock()
def send(path):
    try:
        answer = urllib.request.urlopen(sys.argv[1] + path, timeout=60)
    except urllib.error.HTTPError as refused:
        answer = refused
    with lock:
        said.append((answer.status, answer.read().decode()))
paths = sys.argv[2:]
threads = [threading.Thread(target=send, args=(path,)) for path in paths]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(sorted(status for status, _ in said))
print(next((body for status, body in said if status == 403), ""))
"#;

#[test]
fn equal_requests_share_an_approval_and_a_flood_is_refused_with_the_reason() {
    let lab = lab_with_short_hold();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    let base = origin.url("https", "");
    let same = ["/same"; 10];
    let line = [&["exec", "b", "--", "python3", "-c", FLOOD, base.as_str()][..], &same[..]].concat();
    let text = lab.daemon.bay(&line).ok().text();
    assert!(text.starts_with(&format!("{:?}", [503; 10])), "{text}");
    assert_eq!(approvals(&lab, &[]).len(), 1, "ten times the same is one question");
    let paths: Vec<String> = (0..29).map(|number| format!("/{number}")).collect();
    let mut line = vec!["exec", "b", "--", "python3", "-c", FLOOD, base.as_str()];
    line.extend(paths.iter().map(String::as_str));
    let text = lab.daemon.bay(&line).ok().text();
    assert_eq!(approvals(&lab, &[]).len(), 20);
    assert!(text.starts_with('[') && text.contains("403, 403") && text.contains("503"), "{text}");
    assert!(text.contains("20 questions of this bay wait for a person already"), "{text}");
    // Another bay can still ask.
    lab.bay("c", &ask_policy(&origin, ""));
    assert_eq!(lab.get("c", &origin.url("https", "/x")).0, 503);
    assert_eq!(approvals(&lab, &["--bay", "c"]).len(), 1);
    assert!(origin.seen.lines().is_empty());
}

#[test]
fn new_approvals_of_a_bay_are_limited_per_minute() {
    let lab = lab_with_short_hold();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    let base = origin.url("https", "");
    let flood = |from: usize, to: usize| {
        let paths: Vec<String> = (from..to).map(|number| format!("/{number}")).collect();
        let mut line = vec!["exec", "b", "--", "python3", "-c", FLOOD, base.as_str()];
        line.extend(paths.iter().map(String::as_str));
        lab.daemon.bay(&line).ok().text()
    };
    let text = flood(0, 20);
    assert!(text.starts_with(&format!("{:?}", [503; 20])), "{text}");
    for card in approvals(&lab, &[]) {
        let denied = lab.daemon.rest("POST", &format!("/v1/approvals/{}/deny", id(&card)), &json!({}));
        assert_eq!(denied.status, 200, "{}", String::from_utf8_lossy(&denied.body));
    }
    // None is open. Ten are left in this minute, and one more for each two seconds of it.
    let text = flood(20, 40);
    assert!(text.contains("this bay has asked 30 times within a minute"), "{text}");
    let open = approvals(&lab, &[]).len();
    assert!((10..20).contains(&open), "{open}: {text}");
    assert_eq!(text.lines().next().unwrap().matches("503").count(), open, "{text}");
    // Another bay has a limit of its own.
    lab.bay("c", &ask_policy(&origin, ""));
    assert_eq!(lab.get("c", &origin.url("https", "/x")).0, 503);
    assert!(origin.seen.lines().is_empty());
}

#[test]
fn a_checkpoint_is_taken_before_an_approval_and_a_denial_can_restore_it() {
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, "checkpoint = true"));
    let _before = lab.daemon.sh("b", "echo early > /workspace/early").ok();
    curl(&lab, "b", "one", &origin.url("https", "/x"));
    let card = the_open_approval(&lab);
    let name = card["checkpoint"].as_str().unwrap().to_owned();
    let listed = lab.daemon.bay(&["checkpoints", "ls", "b", "--json"]).ok().json();
    assert!(
        listed.to_string().contains(&name) && listed.to_string().contains("before asking about"),
        "{listed:#}"
    );
    let _late = lab.daemon.sh("b", "echo late > /workspace/late").ok();
    let denied = ["approvals", "deny", &id(&card), "--rollback", "-m", "undo it"];
    let _denied = lab.daemon.bay(&denied).ok();
    assert_eq!(lab.daemon.sh("b", "cat /workspace/early").ok().text().trim(), "early");
    assert_ne!(lab.daemon.sh("b", "cat /workspace/late").code, 0);
    assert!(origin.seen.lines().is_empty());
    lab.set("b", &ask_policy(&origin, ""));
    curl(&lab, "b", "two", &origin.url("https", "/x"));
    let card = the_open_approval(&lab);
    let (message, _) =
        lab.daemon.bay(&["approvals", "deny", &id(&card), "--rollback"]).fails_with(ErrorCode::InvalidInput);
    assert!(message.contains("no checkpoint"), "{message}");
    assert_eq!(the_open_approval(&lab)["id"], card["id"], "nothing was decided by that");
}

#[test]
fn a_request_with_another_body_is_another_approval_and_no_terminal_obeys_a_card() {
    let lab = lab_with_short_hold();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    let url = origin.url("https", "/x");
    let evil = "printf 'pay\\033]0;mine\\007\\302\\233\\342\\200\\256 %s' ";
    curl(&lab, "b", "one", &format!("-d \"$({evil} 1)\" '{url}'"));
    let first = the_open_approval(&lab);
    let text = lab.daemon.bay(&["approvals", "show", &id(&first)]).ok().text();
    assert!(text.contains("pay\\u{1b}]0;mine\\u{7}"), "{text}");
    for line in [&["approvals"][..], &["approvals", "show", &id(&first)], &["approvals", "--json"]] {
        let text = lab.daemon.bay(line).ok().text();
        assert!(!text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'), "{text:?}");
    }
    // The other request needs an approval of its own, however similar they are.
    curl(&lab, "b", "two", &format!("-d \"$({evil} 2)\" '{url}'"));
    until("two questions", || (approvals(&lab, &[]).len() == 2).then_some(()));
    let wrong = ["approvals", "allow", &id(&first), "--digest", &"0".repeat(64)];
    let _not_that = lab.daemon.bay(&wrong).fails_with(ErrorCode::InvalidInput);
    let digest = first["digest"].as_str().unwrap();
    let _that = lab.daemon.bay(&["approvals", "allow", &id(&first), "--digest", digest]).ok();
    assert!(curl_result(&lab, "b", "one").starts_with("200"));
    assert_eq!(approvals(&lab, &[]).len(), 1);
    assert_eq!(origin.seen.lines().len(), 1);
}

/// Requests a WebSocket, retries with another nonce when told to, and prints the result.
const HANDSHAKES: &str = r#"
import base64, os, socket, ssl, sys, time
host, port, path = sys.argv[1:]
for _ in range(40):
    stream = ssl.create_default_context().wrap_socket(socket.create_connection((host, int(port))), server_hostname=host)
    nonce = base64.b64encode(os.urandom(16)).decode()
    stream.sendall((f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {nonce}\r\n\r\n").encode())
    answer = stream.recv(4096).decode()
    if " 503 " not in answer.split("\r\n")[0]:
        break
    time.sleep(0.2)
open("/tmp/ws.new", "w").write(answer)
os.rename("/tmp/ws.new", "/tmp/ws")
"#;

#[test]
fn a_websocket_has_its_own_approval_which_its_client_meets_again() {
    let lab = lab_with_short_hold();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    let port = origin.port().to_string();
    let line = ["exec", "--detach", "b", "--", "python3", "-c", HANDSHAKES, "origin.test", &port, "/live"];
    let _begun = lab.daemon.bay(&line).ok();
    let card = the_open_approval(&lab);
    assert_eq!(card["asked"]["request"], format!("WEBSOCKET {}", origin.url("https", "/live")));
    assert!(card["saved_as"].as_str().unwrap().contains("method = \"WEBSOCKET\""), "{card:#}");
    // When it retries, it meets the same approval, whatever its nonce is.
    until("it to be let go", || (the_open_approval(&lab)["held"] == 0).then_some(()));
    until("it to be held again", || (the_open_approval(&lab)["held"] == 1).then_some(()));
    let again = the_open_approval(&lab);
    assert_eq!((&again["id"], &again["digest"]), (&card["id"], &card["digest"]));
    assert!(origin.seen.lines().is_empty());
    let _allowed = lab.daemon.bay(&["approvals", "allow", &id(&card)]).ok();
    // This origin supports no WebSockets, and returns what it received.
    let answer = curl_result(&lab, "b", "ws");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("GET /live"), "{answer}");
    assert_eq!(origin.seen.lines().len(), 1);
    // A plain request for the same path needs another approval.
    curl(&lab, "b", "read", &origin.url("https", "/live"));
    let other = the_open_approval(&lab);
    assert_eq!(other["asked"]["request"], format!("GET {}", origin.url("https", "/live")));
    let _no = lab.daemon.bay(&["approvals", "deny", &id(&other)]).ok();
    assert!(curl_result(&lab, "b", "read").starts_with("403"));
}

#[test]
fn a_policy_change_overrides_a_pending_approval() {
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    curl(&lab, "b", "one", &origin.url("https", "/x"));
    let _asked = the_open_approval(&lab);
    lab.set("b", &origin.allowed("method = \"*\""));
    assert!(curl_result(&lab, "b", "one").starts_with("200"), "it need not be asked about any more");
    lab.set("b", &ask_policy(&origin, ""));
    curl(&lab, "b", "two", &origin.url("https", "/y"));
    until("a question", || approvals(&lab, &[]).iter().any(|card| card["held"] == 1).then_some(()));
    lab.set("b", &ask_policy(&origin, "").replace("\"ask\"", "\"deny\""));
    assert!(curl_result(&lab, "b", "two").starts_with("403"));
    assert_eq!(paths(&origin), ["/x"]);
}

#[test]
fn a_bay_can_neither_see_nor_answer_approvals() {
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    curl(&lab, "b", "one", &origin.url("https", "/x"));
    let card = the_open_approval(&lab);
    assert_ne!(lab.daemon.sh("b", "bay-ctl approvals").code, 0);
    let tries = r#"
import http.client, socket, sys
class Ctl(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("/.bay/ctl.sock")
# What a bay may ask is answered there.
ctl = Ctl("bay")
ctl.request("GET", "/v1/whoami")
assert ctl.getresponse().status == 200
for method, path in [("GET", "/v1/approvals"), ("GET", "/v1/approvals/" + sys.argv[1]), ("POST", "/v1/approvals/" + sys.argv[1] + "/allow")]:
    ctl = Ctl("bay")
    try:
        ctl.request(method, path, "{}" if method == "POST" else None)
        answer = ctl.getresponse()
    except OSError:
        continue
    body = answer.read().decode()
    assert answer.status >= 400 and "digest" not in body, (answer.status, body)
print("refused")
"#;
    assert_eq!(lab.python("b", tries, &[&id(&card)]).ok().text().trim(), "refused");
    assert_eq!(the_open_approval(&lab)["id"], card["id"], "it is still open");
    let _no = lab.daemon.bay(&["approvals", "deny", &id(&card)]).ok();
}

/// Tries the daemon's API at each host with the daemon's own token, as an attacker who obtained it: lists the
/// approvals, and allows one. Prints the result of each attempt.
const AT_THE_DOOR: &str = r#"
import http.client, json, sys
port, token, question, *hosts = sys.argv[1:]
ended = {}
for host in hosts + [line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("nameserver")]:
    for method, path in [("GET", "/v1/approvals"), ("POST", "/v1/approvals/" + question + "/allow")]:
        try:
            door = http.client.HTTPConnection(host, int(port), timeout=10)
            door.request(method, path, "{}" if method == "POST" else None, {"Authorization": "Bearer " + token})
            answer = door.getresponse()
            body = answer.read().decode()
            assert "digest" not in body, (host, body)
            ended[host] = answer.status
        except OSError as error:
            ended[host] = 0
print(json.dumps(ended))
"#;

#[test]
fn a_bay_reaches_the_daemons_api_at_no_address() {
    let lab = lab_with(Daemon::setup().argument("--listen").argument("127.0.0.1:0"));
    let port = until("the daemon to say where it listens", || {
        let log = lab.daemon.log();
        let (_, after) = log.rsplit_once("127.0.0.1:")?;
        after.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u16>().ok()
    });
    let token = std::fs::read_to_string(lab.daemon.data_dir.join("token")).unwrap().trim().to_owned();
    let origin = lab.echo("other.test");
    let wide = format!(
        "{}[[rule]]\nid = \"wide\"\noutcome = \"allow\"\nhost = \"*\"\nport = \"*\"\nscheme = [\"http\", \"https\"]\nmethod = \"*\"\n",
        ask_policy(&origin, "")
    );
    lab.bay("b", &wide);
    curl(&lab, "b", "one", &origin.url("https", "/x"));
    let card = the_open_approval(&lab);
    let tries = || {
        let (port, id) = (port.to_string(), id(&card));
        let args = [&port, &token, &id, "127.0.0.1", "localhost", "::1", "origin.test", "169.254.0.1"];
        lab.python("b", AT_THE_DOOR, &args).ok().json()
    };
    let ended = tries();
    for (host, status) in ended.as_object().unwrap() {
        assert!(matches!(status.as_u64(), Some(0 | 400..)), "{host}: {ended:#}");
    }
    // Nor if the operator allows this port: the request keeps the bay's name for the host, and the API refuses that
    // name.
    let led = format!(
        "{wide}[[rule]]\nid = \"led\"\noutcome = \"allow\"\nhost = \"origin.test\"\nport = {port}\nscheme = \"http\"\naddress = \"127.0.0.1\"\nmethod = \"*\"\n"
    );
    lab.set("b", &led);
    assert_eq!(tries()["origin.test"], ErrorCode::Unauthorized.http_status());
    assert_eq!(the_open_approval(&lab)["id"], card["id"], "it is still open");
    let _no = lab.daemon.bay(&["approvals", "deny", &id(&card)]).ok();
    assert!(origin.seen.lines().is_empty());
}

#[test]
fn an_allow_is_recorded_with_its_rule_or_grant_or_not_at_all() {
    for (table, reach) in [("policies", &["--save"][..]), ("grants", &["--for", "10m"])] {
        let lab = lab();
        let origin = lab.echo("origin.test");
        lab.bay("b", &ask_policy(&origin, ""));
        let url = origin.url("https", "/x");
        curl(&lab, "b", "one", &url);
        let card = the_open_approval(&lab);
        let card_id = id(&card);
        let allow: Vec<&str> =
            ["approvals", "allow", "--any-body", &card_id].iter().chain(reach).copied().collect();
        lab.daemon.break_inserts(table, "true");
        let refused = lab.daemon.bay(&allow);
        assert!(refused.code != 0 && refused.errors().contains("broken by the test"), "{refused}");
        assert_eq!(the_open_approval(&lab)["id"], card["id"], "it is still open");
        assert!(lab.record("b", "approval.allowed").is_empty());
        assert!(origin.seen.lines().is_empty(), "nothing leaves without the rule that was to come with it");
        // A failed transaction ends when the daemon begins the next one. Until then the database is locked.
        let _ran = lab.daemon.sh("b", "true").ok();
        lab.daemon.allow_inserts();
        let _allowed = lab.daemon.bay(&allow).ok();
        assert_eq!(curl_result(&lab, "b", "one").trim(), "200 GET /x");
        assert_eq!(lab.get("b", &url).0, 200, "what was left behind covers the next one");
    }
}

#[test]
fn an_approval_is_found_by_a_short_id_without_reading_others() {
    let lab = lab_with_short_hold();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    let mut client = Client::new(&lab, "b", &origin);
    let ask = |client: &mut Client<'_>, path: &str| {
        assert_eq!(client.status("GET", path), 503);
        let card = the_open_approval(&lab);
        let _no = lab.daemon.bay(&["approvals", "deny", &short(&card)]).ok();
        card
    };
    let (first, second) = (ask(&mut client, "/one"), ask(&mut client, "/two"));
    // Reading this row would fail.
    lab.daemon.sql(&format!("UPDATE approvals SET card = '{{' WHERE id = '{}'", id(&first)));
    let shown = lab.daemon.bay(&["approvals", "show", &short(&second), "--json"]).ok().json();
    assert_eq!((&shown["id"], &shown["state"]), (&second["id"], &"denied".into()), "{shown:#}");
    let unknown = lab.daemon.bay(&["approvals", "show", "ffffffffffff"]);
    let _said = unknown.fails_with(ErrorCode::ApprovalNotFound);
}
