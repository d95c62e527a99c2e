//! Hashes of an exec's output, and the result of checking kept output against them.
//!
//! The guest hashes output in its own memory while it writes it to the bay's disk, and reports the hashes with the
//! exec's end. Root in the bay can change the files afterwards, but neither the guest's memory nor the daemon's record.

use std::fmt;
use std::str::FromStr;

use bay_text::hex;
use serde::{Deserialize, Serialize};

use crate::id::ParseIdError;

/// Which output a reader asks for, as the query of its request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutputRequest {
    /// The first byte.
    pub since: u64,
    /// Wait for output that is still to come.
    pub follow: bool,
    /// Say when the output came; see [`Frame::Time`](crate::frame::Frame::Time).
    pub times: bool,
}

impl OutputRequest {
    /// The query of the request. A guest or a daemon of an earlier release never sees a key that it does not know, unless
    /// the reader asks for what the key means.
    #[must_use]
    pub fn query(&self) -> String {
        let times = if self.times { "&times=true" } else { "" };
        format!("since={}&follow={}{times}", self.since, self.follow)
    }
}

/// Most hashes that are reported of one exec, the newest ones. This bounds the event in the record: 64 of them take
/// 13 KiB.
pub const MAX_OUTPUT_HASHES: usize = 64;

/// A SHA-256. As text: 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Sha256Hash(pub [u8; 32]);

impl fmt::Display for Sha256Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Sha256Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256Hash({self})")
    }
}

impl From<Sha256Hash> for String {
    fn from(hash: Sha256Hash) -> Self {
        hash.to_string()
    }
}

impl FromStr for Sha256Hash {
    type Err = ParseIdError;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut hash = [0; 32];
        let (pairs, rest) = given.as_bytes().as_chunks::<2>();
        let whole = pairs.len() == hash.len() && rest.is_empty();
        for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
            match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) if whole => *byte = high << 4 | low,
                _ => break,
            }
        }
        let hash = Self(hash);
        if whole && hash.to_string() == given {
            return Ok(hash);
        }
        Err(ParseIdError {
            kind: "Sha256Hash",
            given: given.chars().take(80).collect(),
            why: "a SHA-256 has 64 hexadecimal digits, in lower case",
        })
    }
}

impl TryFrom<String> for Sha256Hash {
    type Error = ParseIdError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// The hash of a part of an exec's output, as the command wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputHash {
    /// Offset of its first byte; offsets count every byte the command wrote, on both streams.
    pub start: u64,
    pub bytes: u64,
    /// Covers the bytes of both streams in the order of writing.
    pub sha256: Sha256Hash,
    /// Covers the order of the streams. For every change of stream: the offset shifted left by one, with 1 in the
    /// lowest bit for stderr, as eight little-endian bytes.
    pub streams_sha256: Sha256Hash,
}

impl OutputHash {
    /// The offset behind its last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }
}

/// Whether kept output is what the command wrote, as far as it was read. `to` is the offset after the last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum OutputCheck {
    /// Everything that was kept when the command ended was read, and is what the command wrote.
    Intact,
    /// These bytes are not what the command wrote.
    Changed { from: u64, to: u64 },
    /// These bytes were kept when the command ended, and are not there any more.
    Missing { from: u64, to: u64 },
    /// No hash of these bytes is on record: the guest died before it reported one, the disk was full when they were
    /// written, or they came after the end of the command.
    Unchecked { from: u64, to: u64 },
    /// The output was read from its middle on, and what was read whole is what the command wrote.
    Partial,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_as_it_was_written_and_nothing_else_is_one() {
        let hash = Sha256Hash(std::array::from_fn(|n| u8::try_from(n * 7).unwrap()));
        let text = serde_json::to_string(&hash).unwrap();
        assert_eq!(text.len(), 66);
        assert_eq!(serde_json::from_str::<Sha256Hash>(&text).unwrap(), hash);
        let good = hash.to_string();
        for bad in [
            String::new(),
            good[1..].to_owned(),
            format!("{good}0"),
            good.to_uppercase(),
            good.replace('0', "g"),
        ] {
            assert!(bad.parse::<Sha256Hash>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_check_is_one_object() {
        let json = serde_json::to_string(&OutputCheck::Changed { from: 0, to: 15 }).unwrap();
        assert_eq!(json, r#"{"state":"changed","from":0,"to":15}"#);
        assert_eq!(serde_json::to_string(&OutputCheck::Intact).unwrap(), r#"{"state":"intact"}"#);
    }
}
