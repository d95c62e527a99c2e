//! Names: one canonical form, or a refusal.

use bay_policy::canonical::{HostWarning, RefusalCode};
use bay_policy::{Host, Refusal};

fn canonical(text: &str) -> String {
    Host::parse(text).unwrap_or_else(|refusal| panic!("{text}: {refusal}")).to_string()
}

fn refused(text: &str) -> RefusalCode {
    match Host::parse(text) {
        Ok(host) => panic!("{text:?} became {host}"),
        Err(Refusal { code, .. }) => code,
    }
}

#[test]
fn all_spellings_of_a_name_have_one_canonical_form() {
    for text in [
        "example.com",
        "EXAMPLE.com",
        "eXaMpLe.CoM",
        "example.com.",
        "ｅxample.com",
        "example。com",
        "example．com",
        "example｡com",
        "ex\u{ad}ample.com",
        "ⓔxample.com",
    ] {
        assert_eq!(canonical(text), "example.com", "{text}");
    }
    assert_eq!(canonical("Bücher.Example"), "xn--bcher-kva.example");
    assert_eq!(canonical("bu\u{308}cher.example"), "xn--bcher-kva.example");
    assert_eq!(canonical("XN--BCHER-KVA.example"), "xn--bcher-kva.example");
    assert_eq!(canonical("_service.example.com"), "_service.example.com");
}

#[test]
fn names_that_cannot_be_looked_up_are_refused() {
    for text in [
        "example.com..",
        "..",
        ".",
        ".example.com",
        "exa..mple.com",
        "exa mple.com",
        "example.com\0",
        "example.com\r\n",
        "example.com\t",
        "user@example.com",
        "ex%61mple.com",
        "example.com/",
        "example.com?",
        "example.com#",
        "example.com\\evil.test",
        "[example.com]",
        "exa|mple.com",
        "exa<mple.com",
        "℀.example",
        "xn--",
        "xn--a",
        "xn--example-.com",
        "xn--zzzzzzzzzzzz-.com",
        "",
        "*.example.com",
        &"a".repeat(64),
        &format!("{}example.com", "a.".repeat(130)),
        &"x".repeat(5000),
    ] {
        let _ = refused(text);
    }
}

#[test]
fn numeric_hosts_are_addresses_in_one_notation_only() {
    assert_eq!(canonical("192.0.2.1"), "192.0.2.1");
    for text in [
        "127.1",
        "0x7f.0.0.1",
        "0x7f000001",
        "2130706433",
        "017700000001",
        "0177.0.0.1",
        "127.0.0.01",
        "127.0.0.1.",
        "1.2.3",
        "1.2.3.4.5",
        "256.1.1.1",
        "169.254.169.0xfe",
        "example.0x7f",
        "example.0x",
        "example.1",
        "１２７.0.0.1",
        "127。0。0。1",
        "①②⑦.0.0.1",
        "0",
        "4294967296",
    ] {
        assert_eq!(refused(text), RefusalCode::Ipv4Notation, "{text}");
    }
}

#[test]
fn ipv6_addresses_have_one_form_and_no_zone() {
    assert_eq!(canonical("[2001:DB8:0:0:0:0:0:1]"), "[2001:db8::1]");
    assert_eq!(canonical("2001:db8::1"), "[2001:db8::1]");
    assert_eq!(canonical("[::ffff:192.0.2.1]"), "[::ffff:192.0.2.1]");
    assert_eq!(refused("[fe80::1%eth0]"), RefusalCode::Ipv6Zone);
    assert_eq!(refused("[fe80::1%25eth0]"), RefusalCode::Ipv6Zone);
    for text in
        ["[::1", "::1]", "[]", "[::1]]", "[[::1]]", "[1::2::3]", "[v1.x]", "[::1]:443", "::127.0.0.01"]
    {
        let _ = refused(text);
    }
}

#[test]
fn names_that_look_like_others_are_flagged() {
    // Cyrillic а and е.
    let twin = Host::parse("ex\u{430}mple.com").unwrap();
    let warnings = twin.warnings(["example.com"]);
    assert!(warnings.contains(&HostWarning::LooksLike { name: "example.com".to_owned() }), "{warnings:?}");
    assert!(
        warnings.iter().any(|warning| matches!(warning, HostWarning::MixedScripts { .. })),
        "{warnings:?}"
    );
    // A label wholly in one foreign script that looks like ASCII.
    let whole = Host::parse("\u{430}\u{440}\u{440}\u{4cf}\u{435}.com").unwrap();
    assert!(whole.warnings([]).iter().any(|warning| matches!(warning, HostWarning::LooksLike { .. })));
    // Both names are in ASCII.
    let ascii = Host::parse("exarnple.com").unwrap();
    assert_eq!(ascii.warnings(["example.com"]), [HostWarning::LooksLike { name: "example.com".to_owned() }]);
    // Honest names get no warning.
    assert!(Host::parse("www.example.com").unwrap().warnings(["example.com", "www.example.com"]).is_empty());
    let honest = Host::parse("日本語.example").unwrap().warnings(["example.com"]);
    assert_eq!(honest, [HostWarning::Unicode { reads: "日本語.example".to_owned() }]);
}
