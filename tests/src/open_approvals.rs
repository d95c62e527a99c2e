//! Open approvals, and clients in a bay that wait for the answer to one.

use serde_json::Value;

use crate::daemon::Daemon;
use crate::lab::{Lab, lab_with};
use crate::test_servers::Origin;
use crate::until;

/// A policy that asks about every request to the origin.
pub fn ask_policy(origin: &Origin, more: &str) -> String {
    origin.allowed(&format!("method = \"*\"\n{more}")).replace("\"allow\"", "\"ask\"")
}

/// A lab whose gateways hold a request only briefly before they tell the client to retry.
pub fn lab_with_short_hold() -> Lab {
    lab_with(Daemon::setup().argument("--ask-hold").argument("500ms"))
}

pub fn approvals(lab: &Lab, args: &[&str]) -> Vec<Value> {
    let line: Vec<&str> = ["approvals", "--json"].iter().chain(args).copied().collect();
    lab.daemon.bay(&line).ok().json().as_array().cloned().unwrap()
}

/// The paths of the requests that the origin got.
pub fn paths(origin: &Origin) -> Vec<String> {
    origin.seen.requests.lock().unwrap().iter().map(|head| head.uri.path().to_owned()).collect()
}

/// The only open approval.
///
/// # Panics
/// If there is none or more than one.
pub fn the_open_approval(lab: &Lab) -> Value {
    let mut open = until("an open approval", || Some(approvals(lab, &[])).filter(|open| !open.is_empty()));
    assert_eq!(open.len(), 1, "{open:#?}");
    open.remove(0)
}

pub fn id(card: &Value) -> String {
    card["id"].as_str().unwrap().to_owned()
}

/// The end of an id, as lists show it.
pub fn short(card: &Value) -> String {
    let id = id(card);
    id[id.len() - 8..].to_owned()
}

/// Starts curl in the bay. Its result appears in `/tmp/NAME`: the status, a space, and the body.
pub fn curl(lab: &Lab, bay: &str, name: &str, args: &str) {
    let script = format!(
        "curl -sS -o /tmp/{name}.body -w '%{{http_code}}' {args} > /tmp/{name}.code 2>/tmp/{name}.err; \
         echo \"$(cat /tmp/{name}.code) $(cat /tmp/{name}.body 2>/dev/null)\" > /tmp/{name}.new; \
         mv /tmp/{name}.new /tmp/{name}"
    );
    let _begun = lab.daemon.bay(&["exec", "--detach", bay, "--", "sh", "-c", &script]).ok();
}

pub fn curl_result(lab: &Lab, bay: &str, name: &str) -> String {
    until(&format!("{name} to be over"), || {
        let ran = lab.daemon.sh(bay, &format!("cat /tmp/{name} 2>/dev/null"));
        (ran.code == 0).then(|| ran.text())
    })
}

/// One request for each file that appears, all by one process.
pub const STEPS: &str = r#"
import json, os, sys, time, urllib.request, urllib.error
number = 0
while True:
    while not os.path.exists("/tmp/go%d" % number):
        time.sleep(0.01)
    method, path, body = open("/tmp/go%d" % number).read().split("|")
    request = urllib.request.Request(sys.argv[1] + path, method=method, data=body.encode() if body else None)
    try:
        answer = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as refused:
        answer = refused
    except OSError as error:
        answer = None
    said = [answer.status, answer.headers.get("retry-after"), answer.read().decode()] if answer else [0, None, ""]
    with open("/tmp/said.new", "w") as out:
        json.dump(said, out)
    os.rename("/tmp/said.new", "/tmp/said%d" % number)
    number += 1
"#;

/// A client that sends one request after another from one exec.
#[derive(Debug)]
pub struct Client<'a> {
    lab: &'a Lab,
    bay: &'a str,
    next: usize,
}

impl<'a> Client<'a> {
    pub fn new(lab: &'a Lab, bay: &'a str, origin: &Origin) -> Self {
        let base = origin.url("https", "");
        let _begun = lab.daemon.bay(&["exec", "--detach", bay, "--", "python3", "-c", STEPS, &base]).ok();
        Self { lab, bay, next: 0 }
    }

    /// A client that has already sent this many requests, for a test that had dropped it.
    pub fn running(lab: &'a Lab, bay: &'a str, sent: usize) -> Self {
        Self { lab, bay, next: sent }
    }

    /// How many requests it was asked to send.
    pub fn sent(&self) -> usize {
        self.next
    }

    pub fn send(&mut self, method: &str, path: &str, body: &str) -> usize {
        let number = self.next;
        self.next += 1;
        let script =
            format!("printf '%s' '{method}|{path}|{body}' > /tmp/go.new && mv /tmp/go.new /tmp/go{number}");
        let _sent = self.lab.daemon.sh(self.bay, &script).ok();
        number
    }

    pub fn answer(&self, number: usize) -> (u64, Value, String) {
        let said = until("the client has its answer", || {
            let ran = self.lab.daemon.sh(self.bay, &format!("cat /tmp/said{number} 2>/dev/null"));
            (ran.code == 0).then(|| ran.text())
        });
        let said: Value = serde_json::from_str(&said).unwrap();
        (said[0].as_u64().unwrap(), said[1].clone(), said[2].as_str().unwrap_or_default().to_owned())
    }

    pub fn status(&mut self, method: &str, path: &str) -> u64 {
        let number = self.send(method, path, "");
        self.answer(number).0
    }
}
