//! What a caller of the API can make the daemon connect to: the address of a repository is all that it fetches.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use bay_tests::{Daemon, suite::Scratch};
use serde_json::Value;

/// Part of everything that must not be returned to the caller who named an address.
const WORD: &str = "A-WORD-FROM-INSIDE";

/// A server that does not speak git's protocol: it answers every request in the same way, and records the requests.
fn server(answer: String) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&asked);
    // The thread ends with the test's process.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            kept.lock().unwrap().extend(lines.next());
            while lines.next().is_some_and(|line| !line.is_empty()) {}
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (port, asked)
}

fn answer(status: &str, header: &str) -> String {
    let length = WORD.len();
    format!("HTTP/1.1 {status}\r\n{header}content-length: {length}\r\nconnection: close\r\n\r\n{WORD}")
}

fn redirect(to: &str) -> String {
    answer("302 Found", &format!("location: {to}\r\n"))
}

#[test]
fn api_ssrf_a_repository_address_is_used_by_git_only_and_other_answers_are_not_shown() {
    let daemon = Daemon::start();
    let scratch = Scratch::new();
    let file = scratch.join("inside");
    std::fs::write(&file, WORD).unwrap();
    let (inside, asked_inside) = server(answer("200 OK", "content-type: text/plain\r\n"));
    let (pretends, _) =
        server(answer("200 OK", "content-type: application/x-git-upload-pack-advertisement\r\n"));
    let (refuses, _) = server(answer("500 Internal Server Error", ""));
    let (to_file, _) = server(redirect(&format!("file://{}", file.display())));
    let (to_other, _) = server(redirect(&format!("ftp://127.0.0.1:{inside}/")));
    let (to_gopher, _) = server(redirect(&format!("gopher://127.0.0.1:{inside}/_GET")));
    let (to_itself, asked_itself) = server(redirect("/again"));
    let mut addresses: Vec<String> = [inside, pretends, refuses, to_file, to_other, to_gopher, to_itself]
        .iter()
        .map(|port| format!("http://127.0.0.1:{port}/x.git"))
        .collect();
    // Addresses that are neither a repository nor a path to one.
    addresses.push(format!("file://{}", file.display()));
    addresses.extend(
        ["ftp", "ftps", "gopher", "dict", "ldap", "smtp", "tftp"]
            .map(|scheme| format!("{scheme}://127.0.0.1:{inside}/x.git")),
    );
    for address in &addresses {
        let body = serde_json::json!({
            "name": "b", "image": "small", "source": { "kind": "remote", "url": address },
        });
        let answer = daemon.rest("POST", "/v1/bays", &body);
        let said = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(said.contains("\"code\""), "{address} is refused: {said}");
        assert!(!said.contains(WORD), "{address}: {said}");
    }
    assert_eq!(daemon.list().len(), 0);
    // Only the URL that named that server reached it, with git's own request.
    let asked = asked_inside.lock().unwrap().clone();
    let as_git = |line: &String| line.starts_with("GET /x.git/") && line.ends_with(" HTTP/1.1");
    assert!(!asked.is_empty() && asked.iter().all(as_git), "{asked:?}");
    assert!(asked_itself.lock().unwrap().len() < 64, "redirects have an end");
    let record = daemon.rest("GET", "/v1/events", &Value::Null);
    assert!(!String::from_utf8_lossy(&record.body).contains(WORD));
    assert!(!daemon.log().contains(WORD));
    assert_eq!(daemon.orphans(), []);
}
