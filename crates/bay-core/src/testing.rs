//! What tests of a front need beyond the verbs: bays without a backend, and the state that verbs leave behind.
//!
//! Only tests may use this; the architecture test checks that.

use std::sync::Arc;
use std::time::Duration;

use bay_policy::CompiledPolicy;
use bay_store::BayRow;
use bay_types::exec::{EndReason, Exit};
use bay_types::frame::Frame;
use bay_types::{BayId, CoreError, ExecId};
use tokio::sync::watch;

pub use crate::follow::follow;
pub use crate::reconcile::spawn as start_reconciler;
pub use crate::registry::{BayHandle, Settled, Starting};

use crate::daemon::Daemon;
use crate::verbs::{execs, policy};

/// Adds a bay that is in the store already.
pub fn add_bay(daemon: &Daemon, row: BayRow) -> Arc<BayHandle> {
    let handle = Arc::new(BayHandle::of(row, &daemon.backends));
    daemon.bays.insert(Arc::clone(&handle));
    handle
}

/// Checks once more for an exec that was being started.
pub async fn recheck_later(daemon: Arc<Daemon>, handle: Arc<BayHandle>, starting: Starting, wait: Duration) {
    execs::recheck_later(daemon, handle, starting, wait).await;
}

/// Records the end of an exec as the guest reported it.
pub async fn ended(daemon: &Daemon, handle: &BayHandle, id: ExecId, exit: Exit) {
    execs::ended(daemon, handle, id, exit, None).await;
}

/// The last frame of an attached exec.
///
/// # Errors
/// If the store cannot be read.
pub async fn end_of(daemon: &Daemon, handle: &BayHandle, id: ExecId) -> Result<Frame, CoreError> {
    execs::end_of(daemon, handle, id).await
}

/// Ends every open exec of a bay.
pub async fn close_all(daemon: &Daemon, handle: &BayHandle, why: EndReason) {
    execs::close_all(daemon, handle, why).await;
}

/// The policy in force for a bay.
pub async fn effective(daemon: &Daemon, handle: &BayHandle) -> Arc<CompiledPolicy> {
    policy::effective(daemon, handle).await
}

/// Revokes all grants of a bay.
///
/// # Errors
/// If the store cannot be written.
pub async fn drop_grants(daemon: &Daemon, handle: &BayHandle, why: &str) -> Result<(), CoreError> {
    policy::drop_grants(daemon, handle, why).await
}

/// The number of changes of a bay's policy.
pub fn policy_changes(daemon: &Daemon, bay: BayId) -> watch::Receiver<u64> {
    daemon.policies.subscribe(bay)
}

/// Forgets the prepared policy of a bay, as a new daemon would.
pub fn forget_policy(daemon: &Daemon, bay: BayId) {
    daemon.policies.forget(bay);
}
