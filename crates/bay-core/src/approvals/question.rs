//! One question, as long as it is open, or its answer may still be used.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bay_types::approval::{Answer, Approval, ApprovalState, Reach};
use bay_types::{ApprovalId, ExecId};
use jiff::Timestamp;
use tokio::sync::watch;

use super::difference::Parts;

/// What a later request is matched by: who asks, which secrets would be attached, and the request itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) String);

impl Key {
    /// That of a request. `by` is who in the bay is behind it.
    pub(crate) fn request(by: &str, secrets: &[String], request: &str) -> Self {
        Self(format!("{by} {} {request}", secrets.join(",")))
    }

    /// Whether both are of the same request, whichever process of the bay sends it.
    pub(super) fn same_request(&self, other: &Self) -> bool {
        fn request(key: &Key) -> Option<&str> {
            key.0.split_once(' ').map(|(_, request)| request)
        }
        request(self) == request(other)
    }
}

/// How a question stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stand {
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
    /// An approver took the allow back.
    Revoked {
        by: String,
    },
}

impl Stand {
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
    /// As it was asked.
    pub(super) card: Approval,
    /// What a later request is compared with. A question that an earlier daemon asked has none.
    pub(super) parts: Option<Parts>,
    /// By the clock that nobody sets.
    asked: Instant,
    /// Before this daemon knew of it.
    waited: Duration,
    pub(super) deadline: Instant,
    pub(super) stand: watch::Sender<Stand>,
    pub(super) answer: Mutex<Option<Answer>>,
    held: AtomicU64,
}

impl Question {
    pub(super) fn new(key: Key, card: Approval, deadline: Instant, stand: Stand) -> Self {
        // One that an earlier daemon asked has been waiting since then.
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
            stand: watch::Sender::new(stand),
            held: AtomicU64::new(0),
        }
    }

    pub(crate) fn exec(&self) -> Option<ExecId> {
        self.card.by.as_ref()?.exec
    }

    /// How long it has been waiting for an answer.
    pub(super) fn age(&self) -> Duration {
        self.waited + self.asked.elapsed()
    }

    /// Whether a request with this key and digest is what was allowed, or asked, or denied.
    pub(super) fn covers(&self, key: &Key, digest: &str, now: Instant) -> bool {
        let same = self.key == *key && self.card.digest == digest;
        match &*self.stand.borrow() {
            Stand::Open => same,
            Stand::Denied { .. } => same && now < self.deadline,
            Stand::Allowed { until, .. } if now >= *until => false,
            Stand::Allowed { any_body: true, .. } => self.key == *key,
            Stand::Allowed { reach: Reach::For, .. } => {
                self.card.digest == digest && self.key.same_request(key)
            }
            Stand::Allowed { .. } => same,
            Stand::Expired | Stand::Dropped(_) | Stand::Revoked { .. } => false,
        }
    }

    /// Whether what was let out by this allow may still be under way: streams end with the time, or the exec, that it was for.
    pub(crate) fn still_allows(&self, is_open: impl Fn(ExecId) -> bool) -> bool {
        match &*self.stand.borrow() {
            Stand::Allowed { reach: Reach::For, until, .. } => Instant::now() < *until,
            Stand::Allowed { reach: Reach::Exec, .. } => self.exec().is_some_and(is_open),
            Stand::Revoked { .. } => false,
            _ => true,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        *self.stand.borrow() == Stand::Open
    }

    pub(super) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// It as a person sees it now.
    pub(crate) fn view(&self) -> Approval {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Approval { state: self.stand.borrow().state(), held: self.held(), answer, ..self.card.clone() }
    }
}

/// Somebody who waits for the answer, until dropped.
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
