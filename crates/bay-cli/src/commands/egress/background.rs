//! Calls that a browser makes by itself, as one line for each run of them.

use std::collections::VecDeque;

use bay_text::clip;
use bay_text::escape::visible;
use bay_types::traffic::{EgressEntry, EgressOutcome};
use jiff::Timestamp;

use crate::output::{count, size};

/// Most hosts that a line names.
const HOSTS: usize = 3;
/// Most hosts that a run remembers.
const REMEMBERED: usize = 64;
/// Most characters of a host.
const HOST: usize = 60;
/// The decisions that are remembered, because the sum of a flood names the decision that it continues, but no sender.
const DECISIONS: usize = 1024;

/// Collects neighbouring background calls.
#[derive(Debug, Default)]
pub(super) struct Background {
    run: Option<Run>,
    decisions: VecDeque<u64>,
}

/// Neighbouring calls that have not been shown.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) at: Timestamp,
    /// The only entry so far, which is shown like any other if no other follows.
    only: Option<Box<EgressEntry>>,
    calls: u64,
    refused: u64,
    sent: u64,
    received: u64,
    hosts: Vec<String>,
    more_hosts: bool,
}

/// What to show for a run.
#[derive(Debug)]
pub(super) enum Told {
    Entry(Box<EgressEntry>),
    Line(Timestamp, String),
}

impl Background {
    /// Takes an entry if it is a background call. Otherwise the entry is shown, after the run before it.
    pub(super) fn takes(&mut self, entry: &EgressEntry) -> bool {
        let host = host(&entry.request);
        let continues = entry.outcome == EgressOutcome::Repeated && self.decisions.contains(&entry.id);
        let called =
            entry.outcome != EgressOutcome::LookedUp && bay_story::is_background(entry.by.as_ref(), host);
        if !continues && !called {
            return false;
        }
        if self.decisions.len() == DECISIONS {
            self.decisions.pop_front();
        }
        self.decisions.push_back(entry.id);
        match &mut self.run {
            Some(run) => run.add(entry, host),
            None => {
                let mut run = Run::new(entry.at);
                run.add(entry, host);
                run.only = Some(Box::new(entry.clone()));
                self.run = Some(run);
            }
        }
        true
    }

    /// The run, which ends here.
    pub(super) fn end(&mut self) -> Option<Told> {
        self.run.take().map(Run::told)
    }
}

impl Run {
    fn new(at: Timestamp) -> Self {
        Self {
            at,
            only: None,
            calls: 0,
            refused: 0,
            sent: 0,
            received: 0,
            hosts: Vec::new(),
            more_hosts: false,
        }
    }

    fn add(&mut self, entry: &EgressEntry, host: &str) {
        self.only = None;
        let calls = if entry.outcome == EgressOutcome::Repeated { entry.count.unwrap_or(1) } else { 1 };
        self.calls = self.calls.saturating_add(calls);
        let refused = matches!(
            entry.outcome,
            EgressOutcome::Denied | EgressOutcome::Ask | EgressOutcome::Refused | EgressOutcome::Repeated
        );
        if refused || super::refused_after_all(entry) {
            self.refused = self.refused.saturating_add(calls);
        }
        self.sent = self.sent.saturating_add(entry.sent.unwrap_or(0));
        self.received = self.received.saturating_add(entry.received.unwrap_or(0));
        let host = clip(&visible(host), HOST);
        if !host.is_empty() && !self.hosts.contains(&host) {
            if self.hosts.len() < REMEMBERED {
                self.hosts.push(host);
            } else {
                self.more_hosts = true;
            }
        }
    }

    fn told(self) -> Told {
        let at = self.at;
        match self.only {
            Some(entry) => Told::Entry(entry),
            None => Told::Line(at, self.words()),
        }
    }

    fn words(&self) -> String {
        let named: Vec<&str> = self.hosts.iter().take(HOSTS).map(String::as_str).collect();
        let more = if self.more_hosts || self.hosts.len() > named.len() { ", …" } else { "" };
        let mut line =
            format!("{} of a browser to {}{more}", count(self.calls, "background call"), named.join(", "));
        if self.refused > 0 {
            line.push_str(&format!(" ({} refused)", self.refused));
        }
        for (bytes, word) in [(self.sent, "sent"), (self.received, "received")] {
            if bytes > 0 {
                line.push_str(&format!(" · {} {word}", size(bytes)));
            }
        }
        line
    }
}

/// The host of `METHOD URL`, `SCHEME://HOST:PORT` or `HOST:PORT`.
fn host(request: &str) -> &str {
    let place = request.rsplit(' ').next().unwrap_or(request);
    let place = place.split_once("://").map_or(place, |(_, rest)| rest);
    let authority = place.split(['/', '?', '#']).next().unwrap_or(place);
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use bay_types::egress::{Process, Who};

    use super::*;

    fn entry(id: u64, exe: &str, request: &str, outcome: EgressOutcome) -> EgressEntry {
        let process = Process { pid: 1, host_pid: 2, exe: exe.to_owned(), argv: vec!["x".to_owned()] };
        let value = serde_json::json!({
            "seq": id, "id": id, "at": "2026-01-01T00:00:00Z", "outcome": outcome, "request": request,
        });
        EgressEntry {
            by: Some(Who { process: Some(process), ..Who::default() }),
            ..serde_json::from_value(value).unwrap()
        }
    }

    const CHROME: &str = "/opt/chrome/chrome";

    #[test]
    fn a_run_of_a_browsers_own_calls_is_one_line() {
        let mut background = Background::default();
        for (id, host) in
            (1..).zip(["update.googleapis.com", "mtalk.google.com:5228", "update.googleapis.com"])
        {
            let request = format!("GET https://{host}/service/update2?x=https://other.example/");
            assert!(background.takes(&entry(id, CHROME, &request, EgressOutcome::Denied)), "{host}");
        }
        let mut flood = entry(2, "", "mtalk.google.com:5228", EgressOutcome::Repeated);
        (flood.by, flood.count) = (None, Some(40));
        assert!(background.takes(&flood), "a sum of such calls");
        let Some(Told::Line(_, line)) = background.end() else { panic!("it is one line") };
        let hosts = "update.googleapis.com, mtalk.google.com";
        assert_eq!(line, format!("43 background calls of a browser to {hosts} (43 refused)"));
        assert!(background.end().is_none());
        // The sum may come after the run.
        assert!(background.takes(&flood));
    }

    #[test]
    fn what_a_page_or_another_program_asks_for_is_shown() {
        let mut background = Background::default();
        let shown = [
            entry(1, CHROME, "GET https://shop.example/", EgressOutcome::Denied),
            entry(2, "/usr/bin/curl", "GET https://update.googleapis.com/", EgressOutcome::Denied),
            entry(3, CHROME, "GET https://shop.example/?u=update.googleapis.com", EgressOutcome::Denied),
            entry(4, CHROME, "update.googleapis.com", EgressOutcome::LookedUp),
            entry(5, CHROME, "GET https://update.googleapis.com.evil.example/", EgressOutcome::Ended),
        ];
        for entry in &shown {
            assert!(!background.takes(entry), "{entry:?}");
        }
    }

    #[test]
    fn a_single_call_has_its_own_line() {
        let mut background = Background::default();
        let one = entry(7, CHROME, "CONNECT update.googleapis.com:443", EgressOutcome::Denied);
        assert!(background.takes(&one));
        assert!(matches!(background.end(), Some(Told::Entry(entry)) if *entry == one));
    }

    #[test]
    fn the_host_of_a_request_is_between_its_scheme_and_its_port() {
        for (request, expected) in [
            ("GET https://a.example/x?y=b.example:1", "a.example"),
            ("GET https://a.example:8443/x", "a.example"),
            ("tls://a.example:443", "a.example"),
            ("a.example:443", "a.example"),
            ("a.example", "a.example"),
            ("tcp://[2001:db8::1]:443", "[2001:db8::1]"),
            ("", ""),
        ] {
            assert_eq!(host(request), expected, "{request}");
        }
    }
}
