//! The files of bays, as one driver keeps them: root, workspace, kept output, and their checkpoints.
//!
//! Every method may block on the disk, so call it where blocking is allowed. If the caller dies before it records what
//! a method made, [`BayFiles::list`] and [`BayFiles::checkpoint_sweep`] find it again.

use std::fmt::Debug;
use std::path::PathBuf;

use bay_types::checkpoint::Point;
use bay_types::{BayId, CheckpointName, CoreError, ImageId, RepoId};

/// What the root filesystem of a new bay begins as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootFrom {
    Image(ImageId),
    /// The root of a checkpoint of another bay.
    Checkpoint(Point),
}

impl From<ImageId> for RootFrom {
    fn from(image: ImageId) -> Self {
        Self::Image(image)
    }
}

/// What the workspace of a new bay begins as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkspaceFrom {
    Empty,
    /// That of a checkpoint of another bay, with its services. With `state` also the whole state of its guest.
    Checkpoint {
        point: Point,
        state: bool,
    },
    /// A copy of a workspace that outlived its bay.
    Kept {
        workspace: String,
    },
    /// A commit whose checkout was prepared before.
    Checkout {
        repo: RepoId,
        commit: String,
        branch: Option<String>,
    },
}

/// The disk space that a bay uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BayUsage {
    /// Bytes that only this bay uses.
    pub own_bytes: u64,
}

pub type Result<T> = std::result::Result<T, CoreError>;

pub trait BayFiles: Send + Sync + Debug {
    /// Makes the files of a bay, or the missing ones. `quota_mib` limits the bytes that only the bay uses.
    fn create(&self, bay: BayId, root: RootFrom, from: &WorkspaceFrom, quota_mib: Option<u64>) -> Result<()>;
    /// Gives a stopped bay a fresh root.
    fn replace_root(&self, bay: BayId, image: ImageId) -> Result<()>;
    /// Replaces the files of a stopped bay by those of a checkpoint. With `state` also the state of its guest.
    fn restore(&self, bay: BayId, from: Point, state: bool) -> Result<()>;
    /// Removes all files of a bay. If `keep_workspace` is set, the workspace stays under a name that begins with it,
    /// and its path is returned.
    fn remove(&self, bay: BayId, keep_workspace: Option<&str>) -> Result<Option<PathBuf>>;
    /// Every bay that has files here, complete or not.
    fn list(&self) -> Result<Vec<BayId>>;
    /// Sets or removes the limit of an existing bay, which may already use more.
    fn set_quota(&self, bay: BayId, mib: Option<u64>) -> Result<()>;
    fn usage(&self, bay: BayId) -> Result<BayUsage>;
    /// Writes everything of a bay that is only in memory to the disk.
    fn flush(&self, bay: BayId) -> Result<()>;

    /// Does all the work that is possible before the bay is paused.
    fn checkpoint_prepare(&self, bay: BayId) -> Result<()>;
    /// Takes the snapshots. Nothing in the bay writes meanwhile.
    fn checkpoint_take(&self, bay: BayId) -> Result<()>;
    /// Gives the snapshots their name. From here on the checkpoint exists.
    fn checkpoint_keep(&self, point: Point) -> Result<()>;
    /// Flushes the checkpoint to the disk, so that it survives a power failure.
    fn checkpoint_flush(&self, point: Point) -> Result<()>;
    /// Removes snapshots that have no name yet.
    fn checkpoint_discard(&self, bay: BayId) -> Result<()>;
    fn checkpoint_remove(&self, point: Point) -> Result<()>;
    /// Removes every checkpoint of a bay that is not in `known`.
    fn checkpoint_sweep(&self, bay: BayId, known: &[CheckpointName]) -> Result<()>;
    /// Makes exactly these checkpoints readable in the bay.
    fn checkpoints_arrange(&self, bay: BayId, shown: &[CheckpointName]) -> Result<()>;
    /// Ensures free space for this many bytes of memory.
    fn checkpoint_make_room(&self, bytes: u64) -> Result<()>;
    /// The number of bytes of memory in a checkpoint.
    fn checkpoint_memory_bytes(&self, point: Point) -> Result<u64>;
    /// Disk space of a checkpoint's memory. `None` if it has none.
    fn checkpoint_disk_bytes(&self, point: Point) -> Option<u64>;
    /// Whether a capture of the bay's memory was begun and has no name yet.
    fn capture_is_unfinished(&self, bay: BayId) -> bool;
}

/// Files for a driver that has none: every call that can fail fails with this error.
#[derive(Debug, Clone)]
pub struct NoFiles(pub CoreError);

impl NoFiles {
    fn refused<T>(&self) -> Result<T> {
        Err(self.0.clone())
    }
}

impl BayFiles for NoFiles {
    fn create(&self, _: BayId, _: RootFrom, _: &WorkspaceFrom, _: Option<u64>) -> Result<()> {
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

    fn flush(&self, _: BayId) -> Result<()> {
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
