//! How a question ends: answered, expired, dropped, or its allow revoked. Each of these is on the disk, with its
//! event, before anybody acts on it. Only [`drop_all`](Approvals::drop_all) does not wait for the disk. An allow
//! that is used up, and an answer whose time is over, are only forgotten, without an event.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bay_store::{Answered, Draft, Lasting};
use bay_types::approval::{Answer, Approval, ApprovalState, Reach};
use bay_types::event::ApprovalEvent;
use bay_types::event::approval::{
    ApprovalAllowed, ApprovalDenied, ApprovalDropped, ApprovalExpired, ApprovalRevoked,
};
use bay_types::{BayId, CoreError};
use jiff::{SignedDuration, Timestamp};

use super::question::{Question, Status};
use super::{Approvals, card};
use crate::policies::too_many_grants;

/// The interval between two checks for questions whose time is over.
const SWEEP_EVERY: Duration = Duration::from_millis(250);

/// How to end an open question.
#[derive(Debug)]
pub(crate) struct Settling {
    pub(crate) status: Status,
    pub(crate) by: String,
    pub(crate) why: Option<String>,
    /// How often an allow may be used. `None`: without limit.
    pub(crate) uses: Option<u64>,
    /// A rule or grant to store in the same transaction.
    pub(crate) lasting: Option<Lasting>,
}

impl Settling {
    pub(crate) fn new(status: Status, by: impl Into<String>) -> Self {
        Self { status, by: by.into(), why: None, uses: None, lasting: None }
    }
}

impl Approvals {
    /// Ends an open question. `false` if somebody else ended it before.
    pub(crate) async fn settle(
        &self,
        question: &Arc<Question>,
        settling: Settling,
    ) -> Result<bool, CoreError> {
        let Settling { status, by, why, uses, lasting } = settling;
        let at = Timestamp::now();
        let (reach, until, any_body) = match &status {
            Status::Allowed { reach, until, any_body } => {
                let left = SignedDuration::try_from(until.saturating_duration_since(Instant::now()));
                (Some(*reach), Some(at + left.unwrap_or(SignedDuration::ZERO)), *any_body)
            }
            _ => (None, None, false),
        };
        let bound = reach.is_some() && !any_body;
        let after_ms = u64::try_from(question.age().as_millis()).unwrap_or(u64::MAX);
        let answer = Answer { by, at, after_ms, reach, bound, any_body, until, why };
        let (id, bay) = (question.id, question.card.bay);
        let event = Draft::of(end_event(&question.card, status.state(), &answer));
        let store = &self.store;
        let settled =
            store.approval_answer(id, bay, status.state(), &answer, uses, lasting.as_ref(), &event).await;
        let seq = match settled.map_err(|e| e.to_api())? {
            Answered::Yes(seq) => seq,
            Answered::TooLate => return Ok(false),
            Answered::NoRoomForGrant => return Err(too_many_grants(&question.card.bay_name)),
        };
        self.durable(seq).await?;
        *question.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        if lasting.is_some() {
            self.policies.touch(bay);
        }
        self.publish(question, status);
        self.notify(id);
        Ok(true)
    }

    /// Ends an allow that could still be used. The gateway then decides anew on the requests under way that it let out.
    /// `false` if the allow cannot be used any more.
    pub(crate) async fn revoke(&self, card: &Approval, by: &str) -> Result<bool, CoreError> {
        let event = Draft::of(ApprovalRevoked {
            approval: card.id.into(),
            digest: card.digest.clone(),
            request: card::line(card),
            by: by.to_owned(),
        });
        let revoked = self.store.approval_revoke(card.id, card.bay, &event).await.map_err(|e| e.to_api())?;
        let Some(seq) = revoked else { return Ok(false) };
        self.durable(seq).await?;
        if let Some(question) = self.find(card.id) {
            self.publish(&question, Status::Revoked { by: by.to_owned() });
        }
        // The gateway decides anew on the requests that it let out.
        self.policies.touch(card.bay);
        self.notify(card.id);
        Ok(true)
    }

    /// Shows the stored end of a question to its waiting clients. A question that cannot be used any more is forgotten.
    fn publish(&self, question: &Question, status: Status) {
        let over = matches!(status, Status::Expired | Status::Dropped(_) | Status::Revoked { .. });
        question.status.send_replace(status);
        if over {
            self.forget(question);
        }
    }

    /// Drops the open questions and the allows of a bay that was stopped, begins anew or was removed: the processes
    /// behind them are gone.
    pub(crate) async fn drop_all(&self, bay: BayId, why: &str) -> Result<(), CoreError> {
        let dropped = self.store.approvals_drop(bay, why).await.map_err(|e| e.to_api())?;
        // The rate and the denials stay: a bay that restores itself could otherwise ask without limit.
        let denied = |question: &Arc<Question>| matches!(*question.status.borrow(), Status::Denied { .. });
        let gone = self.bays().get_mut(&bay).map(|of| {
            of.passed.clear();
            let (kept, gone): (Vec<_>, Vec<_>) = of.questions.drain(..).partition(denied);
            of.questions = kept;
            gone
        });
        for question in gone.into_iter().flatten() {
            question.status.send_replace(Status::Dropped(why.to_owned()));
        }
        for id in dropped {
            self.notify(id);
        }
        Ok(())
    }

    /// Forgets a question whose answer is used up or can no longer be used.
    pub(crate) fn forget(&self, question: &Question) {
        if let Some(of) = self.bays().get_mut(&question.card.bay) {
            of.questions.retain(|other| other.id != question.id);
        }
    }

    /// Ends questions that nobody answered in time, and forgets allows and denials whose time is over. Never
    /// returns.
    pub(crate) async fn sweep(&self) {
        loop {
            let questions = self.all();
            if questions.is_empty() {
                self.opened.notified().await;
                continue;
            }
            let now = Instant::now();
            for question in questions {
                let status = question.status.borrow().clone();
                match status {
                    Status::Open if now >= question.deadline => {
                        let settling = Settling::new(Status::Expired, "timeout");
                        if let Err(error) = self.settle(&question, settling).await {
                            tracing::error!(message = %error.message, "the end of an approval could not be recorded");
                        }
                    }
                    Status::Allowed { until, reach, .. } if now >= until => {
                        self.forget(&question);
                        if reach == Reach::For {
                            // Streams that it let out end with it.
                            self.policies.touch(question.card.bay);
                        }
                    }
                    Status::Denied { .. } if now >= question.deadline => self.forget(&question),
                    _ => {}
                }
            }
            tokio::time::sleep(SWEEP_EVERY).await;
        }
    }
}

/// The event of the end of a question.
fn end_event(card: &Approval, state: ApprovalState, answer: &Answer) -> ApprovalEvent {
    let (digest, request) = (card.digest.clone(), card::line(card));
    let Answer { by, at, after_ms, reach, bound, any_body, until, why } = answer.clone();
    let approval = card.id;
    // Events of different kinds that share these fields.
    macro_rules! event {
        ($event:ident { $($more:ident),* }) => {
            $event { approval: approval.into(), digest, request, by, at: at.into(), after_ms, why, $($more),* }
        };
    }
    match state {
        ApprovalState::Allowed => {
            ApprovalEvent::Allowed(event!(ApprovalAllowed { reach, bound, any_body, until }))
        }
        ApprovalState::Denied => ApprovalEvent::Denied(event!(ApprovalDenied {})),
        ApprovalState::Expired => ApprovalEvent::Expired(event!(ApprovalExpired {})),
        ApprovalState::Open | ApprovalState::Dropped | ApprovalState::Revoked => {
            ApprovalEvent::Dropped(ApprovalDropped {
                approvals: Vec::new(),
                approval: Some(approval),
                digest: Some(digest),
                request: Some(request),
                by: Some(by),
                at: Some(at),
                after_ms: Some(after_ms),
                why,
            })
        }
    }
}
