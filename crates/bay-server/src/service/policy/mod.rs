//! What may leave bays: the policy that holds for each, how it is changed, and what it says.
//!
//! ```text
//!   store: texts of host, project, bay; grants ──► effective() ──► one compiled policy per bay, kept until a change
//!                 ▲                                                      │
//!   set, grant ───┴── commit, then touch() ──► subscribe(): a counter ───┴──► whoever decides takes the new one
//! ```
//!
//! Failure is closed: a layer that cannot be read (any more) denies everything, and then no grant holds either; a store
//! that cannot be read is a policy that denies. Both say why.

mod ask;
mod compile;
mod inside;
mod places;
mod recall;
mod set;
pub(crate) mod verbs;
mod view;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bay_policy::{CompiledPolicy, Place};
use bay_types::BayId;
use tokio::sync::watch;

pub(super) use ask::replaced;
pub(crate) use compile::Effective;
pub(super) use set::{PreparedGrant, prepare, prepare_grant, set_event};
pub(crate) use set::{drop_grants, too_many_grants};

use crate::daemon::Daemon;
use crate::registry::BayHandle;

/// The policies of all bays, made ready.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    bays: Mutex<HashMap<BayId, Entry>>,
}

#[derive(Debug)]
struct Entry {
    /// How often it was changed, as far as this daemon knows.
    changes: watch::Sender<u64>,
    /// As of that number of changes.
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

    /// A number that grows whenever the policy of the bay is not what it was. Closed when the bay is gone.
    pub(crate) fn subscribe(&self, bay: BayId) -> watch::Receiver<u64> {
        self.bays().entry(bay).or_default().changes.subscribe()
    }

    /// To be called after the commit of a change.
    pub(crate) fn touch(&self, bay: BayId) {
        if let Some(entry) = self.bays().get_mut(&bay) {
            entry.ready = None;
            entry.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Nobody asks for this bay any more.
    pub(crate) fn forget(&self, bay: BayId) {
        self.bays().remove(&bay);
    }

    /// What is ready, or the number of changes that whatever is made now is of.
    fn ready(&self, bay: BayId) -> Result<Arc<Effective>, u64> {
        let mut bays = self.bays();
        let entry = bays.entry(bay).or_default();
        let changes = *entry.changes.borrow();
        match &entry.ready {
            Some((of, effective)) if *of == changes => Ok(Arc::clone(effective)),
            _ => Err(changes),
        }
    }

    fn keep(&self, bay: BayId, of: u64, effective: &Arc<Effective>) {
        // One that was removed meanwhile is not brought back by this.
        if let Some(entry) = self.bays().get_mut(&bay) {
            entry.ready = Some((of, Arc::clone(effective)));
        }
    }
}

/// What every request of a bay is decided by. Never fails: what cannot be read denies.
pub(crate) async fn effective(daemon: &Daemon, handle: &BayHandle) -> Arc<CompiledPolicy> {
    Arc::clone(&effective_with_origins(daemon, handle).await.policy)
}

/// The same with where its layers come from.
pub(crate) async fn effective_with_origins(daemon: &Daemon, handle: &BayHandle) -> Arc<Effective> {
    let of = match daemon.policies.ready(handle.id) {
        Ok(effective) => return effective,
        Err(of) => of,
    };
    let project = compile::project(&handle.row());
    let texts = match daemon.store.policy_texts(handle.id, project.as_deref()).await {
        Ok(texts) => texts,
        // Not kept: the next one who asks finds out whether it still cannot be read.
        Err(error) => return Arc::new(Effective::unreadable(&error.to_api().message)),
    };
    let forge = project.as_deref().and_then(Place::of_repository);
    let made = crate::daemon::blocking(move || Ok(compile::compile(&texts, forge.as_ref()))).await;
    match made {
        Ok(made) => {
            let made = Arc::new(made);
            daemon.policies.keep(handle.id, of, &made);
            made
        }
        Err(error) => Arc::new(Effective::unreadable(&error.message)),
    }
}
