//! Whether a bay's disk has room, found by asking the kernel for some.

use std::path::Path;

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

/// A disk with less room than this counts as full.
const ROOM: u64 = 1 << 20;

/// Whether room for [`ROOM`] bytes is refused, because of the bay's limit or because the pool is full. The counters of a
/// quota are minutes old; only an allocation tells. Its file has no name, so the bay never sees it, and the kernel frees
/// it here.
pub(super) fn is_full(state: &Path) -> bool {
    // The directory itself belongs to Workbay; root in the bay can write only below it.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::open(state, flags, Mode::empty()) else { return false };
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let allocated = rustix::fs::openat(&directory, ".", flags, Mode::RUSR)
        .and_then(|file| rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, ROOM));
    matches!(allocated, Err(Errno::NOSPC | Errno::DQUOT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_room_is_not_full_and_a_missing_one_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_full(dir.path()));
        assert!(!is_full(&dir.path().join("missing")));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
