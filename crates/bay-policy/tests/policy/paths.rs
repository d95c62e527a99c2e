//! Paths (HTTP-PATH): every server reads a path the same way, or it is refused, or each reading must be allowed.

use bay_policy::canonical::{CanonicalPath, CanonicalQuery, RefusalCode};

use super::{outcome, policy, request};

fn path(text: &str) -> String {
    CanonicalPath::parse(text).unwrap_or_else(|refusal| panic!("{text}: {refusal}")).as_str().to_owned()
}

fn refused(text: &str) -> RefusalCode {
    match CanonicalPath::parse(text) {
        Ok(path) => panic!("{text:?} became {path}"),
        Err(refusal) => refusal.code,
    }
}

#[test]
fn all_spellings_of_a_path_have_one_canonical_form() {
    assert_eq!(path("/%7Euser/%61%62c"), "/~user/abc");
    assert_eq!(path("/a%2fb"), "/a%2Fb");
    assert_eq!(path("/caf%c3%a9"), "/caf%C3%A9");
    assert_eq!(path("/a|b^c{d}\"<>`"), "/a%7Cb%5Ec%7Bd%7D%22%3C%3E%60");
    assert_eq!(path("/@scope%2fname"), "/@scope%2Fname");
    assert_eq!(path("/100%25"), "/100%25");
    assert_eq!(path("/What%3F"), "/What%3F");
    assert_eq!(path("/"), "/");
    assert_eq!(path("/a/"), "/a/");
    assert_eq!(path("/wiki/Example_Inc."), "/wiki/Example_Inc.");
}

#[test]
fn ambiguous_paths_are_refused_with_the_reason() {
    for (text, code) in [
        ("", RefusalCode::NotAbsolute),
        ("ok", RefusalCode::NotAbsolute),
        ("*", RefusalCode::NotAbsolute),
        ("/ok/../secret", RefusalCode::DotSegment),
        ("/ok/..", RefusalCode::DotSegment),
        ("/./ok", RefusalCode::DotSegment),
        ("/ok/%2e%2e/secret", RefusalCode::DotSegment),
        ("/ok/.%2E/secret", RefusalCode::DotSegment),
        ("/ok/%2e", RefusalCode::DotSegment),
        ("/ok/...", RefusalCode::DotSegment),
        ("/ok/..%20", RefusalCode::DotSegment),
        ("/ok%2f..%2fsecret", RefusalCode::DotSegment),
        ("/ok/..%2fsecret", RefusalCode::DotSegment),
        // Full-width, one dot leader, two dot leader.
        ("/ok/%EF%BC%8E%EF%BC%8E/secret", RefusalCode::DotSegment),
        ("/ok/%E2%80%A4%E2%80%A4/secret", RefusalCode::DotSegment),
        ("/ok/%E2%80%A5/secret", RefusalCode::DotSegment),
        ("/ok%EF%BC%8F..%EF%BC%8Fsecret", RefusalCode::DotSegment),
        ("//ok", RefusalCode::EmptySegment),
        ("/ok//secret", RefusalCode::EmptySegment),
        ("/ok%2f%2fsecret", RefusalCode::EmptySegment),
        ("/ok/%2fsecret", RefusalCode::EmptySegment),
        ("/ok%2f/secret", RefusalCode::EmptySegment),
        ("/ok;x/secret", RefusalCode::PathParameters),
        ("/ok/..;/secret", RefusalCode::PathParameters),
        ("/ok%3bx", RefusalCode::PathParameters),
        ("/ok\\..\\secret", RefusalCode::Backslash),
        ("/ok%5c..%5Csecret", RefusalCode::Backslash),
        ("/ok%00", RefusalCode::ControlCharacter),
        ("/ok\0", RefusalCode::ControlCharacter),
        ("/ok%0d%0aX:1", RefusalCode::ControlCharacter),
        ("/ok%7f", RefusalCode::ControlCharacter),
        ("/ok%c2%85", RefusalCode::ControlCharacter),
        ("/o k", RefusalCode::ControlCharacter),
        ("/ok%252e%252e", RefusalCode::DoubleEncoding),
        ("/ok%252fsecret", RefusalCode::DoubleEncoding),
        ("/ok%25%32%66", RefusalCode::DoubleEncoding),
        ("/ok%2525", RefusalCode::DoubleEncoding),
        ("/ok%c0%ae%c0%ae", RefusalCode::NotUtf8),
        ("/ok%c0%afsecret", RefusalCode::NotUtf8),
        ("/ok%e0%80%af", RefusalCode::NotUtf8),
        ("/ok%ff", RefusalCode::NotUtf8),
        ("/ok%ed%a0%80", RefusalCode::NotUtf8),
        ("/ok%", RefusalCode::BadPercentEncoding),
        ("/ok%2", RefusalCode::BadPercentEncoding),
        ("/ok%zz", RefusalCode::BadPercentEncoding),
        ("/ok%u002e", RefusalCode::BadPercentEncoding),
        ("/ok#x", RefusalCode::Fragment),
        ("/é", RefusalCode::NotAscii),
    ] {
        assert_eq!(refused(text), code, "{text}");
    }
    assert_eq!(refused(&format!("/{}", "a".repeat(9000))), RefusalCode::TooLong);
    assert_eq!(refused(&"/a".repeat(300)), RefusalCode::TooLong);
    assert_eq!(refused(&format!("/{}", "a%2F".repeat(300))), RefusalCode::TooLong);
}

#[test]
fn an_encoded_slash_needs_both_readings_to_be_allowed() {
    let narrow = policy("[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\npath = \"/ok/**\"");
    assert_eq!(outcome(&narrow, "GET https://ok.test/ok/a%2fb"), "allow");
    assert_eq!(outcome(&narrow, "GET https://ok.test/ok%2fb"), "deny");
    let one = policy("[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\npath = \"/*\"");
    assert_eq!(outcome(&one, "GET https://ok.test/@scope%2fname"), "deny");
    let both = policy("[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\npath = [\"/*\", \"/*/*\"]");
    assert_eq!(outcome(&both, "GET https://ok.test/@scope%2fname"), "allow");
    // Each reading may be allowed by another rule.
    let apart = policy(
        "[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\npath = \"/*\"\n[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\npath = \"/*/*\"",
    );
    assert_eq!(outcome(&apart, "GET https://ok.test/@scope%2fname"), "allow");
    // If a deny or an ask matches one reading, it applies.
    for restricting in ["deny", "ask"] {
        let policy = policy(&format!(
            "[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\n[[rule]]\noutcome = \"{restricting}\"\nhost = \"ok.test\"\npath = \"/secret/**\""
        ));
        assert_eq!(outcome(&policy, "GET https://ok.test/secret%2fx"), restricting);
        assert_eq!(outcome(&policy, "GET https://ok.test/public%2fx"), "allow");
    }
}

#[test]
fn a_deny_matches_every_spelling_that_forgiving_servers_accept() {
    let policy = policy(
        "[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\nmethod = \"*\"\n[[rule]]\noutcome = \"deny\"\nhost = \"ok.test\"\npath = [\"/secret\", \"/admin/**\", \"/keys-*\"]",
    );
    for path in [
        "/secret",
        "/SECRET",
        "/Secret/",
        "/secret.",
        "/secret%20",
        "/secret..%20",
        "/%73ecret",
        "/%EF%BD%93ecret",
        "/%C5%BFecret",
        "/admin",
        "/ADMIN/x",
        "/Admin./x",
        "/admin%2fx",
        "/admin%EF%BC%8Fx",
        "/KEYS-prod",
        "/keys-%E2%84%AA",
    ] {
        assert_eq!(outcome(&policy, &format!("GET https://ok.test{path}")), "deny", "{path}");
        assert_eq!(outcome(&policy, &format!("DELETE https://ok.test:443{path}?x=y")), "deny", "{path}");
    }
    for path in ["/secrets", "/administrator", "/public/secret", "/key", "/secret%2B"] {
        assert_eq!(outcome(&policy, &format!("GET https://ok.test{path}")), "allow", "{path}");
    }
}

#[test]
fn an_allow_matches_exactly() {
    let policy =
        policy("[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\npath = [\"/ok\", \"/data/*.json\"]");
    assert_eq!(outcome(&policy, "GET https://ok.test/ok"), "allow");
    assert_eq!(outcome(&policy, "GET https://ok.test/%6fk"), "allow");
    assert_eq!(outcome(&policy, "GET https://ok.test/data/a.json"), "allow");
    for path in [
        "/OK",
        "/ok/",
        "/ok.",
        "/okay",
        "/ok%20",
        "/data/.json/x",
        "/data/a.json.exe",
        "/data/a.JSON",
        "/data",
    ] {
        assert_eq!(outcome(&policy, &format!("GET https://ok.test{path}")), "deny", "{path}");
    }
}

#[test]
fn patterns_end_at_segments() {
    let policy = policy("[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"\npath = [\"/a/*/c\", \"/b/**\"]");
    for path in ["/a/x/c", "/b", "/b/", "/b/x", "/b/x/y/z/"] {
        assert_eq!(outcome(&policy, &format!("GET https://ok.test{path}")), "allow", "{path}");
    }
    for path in ["/a/c", "/a/x/y/c", "/bb", "/b.txt", "/", "/a/x/c/d"] {
        assert_eq!(outcome(&policy, &format!("GET https://ok.test{path}")), "deny", "{path}");
    }
}

#[test]
fn queries_have_one_canonical_form() {
    let query = |text: &str| CanonicalQuery::parse(Some(text)).map(|query| query.to_string());
    assert_eq!(query("a=%7e&b=%c3%a9&c").unwrap(), "?a=~&b=%C3%A9&c");
    assert_eq!(query("").unwrap(), "");
    assert_eq!(query("url=https%253A%252F%252Fexample.com").unwrap(), "?url=https%253A%252F%252Fexample.com");
    for text in ["a=%", "a=%zz", "a=%00", "a= b", "a=b#c", "a=é", "a=\r\nb"] {
        assert!(query(text).is_err(), "{text:?}");
    }
}

#[test]
fn a_query_name_that_occurs_twice_has_no_value_to_allow() {
    let fetch = policy(
        "[[rule]]\noutcome = \"allow\"\nhost = \"git.test\"\npath = \"/o/r.git/info/refs\"\nquery = { service = \"git-upload-pack\" }",
    );
    let url = "GET https://git.test/o/r.git/info/refs";
    assert_eq!(outcome(&fetch, &format!("{url}?service=git-upload-pack")), "allow");
    assert_eq!(outcome(&fetch, &format!("{url}?%73ervice=git-upload-pack&x=1")), "allow");
    for query in [
        "",
        "?service=git-receive-pack",
        "?service=git-upload-pack&service=git-receive-pack",
        "?service=git-receive-pack&service=git-upload-pack",
        "?service=git-upload-pack&Service=git-receive-pack",
        "?service=git-upload-pack;service=git-receive-pack",
        "?x=1;service=git-receive-pack&service=git-upload-pack",
        "?service=git-upload-pack%00",
        "?service",
        "?Service=git-upload-pack",
    ] {
        assert_ne!(outcome(&fetch, &format!("{url}{query}")), "allow", "{query}");
    }
    let push = policy(
        "[[rule]]\noutcome = \"allow\"\nhost = \"git.test\"\n[[rule]]\noutcome = \"deny\"\nhost = \"git.test\"\nquery = { service = \"git-receive-pack\" }",
    );
    for query in [
        "service=git-receive-pack",
        "a;service=git-receive-pack",
        "SERVICE=GIT-RECEIVE-PACK",
        "service=x&service=git-receive-pack",
        "service=git-receive-pack+",
    ] {
        assert_eq!(outcome(&push, &format!("{url}?{query}")), "deny", "{query}");
    }
    assert_eq!(outcome(&push, &format!("{url}?service=git-upload-pack")), "allow");
}

#[test]
fn the_path_that_was_decided_on_is_the_path_that_is_sent() {
    let request = request("GET https://OK.test.:443/%61%2fb?x=%7e");
    assert_eq!(request.to_string(), "GET https://ok.test/a%2Fb?x=~");
    assert_eq!((request.authority(), request.target()), ("ok.test".to_owned(), "/a%2Fb?x=~".to_owned()));
}
