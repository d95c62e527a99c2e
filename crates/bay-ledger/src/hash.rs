//! SHA-256 hashes, and those of the tree's leaves and inner nodes.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

/// A SHA-256 hash; as text, hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash([u8; Hash::BYTES]);

impl Hash {
    pub const BYTES: usize = 32;

    #[must_use]
    pub const fn new(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    #[must_use]
    pub const fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// The root of a tree without leaves.
    #[must_use]
    pub fn of_nothing() -> Self {
        Self(Sha256::digest([]).into())
    }

    /// Parses 64 lower-case hexadecimal digits: each hash has one text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digit = |c: u8| match c {
            b'0'..=b'9' => Some(c - b'0'),
            b'a'..=b'f' => Some(c - b'a' + 10),
            _ => None,
        };
        let text: &[u8; 2 * Self::BYTES] = text.as_bytes().try_into().ok()?;
        let mut bytes = [0; Self::BYTES];
        for (byte, pair) in bytes.iter_mut().zip(text.as_chunks::<2>().0) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 2 * Self::BYTES];
        for (pair, byte) in text.as_chunks_mut::<2>().0.iter_mut().zip(self.0) {
            *pair = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
        }
        f.write_str(str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| serde::de::Error::custom("a hash is 64 hexadecimal digits in lower case"))
    }
}

/// What is hashed before the bytes of a leaf. It differs from [`NODE`], so that no event can be presented as a node,
/// or a node as an event.
const LEAF: [u8; 1] = [0];
/// What is hashed before the two hashes of a node.
const NODE: [u8; 1] = [1];

/// The hash of a leaf, from the bytes of its event.
#[must_use]
pub fn leaf_hash(bytes: &[u8]) -> Hash {
    Hash(Sha256::new().chain_update(LEAF).chain_update(bytes).finalize().into())
}

/// The hash of an inner node, from those of its two children.
#[must_use]
pub fn node_hash(left: &Hash, right: &Hash) -> Hash {
    Hash(Sha256::new().chain_update(NODE).chain_update(left.0).chain_update(right.0).finalize().into())
}
