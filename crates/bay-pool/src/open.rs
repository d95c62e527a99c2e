//! Opening a pool, and the sweep that finishes what a killed daemon began.

use std::path::{Path, PathBuf};

use bay_sys::btrfs;
use bay_types::progress::{Progress, Report};
use rustix::io::Errno;

use crate::backing::{Backing, PoolLock, Space, on_btrfs};
use crate::corners;
use crate::error::{Doing, PoolError, Result};
use crate::files::make_private_dir;
use crate::git_network::Network;
use crate::host_packages::HostTree;
use crate::pool::Pool;
use crate::subvolume::{entries, remove_all};
use crate::sysfs;

#[derive(Debug, Clone, Default)]
pub struct PoolOptions {
    /// Size of a new pool file; by default chosen from the free disk space.
    pub initial_mib: Option<u64>,
    /// Free space that the pool file leaves on the host's disk; by default a tenth of the disk, at
    /// least 2 and at most 5 GiB.
    pub reserve_mib: Option<u64>,
    /// Variables from [`GIT_VARIABLES`](crate::GIT_VARIABLES) with which git reaches remotes.
    pub git_environment: Vec<(String, String)>,
    /// The data directory of the daemon that owns the corner, to recognise corners whose daemon is gone.
    pub owner: Option<PathBuf>,
    /// The database has bays. Then a pool without their corner is the wrong one or lost, and no new one must be
    /// made.
    pub must_exist: bool,
}

impl Pool {
    /// Opens the pool in `dir`, makes and mounts it if necessary, and finishes what a killed daemon left half done
    /// in this corner. A corner belongs to one daemon at a time; all daemons share the images.
    pub fn open(dir: &Path, corner: &str, options: &PoolOptions, report: Report<'_>) -> Result<Self> {
        Self::open_with_host(dir, corner, options, HostTree::default(), report)
    }

    /// Opens a pool with another tree as the host's root, for tests.
    pub(crate) fn open_with_host(
        dir: &Path,
        corner: &str,
        options: &PoolOptions,
        host: HostTree,
        report: Report<'_>,
    ) -> Result<Self> {
        corners::check_corner(corner)?;
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
        let pool = Self::new(base, corner, backing, host, Network::of(&options.git_environment));
        if let Err(error) = pool.grow_if_needed() {
            tracing::warn!(error = %bay_types::error::chain(&error), "the pool could not grow");
        }
        pool.lay_out()?;
        if let Some(owner) = &options.owner {
            pool.remember_owner(owner)?;
        }
        report(Progress { stage: "tidying the pool".to_owned(), ..Progress::default() });
        pool.sweep()?;
        Ok(pool)
    }

    /// Unmounts the pool in `dir` if it is a mounted file that nobody uses.
    pub fn unmount(dir: &Path) -> Result<()> {
        match dir.canonicalize() {
            Ok(dir) if dir.join("mnt").is_dir() => Backing::new(&dir, None).unmount(),
            _ => Ok(()),
        }
    }

    fn lay_out(&self) -> Result<()> {
        make_private_dir(&self.images())?;
        make_private_dir(&self.base().join("corners"))?;
        make_private_dir(&self.corner(""))?;
        for name in ["bays", "repos", "kept", "programs", "trash", "tmp"] {
            make_private_dir(&self.corner(name))?;
        }
        make_private_dir(&self.git_home())
    }

    /// Removes leftovers of killed work: unfinished imports, checkouts and exchanges of roots, the contents of the
    /// trash, and quota groups of removed subvolumes. Opening a pool does this; a daemon may repeat it while
    /// nothing else runs.
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
        corners::sweep(self.base())?;
        self.quota_sweep()
    }

    /// Quota groups outlive their subvolumes. A group that is still counted cannot be removed yet, and waits for
    /// the next sweep.
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

fn lock_pool(dir: &Path) -> Result<PoolLock> {
    Backing::lock(dir).map_err(|error| match error {
        PoolError::TurnedReadOnly { source, .. } => unwritable(dir, source),
        PoolError::Full { .. } => disk_full(dir),
        other => other,
    })
}

fn disk_full(dir: &Path) -> PoolError {
    PoolError::HostFull { pool: dir.to_owned(), needed_mib: 1, free_mib: 0, reserve_mib: None }
}

fn unwritable(dir: &Path, source: std::io::Error) -> PoolError {
    match Errno::from_io_error(&source) {
        Some(Errno::ROFS) => PoolError::ReadOnly {
            pool: dir.to_owned(),
            why: "the filesystem it lies on is mounted read-only",
        },
        Some(Errno::NOSPC) => disk_full(dir),
        _ => PoolError::HostUnfit { why: format!("the directory {} cannot be made", dir.display()), source },
    }
}
