//! State that all connections of one gateway share.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bay_policy::Host;
use tokio::sync::{Semaphore, watch};

use crate::authority::{Authority, Leaves};
use crate::decider::Decider;
use crate::limits::Timeouts;
use crate::names::{Meaning, Names};
use crate::origin::Origins;
use crate::policy::Policy;

pub(crate) struct GatewayState {
    pub(crate) policy: Arc<Policy>,
    pub(crate) origins: Arc<Origins>,
    pub(crate) authority: Arc<Authority>,
    pub(crate) leaves: Leaves,
    pub(crate) names: Arc<Mutex<Names>>,
    pub(crate) timeouts: Timeouts,
    /// One permit for each connection that may be open.
    pub(crate) connections: Arc<Semaphore>,
    /// One permit for each request that may be under way.
    pub(crate) requests: Arc<Semaphore>,
    /// One permit for each SSH connection that may be open.
    pub(crate) ssh_connections: Arc<Semaphore>,
    /// Turns true when the gateway is about to end. Each HTTP connection keeps a receiver until it is closed.
    pub(crate) ending: watch::Sender<bool>,
}

impl fmt::Debug for GatewayState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayState").finish_non_exhaustive()
    }
}

impl GatewayState {
    pub(crate) fn decider(&self) -> &dyn Decider {
        &*self.policy.decider
    }

    /// The host that the bay means by an address. `None` for an address of the pool that has no name.
    pub(crate) fn host_at(&self, address: IpAddr) -> Option<Host> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        match names.meaning(address) {
            Meaning::Name(name) => Some(Host::Name((*name).into())),
            Meaning::Nobody => None,
            Meaning::Foreign => Some(Host::Address(address)),
        }
    }
}
