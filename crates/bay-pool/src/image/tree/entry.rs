//! Copying one entry of a tree: contents, owner, mode, attributes, times, links.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use bay_sys::identity::ActingThread;
use bay_sys::paths::open_below;
use bay_types::runtime::ID_RANGE;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::{BUFFER, Entry, Rights, Tally, Task, Worker};
use crate::error::{Doing, Result};
use crate::files::retry;

/// The kernel's limit on extended attributes.
const XATTR_MAX: usize = 64 * 1024;

impl Worker<'_, '_> {
    pub(super) fn entry(
        &mut self,
        task: &Task,
        source: &OwnedFd,
        target: &OwnedFd,
        entry: &Entry,
        path: PathBuf,
    ) -> io::Result<()> {
        let tally = self.work.tally;
        let name = entry.name.as_slice();
        match FileType::from_raw_mode(entry.stat.st_mode) {
            FileType::Directory => {
                match rustix::fs::mkdirat(target, name, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                Tally::count(&tally.files, 1);
                let entered = self.enter(task, source, entry).map_err(io::Error::other)?;
                let Some(child) = entered else {
                    // Its name and metadata are visible in its parent, so they are copied.
                    let made = open_child_dir(target, name)?;
                    return set_dir(&made, &entry.stat);
                };
                let device = rustix::fs::fstat(&child)?.st_dev;
                self.work.queue.push(Task { tree: task.tree, path, device });
                Ok(())
            }
            FileType::RegularFile => {
                let into = self.work.walk.trees[task.tree].into.join(&path);
                self.file(source, target, entry, &into)
            }
            FileType::Symlink => self.symlink(source, target, entry),
            _ => {
                Tally::count(&tally.special, 1);
                Ok(())
            }
        }
    }

    fn symlink(&mut self, source: &OwnedFd, target: &OwnedFd, entry: &Entry) -> io::Result<()> {
        let name = entry.name.as_slice();
        let link =
            self.as_user(|| rustix::fs::readlinkat(source, name, Vec::new())).map_err(io::Error::other)?;
        let Ok(link) = link else {
            Tally::count(&self.work.tally.denied, 1);
            return Ok(());
        };
        replacing(target, name, || rustix::fs::symlinkat(link.as_c_str(), target, name))?;
        let (uid, gid) = owner(&entry.stat);
        rustix::fs::chownat(target, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        rustix::fs::utimensat(target, name, &times(&entry.stat), AtFlags::SYMLINK_NOFOLLOW)?;
        Tally::count(&self.work.tally.files, 1);
        Ok(())
    }

    fn file(&mut self, source: &OwnedFd, target: &OwnedFd, entry: &Entry, into: &Path) -> io::Result<()> {
        let name = entry.name.as_slice();
        let tally = self.work.tally;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = self
            .as_user(|| retry(|| rustix::fs::openat(source, name, flags, Mode::empty())))
            .map_err(io::Error::other)?;
        let from = match opened {
            Ok(from) => from,
            Err(Errno::NOENT) => return Ok(()),
            Err(_) => {
                Tally::count(&tally.denied, 1);
                return Ok(());
            }
        };
        let stat = rustix::fs::fstat(&from)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            Tally::count(&tally.special, 1);
            return Ok(());
        }
        let create = || {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            replacing(target, name, || rustix::fs::openat(target, name, flags, Mode::RUSR | Mode::WUSR))
        };
        let to = if stat.st_nlink > 1 {
            let mut links = self.work.links.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(first) = links.get(&(stat.st_dev, stat.st_ino)) {
                let top = self.work.target.ok_or(Errno::BADF)?;
                replacing(target, name, || rustix::fs::linkat(top, first, target, name, AtFlags::empty()))?;
                Tally::count(&tally.files, 1);
                return Ok(());
            }
            let to = create()?;
            links.insert((stat.st_dev, stat.st_ino), into.to_owned());
            to
        } else {
            create()?
        };
        Tally::count(&tally.files, 1);
        if !self.contents(&from, &to, &stat)? {
            Tally::count(&tally.unreadable, 1);
        }
        let (uid, gid) = owner(&stat);
        rustix::fs::fchown(&to, Some(uid), Some(gid))?;
        rustix::fs::fchmod(&to, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
        copy_xattrs(&from, &to)?;
        rustix::fs::futimens(&to, &times(&stat))?;
        Ok(())
    }

    /// Copies the contents; `false` if the source could not be read to its end.
    fn contents(&mut self, from: &OwnedFd, to: &OwnedFd, stat: &Stat) -> io::Result<bool> {
        let size = stat.st_size as u64;
        if size == 0 {
            return Ok(true);
        }
        if self.work.share.load(Ordering::Relaxed) {
            match rustix::fs::ioctl_ficlone(to, from) {
                Ok(()) => {
                    Tally::count(&self.work.tally.bytes, size);
                    return Ok(true);
                }
                Err(Errno::NOSPC) => return Err(Errno::NOSPC.into()),
                Err(_) => self.work.share.store(false, Ordering::Relaxed),
            }
        }
        let holes = (stat.st_blocks as u64).saturating_mul(512) < size && size > 4096;
        if holes { self.with_holes(from, to, size) } else { self.span(from, to, 0, size) }
    }

    /// Copies only the parts that hold data.
    fn with_holes(&mut self, from: &OwnedFd, to: &OwnedFd, size: u64) -> io::Result<bool> {
        rustix::fs::ftruncate(to, size)?;
        let mut at = 0_u64;
        while at < size {
            let start = match rustix::fs::seek(from, rustix::fs::SeekFrom::Data(at)) {
                Ok(start) => start,
                // There is only a hole until the end.
                Err(Errno::NXIO) => break,
                Err(_) => return self.span(from, to, at, size),
            };
            let end = rustix::fs::seek(from, rustix::fs::SeekFrom::Hole(start)).unwrap_or(size).min(size);
            if end <= start {
                break;
            }
            if !self.span(from, to, start, end)? {
                return Ok(false);
            }
            at = end;
        }
        Ok(true)
    }

    fn span(&mut self, from: &OwnedFd, to: &OwnedFd, start: u64, end: u64) -> io::Result<bool> {
        let mut at = start;
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(BUFFER).min(self.buffer.len());
            let got = match retry(|| rustix::io::pread(from, &mut self.buffer[..want], at)) {
                Ok(0) => return Ok(true),
                Ok(got) => got,
                Err(_) => return Ok(false),
            };
            let mut written = 0;
            while written < got {
                let place = at + written as u64;
                let count = retry(|| rustix::io::pwrite(to, &self.buffer[written..got], place))?;
                if count == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                written += count;
            }
            at += got as u64;
            Tally::count(&self.work.tally.bytes, got as u64);
            if self.work.queue.stop.load(Ordering::Relaxed) {
                // Another thread failed and reports the error; this copy is discarded.
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Opens a path below a directory without leaving it or following a symbolic link.
pub(crate) fn open_beneath(root: impl AsFd, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    open_below(root, path, flags, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

/// Makes an entry, replacing an existing one.
pub(crate) fn replacing<T>(
    target: &OwnedFd,
    name: &[u8],
    make: impl Fn() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    match make() {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(target, name, AtFlags::empty())?;
            make()
        }
        other => other,
    }
}

fn open_child_dir(target: &OwnedFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(target, name, flags, Mode::empty())
}

/// User and group ids outside of a bay's range become `nobody`.
fn owner(stat: &Stat) -> (Uid, Gid) {
    (Uid::from_raw(mapped_id(stat.st_uid)), Gid::from_raw(mapped_id(stat.st_gid)))
}

pub(crate) fn mapped_id(id: u32) -> u32 {
    if id < ID_RANGE { id } else { bay_sys::identity::NOBODY }
}

fn times(stat: &Stat) -> Timestamps {
    let modified = Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as _ };
    Timestamps { last_access: modified, last_modification: modified }
}

fn set_dir(directory: &OwnedFd, stat: &Stat) -> io::Result<()> {
    let (uid, gid) = owner(stat);
    rustix::fs::fchown(directory, Some(uid), Some(gid))?;
    rustix::fs::fchmod(directory, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    rustix::fs::futimens(directory, &times(stat))?;
    Ok(())
}

pub(super) fn finish_dir(source: &OwnedFd, target: &OwnedFd) -> io::Result<()> {
    copy_xattrs(source, target)?;
    set_dir(target, &rustix::fs::fstat(source)?)
}

/// Extended attributes that have the same meaning in a bay: file capabilities, ACLs, the user's own.
pub(crate) fn wanted_xattr(name: &[u8]) -> bool {
    name == b"security.capability" || name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_")
}

fn copy_xattrs(from: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
    let mut names = Vec::with_capacity(256);
    match rustix::fs::flistxattr(from, rustix::buffer::spare_capacity(&mut names)) {
        Ok(_) => {}
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(Errno::RANGE) => {
            names.reserve(XATTR_MAX);
            rustix::fs::flistxattr(from, rustix::buffer::spare_capacity(&mut names))?;
        }
        Err(error) => return Err(error.into()),
    }
    for name in names.split(|byte| *byte == 0).filter(|name| wanted_xattr(name)) {
        let mut value = Vec::with_capacity(XATTR_MAX);
        match rustix::fs::fgetxattr(from, name, rustix::buffer::spare_capacity(&mut value)) {
            Ok(_) => {}
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => continue,
            Err(error) => return Err(error.into()),
        }
        match rustix::fs::fsetxattr(to, name, &value, XattrFlags::empty()) {
            // If the pool's filesystem does not support an attribute, the file is still copied.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Opens a file with a user's rights.
pub(crate) fn open_as(path: &Path, rights: Rights) -> Result<io::Result<File>> {
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let acting = ActingThread::begin(rights.uid, rights.gid)
                    .doing(|| format!("act as user {}", rights.uid))?;
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                acting
                    .act(|| rustix::fs::open(path, flags, Mode::empty()))
                    .doing(|| format!("act as user {}", rights.uid))
                    .map(|opened| opened.map(File::from).map_err(io::Error::from))
            })
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Reads a small file, and refuses one larger than `most`.
pub(crate) fn read_small(file: &mut File, most: u64) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    file.take(most + 1).read_to_end(&mut contents)?;
    if contents.len() as u64 > most {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(contents)
}
