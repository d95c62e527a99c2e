//! Checkpoints: named points in a bay's life, with restores and forks.
//!
//! ```text
//!   v1 ──► v2 ──► v3 ──► (now)          `bay restore NAME v2`: later states descend from v2
//!            └──► v4 ──► (now)          `bay fork NAME --from v2` makes bays from v2
//! ```
//! A number is used once in a bay's life, even if checkpoints are removed.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bay::BayView;
use crate::id::{BayId, CheckpointName, ExecId};
use crate::text_enum::text_enum;

/// Longest message with a checkpoint.
pub const MAX_MESSAGE: usize = 4096;
/// Most children that one `bay fork` makes.
pub const MAX_FORKS: u32 = 64;
/// How many of its newest checkpoints a bay can read.
pub const SHOWN_INSIDE: usize = 5;
/// Where they are mounted in the bay.
pub const INSIDE: &str = "/.bay/checkpoints";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckpointKind {
    /// Workspace and root as they were at one moment.
    Files,
    /// Files, and the memory of all processes in the middle of their work.
    Memory,
}

text_enum!(CheckpointKind { Files = "files", Memory = "memory" });

/// `POST /v1/bays/{bay}/checkpoints`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointCreate {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `memory` fails if the memory cannot be captured. When absent, memory is captured if possible, and files in
    /// any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<CheckpointKind>,
}

/// A checkpoint as `bay checkpoint --json` prints it. `bay checkpoints ls --json` prints an array of these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointView {
    pub name: CheckpointName,
    pub parent: Option<CheckpointName>,
    pub kind: CheckpointKind,
    /// How long the bay was paused, in milliseconds; zero if nothing ran.
    pub pause_ms: f64,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Who requested it.
    pub by: String,
    /// Why the daemon made it, if nobody requested it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automatic: Option<String>,
    /// The newest exec at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_exec: Option<ExecId>,
    /// The bay's present state descends from this checkpoint.
    pub current: bool,
    /// It can be read inside the bay below [`INSIDE`].
    pub shown_inside: bool,
    /// Size of the captured memory on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// If memory was wanted but could not be captured: one line per obstacle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_memory: Vec<String>,
}

/// A checkpoint of a certain bay.
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
    /// Start fresh processes from the files even if memory was captured.
    #[serde(default)]
    pub files_only: bool,
}

/// The result of a restore or a promotion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Restored {
    pub bay: BayView,
    /// A checkpoint of the state before, for undoing.
    pub before: CheckpointView,
}

/// `POST /v1/bays/{bay}/forks`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForkCreate {
    pub count: u32,
    /// When absent, a checkpoint is made now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<CheckpointName>,
    /// Base name of the children, which get a number each. When absent, the parent's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default)]
    pub files_only: bool,
}

/// The result of a fork.
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
