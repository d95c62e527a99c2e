//! The lifecycle of a secret: the sources of its value, the places of its sentinels, and that nothing stored of a bay
//! contains the value.

use std::fs;

use bay_tests::canary::{
    CANARY, bay_is_clean, bearer, credentials, everything, files_with, files_with_canary, for_api,
    once_there, reflecting, send, sentinel, set,
};
use bay_tests::lab::lab;
use bay_tests::open_approvals::{approvals, ask_policy};
use bay_tests::suite::Scratch;
use bay_tests::{consistency_probe, leaks, until};
use bay_types::ErrorCode;
use serde_json::json;

#[test]
fn values_are_read_from_the_environment_from_files_and_from_a_terminal_without_echo() {
    let lab = lab();
    let origin = reflecting(&lab, "origin.test");
    lab.bay("b", &everything(&origin));
    let dir = Scratch::new();
    fs::write(dir.join("value"), format!("{CANARY}\n")).unwrap();
    let file = dir.join("value").display().to_string();
    let uses = for_api(&origin);
    let locked = || -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", lab.daemon.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let before = locked();
    let mut from_env =
        lab.daemon.command(&["secret", "set", "TOKEN", "--from-env", "HAS_IT", "--for", &uses]);
    assert!(from_env.env("HAS_IT", CANARY).output().unwrap().status.success());
    let _there = once_there(&lab, "b");
    // If the system permits it, its memory is never swapped out.
    let limits = fs::read_to_string(format!("/proc/{}/limits", lab.daemon.pid())).unwrap();
    let lockable = limits.lines().any(|line| line.starts_with("Max locked memory") && !line.contains(" 0 "));
    assert!(!lockable || locked() > before, "{limits}");
    let uses_it = |way: &str| {
        assert_eq!(send(&lab, "b", &bearer(&origin.url("https", "/api/x")))["status"], 200, "{way}");
        let sent = credentials(&origin);
        assert_eq!(sent.last(), Some(&format!("Bearer {CANARY}")), "{way}");
    };
    uses_it("environment");
    let other = CANARY.replace("x9Xq", "y8Yr");
    let _other = lab.daemon.bay_with_input(&["secret", "rotate", "TOKEN", "-"], other.as_bytes()).ok();
    let _file = lab.daemon.bay(&["secret", "rotate", "TOKEN", "--from-file", &file]).ok();
    uses_it("file");
    let _other = lab.daemon.bay_with_input(&["secret", "rotate", "TOKEN", "-"], other.as_bytes()).ok();
    let typed = lab.daemon.on_a_terminal("secret rotate TOKEN -", &format!("{CANARY}\n")).ok();
    assert!(typed.text().contains("not shown") && !typed.text().contains(CANARY), "{typed}");
    uses_it("terminal");

    // Error messages contain no part of a value.
    let wrong = [
        vec!["secret", "rotate", "TOKEN", "--from-env", "NOT_SET"],
        vec!["secret", "rotate", "TOKEN", "--from-file", "/nonexistent"],
        vec!["secret", "rotate", "TOKEN", CANARY],
        vec!["secret", "set", "api-key", "--from-file", &file, "--for", &uses],
        vec!["secret", "set", "OTHER", "--from-file", &file, "--for", &uses, "--file", "/workspace/Makefile"],
    ];
    for line in wrong {
        let ran = lab.daemon.bay(&line);
        assert!(ran.code != 0 && ran.errors().contains("next: "), "{line:?}: {ran}");
        assert!(!ran.errors().contains(CANARY), "{ran}");
    }
    let _refused = lab.daemon.bay(&["secret", "show", "OTHER"]).fails_with(ErrorCode::SecretNotFound);
    let all = lab.daemon.bay(&["secret", "ls", "--json"]).ok().json();
    assert_eq!((all.as_array().map(Vec::len), &all[0]["name"]), (Some(1), &json!("TOKEN")), "{all:#}");
    assert_eq!(all[0]["uses"], json!([uses]), "{all:#}");
    assert!(all[0]["last_used"].is_string() && !all.to_string().contains(CANARY), "{all:#}");
}

#[test]
fn the_gateway_puts_the_value_into_its_slot_and_each_bay_has_a_sentinel_of_its_own() {
    let lab = lab();
    let origin = reflecting(&lab, "origin.test");
    let place = format!("origin.test:{}", origin.port());
    let policy = origin.allowed("method = \"*\"");
    for bay in ["a", "b"] {
        lab.bay(bay, &policy);
    }
    // By the policy rule that allows it; each slot has a path of its own.
    let uses = ["rule:origin as x-api-key".to_owned(), format!("{place}/token/** as token")];
    let _set = set(&lab, "TOKEN", &["--for", &uses[0], "--for", &uses[1]]).ok();
    let (of_a, of_b) = (once_there(&lab, "a"), once_there(&lab, "b"));
    assert_ne!(of_a, of_b);
    let keyed = |token: &str| json!({ "url": origin.url("https", "/v1"), "headers": { "X-Api-Key": "{}" }, "token": token });
    assert_eq!(send(&lab, "a", &keyed(&of_a))["status"], 200);
    let sent = |header: &str| {
        let requests = origin.seen.requests.lock().unwrap();
        requests.last().unwrap().headers.get(header).map(|value| value.to_str().unwrap().to_owned())
    };
    assert_eq!(sent("x-api-key").as_deref(), Some(CANARY));
    let token = json!({ "url": origin.url("https", "/token/x"), "headers": { "Authorization": "token {}" }, "token": of_b });
    assert_eq!(send(&lab, "b", &token)["status"], 200);
    assert_eq!(sent("authorization"), Some(format!("token {CANARY}")));
    // Another bay's sentinel is a foreign credential here, and is refused as such.
    let stolen = send(&lab, "b", &keyed(&of_a));
    assert_eq!(stolen["status"], 403, "{stolen:#}");
    assert!(!lab.daemon.bay(&["secret", "ls"]).ok().text().contains(CANARY));

    // If the value is a JSON web token, its sentinel is one too.
    let jwt = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJodHRwczovL2lzc3Vlci50ZXN0Iiwic3ViIjoic29tZWJvZHlAZXhhbXBsZS50ZXN0IiwiZXhwIjo0MDAwMDAwMDAwfQ.c2lnbmF0dXJlLW9mLXRoZS1yZWFsLW9uZQ";
    let line = ["secret", "set", "JWT", "-", "--for", &format!("{place}/jwt/** as bearer")];
    let _set = lab.daemon.bay_with_input(&line, jwt.as_bytes()).ok();
    let own = until("it in the environment", || {
        Some(lab.daemon.sh("a", "test -n \"$JWT\" && echo \"$JWT\""))
            .filter(|ran| ran.code == 0)
            .map(|ran| ran.text())
    });
    let read = "import base64, json, os\nhead, body, rest = os.environ['JWT'].split('.')\n\
        load = lambda part: json.loads(base64.urlsafe_b64decode(part + '=' * (-len(part) % 4)))\n\
        print(load(head)['alg'], load(body)['exp'])";
    assert_eq!(lab.python("a", read, &[]).ok().text(), "HS256 4000000000");
    assert_ne!(own, jwt);
}

#[test]
fn sentinels_survive_and_approvals_end_when_a_bay_is_replaced_restored_or_forked() {
    let lab = lab();
    let origin = lab.echo("origin.test");
    lab.bay("b", &ask_policy(&origin, ""));
    let _set = set(&lab, "TOKEN", &["--for", &for_api(&origin)]).ok();
    let own = once_there(&lab, "b");
    let _point = lab.daemon.bay(&["checkpoint", "b", "--files-only"]).ok();
    let ask = |name: &str| {
        let url = origin.url("https", &format!("/{name}"));
        let _begun = lab.daemon.bay(&["exec", "--detach", "b", "--", "curl", "-sS", &url]).ok();
        until("a question", || approvals(&lab, &[]).into_iter().find(|card| card["bay_name"] == "b"))
    };
    for verb in [&["replace", "b"][..], &["restore", "b", "v1"]] {
        let card = ask(verb[0]);
        // A child has none of its parent's approvals.
        if verb[0] == "restore" {
            let forked = lab.daemon.bay(&["fork", "b", "--files-only", "--name", "c", "--json"]).ok().json();
            let child = forked["bays"][0]["name"].as_str().unwrap().to_owned();
            assert!(approvals(&lab, &[]).iter().all(|card| card["bay_name"] != child.as_str()));
            assert_ne!(once_there(&lab, &child), own);
        }
        let _done = lab.daemon.bay(verb).ok();
        let id = card["id"].as_str().unwrap();
        let after = lab.daemon.bay(&["approvals", "show", id, "--json"]).ok().json();
        assert_eq!(after["state"], "dropped", "{verb:?}: {after:#}");
        assert_eq!(once_there(&lab, "b"), own, "{verb:?}");
        assert_eq!(sentinel(&lab, "b"), own, "{verb:?}");
    }
}

#[test]
fn nothing_that_is_kept_of_a_bay_contains_the_value_not_even_its_memory() {
    let lab = lab();
    let origin = reflecting(&lab, "origin.test");
    lab.bay("b", &everything(&origin));
    let _set =
        set(&lab, "TOKEN", &["--for", &for_api(&origin), "--env", "TOKEN", "--file", "/root/token"]).ok();
    let own = once_there(&lab, "b");
    // A process that has used the secret, and still has all its requests and answers in memory.
    let remembers = r#"
import os, sys, time, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + os.environ["TOKEN"]})
answer = urllib.request.urlopen(request, timeout=20)
kept = [answer.read(), dict(answer.headers)]
open("/tmp/kept", "w").write(repr(kept))
while True:
    time.sleep(1)
"#;
    let url = origin.url("https", "/api/x");
    let _begun = lab.daemon.bay(&["exec", "--detach", "b", "--", "python3", "-c", remembers, &url]).ok();
    until("it to be used", || (lab.daemon.sh("b", "test -s /tmp/kept").code == 0).then_some(()));
    assert_eq!(credentials(&origin), [format!("Bearer {CANARY}")]);
    let made = lab.daemon.bay(&["checkpoint", "b", "--json"]).ok().json();
    let kept = leaks::corner(&lab.daemon.pool, lab.daemon.id()).join("bays");
    // Check the search itself: it finds the sentinel in files and in memory.
    let mut with_sentinel = Vec::new();
    files_with(&kept, &own, &mut with_sentinel);
    assert!(
        with_sentinel.iter().any(|path| path.contains("checkpoints") && path.ends_with("/root/token")),
        "{with_sentinel:?}"
    );
    if consistency_probe::can_run(&lab.daemon) {
        assert_eq!(made["kind"], "memory", "{made:#}");
        assert!(with_sentinel.iter().any(|path| path.ends_with(".img")), "{with_sentinel:?}");
    }
    let mut found = Vec::new();
    files_with_canary(&kept, &mut found);
    files_with_canary(&lab.daemon.data_dir, &mut found);
    assert!(found.is_empty(), "{found:?}");
    bay_is_clean(&lab, "b");
    // Nor does any process of the bay have it in its memory or command line.
    let memory = format!(
        "import os\nneedle = b'{}' + b'{}'\nfound = 0\nlooked = 0\nfor pid in filter(str.isdigit, os.listdir('/proc')):\n  try:\n    \
         maps = open(f'/proc/{{pid}}/maps').read().splitlines()\n    memory = open(f'/proc/{{pid}}/mem', 'rb')\n  except OSError:\n    continue\n  \
         if int(pid) == os.getpid():\n    continue\n  for line in maps:\n    if ' rw' not in line:\n      continue\n    a, b = (int(x, 16) for x in line.split()[0].split('-'))\n    \
         try:\n      memory.seek(a)\n      page = memory.read(b - a)\n    except (OSError, ValueError, OverflowError):\n      continue\n    looked += 1\n    found += needle in page\n  \
         found += needle in open(f'/proc/{{pid}}/cmdline', 'rb').read()\nprint(looked > 3, found)",
        &CANARY[..10],
        &CANARY[10..]
    );
    assert_eq!(lab.python("b", &memory, &[]).ok().text(), "True 0");
}
