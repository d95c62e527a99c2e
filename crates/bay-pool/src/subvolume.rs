//! Subvolumes by path, and removal.
//!
//! A removal renames the path into `trash/`, after which nobody sees it any more, and then destroys it there. The
//! next sweep finishes an interrupted removal.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bay_sys::btrfs::{self, Qgroup, Subvolume};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Doing, PoolError, Result};

/// Deepest nesting of directories that a removal follows.
const MAX_DEPTH: usize = 64;

pub(crate) fn open_dir(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

pub(crate) fn parent_and_name(path: &Path) -> io::Result<(File, &OsStr)> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok((open_dir(parent)?, name)),
        _ => Err(io::Error::from(Errno::INVAL)),
    }
}

/// Makes an empty subvolume with this mode, if it does not exist.
pub(crate) fn create(path: &Path, mode: u32, group: Option<Qgroup>) -> Result<()> {
    let made = parent_and_name(path).and_then(|(parent, name)| btrfs::subvolume_create(&parent, name, group));
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        other => other.doing(|| format!("make the subvolume {}", path.display()))?,
    }
    rustix::fs::chmod(path, Mode::from_raw_mode(mode)).doing(|| format!("set the mode of {}", path.display()))
}

/// Makes a writable snapshot of a subvolume, if it does not exist.
pub(crate) fn snapshot(source: &Path, path: &Path, group: Option<Qgroup>) -> Result<()> {
    let made = open_dir(source).and_then(|source| {
        let (parent, name) = parent_and_name(path)?;
        btrfs::snapshot(&source, &parent, name, false, group)
    });
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.doing(|| format!("snapshot {} as {}", source.display(), path.display())),
    }
}

pub(crate) fn seal(path: &Path) -> Result<()> {
    open_dir(path)
        .and_then(|top| btrfs::set_read_only(&top, true))
        .doing(|| format!("make {} read-only", path.display()))
}

pub(crate) fn info(path: &Path) -> Result<Subvolume> {
    open_dir(path).and_then(|top| btrfs::subvolume_info(&top)).doing(|| format!("look at {}", path.display()))
}

pub(crate) fn exists(path: &Path) -> bool {
    std::fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_dir() && found.ino() == btrfs::SUBVOLUME_ROOT_INODE)
}

/// Destroys the subvolume at `path` with all subvolumes inside it.
fn destroy(path: &Path) -> io::Result<()> {
    let (parent, name) = parent_and_name(path)?;
    match btrfs::subvolume_destroy(&parent, name) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
        other => return other,
    }
    // No process in a bay can make subvolumes. If one exists anyway, it must not prevent the removal.
    let id = btrfs::subvolume_info(open_dir(path)?)?.id;
    for child in btrfs::subvolume_children(&parent, id)? {
        destroy_by_id(&parent, child, 0)?;
    }
    btrfs::subvolume_destroy(&parent, name)
}

fn destroy_by_id(filesystem: &File, id: u64, depth: usize) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(io::Error::from(Errno::LOOP));
    }
    for child in btrfs::subvolume_children(filesystem, id)? {
        destroy_by_id(filesystem, child, depth + 1)?;
    }
    match btrfs::subvolume_destroy_by_id(filesystem, id) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes a file, a directory or a subvolume with its contents. Harmless if there is nothing.
pub(crate) fn remove_all(path: &Path) -> Result<()> {
    match remove_entry(path, 0) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.doing(|| format!("remove {}", path.display())),
    }
}

fn remove_entry(path: &Path, depth: usize) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(io::Error::from(Errno::LOOP));
    }
    let found = std::fs::symlink_metadata(path)?;
    if !found.is_dir() {
        return std::fs::remove_file(path);
    }
    if found.ino() == btrfs::SUBVOLUME_ROOT_INODE {
        return destroy(path);
    }
    for entry in std::fs::read_dir(path)? {
        match remove_entry(&entry?.path(), depth + 1) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    std::fs::remove_dir(path)
}

/// The directory for removed paths until they are destroyed.
#[derive(Debug, Clone)]
pub(crate) struct Trash {
    dir: PathBuf,
}

impl Trash {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Moves `path` away at once, and destroys it. Harmless if there is nothing.
    pub(crate) fn remove(&self, path: &Path) -> Result<()> {
        let name = path.file_name().ok_or_else(|| PoolError::Io {
            doing: format!("remove {}", path.display()),
            source: io::Error::from(Errno::INVAL),
        })?;
        let mut unique = name.to_owned();
        unique.push(format!("-{}", bay_types::BayId::generate().short()));
        let aside = self.dir.join(unique);
        match std::fs::rename(path, &aside) {
            Ok(()) => remove_all(&aside),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error).doing(|| format!("move {} to the trash", path.display())),
        }
    }

    /// Finishes interrupted removals. One that fails is logged and stays for the next time.
    pub(crate) fn empty(&self) -> Result<()> {
        for path in entries(&self.dir)? {
            if let Err(error) = remove_all(&path) {
                tracing::warn!(path = %path.display(), error = %bay_types::error::chain(&error), "could not empty the trash");
            }
        }
        Ok(())
    }
}

/// The paths in a directory, sorted by name.
pub(crate) fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).doing(|| format!("list {}", dir.display()))? {
        paths.push(entry.doing(|| format!("list {}", dir.display()))?.path());
    }
    paths.sort();
    Ok(paths)
}
