//! Requests that the processes of one bay send to the daemon, and their cost: the bay's share of the daemon's work
//! and of the record.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

pub(crate) mod record_share;
mod work_share;

use record_share::RecordShare;
use work_share::WorkShare;
pub(crate) use work_share::cost;

/// The most requests of a bay that wait or are answered.
const MAX_WAITING: usize = 4;

/// The requests of one bay that wait for their turn, and what it may still cost.
#[derive(Debug)]
pub(crate) struct InsideRequests {
    pub(crate) room: Arc<Semaphore>,
    /// When the last request was answered, and the share of work. Held while a request is answered.
    pub(crate) served: Mutex<Served>,
    pub(crate) record: RecordShare,
    pub(crate) noted: Mutex<Noted>,
    /// How many states of services were recorded in the present window.
    pub(crate) service_states: Mutex<RateWindow>,
}

/// Counts within windows of time that follow each other.
#[derive(Debug, Default)]
pub(crate) struct RateWindow {
    since: Option<Instant>,
    count: u32,
}

impl RateWindow {
    /// Counts one more. If there were `most` within the window, refuses it.
    pub(crate) fn admits(&mut self, most: u32, within: Duration) -> bool {
        let now = Instant::now();
        if now >= *self.since.get_or_insert(now) + within {
            (self.since, self.count) = (Some(now), 0);
        }
        let admitted = self.count < most;
        self.count += u32::from(admitted);
        admitted
    }
}

#[derive(Debug, Default)]
pub(crate) struct Served {
    pub(crate) last: Option<Instant>,
    pub(crate) share: WorkShare,
}

/// How many changes by a bay's own processes were recorded, and how many not.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    pub(crate) window: RateWindow,
    /// How many changes beyond those that get an event each are not in a sum on record yet.
    pub(crate) left_out: u64,
    /// It is on record that the bay's share of the record is used up.
    pub(crate) full: bool,
}

impl Default for InsideRequests {
    fn default() -> Self {
        Self {
            room: Arc::new(Semaphore::new(MAX_WAITING)),
            served: Mutex::default(),
            record: RecordShare::default(),
            noted: Mutex::default(),
            service_states: Mutex::default(),
        }
    }
}
