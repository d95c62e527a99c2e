//! The files of checkpoints: read-only snapshots of a bay's three subvolumes, all of the same moment.
//!
//! ```text
//!  bays/<id>/checkpoints/new/{root,workspace}  new-inner/state   ◄── checkpoint_take, while the bay is paused
//!                       /shown/v3/{root,workspace}               ◄── checkpoint_keep; the newest ones, readable in the bay
//!                       /older/v1/{root,workspace}                   moved there when there are newer ones
//!                       /inner/v3/state                              the guest's own state
//! ```
//! Only directories are moved, never the snapshots in them, because the kernel cannot rename a read-only subvolume.
//! The bay has the directory `shown` mounted read-only. A subvolume below a mount needs no mount of its own, so
//! checkpoints can be added and removed there while the bay runs. Interrupted work may leave directories that the
//! store does not list; [`Pool::checkpoint_sweep`] removes them.

use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bay_sys::btrfs::{self, Qgroup};
use bay_types::checkpoint::{Point, SHOWN_INSIDE};
use bay_types::{BayId, CheckpointName};
use rustix::fs::{CWD, RenameFlags};

use crate::error::{Doing, PoolError, Result};
use crate::files::make_private_dir;
use crate::pool::Pool;
use crate::subvolume::{self, entries, open_dir};

const ROOT: &str = "root";
const WORKSPACE: &str = "workspace";
const STATE: &str = "state";
const MEMORY: &str = "memory";
/// Prefix of image files that contain pages of processes.
const PAGES: &[u8] = b"pages-";
/// The guest's executable among the images (`bay_runtime::PROGRAM`). It shares its blocks with the running one.
const PROGRAM: &str = "program";
/// The kernel's unit for the blocks of a file.
const BLOCK: u64 = 512;
/// In a bay's state: the definitions of its services.
const SERVICES: &str = "services";
/// Most definitions of services that are copied. A guest accepts far fewer.
const MAX_SERVICES: usize = 1024;
/// Longest definition that is copied.
const MAX_SERVICE_BYTES: u64 = 1 << 20;

/// Mode of directories that the bay's users must be able to enter.
const OPEN_MODE: u32 = 0o755;

impl Pool {
    fn checkpoints(&self, bay: BayId) -> PathBuf {
        self.bay_dir(bay).join("checkpoints")
    }

    /// The directory of checkpoints that a bay can read; made if missing.
    pub fn checkpoints_shown(&self, bay: BayId) -> Result<PathBuf> {
        let top = self.checkpoints(bay);
        make_private_dir(&top)?;
        let shown = top.join("shown");
        make_private_dir(&shown)?;
        open_up(&shown)?;
        Ok(shown)
    }

    /// The directory with the parts of a checkpoint that the bay may read.
    pub(crate) fn checkpoint_dir(&self, point: Point) -> Result<PathBuf> {
        let (top, name) = (self.checkpoints(point.bay), point.checkpoint.to_string());
        let places = ["shown", "older"].map(|place| top.join(place).join(&name));
        places
            .into_iter()
            .find(|dir| subvolume::exists(&dir.join(ROOT)) && subvolume::exists(&dir.join(WORKSPACE)))
            .ok_or(PoolError::CheckpointNotFound { checkpoint: name })
    }

    /// The directory with the parts of a checkpoint that the bay cannot read.
    #[must_use]
    pub fn checkpoint_inner(&self, point: Point) -> PathBuf {
        self.checkpoints(point.bay).join("inner").join(point.checkpoint.to_string())
    }

    /// The directory with the memory of a checkpoint, if it has any.
    #[must_use]
    pub fn checkpoint_memory(&self, point: Point) -> PathBuf {
        self.checkpoint_inner(point).join(MEMORY)
    }

    /// How many bytes of memory a restore needs; zero for a checkpoint of files only.
    pub fn checkpoint_memory_bytes(&self, point: Point) -> Result<u64> {
        let dir = self.checkpoint_memory(point);
        let mut bytes = 0_u64;
        for path in if dir.is_dir() { entries(&dir)? } else { Vec::new() } {
            let found = std::fs::symlink_metadata(&path).doing(|| format!("look at {}", path.display()))?;
            if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PAGES)) {
                bytes = bytes.saturating_add(found.len());
            }
        }
        Ok(bytes)
    }

    /// Disk space of the images of a memory checkpoint; `None` if there are none.
    #[must_use]
    pub fn checkpoint_disk_bytes(&self, point: Point) -> Option<u64> {
        let images = std::fs::read_dir(self.checkpoint_memory(point)).ok()?;
        let images = images.flatten().filter(|entry| entry.file_name() != PROGRAM);
        let blocks = images.filter_map(|entry| entry.metadata().ok()).map(|about| about.blocks());
        Some(blocks.sum::<u64>().saturating_mul(BLOCK))
    }

    /// The directory for the memory of a checkpoint in progress; not made yet.
    #[must_use]
    pub fn checkpoint_new_memory(&self, bay: BayId) -> PathBuf {
        self.checkpoints(bay).join("new-inner").join(MEMORY)
    }

    /// Ensures free space for `bytes` of memory, growing the pool if necessary, because it cannot grow while a bay
    /// is paused.
    pub fn checkpoint_make_room(&self, bytes: u64) -> Result<()> {
        self.make_room(bytes)
    }

    /// Flushes pending data and makes the directories, so that little is left to do while the bay is paused.
    pub fn checkpoint_prepare(&self, bay: BayId) -> Result<()> {
        self.check_writable()?;
        if let Err(error) = self.grow_if_needed() {
            tracing::warn!(error = %bay_types::error::chain(&error), "the pool could not grow");
        }
        self.checkpoints_shown(bay)?;
        let top = self.checkpoints(bay);
        for place in ["older", "inner"] {
            make_private_dir(&top.join(place))?;
        }
        for new in ["new", "new-inner"].map(|new| top.join(new)) {
            self.trash().remove(&new)?;
            make_private_dir(&new)?;
        }
        self.bay_flush(bay)
    }

    /// Writes everything of a bay to the disk, and with it the whole pool.
    pub fn bay_flush(&self, bay: BayId) -> Result<()> {
        // All parts are on the same filesystem.
        let part = self.bay_disk(bay).workspace;
        let dir = open_dir(&part).doing(|| format!("open {}", part.display()))?;
        rustix::fs::syncfs(&dir).doing(|| format!("flush {}", part.display()))
    }

    /// Flushes a checkpoint, including its memory images.
    pub fn checkpoint_flush(&self, point: Point) -> Result<()> {
        let path = self.checkpoint_inner(point);
        let dir = std::fs::File::open(&path).doing(|| format!("open {}", path.display()))?;
        rustix::fs::syncfs(&dir).doing(|| format!("flush {}", path.display()))
    }

    /// Takes the snapshots. The caller keeps the bay from changing meanwhile.
    pub fn checkpoint_take(&self, bay: BayId) -> Result<()> {
        let (disk, top) = (self.bay_disk(bay), self.checkpoints(bay));
        let (new, inner) = (top.join("new"), top.join("new-inner"));
        let group = self.quota_of(&disk)?.map(|(group, _)| group);
        // Each snapshot waits for a commit of the filesystem. Made in parallel, they share one.
        let take = |from: &Path, to: PathBuf| read_only(from, &to, group);
        std::thread::scope(|scope| {
            let root = scope.spawn(|| take(&disk.root, new.join(ROOT)));
            let state = scope.spawn(|| take(&disk.state, inner.join(STATE)));
            let workspace = take(&disk.workspace, new.join(WORKSPACE));
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            workspace.and(join(root)).and(join(state))
        })
    }

    /// Moves the new snapshots to their final name.
    pub fn checkpoint_keep(&self, point: Point) -> Result<()> {
        let (top, name) = (self.checkpoints(point.bay), point.checkpoint.to_string());
        let (inner, shown) = (self.checkpoint_inner(point), top.join("shown").join(name));
        open_up(&top.join("new"))?;
        for (new, place) in [("new-inner", &inner), ("new", &shown)] {
            // An earlier attempt with this number may have left files.
            self.trash().remove(place)?;
            std::fs::rename(top.join(new), place)
                .doing(|| format!("put {} in its place", place.display()))?;
        }
        Ok(())
    }

    /// Removes an unfinished checkpoint.
    pub fn checkpoint_discard(&self, bay: BayId) -> Result<()> {
        let top = self.checkpoints(bay);
        for new in ["new", "new-inner"] {
            self.trash().remove(&top.join(new))?;
        }
        Ok(())
    }

    /// Moves the newest of these checkpoints to `shown` and the others to `older`.
    pub fn checkpoints_arrange(&self, bay: BayId, known: &[CheckpointName]) -> Result<()> {
        let top = self.checkpoints(bay);
        let older = known.len().saturating_sub(SHOWN_INSIDE);
        for (index, name) in known.iter().enumerate() {
            let (from, to) = if index < older { ("shown", "older") } else { ("older", "shown") };
            let (from, to) = (top.join(from).join(name.to_string()), top.join(to).join(name.to_string()));
            match std::fs::rename(&from, &to) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).doing(|| format!("move {}", from.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes the files of a checkpoint. Harmless if there are none.
    pub fn checkpoint_remove(&self, point: Point) -> Result<()> {
        let (top, name) = (self.checkpoints(point.bay), point.checkpoint.to_string());
        for place in ["shown", "older", "inner"] {
            self.trash().remove(&top.join(place).join(&name))?;
        }
        Ok(())
    }

    /// Removes the files of all checkpoints that are not in `known`.
    pub fn checkpoint_sweep(&self, bay: BayId, known: &[CheckpointName]) -> Result<()> {
        let top = self.checkpoints(bay);
        if !top.is_dir() {
            return Ok(());
        }
        self.checkpoint_discard(bay)?;
        for place in ["shown", "older", "inner"] {
            let place = top.join(place);
            if !place.is_dir() {
                continue;
            }
            for path in entries(&place)? {
                let name = path.file_name().and_then(OsStr::to_str).and_then(|name| name.parse().ok());
                if name.is_none_or(|name| !known.contains(&name)) {
                    self.trash().remove(&path)?;
                }
            }
        }
        self.checkpoints_arrange(bay, known)
    }

    /// Restores the files of a stopped bay from a checkpoint, its own or another bay's. The output of its execs
    /// stays, and its services become those of the checkpoint. With `state`, the guest's whole state is restored.
    pub fn bay_restore(&self, bay: BayId, from: Point, state: bool) -> Result<()> {
        self.check_writable()?;
        let (disk, source) = (self.bay_disk(bay), self.checkpoint_dir(from)?);
        if !subvolume::exists(&disk.state) {
            return Err(PoolError::BayFilesMissing { bay: bay.to_string() });
        }
        let kept_state = self.checkpoint_inner(from).join(STATE);
        let group = self.quota_of(&disk)?.map(|(group, _)| group);
        let mut parts = vec![(source.join(ROOT), disk.root), (source.join(WORKSPACE), disk.workspace)];
        if state {
            parts.push((kept_state.clone(), disk.state.clone()));
        }
        // The snapshots are made before the first change, so that a full pool is noticed in time.
        for (from, part) in &parts {
            let new = beside(part);
            self.trash().remove(&new)?;
            subvolume::snapshot(from, &new, group)?;
        }
        for (_, part) in &parts {
            rustix::fs::renameat_with(CWD, beside(part), CWD, part, RenameFlags::EXCHANGE)
                .doing(|| format!("exchange {}", part.display()))?;
        }
        if !state {
            take_services(&kept_state, &disk.state)?;
        }
        for (_, part) in &parts {
            self.trash().remove(&beside(part))?;
        }
        Ok(())
    }

    /// Makes the state of a fork from a checkpoint: all of it, or only its services.
    pub(crate) fn state_from(&self, from: Point, to: &Path, whole: bool, mode: u32) -> Result<()> {
        let kept = self.checkpoint_inner(from).join(STATE);
        if whole {
            return subvolume::snapshot(&kept, to, None);
        }
        subvolume::create(to, mode, None)?;
        take_services(&kept, to)
    }
}

/// `root.new` beside `root`.
pub(crate) fn beside(part: &Path) -> PathBuf {
    part.with_extension("new")
}

fn open_up(dir: &Path) -> Result<()> {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(OPEN_MODE))
        .doing(|| format!("set the mode of {}", dir.display()))
}

pub(crate) fn read_only(from: &Path, to: &Path, group: Option<Qgroup>) -> Result<()> {
    let made = open_dir(from).and_then(|source| {
        let (parent, name) = subvolume::parent_and_name(to)?;
        btrfs::snapshot(&source, &parent, name, true, group)
    });
    made.doing(|| format!("snapshot {}", from.display()))
}

/// Replaces the service definitions in one state by those of another. An agent can write both, so only plain files
/// `*.json` of bounded size and number are copied.
fn take_services(from: &Path, to: &Path) -> Result<()> {
    let doing = || format!("take over the services to {}", to.display());
    let definitions = |state: &Path| -> Result<Vec<PathBuf>> {
        let dir = state.join(SERVICES);
        match std::fs::symlink_metadata(&dir) {
            Ok(found) if found.is_dir() => {}
            _ => return Ok(Vec::new()),
        }
        let plain = |path: &PathBuf| {
            path.extension() == Some(OsStr::new("json"))
                && std::fs::symlink_metadata(path)
                    .is_ok_and(|found| found.is_file() && found.len() <= MAX_SERVICE_BYTES)
        };
        Ok(entries(&dir)?.into_iter().filter(plain).take(MAX_SERVICES).collect())
    };
    for gone in definitions(to)? {
        std::fs::remove_file(&gone).doing(doing)?;
    }
    let taken = definitions(from)?;
    if taken.is_empty() {
        return Ok(());
    }
    let dir = to.join(SERVICES);
    make_private_dir(&dir)?;
    for file in taken {
        let name = file.file_name().unwrap_or_default();
        std::fs::copy(&file, dir.join(name)).doing(doing)?;
    }
    Ok(())
}
