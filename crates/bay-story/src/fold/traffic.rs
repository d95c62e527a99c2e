//! Like requests of one sender in one line.

use bay_types::egress::Who;
use bay_types::event::Field;
use bay_types::event::egress::{EgressEvent, Ending, Outcome};
use bay_types::timeline::TimelineLine;

use super::{Item, folded};
use crate::sender::{is_background, sender};
use crate::text::{count, safe, size};

/// The most hosts that a line names.
const HOSTS: usize = 3;
/// The most hosts that a group remembers.
const REMEMBERED: usize = 64;
/// The most characters of a host.
const HOST: usize = 60;
/// The most characters of a reason.
const REASON: usize = 120;
/// The first status of an answer that counts as a failure.
const FAILED_STATUS: u16 = 400;

/// How requests ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Answered,
    Failed,
    Refused,
    /// Requests that a browser makes by itself, however they ended.
    Background,
}

/// Like requests.
#[derive(Debug)]
pub(super) struct Group {
    class: Class,
    /// Who sent them. The process of a request is not always found, so it is no part of this.
    key: String,
    by: String,
    hosts: Vec<String>,
    more_hosts: bool,
    /// How many requests. A sum of a flood counts for many.
    requests: u64,
    refused: u64,
    received: u64,
    sent: u64,
    reason: String,
    /// The event is a sum of events like the one with this number.
    like: Option<u64>,
    lines: Vec<TimelineLine>,
}

impl Group {
    /// The group of one event. `None` if it is never folded.
    pub(super) fn of(item: &Item<'_>, event: &EgressEvent) -> Option<Self> {
        let (who, host): (Option<&Who>, &str) = match event {
            EgressEvent::Decided(decided) => (decided.by.as_ref(), &decided.host),
            EgressEvent::Refused(refused) => (refused.by.as_ref(), &refused.host),
            EgressEvent::Ended(_) => {
                let decided = item.decided?;
                (decided.by.as_ref(), &decided.host)
            }
            EgressEvent::Repeated(sum) => (None, sum.of.rsplit_once(':').map_or(&*sum.of, |(host, _)| host)),
            EgressEvent::LookedUp(_) | EgressEvent::Opened(_) | EgressEvent::Closed(_) => return None,
        };
        let background = is_background(who, host);
        let nobody = Who::default();
        let sent_by = who.unwrap_or(&nobody);
        let mut group = Self {
            class: Class::Refused,
            key: match (background, sent_by.exec) {
                (true, _) => "a browser".to_owned(),
                (false, Some(exec)) => exec.to_string(),
                (false, None) => sender(Some(&Who { process: None, ..sent_by.clone() }), item.number),
            },
            by: if background { "a browser".to_owned() } else { sender(who, item.number) },
            hosts: Some(safe(host, HOST)).filter(|host| !host.is_empty()).into_iter().collect(),
            more_hosts: false,
            requests: 1,
            refused: 0,
            received: 0,
            sent: 0,
            reason: String::new(),
            like: None,
            lines: vec![item.line.clone()],
        };
        match event {
            EgressEvent::Decided(decided) => {
                if decided.outcome == Field::Is(Outcome::Allow) {
                    return None;
                }
                group.reason = safe(decided.reason().unwrap_or_default(), REASON);
            }
            EgressEvent::Refused(refused) => group.reason = safe(&refused.why, REASON),
            EgressEvent::Ended(ended) => {
                let answered = ended.ending == Field::Is(Ending::Answered)
                    && ended.status.is_none_or(|status| status < FAILED_STATUS);
                let ordinary =
                    answered || matches!(ended.ending, Field::Is(Ending::Closed | Ending::Abandoned));
                group.class = if ordinary { Class::Answered } else { Class::Failed };
                group.reason = match (ended.status, &ended.failure) {
                    (_, Some(failure)) => safe(failure, REASON),
                    (Some(status), None) => format!("answered {status}"),
                    (None, None) => String::new(),
                };
                group.received = ended.received.get().copied().unwrap_or_default();
                group.sent = ended.sent.get().copied().unwrap_or_default();
            }
            EgressEvent::Repeated(sum) => {
                group.requests = sum.count.get().copied().unwrap_or(1);
                group.like = Some(sum.like);
                if sum.distinct.is_some() {
                    group.hosts = sum.sample.iter().take(HOSTS).map(|name| safe(name, HOST)).collect();
                    group.more_hosts = true;
                }
            }
            EgressEvent::LookedUp(_) | EgressEvent::Opened(_) | EgressEvent::Closed(_) => return None,
        }
        group.refused = if group.class == Class::Refused { group.requests } else { 0 };
        if background {
            group.class = Class::Background;
        }
        Some(group)
    }

    /// Whether another group becomes part of this one.
    pub(super) fn takes(&self, other: &Self) -> bool {
        match other.like {
            // A sum belongs to the refusal that it continues, whose sender it does not name.
            Some(like) => {
                like != 0 && self.lines.iter().any(|line| line.seq == like)
                    || self.like.is_some() && self.hosts == other.hosts
            }
            None => self.like.is_none() && self.class == other.class && self.key == other.key,
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        for host in other.hosts {
            if self.hosts.contains(&host) {
                continue;
            }
            if self.hosts.len() < REMEMBERED {
                self.hosts.push(host);
            } else {
                self.more_hosts = true;
            }
        }
        self.more_hosts |= other.more_hosts;
        // The longer name has the program. A sum names no sender.
        if other.like.is_none() && other.by.len() > self.by.len() {
            self.by = other.by;
        }
        self.requests = self.requests.saturating_add(other.requests);
        self.refused = self.refused.saturating_add(other.refused);
        self.received = self.received.saturating_add(other.received);
        self.sent = self.sent.saturating_add(other.sent);
        if self.reason.is_empty() {
            self.reason = other.reason;
        }
        self.lines.extend(other.lines);
    }

    /// Its line, or the lines of its events if there are few.
    pub(super) fn lines(self) -> Vec<TimelineLine> {
        // Two requests keep their lines; a browser's calls and sums of floods do not.
        let few = self.lines.len() < super::LIKE && self.class != Class::Background;
        if few && (self.like.is_some() || self.lines.len() as u64 == self.requests) || self.lines.len() == 1 {
            return self.lines;
        }
        let what = self.words();
        let events = self.lines.len() as u64;
        let mut lines = self.lines;
        lines.sort_by_key(|line| line.seq);
        folded(lines, events, what).into_iter().collect()
    }

    fn words(&self) -> String {
        let mut line = match self.class {
            Class::Background => format!("{} of a browser", count(self.requests, "background call")),
            _ => count(self.requests, "request"),
        };
        let named: Vec<&str> = self.hosts.iter().take(HOSTS).map(String::as_str).collect();
        let left = self.hosts.len().saturating_sub(named.len());
        if !named.is_empty() {
            line.push_str(&format!(" to {}", named.join(", ")));
        }
        if left > 0 || self.more_hosts {
            line.push_str(if named.is_empty() { "" } else { ", …" });
        }
        match self.class {
            Class::Answered => line.push_str(" answered"),
            Class::Failed => line.push_str(" failed"),
            Class::Refused => line.push_str(" refused"),
            Class::Background if self.refused > 0 => line.push_str(&format!(" ({} refused)", self.refused)),
            Class::Background => {}
        }
        if matches!(self.class, Class::Failed | Class::Refused) && !self.reason.is_empty() {
            line.push_str(&format!(": {}", self.reason));
        }
        for (bytes, word) in [(self.sent, "sent"), (self.received, "received")] {
            if bytes > 0 {
                line.push_str(&format!(" · {} {word}", size(bytes)));
            }
        }
        if self.class != Class::Background {
            line.push_str(&format!(" · by {}", self.by));
        }
        line
    }
}
