//! Disk: images, repositories, workspaces and roots on a copy-on-write pool.
//!
//! The pool is a btrfs: the directory it is given lies on one, or a file in that directory holds one ([`Pool::open`]
//! makes and mounts it). Images are shared by every daemon that uses the pool; everything else is in a daemon's own
//! corner.
//!
//! ```text
//!  images/<image>/{meta.json,root}                         read-only subvolumes
//!  corners/<daemon>/bays/<bay>/{root,workspace,state}      subvolumes of a bay
//!                              /checkpoints/…              read-only snapshots of those three
//!                  /repos/<repo>/{meta.json,git/,checkouts/<key>}
//!                  /programs/<hash>                        what bays are given to execute
//!                  /kept/<name>-<time>                     workspaces that outlived their bays
//!                  /trash/  /tmp/                          emptied by the sweep
//!
//!  source ── image_import ──► image ── snapshot ──► root      ┐
//!  remote ── repo_fetch ──┐                                   ├─ a bay's disk ── bay_remove ──► (gone) or kept/
//!  bundle ── repo_unbundle┴► repo ── repo_checkout ──► checkout ── snapshot ──► workspace ┘
//! ```
//!
//! Every change is made aside and renamed into place, or is one atomic step by itself; every verb can be repeated.
//! Killed at any line, the next [`Pool::open`] sweeps what was left. Nothing that exists is ever formatted. What can go
//! wrong with the disk has errors of its own: full, read-only (also when btrfs made it so after an error), damaged.
//!
//! What is read on behalf of a caller is read with that caller's rights, by the kernel's judgement ([`image`]); what
//! comes from outside (archives, bundles, git servers, repositories) is hostile: archives cannot leave the image, git
//! runs without settings and confined (`bay-git`).
//!
//! | module         | for                                                  |
//! |----------------|------------------------------------------------------|
//! | `pool`         | opening, layout, sweep                               |
//! | `backing`      | the pool file: make, mount, grow                     |
//! | `subvolume`    | subvolumes by path, trash                            |
//! | `sysfs`        | what the kernel shows of the pool, closed to bays    |
//! | `image`        | imports: host, directories, archives                 |
//! | `bay`, `quota` | the files of bays, how much of the disk they may take |
//! | `changes`      | what changed in a workspace in a stretch of time      |
//! | `device`       | the disks below the pool                             |
//! | `checkpoint`   | snapshots of bays, and bays made of them             |
//! | `diff`         | trees of bays that are to be compared                |
//! | `kept`         | workspaces that outlived their bays                  |
//! | `repo`         | cached repositories and their checkouts              |
#![forbid(unsafe_code)]

use std::path::PathBuf;

use bay_types::RepoId;
use bay_types::checkpoint::Point;
use bay_types::progress::Progress;

mod backing;
mod bay;
mod changes;
mod checkpoint;
mod device;
mod diff;
mod error;
mod image;
mod kept;
mod pool;
mod quota;
mod repo;
mod subvolume;
mod sysfs;
#[cfg(test)]
mod tests;

pub use changes::{Flush, Window, file_clock};
pub use diff::{DiffSide, Side};
pub use error::PoolError;
pub use pool::Pool;
pub use repo::{GIT_VARIABLES, MAX_BUNDLE_BYTES};

/// Called with news during long work; may be called often, so it must be cheap.
pub type Report<'a> = &'a mut dyn FnMut(Progress);

#[derive(Debug, Clone, Default)]
pub struct PoolOptions {
    /// Size of a new pool file; chosen from the free disk when absent.
    pub initial_mib: Option<u64>,
    /// What the pool file leaves free on the host's disk; by default 2 GiB, and at least a tenth of the disk.
    pub reserve_mib: Option<u64>,
    /// How git reaches remotes: those of [`GIT_VARIABLES`] that are set where the pool is used.
    pub git_environment: Vec<(String, String)>,
    /// There are bays on record: a pool without their corner is a lost or a wrong one, and must not be begun anew.
    pub must_exist: bool,
}

/// Host paths of a bay's subvolumes, and of what else it gets from the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BayDisk {
    pub root: PathBuf,
    pub workspace: PathBuf,
    pub state: PathBuf,
    /// The checkpoints that the bay may look into.
    pub checkpoints: PathBuf,
    /// Shared by all bays of the corner: what they are given to execute.
    pub programs: PathBuf,
}

/// What a new workspace holds.
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
    /// A commit made ready with `repo_checkout`.
    Checkout {
        repo: RepoId,
        commit: String,
        branch: Option<String>,
    },
}

/// What a ref means in a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    pub commit: String,
    /// Set when the ref is a branch (or the default branch).
    pub branch: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUsage {
    pub total_bytes: u64,
    pub free_bytes: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BayUsage {
    /// Bytes only this bay holds.
    pub own_bytes: u64,
}
