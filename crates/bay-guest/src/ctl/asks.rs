//! What a bay's own processes ask of the daemon: checkpoints, and whether a service may be defined. The guest can neither
//! make a checkpoint nor decide on a service. It passes the wish on in its events and waits for the answer, which comes as
//! a request of the daemon's. Nothing is remembered: a wish whose asker has gone, or that no daemon heard, is none.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bay_types::guest::GuestEvent;
use bay_types::inside::{Answered, Ask, InsideChange};
use bay_types::{ApiError, ErrorCode};
use serde_json::Value;
use tokio::sync::{broadcast, oneshot};

/// Wishes at once.
const MOST: usize = 4;
/// How long an answer is waited for.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(crate) struct Asks {
    events: broadcast::Sender<GuestEvent>,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answered>>>,
}

/// Takes the wish back when its asker goes.
struct Waiting<'a>(&'a Asks, u64);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting().remove(&self.1);
    }
}

impl Asks {
    pub(crate) fn new(events: broadcast::Sender<GuestEvent>) -> Self {
        Self { events, next: AtomicU64::new(1), waiting: Mutex::default() }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Answered>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a wish on and waits. `asking` is set as soon as the waiting begins.
    pub(super) async fn ask(&self, ask: Ask, asking: &AtomicBool) -> Result<Value, ApiError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        {
            let mut waiting = self.waiting();
            if waiting.len() >= MOST {
                return Err(away("too many are waiting already"));
            }
            waiting.insert(id, sender);
        }
        let _waiting = Waiting(self, id);
        asking.store(true, Ordering::Relaxed);
        if self.events.send(GuestEvent::Asked { id, ask }).is_err() {
            return Err(away("nobody out there listens at this moment"));
        }
        match tokio::time::timeout(ANSWER_WITHIN, answer).await {
            Ok(Ok(Answered { error: Some(error), .. })) => Err(error),
            Ok(Ok(Answered { value, .. })) => Ok(value),
            Ok(Err(_)) | Err(_) => Err(away("no answer came")),
        }
    }

    /// Tells the daemon what was done, for its record. Where nobody listens, nobody is told.
    pub(super) fn tell(&self, change: InsideChange) {
        let _ = self.events.send(GuestEvent::Changed { change });
    }

    /// The daemon's answer. One that nobody waits for any more is dropped.
    pub(crate) fn answer(&self, id: u64, answered: Answered) {
        if let Some(waiting) = self.waiting().remove(&id) {
            let _ = waiting.send(answered);
        }
    }
}

fn away(why: &str) -> ApiError {
    ApiError::new(
        ErrorCode::Interrupted,
        format!("the operator of the bay could not be asked: {why}"),
        "try again in some seconds",
    )
}
