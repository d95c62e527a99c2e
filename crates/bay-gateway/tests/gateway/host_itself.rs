//! Services of the host (HOST-REACH): one name, the ports that the operator opened, and nothing else.

use std::net::SocketAddr;
use std::sync::Arc;

use bay_gateway::Ending;
use bay_tests::origin::Seen;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use http::Response;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::lab::client::{ask, look_up, question, raw, send};
use crate::lab::origin::{self, text};
use crate::lab::{Entry, Lab, PATIENCE, quick};

const NAME: &str = "host.bay.internal";

/// Requests that were decided on, with whether they were allowed.
fn decided(lab: &Lab) -> Vec<(String, bool)> {
    let entries = lab.ledger.entries().into_iter();
    let decided = |entry| match entry {
        Entry::Decided { request, allowed, .. } => Some((request, allowed)),
        _ => None,
    };
    entries.filter_map(decided).collect()
}

fn dialled(lab: &Lab) -> Vec<SocketAddr> {
    lab.net.dialled.lock().unwrap().clone()
}

/// A lab whose host has a web server at every port. The lab's port is open to the bay.
async fn web() -> (Lab, Arc<Seen>) {
    let lab = Lab::with("", quick()).await;
    let (place, seen) = origin::serve(None, |_| async { Response::new(text("from the host")) }).await;
    // The name leads elsewhere for every resolver. That must make no difference.
    lab.net.lead(NAME, "127.0.0.1", place);
    lab.net.lead(NAME, "192.0.2.66", place);
    lab.set_reach(&[lab.port], "");
    (lab, seen)
}

#[tokio::test]
async fn each_http_request_to_the_host_is_decided_on_and_recorded() {
    let (mut lab, seen) = web().await;
    let mut client = lab.http(NAME).await;
    for path in ["/v1/models", "/v1/chat"] {
        let read = send(&mut client, lab.get(NAME, path)).await;
        assert_eq!((read.status, &read.body[..]), (200, &b"from the host"[..]));
    }
    let url = |path: &str| (format!("GET http://{}{path}", lab.authority(NAME)), true);
    assert_eq!(decided(&lab), [url("/v1/models"), url("/v1/chat")]);
    assert_eq!(seen.requests.lock().unwrap()[0].headers["host"], lab.authority(NAME));
    let loopback: SocketAddr = format!("127.0.0.1:{}", lab.port).parse().unwrap();
    assert!(dialled(&lab).iter().all(|dialled| *dialled == loopback), "{:?}", dialled(&lab));
    assert!(lab.net.resolved.lock().unwrap().is_empty(), "the name was looked up");
    lab.ledger.all_ended_once().await;
}

#[tokio::test]
async fn other_protocols_are_one_connection_whoever_speaks_first() {
    let lab = Lab::with("", quick()).await;
    let place = origin::accept(|mut stream| async move {
        let mut first = [0; 5];
        // A client that speaks first gets an echo; any other one gets a greeting.
        if timeout(quick().first_byte, stream.read_exact(&mut first)).await.is_err() {
            first = *b"hello";
        }
        stream.write_all(&first).await.ok();
        stream.shutdown().await.ok();
    })
    .await;
    lab.net.lead(NAME, "127.0.0.1", place);
    lab.set_reach(&[lab.port], "");
    let mut lab = lab;
    let door = lab.open(NAME).await;
    for bytes in [b"\0\0\0\x08\x04", b"\x16\x03\x01\0\x05", b"PING\n", b"SSH-2"] {
        assert_eq!(raw(door, bytes).await.as_bytes(), String::from_utf8_lossy(bytes).as_bytes());
    }
    assert_eq!(raw(door, b"").await, "hello");
    let tcp = (format!("tcp://{}", lab.authority(NAME)), true);
    assert_eq!(decided(&lab), vec![tcp; 5]);
    lab.ledger.all_ended_once().await;
}

#[tokio::test]
async fn the_name_exists_only_while_a_port_is_open() {
    let lab = Lab::new("").await;
    let code = async |name: &str, kind| {
        let answer = ask(lab.dns, &question(name, kind).to_vec().unwrap()).await.unwrap();
        answer.metadata.response_code
    };
    for kind in [RecordType::A, RecordType::AAAA, RecordType::TXT] {
        assert_eq!(code(NAME, kind).await, ResponseCode::NXDomain);
    }
    lab.set_reach(&[5432], "");
    let address = look_up(lab.dns, NAME).await.unwrap();
    assert!(!lab.gateway.names().pools.v4.contains(&std::net::Ipv4Addr::LOCALHOST));
    for spelling in ["HOST.bay.Internal", "host.bay.internal."] {
        assert_eq!(look_up(lab.dns, spelling).await, Some(address), "{spelling}");
    }
    for other in ["bay.internal", "a.host.bay.internal", "host"] {
        assert_eq!(code(other, RecordType::A).await, ResponseCode::NXDomain, "{other}");
    }
    lab.set_reach(&[], "");
    assert_eq!(code(NAME, RecordType::A).await, ResponseCode::NXDomain);
}

/// The gateway of this lab connects to nothing: whatever it tried would be seen.
#[tokio::test]
async fn host_reach_no_other_port_name_or_spelling_leads_to_the_host() {
    let (mut lab, seen) = web().await;
    let door = lab.open(NAME).await;
    let open = lab.port;
    let port = open.checked_add(1).unwrap_or(1024);
    let loopback = "127.0.0.1".parse().unwrap();
    *lab.net.own.lock().unwrap() = Some(vec![loopback]);
    // Names that rebind to the host, and one that the resolver gives both an address and loopback.
    let (place, _) = origin::serve(None, |_| async { Response::new(text("leak")) }).await;
    lab.net.lead("rebind.test", "127.0.0.1", place);
    let rule = "[[rule]]\noutcome = \"allow\"\nhost = [\"*\", \"rebind.test\", \"*.internal\", \"host.bay.internal\"]\nport = \"*\"\nscheme = [\"http\", \"https\"]\nmethod = \"*\"\n";
    lab.set_reach(&[open], rule);
    let proxy = async |line: String, host: &str| {
        let bytes = format!("{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        raw(lab.proxy, bytes.as_bytes()).await
    };
    for target in [
        format!("{NAME}:{port}"),
        format!("{NAME}.:{port}"),
        format!("HOST.BAY.INTERNAL:{port}"),
        format!("127.0.0.1:{open}"),
        format!("localhost:{open}"),
        format!("127.1:{open}"),
        format!("2130706433:{open}"),
        format!("0.0.0.0:{open}"),
        format!("[::1]:{open}"),
        format!("[::ffff:127.0.0.1]:{open}"),
        format!("[64:ff9b::7f00:1]:{open}"),
        format!("rebind.test:{open}"),
        format!("a.{NAME}:{open}"),
        format!("bay.internal:{open}"),
        format!("x@{NAME}:{port}"),
        format!("{}:{port}", door.ip()),
    ] {
        let whole = proxy(format!("GET http://{target}/"), &target).await;
        assert!(whole.starts_with("HTTP/1.1 40") || whole.starts_with("HTTP/1.1 502"), "{target}: {whole}");
        let mut tunnel = TcpStream::connect(lab.proxy).await.unwrap();
        let connect = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
        tunnel.write_all(connect.as_bytes()).await.unwrap();
        let inside = format!("GET / HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n");
        tunnel.write_all(inside.as_bytes()).await.ok();
        let mut answer = Vec::new();
        tunnel.shutdown().await.ok();
        timeout(PATIENCE, tunnel.read_to_end(&mut answer)).await.expect("the gateway closes").ok();
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.contains("from the host") && !answer.contains("leak"), "{target}: {answer}");
    }
    // On a connection to the open port: other names and ports in the request, and a URL as its target.
    let named = lab.authority(NAME);
    for (target, host) in [
        ("/", format!("{NAME}:{port}")),
        ("/", "evil.test".to_owned()),
        ("/", format!("127.0.0.1:{open}")),
        ("/", format!("localhost:{open}")),
        (&*format!("http://{NAME}:{port}/"), named.clone()),
        (&*format!("http://127.0.0.1:{open}/"), named.clone()),
    ] {
        let bytes = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = raw(door, bytes.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{target} {host}: {answer}");
    }
    let two = format!("GET / HTTP/1.1\r\nHost: {named}\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(raw(door, two.as_bytes()).await.starts_with("HTTP/1.1 400"));
    assert_eq!((seen.lines(), dialled(&lab)), (Vec::new(), Vec::new()));
}

#[tokio::test]
async fn host_reach_a_redirect_is_only_passed_on_and_its_target_is_decided_on_anew() {
    let (lab, _) = web().await;
    let (place, _) = origin::serve(None, |_| async {
        let mut answer = Response::new(text(""));
        *answer.status_mut() = http::StatusCode::TEMPORARY_REDIRECT;
        answer.headers_mut().insert("location", "http://127.0.0.1:1/admin".parse().unwrap());
        answer
    })
    .await;
    lab.net.lead(NAME, "127.0.0.1", place);
    let mut lab = lab;
    let mut client = lab.http(NAME).await;
    let read = send(&mut client, lab.get(NAME, "/")).await;
    assert_eq!((read.status, read.headers["location"].to_str().unwrap()), (307, "http://127.0.0.1:1/admin"));
    assert_eq!(dialled(&lab).len(), 1);
}

#[tokio::test]
async fn closing_a_port_ends_what_is_open_and_a_deny_wins() {
    let (mut lab, seen) = web().await;
    let mut client = lab.http(NAME).await;
    assert_eq!(send(&mut client, lab.get(NAME, "/a")).await.status, 200);
    let deny = "[[rule]]\noutcome = \"deny\"\nhost = \"host.bay.internal\"\nscheme = \"http\"\npath = \"/admin/**\"\nport = \"*\"\n";
    lab.set_reach(&[lab.port], deny);
    assert_eq!(send(&mut client, lab.get(NAME, "/admin/x")).await.status, 403);
    assert_eq!(send(&mut client, lab.get(NAME, "/a")).await.status, 200);
    // What is not read cannot evade the rule.
    assert_eq!(raw(lab.address(NAME), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await, "");
    lab.set_reach(&[], "");
    let read = send(&mut client, lab.get(NAME, "/a")).await;
    assert_eq!(read.status, 403);
    assert!(read.json()["line"].as_str().is_some_and(|line| line.contains("--reach host:")), "{read:?}");
    assert_eq!(seen.lines().len(), 2);
}

#[tokio::test]
async fn closing_a_port_ends_an_open_connection_of_another_protocol() {
    let lab = Lab::with("", quick()).await;
    let place = origin::accept(|mut stream| async move {
        let (mut reader, mut writer) = stream.split();
        tokio::io::copy(&mut reader, &mut writer).await.ok();
    })
    .await;
    lab.net.lead(NAME, "127.0.0.1", place);
    lab.set_reach(&[lab.port], "");
    let mut lab = lab;
    let mut stream = TcpStream::connect(lab.open(NAME).await).await.unwrap();
    stream.write_all(b"\0one").await.unwrap();
    let mut back = [0; 4];
    timeout(PATIENCE, stream.read_exact(&mut back)).await.unwrap().unwrap();
    lab.set_reach(&[], "");
    let mut rest = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it is closed").ok();
    assert_eq!(lab.ledger.ended().await.ending, Ending::Revoked);
}
