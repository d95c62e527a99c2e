//! Addresses (NET-METADATA, NET-LAN, NET-DNS-REBIND, NET-6TO4/NAT64/MAPPED).

use std::net::IpAddr;

use bay_policy::{AddressClass, check_address, classify};

use super::{decided, outcome, policy, request};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn every_address_has_its_class() {
    use AddressClass::*;
    for (text, class) in [
        ("169.254.169.254", Metadata),
        ("fd00:ec2::254", Metadata),
        ("100.100.100.200", Metadata),
        ("168.63.129.16", Metadata),
        ("169.254.170.2", Metadata),
        ("::ffff:169.254.169.254", Metadata),
        ("::169.254.169.254", Metadata),
        ("64:ff9b::a9fe:a9fe", Metadata),
        ("64:ff9b:1::a9fe:a9fe", Metadata),
        ("2002:a9fe:a9fe::1", Metadata),
        ("fe80::5efe:a9fe:a9fe", Metadata),
        ("127.0.0.1", Loopback),
        ("127.255.255.254", Loopback),
        ("::1", Loopback),
        ("0.0.0.0", Unspecified),
        ("::", Unspecified),
        ("0.1.2.3", Reserved),
        ("169.254.1.1", LinkLocal),
        ("fe80::1", LinkLocal),
        ("10.1.2.3", Private),
        ("172.16.0.1", Private),
        ("172.31.255.255", Private),
        ("192.168.1.1", Private),
        ("fc00::1", Private),
        ("fdff::1", Private),
        ("fec0::1", Private),
        ("100.64.0.1", Shared),
        ("100.127.255.255", Shared),
        ("224.0.0.1", Multicast),
        ("ff02::1", Multicast),
        ("255.255.255.255", Broadcast),
        ("240.0.0.1", Reserved),
        ("198.18.0.1", Reserved),
        ("192.0.0.1", Reserved),
        ("192.88.99.1", Reserved),
        ("2001:10::1", Reserved),
        ("100::1", Reserved),
        ("4000::1", Reserved),
        ("::ffff:127.0.0.1", Embedded),
        ("::ffff:192.0.2.1", Embedded),
        ("::ffff:0:127.0.0.1", Embedded),
        ("::127.0.0.1", Embedded),
        ("64:ff9b::7f00:1", Embedded),
        ("2002:7f00:1::", Embedded),
        ("2001:0:1:2:3:4:80ff:fffe", Embedded),
        ("2001:db8::200:5efe:7f00:1", Embedded),
        ("172.32.0.1", Public),
        ("100.128.0.1", Public),
        ("192.0.2.1", Public),
        ("2001:db8::1", Public),
        ("2600::1", Public),
        ("168.63.129.17", Public),
    ] {
        assert_eq!(classify(address(text)), class, "{text}");
    }
}

#[test]
fn wide_rules_match_no_special_address_or_name() {
    let policy = policy(
        "[[rule]]\noutcome = \"allow\"\nhost = [\"*\", \"0.0.0.0/0\", \"::/0\", \"*.internal\"]\nscheme = [\"http\", \"https\"]\n[[rule]]\noutcome = \"ask\"\nhost = [\"*\", \"0.0.0.0/0\", \"::/0\"]\nscheme = [\"http\", \"https\"]\nmethod = \"POST\"",
    );
    for line in [
        "GET http://169.254.169.254/latest/meta-data/",
        "POST http://169.254.169.254/latest/meta-data/",
        "GET http://[fd00:ec2::254]/",
        "GET http://100.100.100.200/",
        "GET http://metadata.google.internal/",
        "GET http://metadata/",
        "GET http://localhost/",
        "GET http://foo.localhost/",
        "GET http://printer.local/",
        "GET http://intranet/",
        "GET http://127.0.0.1/",
        "GET http://10.0.0.1/",
        "POST http://10.0.0.1/",
        "GET http://[::1]/",
        "GET http://[::ffff:127.0.0.1]/",
        "GET http://[::ffff:192.0.2.1]/",
        "GET http://[64:ff9b::7f00:1]/",
        "GET http://[fe80::1]/",
        "GET http://0.0.0.0/",
    ] {
        assert_eq!(outcome(&policy, line), "deny", "{line}");
    }
    assert_eq!(outcome(&policy, "GET http://192.0.2.1/"), "allow");
    assert_eq!(outcome(&policy, "GET https://[2001:db8::1]/"), "allow");
    // Wide rules do match names below a local name that the rule names.
    assert_eq!(outcome(&policy, "GET https://wiki.internal/"), "allow");
}

#[test]
fn a_rule_must_name_an_address_literal() {
    let names = policy("[[rule]]\noutcome = \"allow\"\nhost = \"*\"");
    assert_eq!(outcome(&names, "GET https://192.0.2.1/"), "deny");
    assert_eq!(outcome(&names, "GET https://[2001:db8::1]/"), "deny");
    let named = policy(
        "[[rule]]\noutcome = \"allow\"\nhost = [\"10.1.0.0/16\", \"127.0.0.1\", \"fd12::/16\"]\nscheme = [\"http\", \"https\"]",
    );
    for line in ["GET http://10.1.2.3/", "GET http://127.0.0.1/", "GET http://[fd12::5]/"] {
        assert_eq!(outcome(&named, line), "allow", "{line}");
    }
    for line in [
        "GET http://10.2.0.1/",
        "GET http://127.0.0.2/",
        "GET http://[::ffff:10.1.2.3]/",
        "GET http://[::ffff:127.0.0.1]/",
    ] {
        assert_eq!(outcome(&named, line), "deny", "{line}");
    }
    // A rule must name each metadata service by its own address.
    let block = policy("[[rule]]\noutcome = \"allow\"\nhost = \"169.254.0.0/16\"\nscheme = \"http\"");
    assert_eq!(outcome(&block, "GET http://169.254.169.254/"), "deny");
    assert_eq!(outcome(&block, "GET http://169.254.1.1/"), "allow");
    let alone = policy("[[rule]]\noutcome = \"allow\"\nhost = \"169.254.169.254\"\nscheme = \"http\"");
    assert_eq!(outcome(&alone, "GET http://169.254.169.254/"), "allow");
}

#[test]
fn a_denied_network_is_denied_in_every_embedding() {
    let policy = policy(
        "[[rule]]\noutcome = \"allow\"\nhost = [\"192.0.2.0/24\", \"::/8\"]\n[[rule]]\noutcome = \"deny\"\nhost = [\"192.0.2.128/25\", \"192.0.2.7\"]",
    );
    assert_eq!(outcome(&policy, "GET https://192.0.2.1/"), "allow");
    for line in [
        "GET https://192.0.2.200/",
        "GET https://192.0.2.7/",
        "GET https://[::ffff:192.0.2.200]/",
        "GET https://[64:ff9b::c000:207]/",
        "tcp://192.0.2.200:22",
    ] {
        assert_eq!(outcome(&policy, line), "deny", "{line}");
    }
}

#[test]
fn a_name_may_resolve_to_public_addresses_only() {
    let policy = policy("[[rule]]\noutcome = \"allow\"\nhost = \"ok.test\"");
    let line = "GET https://ok.test/";
    let decision = decided(&policy, line);
    let check = |text: &str, own: &[IpAddr]| check_address(&decision, &request(line), address(text), own);
    assert!(check("192.0.2.1", &[]).is_ok());
    assert!(check("2001:db8::1", &[]).is_ok());
    for text in [
        "127.0.0.1",
        "169.254.169.254",
        "10.0.0.1",
        "::1",
        "fe80::1",
        "fd00:ec2::254",
        "::ffff:127.0.0.1",
        "64:ff9b::a00:1",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
    ] {
        let refusal = check(text, &[]).unwrap_err();
        assert!(refusal.to_string().contains("ok.test"), "{refusal}");
        assert!(refusal.next.contains("address ="), "{refusal}");
    }
    // The host's own address is special even if it is public.
    let refusal = check("192.0.2.1", &[address("192.0.2.1")]).unwrap_err();
    assert_eq!(refusal.class, AddressClass::Own);
}

#[test]
fn a_rule_can_name_the_addresses_that_its_host_resolves_to() {
    let policy = policy(
        "[[rule]]\noutcome = \"allow\"\nhost = \"db.ok.test\"\naddress = [\"10.1.0.0/16\", \"169.254.0.0/16\", \"0.0.0.0/0\"]",
    );
    let line = "GET https://db.ok.test/";
    let decision = decided(&policy, line);
    let check = |text: &str| check_address(&decision, &request(line), address(text), &[]);
    assert!(check("10.1.2.3").is_ok());
    assert!(check("192.0.2.9").is_ok());
    for text in ["10.2.0.1", "169.254.169.254", "127.0.0.1", "::ffff:10.1.2.3"] {
        assert!(check(text).is_err(), "{text}");
    }
}

#[test]
fn no_address_may_be_dialled_for_a_refused_request() {
    let policy = policy("");
    let line = "GET https://ok.test/";
    assert!(check_address(&decided(&policy, line), &request(line), address("192.0.2.1"), &[]).is_err());
    // A connection for a request that names an address may go only to that address.
    let policy = super::policy("[[rule]]\noutcome = \"allow\"\nhost = \"192.0.2.0/24\"");
    let line = "GET https://192.0.2.1/";
    let decision = decided(&policy, line);
    assert!(check_address(&decision, &request(line), address("192.0.2.1"), &[]).is_ok());
    assert!(check_address(&decision, &request(line), address("192.0.2.2"), &[]).is_err());
    assert!(check_address(&decision, &request(line), address("192.0.2.1"), &[address("192.0.2.1")]).is_err());
}
