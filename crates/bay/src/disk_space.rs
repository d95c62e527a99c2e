//! Room on the caller's disk for what comes out of a bay. A bay can claim any length and send without end: the disk is never
//! filled to the last byte for it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use bay_types::{ApiError, ErrorCode};
use rustix::fs::{Mode, OFlags};

use crate::output::size;

/// What a copy leaves free on the caller's disk …
pub(crate) const RESERVE_BYTES: u64 = 64 << 20;
/// … but at most this part of the whole disk, so that small disks can be used too.
pub(crate) const RESERVE_SHARE: u64 = 20;
/// What a file, a directory or a link takes at least, however short it is: a block and its share of the metadata.
const MEMBER_BYTES: u64 = 8 << 10;
/// Files that a copy leaves room for, but at most the same part of all.
const RESERVE_FILES: u64 = 10_000;
/// After so many bytes the disk is looked at again: others write to it too.
const LOOK_AFTER: u64 = 16 << 20;

/// The filesystem of a directory that receives a copy.
#[derive(Debug)]
pub(crate) struct DiskSpace {
    directory: OwnedFd,
    /// Bytes that may be written before the disk is looked at again.
    left: u64,
}

/// What a filesystem has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Free {
    free: u64,
    reserve: u64,
    /// Files that may still be made; nothing where the filesystem has no such number.
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

    /// Refuses what does not fit, before anything is written.
    pub(crate) fn require(&self, needed: u64, what: &str, place: &Path) -> Result<(), ApiError> {
        // A filesystem that does not say how full it is says so when it is full.
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

    /// Takes room for a file, a directory or a link that is about to be made.
    pub(crate) fn take_member(&mut self) -> io::Result<()> {
        if self.left < MEMBER_BYTES && self.look().is_ok_and(|found| found.files == Some(0)) {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "the disk has no room for more files: its inodes are used up",
            ));
        }
        self.take(MEMBER_BYTES)
    }

    /// Takes room for bytes that are about to be written.
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
            // Not more members than there is room for before the next look.
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
    fn what_does_not_fit_is_refused_with_what_is_there() {
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
