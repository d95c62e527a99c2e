//! Questions to a person: held requests and commands, until somebody answers, time is up, or what asked is gone.
//!
//! ```text
//!              ┌──────────── same request again: joins ────────────┐
//!  ask ──► is there one like it? ── no ──► caps ──► checkpoint ──► row + event, on the disk ──► open
//!              │ yes                                                          │
//!              ├─ allowed ──► used, in one transaction with the event of the act      ├─ allow ──► allowed ──► used up, over, or revoked
//!              ├─ denied ───► refused, without asking again                   ├─ deny ───► denied
//!              └─ open ─────► held ──► time to hold is over: 503, come again  ├─ time ───► expired (a denial)
//!                                                                             └─ the bay is stopped: dropped
//! ```
//! An allow covers the digest of the question that was answered and nothing else, unless the approver said `any_body`: a
//! client may have left by the time of the answer, and come back with something else. That is a new question, which says
//! how it differs.
//!
//! The store is the truth: an answer and a use are transactions that look at how the question stands, so of two who
//! answer one is first, and an allow for one request is used by one. What is open, or may still be used, is found again by
//! the next daemon. Times are measured by the clock that nobody sets; what is read back from the store is never longer than
//! it could have been.
//!
//! The floods of a bay are its own: the same is asked once, so many are open at a time, and so many are asked in a minute.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bay_store::{Answered, ApprovalRow, Draft, Lasting, Store, StoreError};
use bay_types::approval::{Answer, Approval, ApprovalState, Asked, Differs, Reach};
use bay_types::event::ApprovalEvent;
use bay_types::event::approval::{
    ApprovalAllowed, ApprovalDenied, ApprovalDropped, ApprovalExpired, ApprovalRevoked,
};
use bay_types::principal::INSIDE;
use bay_types::{ApprovalId, BayId, CheckpointName, CoreError, ExecId};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Notify, OwnedMutexGuard, broadcast, watch};

use crate::policies::{Policies, too_many_grants};
use crate::registry::BayHandle;

pub(crate) mod card;
mod difference;
mod pack;
mod patience;
mod question;
mod rate;

pub(crate) use difference::Parts;
pub(crate) use patience::RETRY_AFTER;
use question::Held;
pub(crate) use question::{Key, Question, Stand};
use rate::Rate;

/// How long an answer is waited for, unless the daemon is told otherwise.
const TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// How long an allow for one request waits for that request to come again.
const KEPT_FOR_RETRY: Duration = Duration::from_secs(10 * 60);
/// Open questions of one bay, and of all of them: so many that bays cause, and so many about commands of the operator.
const MAX_OPEN_OF_BAY: usize = 20;
const MAX_OPEN: usize = 2000;
/// Commands of one bay that are remembered to be let through.
const MAX_PASSED: usize = 64;
/// Between two looks at whose time is over.
const SWEEP_EVERY: Duration = Duration::from_millis(250);
/// Changes that whoever watches may be behind.
const WATCHED: usize = 1024;

/// How questions are asked; parsed by the caller from flags and environment.
#[derive(Debug, Clone, Copy, Default)]
pub struct ApprovalsConfig {
    /// How long an answer is waited for.
    pub timeout: Option<Duration>,
    /// How long a request is held whose client would come again.
    pub hold: Option<Duration>,
}

/// The questions of one bay.
#[derive(Debug, Default)]
struct OfBay {
    /// Held by whoever asks something new, so that the same is asked once.
    asking: Arc<tokio::sync::Mutex<()>>,
    questions: Vec<Arc<Question>>,
    rate: Rate,
    /// Commands that were let through and may be started once more by the same caller, newest last.
    passed: VecDeque<ExecId>,
}

/// All questions that are open, or whose answers may still be used.
#[derive(Debug)]
pub(crate) struct Approvals {
    store: Store,
    policies: Arc<Policies>,
    timeout: Duration,
    hold: Duration,
    bays: Mutex<HashMap<BayId, OfBay>>,
    changed: broadcast::Sender<ApprovalId>,
    closing: watch::Sender<bool>,
    opened: Notify,
}

/// Something to ask.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    pub(crate) key: Key,
    pub(crate) card: Approval,
    /// What a later request to the same place is compared with.
    pub(crate) parts: Parts,
    /// Whether the files of the bay are to be kept before a person is asked.
    pub(crate) checkpoint: bool,
}

/// How an open question comes to its end.
#[derive(Debug)]
pub(crate) struct Settling {
    pub(crate) stand: Stand,
    pub(crate) by: String,
    pub(crate) why: Option<String>,
    /// How often an allow may be used, where that is bounded.
    pub(crate) uses: Option<u64>,
    /// A rule or grant that is written in the same transaction.
    pub(crate) lasting: Option<Lasting>,
}

impl Settling {
    pub(crate) fn new(stand: Stand, by: impl Into<String>) -> Self {
        Self { stand, by: by.into(), why: None, uses: None, lasting: None }
    }
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// To be used with [`Store::approval_use`], and to be asked again where that does not do.
    Allowed(Arc<Question>),
    Denied(String),
    /// Nobody has answered for as long as it could be held.
    Waiting(Arc<Question>),
    /// The policy is another one than when it was asked.
    Reconsider,
    /// The daemon is about to end, and asks nothing more.
    Ending,
}

impl Approvals {
    pub(crate) fn new(config: ApprovalsConfig, store: Store, policies: Arc<Policies>) -> Self {
        Self {
            store,
            policies,
            timeout: config.timeout.unwrap_or(TIMEOUT),
            hold: config.hold.unwrap_or(patience::HOLD),
            bays: Mutex::default(),
            changed: broadcast::Sender::new(WATCHED),
            closing: watch::Sender::new(false),
            opened: Notify::new(),
        }
    }

    /// Takes up what an earlier daemon left.
    pub(crate) async fn restore(&self) -> Result<(), StoreError> {
        let (now, wall) = (Instant::now(), Timestamp::now());
        for ApprovalRow { key, card, .. } in self.store.approval_list(true).await? {
            let left = |until: Timestamp, most: Duration| {
                // A clock that was set back makes no time longer.
                Duration::try_from(until.duration_since(wall)).unwrap_or_default().min(most)
            };
            let deadline = now + left(card.expires, self.timeout);
            let stand = match (&card.state, &card.answer) {
                (
                    ApprovalState::Allowed,
                    Some(Answer { reach: Some(reach), until: Some(until), any_body, .. }),
                ) => {
                    let most = Duration::from_secs(bay_types::approval::MAX_ALLOW_S);
                    Stand::Allowed { reach: *reach, until: now + left(*until, most), any_body: *any_body }
                }
                (ApprovalState::Open, _) => Stand::Open,
                // Nobody is asked again about what was denied a moment ago.
                (ApprovalState::Denied, Some(Answer { by, why, .. })) if deadline > now => {
                    Stand::Denied { by: by.clone(), why: why.clone() }
                }
                _ => continue,
            };
            let bay = card.bay;
            let question = Question::new(Key(key), card, deadline, stand);
            self.bays().entry(bay).or_default().questions.push(Arc::new(question));
        }
        self.opened.notify_one();
        Ok(())
    }

    fn bays(&self) -> MutexGuard<'_, HashMap<BayId, OfBay>> {
        self.bays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn watch(&self) -> broadcast::Receiver<ApprovalId> {
        self.changed.subscribe()
    }

    fn tell(&self, id: ApprovalId) {
        // Nobody may be watching.
        let _ = self.changed.send(id);
    }

    /// How long a request is held whose client calls itself this.
    pub(crate) fn hold(&self, user_agent: Option<&str>) -> Duration {
        patience::hold(user_agent, self.hold)
    }

    pub(crate) fn until(&self, asked_at: Timestamp) -> Timestamp {
        asked_at + SignedDuration::try_from(self.timeout).unwrap_or(SignedDuration::ZERO)
    }

    /// Every question in memory.
    pub(crate) fn all(&self) -> Vec<Arc<Question>> {
        self.bays().values().flat_map(|of| of.questions.iter().cloned()).collect()
    }

    /// Those that are open and wanted. A card is kilobytes long, and there may be thousands: only what is wanted is copied.
    pub(crate) fn open(&self, wanted: impl Fn(&Approval) -> bool) -> Vec<Approval> {
        let all = self.all();
        let open = all.iter().filter(|question| question.is_open() && wanted(&question.card));
        let mut open: Vec<Approval> = open.map(|question| question.view()).collect();
        open.sort_by_key(|card| card.id);
        open
    }

    /// Checkpoints that a denial of an open question may go back to.
    pub(crate) fn promised(&self, bay: BayId) -> Vec<CheckpointName> {
        let bays = self.bays();
        let open =
            bays.get(&bay).into_iter().flat_map(|of| &of.questions).filter(|question| question.is_open());
        open.filter_map(|question| question.card.checkpoint).collect()
    }

    /// What is known of it at this moment, before the store is asked.
    pub(crate) fn find(&self, id: ApprovalId) -> Option<Arc<Question>> {
        self.all().into_iter().find(|question| question.id == id)
    }

    /// One like it: allowed and not used up, denied a moment ago, or open.
    pub(crate) fn like(&self, handle: &BayHandle, wish: &Wish) -> Option<Arc<Question>> {
        let now = Instant::now();
        let bays = self.bays();
        let questions = &bays.get(&handle.id)?.questions;
        let mut found: Option<&Arc<Question>> = None;
        for question in questions {
            let fits = question.covers(&wish.key, &wish.card.digest, now)
                && match &*question.stand.borrow() {
                    Stand::Allowed { reach: Reach::Exec, .. } => {
                        question.exec().is_some_and(|exec| handle.exec_is_open(exec))
                    }
                    _ => true,
                };
            // What is allowed goes before what is still open.
            if fits && (found.is_none() || matches!(*question.stand.borrow(), Stand::Allowed { .. })) {
                found = Some(question);
            }
        }
        found.cloned()
    }

    /// The newest answered question of this bay that the request would match but for its headers or body, else an open one.
    pub(crate) fn unlike(&self, wish: &Wish) -> Option<Differs> {
        let now = Instant::now();
        let bays = self.bays();
        let near = |question: &&Arc<Question>| {
            question.key.same_request(&wish.key) && question.card.digest != wish.card.digest
        };
        let answered = |question: &&Arc<Question>| match &*question.stand.borrow() {
            Stand::Allowed { until, .. } => now < *until,
            Stand::Denied { .. } => now < question.deadline,
            _ => false,
        };
        let questions = &bays.get(&wish.card.bay)?.questions;
        let newest = questions.iter().rev();
        let found = newest.clone().filter(near).find(answered);
        let earlier = found.or_else(|| newest.filter(near).find(|question| question.is_open()))?;
        let state = earlier.stand.borrow().state();
        let how = difference::between((&earlier.card, earlier.parts.as_ref()), (&wish.card, &wish.parts));
        Some(Differs { from: earlier.id, state, how })
    }

    /// Whether the daemon is about to end: nothing new is asked.
    pub(crate) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// The turn to ask something new about a bay, so that the same is asked once.
    pub(crate) async fn asking_turn(&self, bay: BayId) -> OwnedMutexGuard<()> {
        let asking = Arc::clone(&self.bays().entry(bay).or_default().asking);
        asking.lock_owned().await
    }

    /// Waits for the answer to a question until `hold_until`, or until the policy that asks changes.
    pub(crate) async fn wait(
        &self,
        question: Arc<Question>,
        mut policy: watch::Receiver<u64>,
        hold_until: Instant,
    ) -> Verdict {
        let _held = Held::new(&question);
        let (mut stand, mut closing) = (question.stand.subscribe(), self.closing.subscribe());
        loop {
            match &*stand.borrow_and_update() {
                Stand::Open => {}
                Stand::Allowed { .. } => return Verdict::Allowed(Arc::clone(&question)),
                Stand::Denied { by, why } => {
                    let why = why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                    return Verdict::Denied(format!("{by} denied it ({}){why}", question.id));
                }
                Stand::Expired => {
                    return Verdict::Denied(format!(
                        "nobody answered {} in time, which is a denial",
                        question.id
                    ));
                }
                Stand::Dropped(why) => {
                    return Verdict::Denied(format!("{} was dropped: {why}", question.id));
                }
                Stand::Revoked { by } => {
                    return Verdict::Denied(format!("{by} revoked the allow {}", question.id));
                }
            }
            tokio::select! {
                told = stand.changed() => if told.is_err() {
                    return Verdict::Waiting(Arc::clone(&question));
                },
                changed = policy.changed() => if changed.is_ok() {
                    return Verdict::Reconsider;
                },
                () = tokio::time::sleep_until(hold_until.into()) => return Verdict::Waiting(Arc::clone(&question)),
                _ = closing.wait_for(|closing| *closing) => return Verdict::Waiting(Arc::clone(&question)),
            }
        }
    }

    /// Writes a new question down. It is on the disk before anybody can see it.
    pub(crate) async fn add(
        &self,
        key: Key,
        card: Approval,
        parts: Parts,
    ) -> Result<Arc<Question>, CoreError> {
        let event = card::asked(&card);
        let row = ApprovalRow { key: key.0.clone(), card: card.clone(), uses_left: None };
        let seq = self.store.approval_add(&row, &event).await.map_err(|e| e.to_api())?;
        self.store.event_durable(seq).await.map_err(|e| e.to_api())?;
        let bay = card.bay;
        let mut question = Question::new(key, card, Instant::now() + self.timeout, Stand::Open);
        question.parts = Some(parts);
        let question = Arc::new(question);
        self.bays().entry(bay).or_default().questions.push(Arc::clone(&question));
        self.opened.notify_one();
        self.tell(question.id);
        Ok(question)
    }

    /// Nobody waits for an older one of the same kind any more, and whoever answers shall see what is held.
    pub(crate) async fn supersede(&self, wish: &Wish) -> Result<Option<CheckpointName>, CoreError> {
        let old = {
            let bays = self.bays();
            let questions = bays.get(&wish.card.bay).map(|of| of.questions.as_slice()).unwrap_or_default();
            let same = |question: &&Arc<Question>| {
                question.key == wish.key && question.is_open() && question.held() == 0
            };
            questions.iter().find(same).cloned()
        };
        let Some(old) = old else { return Ok(None) };
        let why = "the same was asked again with other headers or another body".to_owned();
        let stand = Stand::Dropped(why.clone());
        let settling = Settling { why: Some(why), ..Settling::new(stand, "superseded") };
        self.settle(&old, settling).await?;
        Ok(old.card.checkpoint)
    }

    /// Why nothing more is asked, where that is so.
    pub(crate) fn no_room(&self, bay: BayId, of_bay: bool) -> Option<String> {
        let mut bays = self.bays();
        // Neither the operator nor a bay takes the other's room.
        let open = |of: &OfBay| {
            let same = |question: &&Arc<Question>| question.is_open() && is_of_bay(&question.card) == of_bay;
            of.questions.iter().filter(same).count()
        };
        let all: usize = bays.values().map(open).sum();
        let of = bays.entry(bay).or_default();
        if open(of) >= MAX_OPEN_OF_BAY {
            return Some(format!(
                "it is to be asked about, and {MAX_OPEN_OF_BAY} questions of this bay wait for a person already"
            ));
        }
        if all >= MAX_OPEN {
            return Some(format!(
                "it is to be asked about, and {MAX_OPEN} questions of all bays wait already"
            ));
        }
        (!of.rate.take(Instant::now())).then(|| {
            format!(
                "it is to be asked about, and this bay has asked {} times within a minute",
                rate::A_MINUTE
            )
        })
    }

    /// Brings an open question to its end, with its event on the disk before anybody acts on it. `false` where
    /// somebody was faster.
    pub(crate) async fn settle(
        &self,
        question: &Arc<Question>,
        settling: Settling,
    ) -> Result<bool, CoreError> {
        let Settling { stand, by, why, uses, lasting } = settling;
        let at = Timestamp::now();
        let (reach, until, any_body) = match &stand {
            Stand::Allowed { reach, until, any_body } => {
                let left = SignedDuration::try_from(until.saturating_duration_since(Instant::now()));
                (Some(*reach), Some(at + left.unwrap_or(SignedDuration::ZERO)), *any_body)
            }
            _ => (None, None, false),
        };
        let bound = reach.is_some() && !any_body;
        let after_ms = u64::try_from(question.age().as_millis()).unwrap_or(u64::MAX);
        let answer = Answer { by, at, after_ms, reach, bound, any_body, until, why };
        let (id, bay) = (question.id, question.card.bay);
        let event = Draft::of(answered(&question.card, stand.state(), &answer));
        let store = &self.store;
        let settled =
            store.approval_answer(id, bay, stand.state(), &answer, uses, lasting.as_ref(), &event).await;
        let seq = match settled.map_err(|e| e.to_api())? {
            Answered::Yes(seq) => seq,
            Answered::TooLate => return Ok(false),
            Answered::NoRoomForGrant => return Err(too_many_grants(&question.card.bay_name)),
        };
        self.store.event_durable(seq).await.map_err(|e| e.to_api())?;
        *question.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        if lasting.is_some() {
            self.policies.touch(bay);
        }
        let over = matches!(stand, Stand::Expired | Stand::Dropped(_));
        question.stand.send_replace(stand);
        if over {
            self.forget(question);
        }
        self.tell(id);
        Ok(true)
    }

    /// Ends an allow that could still be used, and what was let out by it. `false` if there is none.
    pub(crate) async fn revoke(&self, card: &Approval, by: &str) -> Result<bool, CoreError> {
        let event = Draft::of(ApprovalRevoked {
            approval: card.id.into(),
            digest: card.digest.clone(),
            request: card::line(card),
            by: by.to_owned(),
        });
        let revoked = self.store.approval_revoke(card.id, card.bay, &event).await.map_err(|e| e.to_api())?;
        let Some(seq) = revoked else { return Ok(false) };
        self.store.event_durable(seq).await.map_err(|e| e.to_api())?;
        if let Some(question) = self.find(card.id) {
            question.stand.send_replace(Stand::Revoked { by: by.to_owned() });
            self.forget(&question);
        }
        // What it let out is looked at again.
        self.policies.touch(card.bay);
        self.tell(card.id);
        Ok(true)
    }

    /// An allow is used up, or not to be used any more.
    pub(crate) fn forget(&self, question: &Question) {
        if let Some(of) = self.bays().get_mut(&question.card.bay) {
            of.questions.retain(|other| other.id != question.id);
        }
    }

    /// What its questions were about is gone: the bay was stopped, or begins anew.
    pub(crate) async fn drop_all(&self, bay: BayId, why: &str) -> Result<(), CoreError> {
        let dropped = self.store.approvals_drop(bay, why).await.map_err(|e| e.to_api())?;
        // The rate and what was denied stay: a bay can restore itself, and would ask without bounds.
        let denied = |question: &Arc<Question>| matches!(*question.stand.borrow(), Stand::Denied { .. });
        let gone = self.bays().get_mut(&bay).map(|of| {
            of.passed.clear();
            let (kept, gone): (Vec<_>, Vec<_>) = of.questions.drain(..).partition(denied);
            of.questions = kept;
            gone
        });
        for question in gone.into_iter().flatten() {
            question.stand.send_replace(Stand::Dropped(why.to_owned()));
        }
        for id in dropped {
            self.tell(id);
        }
        Ok(())
    }

    /// Whether something was allowed for as long as this exec runs.
    pub(crate) fn allows_exec(&self, bay: BayId, exec: ExecId) -> bool {
        let for_it = |question: &Arc<Question>| {
            question.exec() == Some(exec)
                && matches!(*question.stand.borrow(), Stand::Allowed { reach: Reach::Exec, .. })
        };
        self.bays().get(&bay).is_some_and(|of| of.questions.iter().any(for_it))
    }

    /// Of a bay that is removed nothing is remembered.
    pub(crate) fn forget_bay(&self, bay: BayId) {
        self.bays().remove(&bay);
    }

    /// From now on nobody is held: whoever is, is told to come again. Waits for them for a moment.
    pub(crate) async fn close(&self, within: Duration) {
        self.closing.send_replace(true);
        let end = Instant::now() + within;
        while Instant::now() < end && self.all().iter().any(|question| question.held() > 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A command was let through: whoever asks for it by the same id means the same.
    pub(crate) fn pass(&self, bay: BayId, exec: ExecId) {
        let mut bays = self.bays();
        let passed = &mut bays.entry(bay).or_default().passed;
        if passed.len() == MAX_PASSED {
            passed.pop_front();
        }
        passed.push_back(exec);
    }

    pub(crate) fn passed(&self, bay: BayId, exec: ExecId) -> bool {
        self.bays().get(&bay).is_some_and(|of| of.passed.contains(&exec))
    }

    /// The time that an allow of this reach is kept.
    pub(crate) fn allowed_until(&self, reach: Reach, for_s: Option<u64>) -> Instant {
        let time = match (reach, for_s) {
            (Reach::For, Some(seconds)) => Duration::from_secs(seconds),
            (Reach::Exec, _) => Duration::from_secs(bay_types::approval::MAX_ALLOW_S),
            _ => KEPT_FOR_RETRY,
        };
        Instant::now() + time
    }

    /// Ends, for as long as the daemon runs, what nobody answered in time and what is no longer allowed.
    pub(crate) async fn sweep(&self) {
        loop {
            let questions = self.all();
            if questions.is_empty() {
                self.opened.notified().await;
                continue;
            }
            let now = Instant::now();
            for question in questions {
                let stand = question.stand.borrow().clone();
                match stand {
                    Stand::Open if now >= question.deadline => {
                        let settling = Settling::new(Stand::Expired, "timeout");
                        if let Err(error) = self.settle(&question, settling).await {
                            tracing::error!(message = %error.message, "the end of a question is not on record");
                        }
                    }
                    Stand::Allowed { until, reach, .. } if now >= until => {
                        self.forget(&question);
                        if reach == Reach::For {
                            // Streams that it let out end with it.
                            self.policies.touch(question.card.bay);
                        }
                    }
                    Stand::Denied { .. } if now >= question.deadline => self.forget(&question),
                    _ => {}
                }
            }
            tokio::time::sleep(SWEEP_EVERY).await;
        }
    }
}

/// Whether a command is asked about.
pub(crate) fn is_exec(card: &Approval) -> bool {
    matches!(card.asked, Asked::Exec(_))
}

/// Whether processes of a bay cause the question: requests, and commands of services that they define themselves.
pub(crate) fn is_of_bay(card: &Approval) -> bool {
    match &card.asked {
        Asked::Request(_) => true,
        Asked::Exec(asked) => asked.by == INSIDE,
    }
}

/// The event of the end of a question.
fn answered(card: &Approval, state: ApprovalState, answer: &Answer) -> ApprovalEvent {
    let (digest, request) = (card.digest.clone(), card::line(card));
    let Answer { by, at, after_ms, reach, bound, any_body, until, why } = answer.clone();
    let approval = card.id;
    match state {
        ApprovalState::Allowed => ApprovalEvent::Allowed(ApprovalAllowed {
            approval: approval.into(),
            digest,
            request,
            by,
            at: at.into(),
            after_ms,
            reach,
            bound,
            any_body,
            until,
            why,
        }),
        ApprovalState::Denied => ApprovalEvent::Denied(ApprovalDenied {
            approval: approval.into(),
            digest,
            request,
            by,
            at: at.into(),
            after_ms,
            why,
        }),
        ApprovalState::Expired => ApprovalEvent::Expired(ApprovalExpired {
            approval: approval.into(),
            digest,
            request,
            by,
            at: at.into(),
            after_ms,
            why,
        }),
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

#[cfg(test)]
mod tests;
