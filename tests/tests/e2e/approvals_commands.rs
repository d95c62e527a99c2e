//! Commands that need an approval, and the webhooks that are notified.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bay_tests::lab::{Lab, lab};
use bay_tests::origin::text;
use bay_tests::{Daemon, until};
use bay_types::ErrorCode;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;

fn the_question(daemon: &Daemon) -> String {
    let open = until("a question", || {
        let open = daemon.bay(&["approvals", "--json"]).ok().json();
        open.as_array().filter(|open| !open.is_empty()).cloned()
    });
    assert_eq!(open.len(), 1, "{open:#?}");
    open[0]["id"].as_str().unwrap().to_owned()
}

fn begun(daemon: &Daemon, args: &[&str]) -> Child {
    daemon.command(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_command_that_needs_an_approval_starts_only_after_an_allow() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let line = ["exec", "b", "--ask", "--", "sh", "-c", "echo ran; exit 7"];
    let child = begun(&daemon, &line);
    let id = the_question(&daemon);
    let card = daemon.bay(&["approvals", "show", &id, "--json"]).ok().json();
    assert_eq!(
        (&card["asked"]["what"], &card["asked"]["argv"][2]),
        (&"exec".into(), &"echo ran; exit 7".into())
    );
    let execs = daemon.rest("GET", "/v1/bays/b/execs", &Value::Null).json();
    assert_eq!(execs.as_array().map(Vec::len), Some(0), "nothing was started: {execs:#}");
    // The waiting client reports that.
    let mut child = child;
    let mut told = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut told).unwrap();
    let short = &id[id.len() - 8..];
    assert!(told.contains(&format!("waiting for an approval: `bay approvals allow {short}`")), "{told}");
    let _allowed = daemon.bay(&["approvals", "allow", &id]).ok();
    let ran = child.wait_with_output().unwrap();
    assert_eq!((ran.status.code(), ran.stdout.as_slice()), (Some(7), &b"ran\n"[..]));

    let child = begun(&daemon, &line);
    let id = the_question(&daemon);
    let _denied = daemon.bay(&["approvals", "deny", &id, "-m", "not today"]).ok();
    let ran = child.wait_with_output().unwrap();
    assert_eq!((ran.status.code(), ran.stdout.len()), (Some(125), 0));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("not today"), "{ran:?}");
}

#[test]
fn rules_on_commands_apply_to_every_caller() {
    let lab: Lab = lab();
    let policy = "[[exec]]\nid = \"release\"\noutcome = \"ask\"\nargv = [\"make\", \"release\", \"**\"]\n\
                  [[exec]]\nid = \"never\"\noutcome = \"deny\"\nargv = [\"rm\", \"-rf\", \"**\"]\nreason = \"too much\"\n";
    lab.bay("b", policy);
    let _free = lab.daemon.sh("b", "true").ok();
    let shown = lab.daemon.bay(&["policy", "show", "b"]).ok().text();
    assert!(shown.contains("ask   run make release '**'") && shown.contains("run rm -rf"), "{shown}");
    let refused = lab.daemon.bay(&["exec", "b", "--", "/bin/rm", "-rf", "/tmp/x"]);
    let (message, _) = refused.fails_as(ErrorCode::Denied, 125);
    assert!(message.contains("rule never") && message.contains("too much"), "{message}");
    // The command is approved. It then fails because there is no make, which shows that it was started.
    let child = begun(&lab.daemon, &["exec", "b", "--", "make", "release", "now"]);
    let id = the_question(&lab.daemon);
    let _allowed = lab.daemon.bay(&["approvals", "allow", &id]).ok();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(127));
    assert_eq!(lab.record("b", "exec.approved").len(), 1);

    // Services run their commands at any time, so the approval happens when they are defined.
    let line = ["services", "add", "b", "x", "--", "rm", "-rf", "/tmp/x"];
    let (message, _) = lab.daemon.bay(&line).fails_with(ErrorCode::Denied);
    assert!(message.contains("rule never"), "{message}");
    let child =
        begun(&lab.daemon, &["services", "add", "b", "x", "--no-wait", "--", "make", "release", "now"]);
    let id = the_question(&lab.daemon);
    let card = lab.daemon.bay(&["approvals", "show", &id, "--json"]).ok().json();
    assert_eq!(card["asked"]["service"], "x", "{card:#}");
    let shown = lab.daemon.bay(&["services", "ls", "b", "--json"]).ok().json();
    assert_eq!(shown.as_array().map(Vec::len), Some(0), "{shown:#}");
    let _allowed = lab.daemon.bay(&["approvals", "allow", &id]).ok();
    let _over = child.wait_with_output().unwrap();
    until("the service to be there", || {
        let shown = lab.daemon.bay(&["services", "ls", "b", "--json"]).ok().json();
        (shown[0]["name"] == "x").then_some(())
    });
    assert_eq!(lab.record("b", "service.approved").len(), 1);
}

/// Rules on the commands of services, and on those of their health checks.
const SERVICE_RULES: &str = r#"
[[exec]]
id = "release"
outcome = "ask"
argv = ["make", "**"]

[[exec]]
id = "check"
outcome = "ask"
argv = ["sh", "-c", "check *"]

[[exec]]
id = "never"
outcome = "deny"
argv = ["rm", "-rf", "**"]
reason = "too much"

[[exec]]
id = "probe"
outcome = "deny"
argv = ["sh", "-c", "probe *"]
"#;

/// `bay-ctl services add` in the bay `b`.
fn add_inside<'a>(args: &[&'a str]) -> Vec<&'a str> {
    ["exec", "b", "--", "bay-ctl", "services", "add"].iter().chain(args).copied().collect()
}

fn service_names(daemon: &Daemon) -> Vec<String> {
    let shown = daemon.bay(&["services", "ls", "b", "--json"]).ok().json();
    shown.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn exec_rule_service_rules_on_commands_apply_to_services_that_a_bay_defines() {
    let lab: Lab = lab();
    let daemon = &lab.daemon;
    lab.bay("b", SERVICE_RULES);
    let denied = |args: &[&str], rule: &str| {
        let ran = daemon.bay(&add_inside(args)).exits(5);
        assert!(ran.errors().contains(rule), "{ran}");
    };
    denied(&["x", "--no-wait", "--", "/bin/rm", "-rf", "/tmp/x"], "rule never");
    denied(&["x", "--no-wait", "--health", "cmd:probe x", "--", "sleep", "1000"], "rule probe");
    assert!(service_names(daemon).is_empty(), "a command that a rule denies became a service");
    let _free = daemon.bay(&add_inside(&["free", "--no-wait", "--", "sleep", "1000"])).ok();
    // A name that is in use does not exempt a definition from the rules.
    denied(&["free", "--no-wait", "--", "rm", "-rf", "/tmp/x"], "rule never");

    // A command with an ask rule: one approval, however often the bay repeats it.
    let release = add_inside(&["x", "--no-wait", "--", "make", "release"]);
    for _ in 0..2 {
        let ran = daemon.bay(&release).exits(5);
        assert!(ran.errors().contains("nobody has answered yet"), "{ran}");
    }
    let id = the_question(daemon);
    let asked = &daemon.bay(&["approvals", "show", &id, "--json"]).ok().json()["asked"];
    assert_eq!((&asked["service"], &asked["by"]), (&"x".into(), &"inside".into()), "{asked:#}");
    assert_eq!(service_names(daemon), ["free"], "it is a service before anybody has allowed it");
    let _allowed = daemon.bay(&["approvals", "allow", &id]).ok();
    // The allow covers this definition only.
    let other = daemon.bay(&add_inside(&["x", "--no-wait", "--", "make", "another"])).exits(5);
    assert!(other.errors().contains("nobody has answered yet"), "{other}");
    let _no = daemon.bay(&["approvals", "deny", &the_question(daemon), "-m", "not today"]).ok();
    denied(&["x", "--no-wait", "--", "make", "another"], "not today");
    let _defined = daemon.bay(&release).ok();
    assert_eq!(service_names(daemon), ["free", "x"]);
    let approved = lab.record("b", "service.approved");
    assert_eq!((approved.len(), &approved[0]["by"]), (1, &"inside".into()), "{approved:?}");

    // `bay-ctl` waits for the answers: one for the command, one for its health check.
    let line = add_inside(&["y", "--health", "cmd:check y", "--", "make", "y"]);
    let mut waiting = begun(daemon, &line);
    for _ in 0..2 {
        let _allowed = daemon.bay(&["approvals", "allow", &the_question(daemon)]).ok();
    }
    until("the service to be there", || service_names(daemon).contains(&"y".to_owned()).then_some(()));
    assert_eq!(lab.record("b", "service.approved").len(), 3);
    // There is no make, so it would wait for a service that never becomes ready.
    waiting.kill().unwrap();
    let _ended = waiting.wait().unwrap();
}

#[test]
fn approval_hidden_a_card_shows_every_part_of_a_command() {
    let lab: Lab = lab();
    let daemon = &lab.daemon;
    lab.bay("b", SERVICE_RULES);
    // A long argument would push the important part off the card, so no approval is asked for such a command.
    let padding = " ".repeat(20_000);
    let hidden = add_inside(&["x", "--no-wait", "--", "make", &padding, "--push-to-production"]);
    let refused = daemon.bay(&hidden).exits(5);
    assert!(refused.errors().contains("of which an approval card shows 4096"), "{refused}");
    let outside =
        daemon.bay(&["exec", "b", "--ask", "--", "make", &padding, "--push-to-production"]).exits(125);
    assert!(outside.errors().contains("of which an approval card shows 4096"), "{outside}");
    let open = daemon.bay(&["approvals", "--json"]).ok().json();
    assert_eq!(open.as_array().map(Vec::len), Some(0), "{open:#}");

    // The card shows everything that decides which program runs, and how often.
    let variables = ["--env", "LD_PRELOAD=/workspace/evil.so", "--env", "PATH=/workspace/bin"];
    let with = ["--restart", "never", "--health", "tcp:81", "--", "make", "release"];
    let line = add_inside(&[&["x", "--no-wait"], &variables[..], &with[..]].concat());
    let _asked = daemon.bay(&line).exits(5);
    let id = the_question(daemon);
    let card = daemon.bay(&["approvals", "show", &id]).ok().text();
    for shown in
        ["LD_PRELOAD=/workspace/evil.so", "PATH=/workspace/bin", "restart: never", "health check: tcp:81"]
    {
        assert!(card.contains(shown), "{shown} is not on the card:\n{card}");
    }
    let _no = daemon.bay(&["approvals", "deny", &id]).ok();

    // Values from outside may be secret, and cards are stored.
    let mut child = begun(daemon, &["exec", "b", "--ask", "--env", "TOKEN=of-the-operator", "--", "true"]);
    let card = daemon.bay(&["approvals", "show", &the_question(daemon), "--json"]).ok().json();
    assert_eq!(card["asked"]["env"], serde_json::json!(["TOKEN"]), "{card:#}");
    child.kill().unwrap();
    let _ended = child.wait().unwrap();
}

#[test]
fn exec_rule_service_without_a_daemon_a_bay_can_define_no_service() {
    let mut lab: Lab = lab();
    lab.bay("b", SERVICE_RULES);
    let script = "touch /tmp/hold /tmp/ready; while [ -e /tmp/hold ]; do usleep 1000; done; \
                  bay-ctl services add x --no-wait -- rm -rf /tmp/x; echo $? > /tmp/new; mv /tmp/new /tmp/code";
    let _waiting = lab.daemon.bay(&["exec", "b", "-d", "--", "sh", "-c", script]).ok();
    let inside = format!("/proc/{}/root/tmp", lab.daemon.host_pid("b"));
    let inside = std::path::PathBuf::from(inside);
    until("the command to run", || inside.join("ready").exists().then_some(()));
    lab.daemon.kill_9();
    std::fs::remove_file(inside.join("hold")).unwrap();
    let code = until("an answer", || std::fs::read_to_string(inside.join("code")).ok());
    assert_eq!(code.trim(), "5");
    lab.daemon.launch();
    assert!(service_names(&lab.daemon).is_empty());
}

#[test]
fn a_denial_with_rollback_restores_the_files_from_before_the_approval() {
    let lab: Lab = lab();
    let policy =
        "[[exec]]\nid = \"release\"\noutcome = \"ask\"\nargv = [\"make\", \"**\"]\ncheckpoint = true\n";
    lab.bay("b", policy);
    let _before = lab.daemon.sh("b", "echo before > /workspace/file").ok();
    let child = begun(&lab.daemon, &["exec", "b", "--", "make", "release"]);
    let id = the_question(&lab.daemon);
    let _after = lab.daemon.sh("b", "echo after > /workspace/file").ok();
    let told = lab.daemon.bay(&["approvals", "deny", &id, "--rollback"]).ok();
    assert!(told.errors().contains("b was restored to v1"), "{told}");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(125));
    assert_eq!(lab.daemon.sh("b", "cat /workspace/file").ok().text(), "before");
}

#[test]
fn a_denial_applies_over_a_restart_until_the_approval_would_have_expired() {
    let mut lab: Lab = lab();
    lab.daemon.empty_bay("b");
    let line = ["exec", "b", "--ask", "--", "true"];
    let child = begun(&lab.daemon, &line);
    let id = the_question(&lab.daemon);
    let _no = lab.daemon.bay(&["approvals", "deny", &id, "-m", "not today"]).ok();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(125));
    lab.daemon.kill_9();
    lab.daemon.launch();
    let again = lab.daemon.bay(&line);
    assert!(again.code == 125 && again.errors().contains("not today"), "{again}");
}

/// Messages that a webhook received, with their headers.
type Inbox = Arc<Mutex<Vec<(HeaderMap, Vec<u8>)>>>;

#[test]
fn a_webhook_that_was_down_gets_its_signed_messages_later() {
    let lab = lab();
    let (inbox, down): (Inbox, Arc<AtomicBool>) = (Arc::default(), Arc::new(AtomicBool::new(true)));
    let (kept, is_down) = (Arc::clone(&inbox), Arc::clone(&down));
    let origin = lab.servers.https("origin.test", move |request: http::Request<hyper::body::Incoming>| {
        let (kept, is_down) = (Arc::clone(&kept), Arc::clone(&is_down));
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes().to_vec();
            let mut answer = Response::new(text(""));
            if is_down.load(Ordering::SeqCst) {
                *answer.status_mut() = StatusCode::BAD_GATEWAY;
            } else {
                kept.lock().unwrap().push((head.headers, body));
            }
            answer
        }
    });
    let url = origin.url("https", "/hook");
    let made = lab.daemon.bay(&["notify", "add", "webhook", &url, "--json"]).ok().json();
    let private = made["id"].as_str().unwrap();
    let said = lab.daemon.bay(&["notify", "test", private]).exits(1).text();
    assert!(said.contains("not public"), "{said}");
    let _gone = lab.daemon.bay(&["notify", "rm", private]).ok();
    let made =
        lab.daemon.bay(&["notify", "add", "webhook", &url, "--address", "127.0.0.1", "--json"]).ok().json();
    let (hook, secret) = (made["id"].as_str().unwrap(), made["secret"].as_str().unwrap());
    let said = lab.daemon.bay(&["notify", "test", hook]).exits(1).text();
    assert!(said.contains("502"), "{said}");
    // When it is up again, a test message arrives, signed like all others.
    down.store(false, Ordering::SeqCst);
    let _arrived = lab.daemon.bay(&["notify", "test", hook]).ok();
    let tested = inbox.lock().unwrap().pop().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&tested.1).unwrap()["event"], "test");
    assert!(tested.0.contains_key("workbay-signature"));
    down.store(true, Ordering::SeqCst);

    lab.daemon.empty_bay("b");
    let child = begun(&lab.daemon, &["exec", "b", "--ask", "--", "true"]);
    let id = the_question(&lab.daemon);
    until("it was tried", || {
        let list = lab.daemon.bay(&["notify", "ls", "--json"]).ok().json();
        (list[0]["last"]["said"].as_str()?.contains("502")).then_some(())
    });
    down.store(false, Ordering::SeqCst);
    let _allowed = lab.daemon.bay(&["approvals", "allow", &id]).ok();
    assert!(child.wait_with_output().unwrap().status.success());
    until("both messages to arrive", || (inbox.lock().unwrap().len() >= 2).then_some(()));
    let inbox = inbox.lock().unwrap();
    let events: Vec<Value> = inbox.iter().map(|(_, body)| serde_json::from_slice(body).unwrap()).collect();
    assert_eq!(
        (&events[0]["event"], &events[0]["approval"]["id"]),
        (&"approval.open".into(), &id.as_str().into())
    );
    assert_eq!(
        (&events[1]["event"], &events[1]["approval"]["answer"]["by"]),
        (&"approval.allowed".into(), &"uid 0".into())
    );
    for (headers, body) in inbox.iter() {
        let signature = headers["workbay-signature"].to_str().unwrap();
        let (time, signed) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
        assert_eq!(signed, hmac_by_openssl(secret, &[time.as_bytes(), b".", body].concat()), "{signature}");
        assert!(headers["workbay-delivery"].to_str().unwrap().starts_with("msg_"));
    }
    let listed = lab.daemon.bay(&["notify", "ls", "--json"]).ok().text();
    assert!(!listed.contains(secret), "it is shown once");
    let kept = std::fs::read(lab.daemon.data_dir.join("notify.age")).unwrap();
    assert!(!String::from_utf8_lossy(&kept).contains(secret), "and kept encrypted");
}

#[test]
fn a_webhook_that_refuses_the_messages_of_one_bay_gets_those_of_another_without_delay() {
    let lab = lab();
    // The bay and the event of each message, in order of arrival.
    let inbox: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let kept = Arc::clone(&inbox);
    let origin = lab.servers.https("origin.test", move |request: http::Request<hyper::body::Incoming>| {
        let kept = Arc::clone(&kept);
        async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let message: Value = serde_json::from_slice(&body).unwrap();
            let bay = message["approval"]["bay_name"].as_str().unwrap().to_owned();
            let mut answer = Response::new(text(""));
            if bay == "refused" {
                *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            kept.lock().unwrap().push((bay, message["event"].as_str().unwrap().to_owned()));
            answer
        }
    });
    let url = origin.url("https", "/hook");
    let line = ["notify", "add", "webhook", &url, "--address", "127.0.0.1", "--json"];
    let _made = lab.daemon.bay(&line).ok();
    let of = |bay: &str| -> Vec<String> {
        let inbox = inbox.lock().unwrap();
        inbox.iter().filter(|(of, _)| of == bay).map(|(_, event)| event.clone()).collect()
    };
    lab.daemon.empty_bay("refused");
    lab.daemon.empty_bay("other");
    let refused = begun(&lab.daemon, &["exec", "refused", "--ask", "--", "true"]);
    until("two attempts at the message that is refused", || (of("refused").len() >= 2).then_some(()));
    // That message is retried for 15 minutes, far longer than any wait of this test.
    let other = begun(&lab.daemon, &["exec", "other", "--ask", "--", "true"]);
    until("the message of the other bay", || (!of("other").is_empty()).then_some(()));
    let id = lab.daemon.bay(&["approvals", "--bay", "other", "--json"]).ok().json()[0]["id"].clone();
    let _allowed = lab.daemon.bay(&["approvals", "allow", id.as_str().unwrap()]).ok();
    assert!(other.wait_with_output().unwrap().status.success());
    let arrived = until("both messages of the other bay", || Some(of("other")).filter(|of| of.len() >= 2));
    assert_eq!(arrived, ["approval.open", "approval.allowed"]);
    let tried = of("refused").len();
    until("the refused message to be sent once more", || (of("refused").len() > tried).then_some(()));
    let hooks = lab.daemon.bay(&["notify", "ls", "--json"]).ok().json();
    assert_eq!(hooks[0]["lost"], 0, "nothing was given up: {hooks:#}");
    let id = the_question(&lab.daemon);
    let _denied = lab.daemon.bay(&["approvals", "deny", &id]).ok();
    assert_eq!(refused.wait_with_output().unwrap().status.code(), Some(125));
}

/// The signature as another program computes it.
fn hmac_by_openssl(secret: &str, message: &[u8]) -> String {
    use std::io::Write;
    let mut child = std::process::Command::new("openssl")
        .args(["dgst", "-sha256", "-hmac", secret])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(message).unwrap();
    let out = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    out.trim().rsplit(' ').next().unwrap().to_owned()
}
