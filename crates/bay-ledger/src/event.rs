use serde::{Deserialize, Serialize};

use crate::hash::{Hash, leaf_hash};

/// Names the encoding, so that another one can never give the same bytes.
const ENCODING: &[u8] = b"workbay event 1";

/// An event as it is kept and hashed: text as it was written, not what it means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventRecord {
    /// Counts from 1 without gaps: the leaf's place in the tree, and one more.
    pub seq: u64,
    pub at: String,
    /// Empty for an event of no bay.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub bay: String,
    pub kind: String,
    /// JSON text. Parsed and written again it could be other bytes.
    pub body: String,
    /// The leaf's hash as it was kept: it tells which event was touched, where the root tells only that one was.
    pub hash: Hash,
}

impl EventRecord {
    /// The hash of what it says. Each part has its length in front, as a big-endian `u64`, so that nothing inside one
    /// part can look like the beginning of another.
    #[must_use]
    pub fn leaf(&self) -> Hash {
        Self::leaf_of(self.seq, &self.at, &self.bay, &self.kind, &self.body)
    }

    #[must_use]
    pub fn leaf_of(seq: u64, at: &str, bay: &str, kind: &str, body: &str) -> Hash {
        leaf_hash(&Self::canonical(seq, at, bay, kind, body))
    }

    /// `"workbay event 1"`, number (8 bytes), time, bay (empty for none), kind, body.
    #[must_use]
    pub fn canonical(seq: u64, at: &str, bay: &str, kind: &str, body: &str) -> Vec<u8> {
        let number = seq.to_be_bytes();
        let parts = [ENCODING, &number, at.as_bytes(), bay.as_bytes(), kind.as_bytes(), body.as_bytes()];
        let mut bytes = Vec::with_capacity(parts.iter().map(|part| 8 + part.len()).sum());
        for part in parts {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part);
        }
        bytes
    }
}
