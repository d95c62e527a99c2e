//! Closing the pool's directory below `/sys/fs/btrfs` to bays. There the kernel shows how much each subvolume, and
//! so each bay, holds, how full the pool is, and how often it was written. By default every user and every bay can
//! read it, so a bay could send data to another by writing and deleting files.
//!
//! A mount over the directory would not help: root in a bay can remove it, or mount sysfs again. The mode of the
//! directory applies wherever sysfs is mounted, and root in a bay has no id that could bypass or change it.

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;

use bay_sys::btrfs;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, fchmod, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::error::{Doing, Result};

/// The kernel's directory of all btrfs filesystems, below the top of sysfs.
const FILESYSTEMS: &str = "fs/btrfs";

/// Closes the directory of the filesystem at `base` to everybody but the host's root. The kernel makes it anew with
/// every mount, so every opening of the pool does this.
pub(crate) fn hide_from_bays(base: &Path) -> Result<()> {
    let doing = || format!("close what sysfs shows of {} to bays", base.display());
    let id = btrfs::filesystem_id(File::open(base).doing(doing)?).doing(doing)?;
    let inside = format!("{FILESYSTEMS}/{}", dashed(id));
    let close = |found: rustix::io::Result<OwnedFd>| match found {
        Ok(shown) => fchmod(shown, Mode::RWXU),
        Err(error) => Err(error),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Sysfs may be missing here or be mounted read-only; bays can mount their own.
    match close(openat(CWD, format!("/sys/{inside}"), flags, Mode::empty())) {
        Err(Errno::NOENT | Errno::ROFS) => {}
        closed => return closed.doing(doing),
    }
    match close(openat(own_sysfs().doing(doing)?, &inside, flags, Mode::empty())) {
        // A kernel without this directory has nothing to hide.
        Err(Errno::NOENT) => Ok(()),
        closed => closed.doing(doing),
    }
}

/// A detached mount of sysfs.
fn own_sysfs() -> rustix::io::Result<OwnedFd> {
    let config = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&config)?;
    fsmount(&config, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// A filesystem id in the kernel's format.
pub(crate) fn dashed(id: [u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in id.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_as_the_kernel_writes_them() {
        let id = std::array::from_fn(|at| u8::try_from(at).unwrap() * 0x11);
        assert_eq!(dashed(id), "00112233-4455-6677-8899-aabbccddeeff");
    }
}
