//! What one bay's own processes asked the daemon for, and what it cost: the part of the daemon's work and of the record that
//! the bay has used.

use std::sync::Arc;

use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

pub(crate) mod record_share;
mod work_share;

use record_share::RecordShare;
use work_share::WorkShare;
pub(crate) use work_share::cost;

/// Wishes of a bay that are known at once.
const MAX_WAITING: usize = 4;

/// Wishes of one bay, waiting for their turn.
#[derive(Debug)]
pub(crate) struct Wishes {
    pub(crate) room: Arc<Semaphore>,
    /// The last one that was done, and what they cost. Held while one is answered.
    pub(crate) served: Mutex<Served>,
    pub(crate) record: RecordShare,
    pub(crate) noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
pub(crate) struct Served {
    pub(crate) last: Option<Instant>,
    pub(crate) share: WorkShare,
}

/// Changes of a bay's own that were written down.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    pub(crate) since: Option<Instant>,
    pub(crate) written: u32,
    /// Those beyond the number that is written down one by one that no event speaks of yet.
    pub(crate) left_out: u64,
    /// That the bay's part of the record is used up is on record.
    pub(crate) full: bool,
}

impl Default for Wishes {
    fn default() -> Self {
        Self {
            room: Arc::new(Semaphore::new(MAX_WAITING)),
            served: Mutex::default(),
            record: RecordShare::default(),
            noted: Mutex::default(),
        }
    }
}
