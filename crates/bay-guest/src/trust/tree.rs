//! Reads and writes files below a root that the agent controls: bounded reads, writes by rename, no link followed out
//! of the root.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bay_sys::paths::open_below;
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;

use crate::spool;

/// Links that are followed in the last part of a path.
const MAX_LINKS: usize = 8;
/// Names of a directory that are read.
const MAX_NAMES: usize = 256;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

pub(super) fn invalid_data(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// The name of a file until it is complete.
pub(super) fn fresh(name: &str) -> String {
    format!(".{name}.workbay")
}

/// A root filesystem. Paths are relative to it.
#[derive(Clone, Copy)]
pub(crate) struct Tree<'a> {
    root: BorrowedFd<'a>,
}

impl<'a> Tree<'a> {
    pub(crate) fn new(root: BorrowedFd<'a>) -> Self {
        Self { root }
    }

    pub(super) fn root(&self) -> BorrowedFd<'a> {
        self.root
    }

    pub(crate) fn directory(&self, path: &str) -> io::Result<OwnedFd> {
        let path = if path.is_empty() { "." } else { path };
        Ok(open_below(self.root, path, DIRECTORY, ResolveFlags::IN_ROOT)?)
    }

    pub(super) fn has_directory(&self, path: &str) -> bool {
        self.directory(path).is_ok()
    }

    /// Opens a directory. Makes it and its parents if they do not exist.
    pub(crate) fn make_directory(&self, path: &str) -> io::Result<OwnedFd> {
        let mut at = self.directory("")?;
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        for end in ends.filter(|end| *end > 0) {
            at = match self.directory(&path[..end]) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let name = path[..end].rsplit('/').next().unwrap_or("");
                    rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755))?;
                    self.directory(&path[..end])?
                }
                other => other?,
            };
        }
        Ok(at)
    }

    /// The content of a regular file; links to it are followed. None if there is no such file.
    pub(super) fn read(&self, path: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        match open_below(self.root, path, flags, ResolveFlags::IN_ROOT) {
            Ok(file) => read_whole(file, most).map(Some),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces the file at the path, or the target if that is a link. A file with this content stays as it is.
    pub(super) fn write(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let mut path = path.to_owned();
        for _ in 0..=MAX_LINKS {
            let (parent, name) = path.rsplit_once('/').unwrap_or(("", &path));
            let directory = self.make_directory(parent)?;
            match rustix::fs::readlinkat(&directory, name, Vec::new()) {
                Ok(link) => {
                    let link = link.into_string().map_err(|_| invalid_data("a link that is no text"))?;
                    path = match link.strip_prefix('/') {
                        Some(absolute) => absolute.trim_start_matches('/').to_owned(),
                        None => format!("{parent}/{link}"),
                    };
                }
                Err(Errno::INVAL | Errno::NOENT) => return write_in(directory.as_fd(), name, bytes),
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::LOOP.into())
    }

    /// The first names in a directory that are not hidden. Empty if it is not a directory.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let Ok(directory) = self.directory(path).and_then(|fd| Ok(Dir::new(fd)?)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = directory
            .take(MAX_NAMES)
            .filter_map(|entry| entry.ok()?.file_name().to_str().map(str::to_owned).ok())
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        names
    }
}

/// The content of a regular file in this directory; links are not followed.
pub(crate) fn read_in(directory: BorrowedFd<'_>, name: &str, most: u64) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty()).ok()?;
    read_whole(file, most).ok()
}

fn read_whole(file: OwnedFd, most: u64) -> io::Result<Vec<u8>> {
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(invalid_data("something else than a file has its place"));
    }
    let mut bytes = Vec::new();
    File::from(file).take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(invalid_data("the file is too long"));
    }
    Ok(bytes)
}

/// Replaces what has this name by a file that everybody may read. A file with this content stays as it is.
pub(crate) fn write_in(directory: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> io::Result<()> {
    write_owned_in(directory, name, bytes, None)
}

/// Replaces what has this name by a file that only its owner may read. An existing file is always replaced, because
/// others could have read it.
pub(crate) fn write_private_in(
    directory: BorrowedFd<'_>,
    name: &str,
    bytes: &[u8],
    owner: (Uid, Gid),
) -> io::Result<()> {
    replace_in(directory, name, bytes, Mode::from_raw_mode(0o600), Some(owner))
}

/// Replaces what has this name by a file that has its owner from the beginning.
pub(super) fn write_owned_in(
    directory: BorrowedFd<'_>,
    name: &str,
    bytes: &[u8],
    owner: Option<(Uid, Gid)>,
) -> io::Result<()> {
    if read_in(directory, name, bytes.len() as u64).is_some_and(|old| old == bytes) {
        return Ok(());
    }
    replace_in(directory, name, bytes, Mode::from_raw_mode(0o644), owner)
}

fn replace_in(
    directory: BorrowedFd<'_>,
    name: &str,
    bytes: &[u8],
    mode: Mode,
    owner: Option<(Uid, Gid)>,
) -> io::Result<()> {
    let fresh = fresh(name);
    spool::remove_tree(directory, fresh.as_bytes())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let written = rustix::fs::openat(directory, &fresh, flags, mode)
        .map_err(io::Error::from)
        .and_then(|file| {
            // Independent of the umask.
            rustix::fs::fchmod(&file, mode)?;
            if let Some((user, group)) = owner {
                rustix::fs::fchown(&file, Some(user), Some(group))?;
            }
            File::from(file).write_all(bytes)
        })
        .and_then(|()| Ok(rustix::fs::renameat(directory, &fresh, directory, name)?));
    if written.is_err() {
        let _ = rustix::fs::unlinkat(directory, &fresh, AtFlags::empty());
    }
    written
}

/// Removes a name. Succeeds if it does not exist.
pub(crate) fn remove_in(directory: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
