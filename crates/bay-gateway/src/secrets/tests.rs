//! Which requests get a value, which are refused, and why.

use std::sync::Arc;

use bay_policy::CanonicalRequest;
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use secrecy::SecretString;

use super::*;

const SENTINEL: &str = "ghp_sentinelSENTINELsentinelSENTINEL0000";
const OTHER: &str = "sk-other-sentinel-0123456789";
const VALUE: &str = "ghp_canaryCANARYcanaryCANARYcanaryCANARY";

fn held(name: &str, sentinel: &str, uses: &[&str]) -> Held {
    let uses = uses.iter().map(|text| match Named::parse(text).unwrap() {
        Named::Place(one) => *one,
        Named::Rule { .. } => panic!("{text}"),
    });
    Held {
        name: name.to_owned(),
        incarnation: 1,
        uses: uses.collect(),
        sentinels: vec![sentinel.to_owned()],
        values: vec![Arc::new(SecretString::from(VALUE.to_owned()))],
        public: 0,
        weak: false,
        managed: true,
        literal_bodies: false,
        guesses: Arc::default(),
    }
}

fn secrets() -> Secrets {
    Secrets::new(vec![
        held(
            "TOKEN",
            SENTINEL,
            &[
                "GET,POST api.test/repos/** as bearer",
                "GET,POST api.test/repos/** as token",
                "git.test:8443 as basic",
                "user.test as basic-user",
                "key.test as header x-own-key",
                "query.test/maps/** as query key",
            ],
        ),
        held("OTHER", OTHER, &["other.test as bearer"]),
        Held::gone("GONE".to_owned(), vec!["npm_gonegonegonegonegone".to_owned()]),
    ])
}

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in lines {
        map.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
    }
    map
}

fn examine(line: &str, lines: &[(&str, &str)]) -> Result<Attachments, Misuse> {
    secrets().examine(&CanonicalRequest::from_line(line).unwrap(), &headers(lines))
}

fn basic(user: &str, password: &str) -> String {
    use base64::Engine;
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}")))
}

/// The headers and the target that are sent.
fn filled(line: &str, lines: &[(&str, &str)]) -> (HeaderMap, String) {
    let request = CanonicalRequest::from_line(line).unwrap();
    let mut map = headers(lines);
    let found = secrets().examine(&request, &map).unwrap();
    let value = || Arc::new(SecretString::from(VALUE.to_owned()));
    let values: Vec<_> = found.found.iter().map(|_| value()).collect();
    assert_eq!(values.len(), 1, "one place");
    let target = found.fill(&request, &mut map, &values).unwrap();
    (map, target.map_or_else(|| request.target(), |target| target.to_string()))
}

#[test]
fn a_value_goes_into_the_one_slot_and_nowhere_else() {
    let (sent, target) = filled(
        "GET https://api.test/repos/a",
        &[("authorization", &format!("Bearer {SENTINEL}")), ("x-a", "b")],
    );
    assert_eq!(sent["authorization"], format!("Bearer {VALUE}"));
    assert!(sent["authorization"].is_sensitive());
    assert_eq!((sent["x-a"].to_str().unwrap(), target.as_str()), ("b", "/repos/a"));
    let token = filled("POST https://api.test/repos/a", &[("authorization", &format!("token {SENTINEL}"))]).0;
    assert_eq!(token["authorization"], format!("token {VALUE}"));
    let alias = filled("GET https://api.test/repos/a", &[("authorization", "bearer __TOKEN__")]).0;
    assert_eq!(alias["authorization"], format!("bearer {VALUE}"), "the name stands for it too");
    let git = filled(
        "POST https://git.test:8443/x.git/git-upload-pack",
        &[("authorization", &basic("me", SENTINEL))],
    )
    .0;
    assert_eq!(git["authorization"], basic("me", VALUE));
    let user = filled("GET https://user.test/", &[("authorization", &basic(SENTINEL, ""))]).0;
    assert_eq!(user["authorization"], basic(VALUE, ""));
    let own = filled("GET https://key.test/", &[("x-own-key", SENTINEL)]).0;
    assert_eq!(own["x-own-key"], VALUE);
    let (_, target) = filled(&format!("GET https://query.test/maps/x?a=%2F&key={SENTINEL}&b=2"), &[]);
    assert_eq!(target, format!("/maps/x?a=%2F&key={VALUE}&b=2"));
}

#[test]
fn a_sentinel_in_another_place_or_for_another_host_is_refused() {
    use MisuseKind as K;
    let bearer = format!("Bearer {SENTINEL}");
    let bearer = bearer.as_str();
    let encoded: String = SENTINEL.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let basic_elsewhere = basic("me", SENTINEL);
    let two = basic(OTHER, SENTINEL);
    let within = format!("Bearer {SENTINEL}x");
    let agent = format!("curl/8 {SENTINEL}");
    let cookie = format!("session={SENTINEL}");
    let in_path = format!("GET https://api.test/repos/{SENTINEL}");
    let in_query = format!("GET https://api.test/repos/a?q={SENTINEL}");
    let hidden = format!("GET https://api.test/repos/a?q={encoded}");
    let twice = format!("GET https://query.test/maps/x?key={SENTINEL}&key=1");
    let divided = format!("GET https://query.test/maps/x?a=1;key={SENTINEL}");
    let other_name = format!("GET https://query.test/maps/x?token={SENTINEL}");
    let wrong_host_query = format!("GET https://evil.test/?key={SENTINEL}");
    for (line, lines, kind) in [
        ("GET https://evil.test/repos/a", vec![("authorization", bearer)], K::Host),
        ("GET https://api.test.evil.test/repos/a", vec![("authorization", bearer)], K::Host),
        ("GET https://api.test/gists", vec![("authorization", bearer)], K::Request),
        ("DELETE https://api.test/repos/a", vec![("authorization", bearer)], K::Request),
        ("GET https://api.test:8443/repos/a", vec![("authorization", bearer)], K::Request),
        ("GET http://api.test/repos/a", vec![("authorization", bearer)], K::Plain),
        ("GET https://api.test/repos/a", vec![("x-other", SENTINEL)], K::Slot),
        ("GET https://api.test/repos/a", vec![("authorization", SENTINEL)], K::Slot),
        ("GET https://api.test/repos/a", vec![("authorization", &basic_elsewhere)], K::Slot),
        ("GET https://api.test/repos/a", vec![("authorization", &within)], K::Slot),
        ("GET https://api.test/repos/a", vec![("authorization", bearer), ("authorization", bearer)], K::Slot),
        ("GET https://api.test/repos/a", vec![("user-agent", &agent)], K::Slot),
        ("GET https://api.test/repos/a", vec![("cookie", &cookie)], K::Slot),
        ("GET https://git.test:8443/x", vec![("authorization", &two)], K::Host),
        ("GET https://api.test/repos/a", vec![("x-other", "__TOKEN__")], K::Slot),
        (&in_path, vec![], K::Path),
        (&in_query, vec![], K::Query),
        (&hidden, vec![], K::Query),
        (&twice, vec![], K::Query),
        (&divided, vec![], K::Query),
        (&other_name, vec![], K::Query),
        (&wrong_host_query, vec![], K::Host),
        ("GET https://any.test/", vec![("authorization", "Bearer npm_gonegonegonegonegone")], K::Gone),
    ] {
        let misuse = examine(line, &lines).expect_err(line);
        assert_eq!(misuse.kind, kind, "{line} {lines:?}: {misuse}");
        let said = misuse.to_string();
        assert!(!said.contains(SENTINEL) && !said.contains(VALUE), "{said}");
    }
}

#[test]
fn on_a_managed_host_there_is_no_other_credential() {
    for lines in [
        vec![("authorization", "Bearer ghp_attackersOwnKey0000000000000000000000")],
        vec![("x-api-key", "own")],
        vec![("private-token", "own")],
        vec![("x-amz-security-token", "own")],
        vec![("x_api_key", "own")],
        vec![("x-auth-key", "own")],
        vec![("x-functions-key", "own")],
        vec![("ocp-apim-subscription-key", "own")],
        vec![("sec-websocket-protocol", "realtime, openai-insecure-api-key.sk-own")],
    ] {
        let misuse = examine("GET https://api.test/repos/a", &lines).unwrap_err();
        assert_eq!(misuse.kind, MisuseKind::OtherCredential, "{misuse}");
        // No secret is for this host, so credentials to it are not examined.
        assert_eq!(examine("GET https://free.test/", &lines).unwrap(), Attachments::default());
    }
    for line in [
        "GET https://api.test/repos/a?access_token=own",
        "GET https://api.test/gists?API_KEY=own",
        "GET https://key.test:9443/?x-amz-signature=own",
        "GET https://api.test/gists?jwt=own",
        "GET https://api.test/gists?key=own-and-as-long-as-a-key",
        "GET https://api.test/gists?access_token[]=own",
    ] {
        assert_eq!(examine(line, &[]).unwrap_err().kind, MisuseKind::OtherCredential, "{line}");
    }
    let both = [("authorization", format!("Bearer {SENTINEL}")), ("x-api-key", "own".to_owned())];
    let both: Vec<(&str, &str)> = both.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let misuse = examine("GET https://api.test/repos/a", &both).unwrap_err();
    assert_eq!(misuse.kind, MisuseKind::OtherCredential);
    for harmless in [
        vec![],
        vec![("x-csrf-token", "1")],
        vec![("authorization", "")],
        vec![("accept", "*/*")],
        vec![("idempotency-key", "00000000-1111-2222")],
        vec![("sec-websocket-protocol", "realtime")],
    ] {
        examine("GET https://api.test/repos/a?page=2&key=PROJ-1", &harmless).unwrap();
    }
    let mut left =
        headers(&[("cookie", "a=1"), ("range", "bytes=0-9"), ("accept-encoding", "gzip, br;q=1.0, deflate")]);
    secrets().prepare("api.test", &mut left);
    assert_eq!(left, headers(&[("accept-encoding", "gzip, deflate")]));
    let mut free = headers(&[("cookie", "a=1"), ("range", "bytes=0-9")]);
    secrets().prepare("free.test", &mut free);
    assert_eq!(free.len(), 2);
}

#[test]
fn a_sentinel_in_a_body_is_found_however_the_body_is_divided() {
    let all = Arc::new(secrets());
    let request = CanonicalRequest::from_line("POST https://api.test/repos/a").unwrap();
    let body = format!("{{\"text\":\"{SENTINEL}\"}}");
    for size in 1..body.len() {
        let mut watch = all.watch(&request, |_| {}).unwrap();
        let seen = body.as_bytes().chunks(size).find_map(|chunk| watch.see(chunk));
        assert_eq!(seen, Some(0), "in pieces of {size}");
    }
    let mut watch = all.watch(&request, |_| {}).unwrap();
    assert_eq!(watch.see(b"__TOKEN__ is a word of a text, and ghp_ a beginning"), None);
}

#[test]
fn a_rule_of_the_policy_says_where_a_secret_may_go_if_it_names_its_hosts() {
    let policy = |host: &str| {
        let text = format!(
            "[[rule]]\nid = \"forge\"\noutcome = \"allow\"\nhost = {host}\nmethod = [\"GET\"]\npath = \"/v1/**\"\n"
        );
        let layer =
            bay_policy::parse(bay_policy::Layer::Bay, "p", &text, &bay_policy::Places::default()).unwrap();
        bay_policy::CompiledPolicy::new(bay_policy::Layers { bay: Some(layer), ..Default::default() })
    };
    let named = Named::parse("rule:forge as bearer").unwrap();
    let uses = named.uses(&policy("\"a.test\""));
    assert_eq!(uses.len(), 1);
    let fits = |line: &str| uses[0].matches(&CanonicalRequest::from_line(line).unwrap());
    assert!(fits("GET https://a.test/v1/x"));
    assert!(
        !fits("POST https://a.test/v1/x")
            && !fits("GET https://a.test/v2")
            && !fits("GET http://a.test/v1/x")
    );
    assert!(named.uses(&policy("\"*.test\"")).is_empty(), "a secret is for hosts that somebody chose");
    assert!(named.uses(&policy("[\"a.test\", \"*\"]")).is_empty());
    assert!(Named::parse("rule:other as bearer").unwrap().uses(&policy("\"a.test\"")).is_empty());
}

#[test]
fn a_host_whose_answers_contain_guesses_is_closed_for_the_bay() {
    let secrets = secrets();
    let ask = |line: &str, lines: &[(&str, &str)]| {
        secrets
            .examine(&CanonicalRequest::from_line(line).unwrap(), &headers(lines))
            .map_err(|misuse| misuse.kind)
    };
    let attached = [("authorization", &*format!("Bearer {SENTINEL}"))];
    let patterns = secrets.patterns("api.test", &[]).unwrap().unwrap();
    let mut guesses = 0;
    while ask("GET https://api.test/repos/x", &attached).is_ok() {
        let mut guess = VALUE.as_bytes()[..VALUE.len() - 1].to_vec();
        patterns.scrub(&mut guess);
        guesses += 1;
        assert!(guesses < 20);
    }
    // With the secret and without it, at all of its hosts. Other hosts stay open.
    for line in ["GET https://api.test/repos/x", "GET https://api.test/any", "GET https://git.test:8443/x"] {
        assert_eq!(ask(line, &[]).map(drop), Err(MisuseKind::Guessed), "{line}");
    }
    assert!(ask("GET https://other.test/", &[]).is_ok());
    assert!(ask("GET https://free.test/", &[]).is_ok());
}
