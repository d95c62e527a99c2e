//! The daemon's answers to the gateway of one bay: the policy, the secrets, who opened a connection, and the
//! record.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use async_trait::async_trait;
use bay_gateway::secrets::Secrets;
use bay_gateway::{Caller, Decider, Ended, Known, LookUp, RecordId, Refused, Ruling, Sight};
use bay_policy::{
    CanonicalRequest, Cause, CompiledPolicy, Decision, Explanation, Host, Outcome, Route, decide, explain,
    is_host_itself, route,
};
use bay_types::egress::Who;
use bay_types::event::egress::{self, EgressDecided, EgressRefused, Refusal, SecretMisuse};
use bay_types::guest::{DNS_PORT, GATEWAY_V4};
use bay_types::traffic::EgressRule;
use jiff::Timestamp;
use secrecy::SecretString;
use serde_json::{Value, json};

use super::caller::{Callers, Opener};
use super::record::{NotRecorded, Recorder};
use crate::approvals::Question;
use crate::daemon::Daemon;
use crate::gateway_files::NamesFile;
use crate::registry::BayHandle;

/// The longest request, name or reason that is recorded whole. Of a longer one, this many bytes of its beginning
/// and its end together are.
const MAX_REQUEST: usize = 2048;
/// The longest explanation that is recorded whole. Of a longer one, the request, the outcome and the reason are.
const MAX_EXPLANATION: usize = 8192;

pub(super) struct BayDecider {
    pub(super) recorder: Arc<Recorder>,
    pub(super) names: NamesFile,
    pub(super) callers: Callers,
    pub(super) policy: RwLock<Arc<CompiledPolicy>>,
    /// Requests that an approval let out and that have not ended, with the approval.
    pub(super) approved: Mutex<HashMap<String, Arc<Question>>>,
    pub(super) secrets: RwLock<Arc<Secrets>>,
    pub(super) daemon: Weak<Daemon>,
    pub(super) handle: Weak<BayHandle>,
}

impl BayDecider {
    pub(super) fn policy(&self) -> Arc<CompiledPolicy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn approved(&self) -> MutexGuard<'_, HashMap<String, Arc<Question>>> {
        self.approved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_policy(&self, policy: Arc<CompiledPolicy>) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = policy;
    }

    pub(super) fn set_secrets(&self, secrets: Arc<Secrets>) {
        *self.secrets.write().unwrap_or_else(PoisonError::into_inner) = secrets;
    }
}

pub(super) async fn who(known: &Known) -> Option<Who> {
    known.downcast_ref::<Opener>()?.who().await
}

/// Shortens a long text.
fn clip(text: String) -> String {
    if text.len() <= MAX_REQUEST {
        return text;
    }
    // What matters may be at the beginning or at the end.
    let (mut begin, mut end) = (MAX_REQUEST / 2, text.len() - MAX_REQUEST / 2);
    while !text.is_char_boundary(begin) {
        begin -= 1;
    }
    while !text.is_char_boundary(end) {
        end += 1;
    }
    format!("{} … {} bytes … {}", &text[..begin], end - begin, &text[end..])
}

pub(super) fn decided(
    who: Option<&Who>,
    request: &CanonicalRequest,
    decision: &Decision,
    secrets: &[String],
) -> EgressDecided {
    let rule = decision.rule();
    EgressDecided {
        request: clip(request.to_string()),
        host: request.host().to_string(),
        port: request.port(),
        outcome: outcome(decision.outcome).into(),
        rule: rule.map(|rule| EgressRule { id: rule.id.clone(), origin: rule.origin.to_string() }),
        by: who.cloned(),
        secrets: secrets.to_vec(),
        approval: None,
        asked: false,
        explanation: None,
        left_out: None,
    }
}

fn outcome(decided: Outcome) -> egress::Outcome {
    match decided {
        Outcome::Allow => egress::Outcome::Allow,
        Outcome::Ask => egress::Outcome::Ask,
        Outcome::Deny => egress::Outcome::Deny,
    }
}

/// The event of a decision, with its explanation.
pub(super) fn with_explanation(event: EgressDecided, explanation: &Explanation) -> EgressDecided {
    EgressDecided { explanation: Some(bounded(explanation)), ..event }
}

/// An explanation as it is recorded. One that repeats a long request in each of its parts could exceed the length
/// of an event.
fn bounded(explanation: &Explanation) -> Value {
    let whole = json!(explanation);
    if whole.to_string().len() <= MAX_EXPLANATION {
        return whole;
    }
    json!({ "request": clip(explanation.request.clone()), "outcome": explanation.outcome, "reason": clip(explanation.reason.clone()) })
}

/// The refusal of a request because it, or the question about it, cannot be recorded.
pub(super) fn unrecorded(request: &CanonicalRequest, why: &str) -> Ruling {
    let decision =
        Decision { outcome: Outcome::Deny, cause: Cause::NoPolicy, layers: Vec::new(), credentials: false };
    let explanation = Explanation {
        request: request.to_string(),
        outcome: Outcome::Deny,
        reason: format!("{why}; nothing leaves without being on record"),
        rule: None,
        layers: Vec::new(),
        would_allow: Vec::new(),
        near_misses: Vec::new(),
        warnings: Vec::new(),
        credentials: false,
    };
    Ruling { id: RecordId("0".to_owned()), decision, explanation: Some(Box::new(explanation)), waiting: None }
}

#[async_trait]
impl Decider for BayDecider {
    fn attribute(&self, peer: SocketAddr, local: SocketAddr) -> Known {
        Arc::new(self.callers.opener(peer, local))
    }

    /// Names with a dot get an address even if the policy denies them, so that their user gets a refusal with the
    /// reason. Names without a dot are what a resolver tries for its own network, and a bay has none.
    fn look_up(&self, host: &Host) -> LookUp {
        match host.name() {
            // While a name could not be stored, no other name gets an address: a later daemon might give the same
            // address to a third name.
            _ if self.names.settle().is_err() => LookUp::Refused,
            // A name that leads nowhere does not exist.
            Some(_) if is_host_itself(host) && self.policy().reach().is_empty() => LookUp::NoSuchName,
            Some(name) if name.contains('.') => LookUp::Answer,
            _ => LookUp::NoSuchName,
        }
    }

    fn looked_up(&self, peer: SocketAddr, name: &str, kind: &str, answer: LookUp, new: bool) -> bool {
        let mut kept = true;
        if new && let Err(error) = self.names.add(name) {
            tracing::error!(%error, "a name's address could not be stored; look-ups in this bay fail until it is");
            kept = false;
        }
        let recorder = Arc::clone(&self.recorder);
        let (name, kind) = (clip(name.to_owned()), kind.to_owned());
        // Now, while the socket of the query exists.
        let who = self.callers.asker(peer, SocketAddr::new(GATEWAY_V4.into(), DNS_PORT));
        let callers = self.callers.clone();
        tokio::spawn(async move {
            let who = callers.sure(who).await;
            recorder.looked_up(peer, &name, &kind, answer, who).await;
        });
        kept
    }

    fn route(&self, host: &Host, port: u16) -> Route {
        route(&self.policy(), host, port, Timestamp::now())
    }

    async fn decide(&self, caller: &Caller, request: &CanonicalRequest, sight: &mut Sight<'_>) -> Ruling {
        loop {
            let (policy, now) = (self.policy(), Timestamp::now());
            let decision = decide(&policy, request, now);
            if decision.outcome == Outcome::Allow {
                let body = decided(who(&caller.known).await.as_ref(), request, &decision, sight.secrets());
                return match self.recorder.allowed(body, request.git().is_some()).await {
                    Ok(id) => Ruling { id, decision, explanation: None, waiting: None },
                    Err(NotRecorded(why)) => unrecorded(request, &why),
                };
            }
            let explanation = explain(&policy, request, &decision, now);
            if decision.outcome == Outcome::Ask {
                match self.ask(caller, request, sight, decision, explanation).await {
                    Some(ruling) => return ruling,
                    None => continue,
                }
            }
            let body = async {
                let body = decided(who(&caller.known).await.as_ref(), request, &decision, sight.secrets());
                with_explanation(body, &explanation)
            };
            let of = format!("{}:{}", request.host(), request.port());
            let id = self.recorder.denied(egress::Outcome::Deny, of, body).await;
            return Ruling { id, decision, explanation: Some(Box::new(explanation)), waiting: None };
        }
    }

    fn review(&self, id: &RecordId, request: &CanonicalRequest) -> Decision {
        self.reviewed(id, request, decide(&self.policy(), request, Timestamp::now()))
    }

    fn secrets(&self) -> Arc<Secrets> {
        self.secrets.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn attach(
        &self,
        id: &RecordId,
        wanted: &[(String, u64)],
    ) -> Result<Vec<Arc<SecretString>>, String> {
        let daemon = self.daemon.upgrade().ok_or("the daemon is about to end")?;
        let mut values = Vec::new();
        for (name, incarnation) in wanted {
            values.push(daemon.secrets.value(name, *incarnation).await?);
        }
        self.recorder.durable(id).await.map_err(|NotRecorded(why)| why)?;
        Ok(values)
    }

    async fn refused(&self, caller: &Caller, what: &Refused<'_>) -> RecordId {
        let (mut secret, mut kind) = (None, String::new());
        let (what, host, port, why) = match what {
            Refused::Connection { host, port, decision } => {
                let why = match decision.rule() {
                    Some(rule) => format!("rule {} at {} refuses it", rule.id, rule.origin),
                    None if matches!(decision.cause, Cause::NotReached { .. }) => {
                        "this port of the host is not open to the bay".to_owned()
                    }
                    None => "no rule covers this host and port".to_owned(),
                };
                (Refusal::Connection, host.to_string(), *port, why)
            }
            Refused::Nameless { destination } => {
                let why = "no name has this address: it was never looked up in this bay".to_owned();
                (Refusal::Nameless, destination.ip().to_string(), destination.port(), why)
            }
            Refused::Form { host, port, refusal } => {
                (Refusal::Form, host.to_string(), *port, refusal.to_string())
            }
            Refused::Protocol { host, port, why } => {
                (Refusal::Protocol, host.to_string(), *port, (*why).to_owned())
            }
            Refused::TooMany { destination } => {
                let why = "the bay has as many connections, or requests under way, as it may have".to_owned();
                (Refusal::TooMany, destination.ip().to_string(), destination.port(), why)
            }
            Refused::Upgrade { host, port, why } => {
                (Refusal::Upgrade, host.to_string(), *port, (*why).to_owned())
            }
            Refused::Secret { host, port, misuse } => {
                kind = format!(" {} {}", misuse.secret, misuse.kind.as_str());
                secret = Some(SecretMisuse {
                    name: misuse.secret.clone(),
                    misuse: misuse.kind.as_str().to_owned(),
                    place: misuse.place.clone(),
                });
                (Refusal::Secret, host.to_string(), *port, misuse.to_string())
            }
        };
        // Each way of misusing each secret counts separately.
        let of = format!("{host}:{port}{kind}");
        let event = async {
            let by = who(&caller.known).await;
            EgressRefused { what: what.into(), host, port, why: clip(why), by, secret, left_out: None }
        };
        self.recorder.refused(what, of, event).await
    }

    fn ended(&self, id: &RecordId, ended: &Ended) {
        self.approved().remove(&id.0);
        let (recorder, id, ended) = (Arc::clone(&self.recorder), id.clone(), ended.clone());
        tokio::spawn(async move { recorder.ended(&id, &ended).await });
    }
}
