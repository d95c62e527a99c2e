//! How the rules of one layer decide together.

use bay_policy::{Cause, Host, Kind, Outcome, Route, decide, route};

use super::{decided, now, outcome, policy, request};

#[test]
fn without_a_policy_everything_is_denied() {
    let decision = decided(&bay_policy::CompiledPolicy::default(), "GET https://ok.test/");
    assert_eq!((decision.outcome, decision.cause), (Outcome::Deny, Cause::NoPolicy));
    assert_eq!(outcome(&policy(""), "GET https://ok.test/"), "deny");
}

#[test]
fn an_allow_without_methods_permits_reading_only() {
    let policy = policy(
        "[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\n[[rule]]\noutcome = \"allow\"\nhost = \"rw.test\"\nmethod = [\"POST\", \"PUT\"]",
    );
    assert_eq!(outcome(&policy, "GET https://ok.test/x"), "allow");
    assert_eq!(outcome(&policy, "HEAD https://ok.test/x"), "allow");
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"] {
        assert_eq!(outcome(&policy, &format!("{method} https://ok.test/x")), "deny", "{method}");
    }
    assert_eq!(outcome(&policy, "PUT https://rw.test/x"), "allow");
    assert_eq!(outcome(&policy, "GET https://rw.test/x"), "deny");
}

#[test]
fn an_allow_of_get_does_not_match_a_websocket_but_a_deny_of_get_does() {
    let rule = |outcome: &str, methods: &str| {
        policy(&format!(
            "[[rule]]\noutcome = \"allow\"\nhost = \"*.ok.test\"\nmethod = \"*\"\n\
             [[rule]]\noutcome = \"{outcome}\"\nhost = \"www.ok.test\"\n{methods}"
        ))
    };
    let line = "WEBSOCKET https://www.ok.test/events";
    let alone =
        |methods: &str| policy(&format!("[[rule]]\noutcome = \"allow\"\nhost = \"www.ok.test\"\n{methods}"));
    assert_eq!(outcome(&alone(""), line), "deny");
    assert_eq!(outcome(&alone("method = [\"GET\", \"POST\"]"), line), "deny");
    assert_eq!(outcome(&alone("method = \"WEBSOCKET\""), line), "allow");
    assert_eq!(outcome(&alone("method = \"WEBSOCKET\""), "GET https://www.ok.test/events"), "deny");
    assert_eq!(outcome(&alone("method = \"*\""), line), "allow");
    // Ask and deny of GET also match a handshake, which begins with a GET.
    for narrowing in ["ask", "deny"] {
        assert_eq!(outcome(&rule(narrowing, "method = \"GET\""), line), narrowing);
        assert_eq!(outcome(&rule(narrowing, "method = \"WEBSOCKET\""), line), narrowing);
        assert_eq!(outcome(&rule(narrowing, "method = \"POST\""), line), "allow");
    }
    assert_eq!(outcome(&rule("deny", "method = \"WEBSOCKET\""), "GET https://www.ok.test/events"), "allow");
}

#[test]
fn a_deny_beats_every_allow_however_narrow() {
    let policy = policy(
        "[[rule]]\noutcome = \"allow\"\nhost = \"www.ok.test\"\npath = \"/exact\"\nquery = \"none\"\n[[rule]]\nid = \"no\"\noutcome = \"deny\"\nhost = \"*.ok.test\"\n",
    );
    let decision = decided(&policy, "GET https://www.ok.test/exact");
    assert_eq!(decision.outcome, Outcome::Deny);
    assert_eq!(decision.rule().unwrap().id, "no");
    // A deny without further keys matches every kind, scheme, port and method.
    for line in ["PUT http://a.b.ok.test:8080/x", "tcp://a.ok.test:22", "tls://a.ok.test"] {
        assert_eq!(decided(&policy, line).rule().map(|rule| rule.id.as_str()), Some("no"), "{line}");
    }
}

#[test]
fn an_allow_beats_an_ask_only_if_it_is_narrower_in_every_respect() {
    let ask = "[[rule]]\nid = \"ask\"\noutcome = \"ask\"\nhost = \"*.ok.test\"\npath = \"/api/**\"\n";
    let with = |allow: &str| policy(&format!("{ask}[[rule]]\nid = \"allow\"\noutcome = \"allow\"\n{allow}"));
    let line = "GET https://www.ok.test/api/public/x";
    assert_eq!(outcome(&with("host = \"www.ok.test\"\npath = \"/api/public/**\""), line), "allow");
    assert_eq!(outcome(&with("host = \"*.ok.test\"\npath = \"/api/public/*\""), line), "allow");
    assert_eq!(outcome(&with("host = \"*.ok.test\"\npath = \"/api/**\"\nmethod = \"GET\""), line), "allow");
    // First a rule with the same width, then wider in one respect, then wider in all.
    assert_eq!(outcome(&with("host = \"*.ok.test\"\npath = \"/api/**\""), line), "ask");
    assert_eq!(outcome(&with("host = \"www.ok.test\"\npath = \"/**\""), line), "ask");
    assert_eq!(
        outcome(&with("host = \"www.ok.test\"\npath = \"/api/**\"\nmethod = [\"GET\", \"POST\"]"), line),
        "ask"
    );
    assert_eq!(outcome(&with("host = \"*\""), line), "ask");
    let decision = decided(&with("host = \"*\""), line);
    assert!(matches!(decision.cause, Cause::Tie { rule, allow } if rule.id == "ask" && allow.id == "allow"));
}

#[test]
fn rules_end_when_they_expire() {
    let policy = policy(
        "[[rule]]\nid = \"short\"\noutcome = \"allow\"\nhost = \"ok.test\"\nexpires = 2026-11-16T12:00:01Z\n[[rule]]\noutcome = \"allow\"\nhost = \"gone.test\"\nexpires = 2026-11-16T12:00:00Z",
    );
    assert_eq!(outcome(&policy, "GET https://ok.test/"), "allow");
    assert_eq!(outcome(&policy, "GET https://gone.test/"), "deny");
    let later = "2026-11-16T12:00:01Z".parse().unwrap();
    assert_eq!(decide(&policy, &request("GET https://ok.test/"), later).outcome, Outcome::Deny);
}

#[test]
fn a_rule_with_headers_needs_them_all() {
    let policy =
        policy("[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\nheader = [\"X-Reason\", \"x-ticket\"]");
    assert_eq!(outcome(&policy, "GET https://ok.test/ with x-reason, X-Ticket, accept"), "allow");
    assert_eq!(outcome(&policy, "GET https://ok.test/ with x-reason"), "deny");
    assert_eq!(outcome(&policy, "GET https://ok.test/"), "deny");
}

#[test]
fn a_rule_of_one_kind_does_not_match_another_kind() {
    let policy = policy(
        "[[rule]]\noutcome = \"allow\"\nkind = \"tcp\"\nhost = \"db.test\"\nport = 5432\n[[rule]]\noutcome = \"allow\"\nkind = \"passthrough\"\nhost = \"pinned.test\"\n[[rule]]\noutcome = \"allow\"\nhost = \"web.test\"",
    );
    for (line, wanted) in [
        ("tcp://db.test:5432", "allow"),
        ("tcp://db.test:5433", "deny"),
        ("GET https://db.test:5432/", "deny"),
        ("tls://db.test:5432", "deny"),
        ("tls://pinned.test", "allow"),
        ("tls://pinned.test:8443", "deny"),
        ("tcp://pinned.test:443", "deny"),
        ("GET https://pinned.test/", "deny"),
        ("tls://web.test", "deny"),
        ("tcp://web.test:443", "deny"),
    ] {
        assert_eq!(outcome(&policy, line), wanted, "{line}");
    }
}

#[test]
fn credentials_go_only_into_requests_that_are_read_and_encrypted() {
    let policy = policy(
        "[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\nscheme = [\"http\", \"https\"]\n[[rule]]\noutcome = \"ask\"\nhost = \"ask.test\"\n[[rule]]\noutcome = \"allow\"\nkind = \"passthrough\"\nhost = \"pinned.test\"\n[[rule]]\noutcome = \"allow\"\nkind = \"tcp\"\nhost = \"db.test\"\nport = 5432",
    );
    assert!(decided(&policy, "GET https://ok.test/").credentials);
    for line in [
        "GET http://ok.test/",
        "GET https://ask.test/",
        "tls://pinned.test",
        "tcp://db.test:5432",
        "GET https://other.test/",
    ] {
        assert!(!decided(&policy, line).credentials, "{line}");
    }
}

#[test]
fn a_connection_is_read_unless_a_more_specific_rule_forwards_it() {
    let policy = policy(
        "[[rule]]\noutcome = \"allow\"\nhost = \"*\"\n[[rule]]\noutcome = \"allow\"\nkind = \"passthrough\"\nhost = [\"pinned.test\", \"both.test\"]\n[[rule]]\noutcome = \"allow\"\nhost = \"both.test\"\npath = \"/x\"\n[[rule]]\noutcome = \"allow\"\nkind = \"tcp\"\nhost = \"db.test\"\nport = 5432\n[[rule]]\noutcome = \"deny\"\nhost = \"never.test\"",
    );
    let route = |name: &str, port| route(&policy, &Host::parse(name).unwrap(), port, now());
    assert_eq!(route("www.test", 443), Route::Inspect);
    assert!(
        matches!(route("pinned.test", 443), Route::Passthrough { decision } if decision.outcome == Outcome::Allow)
    );
    assert_eq!(route("both.test", 443), Route::Inspect);
    assert!(matches!(route("db.test", 5432), Route::Tcp { decision } if decision.outcome == Outcome::Allow));
    for (name, port) in
        [("www.test", 22), ("db.test", 5433), ("never.test", 443), ("127.0.0.1", 443), ("metadata", 443)]
    {
        assert!(
            matches!(route(name, port), Route::Refuse { decision } if decision.outcome == Outcome::Deny),
            "{name}:{port}"
        );
    }
}

#[test]
fn the_gateway_reads_a_host_with_a_deny_of_one_path() {
    let policy = policy(
        "[[rule]]\noutcome = \"allow\"\nkind = \"tcp\"\nhost = \"ok.test\"\nport = 443\n[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\n[[rule]]\noutcome = \"deny\"\nhost = \"ok.test\"\npath = \"/secret\"",
    );
    assert_eq!(route(&policy, &Host::parse("ok.test").unwrap(), 443, now()), Route::Inspect);
    assert_eq!(policy.rules().nth(2).unwrap().matcher.kind, Kind::Http);
}

#[test]
fn decisions_are_the_same_with_and_without_the_index() {
    use bay_policy::bench::{Spread, policy, requests};
    for spread in Spread::ALL {
        let policy = policy(200, spread);
        for request in requests(200, spread) {
            let decision = decide(&policy, &request, now());
            let matching: Vec<_> =
                policy.rules().filter(|rule| rule.matcher.matches(&request, rule.outcome)).collect();
            let worst = matching.iter().map(|rule| rule.outcome).max();
            assert_eq!(decision.outcome, worst.unwrap_or(Outcome::Deny), "{request}");
        }
    }
}
