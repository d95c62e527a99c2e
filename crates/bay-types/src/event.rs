//! The record of everything decided and done. Every event is a leaf of one Merkle tree (RFC 6962).

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
    /// Its leaf in the ledger: hexadecimal SHA-256 over everything above.
    pub hash: String,
}

/// `GET /v1/events/verify`: whether every hash of the record fits, and the last head that was signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsVerified {
    pub ok: bool,
    /// Events that hold, counted from the first.
    pub events: u64,
    /// Root over all events when all of them hold: written down elsewhere, it proves later that none was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_hash: Option<String>,
    /// The first event that does not hold, where one can be named, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_bad: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// `GET /v1/audit/key`: what checks the ledger's signed heads. It may be known to all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerKey {
    pub log: String,
    /// One line: name, id and key.
    pub key: String,
}

/// `GET /v1/audit/head`: the end of the record, signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerHead {
    /// The signed note.
    pub note: String,
    /// What it says: how many events there are, the root over all of them, and when it was signed.
    pub size: u64,
    pub root: String,
    pub signed_at: Timestamp,
}
