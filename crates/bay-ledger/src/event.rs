//! One event as it is stored, and the bytes of it that are hashed.

use serde::{Deserialize, Serialize};

use crate::hash::{Hash, leaf_hash};

/// Begins every encoding, so that another encoding never produces the same bytes.
const ENCODING: &[u8] = b"workbay event 1";

/// An event as it is stored and hashed: the texts as they were written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventRecord {
    /// Counts from 1 without gaps. The leaf's index in the tree is one less.
    pub seq: u64,
    pub at: String,
    /// Empty for an event of no bay.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub bay: String,
    pub kind: String,
    /// JSON text. Parsing and writing it again could change its bytes.
    pub body: String,
    /// The stored hash of the leaf. It shows which event was changed; the root only shows that one was.
    pub hash: Hash,
}

impl EventRecord {
    /// The hash of its contents, computed anew. [`Self::hash`] is the one that was stored.
    #[must_use]
    pub fn leaf(&self) -> Hash {
        Self::leaf_of(self.seq, &self.at, &self.bay, &self.kind, &self.body)
    }

    /// The hash of an event with these contents, as [`Self::leaf`].
    #[must_use]
    pub fn leaf_of(seq: u64, at: &str, bay: &str, kind: &str, body: &str) -> Hash {
        leaf_hash(&Self::canonical(seq, at, bay, kind, body))
    }

    /// The bytes that are hashed: `"workbay event 1"`, number (8 bytes), time, bay (empty for none), kind, body. Each
    /// part is preceded by its length as a big-endian `u64`, so that parts cannot be confused.
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
