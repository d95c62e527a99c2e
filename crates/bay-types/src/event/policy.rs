use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Field;
use super::area::area;

/// A policy, without its text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicySummary {
    /// The name of its file.
    pub name: String,
    /// SHA-256 over its text, in hexadecimal digits.
    pub sha256: String,
    /// How many rules it has.
    pub rules: RuleCounts,
}

/// How many rules a policy has, by what they say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleCounts {
    pub allow: u64,
    pub ask: u64,
    pub deny: u64,
}

area! {
    /// Policies and grants.
    Policy: PolicyEvent;

    /// A policy was set or removed.
    Set(PolicySet) = "policy.set" {
        /// What it is for: `host`, `project:LOCATION` or `bay:ID`.
        scope: String,
        /// The name of its file. `null` if it was removed.
        name: Option<String>,
        /// SHA-256 over its text, in hexadecimal digits. Absent if it was removed.
        #[serde(skip_serializing_if = "Option::is_none")]
        sha256: Option<String>,
        /// How many rules it has. Absent if it was removed.
        #[serde(skip_serializing_if = "Option::is_none")]
        rules: Option<RuleCounts>,
        /// Who asked.
        by: String,
    }

    /// A bay was granted a request for a while.
    GrantAdd(GrantAdd) = "grant.add" {
        /// The grant.
        id: String,
        /// The request, or what of it the grant covers.
        request: String,
        /// When the grant ends.
        expires: Field<Timestamp>,
        /// SHA-256 over its text, in hexadecimal digits.
        sha256: String,
        /// Who asked.
        by: String,
    }

    /// Grants were taken back.
    GrantRemove(GrantRemove) = "grant.rm" {
        /// The grants.
        ids: Vec<String>,
        /// Why, if nobody asked for it.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
        /// Who asked. Absent if nobody did.
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    }
}
