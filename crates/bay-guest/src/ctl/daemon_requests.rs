//! What a bay's own processes ask of the daemon: checkpoints, diffs, egress, and whether a service may be defined. The
//! guest cannot do or decide this. It sends each request to the daemon as an event, and waits; the daemon answers with
//! a request to the guest. A request is dropped when the process that asked goes away, or if no daemon is connected.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bay_types::guest::GuestEvent;
use bay_types::inside::{Answered, Ask, InsideChange};
use bay_types::{ApiError, ErrorCode};
use serde_json::Value;
use tokio::sync::{broadcast, oneshot};

/// Requests that wait at the same time.
const MOST: usize = 4;
/// How long the guest waits for an answer.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(crate) struct DaemonRequests {
    events: broadcast::Sender<GuestEvent>,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answered>>>,
}

/// Drops the request when the process that asked goes away.
struct Waiting<'a>(&'a DaemonRequests, u64);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting().remove(&self.1);
    }
}

impl DaemonRequests {
    pub(crate) fn new(events: broadcast::Sender<GuestEvent>) -> Self {
        Self { events, next: AtomicU64::new(1), waiting: Mutex::default() }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Answered>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request to the daemon and waits for its answer. Sets `asking` as soon as it waits.
    pub(super) async fn ask(&self, ask: Ask, asking: &AtomicBool) -> Result<Value, ApiError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        {
            let mut waiting = self.waiting();
            if waiting.len() >= MOST {
                return Err(not_answered("too many are waiting already"));
            }
            waiting.insert(id, sender);
        }
        let _waiting = Waiting(self, id);
        asking.store(true, Ordering::Relaxed);
        if self.events.send(GuestEvent::Asked { id, ask }).is_err() {
            return Err(not_answered("nobody out there listens at this moment"));
        }
        match tokio::time::timeout(ANSWER_WITHIN, answer).await {
            Ok(Ok(Answered { error: Some(error), .. })) => Err(error),
            Ok(Ok(Answered { value, .. })) => Ok(value),
            Ok(Err(_)) | Err(_) => Err(not_answered("no answer came")),
        }
    }

    /// Reports a change to the daemon, which records it. Does nothing if no daemon is connected.
    pub(super) fn report(&self, change: InsideChange) {
        let _ = self.events.send(GuestEvent::Changed { change });
    }

    /// Takes the daemon's answer. Drops it if no request waits for it any more.
    pub(crate) fn answer(&self, id: u64, answered: Answered) {
        if let Some(waiting) = self.waiting().remove(&id) {
            let _ = waiting.send(answered);
        }
    }
}

fn not_answered(why: &str) -> ApiError {
    ApiError::new(
        ErrorCode::Interrupted,
        format!("the daemon did not answer the request: {why}"),
        "try again in a few seconds",
    )
}
