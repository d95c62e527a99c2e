//! Checkpoints: named points in a bay's life, and what can be made of them.
//!
//! ```text
//!   v1 ──► v2 ──► v3 ──► (now)          `bay restore NAME v2` goes back; what comes then descends from v2
//!            └──► v4 ──► (now)          `bay fork NAME --from v2` makes bays that begin there
//! ```
//! A number is given once in a bay's life and never again, whatever is removed.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bay::{BayView, text_enum};
use crate::id::{BayId, BayName, ExecId, ParseIdError};

/// Longest message with a checkpoint.
pub const MAX_MESSAGE: usize = 4096;
/// Most children that one `bay fork` makes.
pub const MAX_FORKS: u32 = 64;
/// How many of the newest checkpoints a bay sees inside.
pub const SHOWN_INSIDE: usize = 5;
/// Where it sees them.
pub const INSIDE: &str = "/.bay/checkpoints";

/// `v1`, `v2`, …
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct CheckpointName(u32);

impl CheckpointName {
    /// The first number a bay gives.
    pub const FIRST: Self = Self(1);

    /// `None` for zero, which is no checkpoint's number.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        (number > 0).then_some(Self(number))
    }

    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for CheckpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl From<CheckpointName> for String {
    fn from(name: CheckpointName) -> Self {
        name.to_string()
    }
}

impl FromStr for CheckpointName {
    type Err = ParseIdError;

    fn from_str(given: &str) -> Result<Self, ParseIdError> {
        let digits = given.strip_prefix('v').filter(|digits| !digits.starts_with(['0', '+']));
        digits.and_then(|digits| digits.parse().ok()).map(Self).ok_or_else(|| ParseIdError {
            kind: "checkpoint",
            given: given.to_owned(),
            why: "checkpoints are called v1, v2 and so on",
        })
    }
}

impl TryFrom<String> for CheckpointName {
    type Error = ParseIdError;

    fn try_from(given: String) -> Result<Self, ParseIdError> {
        given.parse()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckpointKind {
    /// Workspace and root as they were at one moment.
    Files,
    /// The same, and everything that ran, in the middle of what it did.
    Memory,
}

text_enum!(CheckpointKind { Files = "files", Memory = "memory" });

/// `POST /v1/bays/{bay}/checkpoints`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointCreate {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `memory` fails when it cannot be had. Absent: memory where it can be had, and the files in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<CheckpointKind>,
}

/// A checkpoint as `bay checkpoint --json` prints it. `bay checkpoints ls --json` is an array of the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointView {
    pub name: CheckpointName,
    pub parent: Option<CheckpointName>,
    pub kind: CheckpointKind,
    /// For how long the bay stood still, in milliseconds; zero when nothing ran.
    pub pause_ms: f64,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Who asked for it.
    pub by: String,
    /// Why it was made when nobody asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automatic: Option<String>,
    /// The newest exec there was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_exec: Option<ExecId>,
    /// What the bay is now descends from this one.
    pub current: bool,
    /// It can be read inside the bay below [`INSIDE`].
    pub shown_inside: bool,
    /// What the captured memory takes on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Why there are only files, where memory was not refused outright: one line per obstacle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_memory: Vec<String>,
}

/// Where a bay's files came from, when it was made from another one's checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    pub bay: BayId,
    /// As the parent was called then.
    pub name: BayName,
    pub checkpoint: CheckpointName,
    /// Which of the children of one fork this is, from zero.
    pub index: u32,
    /// What ran in the parent runs in the child.
    pub memory: bool,
}

/// One bay's checkpoint, named from anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    pub bay: BayId,
    pub checkpoint: CheckpointName,
}

/// `POST /v1/bays/{bay}/restore`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    pub checkpoint: CheckpointName,
    /// Start anew from the files, also where memory was captured.
    #[serde(default)]
    pub files_only: bool,
}

/// What a restore or a promotion came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Restored {
    pub bay: BayView,
    /// What the bay was before, to go back to.
    pub before: CheckpointView,
}

/// `POST /v1/bays/{bay}/forks`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForkCreate {
    pub count: u32,
    /// Absent: one is made now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<CheckpointName>,
    /// What the children are called, with a number behind it. Absent: the parent's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default)]
    pub files_only: bool,
}

/// What a fork came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Forked {
    pub checkpoint: CheckpointView,
    pub bays: Vec<BayView>,
}

/// `POST /v1/bays/{bay}/promote`: makes the state of another bay this one's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Promote {
    /// Name or id of the bay whose state is wanted.
    pub from: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_v_and_a_number_and_nothing_else() {
        for number in [1, 2, 10, u32::MAX] {
            let name = CheckpointName::new(number).unwrap();
            assert_eq!(name.to_string().parse::<CheckpointName>().unwrap(), name);
        }
        for odd in ["", "v", "v0", "v01", "v+1", "v-1", "V1", "1", "v1 ", "v4294967296", "v1.2", "../v1"] {
            assert!(odd.parse::<CheckpointName>().is_err(), "{odd:?}");
        }
    }
}
