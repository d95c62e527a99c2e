//! What the verbs do, for every front.

use std::sync::Arc;

use bay_types::CoreError;
use bay_types::principal::Principal;

use crate::authorize::{Verb, authorize, authorize_on};
use crate::daemon::Daemon;
use crate::registry::BayHandle;

pub mod approvals;
pub mod audit;
pub mod bays;
mod blame;
pub mod checkpoints;
mod command_approval;
pub(crate) mod costs;
pub mod create;
pub mod diff;
pub mod disk;
mod environment;
pub mod events;
pub mod execs;
mod fetch;
pub mod files;
pub mod forks;
pub mod forwards;
pub mod images;
pub(crate) mod inside;
pub(crate) mod memory;
pub mod metrics;
pub mod policy;
pub mod ports;
pub(crate) mod questions;
pub mod reach;
pub mod record_stream;
pub mod removed_bays;
pub mod repos;
pub mod secrets;
pub mod services;
pub mod settings;
pub(crate) mod start_spec;
pub mod story;
pub mod timeline;
mod top;
pub mod traffic;
pub mod webhooks;
pub mod work;
pub mod workspaces;

impl Daemon {
    /// Refuses a verb that this principal may not use.
    pub(crate) fn permit(&self, who: &Principal, verb: Verb) -> Result<(), CoreError> {
        Ok(authorize(who.kind(), verb)?)
    }

    /// The bay that a verb names, by name or id, if this principal may use the verb on it.
    pub(crate) fn bay_for(
        &self,
        who: &Principal,
        verb: Verb,
        given: &str,
    ) -> Result<Arc<BayHandle>, CoreError> {
        let found = self.bays.find(given);
        authorize_on(who, verb, found.as_ref().ok().map(|handle| handle.id))?;
        found
    }
}

/// How many digits of the end of an id identify it. Lists show eight.
const SUFFIX_DIGITS: std::ops::RangeInclusive<usize> = 6..=32;

/// Whether the text of a caller is the end of this id.
pub(crate) fn ends_id(id: &impl ToString, given: &str) -> bool {
    is_id_end(given) && id.to_string().ends_with(given)
}

/// Whether the text of a caller can be the end of an id.
pub(crate) fn is_id_end(given: &str) -> bool {
    SUFFIX_DIGITS.contains(&given.len()) && given.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}
