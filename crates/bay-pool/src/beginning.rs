//! Where the work in a bay began: a read-only snapshot of its workspace, with which changes are compared.
//!
//! ```text
//!  bays/<id>/beginning/workspace   ◄── bay_create: what the workspace was made from; for a fork, its parent's beginning
//!            beginning.new         ◄── beginning_keep: made, then exchanged with the first, then removed
//! ```
//! It belongs to the bay alone. Restoring, promoting and removing checkpoints, the end of the parent, and the removal
//! of a cached repository do not change it.

use std::fs::File;
use std::path::PathBuf;

use bay_backend::files::WorkspaceFrom;
use bay_sys::btrfs::Qgroup;
use bay_types::BayId;
use rustix::fs::{CWD, RenameFlags};

use crate::checkpoint::{beside, read_only};
use crate::error::{Doing, PoolError, Result};
use crate::files::make_private_dir;
use crate::pool::Pool;
use crate::subvolume::{self, open_dir};

const EMPTY_MODE: u32 = 0o755;

/// What the beginning of a new bay is made from.
#[derive(Debug)]
pub(crate) enum BeginningFrom {
    /// An empty tree.
    Nothing,
    Tree(PathBuf),
    /// A fork of a bay that has none.
    Unknown,
}

impl Pool {
    /// The directory of the snapshot, because the kernel cannot rename a read-only subvolume itself.
    pub(crate) fn beginning_dir(&self, bay: BayId) -> PathBuf {
        self.bay_dir(bay).join("beginning")
    }

    pub(crate) fn beginning(&self, bay: BayId) -> PathBuf {
        self.beginning_dir(bay).join("workspace")
    }

    /// Whether it is known where the work in a bay began. Bays from before beginnings were kept have none.
    #[must_use]
    pub fn has_beginning(&self, bay: BayId) -> bool {
        subvolume::exists(&self.beginning(bay))
    }

    /// The tree where the work in a bay began, if it is known.
    pub fn beginning_open(&self, bay: BayId) -> Result<Option<File>> {
        if !self.has_beginning(bay) {
            return Ok(None);
        }
        let path = self.beginning(bay);
        open_dir(&path).map(Some).doing(|| format!("open {}", path.display()))
    }

    /// Where the work of a new bay begins, whose workspace is made from `begin`.
    pub(crate) fn beginning_from(&self, from: &WorkspaceFrom, begin: Option<&PathBuf>) -> BeginningFrom {
        match (from, begin) {
            (WorkspaceFrom::Empty, _) => BeginningFrom::Nothing,
            (WorkspaceFrom::Checkpoint { point, .. }, _) if self.has_beginning(point.bay) => {
                BeginningFrom::Tree(self.beginning(point.bay))
            }
            (WorkspaceFrom::Checkpoint { .. }, _) | (_, None) => BeginningFrom::Unknown,
            (_, Some(begin)) => BeginningFrom::Tree(begin.clone()),
        }
    }

    /// Makes the beginning of a new bay, if it has none.
    pub(crate) fn beginning_make(
        &self,
        bay: BayId,
        from: &BeginningFrom,
        group: Option<Qgroup>,
    ) -> Result<()> {
        if matches!(from, BeginningFrom::Unknown) || self.has_beginning(bay) {
            return Ok(());
        }
        make_private_dir(&self.beginning_dir(bay))?;
        let path = self.beginning(bay);
        match from {
            BeginningFrom::Tree(tree) => read_only(tree, &path, group),
            _ => subvolume::create(&path, EMPTY_MODE, group).and_then(|()| subvolume::seal(&path)),
        }
    }

    /// Keeps the present workspace of a bay as where its work began.
    pub fn beginning_keep(&self, bay: BayId) -> Result<()> {
        self.check_writable()?;
        let disk = self.bay_disk(bay);
        if !subvolume::exists(&disk.workspace) {
            return Err(PoolError::BayFilesMissing { bay: bay.to_string() });
        }
        // A snapshot does not flush files that are being written.
        open_dir(&disk.workspace)
            .and_then(|top| Ok(rustix::fs::syncfs(&top)?))
            .doing(|| format!("flush {}", disk.workspace.display()))?;
        let group = self.quota_of(&disk)?.map(|(group, _)| group);
        let dir = self.beginning_dir(bay);
        let new = beside(&dir);
        self.trash().remove(&new)?;
        make_private_dir(&new)?;
        read_only(&disk.workspace, &new.join("workspace"), group)?;
        make_private_dir(&dir)?;
        rustix::fs::renameat_with(CWD, &new, CWD, &dir, RenameFlags::EXCHANGE)
            .doing(|| format!("exchange {}", dir.display()))?;
        self.trash().remove(&new)
    }
}
