//! `--reach`: services of the host that a bay may use, on the operator's word.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use bay_tests::lab::{Lab, lab};
use bay_tests::suite::Scratch;
use bay_tests::{Daemon, Repository, SMALL, image, until};
use bay_types::ErrorCode;
use serde_json::{Value, json};

/// Serves each connection to a port of the host's loopback, as long as the test runs.
fn serve(answer: fn(&mut TcpStream)) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || answer(&mut stream));
        }
    });
    port
}

/// Answers one request with its first line.
fn web(stream: &mut TcpStream) {
    let mut seen = Vec::new();
    let mut buffer = [0; 1024];
    while !seen.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(length) if length > 0 => seen.extend_from_slice(&buffer[..length]),
            _ => return,
        }
    }
    let line = String::from_utf8_lossy(&seen).lines().next().unwrap_or_default().to_owned();
    let answer =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{line}", line.len());
    stream.write_all(answer.as_bytes()).ok();
}

/// Greets, as databases do, and returns what it gets.
fn database(stream: &mut TcpStream) {
    stream.write_all(b"ready ").ok();
    let mut buffer = [0; 5];
    if stream.read_exact(&mut buffer).is_ok() {
        stream.write_all(&buffer).ok();
    }
}

/// A client of the database. Prints what it got, or why it got nothing.
const QUERY: &str = r#"
import socket, sys
try:
    door = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20)
    greeting = door.recv(6)
    door.sendall(b"query")
    print((greeting + door.recv(5)).decode() or "closed")
except OSError as error:
    print("failed:", type(error).__name__)
"#;

fn query(lab: &Lab, host: &str, port: u16) -> String {
    lab.python("b", QUERY, &[host, &port.to_string()]).ok().text().trim().to_owned()
}

fn url(port: u16, path: &str) -> String {
    format!("http://host.bay.internal:{port}{path}")
}

fn resolves(lab: &Lab) -> bool {
    let script = "import socket; socket.getaddrinfo('host.bay.internal', 80)";
    lab.python("b", script, &[]).code == 0
}

/// The latest decision on record about a port of the host.
fn last_decided(lab: &Lab, port: u16) -> Value {
    until("a decision on record", || {
        lab.record("b", "egress.decided").into_iter().rfind(|body| body["port"] == port)
    })
}

#[test]
fn a_bay_uses_the_named_services_of_the_host_until_they_are_closed() {
    if !image::with_python() {
        return;
    }
    let lab = lab();
    let (site, base, other) = (serve(web), serve(database), serve(web));
    lab.daemon.empty_bay("b");
    assert!(!resolves(&lab), "the name exists in a bay that may use nothing");

    let flags = ["set", "b", "--reach", &format!("host:{site}"), "--reach", &format!("host:{base}")];
    let told = lab.daemon.bay(&flags).ok().text();
    assert!(told.contains(&format!("host.bay.internal:{site}")), "{told}");
    let mut ports = [site, base];
    ports.sort_unstable();
    assert_eq!(lab.daemon.show("b")["reach"], json!(ports));
    let shown = lab.daemon.bay(&["show", "b"]).ok().text();
    assert!(shown.contains(&format!("host.bay.internal:{base}")), "{shown}");
    let set = lab.record("b", "bay.reach");
    assert_eq!(set.len(), 1);
    assert_eq!((&set[0]["ports"], &set[0]["by"]), (&json!(ports), &json!("uid 0")), "{set:#?}");

    assert_eq!(lab.get("b", &url(site, "/v1/models")), (200, "GET /v1/models HTTP/1.1".to_owned()));
    let decided = last_decided(&lab, site);
    assert_eq!(decided["request"], format!("GET {}", url(site, "/v1/models")));
    assert_eq!(
        (&decided["rule"]["id"], &decided["outcome"]),
        (&json!("reach"), &json!("allow")),
        "{decided:#}"
    );
    assert_eq!(query(&lab, "host.bay.internal", base), "ready query");
    assert_eq!(last_decided(&lab, base)["request"], format!("tcp://host.bay.internal:{base}"));

    // Another port of the host, and the bay's own loopback.
    let (status, why) = lab.get("b", &url(other, "/"));
    assert_eq!(status, 403);
    assert!(why.contains(&format!("--reach host:{other}")), "{why}");
    assert!(query(&lab, "127.0.0.1", base).starts_with("failed"), "the host's loopback is the bay's");
    let own = "import http.server, threading, urllib.request\n\
        class Own(http.server.BaseHTTPRequestHandler):\n\
        \x20   def do_GET(self):\n\
        \x20       self.send_response(200); self.end_headers(); self.wfile.write(b'the bay')\n\
        server = http.server.HTTPServer(('127.0.0.1', SITE), Own)\n\
        threading.Thread(target=server.serve_forever, daemon=True).start()\n\
        print(urllib.request.urlopen('http://127.0.0.1:SITE/').read().decode())\n"
        .replace("SITE", &site.to_string());
    assert_eq!(lab.python("b", &own, &[]).ok().text().trim(), "the bay");

    // A deny wins, and an allow of everything opens no other port.
    lab.set("b", "[[rule]]\nid = \"no\"\noutcome = \"deny\"\nhost = \"host.bay.internal\"\n");
    assert_eq!(lab.get("b", &url(site, "/")).0, 403);
    assert_ne!(query(&lab, "host.bay.internal", base), "ready query");
    lab.set(
        "b",
        "[[rule]]\noutcome = \"allow\"\nhost = [\"*\", \"host.bay.internal\"]\nport = \"*\"\nscheme = [\"http\", \"https\"]\nmethod = \"*\"\naddress = \"127.0.0.1\"\n",
    );
    assert_eq!(lab.get("b", &url(other, "/")).0, 403);
    assert_eq!(lab.get("b", &url(site, "/again")).0, 200);

    let _closed = lab.daemon.bay(&["set", "b", "--no-reach"]).ok();
    assert!(lab.daemon.show("b").get("reach").is_none());
    until("the name to be gone", || (!resolves(&lab)).then_some(()));
    let by_address = query(&lab, "host.bay.internal", base);
    assert!(by_address.starts_with("failed"), "{by_address}");
    // A client that looked the name up before, and one that uses the proxy.
    let proxied = lab.python(
        "b",
        "import sys, urllib.request, urllib.error\n\
         opener = urllib.request.build_opener(urllib.request.ProxyHandler({'http': 'http://10.0.2.1:3128'}))\n\
         try: print(opener.open(sys.argv[1], timeout=20).status)\n\
         except urllib.error.HTTPError as refused: print(refused.status)",
        &[&url(site, "/")],
    );
    assert_eq!(proxied.ok().text().trim(), "403");
    assert_eq!(lab.record("b", "bay.reach").last().map(|set| set["ports"].clone()), Some(json!([])));
}

#[test]
fn open_ports_of_the_host_outlive_every_restart_and_no_fork_has_them() {
    let mut daemon = Daemon::start();
    let repository = Repository::sample();
    let place = repository.arg();
    let up = ["up", &place, "--name", "b", "--image", SMALL, "--reach", "host:11434", "--reach", "host:5432"];
    let _up = daemon.bay(&up).ok();
    let ports = json!([5432, 11434]);
    assert_eq!(daemon.show("b")["reach"], ports);
    assert_eq!(daemon.events("b", "bay.create")[0]["reach"], ports);
    let _point = daemon.bay(&["checkpoint", "b", "--files-only"]).ok();
    for verbs in [&["stop", "start"][..], &["replace"]] {
        for verb in verbs {
            let _done = daemon.bay(&[*verb, "b"]).ok();
        }
        assert_eq!(daemon.show("b")["reach"], ports, "{verbs:?}");
    }
    let _set = daemon.bay(&["set", "b", "--reach", "host:80", "--cpu-shares", "512"]).ok();
    let _back = daemon.bay(&["restore", "b", "v1", "--files-only"]).ok();
    daemon.restart();
    let shown = daemon.show("b");
    assert_eq!((&shown["reach"], &shown["limits"]["cpu_shares"]), (&json!([80]), &json!(512)));
    let _forked = daemon.bay(&["fork", "b", "--count", "1", "--name", "child", "--files-only"]).ok();
    let all = daemon.list();
    let child = all.iter().find(|bay| !bay["forked_from"].is_null()).unwrap();
    assert!(child.get("reach").is_none(), "{child:#}");
    assert_eq!(daemon.show("b")["reach"], json!([80]));
    let policy = daemon.bay(&["policy", "show", "b"]).ok().text();
    assert!(policy.contains("host.bay.internal:80"), "{policy}");

    for odd in ["5432", "host:0", "127.0.0.1:5432", "host:70000"] {
        assert_eq!(daemon.bay(&["set", "b", "--reach", odd]).code, 2, "{odd}");
    }
    let many: Vec<String> = (1..=17).map(|port| format!("--reach=host:{port}")).collect();
    let mut line = vec!["set", "b"];
    line.extend(many.iter().map(String::as_str));
    let _many = daemon.bay(&line).fails_with(ErrorCode::InvalidInput);
    let zero = daemon.rest("PUT", "/v1/bays/b/reach", &json!({ "ports": [0] }));
    assert_eq!(zero.json()["code"], "invalid-input");
    assert_eq!(daemon.show("b")["reach"], json!([80]));
}

#[test]
fn lint_answers_a_rule_for_the_hosts_loopback_with_the_advice_to_reach_one_port() {
    let daemon = Daemon::start();
    let scratch = Scratch::new();
    let path = scratch.join("p.toml");
    for host in ["127.0.0.1", "localhost"] {
        let rule =
            format!("[[rule]]\noutcome = \"allow\"\nhost = \"{host}\"\nport = 11434\nscheme = \"http\"\n");
        fs::write(&path, rule).unwrap();
        let found = daemon.bay(&["policy", "lint", "--file", path.to_str().unwrap()]).exits(1).text();
        assert!(found.contains("--reach host:PORT") && found.contains("host.bay.internal"), "{found}");
    }
}
