//! Decisions on services of the host, under the one name that means the host itself.
//!
//! Only an operator opens a port ([`CompiledPolicy::reaching`]); no rule does. An open port needs no rule. A deny of
//! any layer takes it back, and an ask asks. On an open port, what no rule covers is allowed, whatever a layer says
//! for other hosts. Git over SSH is always denied here, and the gateway puts no credentials into these requests.
//!
//! The first bytes of a connection show whether it is HTTP/1. The requests of every other protocol cannot be read, so
//! that a rule on some of them, such as a deny of one path, counts for the whole connection. Otherwise a client could
//! evade such a rule by speaking HTTP/2.

use jiff::Timestamp;

use super::{Cause, Decision, LayerVerdict, Route, denied, forbids_all};
use crate::canonical::path::Reading;
use crate::canonical::{CanonicalRequest, Host, Scheme};
use crate::compile::{CompiledLayer, CompiledPolicy, CompiledRule, RuleRef};
use crate::index::Wanted;
use crate::rule::{Kind, Matcher, Outcome};

pub(super) fn decide(
    policy: &CompiledPolicy,
    request: &CanonicalRequest,
    reading: Option<&Reading>,
    now: Timestamp,
) -> Decision {
    let port = request.port();
    // Git over SSH would use a key of the operator.
    if !policy.reach.contains(&port) || request.kind() == Kind::GitSsh {
        return denied(Cause::NotReached { port }, Vec::new());
    }
    let layers: Vec<LayerVerdict> =
        policy.layers.iter().map(|layer| layer.judge_host_itself(request, reading, now)).collect();
    let worst = layers.iter().filter_map(|verdict| verdict.outcome).max().unwrap_or(Outcome::Allow);
    let granted = if worst == Outcome::Ask { policy.grant_for(request, reading, now) } else { None };
    let outcome = if granted.is_some() { Outcome::Allow } else { worst };
    let cause = match (granted, layers.iter().find(|verdict| verdict.outcome == Some(worst))) {
        (Some(grant), _) => Cause::Grant { grant },
        (None, Some(verdict)) if worst != Outcome::Allow => verdict.cause(policy),
        _ => Cause::Rule { rule: RuleRef::reach(request.kind()) },
    };
    // The operator opened a port, and named no credentials for it.
    Decision { outcome, cause, layers, credentials: false }
}

pub(super) fn route(policy: &CompiledPolicy, host: &Host, port: u16, now: Timestamp) -> Route {
    let Ok(tcp) = CanonicalRequest::tcp(&host.to_string(), port) else {
        return Route::Refuse { decision: denied(Cause::NotReached { port }, Vec::new()) };
    };
    let decision = super::decide(policy, &tcp, now);
    let denies_all = |rule: &CompiledRule| {
        rule.outcome == Outcome::Deny && now < rule.expires && forbids_all(&rule.matcher, host, port)
    };
    let nothing = policy.layers.iter().flat_map(|layer| &layer.rules).any(denies_all);
    if nothing || !policy.reach.contains(&port) {
        Route::Refuse { decision }
    } else {
        Route::HostItself { decision }
    }
}

impl CompiledLayer {
    /// The verdict of the layer's rules. A layer without a rule for the request leaves it to the operator's word.
    fn judge_host_itself(
        &self,
        request: &CanonicalRequest,
        reading: Option<&Reading>,
        now: Timestamp,
    ) -> LayerVerdict {
        let verdict = self.judge(request, reading, now);
        if verdict.rule.is_some() {
            return verdict;
        }
        let unread = matches!(request.kind(), Kind::Tcp | Kind::Passthrough);
        let rule = if unread { self.strictest_on_connection(request, now) } else { None };
        LayerVerdict {
            outcome: rule.map(|rule| rule.outcome),
            rule: rule.map(|rule| rule.head.clone()),
            ..verdict
        }
    }

    /// The most restrictive deny or ask that some request on the connection could match.
    fn strictest_on_connection(&self, request: &CanonicalRequest, now: Timestamp) -> Option<&CompiledRule> {
        let (host, port) = (request.host(), request.port());
        let mut strictest: Option<&CompiledRule> = None;
        self.index.visit(host, &Wanted::Everything, &mut |at| {
            let rule = &self.rules[at];
            let concerns = match rule.outcome {
                Outcome::Allow => false,
                Outcome::Ask => rule.matcher.hosts.iter().any(|pattern| pattern.permits(host)),
                Outcome::Deny => rule.matcher.hosts.iter().any(|pattern| pattern.forbids(host)),
            };
            let stricter = strictest.is_none_or(|other| other.outcome < rule.outcome);
            if concerns && stricter && now < rule.expires && may_be_on(&rule.matcher, port) {
                strictest = Some(rule);
            }
        });
        strictest
    }
}

fn may_be_on(matcher: &Matcher, port: u16) -> bool {
    matcher.ports.contains(port, Scheme::Https)
        || matcher.schemes.iter().any(|scheme| matcher.ports.contains(port, *scheme))
}
