//! Addresses and names that a bay must not reach: the host, its neighbours, the daemon's API.

use std::net::{IpAddr, UdpSocket};

use bay_tests::lab::{lab, lab_with_names};
use bay_tests::{Daemon, image, until};
use serde_json::Value;

use super::OPEN;

/// The port of the daemon's API on loopback.
pub(crate) fn api_port(daemon: &Daemon) -> u16 {
    until("the daemon to say where it listens", || {
        let log = daemon.log();
        let (_, after) = log.rsplit_once("127.0.0.1:")?;
        after.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()
    })
}

/// An address of this host that is not loopback. No packet is sent to find it.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback())
}

/// Sends each argument as a request to the proxy and prints the result. Through a tunnel, the request inside counts.
const PROXY: &str = r#"
import socket, sys
def ask(line, host):
    door = socket.create_connection(("10.0.2.1", 3128), timeout=20)
    door.sendall(("%s HTTP/1.1\r\nHost: %s\r\n\r\n" % (line, host)).encode())
    answer = door.recv(8000)
    if line.startswith("CONNECT") and b" 200" in answer.split(b"\r\n")[0]:
        door.sendall(("GET /v1/health HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % host).encode())
        answer = door.recv(8000)
    return answer.split(b"\r\n")[0].decode(errors="replace") or "closed"
for target in sys.argv[1:]:
    host = target.rsplit("@")[-1]
    for line in ("CONNECT " + target, "GET http://%s/v1/health" % target):
        try:
            print(ask(line, host), line)
        except ConnectionError:
            print("closed", line)
"#;

#[test]
fn net_metadata_a_rule_for_everything_reaches_no_special_address_by_any_path() {
    if !image::with_python() {
        return;
    }
    let mut names: Vec<(String, &str)> = [
        ("169.254.169.254", "metadata.test"),
        ("fd00:ec2::254", "metadata6.test"),
        ("100.100.100.200", "metadata-ali.test"),
        ("168.63.129.16", "metadata-az.test"),
        ("127.0.0.1", "loop.test"),
        ("::1", "loop6.test"),
        ("::ffff:127.0.0.1", "mapped.test"),
        ("64:ff9b::7f00:1", "nat64.test"),
        ("2002:7f00:1::", "sixtofour.test"),
        ("0.0.0.0", "zero.test"),
        ("10.0.0.1", "private.test"),
        ("100.64.0.1", "shared.test"),
        ("fe80::1", "link.test"),
        ("198.18.0.1", "pool.test"),
        ("224.0.0.1", "multicast.test"),
    ]
    .map(|(address, name)| (address.to_owned(), name))
    .into();
    names.extend(own_address().map(|own| (own.to_string(), "host.test")));
    let lab = lab_with_names(Daemon::setup().argument("--listen").argument("127.0.0.1:0"), &names);
    let api = api_port(&lab.daemon);
    lab.bay("b", OPEN);
    for (address, name) in &names {
        let (status, body) = lab.get("b", &format!("http://{name}:{api}/v1/health"));
        let told: Value =
            serde_json::from_str(&body).unwrap_or_else(|error| panic!("{name}: {error}: {body}"));
        assert_eq!(status, 403, "{name} leads to {address}: {told:#}");
        assert!(told["address"]["class"].is_string(), "{name}: {told:#}");
    }
    let mut literals: Vec<String> = [
        "169.254.169.254",
        "100.100.100.200",
        "168.63.129.16",
        "10.0.0.1",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a9fe:a9fe::1]",
        "192.0.2.1",
        "[2001:db8::1]",
    ]
    .map(str::to_owned)
    .into();
    literals.extend(own_address().map(|own| own.to_string()));
    for literal in &literals {
        let said = lab.python(
            "b",
            "import sys, urllib.request, urllib.error\n\
             try: print(urllib.request.urlopen(sys.argv[1], timeout=20).status)\n\
             except urllib.error.HTTPError as refused: print(refused.status)\n\
             except OSError as error: print(error)",
            &[&format!("http://{literal}:{api}/v1/health")],
        );
        let said = said.ok().text();
        let nowhere =
            said.trim() == "403" || said.contains("unreachable") || said.contains("Invalid argument");
        assert!(nowhere, "{literal}: {said}");
    }
    let hosts = [
        "127.0.0.1",
        "localhost",
        "localhost.",
        "LOCALHOST",
        "[::1]",
        "0.0.0.0",
        "0",
        "127.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "[::ffff:127.0.0.1]",
        "[::]",
        "10.0.2.1",
        "169.254.169.254",
        "loop.test",
        "mapped.test",
        "user@127.0.0.1",
        "loop.test:80@127.0.0.1",
        "127.0.0.1%00.loop.test",
        "foo.localhost",
    ];
    let mut targets: Vec<String> = hosts.iter().map(|host| format!("{host}:{api}")).collect();
    targets.extend(own_address().map(|own| format!("{own}:{api}")));
    targets.extend(
        ["loop.test:0", "loop.test:65536", "loop.test:", "unix:/run/bay.sock", "10.0.2.1:53"]
            .map(str::to_owned),
    );
    let args: Vec<&str> = targets.iter().map(String::as_str).collect();
    let said = lab.python("b", PROXY, &args).ok().text();
    assert_eq!(said.lines().count(), 2 * targets.len(), "{said}");
    for line in said.lines() {
        let refused = line.starts_with("HTTP/1.1 403") || line.starts_with("HTTP/1.1 400");
        assert!(refused || line.starts_with("closed"), "{line}");
    }
    // The daemon's own socket is not in the bay.
    let found =
        lab.daemon.sh("b", "find / -xdev -name bay.sock 2>/dev/null; grep -c bay.sock /proc/net/unix");
    assert_eq!(found.text().trim(), "0", "{found}");
}

/// Makes a handshake with the authority in `argv[1]`, and prints whether it accepts the certificate.
const TRUST: &str = r#"
import socket, ssl, sys
context = ssl.create_default_context(cadata=sys.argv[1])
try:
    with socket.create_connection(("origin.test", int(sys.argv[2])), timeout=20) as stream:
        context.wrap_socket(stream, server_hostname="origin.test")
    print("trusted")
except ssl.SSLCertVerificationError as error:
    print("not trusted")
"#;

#[test]
fn tls_ca_scope_a_bays_authority_is_its_own_and_its_key_is_nowhere_in_it() {
    if !image::with_python() {
        return;
    }
    let lab = lab();
    let origin = lab.echo_for(&["a", "b"]);
    let authority = |bay: &str| lab.daemon.sh(bay, "cat /.bay/ca.crt").ok().text();
    let port = origin.port().to_string();
    for (bay, of, said) in
        [("a", "a", "trusted"), ("b", "b", "trusted"), ("a", "b", "not trusted"), ("b", "a", "not trusted")]
    {
        assert_eq!(
            lab.python(bay, TRUST, &[&authority(of), &port]).ok().text().trim(),
            said,
            "{bay} with that of {of}"
        );
    }
    let keys = lab.daemon.sh("a", "grep -rl 'PRIVATE KE[Y]' /.bay /etc /root /run /tmp 2>/dev/null").text();
    assert!(keys.is_empty(), "{keys}");
    // On disk it is encrypted, with a key that is stored elsewhere.
    let homes = std::fs::read_dir(lab.daemon.data_dir.join("egress")).unwrap();
    let kept: Vec<Vec<u8>> =
        homes.map(|home| std::fs::read(home.unwrap().path().join("authority.age")).unwrap()).collect();
    assert_eq!(kept.len(), 2);
    assert!(kept.iter().all(|sealed| sealed.starts_with(b"age-encryption.org/v1")));
}
