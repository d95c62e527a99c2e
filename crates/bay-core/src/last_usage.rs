//! What all bays used when they were last measured, and what their disks held when they were last counted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bay_types::BayId;
use bay_types::top::{DiskUse, Top};
use tokio::time::Instant;

#[derive(Debug, Default)]
pub(crate) struct LastUsage {
    pub(crate) last: tokio::sync::Mutex<Option<(Instant, Arc<Top>)>>,
    disks: Mutex<Disks>,
}

#[derive(Debug, Default)]
pub(crate) struct Disks {
    pub(crate) counting: bool,
    pub(crate) counted_at: Option<Instant>,
    pub(crate) of: HashMap<BayId, DiskUse>,
}

impl LastUsage {
    pub(crate) fn disks(&self) -> std::sync::MutexGuard<'_, Disks> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
