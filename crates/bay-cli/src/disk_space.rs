//! Free space on the caller's disk for data from a bay. A bay can claim any length and send without end, so a copy
//! leaves a reserve, if the filesystem reports its free space.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use bay_types::{ApiError, ErrorCode};
use rustix::fs::{Mode, OFlags};

use crate::output::size;

/// Bytes that a copy leaves free on the caller's disk …
pub(crate) const RESERVE_BYTES: u64 = 64 << 20;
/// … but at most one part in this many of the whole disk, so that small disks are usable too.
pub(crate) const RESERVE_SHARE: u64 = 20;
/// What a new file, directory or link counts for besides its data: a block and its share of the metadata.
const MEMBER_BYTES: u64 = 8 << 10;
/// Inodes that a copy leaves free, but at most the same fraction of all.
const RESERVE_FILES: u64 = 10_000;
/// After this many bytes the free space is read again, because other processes write to the disk too.
const LOOK_AFTER: u64 = 16 << 20;

/// The filesystem of the directory that receives a copy.
#[derive(Debug)]
pub(crate) struct DiskSpace {
    directory: OwnedFd,
    /// Bytes that may be written before the free space is read again.
    left: u64,
}

/// The free space of a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Free {
    free: u64,
    reserve: u64,
    /// Free inodes. `None` if the filesystem does not count them.
    files: Option<u64>,
}

impl Free {
    fn usable(self) -> u64 {
        self.free.saturating_sub(self.reserve)
    }
}

impl DiskSpace {
    pub(crate) fn of(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self::below(rustix::fs::open(directory, flags, Mode::empty())?))
    }

    pub(crate) fn below(directory: OwnedFd) -> Self {
        Self { directory, left: 0 }
    }

    fn look(&self) -> io::Result<Free> {
        let found = rustix::fs::fstatvfs(self.directory.as_fd())?;
        let total = found.f_blocks.saturating_mul(found.f_frsize);
        Ok(Free {
            free: found.f_bavail.saturating_mul(found.f_frsize),
            reserve: RESERVE_BYTES.min(total / RESERVE_SHARE),
            files: (found.f_files > 0)
                .then(|| found.f_favail.saturating_sub(RESERVE_FILES.min(found.f_files / RESERVE_SHARE))),
        })
    }

    /// Refuses a copy that needs more than is free beside the reserve. For callers that have not written anything yet.
    pub(crate) fn require(&self, needed: u64, what: &str, place: &Path) -> Result<(), ApiError> {
        // If the filesystem does not report its free space, writing will fail when it is full.
        let Ok(found) = self.look() else { return Ok(()) };
        if needed <= found.usable() {
            return Ok(());
        }
        Err(ApiError::new(
            ErrorCode::NotEnough,
            format!(
                "{what} needs {}, and the disk with {} has {} free, of which {} are kept free; nothing was written",
                size(needed),
                place.display(),
                size(found.free),
                size(found.reserve)
            ),
            "free some space there, or copy to another disk",
        ))
    }

    /// Reserves space for a new file, directory or link.
    pub(crate) fn take_member(&mut self) -> io::Result<()> {
        if self.left < MEMBER_BYTES && self.look().is_ok_and(|found| found.files == Some(0)) {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "the disk has no room for more files: its inodes are used up",
            ));
        }
        self.take(MEMBER_BYTES)
    }

    /// Reserves space for bytes that are about to be written.
    pub(crate) fn take(&mut self, bytes: u64) -> io::Result<()> {
        if self.left < bytes {
            let Ok(found) = self.look() else { return Ok(()) };
            if found.usable() < bytes {
                return Err(io::Error::new(
                    io::ErrorKind::StorageFull,
                    format!(
                        "the disk has {} free, of which {} are kept free",
                        size(found.free),
                        size(found.reserve)
                    ),
                ));
            }
            // At most as many members as there are inodes before the next reading.
            let members = found.files.map_or(u64::MAX, |files| files.saturating_mul(MEMBER_BYTES));
            self.left = found.usable().min(LOOK_AFTER.min(members).max(bytes));
        }
        self.left -= bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_does_not_fit_is_refused_with_the_free_space() {
        let dir = tempfile::tempdir().unwrap();
        let mut space = DiskSpace::of(dir.path()).unwrap();
        space.require(1, "copying a", dir.path()).unwrap();
        space.take(1).unwrap();
        let error = space.require(u64::MAX, "copying b:huge", dir.path()).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotEnough);
        assert!(
            error.message.contains("copying b:huge needs") && error.message.contains("are kept free"),
            "{error:?}"
        );
        assert_eq!(space.take(u64::MAX).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
