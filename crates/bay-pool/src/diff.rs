//! Trees of bays that are to be compared: what a bay began from, a checkpoint, or the bay as it is now.
//!
//! A bay's living tree is never handed out. Whoever asks for it gets a read-only snapshot of this moment, made below
//! `tmp/` and destroyed with the [`DiffSide`]; what a killed daemon leaves there goes with the next sweep. So nothing
//! moves under the feet of whoever walks it, whatever runs in the bay.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use bay_sys::btrfs;
use bay_types::checkpoint::Point;
use bay_types::diff::Part;
use bay_types::{BayId, CheckpointName, ImageId};

use crate::WorkspaceFrom;
use crate::checkpoint::read_only;
use crate::error::{Doing, PoolError, Result};
use crate::pool::Pool;
use crate::subvolume::{self, open_dir, remove_all};

/// The clock of the filesystem moves in steps of ten milliseconds, or more on a virtual machine that loses ticks. A change
/// within this time before a snapshot may carry the same time as a change right after it.
const CLOCK_SLACK_S: i64 = 1;

/// Which state of a bay.
#[derive(Debug, Clone)]
pub enum Side {
    /// What it began from.
    Base {
        image: ImageId,
        workspace: WorkspaceFrom,
    },
    Now,
    Checkpoint(CheckpointName),
}

/// A tree that stays as it is for as long as this lives.
#[derive(Debug)]
pub struct DiffSide {
    /// Nothing for a workspace that began empty.
    top: Option<File>,
    settled_before: Option<(i64, u32)>,
    /// A snapshot of this moment, made for this only.
    passing: Option<PathBuf>,
}

impl DiffSide {
    /// The top directory; nothing for an empty tree.
    #[must_use]
    pub fn top(&self) -> Option<BorrowedFd<'_>> {
        self.top.as_ref().map(AsFd::as_fd)
    }

    /// For a snapshot of what went on living: the moment after which a file may have changed without its times telling.
    #[must_use]
    pub fn settled_before(&self) -> Option<(i64, u32)> {
        self.settled_before
    }

    /// Whether it is still all there: a checkpoint may be removed while it is read.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.top.as_ref().is_none_or(|top| {
            // The kernel lists nothing of a removed subvolume, not even itself, whoever has it open.
            let first = rustix::fs::Dir::read_from(top).map(|mut names| names.next());
            matches!(first, Ok(Some(Ok(_))))
        })
    }

    fn of(path: &Path, lived_on: bool) -> Result<Self> {
        let doing = || format!("open {}", path.display());
        let top = open_dir(path).doing(doing)?;
        let settled_before = if lived_on {
            let (seconds, nanoseconds) = btrfs::subvolume_info(&top).doing(doing)?.made_at;
            Some((i64::try_from(seconds).unwrap_or(i64::MAX).saturating_sub(CLOCK_SLACK_S), nanoseconds))
        } else {
            None
        };
        Ok(Self { top: Some(top), settled_before, passing: None })
    }
}

impl Drop for DiffSide {
    fn drop(&mut self) {
        self.top = None;
        if let Some(passing) = self.passing.take()
            && let Err(error) = remove_all(&passing)
        {
            tracing::warn!(error = %bay_types::error::chain(&error), "a snapshot stays until the next sweep");
        }
    }
}

impl Pool {
    /// One side of a comparison.
    pub fn diff_side(&self, bay: BayId, side: &Side, part: Part) -> Result<DiffSide> {
        let checkpoint = |point: Point| -> Result<_> { Ok(self.checkpoint_dir(point)?.join(part.as_str())) };
        match side {
            Side::Now => self.diff_now(bay, part),
            Side::Checkpoint(name) => DiffSide::of(&checkpoint(Point { bay, checkpoint: *name })?, true),
            Side::Base { image, workspace } => match (part, workspace) {
                (_, WorkspaceFrom::Checkpoint { point, .. }) => DiffSide::of(&checkpoint(*point)?, true),
                (Part::Root, _) => DiffSide::of(&self.image_root(*image)?, false),
                (Part::Workspace, WorkspaceFrom::Empty) => {
                    Ok(DiffSide { top: None, settled_before: None, passing: None })
                }
                (Part::Workspace, WorkspaceFrom::Kept { workspace }) => {
                    DiffSide::of(&self.kept_path(workspace)?, false)
                }
                (Part::Workspace, WorkspaceFrom::Checkout { repo, commit, branch }) => {
                    DiffSide::of(&self.repo_checkout_ready(*repo, commit, branch.as_deref())?, false)
                }
            },
        }
    }

    fn diff_now(&self, bay: BayId, part: Part) -> Result<DiffSide> {
        self.check_writable()?;
        let disk = self.bay_disk(bay);
        let living = match part {
            Part::Workspace => &disk.workspace,
            Part::Root => &disk.root,
        };
        if !subvolume::exists(living) {
            return Err(PoolError::BayFilesMissing { bay: bay.to_string() });
        }
        // A snapshot does not flush a file that a program writes over at this very moment: it would have the new times of
        // the file with its old contents, and the change would not be seen.
        open_dir(living)
            .and_then(|top| Ok(rustix::fs::syncfs(&top)?))
            .doing(|| format!("flush {}", living.display()))?;
        let group = self.quota_of(&disk)?.map(|(group, _)| group);
        let name = format!("diff-{}-{}", bay.short(), BayId::generate());
        let passing = self.tmp().join(name);
        read_only(living, &passing, group)?;
        // From here on it goes when this does.
        let mut side = DiffSide { top: None, settled_before: None, passing: Some(passing.clone()) };
        side.top = Some(open_dir(&passing).doing(|| format!("open {}", passing.display()))?);
        Ok(side)
    }
}
