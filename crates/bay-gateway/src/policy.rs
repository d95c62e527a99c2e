//! The policy of the bay as the gateway sees it: the decider, and a version that counts the announced changes of the
//! policy and the secrets.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bay_policy::Host;
use tokio::sync::watch;

use crate::decider::Decider;
use crate::scrub::Renewal;
use crate::secrets::Sent;

pub(crate) struct Policy {
    pub(crate) decider: Arc<dyn Decider>,
    version: AtomicU64,
    changes: watch::Receiver<u64>,
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy").field("version", &self.version).finish_non_exhaustive()
    }
}

/// Announces changes of the policy. Dropping it ends every receiver of [`Policy::changes`], and with them open tunnels.
pub(crate) struct PolicyUpdates {
    policy: Arc<Policy>,
    sender: watch::Sender<u64>,
}

impl PolicyUpdates {
    pub(crate) fn announce(&self) {
        let version = self.policy.version.fetch_add(1, Relaxed) + 1;
        self.sender.send_replace(version);
    }
}

impl Policy {
    pub(crate) fn new(decider: Arc<dyn Decider>) -> (Arc<Self>, PolicyUpdates) {
        let (sender, changes) = watch::channel(0);
        let policy = Arc::new(Self { decider, version: AtomicU64::new(0), changes });
        (policy.clone(), PolicyUpdates { policy, sender })
    }

    /// The number of changes so far. Costs one load.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Relaxed)
    }

    /// Receives each change. Fails once the gateway is dropped.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// A callback that compiles the patterns for a host's answers again after the policy changed. `sent` are the
    /// values that the request carried; `since` is the version in which the current patterns were made.
    pub(crate) fn renewal(self: &Arc<Self>, host: &Host, sent: Vec<Sent>, since: u64) -> Renewal {
        let (policy, host, mut seen) = (Arc::clone(self), host.to_string(), since);
        Box::new(move || {
            let now = policy.version();
            if now == seen {
                return None;
            }
            seen = now;
            policy.decider.secrets().patterns(&host, &sent).ok().flatten()
        })
    }
}
