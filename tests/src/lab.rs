//! A daemon with a world outside of its bays.

use std::fs;
use std::path::PathBuf;

use http::{Request, Response};
use hyper::body::Incoming;
use serde_json::Value;

use crate::daemon::{Daemon, Setup};
use crate::origin::text;
use crate::outside::{Origin, Outside};
use crate::suite;

/// A daemon whose bays can reach servers of the test.
#[derive(Debug)]
pub struct Lab {
    pub daemon: Daemon,
    pub outside: Outside,
    dir: PathBuf,
}

/// # Panics
/// When there can be none.
#[must_use]
pub fn lab() -> Lab {
    lab_with(Daemon::setup())
}

/// # Panics
/// When there can be none.
#[must_use]
pub fn lab_with(setup: Setup) -> Lab {
    let dir = suite::fresh("o");
    let outside = Outside::new(&dir);
    let setup = outside.arguments().iter().fold(setup, |setup, argument| setup.argument(argument));
    Lab { daemon: setup.start(), outside, dir }
}

impl Lab {
    /// A server that says what it was asked for.
    pub fn echo(&self, name: &'static str) -> Origin {
        self.outside.https(name, |request: Request<Incoming>| async move {
            Response::new(text(format!("{} {}", request.method(), request.uri().path())))
        })
    }

    /// A bay with this policy.
    ///
    /// # Panics
    /// When it cannot be done.
    pub fn bay(&self, name: &str, policy: &str) {
        self.daemon.empty_bay(name);
        self.set(name, policy);
    }

    /// Another policy for it.
    ///
    /// # Panics
    /// When it cannot be set.
    pub fn set(&self, bay: &str, policy: &str) {
        let path = self.dir.join(format!("{bay}.toml"));
        fs::write(&path, policy).unwrap();
        let _set = self.daemon.bay(&["policy", "set", bay, path.to_str().unwrap()]).ok();
    }

    /// Status and body of a request by python's own client, without any setting for it.
    ///
    /// # Panics
    /// When it cannot be done.
    pub fn get(&self, bay: &str, url: &str) -> (u16, String) {
        let script = r#"
import sys, urllib.request, urllib.error
try:
    answer = urllib.request.urlopen(sys.argv[1], timeout=20)
except urllib.error.HTTPError as refused:
    answer = refused
print(answer.status)
print(answer.read().decode())
"#;
        let said = self.daemon.bay(&["exec", bay, "--", "python3", "-c", script, url]).ok().text();
        let (status, body) = said.split_once('\n').unwrap();
        (status.parse().unwrap(), body.trim_end().to_owned())
    }

    /// Events of the bay's traffic of one kind.
    ///
    /// # Panics
    /// When it cannot be done.
    pub fn record(&self, bay: &str, kind: &str) -> Vec<Value> {
        let events = self.daemon.rest("GET", &format!("/v1/events?bay={bay}"), &Value::Null).json();
        let events = events.as_array().unwrap().iter();
        events.filter(|event| event["kind"] == kind).map(|event| event["body"].clone()).collect()
    }
}
