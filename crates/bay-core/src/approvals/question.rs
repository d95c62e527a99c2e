//! One question in memory, while it is open or its allow or denial still covers later requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bay_types::approval::{Answer, Approval, ApprovalState, Reach};
use bay_types::{ApprovalId, ExecId};
use jiff::Timestamp;
use tokio::sync::watch;

use super::difference::Parts;

/// What a later request is matched by: its sender in the bay, the secrets to attach, and the request itself. For a
/// command: who asks, and a hash over the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) String);

impl Key {
    /// The key of a request. `by` is the sender in the bay.
    pub(crate) fn request(by: &str, secrets: &[String], request: &str) -> Self {
        Self(format!("{by} {} {request}", secrets.join(",")))
    }

    /// Whether both keys are of the same request, whichever process of the bay sends it.
    pub(super) fn same_request(&self, other: &Self) -> bool {
        fn request(key: &Key) -> Option<&str> {
            key.0.split_once(' ').map(|(_, request)| request)
        }
        request(self) == request(other)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Status {
    Open,
    /// Covers only the digest on the card, unless `any_body` is set.
    Allowed {
        reach: Reach,
        until: Instant,
        any_body: bool,
    },
    Denied {
        by: String,
        why: Option<String>,
    },
    Expired,
    Dropped(String),
    /// An approver revoked the allow.
    Revoked {
        by: String,
    },
}

impl Status {
    pub(super) fn state(&self) -> ApprovalState {
        match self {
            Self::Open => ApprovalState::Open,
            Self::Allowed { .. } => ApprovalState::Allowed,
            Self::Denied { .. } => ApprovalState::Denied,
            Self::Expired => ApprovalState::Expired,
            Self::Dropped(_) => ApprovalState::Dropped,
            Self::Revoked { .. } => ApprovalState::Revoked,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) id: ApprovalId,
    pub(crate) key: Key,
    /// The card without what changes later: its state, its answer, and the number of held clients are in other
    /// fields.
    pub(super) card: Approval,
    /// What a later request is compared with. A question that an earlier daemon asked has none.
    pub(super) parts: Option<Parts>,
    /// When this daemon took the question up, by the monotonic clock.
    asked: Instant,
    /// How long ago it was asked at that time, by the wall clock.
    waited: Duration,
    pub(super) deadline: Instant,
    pub(super) status: watch::Sender<Status>,
    pub(super) answer: Mutex<Option<Answer>>,
    held: AtomicU64,
}

impl Question {
    pub(super) fn new(key: Key, card: Approval, deadline: Instant, status: Status) -> Self {
        let waited = Duration::try_from(Timestamp::now().duration_since(card.asked_at)).unwrap_or_default();
        Self {
            waited,
            id: card.id,
            key,
            parts: None,
            answer: Mutex::new(card.answer.clone()),
            card,
            asked: Instant::now(),
            deadline,
            status: watch::Sender::new(status),
            held: AtomicU64::new(0),
        }
    }

    pub(crate) fn exec(&self) -> Option<ExecId> {
        self.card.by.as_ref()?.exec
    }

    /// How long ago the question was asked.
    pub(super) fn age(&self) -> Duration {
        self.waited + self.asked.elapsed()
    }

    /// Whether the question, or its answer, covers a request with this key and digest.
    pub(super) fn covers(&self, key: &Key, digest: &str, now: Instant) -> bool {
        let same = self.key == *key && self.card.digest == digest;
        match &*self.status.borrow() {
            Status::Open => same,
            Status::Denied { .. } => same && now < self.deadline,
            Status::Allowed { until, .. } if now >= *until => false,
            Status::Allowed { any_body: true, .. } => self.key == *key,
            Status::Allowed { reach: Reach::For, .. } => {
                self.card.digest == digest && self.key.same_request(key)
            }
            Status::Allowed { .. } => same,
            Status::Expired | Status::Dropped(_) | Status::Revoked { .. } => false,
        }
    }

    /// Whether requests that this allow let out may continue. They end when the allow is revoked, or with the time
    /// or the exec for which it was given. A request that was allowed once runs to its end.
    pub(crate) fn still_allows(&self, is_open: impl Fn(ExecId) -> bool) -> bool {
        match &*self.status.borrow() {
            Status::Allowed { reach: Reach::For, until, .. } => Instant::now() < *until,
            Status::Allowed { reach: Reach::Exec, .. } => self.exec().is_some_and(is_open),
            Status::Revoked { .. } => false,
            _ => true,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        *self.status.borrow() == Status::Open
    }

    pub(super) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// The card as a person sees it now.
    pub(crate) fn view(&self) -> Approval {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Approval { state: self.status.borrow().state(), held: self.held(), answer, ..self.card.clone() }
    }
}

/// Counts one client that waits for the answer, until dropped.
#[derive(Debug)]
pub(super) struct Held(Arc<Question>);

impl Held {
    pub(super) fn new(question: &Arc<Question>) -> Self {
        question.held.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(question))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}
