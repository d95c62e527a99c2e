//! Explain, lint, diff, learn and show: what makes a policy understandable.

use bay_policy::explain::Remedy;
use bay_policy::lint::FindingCode;
use bay_policy::show::Effect;
use bay_policy::{CompiledPolicy, Layer, Layers, decide, diff, explain, learn, lint, show};

use super::{decided, layer, now, outcome, policy, request};

fn explained(policy: &CompiledPolicy, line: &str) -> bay_policy::Explanation {
    explain(policy, &request(line), &decided(policy, line), now())
}

fn codes(policy: &CompiledPolicy) -> Vec<(FindingCode, Option<String>)> {
    lint(policy, now()).into_iter().map(|finding| (finding.code, finding.rule)).collect()
}

#[test]
fn the_rule_that_a_refusal_proposes_allows_the_request() {
    let before =
        policy("[[rule]]\nid = \"docs\"\noutcome = \"allow\"\nhost = \"ok.test\"\npath = \"/docs/**\"");
    for line in [
        "POST https://ok.test/docs/a?x=1",
        "GET https://ok.test/other",
        "GET http://new.test:8080/",
        "tcp://db.test:5432",
        "tls://pinned.test",
        "GET https://ok.test/a%2fb",
        "GET https://ok.test/star*",
    ] {
        let explanation = explained(&before, line);
        let Some(Remedy::AddRule { toml, file, .. }) = explanation.would_allow.first() else {
            panic!("{explanation:?}")
        };
        assert_eq!(file, "bay.toml");
        assert_eq!(outcome(&policy(toml), line), "allow", "{line}: {toml}");
        assert!(explanation.line().starts_with("deny: "), "{}", explanation.line());
    }
}

#[test]
fn near_misses_name_the_part_that_differs() {
    let policy = policy(
        "[[rule]]\nid = \"docs\"\noutcome = \"allow\"\nhost = \"ok.test\"\npath = \"/docs/**\"\n[[rule]]\nid = \"old\"\noutcome = \"allow\"\nhost = \"ok.test\"\nmethod = \"POST\"\nexpires = 2020-01-01T00:00:00Z",
    );
    let differs = |line: &str| -> Vec<(String, &'static str)> {
        explained(&policy, line).near_misses.into_iter().map(|miss| (miss.rule, miss.differs_in)).collect()
    };
    assert_eq!(
        differs("POST https://ok.test/docs/x"),
        [("old".to_owned(), "expires"), ("docs".to_owned(), "method")]
    );
    assert_eq!(differs("GET https://ok.test/x"), [("old".to_owned(), "method"), ("docs".to_owned(), "path")]);
    assert_eq!(differs("GET https://ok.test:444/docs/x")[0].1, "port");
    assert_eq!(differs("GET http://ok.test/docs/x")[0].1, "scheme");
    assert_eq!(differs("tcp://ok.test:443")[0].1, "kind");
    assert!(differs("GET https://other.test/").is_empty());
}

#[test]
fn explanations_name_the_rule_the_reason_and_warnings() {
    let policy = policy(
        "[[rule]]\nid = \"no\"\noutcome = \"deny\"\nhost = \"bad.test\"\nreason = \"it leaked\"\n[[rule]]\noutcome = \"ask\"\nhost = \"ask.test\"\n[[rule]]\noutcome = \"allow\"\nhost = \"example.com\"",
    );
    let denied = explained(&policy, "GET https://bad.test/");
    assert!(
        denied.reason.contains("rule no at bay.toml:1 (bay layer) says deny: it leaked"),
        "{}",
        denied.reason
    );
    assert!(matches!(&denied.would_allow[..], [Remedy::ChangeRule { rule, .. }] if rule == "no"));
    assert!(matches!(&explained(&policy, "GET https://ask.test/").would_allow[..], [Remedy::Approve { .. }]));
    let twin = explained(&policy, "GET https://ex\u{430}mple.com/");
    assert!(serde_json::to_string(&twin).unwrap().contains("\"looks-like\",\"name\":\"example.com\""));
    assert!(explained(&policy, "GET http://169.254.169.254/").reason.contains("metadata"));
    assert!(explained(&policy, "GET http://localhost/").reason.contains("local network"));
    let nothing = CompiledPolicy::default();
    assert!(matches!(&explained(&nothing, "GET https://ok.test/").would_allow[..], [Remedy::SetPolicy]));
}

#[test]
fn the_json_of_a_decision_is_stable() {
    let policy = policy("[[rule]]\nid = \"no\"\noutcome = \"deny\"\nhost = \"bad.test\"");
    let json = serde_json::to_string(&decided(&policy, "GET https://bad.test/")).unwrap();
    let rule =
        r#"{"id":"no","origin":{"layer":"bay","file":"bay.toml","line":1},"outcome":"deny","kind":"any"}"#;
    assert_eq!(
        json,
        format!(
            r#"{{"outcome":"deny","cause":{{"because":"rule","rule":{rule}}},"layers":[{{"layer":"bay","outcome":"deny","rule":{rule}}}],"credentials":false}}"#
        )
    );
    let json = serde_json::to_string(&request("GET https://bad.test/a%2fb?x=1 with Accept")).unwrap();
    assert_eq!(
        json,
        r#"{"host":"bad.test","port":443,"kind":"http","scheme":"https","method":"GET","path":"/a%2Fb","query":"x=1","headers":["accept"]}"#
    );
}

#[test]
fn lint_finds_shadowed_redundant_dead_and_wide_rules() {
    let policy = policy(
        r#"
[[rule]]
id = "shadowed"
outcome = "allow"
host = "www.bad.test"
path = "/x"
[[rule]]
id = "deny"
outcome = "deny"
host = "*.bad.test"
[[rule]]
id = "all"
outcome = "allow"
host = "ok.test"
[[rule]]
id = "part"
outcome = "allow"
host = "ok.test"
path = "/part/**"
[[rule]]
id = "old"
outcome = "allow"
host = "old.test"
expires = 2020-01-01T00:00:00Z
[[rule]]
id = "writes"
outcome = "allow"
host = "*"
method = "*"
[[rule]]
id = "top-level"
outcome = "allow"
host = "*.dev"
[[rule]]
id = "network"
outcome = "allow"
kind = "tcp"
host = "10.0.0.0/8"
port = "*"
"#,
    );
    let codes = codes(&policy);
    let has = |code, rule: &str| codes.contains(&(code, Some(rule.to_owned())));
    assert!(has(FindingCode::Shadowed, "shadowed"), "{codes:?}");
    assert!(has(FindingCode::Redundant, "part"), "{codes:?}");
    assert!(has(FindingCode::Dead, "old"), "{codes:?}");
    assert!(has(FindingCode::TooWide, "writes") && has(FindingCode::TooWide, "top-level"), "{codes:?}");
    assert!(has(FindingCode::TooWide, "network") && has(FindingCode::Special, "network"), "{codes:?}");
    assert!(!codes.iter().any(|(_, rule)| rule.as_deref() == Some("deny")), "{codes:?}");
}

#[test]
fn lint_flags_traffic_that_is_not_inspected_and_confusable_names() {
    let policy = policy(
        "[[rule]]\nid = \"pinned\"\noutcome = \"allow\"\nkind = \"passthrough\"\nhost = \"pinned.test\"\n[[rule]]\nid = \"hides\"\noutcome = \"allow\"\nkind = \"passthrough\"\nhost = \"*.ok.test\"\n[[rule]]\nid = \"path\"\noutcome = \"deny\"\nhost = \"www.ok.test\"\npath = \"/secret\"\n[[rule]]\nid = \"clear\"\noutcome = \"allow\"\nhost = \"plain.test\"\nscheme = \"http\"\n[[rule]]\nid = \"twin\"\noutcome = \"allow\"\nhost = \"\u{440}ython.test\"\n[[rule]]\nid = \"metadata\"\noutcome = \"allow\"\nhost = \"metadata.google.internal\"\n",
    );
    let findings = lint(&policy, now());
    let find = |rule: &str| findings.iter().find(|finding| finding.rule.as_deref() == Some(rule)).unwrap();
    assert_eq!(find("pinned").code, FindingCode::Passthrough);
    assert!(find("hides").because_of.as_ref().unwrap().starts_with("path at "));
    assert_eq!(find("clear").code, FindingCode::Cleartext);
    assert_eq!(find("twin").code, FindingCode::Confusable);
    assert_eq!(find("metadata").code, FindingCode::Special);
}

#[test]
fn lint_and_show_report_rules_that_another_layer_caps() {
    let policy = CompiledPolicy::new(Layers {
        host: Some(layer(Layer::Host, "[[rule]]\nid = \"cap\"\noutcome = \"allow\"\nhost = \"*.ok.test\"")),
        project: Some(layer(
            Layer::Project,
            "[[rule]]\nid = \"only\"\noutcome = \"deny\"\nhost = \"x.test\"",
        )),
        bay: Some(layer(
            Layer::Bay,
            "[[rule]]\nid = \"in\"\noutcome = \"allow\"\nhost = \"a.ok.test\"\n[[rule]]\nid = \"out\"\noutcome = \"allow\"\nhost = \"else.test\"",
        )),
    });
    let codes = codes(&policy);
    assert!(codes.contains(&(FindingCode::EmptyLayer, None)), "{codes:?}");
    assert!(codes.contains(&(FindingCode::Dead, Some("out".to_owned()))), "{codes:?}");
    let policy = CompiledPolicy::new(Layers {
        host: Some(layer(Layer::Host, "[[rule]]\nid = \"cap\"\noutcome = \"allow\"\nhost = \"*.ok.test\"")),
        project: None,
        bay: Some(layer(
            Layer::Bay,
            "[[rule]]\nid = \"in\"\noutcome = \"allow\"\nhost = \"a.ok.test\"\n[[rule]]\nid = \"out\"\noutcome = \"allow\"\nhost = \"else.test\"",
        )),
    });
    let shown = show(&policy, now());
    let effects: Vec<_> =
        shown.layers[1].rules.iter().map(|shown| (shown.rule.id.as_str(), shown.effect)).collect();
    assert_eq!(effects, [("in", Effect::Active), ("out", Effect::Capped)]);
    assert_eq!(shown.layers[1].rules[1].rule.origin.line, 5);
    assert!(serde_json::to_string(&shown).unwrap().contains("\"effect\":\"capped\""));
}

#[test]
fn diff_reports_changed_rules_layers_and_decisions() {
    let before = policy(
        "[[rule]]\nid = \"a\"\noutcome = \"allow\"\nhost = \"a.test\"\nmatch = \"GET https://a.test/\"\n[[rule]]\nid = \"b\"\noutcome = \"allow\"\nhost = \"b.test\"\n[[rule]]\nid = \"same\"\noutcome = \"ask\"\nhost = \"c.test\"",
    );
    let after = policy(
        "otherwise = \"ask\"\ningress = \"deny\"\n[[rule]]\nid = \"renamed\"\noutcome = \"ask\"\nhost = \"c.test\"\n[[rule]]\nid = \"a\"\noutcome = \"ask\"\nhost = \"a.test\"\n[[rule]]\nid = \"new\"\noutcome = \"deny\"\nhost = \"d.test\"",
    );
    let changes = diff(&before, &after, now());
    let ids = |rules: &[bay_policy::Rule]| rules.iter().map(|rule| rule.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&changes.added), ["new"]);
    assert_eq!(ids(&changes.removed), ["b"]);
    assert_eq!(changes.changed.iter().map(|changed| changed.id.as_str()).collect::<Vec<_>>(), ["a"]);
    assert_eq!((changes.layers.len(), changes.ingress), (1, Some((true, false))));
    assert_eq!(changes.decisions[0].request, "GET https://a.test/");
    assert!(diff(&after, &after, now()).is_empty());
}

#[test]
fn learned_rules_allow_the_refused_requests_and_little_else() {
    let before = policy(
        "[[rule]]\nid = \"no\"\noutcome = \"deny\"\nhost = \"bad.test\"\n[[rule]]\noutcome = \"allow\"\nhost = \"fine.test\"",
    );
    let mut lines: Vec<String> = vec![
        "GET https://ok.test/a".to_owned(),
        "HEAD https://ok.test/a".to_owned(),
        "POST https://ok.test/b?x=1".to_owned(),
        "GET https://git.test/o/r.git/info/refs?service=git-upload-pack".to_owned(),
        "tcp://db.test:5432".to_owned(),
        "tls://pinned.test".to_owned(),
        "GET https://npm.test/@s%2fn".to_owned(),
        "GET https://star.test/a*b".to_owned(),
        "GET https://[2001:db8::1]:8443/".to_owned(),
    ];
    lines.extend((0..30).map(|at| format!("GET https://many.test/pool/p{at}")));
    lines.extend((0..30).map(|at| format!("GET https://deep.test/x/{}p{at}", "d/".repeat(at % 4))));
    let refused: Vec<_> = lines.iter().map(|line| request(line)).collect();
    let lesson = learn(&before, &refused, Layer::Bay, now());
    let after = policy(&lesson.toml);
    for line in &lines {
        assert_eq!(outcome(&after, line), "allow", "{line}\n{}", lesson.toml);
    }
    for line in [
        "PUT https://ok.test/a",
        "GET https://ok.test/",
        "GET https://ok.test/a?leak=1",
        "GET https://git.test/o/r.git/info/refs?service=git-receive-pack",
        "tcp://db.test:5433",
        "tls://pinned.test:8443",
        "GET https://many.test/other",
        "GET https://many.test/pool/a/b",
        "GET https://deep.test/y",
        "GET https://npm.test/@s%2fother",
        "GET https://npm.test/",
    ] {
        assert_eq!(outcome(&after, line), "deny", "{line}\n{}", lesson.toml);
    }
    assert!(lesson.toml.contains("\"/pool/*\"") && lesson.toml.contains("\"/x/**\""), "{}", lesson.toml);
    let not = learn(
        &before,
        &[request("GET https://bad.test/"), request("GET https://fine.test/")],
        Layer::Bay,
        now(),
    );
    assert!(not.rules.is_empty());
    assert!(not.not_learned[0].why.contains("no denies it"), "{not:?}");
    assert!(not.not_learned[1].why.contains("allowed by now"), "{not:?}");
    // No rule is proposed for a service that gives out the machine's credentials.
    for line in ["GET http://169.254.169.254/", "GET http://metadata.google.internal/", "tcp://10.0.0.1:22"] {
        let lesson = learn(&before, &[request(line)], Layer::Bay, now());
        assert!(
            lesson.rules.is_empty() && lesson.not_learned[0].why.contains("for a person to write"),
            "{lesson:?}"
        );
    }
}

#[test]
fn a_rule_learned_from_one_request_allows_only_that_path() {
    let before = policy("");
    for (line, path, others) in [
        ("GET https://ok.test/a/b*", "/a/b%2A", ["/a/bc", "/a/b", "/a/b/c"]),
        ("GET https://ok.test/a/*", "/a/%2A", ["/a/b", "/a/b/c", "/a/"]),
        ("GET https://ok.test/a/**", "/a/%2A%2A", ["/a/b", "/a/b/c", "/a/x*"]),
        ("GET https://ok.test/*/x", "/%2A/x", ["/a/x", "/x", "/a/b/x"]),
        ("GET https://ok.test/a*b*c", "/a%2Ab%2Ac", ["/axbxc", "/abc", "/a"]),
    ] {
        let lesson = learn(&before, &[request(line)], Layer::Bay, now());
        assert!(lesson.toml.contains(&format!("\"{path}\"")), "{line}\n{}", lesson.toml);
        let after = policy(&lesson.toml);
        assert_eq!(outcome(&after, line), "allow", "{line}\n{}", lesson.toml);
        for other in others {
            assert_eq!(
                outcome(&after, &format!("GET https://ok.test{other}")),
                "deny",
                "{other}\n{}",
                lesson.toml
            );
        }
    }
    // If no pattern can match exactly the path, nothing is learned: a rule without a path would match all paths.
    let long = format!("GET https://ok.test/{}", "%25".repeat(2700));
    for line in ["GET https://ok.test/a/%EF%A3%BF", "GET https://ok.test/%EF%A3%BF/b", long.as_str()] {
        let odd = request(line);
        let lesson = learn(&before, std::slice::from_ref(&odd), Layer::Bay, now());
        let after = policy(&lesson.toml);
        assert_eq!(outcome(&after, "GET https://ok.test/other"), "deny", "{line}\n{}", lesson.toml);
        let learned = decide(&after, &odd, now()).outcome == bay_policy::Outcome::Allow;
        assert!(learned || lesson.not_learned[0].why.contains("for a person to write"), "{line}\n{lesson:?}");
    }
}

#[test]
fn no_rule_is_learned_that_an_earlier_layer_denies() {
    let policy = CompiledPolicy::new(Layers {
        host: Some(layer(Layer::Host, "")),
        project: None,
        bay: Some(layer(Layer::Bay, "")),
    });
    let lesson = learn(&policy, &[request("GET https://ok.test/")], Layer::Bay, now());
    assert!(lesson.rules.is_empty());
    assert!(lesson.not_learned[0].why.contains("host layer"), "{lesson:?}");
}

#[test]
fn an_approval_becomes_a_grant_for_that_request_alone() {
    use bay_policy::rule::Origin;
    let line = "POST https://ok.test/pay?amount=5";
    let origin = Origin { layer: Layer::Bay, file: "approval".to_owned(), line: 0 };
    let expires = "2026-11-16T12:10:00Z".parse().unwrap();
    let grant = learn::grant_for(&request(line), "a1", origin, expires).unwrap();
    let mut bay = layer(Layer::Bay, "[[rule]]\noutcome = \"ask\"\nhost = \"ok.test\"\nmethod = \"*\"");
    bay.grants.push(grant);
    let policy = CompiledPolicy::new(Layers { bay: Some(bay), ..Layers::default() });
    assert_eq!(outcome(&policy, line), "allow");
    for other in [
        "POST https://ok.test/pay?amount=500",
        "POST https://ok.test/pay",
        "POST https://ok.test/pay?amount=5&amount=500",
        "POST https://ok.test/pay?amount=5&to=mallory",
        "POST https://ok.test/pay?to=mallory&amount=5",
        "PUT https://ok.test/pay?amount=5",
        "POST https://ok.test/pay/x?amount=5",
    ] {
        assert_eq!(outcome(&policy, other), "ask", "{other}");
    }
    assert_eq!(decide(&policy, &request(line), expires).outcome.to_string(), "ask");
    // A bay that puts wildcards into its request gets no wider permission.
    let origin = || Origin { layer: Layer::Bay, file: "approval".to_owned(), line: 0 };
    for wide in ["POST https://ok.test/pay?a=1&a=1", "POST https://ok.test/pay?a=*"] {
        assert!(learn::grant_for(&request(wide), "a1", origin(), expires).is_none(), "{wide}");
    }
    for (wide, others) in [
        ("POST https://ok.test/pay/inv_1*", ["/pay/inv_1", "/pay/inv_12"]),
        ("POST https://ok.test/*/x", ["/pay/x", "/x"]),
    ] {
        let grant = learn::grant_for(&request(wide), "a1", origin(), expires).unwrap();
        let mut bay = layer(Layer::Bay, "[[rule]]\noutcome = \"ask\"\nhost = \"ok.test\"\nmethod = \"*\"");
        bay.grants.push(grant);
        let policy = CompiledPolicy::new(Layers { bay: Some(bay), ..Layers::default() });
        assert_eq!(outcome(&policy, wide), "allow");
        for other in others {
            assert_eq!(outcome(&policy, &format!("POST https://ok.test{other}")), "ask", "{wide} {other}");
        }
    }
}
