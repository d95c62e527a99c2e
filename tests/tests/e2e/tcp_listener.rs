//! The API over loopback TCP: a caller needs the token and a loopback name.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use bay_tests::rest::{Answer, request_tcp};
use bay_tests::{CliRun, Daemon, until};
use bay_types::ErrorCode;
use serde_json::json;

/// The address that the daemon logs.
fn address(daemon: &Daemon) -> SocketAddr {
    until("the daemon to say where it listens", || {
        let log = daemon.log();
        let (_, after) = log.rsplit_once("127.0.0.1:")?;
        let port: String = after.chars().take_while(char::is_ascii_digit).collect();
        Some(SocketAddr::from(([127, 0, 0, 1], port.parse().ok()?)))
    })
}

fn ask(to: SocketAddr, target: &str, headers: &[(&str, &str)]) -> Answer {
    request_tcp(to, "GET", target, headers, b"").unwrap()
}

#[test]
fn tcp_callers_need_the_token_a_loopback_name_and_no_web_page() {
    let mut daemon = Daemon::setup().argument("--listen").argument("127.0.0.1:0").start();
    daemon.empty_bay("b");
    let to = address(&daemon);
    let file = daemon.data_dir.join("token");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let token = fs::read_to_string(&file).unwrap();
    let bearer = format!("Bearer {}", token.trim());
    let host = to.to_string();
    let right = [("host", host.as_str()), ("authorization", bearer.as_str())];

    let listed = ask(to, "/v1/bays", &right);
    assert_eq!((listed.status, listed.json()[0]["name"].clone()), (200, json!("b")));
    let exec = json!({ "id": bay_types::ExecId::generate(), "argv": ["true"] }).to_string();
    let started = request_tcp(to, "POST", "/v1/bays/b/execs", &right, exec.as_bytes()).unwrap();
    assert_eq!(started.status, 201, "{}", String::from_utf8_lossy(&started.body));

    let wrong = format!("{bearer}0");
    let refused: [&[(&str, &str)]; 7] = [
        &[("host", &host)],
        &[("host", &host), ("authorization", &wrong)],
        &[("host", &host), ("authorization", "Bearer ")],
        &[("host", &host), ("authorization", &bearer), ("authorization", &bearer)],
        &[("host", "rebound.example"), ("authorization", &bearer)],
        &[("host", &host), ("authorization", &bearer), ("origin", "http://localhost")],
        &[("host", &host), ("authorization", &bearer), ("sec-fetch-site", "cross-site")],
    ];
    for headers in refused {
        for target in ["/v1/bays", "/v1/health", "/v1/bays/b/files?path=/etc/hostname"] {
            let answer = ask(to, target, headers);
            assert_eq!(answer.status, ErrorCode::Unauthorized.http_status(), "{headers:?} {target}");
            assert_eq!(answer.json()["code"], "unauthorized", "{headers:?} {target}");
        }
    }

    // The token survives the daemon; callers with the token continue after a restart.
    daemon.restart();
    assert_eq!(fs::read_to_string(&file).unwrap(), token);
    let to = address(&daemon);
    let host = to.to_string();
    assert_eq!(ask(to, "/v1/bays", &[("host", &host), ("authorization", &bearer)]).status, 200);
}

#[test]
fn an_address_that_others_can_reach_is_refused() {
    let daemon = Daemon::setup().argument("--listen").argument("0.0.0.0:0").unstarted();
    let ran = CliRun::new("serve".to_owned(), daemon.serve().output().unwrap());
    assert_ne!(ran.code, 0, "{ran}");
    assert!(ran.errors().contains("loopback only") && ran.errors().contains("next: "), "{ran}");
}
