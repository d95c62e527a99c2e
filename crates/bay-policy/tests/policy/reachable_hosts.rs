//! The names that may be looked up: every name that some permitted request needs. Others are refused if the hosts of
//! the rules alone show that no request to them could be permitted.

use bay_policy::{CanonicalRequest, CompiledPolicy, Host, Layer, Layers, Outcome, could_permit_host, decide};
use proptest::prelude::*;

use super::{layer, now, policy};

fn could(policy: &CompiledPolicy, host: &str) -> bool {
    could_permit_host(policy, &Host::parse(host).unwrap(), now())
}

#[test]
fn a_name_is_looked_up_if_a_grant_or_a_rule_allows_its_host_or_asks() {
    let text = r#"
        [[rule]]
        outcome = "allow"
        host = "docs.example.com"
        path = "/only/this"
        port = 8443
        [[rule]]
        outcome = "ask"
        kind = "tcp"
        host = "*.db.example.com"
        port = 5432
        [[rule]]
        outcome = "allow"
        host = "*.gone.example.com"
        [[rule]]
        outcome = "deny"
        host = "x.gone.example.com"
        [[rule]]
        outcome = "allow"
        host = "late.example.com"
        expires = 2026-01-01T00:00:00Z
        [[rule]]
        outcome = "deny"
        host = "docs.example.com"
        path = "/never"
        [[grant]]
        host = "granted.example.com"
        expires = 2030-01-01T00:00:00Z
        [[grant]]
        host = "over.example.com"
        expires = 2026-01-01T00:00:00Z
    "#;
    let alone = policy(text);
    for (host, wanted) in [
        ("docs.example.com", true),
        ("a.db.example.com", true),
        ("db.example.com", false),
        ("y.gone.example.com", true),
        ("x.gone.example.com", false),
        ("late.example.com", false),
        ("granted.example.com", true),
        ("over.example.com", false),
        ("other.example.com", false),
    ] {
        assert_eq!(could(&alone, host), wanted, "{host}");
    }
    let capped = CompiledPolicy::new(Layers {
        host: Some(layer(Layer::Host, "[[rule]]\noutcome = \"allow\"\nhost = \"docs.example.com\"\n")),
        bay: Some(layer(Layer::Bay, text)),
        ..Layers::default()
    });
    for (host, wanted) in
        [("docs.example.com", true), ("a.db.example.com", false), ("granted.example.com", false)]
    {
        assert_eq!(could(&capped, host), wanted, "{host}");
    }
    assert!(could(&policy("otherwise = \"ask\""), "any.example.com"));
    assert!(!could(&policy(""), "any.example.com"));
    assert!(!could(&CompiledPolicy::default(), "any.example.com"));
}

fn rules() -> impl Strategy<Value = String> {
    let rule = (
        prop_oneof![Just("allow"), Just("ask"), Just("deny")],
        prop_oneof![
            Just("*"),
            Just("*.ok.test"),
            Just("www.ok.test"),
            Just("192.0.2.0/24"),
            Just("10.0.0.1")
        ],
        prop_oneof![
            Just(""),
            Just("path = \"/ok/**\""),
            Just("method = \"*\""),
            Just("kind = \"tcp\"\nport = 5432"),
            Just("port = 443"),
            Just("expires = 2026-01-01T00:00:00Z"),
        ],
    );
    let rule = rule.prop_map(|(outcome, host, more)| {
        format!("[[rule]]\noutcome = \"{outcome}\"\nhost = \"{host}\"\n{more}\n")
    });
    let otherwise = prop_oneof![Just("deny"), Just("ask"), Just("inherit")];
    (otherwise, proptest::collection::vec(rule, 0..6))
        .prop_map(|(otherwise, rules)| format!("otherwise = \"{otherwise}\"\n{}", rules.concat()))
}

fn grants() -> impl Strategy<Value = String> {
    proptest::option::of(prop_oneof![Just("www.ok.test"), Just("other.test")]).prop_map(|host| {
        host.map(|host| format!("[[grant]]\nhost = \"{host}\"\nexpires = 2030-01-01T00:00:00Z\n"))
            .unwrap_or_default()
    })
}

proptest! {
    #[test]
    fn a_host_with_a_permitted_request_can_be_looked_up(
        host in proptest::option::of(rules()),
        bay in rules(),
        grants in grants(),
        to in prop_oneof![Just("www.ok.test"), Just("other.test"), Just("192.0.2.7"), Just("10.0.0.1")],
        line in prop_oneof![
            Just("GET https://HOST/"), Just("POST https://HOST/ok/x"), Just("tcp://HOST:5432"), Just("tls://HOST")
        ],
    ) {
        // The first layer cannot inherit.
        let host = host.map(|text| text.replace("\"inherit\"", "\"deny\""));
        let bay = if host.is_none() { bay.replace("\"inherit\"", "\"deny\"") } else { bay };
        let policy = CompiledPolicy::new(Layers {
            host: host.as_deref().map(|text| layer(Layer::Host, text)),
            project: None,
            bay: Some(layer(Layer::Bay, &format!("{bay}{grants}"))),
        });
        let Ok(request) = CanonicalRequest::from_line(&line.replace("HOST", to)) else { return Ok(()) };
        if decide(&policy, &request, now()).outcome != Outcome::Deny {
            prop_assert!(could_permit_host(&policy, request.host(), now()));
        }
    }
}
