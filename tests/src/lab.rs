//! A daemon, and servers outside of its bays.

use std::fs;

use http::{Request, Response};
use hyper::body::Incoming;
use serde_json::Value;

use crate::cli_run::CliRun;
use crate::daemon::{Daemon, Setup};
use crate::origin::text;
use crate::suite::Scratch;
use crate::test_servers::{Origin, TestServers};
use crate::until;

/// A daemon whose bays can reach servers of the test.
#[derive(Debug)]
pub struct Lab {
    pub daemon: Daemon,
    pub servers: TestServers,
    dir: Scratch,
}

/// A Python script that reads a stream, with the variable TOKEN as its credential if it is set. It writes `/tmp/begun`
/// and `/tmp/over`.
pub const READS_A_STREAM: &str = r#"
import os, sys, urllib.request
token = os.environ.get("TOKEN")
headers = {"Authorization": "Bearer " + token} if token else {}
answer = urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers=headers))
print(answer.readline())
open("/tmp/begun", "w").close()
try:
    answer.read()
except Exception as error:
    print(error)
open("/tmp/over", "w").close()
"#;

/// A lab with the default setup.
///
/// # Panics
/// If it cannot be made.
#[must_use]
pub fn lab() -> Lab {
    lab_with(Daemon::setup())
}

/// A lab with this setup.
///
/// # Panics
/// If it cannot be made.
#[must_use]
pub fn lab_with(setup: Setup) -> Lab {
    lab_with_names(setup, &[])
}

/// A lab whose gateways know additional names, each after its address.
///
/// # Panics
/// If it cannot be made.
#[must_use]
pub fn lab_with_names(setup: Setup, names: &[(String, &str)]) -> Lab {
    let dir = Scratch::new();
    let servers = TestServers::with_names(dir.path(), names);
    let setup = servers.arguments().iter().fold(setup, |setup, argument| setup.argument(argument));
    Lab { daemon: setup.start(), servers, dir }
}

impl Lab {
    /// A server that returns the method and path of each request.
    pub fn echo(&self, name: &'static str) -> Origin {
        self.servers.https(name, |request: Request<Incoming>| async move {
            Response::new(text(format!("{} {}", request.method(), request.uri().path())))
        })
    }

    /// Starts `https://origin.test`, which returns the method and path of each request, and makes bays that may send
    /// anything there.
    ///
    /// # Panics
    /// If a bay cannot be made.
    pub fn echo_for(&self, bays: &[&str]) -> Origin {
        let origin = self.echo("origin.test");
        for bay in bays {
            self.bay(bay, &origin.allowed(""));
        }
        origin
    }

    /// Makes a bay with this policy.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn bay(&self, name: &str, policy: &str) {
        self.daemon.empty_bay(name);
        self.set(name, policy);
    }

    /// Sets another policy for a bay.
    ///
    /// # Panics
    /// If it cannot be set.
    pub fn set(&self, bay: &str, policy: &str) {
        let path = self.dir.join(format!("{bay}.toml"));
        fs::write(&path, policy).unwrap();
        let _set = self.daemon.bay(&["policy", "set", bay, path.to_str().unwrap()]).ok();
    }

    /// Waits until a bay's egress is open. A new daemon needs a moment to open it, and refuses everything until then.
    pub fn until_open(&self, bay: &str) {
        until("the way out is open", || {
            let state = self.daemon.rest("GET", &format!("/v1/bays/{bay}/egress"), &Value::Null).json();
            (state["open"] == true).then_some(())
        });
    }

    /// Runs Python as the bay's root.
    pub fn python(&self, bay: &str, script: &str, args: &[&str]) -> CliRun {
        let mut line = vec!["exec", bay, "--", "python3", "-c", script];
        line.extend(args);
        self.daemon.bay(&line)
    }

    /// Status and body of a request by Python's own client with default settings.
    ///
    /// # Panics
    /// If it fails.
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
        let said = self.python(bay, script, &[url]).ok().text();
        let (status, body) = said.split_once('\n').unwrap();
        (status.parse().unwrap(), body.trim_end().to_owned())
    }

    /// Events of one kind about the bay's traffic.
    ///
    /// # Panics
    /// If they cannot be read.
    pub fn record(&self, bay: &str, kind: &str) -> Vec<Value> {
        let (mut since, mut found) = (0, Vec::new());
        loop {
            let target = format!("/v1/events?bay={bay}&since={since}");
            let page = self.daemon.rest("GET", &target, &Value::Null).json();
            let page = page.as_array().unwrap_or_else(|| panic!("not a list: {page}"));
            let Some(last) = page.last() else { return found };
            since = last["seq"].as_u64().unwrap();
            found
                .extend(page.iter().filter(|event| event["kind"] == kind).map(|event| event["body"].clone()));
        }
    }
}
