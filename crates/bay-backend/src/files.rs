//! The files of bays: root, workspace and kept output, and their checkpoints, as one driver keeps them.
//!
//! Every method waits for a disk; call it where waiting is allowed. What was made and not recorded by the caller is found
//! again by [`BayFiles::list`] and by [`BayFiles::checkpoint_sweep`].

use std::fmt::Debug;
use std::path::PathBuf;

use bay_types::checkpoint::Point;
use bay_types::{BayId, CheckpointName, CoreError, ImageId, RepoId};

/// What the files of a new bay are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkspaceFrom {
    Empty,
    /// Everything, the root too, as it was at a checkpoint of another bay; with `state` also what its guest kept.
    Checkpoint {
        point: Point,
        state: bool,
    },
    /// A copy of a workspace that outlived its bay.
    Kept {
        workspace: String,
    },
    /// A commit that was made ready before.
    Checkout {
        repo: RepoId,
        commit: String,
        branch: Option<String>,
    },
}

/// How much of the disk a bay uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BayUsage {
    /// Bytes only this bay holds.
    pub own_bytes: u64,
}

pub type Result<T> = std::result::Result<T, CoreError>;

pub trait BayFiles: Send + Sync + Debug {
    /// Makes the files of a bay, or what is missing of them. `quota_mib` bounds what the bay holds on its own.
    fn create(&self, bay: BayId, image: ImageId, from: &WorkspaceFrom, quota_mib: Option<u64>) -> Result<()>;
    /// Gives a bay that does not run a fresh root.
    fn replace_root(&self, bay: BayId, image: ImageId) -> Result<()>;
    /// Makes the files of a bay that does not run those of a checkpoint; with `state` also what its guest kept.
    fn restore(&self, bay: BayId, from: Point, state: bool) -> Result<()>;
    /// Removes everything of a bay. The workspace stays under a name that begins with `keep_workspace`, if there is one.
    fn remove(&self, bay: BayId, keep_workspace: Option<&str>) -> Result<Option<PathBuf>>;
    /// Every bay that has files here, whole or not.
    fn list(&self) -> Result<Vec<BayId>>;
    /// Sets or lifts the limit of a bay that exists. What it holds already may be more.
    fn set_quota(&self, bay: BayId, mib: Option<u64>) -> Result<()>;
    fn usage(&self, bay: BayId) -> Result<BayUsage>;

    /// Makes what can be made before the bay is stopped.
    fn checkpoint_prepare(&self, bay: BayId) -> Result<()>;
    /// The moment itself: nothing in the bay writes meanwhile.
    fn checkpoint_take(&self, bay: BayId) -> Result<()>;
    /// Gives what was taken its name: from here on it exists.
    fn checkpoint_keep(&self, point: Point) -> Result<()>;
    /// Has it on the disk, where it survives a power failure.
    fn checkpoint_flush(&self, point: Point) -> Result<()>;
    /// Removes what was taken and got no name.
    fn checkpoint_discard(&self, bay: BayId) -> Result<()>;
    fn checkpoint_remove(&self, point: Point) -> Result<()>;
    /// Removes every checkpoint of a bay but the known ones.
    fn checkpoint_sweep(&self, bay: BayId, known: &[CheckpointName]) -> Result<()>;
    /// Shows the bay these of its checkpoints, and no others.
    fn checkpoints_arrange(&self, bay: BayId, shown: &[CheckpointName]) -> Result<()>;
    /// Makes sure that so many bytes of memory fit.
    fn checkpoint_make_room(&self, bytes: u64) -> Result<()>;
    /// How many bytes of memory are in a checkpoint.
    fn checkpoint_memory_bytes(&self, point: Point) -> Result<u64>;
    /// Disk space of a checkpoint's memory; `None` if there is none.
    fn checkpoint_disk_bytes(&self, point: Point) -> Option<u64>;
    /// Whether a capture of the bay's memory began and got no name yet.
    fn capture_is_unfinished(&self, bay: BayId) -> bool;
}

/// No files at all: every call is refused with this error.
#[derive(Debug, Clone)]
pub struct NoFiles(pub CoreError);

impl NoFiles {
    fn refused<T>(&self) -> Result<T> {
        Err(self.0.clone())
    }
}

impl BayFiles for NoFiles {
    fn create(&self, _: BayId, _: ImageId, _: &WorkspaceFrom, _: Option<u64>) -> Result<()> {
        self.refused()
    }

    fn replace_root(&self, _: BayId, _: ImageId) -> Result<()> {
        self.refused()
    }

    fn restore(&self, _: BayId, _: Point, _: bool) -> Result<()> {
        self.refused()
    }

    fn remove(&self, _: BayId, _: Option<&str>) -> Result<Option<PathBuf>> {
        self.refused()
    }

    fn list(&self) -> Result<Vec<BayId>> {
        self.refused()
    }

    fn set_quota(&self, _: BayId, _: Option<u64>) -> Result<()> {
        self.refused()
    }

    fn usage(&self, _: BayId) -> Result<BayUsage> {
        self.refused()
    }

    fn checkpoint_prepare(&self, _: BayId) -> Result<()> {
        self.refused()
    }

    fn checkpoint_take(&self, _: BayId) -> Result<()> {
        self.refused()
    }

    fn checkpoint_keep(&self, _: Point) -> Result<()> {
        self.refused()
    }

    fn checkpoint_flush(&self, _: Point) -> Result<()> {
        self.refused()
    }

    fn checkpoint_discard(&self, _: BayId) -> Result<()> {
        self.refused()
    }

    fn checkpoint_remove(&self, _: Point) -> Result<()> {
        self.refused()
    }

    fn checkpoint_sweep(&self, _: BayId, _: &[CheckpointName]) -> Result<()> {
        self.refused()
    }

    fn checkpoints_arrange(&self, _: BayId, _: &[CheckpointName]) -> Result<()> {
        self.refused()
    }

    fn checkpoint_make_room(&self, _: u64) -> Result<()> {
        self.refused()
    }

    fn checkpoint_memory_bytes(&self, _: Point) -> Result<u64> {
        self.refused()
    }

    fn checkpoint_disk_bytes(&self, _: Point) -> Option<u64> {
        None
    }

    fn capture_is_unfinished(&self, _: BayId) -> bool {
        false
    }
}
