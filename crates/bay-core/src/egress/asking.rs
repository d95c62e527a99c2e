//! Requests that need an approval. The gateway holds each one until somebody answers, at most for a time chosen by
//! the client's `User-Agent`. If the body, or as much of it as a person is shown, has not arrived, the
//! request is denied.

use std::sync::Arc;
use std::time::Instant;

use bay_gateway::limits::MAX_LOOK_BYTES;
use bay_gateway::{Caller, RecordId, Ruling, Sight, Waiting};
use bay_policy::{CanonicalRequest, Decision, Explanation, Outcome, decide, explain};
use bay_types::egress::Who;
use bay_types::event::egress::{self, EgressDecided};
use bay_types::{ApprovalId, CoreError};
use jiff::Timestamp;

use super::decider::{BayDecider, decided, unrecorded, who, with_explanation};
use super::record::NotRecorded;
use crate::approvals::card::AboutRequest;
use crate::approvals::{RETRY_AFTER, Verdict};
use crate::verbs::{policy, questions};

impl BayDecider {
    /// Asks a person. `None` if the policy changed and no longer asks.
    pub(super) async fn ask(
        &self,
        caller: &Caller,
        request: &CanonicalRequest,
        sight: &mut Sight<'_>,
        mut decision: Decision,
        mut explanation: Explanation,
    ) -> Option<Ruling> {
        let (Some(daemon), Some(handle)) = (self.daemon.upgrade(), self.handle.upgrade()) else {
            return Some(unrecorded(request, "the daemon is about to end"));
        };
        let who = who(&caller.known).await;
        let hold_until = Instant::now()
            + daemon.approvals.hold(if request.git().is_some() {
                // Git over SSH has no `User-Agent`, and waits as long as git over HTTPS.
                Some("git/")
            } else {
                sight.user_agent()
            });
        // The approver approves only what was shown. A body that has not arrived could contain anything.
        let beginning = sight.beginning().await;
        let is_there = beginning.whole || beginning.bytes.len() >= MAX_LOOK_BYTES;
        if sight.headers().is_some() && !is_there {
            let why = "it needs an approval, and its body did not arrive in time: send the complete body";
            let judged = (decision, explanation);
            return Some(self.deny(request, judged, who.as_ref(), sight, why.to_owned()).await);
        }
        let about = AboutRequest {
            request,
            explanation: &explanation,
            who: who.as_ref(),
            secrets: sight.secrets().to_vec(),
            checkpoint: decision.rule().is_some_and(|rule| rule.checkpoint),
        };
        let new = about.into_question(&daemon.approvals, &handle, sight).await;
        loop {
            let verdict = questions::ask(&daemon, &handle, &new, hold_until).await;
            let body = |decision: &Decision, approval: ApprovalId| {
                let event = decided(who.as_ref(), request, decision, sight.secrets());
                EgressDecided { approval: Some(approval), ..event }
            };
            match verdict {
                Ok(Verdict::Allowed(question)) => {
                    let approved = decision.approved(request, &question.id.to_string());
                    let body = body(&approved, question.id);
                    match self.recorder.allowed_by(question.id, body).await {
                        Ok(Some((id, used_up))) => {
                            if used_up {
                                daemon.approvals.forget(&question);
                            }
                            self.approved().insert(id.0.clone(), Arc::clone(&question));
                            return Some(Ruling { id, decision: approved, explanation: None, waiting: None });
                        }
                        // Another request used the allow, so this one needs an approval of its own.
                        Ok(None) => daemon.approvals.forget(&question),
                        Err(NotRecorded(why)) => return Some(unrecorded(request, &why)),
                    }
                }
                Ok(Verdict::Denied(why)) => {
                    return Some(self.deny(request, (decision, explanation), who.as_ref(), sight, why).await);
                }
                Ok(Verdict::Waiting(question)) => {
                    let id = self
                        .record_refusal(
                            request,
                            with_explanation(body(&decision, question.id), &explanation),
                            egress::Outcome::Ask,
                        )
                        .await;
                    let waiting = Waiting { question: question.id.to_string(), retry_after: RETRY_AFTER };
                    return Some(Ruling {
                        id,
                        decision,
                        explanation: Some(Box::new(explanation)),
                        waiting: Some(waiting),
                    });
                }
                Ok(Verdict::Reconsider) => {
                    let (policy, now) = (policy::effective(&daemon, &handle).await, Timestamp::now());
                    decision = decide(&policy, request, now);
                    if decision.outcome != Outcome::Ask {
                        self.set_policy(policy);
                        return None;
                    }
                    explanation = explain(&policy, request, &decision, now);
                }
                Ok(Verdict::Ending) => {
                    let id = self
                        .record_refusal(
                            request,
                            with_explanation(
                                decided(who.as_ref(), request, &decision, sight.secrets()),
                                &explanation,
                            ),
                            egress::Outcome::Ask,
                        )
                        .await;
                    let question = "not asked yet: the daemon is about to end".to_owned();
                    let waiting = Waiting { question, retry_after: RETRY_AFTER };
                    let explanation = Some(Box::new(explanation));
                    return Some(Ruling { id, decision, explanation, waiting: Some(waiting) });
                }
                Err(CoreError { message, .. }) => return Some(unrecorded(request, &message)),
            }
        }
    }

    /// Denies the request for the reason `why`: a person's answer, or a body that did not arrive.
    async fn deny(
        &self,
        request: &CanonicalRequest,
        (mut decision, mut explanation): (Decision, Explanation),
        who: Option<&Who>,
        sight: &Sight<'_>,
        why: String,
    ) -> Ruling {
        decision.outcome = Outcome::Deny;
        explanation.outcome = Outcome::Deny;
        explanation.reason = why;
        explanation.would_allow.clear();
        let event = with_explanation(decided(who, request, &decision, sight.secrets()), &explanation);
        let event = EgressDecided { asked: true, ..event };
        let id = self.record_refusal(request, event, egress::Outcome::Deny).await;
        Ruling { id, decision, explanation: Some(Box::new(explanation)), waiting: None }
    }

    async fn record_refusal(
        &self,
        request: &CanonicalRequest,
        event: EgressDecided,
        what: egress::Outcome,
    ) -> RecordId {
        let of = format!("{}:{}", request.host(), request.port());
        self.recorder.denied(what, of, std::future::ready(event)).await
    }

    /// Decides again on a request that is under way. If the policy asks and a person allowed the request, nobody
    /// is asked again while [`Question::still_allows`](crate::approvals::Question::still_allows).
    pub(super) fn reviewed(&self, id: &RecordId, request: &CanonicalRequest, decision: Decision) -> Decision {
        if decision.outcome != Outcome::Ask {
            return decision;
        }
        let is_open = |exec| self.handle.upgrade().is_some_and(|handle| handle.exec_is_open(exec));
        match self.approved().get(&id.0) {
            Some(question) if question.still_allows(is_open) => {
                decision.approved(request, &question.id.to_string())
            }
            _ => decision,
        }
    }
}
