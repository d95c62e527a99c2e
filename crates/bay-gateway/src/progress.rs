//! The progress under one ruling: counts the bytes of the request or tunnel, and reports its end once.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bay_policy::{CanonicalRequest, Outcome};
use tokio::sync::watch;

use crate::decider::{Ended, Ending, Failure, RecordId};
use crate::policy::Policy;

/// The two bodies of a request, or the two directions of a tunnel, share this value. If the last of them is dropped
/// without reporting an end, that is reported as abandoned: the bay has disconnected, or the gateway has ended.
pub(crate) struct Progress {
    policy: Arc<Policy>,
    id: RecordId,
    request: CanonicalRequest,
    begun: Instant,
    /// The version of the policy at the last review.
    reviewed: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    moved_ms: AtomicU64,
    status: AtomicU16,
    failure: Mutex<Option<Failure>>,
    told: AtomicBool,
    /// The secrets that the request carries. The request ends when one of them is revoked.
    secrets: OnceLock<Vec<(String, u64)>>,
    /// Keeps the connection counted, and marked as busy.
    _busy: Arc<dyn Send + Sync>,
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("id", &self.id).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the bay.
    Out,
    /// To the bay.
    In,
}

impl Progress {
    /// `decided_in` is the version of the policy before the decision. A change during the decision leads to a review.
    pub(crate) fn new(
        policy: &Arc<Policy>,
        id: RecordId,
        request: CanonicalRequest,
        decided_in: u64,
        busy: Arc<dyn Send + Sync>,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            request,
            begun: Instant::now(),
            reviewed: AtomicU64::new(decided_in),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            moved_ms: AtomicU64::new(0),
            status: AtomicU16::new(0),
            failure: Mutex::new(None),
            told: AtomicBool::new(false),
            secrets: OnceLock::new(),
            _busy: busy,
            policy: policy.clone(),
        })
    }

    pub(crate) fn id(&self) -> &RecordId {
        &self.id
    }

    pub(crate) fn moved(&self, direction: Direction, bytes: usize) {
        let count = match direction {
            Direction::Out => &self.sent,
            Direction::In => &self.received,
        };
        count.fetch_add(bytes as u64, Relaxed);
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved_ms.store(now, Relaxed);
    }

    /// The time since bytes last moved, or since the decision.
    pub(crate) fn idle(&self) -> Duration {
        self.begun.elapsed().saturating_sub(Duration::from_millis(self.moved_ms.load(Relaxed)))
    }

    /// Whether the policy still allows the request and its secrets still exist. If not, ends it as revoked. Costs two
    /// atomic loads unless the policy changed.
    pub(crate) fn still_allowed(&self) -> bool {
        let now = self.policy.version();
        if self.reviewed.load(Relaxed) == now {
            return true;
        }
        let allowed = self.policy.decider.review(&self.id, &self.request).outcome == Outcome::Allow
            && self.has_its_secrets();
        if allowed {
            self.reviewed.store(now, Relaxed);
        } else {
            self.end(Ending::Revoked);
        }
        allowed
    }

    /// Sets the secrets of the request. Call this before their values are attached.
    pub(crate) fn set_secrets(&self, secrets: Vec<(String, u64)>) {
        self.secrets.get_or_init(|| secrets);
    }

    /// A receiver of policy changes, if the request carries secrets: each change then requires a review, even if no
    /// bytes move.
    pub(crate) fn news(&self) -> Option<watch::Receiver<u64>> {
        self.secrets.get()?;
        let mut news = self.policy.changes();
        news.mark_unchanged();
        Some(news)
    }

    fn has_its_secrets(&self) -> bool {
        let Some(used) = self.secrets.get() else { return true };
        let now = self.policy.decider.secrets();
        used.iter().all(|(name, incarnation)| now.has(name, *incarnation))
    }

    pub(crate) fn set_status(&self, status: u16) {
        self.status.store(status, Relaxed);
    }

    /// Notes the first failure. Later failures are its consequences and are ignored.
    pub(crate) fn note(&self, failure: Failure) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
    }

    pub(crate) fn noted(&self) -> Option<Failure> {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports that the whole answer was passed on.
    pub(crate) fn end_answered(&self) {
        self.end(Ending::Answered { status: self.status.load(Relaxed) });
    }

    pub(crate) fn end_failed(&self, failure: Failure) {
        self.note(failure);
        let failure = self.noted().unwrap_or(failure);
        self.end(match self.status.load(Relaxed) {
            0 => Ending::Failed { failure },
            status => Ending::Broken { status, failure },
        });
    }

    /// Reports the end. Only the first call has an effect.
    pub(crate) fn end(&self, ending: Ending) {
        if self.told.swap(true, Relaxed) {
            return;
        }
        let ended = Ended {
            ending,
            sent: self.sent.load(Relaxed),
            received: self.received.load(Relaxed),
            took: self.begun.elapsed(),
        };
        self.policy.decider.ended(&self.id, &ended);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end(Ending::Abandoned);
    }
}
