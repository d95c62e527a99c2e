//! Resolves paths below a root, and below a directory in it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bay_sys::paths::open_below;
use bay_types::guest::WORKSPACE;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;

use super::{FileError, Result, kind_name};

/// Symbolic links that are followed in the last component of a path that is written; the same limit as in the kernel.
const MAX_LINKS: usize = 40;
/// How much of a path a message shows.
const SHOWN: usize = 256;

/// Where an archive is extracted.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) path: Vec<u8>,
    pub(super) parents: bool,
    pub(super) owner: (u32, u32),
}

/// A path, for messages.
pub(super) fn shown(path: &[u8]) -> String {
    let cut = path.len().min(SHOWN);
    let mut text = String::from_utf8_lossy(&path[..cut]).into_owned();
    if cut < path.len() {
        text.push('…');
    }
    text
}

/// Makes a path absolute. A relative path starts at the workspace.
pub(super) fn absolute(path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") {
        return path.to_vec();
    }
    [WORKSPACE.as_bytes(), b"/", path].concat()
}

/// Opens a path below the root, following symbolic links as a process in the bay would.
pub(crate) fn open(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    // `openat2` refuses flags that have no effect together.
    let quiet = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NOCTTY };
    Ok(open_below(root, absolute(path).as_slice(), flags | quiet, ResolveFlags::IN_ROOT)?)
}

pub(crate) fn stat(root: BorrowedFd<'_>, path: &[u8], follow: bool) -> Result<Stat> {
    let flags = if follow { OFlags::PATH } else { OFlags::PATH | OFlags::NOFOLLOW };
    open(root, path, flags)
        .and_then(|fd| Ok(rustix::fs::fstat(&fd)?))
        .map_err(|e| FileError::io("looking at", path, e))
}

/// The directory and the name under which a file is written.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) dir: OwnedFd,
    pub(crate) name: Vec<u8>,
    /// What has that name now.
    pub(crate) existing: Option<Stat>,
}

/// Finds where a file is written. Follows symbolic links, as `>` in a shell does.
pub(crate) fn slot(root: BorrowedFd<'_>, path: &[u8], parents: bool, owner: (u32, u32)) -> Result<Slot> {
    let mut at = absolute(path);
    for _ in 0..MAX_LINKS {
        let (parent, name) = split(&at).ok_or_else(|| FileError::refused(path, "it is a directory"))?;
        let dir = match open_dir(root, parent) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if !parents {
                    return Err(FileError::NoParent(shown(path)));
                }
                make_dirs(root, parent, owner)?
            }
            other => other.map_err(|e| FileError::io("opening the directory of", path, e))?,
        };
        let existing = match rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(e) => return Err(FileError::io("looking at", path, e)),
        };
        match existing.map(|s| (FileType::from_raw_mode(s.st_mode), s)) {
            None | Some((FileType::RegularFile, _)) => {
                return Ok(Slot { dir, name: name.to_vec(), existing });
            }
            Some((FileType::Symlink, _)) => {
                let target = rustix::fs::readlinkat(&dir, name, Vec::new())
                    .map_err(|e| FileError::io("reading the link", path, e))?
                    .into_bytes();
                at = if target.starts_with(b"/") { target } else { [parent, b"/", &target].concat() };
            }
            Some((_, stat)) => return Err(FileError::refused(path, format!("it is {}", kind_name(&stat)))),
        }
    }
    Err(FileError::refused(path, "too many symbolic links"))
}

/// The directory part and the last name. None if the path ends in something that can only be a directory.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = path.iter().rposition(|b| *b == b'/')?;
    let (parent, name) = (&path[..at], &path[at + 1..]);
    if matches!(name, b"" | b"." | b"..") {
        return None;
    }
    Some((if parent.is_empty() { b"/" } else { parent }, name))
}

fn open_dir(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    open(root, path, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Makes a directory and all missing directories above it.
pub(crate) fn make_dirs(root: BorrowedFd<'_>, path: &[u8], owner: (u32, u32)) -> Result<OwnedFd> {
    let path = absolute(path);
    let mut dir = open_dir(root, b"/").map_err(|e| FileError::io("opening", b"/", e))?;
    let mut so_far = Vec::new();
    for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty() && *n != b".") {
        so_far.push(b'/');
        so_far.extend_from_slice(name);
        dir = match open_dir(root, &so_far) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && name != b".." => {
                make_dir(dir.as_fd(), name, 0o755, owner).map_err(|e| FileError::io("making", &so_far, e))?;
                open_dir(root, &so_far)
            }
            other => other,
        }
        .map_err(|e| FileError::io("opening", &so_far, e))?;
    }
    Ok(dir)
}

pub(super) fn make_dir(parent: BorrowedFd<'_>, name: &[u8], mode: u32, owner: (u32, u32)) -> io::Result<()> {
    rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fresh = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    set_owner(fresh.as_fd(), owner)?;
    rustix::fs::fchmod(&fresh, Mode::from_raw_mode(mode))?;
    Ok(())
}

/// Changes the owner if it is different. So a guest that is not root (in tests) can write its own files.
pub(crate) fn set_owner(fd: BorrowedFd<'_>, (uid, gid): (u32, u32)) -> io::Result<()> {
    let stat = rustix::fs::fstat(fd)?;
    if (stat.st_uid, stat.st_gid) != (uid, gid) {
        rustix::fs::fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_where_a_file_can_be() {
        assert_eq!(split(b"/a/b"), Some((&b"/a"[..], &b"b"[..])));
        assert_eq!(split(b"/b"), Some((&b"/"[..], &b"b"[..])));
        for path in ["/", "/a/", "/a/.", "/a/.."] {
            assert_eq!(split(path.as_bytes()), None, "{path}");
        }
        assert_eq!(absolute(b"x"), b"/workspace/x");
    }
}
