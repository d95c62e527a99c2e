//! Opening a pool, its layout, and the sweep that finishes what a killed daemon began.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bay_sys::btrfs;
use bay_types::progress::Progress;
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::backing::{Backing, Space, make_private_dir, on_btrfs};
use crate::error::{Doing, PoolError, Result};
use crate::image::host::{HostKeyCache, HostTree};
use crate::repo::Network;
use crate::subvolume::{Trash, entries, remove_all};
use crate::sysfs;
use crate::{PoolOptions, PoolUsage, Report};

/// Longest name of a corner: the id of a daemon fits several times.
const MAX_CORNER: usize = 80;
/// Free space that imports and fetches leave to the bays; a tenth of a small pool.
const LEAVE_FREE: u64 = 256 * 1024 * 1024;
/// How often they look at the free space.
pub(crate) const CHECK_SPACE_EVERY: u64 = 64 * 1024 * 1024;

/// Cheap to clone; every method blocks.
#[derive(Debug, Clone)]
pub struct Pool {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    /// The top of the btrfs that everything below lies on.
    base: PathBuf,
    corner: PathBuf,
    backing: Option<Backing>,
    pub(crate) host: HostTree,
    pub(crate) host_key: Mutex<Option<HostKeyCache>>,
    pub(crate) network: Network,
    /// One repository of a location is made once.
    pub(crate) repo_making: Mutex<()>,
    /// Set once quotas were turned on by this process.
    pub(crate) quotas_on: Mutex<bool>,
}

impl Pool {
    /// Opens the pool in `dir`, making and mounting it when needed, and finishes what an earlier life of this corner
    /// left half done. A corner belongs to one daemon at a time; images are shared by all.
    pub fn open(dir: &Path, corner: &str, options: &PoolOptions, report: Report<'_>) -> Result<Self> {
        Self::open_with_host(dir, corner, options, HostTree::default(), report)
    }

    /// The same with another tree in the place of the host's root.
    pub(crate) fn open_with_host(
        dir: &Path,
        corner: &str,
        options: &PoolOptions,
        host: HostTree,
        report: Report<'_>,
    ) -> Result<Self> {
        check_corner(corner)?;
        make_dir(dir)?;
        let dir = &dir.canonicalize().doing(|| format!("find {}", dir.display()))?;
        let (base, backing) = if on_btrfs(dir)? {
            (dir.clone(), None)
        } else {
            let lock = lock_pool(dir)?;
            let backing = Backing::new(dir, options.reserve_mib);
            if options.must_exist {
                backing.must_exist()?;
            }
            backing.ready(options.initial_mib, report, &lock)?;
            (backing.mount_point(), Some(backing))
        };
        if Space::of(&base)?.read_only {
            return Err(PoolError::ReadOnly {
                pool: dir.clone(),
                why: "its filesystem is mounted read-only, or btrfs made it so after an error",
            });
        }
        sysfs::hide_from_bays(&base)?;
        let corner = base.join("corners").join(corner);
        if options.must_exist && !corner.is_dir() {
            return Err(PoolError::Lost { pool: dir.clone(), why: "nothing of theirs is in it" });
        }
        let pool = Self {
            inner: Arc::new(Inner {
                base,
                corner,
                backing,
                host,
                host_key: Mutex::new(None),
                network: Network::of(&options.git_environment),
                repo_making: Mutex::new(()),
                quotas_on: Mutex::new(false),
            }),
        };
        if let Err(error) = pool.grow_if_needed() {
            tracing::warn!(error = %bay_types::error::chain(&error), "the pool could not grow");
        }
        pool.lay_out()?;
        report(Progress { stage: "tidying the pool".to_owned(), ..Progress::default() });
        pool.sweep()?;
        Ok(pool)
    }

    /// Unmounts the pool in `dir` when it is a mounted file that nobody uses any more.
    pub fn unmount(dir: &Path) -> Result<()> {
        match dir.canonicalize() {
            Ok(dir) if dir.join("mnt").is_dir() => Backing::new(&dir, None).unmount(),
            _ => Ok(()),
        }
    }

    fn lay_out(&self) -> Result<()> {
        make_private_dir(&self.images())?;
        make_private_dir(&self.inner.base.join("corners"))?;
        make_private_dir(&self.inner.corner)?;
        for name in ["bays", "repos", "kept", "programs", "trash", "tmp"] {
            make_private_dir(&self.inner.corner.join(name))?;
        }
        make_private_dir(&self.git_home())
    }

    /// Removes what killed work left: unfinished imports, checkouts and root swaps, the contents of the trash, quota
    /// groups of subvolumes that are gone. Open does this; a daemon may repeat it when nothing else runs.
    pub fn sweep(&self) -> Result<()> {
        self.trash().empty()?;
        for path in entries(&self.tmp())? {
            if path != self.git_home() {
                remove_all(&path)?;
            }
        }
        self.bay_sweep()?;
        self.repo_sweep()?;
        self.image_sweep()?;
        self.quota_sweep()
    }

    /// Quota groups stay behind when their subvolumes go; a group that is still counted refuses to, and waits for the
    /// next sweep.
    fn quota_sweep(&self) -> Result<()> {
        let top = self.top()?;
        for group in btrfs::qgroup_list(&top).doing(|| "list quota groups".to_owned())? {
            let own = group.id() >= btrfs::SUBVOLUME_ROOT_INODE;
            if own
                && !btrfs::subvolume_exists(&top, group.id()).doing(|| "look for a subvolume".to_owned())?
                && let Err(error) = btrfs::qgroup_destroy(&top, group)
            {
                tracing::debug!(?group, %error, "a quota group stays for now");
            }
        }
        Ok(())
    }

    pub fn usage(&self) -> Result<PoolUsage> {
        let space = Space::of(&self.inner.base)?;
        Ok(PoolUsage { total_bytes: space.total, free_bytes: space.free })
    }

    /// Bytes the pool can come to hold: what it has now, and what it may still take of the disk below.
    pub fn capacity(&self) -> Result<u64> {
        let now = Space::of(&self.inner.base)?.total;
        let more = self.inner.backing.as_ref().map_or(Ok(0), Backing::room_to_grow)?;
        Ok(now.saturating_add(more))
    }

    /// Fails when btrfs has made the pool read-only since it was opened, which it does to protect what is there.
    pub fn check_writable(&self) -> Result<()> {
        if Space::of(&self.inner.base)?.read_only {
            return Err(PoolError::ReadOnly {
                pool: self.inner.base.clone(),
                why: "btrfs made it so after an error",
            });
        }
        Ok(())
    }

    /// Grows the pool file by a step when little is left in it and the host's disk has room. Says whether it grew.
    pub fn grow_if_needed(&self) -> Result<bool> {
        self.inner.backing.as_ref().map_or(Ok(false), |backing| backing.grow(0))
    }

    /// Makes room for `bytes` more, growing the pool if that is what it takes.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<()> {
        self.check_writable()?;
        let lacks = || Space::of(&self.inner.base).map(|space| space.free < bytes);
        if !lacks()? {
            return Ok(());
        }
        if let Some(backing) = &self.inner.backing {
            backing.grow(bytes)?;
        }
        if lacks()? {
            let free = Space::of(&self.inner.base)?.free;
            return Err(PoolError::HostFull {
                pool: self.inner.base.clone(),
                needed_mib: bytes >> 20,
                free_mib: free >> 20,
            });
        }
        Ok(())
    }

    /// Is there room to go on, growing the pool where that helps?
    pub(crate) fn room_left(&self) -> bool {
        let _ = self.grow_if_needed();
        Space::of(self.base()).is_ok_and(|space| space.free >= leave_free(space.total))
    }

    pub(crate) fn top(&self) -> Result<File> {
        File::open(&self.inner.base).doing(|| "open the pool".to_owned())
    }

    pub(crate) fn base(&self) -> &Path {
        &self.inner.base
    }

    pub(crate) fn images(&self) -> PathBuf {
        self.inner.base.join("images")
    }

    pub(crate) fn corner(&self, part: &str) -> PathBuf {
        self.inner.corner.join(part)
    }

    pub(crate) fn tmp(&self) -> PathBuf {
        self.corner("tmp")
    }

    /// The home directory that git sees: without settings of anybody.
    pub(crate) fn git_home(&self) -> PathBuf {
        self.tmp().join("home")
    }

    pub(crate) fn trash(&self) -> Trash {
        Trash::new(self.corner("trash"))
    }
}

/// What a pool of this size keeps for the bays.
pub(crate) fn leave_free(total_bytes: u64) -> u64 {
    LEAVE_FREE.min(total_bytes / 10)
}

fn check_corner(corner: &str) -> Result<()> {
    let fine = !corner.is_empty()
        && corner.len() <= MAX_CORNER
        && !corner.starts_with('.')
        && corner.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if fine {
        return Ok(());
    }
    Err(PoolError::Invalid {
        what: format!("the corner name {:?}", crate::error::one_line(corner)),
        why: "only letters, digits, '-', '_' and '.' are allowed".to_owned(),
    })
}

/// The pool's own directory and its parents.
fn make_dir(dir: &Path) -> Result<()> {
    if let Some(parent) = dir.parent() {
        std::fs::create_dir_all(parent).map_err(|error| unwritable(dir, error))?;
    }
    match rustix::fs::mkdir(dir, rustix::fs::Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(unwritable(dir, error.into())),
    }
}

fn lock_pool(dir: &Path) -> Result<crate::backing::PoolLock> {
    Backing::lock(dir).map_err(|error| match error {
        PoolError::TurnedReadOnly { source, .. } => unwritable(dir, source),
        PoolError::Full { .. } => PoolError::HostFull { pool: dir.to_owned(), needed_mib: 1, free_mib: 0 },
        other => other,
    })
}

fn unwritable(dir: &Path, source: std::io::Error) -> PoolError {
    match Errno::from_io_error(&source) {
        Some(Errno::ROFS) => PoolError::ReadOnly {
            pool: dir.to_owned(),
            why: "the filesystem it lies on is mounted read-only",
        },
        Some(Errno::NOSPC) => PoolError::HostFull { pool: dir.to_owned(), needed_mib: 1, free_mib: 0 },
        _ => PoolError::HostUnfit { why: format!("the directory {} cannot be made", dir.display()), source },
    }
}

/// Writes a small file of ours so that it is there whole or not at all.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec_pretty(value)
        .map_err(std::io::Error::other)
        .doing(|| format!("write {}", path.display()))?;
    write_whole(path, &text)
}

pub(crate) fn write_whole(path: &Path, contents: &[u8]) -> Result<()> {
    let new = path.with_extension("new");
    std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .and_then(|mut file| file.write_all(contents).and_then(|()| file.sync_data()))
        .and_then(|()| std::fs::rename(&new, path))
        .doing(|| format!("write {}", path.display()))
}

/// Reads a small file of ours; `None` when it is not there.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error).doing(|| format!("read {}", path.display())),
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| PoolError::Damaged {
        pool: path.to_owned(),
        why: format!("it cannot be read ({error})"),
    })
}
