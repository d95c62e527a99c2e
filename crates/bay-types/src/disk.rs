//! Where the disk of the pool goes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::id::{BayId, CheckpointName, ImageId, RepoId};

/// `GET /v1/disk`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUsage {
    pub pool: PathBuf,
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// The file that holds the pool; absent if the pool is a directory of a btrfs of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PoolFile>,
    pub images: Vec<ImageSpace>,
    pub repos: Vec<RepoSpace>,
    pub bays: Vec<BaySpace>,
    pub workspaces: Vec<WorkspaceSpace>,
    /// Further daemons that use this pool. What they hold is in `rest_bytes`.
    pub other_daemons: u64,
    /// What is in use and not listed: metadata and its copies, other daemons, what is being removed.
    pub rest_bytes: u64,
    /// Everything was counted. If not (too many extents, too little time, something that could not be read), the numbers of
    /// bays, images and repositories are too small, or what is shared appears as their own.
    pub complete: bool,
}

/// The file that holds a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolFile {
    /// The pool does not become smaller than this.
    pub first_bytes: u64,
    /// By how much it can grow on the host's disk.
    pub may_grow_bytes: u64,
    pub host_total_bytes: u64,
    pub host_free_bytes: u64,
    /// What the pool leaves free on the host's disk.
    pub reserve_bytes: u64,
}

/// Space of something that is removed as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// What nothing else on the list holds. A bay holds what is younger than it, and what its forks use of it too.
    pub own_bytes: u64,
    /// What it shares with something else that is listed, and was written by it or by what it was copied from.
    pub shared_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSpace {
    pub id: ImageId,
    pub name: String,
    pub bays: u64,
    #[serde(flatten)]
    pub space: Space,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepoSpace {
    pub id: RepoId,
    pub location: String,
    pub bays: u64,
    /// The cached clone.
    pub git_bytes: u64,
    /// The cached checkouts.
    pub checkouts: Space,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaySpace {
    pub id: BayId,
    /// Empty if the daemon has no such bay: its removal is under way.
    pub name: String,
    /// The bay and its checkpoints together, memory included.
    #[serde(flatten)]
    pub space: Space,
    pub root: Space,
    pub workspace: Space,
    /// Kept output, and what the guest records.
    pub state: Space,
    pub checkpoints: Vec<CheckpointSpace>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointSpace {
    pub name: CheckpointName,
    pub files: Space,
    /// Its images of processes; 0 if it has none.
    pub memory_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceSpace {
    pub name: String,
    #[serde(flatten)]
    pub space: Space,
}
