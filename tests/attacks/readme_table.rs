//! The list of attacks in `README.md` is complete, and its tests exist.

use std::fs;
use std::path::Path;

/// All attacks on a bay's egress, its record, its attribution, the daemon's doors, credentials, and what a person is
/// shown.
const ATTACKS: &[&str] = &[
    "NET-DNS-TUNNEL",
    "NET-DNS-DIRECT",
    "NET-DOH",
    "NET-DNS-REBIND",
    "NET-DNS-CASE0x20",
    "NET-DNS-TRAILDOT",
    "NET-DNS-IDN",
    "NET-IP-LITERAL",
    "NET-IPV6",
    "NET-6TO4",
    "NET-NAT64",
    "NET-MAPPED",
    "NET-METADATA",
    "NET-LAN",
    "NET-XSBX",
    "NET-CONNECT-PORT",
    "NET-HOST-REACH",
    "NET-FRONT-SNI",
    "NET-H2-AUTHORITY",
    "NET-QUIC",
    "NET-UDP-ANY",
    "NET-ICMP",
    "NET-RAW",
    "NET-NFT-FLUSH",
    "HTTP-SMUGGLE",
    "HTTP-PATH",
    "HTTP-OVERRIDE",
    "HTTP-GRAPHQL",
    "HTTP-GIT",
    "HTTP-UPGRADE-WS",
    "HTTP-REDIRECT-CRED",
    "HTTP-DECOMP-BOMB",
    "HTTP-SLOWLORIS",
    "HTTP-H2-RAPIDRESET",
    "HTTP-CONTINUATION",
    "HTTP-HPACK-BOMB",
    "HTTP-HEADERS",
    "TLS-CA-SCOPE",
    "TLS-UPSTREAM-VERIFY",
    "API-CSRF",
    "API-CORS",
    "API-REBIND",
    "API-TOKEN-SCOPE",
    "API-SSRF",
    "AUDIT-TRUNC",
    "AUDIT-EDIT",
    "AUDIT-REORDER",
    "AUDIT-FORK",
    "AUDIT-REPLACE-LAST",
    "AUDIT-FULL",
    "AUDIT-INJECT",
    "AUDIT-DROP",
    "ATTR-DAEMON",
    "ATTR-DOCKER",
    "ATTR-EXIT",
    "ATTR-CGMOVE",
    "ATTR-RESET",
    "EXEC-FORGED-END",
    "EXEC-REWRITTEN-OUTPUT",
    "EXEC-LEFTOVERS",
    "EXEC-MOVED",
    "EXEC-RULE-SERVICE",
    "GUEST-LIMITS",
    "GUEST-FROZEN",
    "RES-CONNTRACK",
    "RES-DNSFLOOD",
    "RES-DAEMON-WORK",
    "AUDIT-DNS-NAMES",
    "AUDIT-NOISE",
    "AUDIT-INSIDE",
    "CHECKPOINT-EVICT",
    "BTRFS-SYSFS",
    "BTRFS-IOCTL",
    "CRED-ENV",
    "CRED-WRONGHOST",
    "CRED-WRONGPATH",
    "CRED-WRONGMETHOD",
    "CRED-WRONGHEADER",
    "CRED-HTTP80",
    "CRED-ECHO-HDR",
    "CRED-ECHO-BODY",
    "CRED-ECHO-GZIP",
    "CRED-ECHO-BR",
    "CRED-ECHO-ZSTD",
    "CRED-ECHO-CHUNKSPLIT",
    "CRED-ECHO-RANGE",
    "CRED-ECHO-BASE64",
    "CRED-ECHO-HEX",
    "CRED-ECHO-UTF16",
    "CRED-ECHO-PCT",
    "CRED-ECHO-JSONESC",
    "CRED-ECHO-REVERSE",
    "CRED-ECHO-TRAILER",
    "CRED-ECHO-LOCATION",
    "CRED-ECHO-SETCOOKIE",
    "CRED-ECHO-HEAD",
    "CRED-ECHO-ETAG",
    "CRED-BODY-GIST",
    "CRED-MULTIPART",
    "CRED-URL-QUERY",
    "CRED-PATH",
    "CRED-UA",
    "CRED-CUSTOMHDR",
    "CRED-WS",
    "CRED-OWNKEY",
    "CRED-WEAK",
    "CRED-GUESS-LIST",
    "CRED-GUESS-SQL",
    "CRED-GUESS-PREFIX",
    "CRED-GUESS-TIMING",
    "CRED-OTHERBAY",
    "CRED-FORMER",
    "PG-REPLICATION",
    "PG-STARTUP",
    "RES-APPROVALFLOOD",
    "RES-WEBHOOK",
    "APPROVAL-SWITCH",
    "APPROVAL-SWITCH-PUSH",
    "APPROVAL-WIDEN",
    "APPROVAL-CARRY",
    "APPROVAL-UNRECORDED",
    "APPROVAL-HIDDEN",
    "APPROVAL-HEADER",
    "APPROVAL-ROW",
    "CRED-GUESS-LEAVE",
    "CRED-ECHO-TE",
    "CRED-ECHO-ERROR",
    "CRED-WS-EXTENSION",
    "GIT-PUSH-OPTIONS",
    "RES-HOSTDISK",
    "UI-OSC",
    "UI-OUTPUT",
    "UI-INVISIBLE",
    "UI-HTML",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

#[test]
fn every_attack_has_an_existing_test_or_a_reason_for_none() {
    let page = fs::read_to_string(root().join("tests/attacks/README.md")).unwrap();
    let mut rest: Vec<&str> = ATTACKS.to_vec();
    for line in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| id ")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [id, tests] = cells[..] else { panic!("not two cells: {line}") };
        let at = rest.iter().position(|attack| *attack == id);
        rest.remove(at.unwrap_or_else(|| panic!("{id} is twice in the table, or is no attack of the list")));
        let named: Vec<&str> =
            tests.split('`').skip(1).step_by(2).filter(|word| word.contains(".rs::")).collect();
        let reason = ["not yet: ", "no: "].iter().any(|begin| tests.starts_with(begin));
        assert!(!named.is_empty() || reason, "{id} has neither a test nor a reason");
        for test in named {
            let (file, function) = test.split_once("::").unwrap();
            let source =
                fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(source.contains(&format!("fn {function}(")), "{id}: {file} has no {function}");
        }
    }
    assert!(rest.is_empty(), "not in the table: {rest:?}");
}
