//! Services of the host: the operator opens a port, and rules take it back.

use bay_policy::{
    Cause, CompiledPolicy, HOST_LOOPBACK, Host, Layer, Layers, Outcome, Route, check_address,
    could_permit_host, decide, explain, learn, lint, route,
};

use super::{decided, layer, now, outcome, policy, request};

/// A bay without rules that may use port 5432 of the host.
fn open(text: &str) -> CompiledPolicy {
    policy(text).reaching(&[5432])
}

fn routed(policy: &CompiledPolicy, host: &str, port: u16) -> Route {
    route(policy, &Host::parse(host).unwrap(), port, now())
}

const HTTP: &str = "POST http://host.bay.internal:5432/v1/chat";
const TCP: &str = "tcp://host.bay.internal:5432";

#[test]
fn an_open_port_needs_no_rule_in_any_layer() {
    let closed = "otherwise = \"deny\"\n";
    let layers = Layers {
        host: Some(layer(Layer::Host, closed)),
        project: Some(layer(Layer::Project, "otherwise = \"ask\"\n")),
        bay: Some(layer(Layer::Bay, closed)),
    };
    let all = CompiledPolicy::new(layers).reaching(&[5432]);
    for policy in [all, open(""), CompiledPolicy::default().reaching(&[5432])] {
        for line in [HTTP, TCP, "GET http://HOST.Bay.Internal.:5432/"] {
            let decision = decided(&policy, line);
            assert_eq!(decision.outcome, Outcome::Allow, "{line}");
            assert_eq!(decision.rule().map(|rule| rule.id.as_str()), Some("reach"), "{line}");
            assert!(!decision.credentials, "{line}");
            check_address(&decision, &request(line), HOST_LOOPBACK, &[HOST_LOOPBACK]).unwrap();
        }
        assert!(matches!(routed(&policy, "host.bay.internal", 5432), Route::HostItself { .. }));
        assert!(could_permit_host(&policy, &Host::parse("host.bay.internal").unwrap(), now()));
    }
}

#[test]
fn other_ports_names_addresses_and_keys_stay_closed() {
    let policy = open("");
    for line in [
        "GET http://host.bay.internal/",
        "GET http://host.bay.internal:5433/",
        "GET http://bay.internal:5432/",
        "GET http://a.host.bay.internal:5432/",
        "GET http://host.bay.internal.evil.test:5432/",
        "GET http://127.0.0.1:5432/",
        "GET http://[::1]:5432/",
        "GET http://[::ffff:127.0.0.1]:5432/",
        "GET http://localhost:5432/",
        "GET http://198.18.0.1:5432/",
        "tcp://host.bay.internal:22",
        "tcp://127.0.0.1:5432",
        "tls://host.bay.internal:443",
        "FETCH ssh://host.bay.internal:5432/team/app.git",
    ] {
        assert_eq!(outcome(&policy, line), "deny", "{line}");
    }
    assert!(matches!(routed(&policy, "host.bay.internal", 5433), Route::Refuse { .. }));
    assert!(matches!(routed(&policy, "127.0.0.1", 5432), Route::Refuse { .. }));
    assert!(matches!(routed(&policy, "localhost", 5432), Route::Refuse { .. }));
    let decision = decided(&policy, HTTP);
    for other in ["127.0.0.2", "::1", "::ffff:127.0.0.1", "10.0.0.1", "192.0.2.1", "169.254.169.254"] {
        let other = other.parse().unwrap();
        assert!(check_address(&decision, &request(HTTP), other, &[]).is_err(), "{other}");
    }
}

#[test]
fn no_rule_and_no_grant_opens_a_port() {
    let text = "[[rule]]\noutcome = \"allow\"\nhost = [\"host.bay.internal\", \"*.bay.internal\", \"*\"]\nport = \"*\"\nscheme = [\"http\", \"https\"]\nmethod = \"*\"\naddress = \"127.0.0.1\"\n\
                [[rule]]\noutcome = \"allow\"\nkind = \"tcp\"\nhost = \"host.bay.internal\"\nport = 22\naddress = \"127.0.0.1\"\n\
                [[grant]]\nid = \"g\"\nhost = \"host.bay.internal\"\nport = \"*\"\nscheme = \"http\"\nmethod = \"*\"\npath = \"/**\"\nexpires = 2030-01-01T00:00:00Z\n";
    for policy in [policy(text), open(text)] {
        for line in ["GET http://host.bay.internal/", "tcp://host.bay.internal:22"] {
            let decision = decided(&policy, line);
            assert_eq!(decision.outcome, Outcome::Deny, "{line}");
            assert!(matches!(decision.cause, Cause::NotReached { .. }), "{line}");
            let told = explain(&policy, &request(line), &decision, now());
            assert!(told.line().contains("--reach host:"), "{}", told.line());
        }
    }
    assert_eq!(outcome(&open(text), HTTP), "allow");
    let lesson = learn(&policy(""), &[request(HTTP)], Layer::Bay, now());
    assert!(lesson.rules.is_empty() && lesson.not_learned.len() == 1, "{lesson:?}");
}

#[test]
fn a_deny_of_any_layer_wins_and_an_ask_asks() {
    let deny =
        "otherwise = \"inherit\"\n[[rule]]\nid = \"no\"\noutcome = \"deny\"\nhost = \"host.bay.internal\"\n";
    for at in Layer::ALL {
        let mut layers = Layers::default();
        let denying =
            Some(layer(at, &deny.replace("inherit", if at == Layer::Host { "deny" } else { "inherit" })));
        match at {
            Layer::Host => layers.host = denying,
            Layer::Project => layers.project = denying,
            Layer::Bay => layers.bay = denying,
        }
        let policy = CompiledPolicy::new(layers).reaching(&[5432]);
        for line in [HTTP, TCP] {
            let decision = decided(&policy, line);
            assert_eq!(decision.outcome, Outcome::Deny, "{at}: {line}");
            assert_eq!(decision.rule().map(|rule| rule.id.as_str()), Some("no"));
        }
        assert!(matches!(routed(&policy, "host.bay.internal", 5432), Route::Refuse { .. }), "{at}");
    }
    let wide = open("[[rule]]\noutcome = \"deny\"\nhost = \"*\"\n");
    assert_eq!((outcome(&wide, HTTP), outcome(&wide, TCP)), ("deny".to_owned(), "deny".to_owned()));

    let ask = open(
        "[[rule]]\nid = \"sure\"\noutcome = \"ask\"\nhost = \"host.bay.internal\"\nport = 5432\nscheme = \"http\"\nmethod = \"POST\"\n",
    );
    let asked = decided(&ask, HTTP);
    assert_eq!(asked.outcome, Outcome::Ask);
    assert_eq!(outcome(&ask, "GET http://host.bay.internal:5432/"), "allow");
    let approved = asked.approved(&request(HTTP), "ask_1");
    check_address(&approved, &request(HTTP), HOST_LOOPBACK, &[HOST_LOOPBACK]).unwrap();
    assert!(check_address(&asked, &request(HTTP), HOST_LOOPBACK, &[]).is_err());
}

#[test]
fn a_rule_on_some_requests_holds_for_protocols_that_are_not_read() {
    let path = "host = \"host.bay.internal\"\nport = \"*\"\nscheme = \"http\"\npath = \"/admin/**\"\n";
    let deny = open(&format!("[[rule]]\noutcome = \"deny\"\n{path}"));
    assert_eq!(outcome(&deny, "GET http://host.bay.internal:5432/admin/x"), "deny");
    assert_eq!(outcome(&deny, HTTP), "allow");
    assert_eq!(outcome(&deny, TCP), "deny");
    assert!(matches!(routed(&deny, "host.bay.internal", 5432), Route::HostItself { .. }));
    let ask = open(&format!("[[rule]]\noutcome = \"ask\"\n{path}"));
    assert_eq!((outcome(&ask, HTTP), outcome(&ask, TCP)), ("allow".to_owned(), "ask".to_owned()));
    let other_port = open(&format!("[[rule]]\noutcome = \"deny\"\n{}", path.replace("\"*\"", "80")));
    assert_eq!(outcome(&other_port, TCP), "allow");
    let exception =
        "[[rule]]\noutcome = \"allow\"\nkind = \"tcp\"\nhost = \"host.bay.internal\"\nport = 5432\n";
    let both = open(&format!("[[rule]]\noutcome = \"ask\"\n{path}{exception}"));
    assert_eq!(outcome(&both, TCP), "allow");
}

#[test]
fn a_rule_for_the_hosts_loopback_gets_the_advice_to_open_one_port() {
    for host in ["127.0.0.1", "127.0.0.0/8", "::1", "localhost", "a.localhost"] {
        let policy = policy(&format!(
            "[[rule]]\nid = \"local\"\noutcome = \"allow\"\nhost = \"{host}\"\nport = 11434\nscheme = \"http\"\n"
        ));
        let findings = lint(&policy, now());
        let found = findings.iter().find(|finding| finding.next.contains("--reach host:PORT"));
        let found = found.unwrap_or_else(|| panic!("{host}: {findings:#?}"));
        assert!(found.next.contains("host.bay.internal") && found.rule.as_deref() == Some("local"));
    }
    let named = policy("[[rule]]\noutcome = \"allow\"\nhost = \"db.example.com\"\naddress = \"127.0.0.1\"\n");
    assert!(lint(&named, now()).iter().any(|finding| finding.next.contains("--reach")));
    let deny = policy("[[rule]]\noutcome = \"deny\"\nhost = \"127.0.0.1\"\n");
    assert!(!lint(&deny, now()).iter().any(|finding| finding.next.contains("--reach")));
}

#[test]
fn a_decision_without_the_port_is_never_approved_into_an_allow() {
    let policy = policy("otherwise = \"ask\"\n");
    let decision = decide(&policy, &request(HTTP), now());
    assert_eq!(decision.outcome, Outcome::Deny);
    assert_eq!(decision.approved(&request(HTTP), "ask_1").outcome, Outcome::Deny);
}
