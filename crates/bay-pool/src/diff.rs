//! Trees of bays for a comparison: what a bay was made from, where its work began, a checkpoint, or its present state.
//!
//! A running bay's tree is never handed out. The caller gets a read-only snapshot, made below `tmp/` and destroyed
//! with the [`DiffSide`]; the next sweep removes what a killed daemon left. So the tree does not change during the
//! comparison.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use bay_backend::files::{RootFrom, WorkspaceFrom};
use bay_sys::btrfs;
use bay_types::checkpoint::Point;
use bay_types::diff::Part;
use bay_types::{BayId, CheckpointName};

use crate::beginning::Beginning;
use crate::checkpoint::read_only;
use crate::error::{Doing, PoolError, Result};
use crate::pool::Pool;
use crate::subvolume::{self, open_dir, remove_all};

/// The filesystem's clock has steps of ten milliseconds, or more on a virtual machine that loses ticks. A change
/// within this time before a snapshot may have the same timestamp as a change right after it.
const CLOCK_SLACK_S: i64 = 1;

/// Which state of a bay.
#[derive(Debug, Clone)]
pub enum Side {
    /// What its files were made from.
    Base {
        root: RootFrom,
        workspace: WorkspaceFrom,
    },
    /// Where its work began; see [`Pool::has_beginning`].
    Beginning {
        root: RootFrom,
    },
    Now,
    Checkpoint(CheckpointName),
}

/// A tree that does not change while this exists.
#[derive(Debug)]
pub struct DiffSide {
    /// `None` for a workspace that began empty.
    top: Option<File>,
    settled_before: Option<(i64, u32)>,
    /// A temporary snapshot, made for this comparison.
    temporary: Option<PathBuf>,
}

impl DiffSide {
    /// The top directory; `None` for an empty tree.
    #[must_use]
    pub fn top(&self) -> Option<BorrowedFd<'_>> {
        self.top.as_ref().map(AsFd::as_fd)
    }

    /// If the tree is a snapshot of one that changed later: the moment after which a file may have changed without
    /// a change of its times.
    #[must_use]
    pub fn settled_before(&self) -> Option<(i64, u32)> {
        self.settled_before
    }

    /// Whether the tree is still complete. A checkpoint may be removed while it is read.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.top.as_ref().is_none_or(|top| {
            // The kernel lists nothing in a removed subvolume, not even `.`, although it is open.
            let first = rustix::fs::Dir::read_from(top).map(|mut names| names.next());
            matches!(first, Ok(Some(Ok(_))))
        })
    }

    fn of(path: &Path, changed_later: bool) -> Result<Self> {
        let doing = || format!("open {}", path.display());
        let top = open_dir(path).doing(doing)?;
        let settled_before = if changed_later {
            let (seconds, nanoseconds) = btrfs::subvolume_info(&top).doing(doing)?.made_at;
            Some((i64::try_from(seconds).unwrap_or(i64::MAX).saturating_sub(CLOCK_SLACK_S), nanoseconds))
        } else {
            None
        };
        Ok(Self { top: Some(top), settled_before, temporary: None })
    }
}

impl Drop for DiffSide {
    fn drop(&mut self) {
        self.top = None;
        if let Some(temporary) = self.temporary.take()
            && let Err(error) = remove_all(&temporary)
        {
            tracing::warn!(error = %bay_types::error::chain(&error), "a snapshot stays until the next sweep");
        }
    }
}

impl Pool {
    /// The tree of one side of a comparison.
    pub fn diff_side(&self, bay: BayId, side: &Side, part: Part) -> Result<DiffSide> {
        let checkpoint = |point: Point| -> Result<_> { Ok(self.checkpoint_dir(point)?.join(part.as_str())) };
        let begun_root = |root: RootFrom| match root {
            RootFrom::Checkpoint(point) => DiffSide::of(&checkpoint(point)?, true),
            RootFrom::Image(image) => DiffSide::of(&self.image_root(image)?, false),
        };
        match side {
            Side::Now => self.diff_now(bay, part),
            Side::Checkpoint(name) => DiffSide::of(&checkpoint(Point { bay, checkpoint: *name })?, true),
            Side::Beginning { root } => match part {
                Part::Root => begun_root(*root),
                Part::Workspace => match self.beginning(bay) {
                    Some(beginning) => {
                        DiffSide::of(beginning.path(), matches!(beginning, Beginning::Snapshot(_)))
                    }
                    None => Err(PoolError::BayFilesMissing { bay: bay.to_string() }),
                },
            },
            Side::Base { root, workspace } => match (part, workspace) {
                (Part::Root, _) => begun_root(*root),
                (Part::Workspace, WorkspaceFrom::Checkpoint { point, .. }) => {
                    DiffSide::of(&checkpoint(*point)?, true)
                }
                (Part::Workspace, WorkspaceFrom::Empty) => {
                    Ok(DiffSide { top: None, settled_before: None, temporary: None })
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
        let live_tree = match part {
            Part::Workspace => &disk.workspace,
            Part::Root => &disk.root,
        };
        if !subvolume::exists(live_tree) {
            return Err(PoolError::BayFilesMissing { bay: bay.to_string() });
        }
        // A snapshot does not flush a file that a program is overwriting: it would have the new times but the old
        // contents, and the change would not be found.
        open_dir(live_tree)
            .and_then(|top| Ok(rustix::fs::syncfs(&top)?))
            .doing(|| format!("flush {}", live_tree.display()))?;
        let group = self.quota_of(&disk)?.map(|(group, _)| group);
        let name = format!("diff-{}-{}", bay.short(), BayId::generate());
        let temporary = self.tmp().join(name);
        read_only(live_tree, &temporary, group)?;
        // From here on, dropping `side` removes the snapshot.
        let mut side = DiffSide { top: None, settled_before: None, temporary: Some(temporary.clone()) };
        side.top = Some(open_dir(&temporary).doing(|| format!("open {}", temporary.display()))?);
        Ok(side)
    }
}
