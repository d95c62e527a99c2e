//! Packets that a bay's root crafts, and changes to its own network: it never reaches anything but the gateway.

use std::net::{TcpListener, UdpSocket};

use bay_tests::image;
use bay_tests::lab::{lab, lab_with};
use serde_json::Value;

/// Packets of many protocols, on sockets of every kind.
const PACKETS: &str = r#"
import socket, struct
INET, INET6, RAW, DGRAM = socket.AF_INET, socket.AF_INET6, socket.SOCK_RAW, socket.SOCK_DGRAM
V4, V6 = "192.0.2.1", "2001:db8::1"
def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff
# NTP, QUIC, DNS over QUIC, STUN, multicast DNS, WireGuard, and a name server of somebody else.
for port in (123, 443, 853, 3478, 5353, 51820, 53):
    socket.socket(INET, DGRAM).sendto(b"x" * 1200, (V4, port))
    socket.socket(INET6, DGRAM).sendto(b"x" * 1200, (V6, port))
echo = struct.pack("!BBHHH", 8, 0, 0, 7, 1) + b"tunnelled" + b"\0"
echo = echo[:2] + struct.pack("!H", checksum(echo)) + echo[4:]
socket.socket(INET, RAW, socket.IPPROTO_ICMP).sendto(echo, (V4, 0))
socket.socket(INET6, RAW, socket.IPPROTO_ICMPV6).sendto(b"\x80\0\0\0\0\x07\0\x01data", (V6, 0))
# SCTP, GRE, ESP, a packet in a packet (4 and 41: 6to4), OSPF, and numbers nobody has.
for protocol in (132, 47, 50, 4, 41, 89, 253, 254):
    socket.socket(INET, RAW, protocol).sendto(b"\0" * 64, (V4, 0))
def packet(source, target, protocol, payload, fragment=0):
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 77, fragment, 64, protocol, 0,
        socket.inet_aton(source), socket.inet_aton(target))
    return head + payload
raw = socket.socket(INET, RAW, socket.IPPROTO_RAW)
def syn(source, port):
    body = struct.pack("!HHIIBBHHH", 4444, port, 1, 0, 0x50, 2, 1024, 0, 0)
    whole = socket.inet_aton(source) + socket.inet_aton(V4) + struct.pack("!HH", 6, len(body)) + body
    return body[:16] + struct.pack("!H", checksum(whole)) + body[18:]
# Sources that are not the bay's: somebody, the gateway, loopback, everybody.
for source in ("203.0.113.9", "10.0.2.1", "127.0.0.1", "255.255.255.255", "0.0.0.0"):
    try:
        raw.sendto(packet(source, V4, 6, syn(source, 4321)), (V4, 0))
    except OSError:
        pass
# A datagram in two pieces, and a piece whose other half never comes.
datagram = struct.pack("!HHHH", 5000, 9999, 24, 0) + b"y" * 16
raw.sendto(packet("10.0.2.2", V4, 17, datagram[:16], 0x2000), (V4, 0))
raw.sendto(packet("10.0.2.2", V4, 17, datagram[16:], 2), (V4, 0))
raw.sendto(packet("10.0.2.2", V4, 17, datagram[:16], 0x2000 | 100), (V4, 0))
# Frames: another sender, everybody as receiver, a VLAN, and an answer that nobody asked for.
frames = socket.socket(socket.AF_PACKET, RAW)
frames.bind(("eth0", 0))
me, all = bytes.fromhex("02deadbeef01"), b"\xff" * 6
frames.send(all + me + b"\x08\x00" + packet("203.0.113.9", V4, 6, syn("203.0.113.9", 4321)))
frames.send(all + me + b"\x81\0\0\x05\x08\0" + packet("10.0.2.2", V4, 6, syn("10.0.2.2", 4321)))
arp = struct.pack("!HHBBH6s4s6s4s", 1, 0x800, 6, 4, 2, me, socket.inet_aton("10.0.2.1"), all, socket.inet_aton("10.0.2.2"))
frames.send(all + me + b"\x08\x06" + arp)
print("sent")
"#;

#[test]
fn net_raw_packets_of_any_protocol_and_source_are_dropped_and_counted() {
    if !image::with_python() {
        return;
    }
    let lab = lab();
    let origin = lab.echo_for(&["b"]);
    assert_eq!(lab.python("b", PACKETS, &[]).ok().text().trim(), "sent");
    let state = lab.daemon.rest("GET", "/v1/bays/b/egress", &Value::Null).json();
    let dropped = |what: &str| state["dropped"][what].as_u64().unwrap();
    // The fragments are one datagram. No kernel knows protocols 253 and 254, and most do not know the others.
    assert!(dropped("udp") >= 15 && dropped("icmp") >= 2 && dropped("other") >= 2, "{state}");
    assert!(origin.seen.lines().is_empty());
    let strange = |body: &Value| body["port"] == 4321;
    assert!(!lab.record("b", "egress.refused").iter().any(strange), "a false source has no connection");
    assert_eq!(lab.get("b", &origin.url("https", "/after")).0, 200, "the bay's own way is unharmed");
}

/// Claims to be a router, offers addresses, and denies the neighbour's.
const ROUTER: &str = r#"
import socket, struct
raw = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 255)
raw.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
prefix = struct.pack("!BBBBIII", 3, 4, 64, 0xc0, 86400, 86400, 0) + socket.inet_pton(socket.AF_INET6, "2001:db8:bad::")
advert = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 9000, 0, 0) + prefix + struct.pack("!BBHI", 5, 1, 0, 1280)
redirect = struct.pack("!BBHI", 137, 0, 0, 0) + socket.inet_pton(socket.AF_INET6, "fe80::bad") * 2
for target in ("ff02::1", "fd00:ba::1"):
    for message in (advert, redirect):
        raw.sendto(message, (target, 0, 0, socket.if_nametoindex("eth0")))
print("sent")
"#;

/// Every port on the gateway's side, tried with a request for the daemon's API.
const DOORS: &str = r#"
import socket, sys
ports = [1, 22, 25, 53, 80, 111, 443, 2375, 3128, 5432, 6379, 8080, 65535, int(sys.argv[1])]
link = socket.if_nametoindex("eth0")
for host, scope in (("10.0.2.1", 0), ("fd00:ba::1", 0), ("fe80::ff:fe00:1", link)):
    for port in ports:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        door = socket.socket(family)
        door.settimeout(10)
        answer = b""
        try:
            door.connect((host, port, 0, scope) if ":" in host else (host, port))
            door.sendall(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            while len(answer) < 4000:
                more = door.recv(4000)
                if not more:
                    break
                answer += more
        except OSError as error:
            answer = answer or str(error).encode()
        print(host, port, answer.split(b"\r\n")[0].decode(errors="replace") or "closed")
"#;

#[test]
fn net_ipv6_and_net_lan_the_gateways_addresses_have_two_ports_and_ignore_router_advertisements() {
    if !image::with_python() {
        return;
    }
    let lab = lab_with(bay_tests::Daemon::setup().argument("--listen").argument("127.0.0.1:0"));
    let origin = lab.echo_for(&["b"]);
    assert_eq!(lab.python("b", ROUTER, &[]).ok().text().trim(), "sent");
    let api = super::addresses::api_port(&lab.daemon);
    let said = lab.python("b", DOORS, &[&api.to_string()]).ok().text();
    assert_eq!(said.lines().count(), 42, "{said}");
    for line in said.lines() {
        assert!(!line.contains(" 200"), "{line}");
        let proxy = line.contains(" 3128 ") && !line.starts_with("fe80");
        let refused = line.ends_with("closed")
            || line.contains("HTTP/1.1 403")
            || line.contains("refused")
            || line.contains("reset")
            || line.contains("timed out");
        assert!(refused || (proxy && line.contains("HTTP/1.1 400")), "{line}");
    }
    // The gateway's link address is static, so that a full neighbour table cannot displace it.
    let known = lab.daemon.sh("b", "ip neigh show dev eth0").ok().text().to_lowercase();
    for gateway in ["10.0.2.1 ", "fd00:ba::1 "] {
        let line = known.lines().find(|line| line.starts_with(gateway));
        assert!(line.is_some_and(|line| line.contains("permanent")), "{known}");
    }
    let six = lab.daemon.sh("b", "nslookup origin.test fd00:ba::1 && ip -6 addr show eth0").ok().text();
    assert!(!six.contains("db8:bad"), "{six}");
    assert_eq!(lab.get("b", &origin.url("https", "/after")).0, 200);
}

/// Changes that root can make to the links, addresses, routes and rules of its own namespace.
const DOINGS: &[&str] = &[
    "ip addr add 192.0.2.77/24 dev eth0; ip route replace default via 10.0.2.1 src 192.0.2.77",
    "ip addr add 2001:db8::77/64 dev eth0; ip -6 route replace default via fd00:ba::1 src 2001:db8::77",
    "ip route flush table main; ip route add default dev eth0",
    "ip -6 route flush table main; ip -6 route add default dev eth0",
    "ip rule add from all lookup 100; ip route add default dev eth0 table 100",
    "echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet; ip route add 127.9.9.9 dev eth0",
    "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding",
    "ip link set eth0 promisc on; ip link set eth0 mtu 600",
    "ip link add v0 type veth peer name v1; ip link set v0 up; ip link set v1 up; ip addr add 198.51.100.1/24 dev v0",
    "ip link add link eth0 name m0 type macvlan; ip link set m0 up; ip addr add 10.0.2.9/24 dev m0",
    "ip link set eth0 down; ip link set eth0 address 02:de:ad:be:ef:01; ip link set eth0 up; ip route add default via 10.0.2.1",
    "ip link set eth0 netns 1",
    "mkdir -p /dev/net; mknod /dev/net/tun c 10 200; tunctl -t tun0",
    "ip neigh replace 10.0.2.1 lladdr ff:ff:ff:ff:ff:ff dev eth0 nud permanent",
    "ip link del eth0",
];

/// Tries to reach a server that listens on all addresses of the host.
const REACH: &str = r#"
import socket, sys
for host in sys.argv[2:]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for source in (None, "192.0.2.77"):
        door = socket.socket(family)
        door.settimeout(0.3)
        try:
            if source and family == socket.AF_INET:
                door.bind((source, 0))
            door.connect((host, int(sys.argv[1])))
            door.sendall(b"GET / HTTP/1.1\r\nHost: canary\r\n\r\n")
            door.recv(100)
        except OSError:
            pass
print("tried")
"#;

#[test]
fn net_nft_flush_root_reaches_only_its_gateway_whatever_it_does_to_its_network() {
    if !image::with_python() {
        return;
    }
    let lab = lab();
    let origin = lab.echo_for(&["b", "other"]);
    // It would notice any connection.
    let canary = TcpListener::bind("0.0.0.0:0").unwrap();
    canary.set_nonblocking(true).unwrap();
    let port = canary.local_addr().unwrap().port().to_string();
    let mut hosts =
        vec!["127.9.9.9".to_owned(), "10.0.2.2".to_owned(), "10.0.2.9".to_owned(), "::1".to_owned()];
    // Sends no packet: it only asks the kernel which source address would be used.
    let own = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    hosts.extend(own.ok().map(|own| own.ip().to_string()));
    for doing in DOINGS {
        // A kernel or busybox may refuse some of them.
        let _done = lab.daemon.sh("b", doing);
        let mut args = vec![port.as_str()];
        args.extend(hosts.iter().map(String::as_str));
        assert_eq!(lab.python("b", REACH, &args).ok().text().trim(), "tried", "{doing}");
        let reached = canary.accept();
        assert!(reached.is_err(), "{doing}: {reached:?}");
    }
    assert!(origin.seen.lines().is_empty());
    assert_eq!(lab.get("other", &origin.url("https", "/other")).0, 200, "the other bay is unharmed");
    let _stopped = lab.daemon.bay(&["stop", "b"]).ok();
    let _started = lab.daemon.bay(&["start", "b"]).ok();
    assert_eq!(lab.get("b", &origin.url("https", "/again")).0, 200, "a start makes the network anew");
}
