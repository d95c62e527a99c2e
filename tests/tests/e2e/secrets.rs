//! Secrets that bays use and never hold: real bays, real servers outside, and a value that must not appear anywhere.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use bay_tests::canary::{
    CANARY, SEND, TOKEN, bay_is_clean, bearer, credentials, everybody_is_clean, everything,
    files_with_canary, for_api, once_there, reflecting, send, sentinel, set,
};
use bay_tests::collector::Collector;
use bay_tests::lab::{Lab, READS_A_STREAM, lab, lab_with};
use bay_tests::origin::text;
use bay_tests::suite::Scratch;
use bay_tests::{Daemon, consistency_probe, leaks, until};
use http::{Request, Response};
use hyper::body::Incoming;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::json;

#[test]
fn a_bay_uses_a_secret_that_it_never_holds() {
    let lab = lab();
    let origin = reflecting(&lab, "origin.test");
    lab.bay("b", &everything(&origin));
    // Added to a running bay, and to every command from then on.
    let said = set(&lab, "TOKEN", &["--for", &for_api(&origin)]).ok();
    assert!(!said.text().contains(CANARY) && said.text().contains("$TOKEN"), "{}", said.text());
    let own = once_there(&lab, "b");
    assert_eq!((own.len(), &own[..4]), (CANARY.len(), "ghp_"), "{own}");
    assert_ne!(own, CANARY);

    let answer = send(&lab, "b", &bearer(&origin.url("https", "/api/x")));
    assert_eq!(answer["status"], 200, "{answer:#}");
    assert_eq!(credentials(&origin), [format!("Bearer {CANARY}")]);
    assert!(!answer.to_string().contains(CANARY), "{answer:#}");
    assert!(
        answer["body"].as_str().unwrap().contains(&own),
        "the sentinel stands where the value was: {answer:#}"
    );
    assert_eq!(answer["headers"]["x-echo"], format!("Bearer {own}"));
    // The name of the secret stands for it too.
    let alias =
        json!({ "url": origin.url("https", "/api/y"), "headers": { "Authorization": "Bearer __TOKEN__" } });
    assert_eq!(send(&lab, "b", &alias)["status"], 200);

    let decided = lab.record("b", "egress.decided");
    assert_eq!(decided[0]["secrets"], json!(["TOKEN"]), "{decided:#?}");
    let shown = lab.daemon.bay(&["egress", "b"]).ok().text();
    assert!(shown.contains("secret TOKEN"), "{shown}");
    let view = lab.daemon.bay(&["secret", "show", "TOKEN", "--json"]).ok().json();
    assert!(view["last_used"].is_string(), "{view:#}");
    bay_is_clean(&lab, "b");
    let _kept = lab.daemon.bay(&["checkpoint", "b"]).ok();
    bay_is_clean(&lab, "b");
    everybody_is_clean(&lab, "b");
}

/// Traces and metrics that leave a bay, and recorded terminal sessions.
#[test]
fn traces_recorded_sessions_and_metrics_do_not_contain_the_value() {
    let collector = Collector::start();
    let lab = lab_with(Daemon::setup().env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url));
    let origin = reflecting(&lab, "origin.test");
    lab.bay("b", &everything(&origin));
    let _set = set(&lab, "TOKEN", &["--for", &for_api(&origin)]).ok();
    let url = origin.url("https", "/api/x");
    let in_place = once_there(&lab, "b");
    // A session that shows everything that curl can print, with an answer that repeats the request; then one that
    // misuses it.
    let curl = "curl -sS -v -i -H \"Authorization: Bearer $TOKEN\"";
    let line = format!("exec b -t -- sh -c '{curl} {url}; {curl} {}'", origin.url("https", "/elsewhere"));
    let seen = lab.daemon.on_a_terminal(&line, "").ok();
    assert_eq!(credentials(&origin), [format!("Bearer {CANARY}")]);
    let screen = seen.text();
    assert!(screen.contains(&in_place) && screen.contains("403") && !screen.contains(CANARY), "{screen}");

    // The collector gets a span for the request, below the span of the session.
    let request = collector.span("egress GET");
    until("the span of the session", || {
        let spans = collector.spans.lock().unwrap();
        spans.iter().any(|span| span["spanId"] == request["parentSpanId"]).then_some(())
    });
    let told = format!("{:?}", collector.spans.lock().unwrap());
    assert!(told.contains("origin.test") && !told.contains(CANARY), "{told}");
    let number = lab.daemon.bay(&["execs", "ls", "b", "--json"]).ok().json();
    let number = number.as_array().unwrap().last().unwrap()["number"].to_string();
    let recorded = lab.daemon.bay(&["logs", "b", &number]).ok().text();
    assert!(recorded.contains(&in_place) && !recorded.contains(CANARY), "{recorded}");
    let mut found = Vec::new();
    files_with_canary(&leaks::corner(&lab.daemon.pool, lab.daemon.id()).join("bays"), &mut found);
    assert!(found.is_empty(), "{found:?}");
    everybody_is_clean(&lab, "b");
}

/// Permits core dumps of this process, or of every process that is started from now on.
fn let_cores_be_left(pid: Option<Pid>) {
    let unlimited = Rlimit { current: None, maximum: None };
    let _before = prlimit(pid, Resource::Core, unlimited).unwrap();
}

#[test]
fn a_daemon_that_crashes_leaves_no_core_with_a_secret_in_it() {
    let place = Scratch::new();
    let_cores_be_left(None);
    // If the kernel writes cores to that directory, another process can leave one there.
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if !pattern.starts_with(['/', '|', '@']) {
        let mut other = Command::new("sleep").arg("60").current_dir(place.path()).spawn().unwrap();
        kill_process(Pid::from_child(&other), Signal::ABORT).unwrap();
        assert!(other.wait().unwrap().core_dumped(), "{pattern}");
        for left in fs::read_dir(place.path()).unwrap() {
            fs::remove_file(left.unwrap().path()).unwrap();
        }
    }

    let mut lab = lab_with(Daemon::setup().directory(place.path()));
    let origin = reflecting(&lab, "origin.test");
    lab.bay("b", &everything(&origin));
    let _set = set(&lab, "TOKEN", &["--for", &for_api(&origin), "--env", "TOKEN"]).ok();
    let url = origin.url("https", "/api/x");
    for (signal, limited) in [(Signal::ABORT, true), (Signal::ABORT, false), (Signal::ILL, false)] {
        // The value is in the daemon's memory as soon as the gateway uses it.
        until("the secret to be used", || {
            let ran = lab.python("b", SEND, &[&bearer(&url).to_string()]);
            (ran.code == 0 && ran.json()["status"] == 200).then_some(())
        });
        assert_eq!(credentials(&origin).last(), Some(&format!("Bearer {CANARY}")));
        let pid = lab.daemon.pid();
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let cores = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert_eq!(cores.split_whitespace().nth(4), Some("1"), "{cores}");
        assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), place.path());
        if !limited {
            // Even without the limit, the daemon leaves none.
            let_cores_be_left(Pid::from_raw(i32::try_from(pid).unwrap()));
        }
        let ended = lab.daemon.end_by(signal);
        assert_eq!(ended.signal(), Some(signal.as_raw()), "{ended}");
        assert!(!ended.core_dumped(), "{ended}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "a core was left");
        lab.daemon.launch();
    }
    let mut found = Vec::new();
    files_with_canary(&lab.daemon.data_dir, &mut found);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn a_sentinel_anywhere_else_is_refused_and_reported() {
    let lab = lab();
    let (origin, other) = (reflecting(&lab, "origin.test"), reflecting(&lab, "other.test"));
    let plain = lab.servers.http("registry.test", |_request| async { Response::new(text("plain")) });
    let policy = format!(
        "{}{}{}",
        everything(&origin),
        everything(&other).replace("\"origin\"", "\"other\""),
        everything(&plain).replace("\"origin\"", "\"plain\"")
    );
    lab.daemon.empty_bay("b");
    let _set = set(
        &lab,
        "TOKEN",
        &["--for", &for_api(&origin), "--for", &format!("registry.test:{} as bearer", plain.port())],
    )
    .ok();
    lab.set("b", &policy);
    let own = once_there(&lab, "b");
    let api = origin.url("https", "/api/x");
    let auth = json!({ "Authorization": "Bearer {}" });
    let form = "--b\r\nContent-Disposition: form-data; name=\"f\"\r\n\r\n{}\r\n--b--\r\n";
    let cases = [
        ("CRED-WRONGHOST", "host", json!({ "url": other.url("https", "/api/x"), "headers": auth })),
        ("CRED-WRONGPATH", "request", json!({ "url": origin.url("https", "/gists"), "headers": auth })),
        ("CRED-WRONGMETHOD", "request", json!({ "url": api, "method": "DELETE", "headers": auth })),
        ("CRED-WRONGHEADER", "slot", json!({ "url": api, "headers": { "X-Api-Key": "{}" } })),
        ("CRED-HTTP80", "plain", json!({ "url": plain.url("http", "/api/x"), "headers": auth })),
        ("CRED-URL-QUERY", "query", json!({ "url": format!("{api}?q={{}}") })),
        ("CRED-PATH", "path", json!({ "url": format!("{api}/{{}}") })),
        ("CRED-UA", "slot", json!({ "url": api, "headers": { "User-Agent": "agent {}" } })),
        ("CRED-CUSTOMHDR", "slot", json!({ "url": api, "headers": { "X-Custom": "a {}" } })),
        (
            "CRED-BODY-GIST",
            "body",
            json!({ "url": api, "method": "POST", "headers": auth, "body": "{\"files\": \"{}\"}" }),
        ),
        ("CRED-MULTIPART", "body", json!({ "url": api, "method": "POST", "body": form })),
        (
            "CRED-OWNKEY",
            "other-credential",
            json!({ "url": api, "headers": { "Authorization": "Bearer attackers-own-key" } }),
        ),
    ];
    for (id, misuse, wanted) in &cases {
        let answer = send(&lab, "b", wanted);
        assert_eq!(answer["status"], 403, "{id}: {answer:#}");
        let said = answer.to_string();
        assert!(!said.contains(CANARY), "{id}: {said}");
        until(id, || {
            let refused = lab.record("b", "egress.refused");
            refused
                .iter()
                .any(|body| body["secret"]["misuse"] == *misuse && body["by"]["exec"].is_string())
                .then_some(())
        });
    }
    assert!(credentials(&origin).iter().all(|sent| !sent.contains(&own)));
    assert!(other.seen.lines().is_empty() && plain.seen.lines().is_empty());
    let all = format!("{:?}", origin.seen.requests.lock().unwrap());
    assert!(!all.contains(&own), "{all}");
    everybody_is_clean(&lab, "b");
}

#[test]
fn a_bay_starts_with_the_long_files_of_many_secrets() {
    let lab = lab();
    let text = "x".repeat(60 << 10);
    for name in ["ONE", "TWO"] {
        let file = format!("/root/{name}={text}{{}}");
        let _set = set(&lab, name, &["--for", "origin.test as bearer", "--file", &file]).ok();
    }
    lab.bay("b", "");
    let lengths = lab.daemon.sh("b", "wc -c < /root/ONE; wc -c < /root/TWO").ok().text();
    assert!(lengths.lines().all(|length| length.parse::<usize>().unwrap() > text.len()), "{lengths}");
}

#[test]
fn sentinels_are_where_tools_look_and_stay_for_the_life_of_the_bay() {
    let mut lab = lab();
    let origin = reflecting(&lab, "origin.test");
    lab.bay("b", &everything(&origin));
    let git = format!("me@origin.test:{}", origin.port());
    let uses = format!("origin.test:{} as basic", origin.port());
    let _set = set(
        &lab,
        "TOKEN",
        &[
            "--for",
            &uses,
            "--env",
            "TOKEN",
            "--file",
            "/root/.npmrc=//npm.test/:_authToken={}",
            "--git",
            &git,
        ],
    )
    .ok();
    let own = once_there(&lab, "b");
    let files = |lab: &Lab| {
        lab.daemon.sh("b", "cat /root/.npmrc /.bay/gitconfig; stat -c %a /root/.npmrc").ok().text()
    };
    let before = files(&lab);
    assert!(
        before.starts_with(&format!("//npm.test/:_authToken={own}\n[http \"https://origin.test:")),
        "{before}"
    );
    assert!(before.contains("Authorization: Basic") && before.ends_with("600"), "{before}");
    let included = lab.daemon.sh("b", "cat /etc/gitconfig").ok().text();
    assert!(included.contains("/.bay/gitconfig"), "{included}");
    lab.daemon.restart();
    assert_eq!(sentinel(&lab, "b"), own, "the next daemon gives the same");
    let _stopped = lab.daemon.bay(&["stop", "b"]).ok();
    let _started = lab.daemon.bay(&["start", "b"]).ok();
    assert_eq!((sentinel(&lab, "b"), files(&lab)), (own.clone(), before));
    // Another value has the same sentinel, even if it is longer.
    let longer = format!("{CANARY}-and-more");
    let _new = lab.daemon.bay_with_input(&["secret", "rotate", "TOKEN", "-"], longer.as_bytes()).ok();
    assert_eq!(sentinel(&lab, "b"), own);
    let _gone = lab.daemon.bay(&["secret", "rm", "TOKEN"]).ok();
    until("the sentinel to go", || {
        (lab.daemon.sh("b", "test ! -e /root/.npmrc && test -z \"$TOKEN\"").code == 0).then_some(())
    });
    // The old sentinel is refused with the reason, and nothing of the request leaves.
    let old = json!({ "url": origin.url("https", "/x"), "headers": { "X-Any": "{}" }, "token": own });
    assert_eq!(send(&lab, "b", &old)["status"], 403);
}

#[test]
fn a_new_value_applies_immediately_and_the_removal_of_a_secret_ends_streams() {
    let lab = lab();
    let origin = lab.servers.https("origin.test", |request: Request<Incoming>| async move {
        use http_body_util::{BodyExt, StreamBody};
        if request.uri().path() != "/api/stream" {
            return Response::new(text("short"));
        }
        let first =
            futures_util::stream::iter([Ok(hyper::body::Frame::data(bytes::Bytes::from_static(b"begun\n")))]);
        let rest = futures_util::stream::pending::<Result<_, std::convert::Infallible>>();
        Response::new(StreamBody::new(futures_util::StreamExt::chain(first, rest)).boxed_unsync())
    });
    lab.bay("b", &everything(&origin));
    let _set = set(&lab, "TOKEN", &["--for", &for_api(&origin)]).ok();
    let own = once_there(&lab, "b");
    assert_eq!(send(&lab, "b", &bearer(&origin.url("https", "/api/x")))["status"], 200);
    let second = CANARY.replace("x9Xq", "y8Yr");
    let _new = lab.daemon.bay_with_input(&["secret", "rotate", "TOKEN", "-"], second.as_bytes()).ok();
    assert_eq!(send(&lab, "b", &bearer(&origin.url("https", "/api/x")))["status"], 200);
    assert_eq!(credentials(&origin), [format!("Bearer {CANARY}"), format!("Bearer {second}")]);
    let url = origin.url("https", "/api/stream");
    let _begun = lab.daemon.bay(&["exec", "--detach", "b", "--", "python3", "-c", READS_A_STREAM, &url]).ok();
    until("the stream to begin", || (lab.daemon.sh("b", "test -e /tmp/begun").code == 0).then_some(()));
    let _gone = lab.daemon.bay(&["secret", "rm", "TOKEN"]).ok();
    until("the stream to end", || (lab.daemon.sh("b", "test -e /tmp/over").code == 0).then_some(()));
    until("its end on record", || {
        lab.record("b", "egress.ended").iter().any(|body| body["ending"] == "revoked").then_some(())
    });
    let refused = json!({ "url": origin.url("https", "/api/x"), "headers": { "Authorization": "Bearer {}" }, "token": own });
    assert_eq!(send(&lab, "b", &refused)["status"], 403);
}

#[test]
fn a_fork_has_its_own_sentinels_and_its_parents_still_work() {
    let lab = lab();
    let origin = reflecting(&lab, "origin.test");
    lab.bay("p", &everything(&origin));
    let file = ["--env", "TOKEN", "--file", "/root/token", "--bay", "p"];
    let _set = set(&lab, "TOKEN", &[&["--for", &for_api(&origin)][..], &file].concat()).ok();
    let parent = once_there(&lab, "p");
    let memory = consistency_probe::can_run(&lab.daemon);
    if memory {
        // A process that keeps its sentinel in memory, and sends it on request.
        let remembers = r#"
import os, sys, time, urllib.request, urllib.error
while not os.path.exists("/tmp/go"):
    time.sleep(0.02)
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + os.environ["TOKEN"]})
try:
    status = urllib.request.urlopen(request, timeout=20).status
except urllib.error.HTTPError as error:
    status = error.code
with open("/tmp/said.new", "w") as said:
    said.write("%d %s" % (status, os.environ["TOKEN"]))
os.rename("/tmp/said.new", "/tmp/said")
"#;
        let url = origin.url("https", "/api/remembered");
        let _begun = lab.daemon.bay(&["exec", "--detach", "p", "--", "python3", "-c", remembers, &url]).ok();
    }
    let forked = lab.daemon.bay(&["fork", "p", "--name", "c", "--json"]).ok().json();
    let child = forked["bays"][0]["name"].as_str().unwrap().to_owned();
    let own = until("the child's own sentinel", || {
        let ran = lab.daemon.sh(&child, TOKEN);
        (ran.code == 0).then(|| ran.text()).filter(|own| *own != parent)
    });
    assert_eq!(own.len(), CANARY.len());
    assert_eq!(lab.daemon.sh(&child, "cat /root/token").ok().text(), own);
    assert_eq!(lab.daemon.sh("p", "cat /root/token").ok().text(), parent, "the parent keeps its own");
    assert_eq!(send(&lab, &child, &bearer(&origin.url("https", "/api/own")))["status"], 200);
    let inherited = json!({ "url": origin.url("https", "/api/inherited"), "headers": { "Authorization": "Bearer {}" }, "token": parent });
    assert_eq!(send(&lab, &child, &inherited)["status"], 200);
    if memory {
        let _go = lab.daemon.sh(&child, "touch /tmp/go").ok();
        let said = until("the process that remembers", || {
            let ran = lab.daemon.sh(&child, "cat /tmp/said");
            (ran.code == 0).then(|| ran.text())
        });
        assert_eq!(said, format!("200 {parent}"));
    }
    // The parent and other bays have no use of a child's sentinel.
    let foreign = json!({ "url": origin.url("https", "/api/foreign"), "headers": { "Authorization": "Bearer {}" }, "token": own });
    assert_eq!(send(&lab, "p", &foreign)["status"], 403);
    lab.bay("other", &everything(&origin));
    let stolen = json!({ "url": origin.url("https", "/api/stolen"), "headers": { "Authorization": "Bearer {}" }, "token": parent });
    let answer = send(&lab, "other", &stolen);
    assert_eq!(lab.daemon.sh("other", TOKEN).code, 1, "it is not this bay's");
    let sent = credentials(&origin);
    assert!(!sent.iter().any(|sent| sent.contains(&own)), "{sent:?}");
    // There it is an ordinary word, and passes unchanged.
    assert_eq!((answer["status"].as_u64(), sent.last()), (Some(200), Some(&format!("Bearer {parent}"))));
    bay_is_clean(&lab, &child);
}

#[test]
fn without_its_key_the_daemon_has_no_secrets_and_says_why() {
    let mut lab = lab();
    let origin = reflecting(&lab, "origin.test");
    lab.bay("b", &everything(&origin));
    let _set = set(&lab, "TOKEN", &["--for", &for_api(&origin)]).ok();
    let key = lab.daemon.key_file();
    let scratch = Scratch::new();
    let aside = scratch.join("aside");
    lab.daemon.kill_9();
    fs::rename(&key, &aside).unwrap();
    lab.daemon.launch();
    assert_eq!(lab.daemon.sh("b", "echo runs").ok().text(), "runs", "bays run");
    for line in [
        &["secret", "ls"][..],
        &["secret", "show", "TOKEN"],
        &["secret", "rm", "TOKEN"],
        &["secret", "rotate", "TOKEN", "--from-env", "PATH"],
    ] {
        let error = lab.daemon.bay(line).errors();
        assert!(error.contains("key-unusable") && error.contains("is gone"), "{line:?}: {error}");
    }
    let error = set(&lab, "OTHER", &["--for", &for_api(&origin)]).errors();
    assert!(error.contains("key-unusable"), "{error}");
    lab.daemon.kill_9();
    fs::rename(&aside, &key).unwrap();
    lab.daemon.launch();
    until("the way out", || {
        (send(&lab, "b", &bearer(&origin.url("https", "/api/x")))["status"] == 200).then_some(())
    });
    assert_eq!(credentials(&origin).last(), Some(&format!("Bearer {CANARY}")));
}

#[test]
fn a_failing_secret_command_is_reported_without_its_values() {
    let lab = lab();
    let origin = reflecting(&lab, "origin.test");
    lab.bay("b", &everything(&origin));
    let scratch = Scratch::new();
    let file = scratch.join("value");
    fs::write(&file, CANARY).unwrap();
    let line = format!("cat {}", file.display());
    let command = |line: &str| {
        lab.daemon.bay(&[
            "secret",
            "set",
            "TOKEN",
            "--from-command",
            line,
            "--refresh",
            "10s",
            "--for",
            &for_api(&origin),
        ])
    };
    for (odd, why) in [
        (format!("cat {}; exit 7", file.display()), "failed"),
        (format!("cat {0} {0} | sed 's/x9/ x9/'", file.display()), "printed something else"),
        ("sleep 1000".to_owned(), "did not end within"),
    ] {
        let error = command(&odd).exits(5).errors();
        assert!(
            error.contains("secret-source") && error.contains(why) && !error.contains("CANARY"),
            "{error}"
        );
    }
    let _set = command(&line).ok();
    assert_eq!(
        send(
            &lab,
            "b",
            &json!({ "url": origin.url("https", "/api/x"), "headers": { "Authorization": "Bearer __TOKEN__" } })
        )["status"],
        200
    );
    let second = CANARY.replace("x9Xq", "y8Yr");
    fs::write(&file, &second).unwrap();
    let _new = lab.daemon.bay(&["secret", "rotate", "TOKEN"]).ok();
    fs::remove_file(&file).unwrap();
    let error = lab.daemon.bay(&["secret", "rotate", "TOKEN"]).exits(5).errors();
    assert!(error.contains("secret-source"), "{error}");
    // The existing value stays.
    assert_eq!(
        send(
            &lab,
            "b",
            &json!({ "url": origin.url("https", "/api/x"), "headers": { "Authorization": "Bearer __TOKEN__" } })
        )["status"],
        200
    );
    assert_eq!(credentials(&origin), [format!("Bearer {CANARY}"), format!("Bearer {second}")]);
}
