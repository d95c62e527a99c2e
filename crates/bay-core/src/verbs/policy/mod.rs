//! What may leave bays: the policy in force for each bay, how it is changed, and what it decides.
//!
//! ```text
//!  store: texts of host, project, bay; grants ──► effective() ──► one compiled policy per bay, kept until a change
//!                 ▲                                                      │
//!  set, grant ────┴── commit, then touch() ──► subscribe(): a counter ───┴──► each decider takes the new policy
//! ```
//!
//! Failures deny. A layer that cannot be read denies everything, and then no grant applies either. A store that
//! cannot be read is a policy that denies. Both explain why.

mod evaluate;
mod inside;
mod recorded_decisions;
mod set;
pub mod verbs;
mod view;

use std::sync::Arc;

use bay_policy::{CanonicalRequest, CompiledPolicy, Outcome, Place, decide};
use bay_types::blame::Reachable;
use jiff::Timestamp;

pub(super) use evaluate::replaced;
pub(crate) use set::drop_grants;
pub(super) use set::{PreparedGrant, prepare, prepare_grant, set_event};

use crate::daemon::Daemon;
use crate::policies::{Effective, Source, compile};
use crate::registry::BayHandle;

/// The policy that decides every request of a bay. Never fails: what cannot be read denies.
pub(crate) async fn effective(daemon: &Daemon, handle: &BayHandle) -> Arc<CompiledPolicy> {
    Arc::clone(&effective_with_origins(daemon, handle).await.policy)
}

/// The policy in force, with the origins of its layers.
pub(crate) async fn effective_with_origins(daemon: &Daemon, handle: &BayHandle) -> Arc<Effective> {
    let of = match daemon.policies.ready(handle.id) {
        Ok(effective) => return effective,
        Err(of) => of,
    };
    let row = handle.row();
    let (project, reach) = (compile::project(&row), row.spec.reach);
    let texts = match daemon.store.policy_texts(handle.id, project.as_deref()).await {
        Ok(texts) => texts,
        // Not kept: the next request checks again whether it can be read.
        Err(error) => return Arc::new(Effective::unreadable(&error.to_api().message)),
    };
    let forge = project.as_deref().and_then(Place::of_repository);
    let made =
        crate::background::blocking(move || Ok(compile::compile(&texts, forge.as_ref(), &reach))).await;
    match made {
        Ok(made) => {
            let made = Arc::new(made);
            daemon.policies.keep(handle.id, of, &made);
            made
        }
        Err(error) => Arc::new(Effective::unreadable(&error.message)),
    }
}

/// Whether nobody set a policy that applies to this bay, so that the default denies everything.
pub(crate) async fn is_unset(daemon: &Daemon, handle: &BayHandle) -> bool {
    effective_with_origins(daemon, handle).await.sources.iter().all(Source::is_default)
}

/// Whether a request, written in one line, would leave the bay now without a person.
pub(crate) async fn reachable(daemon: &Daemon, handle: &BayHandle, line: &str) -> Reachable {
    let Ok(request) = CanonicalRequest::from_line(line) else { return Reachable::Refused };
    let effective = effective_with_origins(daemon, handle).await;
    match decide(&effective.policy, &request, Timestamp::now()).outcome {
        Outcome::Allow => Reachable::Allowed,
        _ if effective.sources.iter().all(Source::is_default) => Reachable::NoPolicy,
        _ => Reachable::Refused,
    }
}
