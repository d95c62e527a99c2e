use bay_types::event::EventBody;
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// The line for an event with this body.
fn what(kind: &str, body: &Value) -> String {
    super::what(&EventBody::read(kind, body), &Sent::default())
}

#[test]
fn an_exec_is_shown_with_its_number_command_exit_and_cost() {
    let begun = json!({ "exec": "exec_x", "number": 3, "argv": ["sh", "-c", "make && echo 'ok'"], "arguments_left_out": 0, "tty": false });
    assert_eq!(what("exec.start", &begun), r"exec 3 began: sh -c 'make && echo '\''ok'\'''");
    let over = json!({
        "number": 3, "tty": false, "duration_s": 4.84, "exit": { "reason": "exited", "code": 1 },
        "usage": { "user_us": 7_000_000, "system_us": 100_000, "memory_peak_bytes": 327_155_712 },
        "limits_hit": ["memory"],
    });
    assert_eq!(
        what("exec.end", &over),
        "exec 3 ended: exit 1 after 4.8 s · 7.1 s cpu · 312 MiB peak · memory limit reached"
    );
}

#[test]
fn an_exec_with_a_terminal_is_a_session() {
    let body = json!({ "number": 4, "argv": ["bash"], "tty": true });
    assert_eq!(what("exec.start", &body), "session 4 began: bash");
}

#[test]
fn changed_files_are_counted_and_some_of_them_named() {
    let body = json!({ "number": 2, "created": 4, "changed": 1, "directories": 2, "at_least": false, "names": ["src/a.rs", "b"] });
    assert_eq!(what("exec.files", &body), "exec 2: 4 files created, 1 changed while it ran: src/a.rs, b, …");
    let body = json!({ "number": 2, "created": 0, "changed": 1, "directories": 0, "at_least": true, "names": ["b"] });
    assert_eq!(what("exec.files", &body), "exec 2: at least 1 file changed while it ran: b");
    let body = json!({ "number": 2, "created": 1, "changed": 0, "directories": 3, "names": ["a/b/c"] });
    assert_eq!(what("exec.files", &body), "exec 2: 1 file created while it ran: a/b/c");
    let body = json!({ "number": 2, "created": 0, "changed": 0, "directories": 1, "names": ["src/"] });
    assert_eq!(what("exec.files", &body), "exec 2: entries of 1 directory changed while it ran: src/");
}

#[test]
fn checkpoints_and_their_forks_have_lines() {
    let made = json!({ "name": "v3", "parent": "v2", "kind": "files", "message": "before the migration", "automatic": null, "pause_us": 12400 });
    assert_eq!(
        what("checkpoint.made", &made),
        "checkpoint v3 made (files) after v2: before the migration · paused for 12 ms"
    );
    let itself = json!({ "name": "v4", "parent": null, "kind": "files", "message": null, "automatic": "before restore" });
    assert_eq!(what("checkpoint.made", &itself), "checkpoint v4 made (files) · automatic, before restore");
    assert_eq!(what("bay.restored", &json!({ "checkpoint": "v1" })), "restored to v1");
    let forked = json!({ "checkpoint": "v1", "children": ["a", "b"] });
    assert_eq!(what("bay.forked", &forked), "forked from v1 into a, b");
    let from = json!({ "name": "web-fork-1", "forked_from": { "bay": "bay_0190000000007000800000000000000a", "name": "web", "checkpoint": "v1", "index": 0, "memory": true }, "by": "uid 0" });
    assert_eq!(what("bay.create", &from), "created as web-fork-1 from v1 of web, with its memory, by uid 0");
    let asked = json!({ "name": "v2", "automatic": "to pause on disk", "by": "uid 0" });
    assert_eq!(what("checkpoint.asked", &asked), "checkpoint v2 begun: to pause on disk, by uid 0");
    let failed = json!({ "name": "v2", "why": "the disk is full", "by": "uid 0" });
    assert_eq!(what("checkpoint.failed", &failed), "checkpoint v2 failed: the disk is full, by uid 0");
    let revived = json!({ "execs": ["exec_a", "exec_b"], "from": { "bay": "bay_0190000000007000800000000000000a", "checkpoint": "v2" } });
    assert_eq!(what("exec.revived", &revived), "2 execs continue from v2");
    assert_eq!(what("bay.promoted", &json!({ "from": "web-2" })), "took over the state of web-2");
}

/// Every kind of event in a bay's timeline has a line of its own.
#[test]
fn every_recorded_kind_has_a_line() {
    let of_bays = [
        "bay.",
        "exec.",
        "checkpoint.",
        "service.",
        "file.",
        "hold.",
        "policy.",
        "grant.",
        "approval.",
        "work.",
        "secret.",
    ];
    let all = EventBody::AREAS.iter().flat_map(|(_, _, kinds)| kinds.iter().map(|kind| kind.kind));
    let kinds: Vec<&str> = all.filter(|kind| of_bays.iter().any(|noun| kind.starts_with(noun))).collect();
    assert!(kinds.len() > 50, "{kinds:?}");
    for kind in kinds {
        assert!(!what(kind, &json!({ "x": 1 })).starts_with(kind), "{kind}");
    }
}

#[test]
fn a_kind_of_a_later_release_is_shown_with_its_fields() {
    let body = json!({ "host": "example.org", "port": 443, "why": null });
    assert_eq!(what("gateway.refused", &body), "gateway.refused: host example.org, port 443");
    assert_eq!(what("bay.odd", &json!({})), "bay.odd");
    assert_eq!(what("bay.odd", &json!([1])), "bay.odd");
}

#[test]
fn nothing_in_an_event_controls_a_terminal() {
    let evil = "a\u{1b}]0;title\u{7}\r\n\u{202e}b";
    for (kind, body) in [
        ("exec.start", json!({ "number": 1, "argv": [evil] })),
        ("exec.files", json!({ "number": 1, "created": 1, "names": [evil] })),
        ("bay.failed", json!({ "reason": evil })),
        ("work.left", json!({ "route": "push", "branch": evil, "place": evil, "commit": evil, "by": evil })),
        ("secret.set", json!({ "name": evil, "uses": [evil], "by": evil })),
        ("secret.stale", json!({ "name": evil, "why": evil })),
        ("checkpoint.made", json!({ "name": evil, "message": evil })),
        (evil, json!({ evil: evil })),
    ] {
        let line = what(kind, &body);
        assert!(!line.chars().any(|c| c.is_control() || c == '\u{202e}'), "{line:?}");
    }
}

#[test]
fn times_are_short() {
    for (seconds, said) in
        [(0.0071, "7 ms"), (1.26, "1.3 s"), (192.0, "3 m 12 s"), (7300.0, "2 h 1 m"), (f64::NAN, "?")]
    {
        assert_eq!(duration(seconds), said);
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,300}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key(), inner), 0..6)
                .prop_map(|all| Value::Object(all.into_iter().collect())),
        ]
    })
}

fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "number",
        "argv",
        "exit",
        "usage",
        "tty",
        "duration_s",
        "names",
        "created",
        "name",
        "parent",
        "automatic",
        "pause_ms",
        "change",
        "limits",
        "origin",
        "reason",
        "x",
    ])
    .prop_map(str::to_owned)
}

proptest! {
    #[test]
    fn any_body_makes_one_short_line(
        kind in prop::sample::select(vec!["exec.start", "exec.end", "exec.files", "bay.create", "bay.set-asked", "bay.set",
            "checkpoint.made", "checkpoint.failed", "bay.forked", "service.define", "file.write", "bay.idle-stop", "policy.set", "grant.add", "grant.rm", "unheard.of"]),
        body in any_json(),
    ) {
        let line = what(kind, &body);
        prop_assert!(line.chars().count() < 4000);
        prop_assert!(!line.contains('\n'));
    }
}

#[test]
fn policies_and_grants_are_shown_with_who_set_them() {
    let set = json!({ "scope": "bay:x", "name": "p.toml", "rules": { "allow": 2, "ask": 0, "deny": 1 }, "by": "uid 0" });
    assert_eq!(what("policy.set", &set), "policy p.toml set (2 allow, 1 deny), by uid 0");
    assert_eq!(
        what("policy.set", &json!({ "name": null, "by": "uid 0" })),
        "its own policy removed, by uid 0"
    );
    let add = json!({ "id": "a", "request": "GET https://x.example.com/", "expires": "2030-01-01T00:00:00Z", "by": "uid 0" });
    assert_eq!(
        what("grant.add", &add),
        "granted until 2030-01-01T00:00:00Z: GET https://x.example.com/, by uid 0"
    );
    let gone = what("grant.rm", &json!({ "ids": ["a"], "why": "the bay was stopped" }));
    assert!(gone.starts_with("grants revoked: ") && gone.ends_with("; the bay was stopped"), "{gone}");
}

#[test]
fn work_that_left_and_secrets_are_shown_with_who_did_it() {
    let left = json!({ "route": "branch", "branch": "fix", "place": "/home/ann/web", "commit": "5f0c1a9e26251c2d", "commits": 2, "files": 1, "uncommitted": true, "by": "uid 0" });
    assert_eq!(
        what("work.left", &left),
        "work taken out as branch fix of /home/ann/web at 5f0c1a9e: 2 commits, 1 file changed, with uncommitted changes, by uid 0"
    );
    let set = json!({ "name": "TOKEN", "uses": ["api.example as bearer"], "by": "uid 0" });
    assert_eq!(what("secret.set", &set), "secret TOKEN set for api.example as bearer, by uid 0");
    assert_eq!(
        what("secret.rotated", &json!({ "name": "TOKEN", "by": "uid 0" })),
        "secret TOKEN has a new value, by uid 0"
    );
    assert_eq!(
        what("secret.removed", &json!({ "name": "TOKEN", "by": "uid 0" })),
        "secret TOKEN removed, by uid 0"
    );
}

#[test]
fn gits_own_files_are_named_apart_and_restarts_of_a_service_are_counted() {
    let body = json!({ "number": 2, "created": 1, "changed": 0, "directories": 1, "git": 7, "names": ["a"] });
    assert_eq!(what("exec.files", &body), "exec 2: 1 file created, 7 of git's own while it ran: a");
    let body = json!({ "path": "/workspace", "archive": true, "beginning": true, "by": "uid 0" });
    assert_eq!(what("file.write", &body), "files written below /workspace, where the work begins, by uid 0");
    let body = json!({ "number": 2, "ignored": 33 });
    assert_eq!(what("exec.files", &body), "exec 2: 33 that the repository ignores while it ran");
    let body = json!({ "number": 2, "created": 1, "ignored": 33, "names": ["a"] });
    assert_eq!(
        what("exec.files", &body),
        "exec 2: 1 file created, 33 that the repository ignores while it ran: a"
    );
    let reached = json!({ "service": "web", "state": "ready", "reason": "it runs", "restarts": 2 });
    assert_eq!(what("service.reached", &reached), "service web is ready: it runs · restarted 2 times");
}
