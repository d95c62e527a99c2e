//! Reads directories, and explains errors of the kernel. Relative paths start at the watched directory, which is the
//! working directory of a watch's thread.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::MAX_DIRECTORIES;

/// Filesystems that the kernel generates: endless, and without notifications.
const GENERATED: [i64; 7] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6367_7270, // cgroup2
    0x0027_e0eb, // cgroup
    0x1cd1,      // devpts
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
];

pub(super) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

pub(super) fn same_file(one: &[u8], other: &[u8]) -> bool {
    let identity = |path: &[u8]| {
        let stat = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some((stat.st_dev, stat.st_ino))
    };
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// Names and kinds in a directory. Empty in a filesystem that the kernel generates.
pub(super) fn entries(path: &[u8]) -> Result<Vec<(Vec<u8>, FileType)>, Errno> {
    let path = if path.is_empty() { b"." } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    if GENERATED.contains(&rustix::fs::fstatfs(&dir)?.f_type) {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => rustix::fs::statat(dir.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)
                .map_or(FileType::Unknown, |s| FileType::from_raw_mode(s.st_mode)),
            kind => kind,
        };
        found.push((name.to_vec(), kind));
    }
    Ok(found)
}

pub(super) fn instance_refused(error: Errno) -> io::Error {
    match error {
        Errno::MFILE => io::Error::new(
            io::ErrorKind::QuotaExceeded,
            "the kernel has no inotify instance left for this bay (fs.inotify.max_user_instances of the host); end \
             programs in it that watch files, or raise the limit",
        ),
        other => other.into(),
    }
}

pub(super) fn watch_refused(error: Errno) -> io::Error {
    match error {
        Errno::NOSPC => io::Error::new(
            io::ErrorKind::QuotaExceeded,
            format!(
                "it has more directories than a watch may have ({MAX_DIRECTORIES}, or fs.inotify.max_user_watches of \
                 the host); watch a smaller directory, or without those below"
            ),
        ),
        other => other.into(),
    }
}
