//! Sums over what a bay sent and tried to send.

use std::collections::{BTreeMap, HashMap};

use bay_types::ExecId;
use bay_types::event::egress::{EgressDecided, Outcome};
use bay_types::event::{EgressEvent, Event, Field};
use bay_types::story::{Few, RefusedRequests, Upload};

use super::{COMMAND, KNOWN, NAME, TEXT, few};
use crate::sender::sender;
use crate::text::safe;

/// How many decisions wait for their ends. Without its decision, the end of a request counts for nobody.
const UNDER_WAY: usize = 10_000;
/// The reason of a refusal without a policy's words.
const NO_REASON: &str = "no reason on record";

/// The traffic of a bay.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    under_way: BTreeMap<u64, Begun>,
    refused: HashMap<String, RefusedRequests>,
    /// The refusal of each recent decision, for the sums of floods.
    refused_by_seq: BTreeMap<u64, String>,
    more_refused: u64,
    uploads: BTreeMap<String, Upload>,
    totals: Totals,
}

#[derive(Debug)]
struct Begun {
    exec: Option<ExecId>,
    host: String,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) requests: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
}

/// What one event adds to the exec behind it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) exec: Option<ExecId>,
    pub(super) requests: u64,
    pub(super) refused: bool,
    pub(super) received: u64,
    /// How long the request took.
    pub(super) ms: Option<u64>,
}

impl Sent {
    fn refused(exec: Option<ExecId>, requests: u64) -> Self {
        Self { exec, requests, refused: true, received: 0, ms: None }
    }
}

impl Traffic {
    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    pub(super) fn push(
        &mut self,
        event: &Event,
        said: &EgressEvent,
        number: impl Fn(ExecId) -> Option<u64>,
    ) -> Option<Sent> {
        match said {
            EgressEvent::Decided(decided) if decided.outcome == Field::Is(Outcome::Allow) => {
                let exec = decided.by.as_ref().and_then(|who| who.exec);
                self.under_way.insert(event.seq, Begun { exec, host: safe(&decided.host, NAME) });
                if self.under_way.len() > UNDER_WAY {
                    self.under_way.pop_first();
                }
                None
            }
            EgressEvent::Decided(decided) => {
                let exec = decided.by.as_ref().and_then(|who| who.exec);
                let by = sender(decided.by.as_ref(), exec.and_then(number));
                let reason = decided.reason().unwrap_or(NO_REASON);
                let rule = decided.rule.as_ref().map(|rule| safe(&rule.id, NAME));
                self.refuse(event.seq, &request(decided), reason, rule, by, true);
                Some(Sent::refused(exec, 1))
            }
            EgressEvent::Refused(refused) => {
                let exec = refused.by.as_ref().and_then(|who| who.exec);
                let by = sender(refused.by.as_ref(), exec.and_then(number));
                let to = format!("{}:{}", refused.host, refused.port);
                self.refuse(event.seq, &to, &refused.why, None, by, false);
                Some(Sent::refused(exec, 1))
            }
            EgressEvent::Repeated(sum) => {
                let count = sum.count.get().copied().unwrap_or(1);
                let known = self.refused_by_seq.get(&sum.like).and_then(|key| self.refused.get_mut(key));
                match known {
                    Some(known) => known.requests = known.requests.saturating_add(count),
                    None => self.more_refused = self.more_refused.saturating_add(count),
                }
                None
            }
            EgressEvent::Ended(ended) => {
                let begun = self.under_way.remove(ended.of.get()?)?;
                let sent = ended.sent.get().copied().unwrap_or_default();
                let received = ended.received.get().copied().unwrap_or_default();
                let totals = &mut self.totals;
                totals.requests += 1;
                totals.sent = totals.sent.saturating_add(sent);
                totals.received = totals.received.saturating_add(received);
                if sent > 0 {
                    self.upload(&begun.host, sent);
                }
                let ms = ended.ms.get().copied();
                Some(Sent { exec: begun.exec, requests: 1, refused: false, received, ms })
            }
            EgressEvent::LookedUp(_) | EgressEvent::Opened(_) | EgressEvent::Closed(_) => None,
        }
    }

    fn refuse(
        &mut self,
        seq: u64,
        request: &str,
        reason: &str,
        rule: Option<String>,
        by: String,
        decided: bool,
    ) {
        let request = safe(request, COMMAND);
        let reason = safe(reason, TEXT);
        let key = format!("{request}\n{reason}");
        if self.refused.len() >= KNOWN && !self.refused.contains_key(&key) {
            self.more_refused = self.more_refused.saturating_add(1);
            return;
        }
        let known = self.refused.entry(key.clone()).or_insert_with(|| RefusedRequests {
            request,
            requests: 0,
            rule,
            reason,
            by,
            decision: None,
        });
        known.requests = known.requests.saturating_add(1);
        known.decision = decided.then_some(seq).or(known.decision);
        self.refused_by_seq.insert(seq, key);
        if self.refused_by_seq.len() > KNOWN {
            self.refused_by_seq.pop_first();
        }
    }

    fn upload(&mut self, host: &str, bytes: u64) {
        if self.uploads.len() >= KNOWN && !self.uploads.contains_key(host) {
            return;
        }
        let upload = self.uploads.entry(host.to_owned()).or_insert_with(|| Upload {
            host: host.to_owned(),
            requests: 0,
            bytes: 0,
        });
        upload.requests += 1;
        upload.bytes = upload.bytes.saturating_add(bytes);
    }

    /// The refusals, those of most requests first.
    pub(super) fn refused(&mut self) -> Few<RefusedRequests> {
        let mut all: Vec<RefusedRequests> = std::mem::take(&mut self.refused).into_values().collect();
        all.sort_by(|a, b| b.requests.cmp(&a.requests).then_with(|| a.request.cmp(&b.request)));
        let mut few = few(all);
        few.more = few.more.saturating_add(self.more_refused);
        few
    }

    pub(super) fn uploads(&mut self) -> Few<Upload> {
        let mut all: Vec<Upload> = std::mem::take(&mut self.uploads).into_values().collect();
        all.sort_by_key(|upload| std::cmp::Reverse(upload.bytes));
        few(all)
    }
}

fn request(decided: &EgressDecided) -> String {
    if decided.request.is_empty() {
        format!("{}:{}", decided.host, decided.port)
    } else {
        decided.request.clone()
    }
}
