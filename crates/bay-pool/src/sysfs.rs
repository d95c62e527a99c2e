//! What the kernel shows of the pool below `/sys/fs/btrfs`: how much each subvolume and so each bay holds, how full the
//! pool is, how often it was written. Any user of the host can read that by default, and so can every bay: a bay that
//! writes and deletes could send data to another one that reads its numbers.
//!
//! A mount over the directory would not help: root in a bay can remove it, or mount sysfs anew. The mode of the directory
//! holds wherever sysfs is mounted, and root in a bay has no id that could pass or change it.

use std::fs::File;
use std::path::Path;

use bay_sys::btrfs;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, fchmod, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::changes::dashed;
use crate::error::{Doing, Result};

/// Where the kernel shows each btrfs, below the top of sysfs.
const FILESYSTEMS: &str = "fs/btrfs";

/// Closes what is shown of the filesystem at `base` to everybody but the host's root. The kernel shows it anew with every
/// mount of the filesystem, so this is done with every opening of the pool.
pub(crate) fn hide_from_bays(base: &Path) -> Result<()> {
    let doing = || format!("close what sysfs shows of {} to bays", base.display());
    let id = btrfs::filesystem_id(File::open(base).doing(doing)?).doing(doing)?;
    let inside = format!("{FILESYSTEMS}/{}", dashed(id));
    let close = |found: rustix::io::Result<OwnedFd>| match found {
        Ok(shown) => fchmod(shown, Mode::RWXU),
        Err(error) => Err(error),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Sysfs may not be mounted here, or read-only; in bays it is all the same.
    match close(openat(CWD, format!("/sys/{inside}"), flags, Mode::empty())) {
        Err(Errno::NOENT | Errno::ROFS) => {}
        closed => return closed.doing(doing),
    }
    match close(openat(own_sysfs().doing(doing)?, &inside, flags, Mode::empty())) {
        // A kernel that shows nothing has nothing to hide.
        Err(Errno::NOENT) => Ok(()),
        closed => closed.doing(doing),
    }
}

/// A mount of sysfs that is attached nowhere.
fn own_sysfs() -> rustix::io::Result<OwnedFd> {
    let config = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&config)?;
    fsmount(&config, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}
