//! What a bay's own processes ask of the daemon: checkpoints, restores, diffs, egress, and whether a service may be
//! defined. The guest cannot do or decide this. It sends each request to the daemon as an event, and waits. The daemon
//! answers with a request to the guest. A request fails if no daemon is connected, if too many wait already, or if no
//! answer comes in time. It is dropped when the process that asked goes away.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bay_types::guest::GuestEvent;
use bay_types::inside::{Answered, Ask, InsideChange};
use bay_types::{ApiError, ErrorCode};
use serde_json::Value;
use tokio::sync::{broadcast, oneshot};

/// Most requests that wait at the same time; a further one fails.
const MOST: usize = 4;
/// How long the guest waits for an answer.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(crate) struct DaemonRequests {
    events: broadcast::Sender<GuestEvent>,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answered>>>,
}

/// Forgets the request when nobody waits for its answer any more: it came, it is late, or the process that asked is
/// gone.
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
            return Err(not_answered("no daemon is connected at this moment"));
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
