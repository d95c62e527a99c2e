//! The forwards of one bay that are open, and their connections.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use bay_tunnel::Moved;
use bay_types::forward::{ForwardSpec, MAX_CONNECTIONS, MAX_FORWARDS};
use bay_types::id::ForwardId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One open forward.
#[derive(Debug)]
pub(crate) struct Forward {
    pub(crate) spec: ForwardSpec,
    /// How many connections it had, with those that are open.
    pub(crate) connections: AtomicU64,
    /// What all of its connections moved.
    pub(crate) moved: Moved,
}

/// The open forwards of one bay.
#[derive(Debug)]
pub(crate) struct OpenForwards {
    forwards: Mutex<HashMap<ForwardId, Arc<Forward>>>,
    places: Arc<Semaphore>,
}

impl Default for OpenForwards {
    fn default() -> Self {
        Self { forwards: Mutex::default(), places: Arc::new(Semaphore::new(MAX_CONNECTIONS)) }
    }
}

impl OpenForwards {
    /// Adds a forward. `None` if there are as many as one bay may have.
    pub(crate) fn add(&self, spec: ForwardSpec) -> Option<(ForwardId, Arc<Forward>)> {
        let mut forwards = self.forwards.lock().unwrap_or_else(PoisonError::into_inner);
        if forwards.len() >= MAX_FORWARDS {
            return None;
        }
        let forward = Forward { spec, connections: AtomicU64::new(0), moved: Moved::default() };
        let (id, forward) = (ForwardId::generate(), Arc::new(forward));
        forwards.insert(id, Arc::clone(&forward));
        Some((id, forward))
    }

    pub(crate) fn find(&self, id: ForwardId) -> Option<Arc<Forward>> {
        self.forwards.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    pub(crate) fn remove(&self, id: ForwardId) {
        self.forwards.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// The place of one connection until it is dropped. `None` if the bay has as many as it may have.
    pub(crate) fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwards_and_connections_of_a_bay_are_bounded() {
        let open = OpenForwards::default();
        let spec = ForwardSpec { all: true, ..ForwardSpec::default() };
        let ids: Vec<ForwardId> = (0..MAX_FORWARDS).map(|_| open.add(spec.clone()).unwrap().0).collect();
        assert!(open.add(spec.clone()).is_none());
        open.remove(ids[0]);
        assert!(open.find(ids[0]).is_none() && open.find(ids[1]).is_some());
        assert!(open.add(spec).is_some());
        let places: Vec<_> = (0..MAX_CONNECTIONS).map(|_| open.place().unwrap()).collect();
        assert!(open.place().is_none());
        drop(places);
        assert!(open.place().is_some());
    }
}
