//! The value of a secret, and the search for it in places where it must never be.

use std::fs;
use std::path::Path;

use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::cli_run::CliRun;
use crate::lab::Lab;
use crate::origin::text;
use crate::test_servers::Origin;
use crate::until;

/// The value. Only the origins of the secret may ever receive it.
pub const CANARY: &str = "ghp_CANARYx9XqLm2Zt7RbW4KcVd8PnJ6sYhG3eFa";

/// Sets a secret with the value.
pub fn set(lab: &Lab, name: &str, more: &[&str]) -> CliRun {
    let mut line = vec!["secret", "set", name, "-"];
    line.extend(more);
    lab.daemon.bay_with_input(&line, format!("{CANARY}\n").as_bytes())
}

/// The credentials that an origin received.
///
/// # Panics
/// If a header is not text.
#[must_use]
pub fn credentials(origin: &Origin) -> Vec<String> {
    let requests = origin.seen.requests.lock().unwrap();
    let all = requests.iter().filter_map(|head| head.headers.get("authorization"));
    all.map(|value| value.to_str().unwrap().to_owned()).collect()
}

/// Files below a directory that contain the value.
pub fn files_with_canary(dir: &Path, found: &mut Vec<String>) {
    files_with(dir, CANARY, found);
}

/// Files below a directory that contain this text.
pub fn files_with(dir: &Path, wanted: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(about) = fs::symlink_metadata(&path) else { continue };
        if about.is_dir() {
            // The pool is searched separately.
            if path.file_name().is_none_or(|name| name != "pool") {
                files_with(&path, wanted, found);
            }
        } else if about.is_file() {
            let bytes = fs::read(&path).unwrap_or_default();
            if bytes.windows(wanted.len()).any(|window| window == wanted.as_bytes()) {
                found.push(path.display().to_string());
            }
        }
    }
}

/// Asserts that the value is in no environment of the bay's processes and in no file of the directories where
/// programs write.
///
/// # Panics
/// If it is.
pub fn bay_is_clean(lab: &Lab, bay: &str) {
    let look = format!(
        "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c '{0}[x]' ; \
         grep -rls '{0}[x]' /root /etc /home /workspace /.bay /tmp /run /var 2>/dev/null ; true",
        &CANARY[..10]
    );
    let said = lab.daemon.sh(bay, &look).text();
    assert_eq!(said.lines().next(), Some("0"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// Asserts that the value is in no file of the data directory, and in none of the outputs for people and programs
/// that tell of the bay or of secrets.
///
/// # Panics
/// If one does.
pub fn everybody_is_clean(lab: &Lab, bay: &str) {
    let mut found = Vec::new();
    files_with_canary(&lab.daemon.data_dir, &mut found);
    assert!(found.is_empty(), "{found:?}");
    for line in [
        vec!["timeline", bay],
        vec!["egress", bay, "--json"],
        vec!["egress", bay, "--denied"],
        vec!["secret", "ls"],
        vec!["secret", "ls", "--json"],
        vec!["secret", "show", "TOKEN"],
        vec!["audit", "export"],
        vec!["show", bay, "--json"],
    ] {
        let ran = lab.daemon.bay(&line);
        let said = format!("{}{}", String::from_utf8_lossy(&ran.stdout), ran.errors());
        assert!(!said.contains(CANARY), "{line:?}");
    }
    for target in ["/metrics", "/v1/events", "/v1/secrets", "/v1/secrets/TOKEN", "/v1/secrets/NONE"] {
        let said = format!("{:?}", lab.daemon.rest("GET", target, &Value::Null));
        assert!(!said.contains(CANARY), "{target}");
    }
}

/// Prints the variable.
pub const TOKEN: &str = "test -n \"$TOKEN\" && echo \"$TOKEN\"";

/// Sends one request as a program in the bay would, with the variable TOKEN in place of `{}` in a header.
pub const SEND: &str = r#"
import json, os, sys, urllib.request, urllib.error
wanted = json.loads(sys.argv[1])
token = wanted.get("token") or os.environ.get("TOKEN", "")
fill = lambda text: text.replace("{}", token)
body = wanted.get("body")
request = urllib.request.Request(
    fill(wanted["url"]), method=wanted.get("method", "GET"), data=fill(body).encode() if body else None,
    headers={name: fill(value) for name, value in wanted.get("headers", {}).items()})
try:
    answer = urllib.request.urlopen(request, timeout=20)
except urllib.error.HTTPError as refused:
    answer = refused
print(json.dumps({"status": answer.status, "headers": dict(answer.headers), "body": answer.read().decode("latin1")}))
"#;

/// A server that returns the request: in the body, in headers, everywhere.
pub fn reflecting(lab: &Lab, name: &'static str) -> Origin {
    lab.servers.https(name, |request: Request<Incoming>| async move {
        let said = format!("{} {} {:?}", request.method(), request.uri(), request.headers());
        let sent = request.headers().get("authorization").cloned();
        let mut answer = Response::new(text(said));
        if let Some(sent) = sent {
            answer.headers_mut().insert("x-echo", sent.clone());
            let cookie = format!("session={}", sent.to_str().unwrap_or_default());
            if let Ok(cookie) = HeaderValue::from_str(&cookie) {
                answer.headers_mut().insert("set-cookie", cookie);
            }
        }
        answer
    })
}

pub fn send(lab: &Lab, bay: &str, wanted: &Value) -> Value {
    lab.python(bay, SEND, &[&wanted.to_string()]).ok().json()
}

pub fn bearer(url: &str) -> Value {
    json!({ "url": url, "headers": { "Authorization": "Bearer {}" } })
}

pub fn sentinel(lab: &Lab, bay: &str) -> String {
    lab.daemon.sh(bay, TOKEN).ok().text()
}

/// The use of the secret for every path at the origin below `/api`.
pub fn for_api(origin: &Origin) -> String {
    format!("GET,POST {}:{}/api/** as bearer", origin.name, origin.port())
}

pub fn everything(origin: &Origin) -> String {
    origin.allowed("method = \"*\"\nscheme = [\"https\", \"http\"]")
}

/// The sentinel in the variable TOKEN, once the bay has it.
#[must_use]
pub fn once_there(lab: &Lab, bay: &str) -> String {
    until("the sentinel in the environment", || {
        let ran = lab.daemon.sh(bay, TOKEN);
        (ran.code == 0).then(|| ran.text())
    })
}
