//! The record of everything decided and done. Every event carries the hash of the one before it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::BayId;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Counts from 1 without gaps.
    pub seq: u64,
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bay: Option<BayId>,
    /// Noun and verb: `bay.create`, `exec.start`.
    pub kind: String,
    /// A JSON object; what it holds depends on the kind.
    pub body: serde_json::Value,
    /// Hexadecimal SHA-256 over the previous hash and everything above.
    pub hash: String,
}

/// `GET /v1/events/verify`: whether every hash of the record fits what it says and what came before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsVerified {
    pub ok: bool,
    /// Events that hold, counted from the first.
    pub events: u64,
    /// Hash of the last event when all of them hold: written down elsewhere, it proves later that none was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_hash: Option<String>,
    /// The first event that does not hold, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_bad: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}
