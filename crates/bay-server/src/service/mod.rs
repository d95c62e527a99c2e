//! One module per noun: what the verbs do, whichever API they come through.

use std::sync::Arc;

use bay_types::ApiError;
use bay_types::principal::Principal;

use crate::authorize::{Verb, authorize, authorize_on};
use crate::daemon::Daemon;
use crate::registry::BayHandle;

pub(crate) mod approvals;
pub(crate) mod audit;
pub(crate) mod bays;
pub(crate) mod checkpoints;
pub(crate) mod costs;
pub(crate) mod create;
pub(crate) mod diff;
pub(crate) mod events;
pub(crate) mod execs;
mod fetch;
pub(crate) mod files;
pub(crate) mod forks;
mod gate;
pub(crate) mod images;
pub(crate) mod inside;
pub(crate) mod memory;
pub(crate) mod metrics;
pub(crate) mod policy;
pub(crate) mod ports;
pub(crate) mod questions;
pub(crate) mod record_stream;
pub(crate) mod repos;
pub(crate) mod secrets;
pub(crate) mod services;
pub(crate) mod settings;
pub(crate) mod start_spec;
mod thinning;
pub(crate) mod timeline;
mod top;
pub(crate) mod traffic;
pub(crate) mod webhooks;
pub(crate) mod workspaces;

impl Daemon {
    /// Refuses a verb that this principal may not use.
    pub(crate) fn permit(&self, who: &Principal, verb: Verb) -> Result<(), ApiError> {
        Ok(authorize(who.kind(), verb)?)
    }

    /// The bay that a verb is about, by name or id, if this principal may use the verb on it.
    pub(crate) fn bay_for(
        &self,
        who: &Principal,
        verb: Verb,
        given: &str,
    ) -> Result<Arc<BayHandle>, ApiError> {
        let found = self.bays.find(given);
        authorize_on(who, verb, found.as_ref().ok().map(|handle| handle.id))?;
        found
    }
}

/// Digits of the end of an id that may stand for it. Lists show eight.
const SUFFIX_DIGITS: std::ops::RangeInclusive<usize> = 6..=32;

/// Whether what a person typed is the end of this id.
pub(crate) fn ends_id(id: &impl ToString, given: &str) -> bool {
    is_id_end(given) && id.to_string().ends_with(given)
}

/// Whether what a person typed can be the end of an id.
pub(crate) fn is_id_end(given: &str) -> bool {
    SUFFIX_DIGITS.contains(&given.len()) && given.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}
