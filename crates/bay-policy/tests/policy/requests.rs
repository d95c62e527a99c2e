//! Whole requests: all names of a connection agree (NET-FRONT-SNI, NET-H2-AUTHORITY), and nothing names another
//! request.

use bay_policy::canonical::{Part, RefusalCode};
use bay_policy::{CanonicalRequest, Connection, RawRequest, Refusal, Scheme, canonicalise};

use super::{outcome, policy};

const PLAIN: RawRequest<'static> = RawRequest {
    connection: Connection { destination: "ok.test", port: 443, sni: Some("ok.test") },
    scheme: Scheme::Https,
    method: "GET",
    target: "/path",
    authorities: &["ok.test"],
    headers: &["accept", "User-Agent"],
    websocket: false,
};

fn refused(raw: &RawRequest<'_>) -> (Part, RefusalCode) {
    match canonicalise(raw) {
        Ok(request) => panic!("{raw:?} became {request}"),
        Err(Refusal { part, code, .. }) => (part, code),
    }
}

#[test]
fn all_spellings_of_a_host_count_as_one_name() {
    let connection = Connection { destination: "OK.test.", port: 443, sni: Some("ok.TEST") };
    let raw = RawRequest {
        connection,
        authorities: &["ok.test:443", "Ok.Test."],
        target: "https://OK.test/path",
        ..PLAIN
    };
    assert_eq!(canonicalise(&raw).unwrap(), canonicalise(&PLAIN).unwrap());
}

#[test]
fn all_names_of_a_connection_must_be_equal() {
    let sni = |sni| RawRequest { connection: Connection { sni, ..PLAIN.connection }, ..PLAIN };
    assert_eq!(refused(&sni(Some("evil.test"))), (Part::Names, RefusalCode::NamesDiffer));
    assert_eq!(refused(&sni(None)), (Part::Names, RefusalCode::NameMissing));
    assert_eq!(refused(&sni(Some(""))).1, RefusalCode::Empty);
    for authorities in [
        &["evil.test"][..],
        &["ok.test", "evil.test"],
        &["evil.test", "ok.test"],
        &["ok.test:8443"],
        &["ok.test:80"],
        &["sub.ok.test"],
        &["192.0.2.1"],
    ] {
        assert_eq!(
            refused(&RawRequest { authorities, ..PLAIN }),
            (Part::Names, RefusalCode::NamesDiffer),
            "{authorities:?}"
        );
    }
    assert_eq!(refused(&RawRequest { authorities: &[], ..PLAIN }), (Part::Names, RefusalCode::NameMissing));
    for authority in [
        "ok.test@evil.test",
        "user:pass@ok.test",
        "ok.test:",
        "ok.test:0",
        "ok.test:65536",
        "ok.test:+443",
        "ok.test:0443",
        "ok.test,evil.test",
        "ok.test/",
        "ok.test evil.test",
        "",
    ] {
        let _ = refused(&RawRequest { authorities: &[authority], ..PLAIN });
    }
}

#[test]
fn a_whole_url_as_target_must_name_the_host_of_the_connection() {
    for target in [
        "https://evil.test/path",
        "http://ok.test/path",
        "https://ok.test:8443/path",
        "https://ok.test@evil.test/path",
        "https://ok.test",
        "https://ok.test?x",
        "HTTPS://ok.test/path",
        "ftp://ok.test/path",
        "ok.test:443",
        "*",
        "",
    ] {
        let _ = refused(&RawRequest { target, ..PLAIN });
    }
}

#[test]
fn addresses_need_no_sni_and_must_still_agree() {
    let connection = Connection { destination: "192.0.2.1", port: 443, sni: None };
    let raw = RawRequest { connection, authorities: &["192.0.2.1"], ..PLAIN };
    assert!(canonicalise(&raw).is_ok());
    assert_eq!(refused(&RawRequest { authorities: &["ok.test"], ..raw }).1, RefusalCode::NamesDiffer);
    let named = Connection { sni: Some("ok.test"), ..connection };
    assert_eq!(refused(&RawRequest { connection: named, ..raw }).1, RefusalCode::NamesDiffer);
}

#[test]
fn methods_are_in_capitals_and_neither_trace_nor_connect() {
    for method in [
        "get",
        "Get",
        "GET ",
        " GET",
        "G\tET",
        "",
        "GET\r\nX: y",
        "GÉT",
        "CONNECT",
        "TRACE",
        "TRACK",
        &"A".repeat(40),
    ] {
        assert_eq!(refused(&RawRequest { method, ..PLAIN }).0, Part::Method, "{method}");
    }
    for method in ["GET", "PROPFIND", "M-SEARCH", "VERSION-CONTROL"] {
        assert!(canonicalise(&RawRequest { method, ..PLAIN }).is_ok(), "{method}");
    }
}

#[test]
fn headers_and_fields_that_name_another_request_are_refused() {
    for header in [
        "X-HTTP-Method-Override",
        "x-http-method",
        "X_Method_Override",
        "X-Original-URL",
        "x-rewrite-url",
        "X-Forwarded-Host",
        "X-Host",
        "Forwarded",
        "X-Forwarded-Uri",
        "X-Forwarded-Method",
        "X-Forwarded-Prefix",
        "X-Original-Method",
        "X-HTTP-Host-Override",
        "X-Override-URL",
        "Base-Url",
    ] {
        assert_eq!(
            refused(&RawRequest { headers: &["accept", header], ..PLAIN }),
            (Part::Header, RefusalCode::Override),
            "{header}"
        );
    }
    for header in ["", "x y", "x:", "x\0", "é", "x\n"] {
        assert_eq!(
            refused(&RawRequest { headers: &[header], ..PLAIN }),
            (Part::Header, RefusalCode::Invalid),
            "{header:?}"
        );
    }
    for query in [
        "_method=DELETE",
        "_METHOD=DELETE",
        "_method[]=DELETE",
        "_method%5B%5D=DELETE",
        "%5fmethod=DELETE",
        ".method=DELETE",
        "a=1;_method=DELETE",
        "X-HTTP-Method-Override=DELETE",
    ] {
        let target = &format!("/path?{query}");
        assert_eq!(refused(&RawRequest { target, ..PLAIN }), (Part::Query, RefusalCode::Override), "{query}");
    }
    assert!(canonicalise(&RawRequest { target: "/path?_method=GET", ..PLAIN }).is_ok());
    let many: Vec<&str> = vec!["accept"; 1000];
    assert_eq!(refused(&RawRequest { headers: &many, ..PLAIN }).1, RefusalCode::TooLong);
}

#[test]
fn passed_through_tls_needs_an_sni_that_is_the_looked_up_name() {
    let connection = PLAIN.connection;
    assert!(CanonicalRequest::passthrough(&connection).is_ok());
    for wrong in [
        Connection { sni: None, ..connection },
        Connection { sni: Some("evil.test"), ..connection },
        Connection { destination: "192.0.2.1", sni: None, ..connection },
        Connection { port: 0, ..connection },
    ] {
        assert!(CanonicalRequest::passthrough(&wrong).is_err(), "{wrong:?}");
    }
    assert!(CanonicalRequest::tcp("ok.test", 0).is_err());
}

#[test]
fn a_rule_without_ports_matches_the_default_port_only() {
    let policy = policy("[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"");
    assert_eq!(outcome(&policy, "GET https://ok.test/"), "allow");
    assert_eq!(outcome(&policy, "GET https://ok.test:443/"), "allow");
    for line in [
        "GET http://ok.test/",
        "GET https://ok.test:80/",
        "GET http://ok.test:443/",
        "GET https://ok.test:8443/",
        "tcp://ok.test:22",
        "tcp://ok.test:443",
        "tls://ok.test:443",
        "tcp://ok.test:6379",
    ] {
        assert_eq!(outcome(&policy, line), "deny", "{line}");
    }
    for line in ["GET https://ok.test:0/", "GET https://ok.test:65536/", "tcp://ok.test:0", "tcp://ok.test"] {
        assert_eq!(outcome(&policy, line), "refused", "{line}");
    }
}

#[test]
fn refusals_repeat_neither_credentials_nor_escape_sequences() {
    let refusal = canonicalise(&RawRequest { authorities: &["user:hunter2@ok.test"], ..PLAIN }).unwrap_err();
    assert!(!refusal.to_string().contains("hunter2"), "{refusal}");
    let refusal = canonicalise(&RawRequest { target: "/\x1b[31m\u{202e}x\\", ..PLAIN }).unwrap_err();
    assert!(!refusal.to_string().contains(['\x1b', '\u{202e}']), "{refusal}");
    let refusal = canonicalise(&RawRequest { target: "/?token=hunter2%zz", ..PLAIN }).unwrap_err();
    assert!(!refusal.to_string().contains("hunter2"), "{refusal}");
}

#[test]
fn a_websocket_handshake_has_its_own_method_that_no_request_can_send() {
    let handshake = RawRequest { websocket: true, ..PLAIN };
    let request = canonicalise(&handshake).unwrap();
    assert_eq!(request.to_string(), "WEBSOCKET https://ok.test/path");
    assert_eq!(request.http().unwrap().sent_method(), "GET");
    assert_eq!(CanonicalRequest::from_line(&request.to_string()).unwrap().to_string(), request.to_string());
    assert_ne!(request, canonicalise(&PLAIN).unwrap());
    let named = RawRequest { method: "WEBSOCKET", ..PLAIN };
    assert_eq!(refused(&named), (Part::Method, RefusalCode::MethodRefused));
    for method in ["POST", "WEBSOCKET", "HEAD"] {
        let raw = RawRequest { method, websocket: true, ..PLAIN };
        assert_eq!(refused(&raw), (Part::Method, RefusalCode::MethodRefused), "{method}");
    }
}
