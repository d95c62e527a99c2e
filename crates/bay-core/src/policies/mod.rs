//! The policies of all bays, compiled from their texts and kept until a change.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bay_types::policy::MAX_GRANTS;
use bay_types::{Action, BayId, CoreError, ErrorCode, Hint};
use tokio::sync::watch;

pub(crate) mod compile;
pub(crate) mod places;

pub(crate) use compile::{Effective, Source};

/// The error for a bay that has as many grants as a bay may have.
pub(crate) fn too_many_grants(bay: &str) -> CoreError {
    CoreError::new(
        ErrorCode::NotEnough,
        format!("{bay} has {MAX_GRANTS} grants, the most allowed"),
        Hint::new(
            "{} revokes one; for a permission that is needed often, write a rule into the policy",
            [Action::RemoveGrant(bay.into())],
        ),
    )
}

/// The compiled policies of all bays.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    bays: Mutex<HashMap<BayId, Entry>>,
}

#[derive(Debug)]
struct Entry {
    /// The number of changes that this daemon knows of.
    changes: watch::Sender<u64>,
    /// The compiled policy, with the number of changes at that time.
    ready: Option<(u64, Arc<Effective>)>,
}

impl Default for Entry {
    fn default() -> Self {
        Self { changes: watch::Sender::new(0), ready: None }
    }
}

impl Policies {
    fn bays(&self) -> MutexGuard<'_, HashMap<BayId, Entry>> {
        self.bays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that grows whenever the bay's policy changes. Closed when the bay is gone.
    pub(crate) fn subscribe(&self, bay: BayId) -> watch::Receiver<u64> {
        self.bays().entry(bay).or_default().changes.subscribe()
    }

    /// Must be called after the commit of a change.
    pub(crate) fn touch(&self, bay: BayId) {
        if let Some(entry) = self.bays().get_mut(&bay) {
            entry.ready = None;
            entry.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Forgets a bay that is gone.
    pub(crate) fn forget(&self, bay: BayId) {
        self.bays().remove(&bay);
    }

    /// The compiled policy, or the present number of changes if there is none.
    pub(crate) fn ready(&self, bay: BayId) -> Result<Arc<Effective>, u64> {
        let mut bays = self.bays();
        let entry = bays.entry(bay).or_default();
        let changes = *entry.changes.borrow();
        match &entry.ready {
            Some((of, effective)) if *of == changes => Ok(Arc::clone(effective)),
            _ => Err(changes),
        }
    }

    /// Keeps a policy that was compiled at this number of changes.
    pub(crate) fn keep(&self, bay: BayId, of: u64, effective: &Arc<Effective>) {
        // A bay that was removed meanwhile stays forgotten.
        if let Some(entry) = self.bays().get_mut(&bay) {
            entry.ready = Some((of, Arc::clone(effective)));
        }
    }
}
