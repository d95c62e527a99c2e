//! Where the work in a bay began: the tree with which changes of its workspace are compared.
//!
//! ```text
//!  bays/<id>/beginning/workspace   ◄── bay_create: an empty directory, or a link to the checkout, or a read-only snapshot
//!            beginning.new         ◄── made, then exchanged with the first, then removed
//! ```
//! A snapshot waits for a commit of the filesystem, so a bay whose workspace is a fresh checkout has only a link to it.
//! Before a checkout is removed, each bay that links to it gets a snapshot of its own. So restoring, promoting and
//! removing checkpoints, the end of the parent, and the removal of a cached repository do not change a beginning.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};

use bay_backend::files::WorkspaceFrom;
use bay_sys::btrfs::Qgroup;
use bay_types::BayId;
use rustix::fs::{CWD, RenameFlags};

use crate::checkpoint::{beside, read_only};
use crate::error::{Doing, PoolError, Result};
use crate::files::make_private_dir;
use crate::pool::Pool;
use crate::subvolume::{self, open_dir};

/// From a `beginning/` directory to the corner.
const UP_TO_CORNER: &str = "../../..";

/// A beginning as it is kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// A directory without anything in it.
    Empty(PathBuf),
    /// The checkout that the workspace is a snapshot of.
    Checkout(PathBuf),
    /// A read-only subvolume of the bay's own.
    Snapshot(PathBuf),
}

impl Beginning {
    pub(crate) fn path(&self) -> &Path {
        let (Self::Empty(path) | Self::Checkout(path) | Self::Snapshot(path)) = self;
        path
    }
}

/// While this is held, no checkout is removed, and no bay gets a link to one.
pub(crate) type LinksHeld<'a> = MutexGuard<'a, ()>;

impl Pool {
    /// The directory of the beginning, because the kernel cannot rename a read-only subvolume itself.
    pub(crate) fn beginning_dir(&self, bay: BayId) -> PathBuf {
        self.bay_dir(bay).join("beginning")
    }

    fn beginning_place(&self, bay: BayId) -> PathBuf {
        self.beginning_dir(bay).join("workspace")
    }

    pub(crate) fn beginning(&self, bay: BayId) -> Option<Beginning> {
        let place = self.beginning_place(bay);
        let found = std::fs::symlink_metadata(&place).ok()?;
        if found.is_symlink() {
            let target = std::fs::read_link(&place).ok()?;
            let checkout = self.corner("").join(target.strip_prefix(UP_TO_CORNER).ok()?);
            return subvolume::exists(&checkout).then_some(Beginning::Checkout(checkout));
        }
        let snapshot = subvolume::exists(&place);
        Some(if snapshot { Beginning::Snapshot(place) } else { Beginning::Empty(place) })
    }

    /// Whether it is known where the work in a bay began. Bays from before beginnings were kept have none.
    #[must_use]
    pub fn has_beginning(&self, bay: BayId) -> bool {
        self.beginning(bay).is_some()
    }

    /// The tree where the work in a bay began, if it is known.
    pub fn beginning_open(&self, bay: BayId) -> Result<Option<File>> {
        let Some(beginning) = self.beginning(bay) else { return Ok(None) };
        let path = beginning.path();
        open_dir(path).map(Some).doing(|| format!("open {}", path.display()))
    }

    /// Makes the beginning of a new bay, whose workspace will be made from `tree`, unless it has one. Returns the tree
    /// that is still to be snapshotted for it, which takes longest.
    pub(crate) fn beginning_make(
        &self,
        bay: BayId,
        from: &WorkspaceFrom,
        tree: Option<&Path>,
    ) -> Result<Option<PathBuf>> {
        let held = self.links_hold();
        if self.has_beginning(bay) {
            return Ok(None);
        }
        let beginning = match (from, tree) {
            (WorkspaceFrom::Empty, _) => Beginning::Empty(PathBuf::new()),
            (WorkspaceFrom::Checkpoint { point, .. }, _) => match self.beginning(point.bay) {
                Some(parents) => parents,
                None => return Ok(None),
            },
            (_, None) => return Ok(None),
            // The workspace itself changes: a link to it would always show that nothing was done.
            (WorkspaceFrom::Checkout { .. }, Some(tree)) if tree != self.bay_disk(bay).workspace => {
                Beginning::Checkout(tree.to_owned())
            }
            (_, Some(tree)) => Beginning::Snapshot(tree.to_owned()),
        };
        make_private_dir(&self.beginning_dir(bay))?;
        let place = self.beginning_place(bay);
        match beginning {
            Beginning::Empty(_) => make_private_dir(&place)?,
            Beginning::Checkout(checkout) => std::os::unix::fs::symlink(self.link_to(&checkout), &place)
                .doing(|| format!("link to the checkout as {}", place.display()))?,
            Beginning::Snapshot(tree) => return Ok(Some(tree)),
        }
        drop(held);
        Ok(None)
    }

    /// Makes the snapshot that [`Pool::beginning_make`] left to do.
    pub(crate) fn beginning_snapshot(&self, bay: BayId, tree: &Path, group: Option<Qgroup>) -> Result<()> {
        read_only(tree, &self.beginning_place(bay), group)
    }

    /// Keeps the present workspace of a bay as where its work began.
    pub fn beginning_keep(&self, bay: BayId) -> Result<()> {
        self.check_writable()?;
        let workspace = self.bay_disk(bay).workspace;
        if !subvolume::exists(&workspace) {
            return Err(PoolError::BayFilesMissing { bay: bay.to_string() });
        }
        // A snapshot does not flush files that are being written.
        open_dir(&workspace)
            .and_then(|top| Ok(rustix::fs::syncfs(&top)?))
            .doing(|| format!("flush {}", workspace.display()))?;
        self.beginning_replace(bay, &workspace)
    }

    /// Exchanges the beginning of a bay for a snapshot of `tree`.
    fn beginning_replace(&self, bay: BayId, tree: &Path) -> Result<()> {
        let disk = self.bay_disk(bay);
        // A bay whose creation was killed has no state yet, and so no quota.
        let quota = if subvolume::exists(&disk.state) { self.quota_of(&disk)? } else { None };
        let group = quota.map(|(group, _)| group);
        let dir = self.beginning_dir(bay);
        let new = beside(&dir);
        self.trash().remove(&new)?;
        make_private_dir(&new)?;
        read_only(tree, &new.join("workspace"), group)?;
        make_private_dir(&dir)?;
        rustix::fs::renameat_with(CWD, &new, CWD, &dir, RenameFlags::EXCHANGE)
            .doing(|| format!("exchange {}", dir.display()))?;
        self.trash().remove(&new)
    }

    fn links_hold(&self) -> LinksHeld<'_> {
        self.inner.beginning_links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a link to a checkout says, from within a `beginning/`.
    fn link_to(&self, checkout: &Path) -> PathBuf {
        let below = checkout.strip_prefix(self.corner("")).unwrap_or(checkout);
        Path::new(UP_TO_CORNER).join(below)
    }

    /// Gives each bay that links to one of these checkouts a snapshot of its own. The caller removes the checkouts
    /// before it drops what is returned.
    pub(crate) fn beginnings_part_from(&self, checkouts: &[PathBuf]) -> Result<LinksHeld<'_>> {
        let held = self.links_hold();
        for bay in self.bay_list()? {
            let linked = match self.beginning(bay) {
                Some(Beginning::Checkout(checkout)) if checkouts.contains(&checkout) => checkout,
                _ => continue,
            };
            match self.beginning_replace(bay, &linked) {
                // It was removed meanwhile.
                Err(_) if !self.has_beginning(bay) => {}
                other => other?,
            }
        }
        Ok(held)
    }
}
