//! Properties of every request and every policy.

use bay_policy::canonical::{CanonicalPath, CanonicalQuery};
use bay_policy::write::rule_to_toml;
use bay_policy::{
    CanonicalRequest, CompiledPolicy, Host, Layer, Layers, Outcome, Places, classify, decide, learn, parse,
};
use proptest::prelude::*;

use super::now;

/// Paths built of pieces that have confused servers.
fn odd_path() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("/".to_owned()),
        Just("..".to_owned()),
        Just(".".to_owned()),
        Just("%2e".to_owned()),
        Just("%2F".to_owned()),
        Just("%252f".to_owned()),
        Just("%5c".to_owned()),
        Just(";x".to_owned()),
        Just("%00".to_owned()),
        Just("%c0%af".to_owned()),
        Just("%EF%BC%8F".to_owned()),
        Just("%E2%80%A5".to_owned()),
        Just("%25".to_owned()),
        Just("ok".to_owned()),
        Just("OK".to_owned()),
        Just("secret".to_owned()),
        Just("%20".to_owned()),
        "[a-zA-Z0-9%.;/@*]{0,4}",
        any::<char>().prop_map(|char| format!("%{:02x}", u32::from(char) % 256)),
    ];
    proptest::collection::vec(piece, 0..8).prop_map(|pieces| format!("/{}", pieces.concat()))
}

fn rules() -> impl Strategy<Value = String> {
    let rule = (
        prop_oneof![Just("allow"), Just("ask"), Just("deny")],
        prop_oneof![
            Just("*"),
            Just("*.ok.test"),
            Just("www.ok.test"),
            Just("a.b.ok.test"),
            Just("192.0.2.0/24"),
            Just("10.0.0.1")
        ],
        prop_oneof![Just("/**"), Just("/ok/**"), Just("/ok"), Just("/*/x"), Just("/secret/*"), Just("/o*k")],
        prop_oneof![Just("\"*\""), Just("\"GET\""), Just("[\"GET\", \"POST\"]"), Just("\"WEBSOCKET\"")],
    );
    let rule = rule.prop_map(|(outcome, host, path, method)| {
        format!(
            "[[rule]]\noutcome = \"{outcome}\"\nhost = \"{host}\"\npath = \"{path}\"\nmethod = {method}\n"
        )
    });
    proptest::collection::vec(rule, 0..8).prop_map(|rules| rules.concat())
}

fn lines() -> impl Strategy<Value = String> {
    (
        prop_oneof![Just("GET"), Just("POST"), Just("DELETE")],
        prop_oneof![
            Just("www.ok.test"),
            Just("a.b.ok.test"),
            Just("ok.test"),
            Just("other.test"),
            Just("192.0.2.7"),
            Just("10.0.0.1"),
            Just("169.254.169.254")
        ],
        prop_oneof![
            proptest::sample::select(vec![
                "/",
                "/ok",
                "/ok/x",
                "/OK",
                "/secret/x",
                "/a/x",
                "/ok%2fx",
                "/secret%2fx",
                "/oak",
                "/ok/"
            ])
            .prop_map(str::to_owned),
            odd_path()
        ],
    )
        .prop_map(|(method, host, path)| format!("{method} https://{host}{path}"))
}

fn compiled(host: Option<&str>, bay: &str) -> CompiledPolicy {
    let read = |layer, text: &str| parse(layer, "p", text, &Places::default()).unwrap();
    CompiledPolicy::new(Layers {
        host: host.map(|text| read(Layer::Host, text)),
        project: None,
        bay: Some(read(Layer::Bay, bay)),
    })
}

/// A naive server. It decodes until nothing changes, treats backslashes as slashes, and resolves dot segments.
fn resolved_by_a_forgiving_server(path: &str) -> Vec<String> {
    let mut text = path.to_owned();
    for _ in 0..4 {
        let mut bytes = Vec::new();
        let raw = text.as_bytes();
        let mut at = 0;
        while at < raw.len() {
            let digits = text.get(at + 1..at + 3).filter(|_| raw[at] == b'%');
            match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
                Some(byte) => {
                    bytes.push(byte);
                    at += 3;
                }
                None => {
                    bytes.push(raw[at]);
                    at += 1;
                }
            }
        }
        text = String::from_utf8_lossy(&bytes).into_owned();
    }
    let mut segments: Vec<String> = Vec::new();
    for segment in text.replace('\\', "/").split('/') {
        match segment.split(';').next().unwrap() {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment.to_lowercase()),
        }
    }
    segments
}

proptest! {
    #[test]
    fn the_canonical_form_of_a_host_parses_to_itself(text in "\\PC{0,24}") {
        if let Ok(host) = Host::parse(&text) {
            prop_assert_eq!(Host::parse(&host.to_string()).unwrap(), host.clone());
            prop_assert!(host.to_string().is_ascii());
            let _ = host.warnings(["example.com"]);
        }
    }

    #[test]
    fn the_canonical_form_of_a_path_parses_to_itself(text in prop_oneof![odd_path(), "\\PC{0,24}"]) {
        if let Ok(path) = CanonicalPath::parse(&text) {
            let again = CanonicalPath::parse(path.as_str()).unwrap();
            prop_assert_eq!(&again, &path);
            prop_assert!(path.as_str().bytes().all(|byte| byte.is_ascii_graphic()));
        }
        if let Ok(query) = CanonicalQuery::parse(Some(&text)) {
            let again = CanonicalQuery::parse(query.as_str()).unwrap();
            prop_assert_eq!(again, query);
        }
    }

    #[test]
    fn a_request_written_as_a_line_parses_to_the_same_request(line in lines()) {
        if let Ok(request) = CanonicalRequest::from_line(&line) {
            prop_assert_eq!(CanonicalRequest::from_line(&request.to_string()).unwrap(), request);
        }
    }

    #[test]
    fn no_reading_of_an_allowed_path_leaves_the_directory(path in odd_path()) {
        let policy = compiled(None, "[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\npath = \"/ok/**\"");
        if let Ok(request) = CanonicalRequest::from_line(&format!("GET https://ok.test{path}"))
            && decide(&policy, &request, now()).outcome == Outcome::Allow
        {
            let sent = request.http().unwrap().path().as_str();
            let seen = resolved_by_a_forgiving_server(sent);
            prop_assert_eq!(seen.first().map(String::as_str), Some("ok"), "{}", sent);
        }
    }

    #[test]
    fn no_reading_of_an_allowed_path_reaches_a_denied_directory(path in odd_path()) {
        let policy = compiled(None, "[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\n[[rule]]\noutcome = \"deny\"\nhost = \"ok.test\"\npath = \"/secret/**\"");
        if let Ok(request) = CanonicalRequest::from_line(&format!("GET https://ok.test{path}"))
            && decide(&policy, &request, now()).outcome == Outcome::Allow
        {
            let sent = request.http().unwrap().path().as_str();
            let seen = resolved_by_a_forgiving_server(sent);
            prop_assert_ne!(seen.first().map(String::as_str), Some("secret"), "{}", sent);
        }
    }

    #[test]
    fn a_layer_never_widens(host in rules(), bay in rules(), line in lines()) {
        let Ok(request) = CanonicalRequest::from_line(&line) else { return Ok(()) };
        let alone = decide(&compiled(None, &host.clone()), &request, now()).outcome;
        let both = decide(&compiled(Some(&host), &bay), &request, now()).outcome;
        prop_assert!(both >= alone, "{} then {}", alone, both);
    }

    #[test]
    fn an_additional_deny_never_allows_more(text in rules(), line in lines()) {
        let Ok(request) = CanonicalRequest::from_line(&line) else { return Ok(()) };
        let before = decide(&compiled(None, &text), &request, now()).outcome;
        let after = format!("{text}[[rule]]\noutcome = \"deny\"\nhost = \"*.ok.test\"\npath = \"/ok/**\"\n");
        prop_assert!(decide(&compiled(None, &after), &request, now()).outcome >= before);
    }

    #[test]
    fn the_order_of_rules_makes_no_difference(text in rules(), line in lines()) {
        let Ok(request) = CanonicalRequest::from_line(&line) else { return Ok(()) };
        let mut tables: Vec<String> = text.split("[[rule]]").skip(1).map(|table| format!("[[rule]]{table}")).collect();
        tables.reverse();
        let forward = decide(&compiled(None, &text), &request, now()).outcome;
        prop_assert_eq!(decide(&compiled(None, &tables.concat()), &request, now()).outcome, forward);
    }

    #[test]
    fn a_pattern_matches_everything_that_it_covers(text in rules(), line in lines()) {
        let Ok(request) = CanonicalRequest::from_line(&line) else { return Ok(()) };
        let policy = compiled(None, &text);
        let rules: Vec<_> = policy.rules().collect();
        for wide in &rules {
            for narrow in &rules {
                for outcome in [Outcome::Allow, Outcome::Ask] {
                    let (by_narrow, by_wide) = (narrow.matcher.matches(&request, outcome), wide.matcher.matches(&request, outcome));
                    prop_assert!(!(wide.matcher.covers(&narrow.matcher) && by_narrow && !by_wide), "{:?}", narrow.matcher);
                    prop_assert!(!(by_narrow && by_wide && !wide.matcher.overlaps(&narrow.matcher)), "{:?}", narrow.matcher);
                }
                let (by_narrow, by_wide) = (narrow.matcher.matches(&request, Outcome::Deny), wide.matcher.matches(&request, Outcome::Deny));
                prop_assert!(!(wide.matcher.forbids_all_of(&narrow.matcher) && by_narrow && !by_wide));
            }
        }
    }

    #[test]
    fn learned_rules_allow_what_they_were_learned_from(lines in proptest::collection::vec(lines(), 1..20)) {
        let requests: Vec<_> = lines.iter().filter_map(|line| CanonicalRequest::from_line(line).ok()).collect();
        let lesson = learn(&compiled(None, ""), &requests, Layer::Bay, now());
        let policy = compiled(None, &lesson.toml);
        for request in &requests {
            if lesson.not_learned.iter().any(|not| not.request == request.to_string()) {
                prop_assert!(request.to_string().contains("://1"), "{}", request);
                continue;
            }
            prop_assert_eq!(decide(&policy, request, now()).outcome, Outcome::Allow, "{}\n{}", request, &lesson.toml);
        }
    }

    #[test]
    fn any_rule_survives_writing_and_parsing(text in rules()) {
        let policy = compiled(None, &text);
        let written: String = policy.rules().map(rule_to_toml).collect();
        let again = compiled(None, &written);
        for (before, after) in policy.rules().zip(again.rules()) {
            prop_assert_eq!(&before.matcher, &after.matcher);
        }
    }

    #[test]
    fn any_text_is_a_policy_or_has_problems_with_line_numbers(text in "\\PC{0,200}") {
        if let Err(problems) = parse(Layer::Bay, "p", &text, &Places::default()) {
            prop_assert!(problems.0.iter().all(|problem| problem.line >= 1 && problem.column >= 1));
        }
    }

    #[test]
    fn an_embedded_address_is_never_public(bits in any::<u32>()) {
        let inner = std::net::Ipv4Addr::from(bits);
        for address in [inner.to_ipv6_mapped(), inner.to_ipv6_compatible()] {
            prop_assert_ne!(classify(address.into()), bay_policy::AddressClass::Public);
        }
    }
}
