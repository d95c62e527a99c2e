//! The file that holds the pool if the disk itself is not btrfs: making it, attaching it as a block device,
//! mounting and growing it. Module `shrink` makes it smaller again.
//!
//! ```text
//!  (nothing) ── fallocate pool.img.new ── mkfs ── fsync ── rename ──► pool.img ── loop device ── mount ──► mounted
//! ```
//!
//! All of this happens under `pool.lock`, so that two daemons can share a pool. After a kill at any moment, the
//! next open finds either no `pool.img` (and starts again, removing `pool.img.new`) or a complete one. An existing
//! `pool.img` is never formatted. The file is fully allocated and never sparse, because a full host disk must not
//! become a write error inside the pool. So the filesystem is mounted `nodiscard`: a discard would make the file
//! sparse.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bay_git::SYSTEM_PATH;
use bay_sys::btrfs;
use bay_sys::loopdev::LoopDevice;
use bay_types::progress::{Progress, Report};
use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::error::{Doing, PoolError, Result, one_line};
use crate::files::{make_private_dir, remove_if_there, retry, sync_dir};

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;

/// Most that a new pool takes if nobody gave a size. It takes a third of the free disk space, up to this.
const DEFAULT_MAX: u64 = 32 * GIB;
/// Least that a new pool takes if nobody gave a size.
const DEFAULT_MIN: u64 = 2 * GIB;
/// A smaller btrfs cannot work.
const SMALLEST: u64 = 128 * MIB;
/// Least free space that a pool leaves on the host's disk if the operator set none.
const HOST_RESERVE_MIN: u64 = 2 * GIB;
/// Most free space that it leaves there if the operator set none.
const HOST_RESERVE_MAX: u64 = 5 * GIB;
/// Between the two it leaves the size of the disk divided by this.
const HOST_RESERVE_DIVISOR: u64 = 10;
/// The pool grows if its free space is below this and below its size divided by [`LOW_DIVISOR`].
const LOW: u64 = GIB;
const LOW_DIVISOR: u64 = 10;
/// Least growth. If the host's disk has no room for it, the pool does not grow.
const STEP_MIN: u64 = 256 * MIB;
/// Most growth, unless one request needs more.
const STEP_MAX: u64 = 16 * GIB;
/// Between the two the pool grows by its size divided by this.
const STEP_DIVISOR: u64 = 4;

/// How long an unmount waits for the last users.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(3);
/// Pause between two attempts to unmount.
const UNMOUNT_RETRY: Duration = Duration::from_millis(10);

/// The offset of the first superblock of btrfs.
const SUPERBLOCK_AT: u64 = 64 * 1024;
/// The offset of the signature in the superblock.
const SIGNATURE_AT: usize = 0x40;
/// The offset of the filesystem's size in the superblock.
const TOTAL_BYTES_AT: usize = 0x70;
const SIGNATURE: &[u8; 8] = b"_BHRfS_M";

/// The directory with the pool file and its mount point.
#[derive(Debug, Clone)]
pub(crate) struct Backing {
    pub(crate) dir: PathBuf,
    /// Bytes left free on the host's disk, if the operator set them.
    reserve: Option<u64>,
}

/// Held while the pool file or its mount changes.
pub(crate) struct PoolLock {
    _file: File,
}

impl Backing {
    pub(crate) fn new(dir: &Path, reserve_mib: Option<u64>) -> Self {
        Self { dir: dir.to_owned(), reserve: reserve_mib.map(|mib| mib.saturating_mul(MIB)) }
    }

    /// Bytes that the pool leaves free on the host's disk.
    pub(crate) fn reserve(&self, host: &Space) -> u64 {
        let usual = || (host.total / HOST_RESERVE_DIVISOR).clamp(HOST_RESERVE_MIN, HOST_RESERVE_MAX);
        self.reserve.unwrap_or_else(usual)
    }

    /// Bytes that the pool may take of the host's disk.
    pub(crate) fn spare(&self, host: &Space) -> u64 {
        host.free.saturating_sub(self.reserve(host))
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.dir.join("pool.img")
    }

    pub(crate) fn mount_point(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    pub(crate) fn lock(dir: &Path) -> Result<PoolLock> {
        let path = dir.join("pool.lock");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .doing(|| format!("open {}", path.display()))?;
        retry(|| rustix::fs::flock(&file, FlockOperation::LockExclusive))
            .doing(|| format!("lock {}", path.display()))?;
        Ok(PoolLock { _file: file })
    }

    /// Fails if there is no pool yet.
    pub(crate) fn must_exist(&self) -> Result<()> {
        if self.image().exists() || on_btrfs(&self.mount_point()).unwrap_or(false) {
            return Ok(());
        }
        Err(PoolError::Lost { pool: self.image(), why: "the file is missing" })
    }

    /// Makes the pool file if there is none, and mounts it if it is not mounted.
    pub(crate) fn ready(&self, initial_mib: Option<u64>, report: Report<'_>, _lock: &PoolLock) -> Result<()> {
        let mount_point = self.mount_point();
        make_private_dir(&mount_point)?;
        let mounted = on_btrfs(&mount_point)?;
        if !self.image().exists() {
            if mounted {
                return Err(self.damaged(
                    "its file was removed while it is mounted; its contents live until it is unmounted, so copy them away now",
                ));
            }
            self.make(initial_mib, report)?;
        }
        let image = self.open_image()?;
        let size = self.check(&image)?;
        if !mounted {
            self.mount(&image)?;
        }
        if size.file > size.filesystem {
            // A growth was interrupted after it enlarged the file.
            self.fit(&image)?;
        }
        Ok(())
    }

    fn damaged(&self, why: impl Into<String>) -> PoolError {
        PoolError::Damaged { pool: self.image(), why: why.into() }
    }

    pub(crate) fn open_image(&self) -> Result<File> {
        let path = self.image();
        match OpenOptions::new().read(true).write(true).open(&path) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::ROFS) => Err(PoolError::ReadOnly {
                pool: self.dir.clone(),
                why: "the filesystem its file lies on is mounted read-only",
            }),
            other => other.doing(|| format!("open the pool file {}", path.display())),
        }
    }

    fn make(&self, initial_mib: Option<u64>, report: Report<'_>) -> Result<()> {
        report(Progress { stage: "making the pool".to_owned(), ..Progress::default() });
        let host = Space::of(&self.dir)?;
        let size = match initial_mib {
            Some(mib) => {
                let size = mib.saturating_mul(MIB);
                if size < SMALLEST {
                    return Err(PoolError::Invalid {
                        what: format!("a pool of {mib} MiB"),
                        why: format!("the smallest is {} MiB", SMALLEST / MIB),
                    });
                }
                size
            }
            None => (host.free / 3).min(self.spare(&host)).clamp(DEFAULT_MIN, DEFAULT_MAX),
        };
        if size > self.spare(&host) {
            return Err(self.host_full(size, &host));
        }
        let size = size / MIB * MIB;
        let new = self.dir.join("pool.img.new");
        remove_if_there(&new)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)
            .map_err(|error| self.not_writable(error))?;
        let made = self.fill(&file, &new, size, &host);
        if made.is_err() {
            remove_if_there(&new)?;
        }
        made?;
        self.remember_first_size(size)?;
        file.sync_all().doing(|| "write the pool file".to_owned())?;
        std::fs::rename(&new, self.image()).doing(|| "name the pool file".to_owned())?;
        sync_dir(&self.dir)
    }

    fn not_writable(&self, source: io::Error) -> PoolError {
        match Errno::from_io_error(&source) {
            Some(Errno::ROFS) => PoolError::ReadOnly {
                pool: self.dir.clone(),
                why: "the filesystem it would lie on is mounted read-only",
            },
            Some(Errno::NOSPC) => PoolError::HostFull {
                pool: self.dir.clone(),
                needed_mib: DEFAULT_MIN / MIB,
                free_mib: 0,
                reserve_mib: None,
            },
            _ => PoolError::HostUnfit { why: format!("{} cannot be written", self.dir.display()), source },
        }
    }

    fn host_full(&self, needed: u64, host: &Space) -> PoolError {
        PoolError::HostFull {
            pool: self.dir.clone(),
            needed_mib: needed.div_ceil(MIB),
            free_mib: self.spare(host) / MIB,
            reserve_mib: Some(self.reserve(host) / MIB),
        }
    }

    fn fill(&self, file: &File, path: &Path, size: u64, host: &Space) -> Result<()> {
        match retry(|| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size)) {
            Ok(()) => {}
            Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => return Err(self.host_full(size, host)),
            Err(error) => {
                return Err(PoolError::HostUnfit {
                    why: format!("the filesystem of {} cannot reserve space for a file", self.dir.display()),
                    source: error.into(),
                });
            }
        }
        let output = Command::new("mkfs.btrfs")
            .args(["--quiet", "--nodiscard", "--label", "workbay", "--"])
            .arg(path)
            .env_clear()
            .env("PATH", SYSTEM_PATH)
            .env("LC_ALL", "C")
            .output();
        let output = match output {
            Ok(output) => output,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(PoolError::ProgramMissing {
                    program: "mkfs.btrfs",
                    package: "btrfs-progs",
                    purpose: "make a pool",
                });
            }
            Err(error) => return Err(error).doing(|| "run mkfs.btrfs".to_owned()),
        };
        if output.status.success() {
            return Ok(());
        }
        let said = one_line(String::from_utf8_lossy(&output.stderr));
        Err(PoolError::HostUnfit {
            why: "mkfs.btrfs failed on the new pool file".to_owned(),
            source: io::Error::other(said),
        })
    }

    /// Checks that the file is a complete btrfs.
    pub(crate) fn check(&self, image: &File) -> Result<Sizes> {
        let file = image.metadata().doing(|| "look at the pool file".to_owned())?.len();
        let mut block = [0_u8; 4096];
        let mut reader = image;
        let read = reader.seek(SeekFrom::Start(SUPERBLOCK_AT)).and_then(|_| reader.read_exact(&mut block));
        match read {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(self.damaged(format!("its file is cut off after {file} bytes")));
            }
            Err(error) => return Err(error).doing(|| "read the pool file".to_owned()),
        }
        if &block[SIGNATURE_AT..SIGNATURE_AT + SIGNATURE.len()] != SIGNATURE {
            return Err(self.damaged(
                "its file has no btrfs superblock (a copy may survive: `btrfs rescue super-recover` on the file)",
            ));
        }
        let filesystem =
            block[TOTAL_BYTES_AT..TOTAL_BYTES_AT + 8].try_into().map(u64::from_le_bytes).unwrap_or_default();
        if filesystem > file {
            return Err(self.damaged(format!("its file has {file} bytes where {filesystem} belong")));
        }
        Ok(Sizes { file, filesystem })
    }

    fn mount(&self, image: &File) -> Result<()> {
        // The file may already be attached in another daemon's mount namespace. A second device for the same
        // filesystem would be a second writer.
        let existing = LoopDevice::of_file(image).doing(|| "look for the pool's loop device".to_owned())?;
        let device = match existing {
            Some(device) => device,
            None => LoopDevice::attach(image).map_err(|source| PoolError::HostUnfit {
                why: "the pool file could not be attached to a loop device".to_owned(),
                source,
            })?,
        };
        if !device.is_direct().unwrap_or(false) {
            tracing::warn!(pool = %self.dir.display(), "the disk below cannot do direct I/O: the pool will be slower");
        }
        let flags = MountFlags::NOATIME | MountFlags::NODEV;
        match rustix::mount::mount(device.path(), self.mount_point(), c"btrfs", flags, c"nodiscard") {
            Ok(()) => Ok(()),
            Err(error @ (Errno::PERM | Errno::ACCESS | Errno::NODEV)) => Err(PoolError::HostUnfit {
                why: "btrfs could not be mounted (no right to, or the kernel lacks it)".to_owned(),
                source: error.into(),
            }),
            Err(Errno::ROFS) => Err(PoolError::ReadOnly {
                pool: self.dir.clone(),
                why: "its filesystem can only be mounted read-only",
            }),
            Err(error) => {
                Err(self.damaged(format!("btrfs refuses to mount it ({error}); `dmesg` has the reason")))
            }
        }
    }

    /// Mounts the pool file that is there.
    pub(crate) fn mount_existing(&self) -> Result<()> {
        make_private_dir(&self.mount_point())?;
        let image = self.open_image()?;
        self.check(&image)?;
        self.mount(&image)
    }

    /// Enlarges the device and the filesystem to the size of the file.
    fn fit(&self, image: &File) -> Result<()> {
        let device = LoopDevice::of_file(image)
            .and_then(|device| device.ok_or_else(|| io::Error::from(Errno::NODEV)))
            .doing(|| "find the pool's loop device".to_owned())?;
        device.refresh_capacity().doing(|| "grow the pool's loop device".to_owned())?;
        let top = File::open(self.mount_point()).doing(|| "open the pool".to_owned())?;
        btrfs::resize_to_device(&top).doing(|| "grow the pool".to_owned())
    }

    /// Grows the pool if it has less than `needed` bytes free, or if `needed` is 0 and its free space is low. Returns
    /// whether it grew.
    pub(crate) fn grow(&self, needed: u64) -> Result<bool> {
        if !self.is_low(needed)? {
            return Ok(false);
        }
        let _lock = Self::lock(&self.dir)?;
        if !self.is_low(needed)? {
            return Ok(false);
        }
        let image = self.open_image()?;
        let size = image.metadata().doing(|| "look at the pool file".to_owned())?.len();
        let pool = Space::of(&self.mount_point())?;
        let spare = self.spare(&Space::of(&self.dir)?);
        if needed.saturating_sub(pool.free) > spare {
            // It would take all that the host's disk can spare, and not be enough.
            return Ok(false);
        }
        let missing = needed.saturating_add(LOW).saturating_sub(pool.free);
        let step = (size / STEP_DIVISOR).clamp(STEP_MIN, STEP_MAX).max(missing).min(spare);
        let step = step / MIB * MIB;
        if step < STEP_MIN {
            return Ok(false);
        }
        match retry(|| rustix::fs::fallocate(&image, FallocateFlags::empty(), size, step)) {
            Ok(()) => {}
            Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => {
                // Release what was allocated. The filesystem ends before it.
                image.set_len(size).doing(|| "give back space of the disk".to_owned())?;
                return Ok(false);
            }
            Err(error) => return Err(error).doing(|| "grow the pool file".to_owned()),
        }
        self.fit(&image)?;
        tracing::info!(pool = %self.dir.display(), by_mib = step / MIB, "the pool grew");
        Ok(true)
    }

    /// How much the file can grow on the disk.
    pub(crate) fn room_to_grow(&self) -> Result<u64> {
        let spare = self.spare(&Space::of(&self.dir)?);
        Ok(if spare < STEP_MIN { 0 } else { spare })
    }

    fn is_low(&self, needed: u64) -> Result<bool> {
        let pool = Space::of(&self.mount_point())?;
        let low = if needed == 0 { LOW.min(pool.total / LOW_DIVISOR) } else { needed };
        Ok(pool.free < low)
    }

    /// Unmounts the pool. The loop device is detached with it.
    pub(crate) fn unmount(&self) -> Result<()> {
        let _lock = Self::lock(&self.dir)?;
        if !on_btrfs(&self.mount_point())? {
            return Ok(());
        }
        let began = Instant::now();
        loop {
            match rustix::mount::unmount(self.mount_point(), UnmountFlags::empty()) {
                // A program that is starting holds copies of our descriptors until its `exec`. Nothing signals that
                // moment, so the unmount is retried.
                Err(Errno::BUSY) if began.elapsed() < UNMOUNT_PATIENCE => {
                    std::thread::park_timeout(UNMOUNT_RETRY);
                }
                other => return other.doing(|| format!("unmount the pool {}", self.dir.display())),
            }
        }
    }
}

pub(crate) struct Sizes {
    pub(crate) file: u64,
    pub(crate) filesystem: u64,
}

/// The space of a filesystem.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Space {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) read_only: bool,
}

impl Space {
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let found = retry(|| rustix::fs::statvfs(path))
            .doing(|| format!("ask for the space of {}", path.display()))?;
        Ok(Self {
            total: found.f_blocks.saturating_mul(found.f_frsize),
            free: found.f_bavail.saturating_mul(found.f_frsize),
            read_only: found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY),
        })
    }
}

pub(crate) fn on_btrfs(path: &Path) -> Result<bool> {
    let directory = File::open(path).doing(|| format!("open {}", path.display()))?;
    btrfs::is_btrfs(&directory).doing(|| format!("look at {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_large_and_nearly_full_disk_the_operators_reserve_leaves_room() {
        let host = Space { total: 252 * GIB, free: 15 * GIB, read_only: false };
        let spare = |reserve_mib| Backing::new(Path::new("/pool"), reserve_mib).spare(&host);
        assert_eq!(spare(None), 10 * GIB, "the reserve is at most 5 GiB");
        assert_eq!(spare(Some(512)), 15 * GIB - 512 * MIB);
        assert_eq!(spare(Some(u64::MAX)), 0);
        assert_eq!(Backing::new(Path::new("/pool"), None).reserve(&host), 5 * GIB);
        let small = Space { total: 10 * GIB, free: 9 * GIB, read_only: false };
        assert_eq!(Backing::new(Path::new("/pool"), None).spare(&small), 7 * GIB);
    }
}
