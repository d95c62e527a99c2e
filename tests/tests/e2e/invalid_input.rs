//! Invalid input is refused with a stable code, in two lines, with what to do next. Nothing is left behind.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use bay_tests::{Daemon, Repository, SMALL};
use bay_types::{ErrorCode, ExecId};
use serde_json::{Value, json};

#[test]
fn names_with_invalid_characters_are_refused() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let long = "x".repeat(41);
    let very_long = "x".repeat(4096);
    let names = [
        "",
        " ",
        "a b",
        "A",
        "Upper",
        "ä",
        "😀",
        "a_b",
        "a.b",
        "a/b",
        "../x",
        "..",
        ".",
        "/",
        "a:b",
        "a\nb",
        "a\tb",
        "\u{1b}[31m",
        "-a",
        "a-",
        "--help-me",
        "'",
        "\"",
        "$(id)",
        "`id`",
        "a;b",
        "a|b",
        "a&b",
        "*",
        "a%b",
        "a\\b",
        "\u{202e}a",
        "bay_1",
        long.as_str(),
        very_long.as_str(),
    ];
    for name in names {
        let flag = format!("--name={name}");
        let ran = daemon.bay(&["up", &repository.arg(), &flag, "--image", SMALL]);
        assert!(ran.stderr.len() < 1000, "{} bytes of error for {name:?}", ran.stderr.len());
        assert!(!ran.stderr.contains(&0x1b), "an escape reached the terminal for {name:?}");
        ran.fails_with(ErrorCode::InvalidName);
        // The API also refuses them without the CLI.
        let answer = daemon.rest(
            "POST",
            "/v1/bays",
            &json!({ "name": name, "source": { "kind": "empty" }, "image": SMALL }),
        );
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(text.contains("invalid-name"), "{name:?}: {} {text}", answer.status);
    }
    let raw = OsStr::from_bytes(b"--name=\xff\xfe");
    let not_text = daemon.bay(&[
        OsStr::new("up"),
        OsStr::new(&repository.arg()),
        raw,
        OsStr::new("--image"),
        OsStr::new(SMALL),
    ]);
    assert_ne!(not_text.code, 0);
    assert_eq!(daemon.list().len(), 0);
    assert_eq!(daemon.orphans(), []);
}

#[test]
fn names_at_the_limits_of_the_rules_work() {
    let daemon = Daemon::start();
    for name in ["a", "0", "x-y", "a1-b2-c3", &"y".repeat(40)] {
        daemon.empty_bay(name);
        assert_eq!(daemon.bay(&["exec", name, "--", "hostname"]).ok().text(), name);
    }
}

#[test]
fn a_bay_that_does_not_exist_is_not_found_whatever_its_name() {
    let daemon = Daemon::start();
    let long = "x".repeat(4096);
    for name in [
        "nobody",
        "..",
        "../../etc/passwd",
        "a b",
        "%2e%2e%2f",
        "bay_00000000000000000000000000000000",
        "?x=1",
        "#",
        "ä",
        &long,
    ] {
        for verb in ["show", "stop", "start", "rm"] {
            let mut args = vec![verb, "--", name];
            if verb == "rm" {
                args.insert(1, "--yes");
            }
            let ran = daemon.bay(&args);
            assert!(
                ["bay-not-found", "invalid-name"].iter().any(|code| ran.errors().contains(code)),
                "{verb} {name:?}: {ran}"
            );
            assert_eq!(ran.errors().lines().count(), 2, "{verb} {name:?}: {ran}");
            assert!(ran.stderr.len() < 1000, "{verb} repeats a long name");
        }
    }
}

#[test]
fn errors_are_one_json_object_when_json_was_asked_for() {
    let daemon = Daemon::start();
    let ran = daemon.bay(&["show", "nobody", "--json"]);
    assert_eq!(ran.code, i32::from(ErrorCode::BayNotFound.exit_code()), "{ran}");
    let error = ran.api_error();
    assert_eq!(error.code, ErrorCode::BayNotFound);
    assert!(!error.message.is_empty() && !error.next.is_empty(), "{error:?}");
}

#[test]
fn paths_inside_a_bay_are_taken_literally_or_refused() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let here = Repository::sample().path().join("README.md");
    let scratch = bay_tests::suite::Scratch::new();
    std::fs::write(scratch.join("f"), "x").unwrap();
    let source = scratch.join("f").display().to_string();
    drop(here);
    let long = format!("/workspace/{}", "d/".repeat(2040));
    let name = format!("/workspace/{}", "n".repeat(300));
    for path in ["relative", "", long.as_str(), name.as_str()] {
        let ran = daemon.bay(&["cp", &source, &format!("b:{path}")]);
        if ran.code != 0 {
            assert!(ran.stderr.len() < 1500 && ran.errors().lines().count() == 2, "{ran}");
        }
    }
    // `..` cannot climb above the bay's own root.
    let _climbing = daemon.bay(&["cp", &source, "b:/workspace/../../../../../../climbed"]).ok();
    assert_eq!(daemon.sh("b", "cat /climbed").ok().text(), "x");
    // NUL and other bytes through the API, where no shell strips them.
    for path in [
        "%00",
        "/etc%00/passwd",
        "/%ff%fe",
        "/a%0ab",
        "",
        "%2Fworkspace%2F%2e%2e%2F%2e%2e%2F%2e%2e%2Fetc%2Fhostname%00",
    ] {
        let answer = daemon.rest("GET", &format!("/v1/bays/b/files?path={path}"), &Value::Null);
        assert!((400..500).contains(&answer.status), "{path}: {}", answer.status);
        let error = answer.json();
        assert!(
            error["code"].is_string() && error["next"].as_str().is_some_and(|next| !next.is_empty()),
            "{path}: {error}"
        );
    }
    assert_eq!(daemon.show("b")["state"], "running");
}

#[test]
fn impossible_commands_are_refused() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let id = || ExecId::generate().to_string();
    let huge = "x".repeat(2 << 20);
    let cases = [
        json!({ "id": id(), "argv": [] }),
        json!({ "id": id(), "argv": [""] }),
        json!({ "id": id(), "argv": ["a\0b"] }),
        json!({ "id": id(), "argv": ["echo", huge] }),
        json!({ "id": id(), "argv": ["true"], "env": [["A=B", "x"]] }),
        json!({ "id": id(), "argv": ["true"], "env": [["", "x"]] }),
        json!({ "id": id(), "argv": ["true"], "cwd": "relative" }),
        json!({ "id": id(), "argv": ["true"], "timeout_s": 0 }),
        json!({ "id": id(), "argv": ["true"], "unknown_field": 1 }),
        json!({ "id": "exec_../../../etc", "argv": ["true"] }),
        json!({ "id": "bay_00000000000000000000000000000000", "argv": ["true"] }),
        json!({ "argv": ["true"] }),
        json!([]),
        json!("x"),
    ];
    for case in &cases {
        let answer = daemon.rest("POST", "/v1/bays/b/execs", case);
        let shown = case.to_string().chars().take(120).collect::<String>();
        assert!((400..500).contains(&answer.status), "{shown}: {}", answer.status);
        assert_eq!(answer.json()["code"], "invalid-input", "{shown}: {}", answer.json());
        assert!(answer.body.len() < 2000, "{shown}: the answer repeats the request");
    }
    assert_eq!(daemon.bay(&["execs", "ls", "b", "--json"]).ok().json(), json!([]));
}

#[test]
fn malformed_requests_do_no_harm() {
    use std::io::{Read, Write};
    let daemon = Daemon::start();
    let cases: &[&[u8]] = &[
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /v1/bays HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n{{{{{",
        b"POST /v1/bays HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n",
        b"POST /v1/bays HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffff\r\n",
        b"DELETE /v1/bays/%2e%2e%2f HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /v2/nothing HTTP/1.1\r\nhost: x\r\n\r\n",
        b"PATCH /v1/bays HTTP/1.1\r\nhost: x\r\n\r\n",
    ];
    for case in cases {
        let mut stream = std::os::unix::net::UnixStream::connect(daemon.socket()).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
        let _ = stream.write_all(case);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 2"), "{:?} succeeded", String::from_utf8_lossy(case));
    }
    // A thousand idle connections must not stop the daemon.
    let idle: Vec<_> =
        (0..200).filter_map(|_| std::os::unix::net::UnixStream::connect(daemon.socket()).ok()).collect();
    assert_eq!(daemon.rest("GET", "/v1/health", &Value::Null).status, 200);
    drop(idle);
    assert_eq!(daemon.list().len(), 0);
}

#[test]
fn flags_and_verbs_that_do_not_exist_are_usage_errors() {
    let daemon = Daemon::start();
    for args in [
        &["nonsense"][..],
        &["up", "--nonsense"],
        &["exec"],
        &["cp", "one"],
        &["show"],
        &["ls", "extra", "words"],
    ] {
        let ran = daemon.bay(args);
        assert_eq!(ran.code, 2, "{ran}");
        assert!(ran.stdout.is_empty(), "talk belongs on standard error: {ran}");
        let told = daemon.bay(&[&["--json"], args].concat());
        assert_eq!(told.code, 2, "{told}");
        assert_eq!(told.api_error().code, ErrorCode::InvalidInput, "{told}");
    }
    let version = daemon.bay(&["--version"]).ok().text();
    assert!(version.starts_with("bay 0."), "{version}");
    for shell in ["bash", "zsh", "fish"] {
        assert!(daemon.bay(&["completions", shell]).ok().stdout.len() > 500, "{shell}");
    }
    let help = daemon.bay(&["--help"]).ok().text();
    for verb in [
        "up",
        "ls",
        "show",
        "rm",
        "stop",
        "start",
        "pause",
        "resume",
        "replace",
        "exec",
        "shell",
        "execs",
        "logs",
        "kill",
        "cp",
        "repos",
        "images",
        "serve",
        "doctor",
        "completions",
    ] {
        assert!(help.contains(verb), "{verb} is not in the help:\n{help}");
    }
    assert!(!help.contains("__runtime") && !help.contains("__guest"), "{help}");
}

#[test]
fn doctor_reports_what_this_host_supports() {
    let daemon = Daemon::start();
    let text = daemon.bay(&["doctor"]);
    for word in ["cgroup", "btrfs", "namespace", "CRIU", "KVM", "kernel"] {
        assert!(text.text().to_lowercase().contains(&word.to_lowercase()), "{word} is missing:\n{text}");
    }
    let checks = daemon.bay(&["doctor", "--json"]).json();
    assert!(checks.is_array() || checks.is_object(), "{checks}");
}
