//! An open pool: its layout and its space.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bay_types::BayId;

use crate::backing::{Backing, Space};
use crate::error::{Doing, PoolError, Result};
use crate::git_network::Network;
use crate::host_packages::{HostKeyCache, HostTree};
use crate::subvolume::{self, Trash, entries};

/// Free space that imports and fetches leave to the bays, or a tenth of a small pool.
const LEAVE_FREE: u64 = 256 * 1024 * 1024;
/// How many bytes they write between two checks of the free space.
pub(crate) const CHECK_SPACE_EVERY: u64 = 64 * 1024 * 1024;

/// Host paths of a bay's subvolumes and of its other directories in the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BayDisk {
    pub root: PathBuf,
    pub workspace: PathBuf,
    pub state: PathBuf,
    /// The checkpoints that the bay can read.
    pub checkpoints: PathBuf,
    /// Programs that bays execute, shared by all bays of the corner.
    pub programs: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUsage {
    pub total_bytes: u64,
    pub free_bytes: u64,
}

/// An open pool. Cheap to clone; every method blocks.
#[derive(Debug, Clone)]
pub struct Pool {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    /// The top directory of the pool's btrfs.
    base: PathBuf,
    corner: PathBuf,
    backing: Option<Backing>,
    pub(crate) host: HostTree,
    pub(crate) host_key: Mutex<Option<HostKeyCache>>,
    pub(crate) network: Network,
    /// Held while a repository is added, so that each location is added once.
    pub(crate) repo_making: Mutex<()>,
    /// Held while a bay gets a link to a checkout, and while checkouts are removed.
    pub(crate) beginning_links: Mutex<()>,
    /// Whether this process has turned quotas on.
    pub(crate) quotas_on: Mutex<bool>,
}

impl Pool {
    pub(crate) fn new(
        base: PathBuf,
        corner: PathBuf,
        backing: Option<Backing>,
        host: HostTree,
        network: Network,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                base,
                corner,
                backing,
                host,
                host_key: Mutex::new(None),
                network,
                repo_making: Mutex::new(()),
                beginning_links: Mutex::new(()),
                quotas_on: Mutex::new(false),
            }),
        }
    }

    pub fn usage(&self) -> Result<PoolUsage> {
        let space = Space::of(&self.inner.base)?;
        Ok(PoolUsage { total_bytes: space.total, free_bytes: space.free })
    }

    /// The capacity in bytes: the pool's size, and how much it can grow.
    pub fn capacity(&self) -> Result<u64> {
        let now = Space::of(&self.inner.base)?.total;
        let more = self.inner.backing.as_ref().map_or(Ok(0), Backing::room_to_grow)?;
        Ok(now.saturating_add(more))
    }

    /// Fails if btrfs has made the pool read-only since it was opened, which it does to protect its data.
    pub fn check_writable(&self) -> Result<()> {
        if Space::of(&self.inner.base)?.read_only {
            return Err(PoolError::ReadOnly {
                pool: self.inner.base.clone(),
                why: "btrfs made it so after an error",
            });
        }
        Ok(())
    }

    /// Grows the pool file by a step if it has little free space and the host's disk has room. Returns whether it
    /// grew.
    pub fn grow_if_needed(&self) -> Result<bool> {
        self.inner.backing.as_ref().map_or(Ok(false), |backing| backing.grow(0))
    }

    /// Whether the pool file has so much free space that the host should get some of it back.
    pub fn is_roomy(&self) -> Result<bool> {
        self.inner.backing.as_ref().map_or(Ok(false), Backing::is_roomy)
    }

    /// Gives a step of a roomy pool file back to the host. Returns whether it shrank.
    pub fn shrink_if_roomy(&self) -> Result<bool> {
        self.inner.backing.as_ref().map_or(Ok(false), Backing::shrink)
    }

    /// Ensures `bytes` of free space, growing the pool if necessary.
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
                reserve_mib: match &self.inner.backing {
                    Some(backing) => Some(backing.host_reserve()? >> 20),
                    None => None,
                },
            });
        }
        Ok(())
    }

    /// Whether an import can continue; grows the pool if that helps.
    pub(crate) fn room_left(&self) -> bool {
        let _ = self.grow_if_needed();
        Space::of(self.base()).is_ok_and(|space| space.free >= leave_free(space.total))
    }

    pub(crate) fn backing(&self) -> Option<&Backing> {
        self.inner.backing.as_ref()
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

    pub(crate) fn bay_dir(&self, bay: BayId) -> PathBuf {
        self.corner("bays").join(bay.to_string())
    }

    #[must_use]
    pub fn bay_disk(&self, bay: BayId) -> BayDisk {
        let dir = self.bay_dir(bay);
        BayDisk {
            root: dir.join("root"),
            workspace: dir.join("workspace"),
            state: dir.join("state"),
            checkpoints: dir.join("checkpoints").join("shown"),
            programs: self.corner("programs"),
        }
    }

    pub(crate) fn tmp(&self) -> PathBuf {
        self.corner("tmp")
    }

    /// The home directory of git runs, which has no settings.
    pub(crate) fn git_home(&self) -> PathBuf {
        self.tmp().join("home")
    }

    pub(crate) fn trash(&self) -> Trash {
        Trash::new(self.corner("trash"))
    }

    /// How many bays of these corners have a `part` (`root`, `workspace`) that is a snapshot of one of `parents`.
    pub(crate) fn bays_snapshotting(
        &self,
        corners: &[PathBuf],
        part: &str,
        parents: &[[u8; 16]],
    ) -> Result<u64> {
        let mut count = 0;
        if parents.is_empty() {
            return Ok(count);
        }
        for corner in corners {
            let Ok(bays) = entries(&corner.join("bays")) else { continue };
            for bay in bays {
                // A bay that is being removed does not count.
                let Ok(info) = subvolume::info(&bay.join(part)) else { continue };
                if parents.contains(&info.parent_uuid) {
                    count += 1;
                }
            }
        }
        Ok(count)
    }

    pub(crate) fn own_corner(&self) -> PathBuf {
        self.corner("")
    }
}

/// Free space that a pool of this size reserves for the bays.
pub(crate) fn leave_free(total_bytes: u64) -> u64 {
    LEAVE_FREE.min(total_bytes / 10)
}
