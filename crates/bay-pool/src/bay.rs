//! The files of bays: a root (snapshot of an image), a workspace (empty, or a snapshot of a checkout), and a state
//! directory for the guest.
//!
//! ```text
//!  bays/<id>/            ◄── bay_create makes the missing parts, in any order, each atomically
//!    state  workspace  root
//!    beginning/              see `beginning`
//!    checkpoints/            see `checkpoint`
//!    root.new            ◄── bay_replace_root: made, then exchanged with root, then removed (bay_restore: all parts)
//!    kept-as             ◄── bay_remove that keeps the workspace: its new name, written before the move
//! ```
//!
//! A bay is complete when all three subvolumes exist. Creation does not end with a rename: each snapshot commits
//! the directory with it, while a rename afterwards could be lost in a power cut together with data that the agent
//! had already synced.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use bay_backend::files::{BayUsage, RootFrom, WorkspaceFrom};
use bay_sys::btrfs;
use bay_types::guest::COPIED_ROOT;
use bay_types::{BayId, ImageId};
use jiff::Timestamp;
use rustix::fs::{CWD, RenameFlags};

use crate::checkpoint::beside;
use crate::error::{Doing, PoolError, Result};
use crate::files::{make_private_dir, write_whole};
use crate::kept_workspaces;
use crate::pool::{BayDisk, Pool};
use crate::subvolume::{self, entries};

const WORKSPACE_MODE: u32 = 0o755;
const STATE_MODE: u32 = 0o700;
/// Most characters of the bay's name in the name of a kept workspace.
const MAX_KEPT_NAME: usize = 100;

impl Pool {
    /// Makes the files of a bay, or the missing ones. `disk_mib` limits the space of the bay's own.
    pub fn bay_create(
        &self,
        bay: BayId,
        root: impl Into<RootFrom>,
        from: &WorkspaceFrom,
        disk_mib: Option<u64>,
    ) -> Result<BayDisk> {
        self.check_writable()?;
        if let Err(error) = self.grow_if_needed() {
            tracing::warn!(error = %bay_types::error::chain(&error), "the pool could not grow");
        }
        let disk = self.bay_disk(bay);
        let begin = match from {
            WorkspaceFrom::Empty => None,
            _ if subvolume::exists(&disk.workspace) => None,
            WorkspaceFrom::Checkpoint { point, .. } => Some(self.checkpoint_dir(*point)?.join("workspace")),
            WorkspaceFrom::Kept { workspace } => Some(self.kept_path(workspace)?),
            WorkspaceFrom::Checkout { repo, commit, branch } => {
                Some(self.repo_checkout_ready(*repo, commit, branch.as_deref())?)
            }
        };
        let root = root.into();
        let root_from = match root {
            _ if subvolume::exists(&disk.root) => None,
            RootFrom::Checkpoint(point) => Some(self.checkpoint_dir(point)?.join("root")),
            RootFrom::Image(image) => Some(self.image_root(image)?),
        };
        make_private_dir(&self.bay_dir(bay))?;
        self.checkpoints_shown(bay)?;
        // The workspace of a call that was killed is where the work begins: nothing ran in it yet.
        let made = subvolume::exists(&disk.workspace).then_some(&disk.workspace);
        let to_keep = self.beginning_make(bay, from, begin.as_ref().or(made).map(PathBuf::as_path))?;
        let make_state = || match from {
            WorkspaceFrom::Checkpoint { point, state } if !subvolume::exists(&disk.state) => {
                self.state_from(*point, &disk.state, *state, STATE_MODE)
            }
            WorkspaceFrom::Checkpoint { .. } => subvolume::create(&disk.state, STATE_MODE, None),
            _ => {
                subvolume::create(&disk.state, STATE_MODE, None)?;
                match root {
                    RootFrom::Image(_) => Ok(()),
                    RootFrom::Checkpoint(_) => write_whole(&disk.state.join(COPIED_ROOT), b""),
                }
            }
        };
        // The quota group is named after the state subvolume, which must exist first.
        let mut group = None;
        if let Some(mib) = disk_mib {
            make_state()?;
            group = Some(self.quota_begin(&disk, mib)?);
        }
        // Each snapshot waits for a commit of the filesystem. Made in parallel, they can share one.
        std::thread::scope(|scope| {
            let state = group.is_none().then(|| scope.spawn(make_state));
            let root = root_from
                .as_ref()
                .map(|root_from| scope.spawn(|| subvolume::snapshot(root_from, &disk.root, group)));
            let beginning =
                to_keep.as_ref().map(|tree| scope.spawn(|| self.beginning_snapshot(bay, tree, group)));
            let workspace = match &begin {
                Some(begin) => subvolume::snapshot(begin, &disk.workspace, group),
                None => subvolume::create(&disk.workspace, WORKSPACE_MODE, group),
            };
            let end = |part: Option<std::thread::ScopedJoinHandle<'_, Result<()>>>| {
                part.map_or(Ok(()), |part| {
                    part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
            };
            workspace.and(end(root)).and(end(state)).and(end(beginning))
        })?;
        Ok(disk)
    }

    /// Gives a stopped bay a fresh root from an image. Workspace and state stay.
    pub fn bay_replace_root(&self, bay: BayId, image: ImageId) -> Result<()> {
        self.check_writable()?;
        let disk = self.bay_disk(bay);
        if !subvolume::exists(&disk.root) || !subvolume::exists(&disk.state) {
            return Err(PoolError::BayFilesMissing { bay: bay.to_string() });
        }
        let image_root = self.image_root(image)?;
        let group = self.quota_of(&disk)?.map(|(group, _)| group);
        let new = beside(&disk.root);
        self.trash().remove(&new)?;
        subvolume::snapshot(&image_root, &new, group)?;
        rustix::fs::renameat_with(CWD, &new, CWD, &disk.root, RenameFlags::EXCHANGE)
            .doing(|| format!("exchange the root of {bay}"))?;
        self.trash().remove(&new)
    }

    /// Removes all files of the bay. With `keep_workspace` (the bay's name) the workspace is first moved aside, and
    /// its new path returned. A repeated call returns the same path.
    pub fn bay_remove(&self, bay: BayId, keep_workspace: Option<&str>) -> Result<Option<PathBuf>> {
        let dir = self.bay_dir(bay);
        let kept = match keep_workspace {
            Some(name) => self.keep(&dir, name)?,
            None => None,
        };
        self.trash().remove(&dir)?;
        Ok(kept)
    }

    fn keep(&self, dir: &Path, name: &str) -> Result<Option<PathBuf>> {
        let (workspace, plan) = (dir.join("workspace"), dir.join("kept-as"));
        let planned = match std::fs::read_to_string(&plan) {
            Ok(planned) => planned,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if !subvolume::exists(&workspace) {
                    return Ok(None);
                }
                let planned = self.kept_name(name);
                write_whole(&plan, planned.as_bytes())?;
                planned
            }
            Err(error) => return Err(error).doing(|| format!("read {}", plan.display())),
        };
        let kept = self.corner("kept").join(planned);
        match std::fs::rename(&workspace, &kept) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && subvolume::exists(&kept) => {}
            Err(error) => return Err(error).doing(|| format!("keep the workspace {}", workspace.display())),
        }
        let top = self.top()?;
        // The workspace must be in its new place on disk before anything of the bay is destroyed.
        btrfs::sync(&top).doing(|| "sync the pool".to_owned())?;
        Ok(Some(kept))
    }

    /// `name-20260102T030405Z`, with a suffix if that name is taken.
    fn kept_name(&self, name: &str) -> String {
        let safe: String = name
            .chars()
            .take(MAX_KEPT_NAME)
            .map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' })
            .collect();
        let safe = if safe.is_empty() { "bay".to_owned() } else { safe };
        let stamp = Timestamp::now().strftime(kept_workspaces::STAMP).to_string();
        let base = format!("{safe}-{stamp}");
        let kept = self.corner("kept");
        if !kept.join(&base).exists() {
            return base;
        }
        format!("{base}-{}", BayId::generate().short())
    }

    /// Every bay that has files here, including incomplete ones.
    pub fn bay_list(&self) -> Result<Vec<BayId>> {
        Ok(entries(&self.corner("bays"))?
            .iter()
            .filter_map(|path| path.file_name().and_then(OsStr::to_str)?.parse().ok())
            .collect())
    }

    pub fn bay_usage(&self, bay: BayId) -> Result<BayUsage> {
        let disk = self.bay_disk(bay);
        if !subvolume::exists(&disk.state) {
            return Err(PoolError::BayFilesMissing { bay: bay.to_string() });
        }
        let own_bytes = match self.quota_of(&disk)? {
            Some((_, counted)) => counted.saturating_add(self.uncounted_bytes(&disk)?),
            None => Self::own_bytes_counted(&disk)?,
        };
        Ok(BayUsage { own_bytes })
    }

    /// Removes what interrupted exchanges of roots left.
    pub(crate) fn bay_sweep(&self) -> Result<()> {
        for dir in entries(&self.corner("bays"))? {
            for part in ["root", "workspace", "state", "beginning"] {
                self.trash().remove(&beside(&dir.join(part)))?;
            }
        }
        Ok(())
    }
}
