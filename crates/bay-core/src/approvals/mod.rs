//! Approvals: questions to a person about held requests and commands. A question is open until somebody answers,
//! its time is over, or it is dropped: because the bay is stopped, begins anew or is removed, or because the same
//! request comes with other content.
//!
//! ```text
//!              ┌──────────── same request again: joins ────────────┐
//!  ask ──► is there one like it? ── no ──► caps ──► checkpoint ──► row + event, on the disk ──► open
//!              │ yes                                                              │
//!              ├─ allowed ──► used, in one transaction with the event of the act  ├─ allow ──► allowed ──► used up, over, or revoked
//!              ├─ denied ───► refused, without asking again                       ├─ deny ───► denied
//!              └─ open ─────► held ──► hold is over: 503, retry later             ├─ time ───► expired (a denial)
//!                                                                                 └─ the bay stops, or the request changed: dropped
//! ```
//! An allow covers only the digest of its question, unless the approver chose `any_body`: by the time of the
//! answer, the client may have left, and may retry with something else. That is a new question. Its card shows the
//! difference, as long as the earlier one is in memory.
//!
//! The store is the truth. An answer and a use are transactions that check the state of the question. So only the
//! first of two answers counts, and only one request uses an allow for one request. The next daemon takes up open
//! questions, allows that may still be used, and denials whose question would still be open. Deadlines are measured
//! by the monotonic clock. A time that is read from the store depends on the wall clock and is capped: for a
//! question at the timeout, for an allow at [`MAX_ALLOW_S`](bay_types::approval::MAX_ALLOW_S).
//!
//! What one bay can ask is limited: the same request is asked about once while its question is open, and the open
//! questions of a bay and its new questions per minute are limited.
//!
//! | module | content |
//! |---|---|
//! | [`question`] | one question in memory, and its key |
//! | [`card`], [`pack`] | what a person is shown |
//! | [`difference`] | how a request differs from an earlier one |
//! | [`settle`] | how a question ends |
//! | [`hold_time`], [`rate`] | how long clients are held, how often a bay may ask |

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bay_store::{ApprovalRow, Store, StoreError};
use bay_types::approval::{Answer, Approval, ApprovalState, Asked, Differs, Reach};
use bay_types::principal::INSIDE;
use bay_types::{ApprovalId, BayId, CheckpointName, CoreError, ExecId};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Notify, OwnedMutexGuard, broadcast, watch};

use crate::policies::Policies;
use crate::registry::BayHandle;

pub(crate) mod card;
mod difference;
mod hold_time;
mod pack;
mod question;
mod rate;
mod settle;

pub(crate) use difference::Parts;
pub(crate) use hold_time::RETRY_AFTER;
use question::Held;
pub(crate) use question::{Key, Question, Status};
use rate::Rate;
pub(crate) use settle::Settling;

/// How long a question is open at most, unless the operator sets another time.
const TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// How long an allow for one use waits for the client's retry.
const KEPT_FOR_RETRY: Duration = Duration::from_secs(10 * 60);
/// The most open questions of one bay. Questions that bays cause and questions about commands of the operator count
/// separately, here and in [`MAX_OPEN`].
const MAX_OPEN_OF_BAY: usize = 20;
/// The most open questions of all bays.
const MAX_OPEN: usize = 2000;
/// How many allowed commands of one bay are remembered in memory.
const MAX_PASSED: usize = 64;
/// How many changes a watching client may be behind before it misses some.
const WATCHED: usize = 1024;

/// Settings of approvals; the caller parses them from flags and environment.
#[derive(Debug, Clone, Copy, Default)]
pub struct ApprovalsConfig {
    /// How long a question is open.
    pub timeout: Option<Duration>,
    /// How long a request is held. Some clients that are known to wait for longer are held for longer.
    pub hold: Option<Duration>,
}

/// The questions of one bay.
#[derive(Debug, Default)]
struct OfBay {
    /// Held while a new question is made, so that the same request is asked about once.
    asking: Arc<tokio::sync::Mutex<()>>,
    questions: Vec<Arc<Question>>,
    rate: Rate,
    /// Allowed commands, newest last. A caller may repeat the request for one of them.
    passed: VecDeque<ExecId>,
}

/// All questions that are open, and those whose allow or denial still covers later requests.
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
pub(crate) struct NewQuestion {
    pub(crate) key: Key,
    pub(crate) card: Approval,
    /// What a later request to the same place is compared with.
    pub(crate) parts: Parts,
    /// Whether to make a checkpoint of the bay's files first.
    pub(crate) checkpoint: bool,
}

/// The result of waiting for an answer.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The caller must use the allow with [`Store::approval_use`], and ask again if that fails.
    Allowed(Arc<Question>),
    /// Denied, expired, dropped, revoked, or not asked because of a limit. The text says which.
    Denied(String),
    /// Nobody answered while the request was held, or the daemon is about to end.
    Waiting(Arc<Question>),
    /// The bay's policy changed while the request was held.
    Reconsider,
    /// The daemon is about to end, and asks no new questions.
    Ending,
}

impl Approvals {
    pub(crate) fn new(config: ApprovalsConfig, store: Store, policies: Arc<Policies>) -> Self {
        Self {
            store,
            policies,
            timeout: config.timeout.unwrap_or(TIMEOUT),
            hold: config.hold.unwrap_or(hold_time::HOLD),
            bays: Mutex::default(),
            changed: broadcast::Sender::new(WATCHED),
            closing: watch::Sender::new(false),
            opened: Notify::new(),
        }
    }

    /// Takes up the questions that an earlier daemon left.
    pub(crate) async fn restore(&self) -> Result<(), StoreError> {
        let (now, wall) = (Instant::now(), Timestamp::now());
        for ApprovalRow { key, card, .. } in self.store.approval_list(true).await? {
            let left = |until: Timestamp, most: Duration| {
                // If the clock was set back, the time gets no longer than `most`.
                Duration::try_from(until.duration_since(wall)).unwrap_or_default().min(most)
            };
            let deadline = now + left(card.expires, self.timeout);
            let status = match (&card.state, &card.answer) {
                (
                    ApprovalState::Allowed,
                    Some(Answer { reach: Some(reach), until: Some(until), any_body, .. }),
                ) => {
                    let most = Duration::from_secs(bay_types::approval::MAX_ALLOW_S);
                    Status::Allowed { reach: *reach, until: now + left(*until, most), any_body: *any_body }
                }
                (ApprovalState::Open, _) => Status::Open,
                // Nobody is asked again about what was denied, until the question would have expired.
                (ApprovalState::Denied, Some(Answer { by, why, .. })) if deadline > now => {
                    Status::Denied { by: by.clone(), why: why.clone() }
                }
                _ => continue,
            };
            let bay = card.bay;
            let question = Question::new(Key(key), card, deadline, status);
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

    fn notify(&self, id: ApprovalId) {
        // This fails if nobody watches.
        let _ = self.changed.send(id);
    }

    /// Waits until an event is on the disk.
    async fn durable(&self, seq: u64) -> Result<(), CoreError> {
        self.store.event_durable(seq).await.map_err(|e| e.to_api())
    }

    /// How long a request of a client with this `User-Agent` is held.
    pub(crate) fn hold(&self, user_agent: Option<&str>) -> Duration {
        hold_time::hold(user_agent, self.hold)
    }

    pub(crate) fn until(&self, asked_at: Timestamp) -> Timestamp {
        asked_at + SignedDuration::try_from(self.timeout).unwrap_or(SignedDuration::ZERO)
    }

    /// Every question in memory.
    pub(crate) fn all(&self) -> Vec<Arc<Question>> {
        self.bays().values().flat_map(|of| of.questions.iter().cloned()).collect()
    }

    /// The open questions that `wanted` selects. A card has kilobytes, and there may be thousands: only selected ones are
    /// copied.
    pub(crate) fn open(&self, wanted: impl Fn(&Approval) -> bool) -> Vec<Approval> {
        let all = self.all();
        let open = all.iter().filter(|question| question.is_open() && wanted(&question.card));
        let mut open: Vec<Approval> = open.map(|question| question.view()).collect();
        open.sort_by_key(|card| card.id);
        open
    }

    /// Checkpoints that a denial of an open question may restore.
    pub(crate) fn promised(&self, bay: BayId) -> Vec<CheckpointName> {
        let bays = self.bays();
        let open =
            bays.get(&bay).into_iter().flat_map(|of| &of.questions).filter(|question| question.is_open());
        open.filter_map(|question| question.card.checkpoint).collect()
    }

    /// The question with this id, if it is in memory.
    pub(crate) fn find(&self, id: ApprovalId) -> Option<Arc<Question>> {
        self.all().into_iter().find(|question| question.id == id)
    }

    /// An earlier question that covers this one: allowed and not used up, open, or denied before its own deadline.
    pub(crate) fn like(&self, handle: &BayHandle, new: &NewQuestion) -> Option<Arc<Question>> {
        let now = Instant::now();
        let bays = self.bays();
        let questions = &bays.get(&handle.id)?.questions;
        let mut found: Option<&Arc<Question>> = None;
        for question in questions {
            let fits = question.covers(&new.key, &new.card.digest, now)
                && match &*question.status.borrow() {
                    Status::Allowed { reach: Reach::Exec, .. } => {
                        question.exec().is_some_and(|exec| handle.exec_is_open(exec))
                    }
                    _ => true,
                };
            // An allow wins over an open question.
            if fits && (found.is_none() || matches!(*question.status.borrow(), Status::Allowed { .. })) {
                found = Some(question);
            }
        }
        found.cloned()
    }

    /// How this request differs from an earlier one of the bay that differs only in headers or body: from the newest
    /// answered one, else from an open one.
    pub(crate) fn unlike(&self, new: &NewQuestion) -> Option<Differs> {
        let now = Instant::now();
        let bays = self.bays();
        let near = |question: &&Arc<Question>| {
            question.key.same_request(&new.key) && question.card.digest != new.card.digest
        };
        let answered = |question: &&Arc<Question>| match &*question.status.borrow() {
            Status::Allowed { until, .. } => now < *until,
            Status::Denied { .. } => now < question.deadline,
            _ => false,
        };
        let questions = &bays.get(&new.card.bay)?.questions;
        let newest = questions.iter().rev();
        let found = newest.clone().filter(near).find(answered);
        let earlier = found.or_else(|| newest.filter(near).find(|question| question.is_open()))?;
        let state = earlier.status.borrow().state();
        let how = difference::between((&earlier.card, earlier.parts.as_ref()), (&new.card, &new.parts));
        Some(Differs { from: earlier.id, state, how })
    }

    /// Whether the daemon is about to end and asks no new questions.
    pub(crate) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// The turn to make a new question about a bay, so that the same request is asked about once.
    pub(crate) async fn asking_turn(&self, bay: BayId) -> OwnedMutexGuard<()> {
        let asking = Arc::clone(&self.bays().entry(bay).or_default().asking);
        asking.lock_owned().await
    }

    /// Waits for the answer to a question, until `hold_until` at most. A change of the policy or the end of the
    /// daemon ends the wait.
    pub(crate) async fn wait(
        &self,
        question: Arc<Question>,
        mut policy: watch::Receiver<u64>,
        hold_until: Instant,
    ) -> Verdict {
        let _held = Held::new(&question);
        let (mut status, mut closing) = (question.status.subscribe(), self.closing.subscribe());
        let waiting = || Verdict::Waiting(Arc::clone(&question));
        loop {
            match &*status.borrow_and_update() {
                Status::Open => {}
                Status::Allowed { .. } => return Verdict::Allowed(Arc::clone(&question)),
                Status::Denied { by, why } => {
                    let why = why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                    return Verdict::Denied(format!("{by} denied it ({}){why}", question.id));
                }
                Status::Expired => {
                    return Verdict::Denied(format!(
                        "nobody answered {} in time, which is a denial",
                        question.id
                    ));
                }
                Status::Dropped(why) => {
                    return Verdict::Denied(format!("{} was dropped: {why}", question.id));
                }
                Status::Revoked { by } => {
                    return Verdict::Denied(format!("{by} revoked the allow {}", question.id));
                }
            }
            tokio::select! {
                changed = status.changed() => if changed.is_err() {
                    return waiting();
                },
                changed = policy.changed() => if changed.is_ok() {
                    return Verdict::Reconsider;
                },
                () = tokio::time::sleep_until(hold_until.into()) => return waiting(),
                _ = closing.wait_for(|closing| *closing) => return waiting(),
            }
        }
    }

    /// Stores a new question. It is on the disk before a client waits for it or a watcher learns of it.
    pub(crate) async fn add(
        &self,
        key: Key,
        card: Approval,
        parts: Parts,
    ) -> Result<Arc<Question>, CoreError> {
        let event = card::asked(&card);
        let row = ApprovalRow { key: key.0.clone(), card: card.clone(), uses_left: None };
        let seq = self.store.approval_add(&row, &event).await.map_err(|e| e.to_api())?;
        self.durable(seq).await?;
        let bay = card.bay;
        let mut question = Question::new(key, card, Instant::now() + self.timeout, Status::Open);
        question.parts = Some(parts);
        let question = Arc::new(question);
        self.bays().entry(bay).or_default().questions.push(Arc::clone(&question));
        self.opened.notify_one();
        self.notify(question.id);
        Ok(question)
    }

    /// Drops an older open question for the same key if no client waits for it: the approver must see what is held now.
    /// Returns its checkpoint.
    pub(crate) async fn supersede(&self, new: &NewQuestion) -> Result<Option<CheckpointName>, CoreError> {
        let old = {
            let bays = self.bays();
            let questions = bays.get(&new.card.bay).map(|of| of.questions.as_slice()).unwrap_or_default();
            let same = |question: &&Arc<Question>| {
                question.key == new.key && question.is_open() && question.held() == 0
            };
            questions.iter().find(same).cloned()
        };
        let Some(old) = old else { return Ok(None) };
        let why = "the same was asked again with other headers or another body".to_owned();
        let status = Status::Dropped(why.clone());
        let settling = Settling { why: Some(why), ..Settling::new(status, "superseded") };
        self.settle(&old, settling).await?;
        Ok(old.card.checkpoint)
    }

    /// Why no new question may be asked, if a limit is reached.
    pub(crate) fn no_room(&self, bay: BayId, of_bay: bool) -> Option<String> {
        let mut bays = self.bays();
        // Bays and the operator cannot use up each other's limit of open questions. They share the rate.
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

    /// Whether something was allowed for as long as this exec runs.
    pub(crate) fn allows_exec(&self, bay: BayId, exec: ExecId) -> bool {
        let for_it = |question: &Arc<Question>| {
            question.exec() == Some(exec)
                && matches!(*question.status.borrow(), Status::Allowed { reach: Reach::Exec, .. })
        };
        self.bays().get(&bay).is_some_and(|of| of.questions.iter().any(for_it))
    }

    /// Forgets everything about a bay that was removed.
    pub(crate) fn forget_bay(&self, bay: BayId) {
        self.bays().remove(&bay);
    }

    /// From now on, no request is held. Held requests end with [`Verdict::Waiting`]. This waits up to `within`
    /// until all have ended.
    pub(crate) async fn close(&self, within: Duration) {
        self.closing.send_replace(true);
        let end = Instant::now() + within;
        while Instant::now() < end && self.all().iter().any(|question| question.held() > 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Remembers that a command was allowed. Another request with the same id counts as a retry of it.
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

    /// Until when an allow of this reach is kept.
    pub(crate) fn allowed_until(&self, reach: Reach, for_s: Option<u64>) -> Instant {
        let time = match (reach, for_s) {
            (Reach::For, Some(seconds)) => Duration::from_secs(seconds),
            (Reach::Exec, _) => Duration::from_secs(bay_types::approval::MAX_ALLOW_S),
            _ => KEPT_FOR_RETRY,
        };
        Instant::now() + time
    }
}

/// Whether the question is about a command.
pub(crate) fn is_exec(card: &Approval) -> bool {
    matches!(card.asked, Asked::Exec(_))
}

/// Whether processes of a bay caused the question: by a request, or by a command of a service that they defined.
pub(crate) fn is_of_bay(card: &Approval) -> bool {
    match &card.asked {
        Asked::Request(_) => true,
        Asked::Exec(asked) => asked.by == INSIDE,
    }
}

#[cfg(test)]
mod tests;
