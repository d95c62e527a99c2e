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
mod inside;
mod recall;
mod set;
pub mod verbs;
mod view;

use std::sync::Arc;

use bay_policy::{CompiledPolicy, Place};

pub(super) use ask::replaced;
pub(crate) use set::drop_grants;
pub(super) use set::{PreparedGrant, prepare, prepare_grant, set_event};

use crate::daemon::Daemon;
use crate::policies::{Effective, compile};
use crate::registry::BayHandle;

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
    let made = crate::background::blocking(move || Ok(compile::compile(&texts, forge.as_ref()))).await;
    match made {
        Ok(made) => {
            let made = Arc::new(made);
            daemon.policies.keep(handle.id, of, &made);
            made
        }
        Err(error) => Arc::new(Effective::unreadable(&error.message)),
    }
}
