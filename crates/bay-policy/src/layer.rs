//! One layer of a policy: its rules, and its outcome for requests that none of them covers.

use jiff::Timestamp;
use serde::Serialize;

use crate::exec::ExecRule;
use crate::rule::{Grant, Layer, Outcome, Rule};

/// Stands for the expiry of a rule that never expires.
pub(crate) const NEVER: Timestamp = Timestamp::MAX;

/// The outcome of a layer for requests that none of its rules covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Otherwise {
    Deny,
    Ask,
    /// The layer leaves the request to the other layers. The host's layer cannot.
    Inherit,
}

impl Otherwise {
    pub(crate) fn outcome(self) -> Option<Outcome> {
        match self {
            Self::Deny => Some(Outcome::Deny),
            Self::Ask => Some(Outcome::Ask),
            Self::Inherit => None,
        }
    }
}

/// One layer of a bay's policy, as read from its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LayerPolicy {
    pub layer: Layer,
    pub file: String,
    pub description: Option<String>,
    /// The preset whose rules come before its own.
    pub extends: Option<String>,
    pub otherwise: Otherwise,
    /// Whether ports of the bay may be reached from outside. `None` leaves it to the other layers. If none says no,
    /// they may.
    pub ingress: Option<bool>,
    pub rules: Vec<Rule>,
    /// Rules on commands.
    pub execs: Vec<ExecRule>,
    /// Only the bay's own layer has grants.
    pub grants: Vec<Grant>,
}
