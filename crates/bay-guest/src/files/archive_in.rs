//! Extracts a tar stream into a directory of the bay.
//!
//! Every member is made below the target directory, through descriptors that the kernel resolved with
//! `RESOLVE_BENEATH`. So absolute names, names with `..`, and names behind a symbolic link that leads out are refused,
//! whatever the archive made before.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bay_types::guest::DELETE_LIST;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::file::write_data;
use super::path::{self, Target, shown};
use super::tar_entry::{self, Kind, Member};
use super::{CHUNK, FileError, Result, Source};
use crate::spool::remove_tree;

/// Longest member. Also limits the damage of a header that claims a wrong size.
const MAX_MEMBER: u64 = 64 << 30;
/// Directories of members that are kept open. Members usually come in the order of a directory walk.
const OPEN_PARENTS: usize = 8;

pub(super) fn extract(root: BorrowedFd<'_>, target: &Target, source: Source) -> Result<()> {
    let dir = match path::open(root, &target.path, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(dir) => dir,
        Err(e) if e.kind() == io::ErrorKind::NotFound && target.parents => {
            path::make_dirs(root, &target.path, target.owner)?
        }
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
            return Err(FileError::refused(&target.path, "it is not a directory"));
        }
        Err(e) => return Err(FileError::io("opening", &target.path, e)),
    };
    let mut place =
        ExecContext { dir, owner: target.owner, parents: VecDeque::new(), buffer: vec![0; CHUNK] };
    let mut first = true;
    tar_entry::for_each(source, |member, content| {
        if std::mem::take(&mut first) && member.name == DELETE_LIST.as_bytes() && member.kind == Kind::File {
            for name in tar_entry::delete_list(content)? {
                place.delete(&name)?;
            }
            return Ok(());
        }
        place.make(member, content)
    })
}

struct ExecContext {
    dir: OwnedFd,
    owner: (u32, u32),
    /// Recently used directories by their name; the most recent is at the front.
    parents: VecDeque<(Vec<u8>, OwnedFd)>,
    buffer: Vec<u8>,
}

impl ExecContext {
    fn make(&mut self, member: &Member, content: &mut dyn Read) -> Result<()> {
        let Some((parent, name)) = split(&member.name)? else {
            // The target directory itself.
            return Ok(());
        };
        let failed = |e: io::Error| FileError::io("extracting", &member.name, e);
        let dir = self.parent(&parent)?;
        match &member.kind {
            Kind::Directory => self.make_directory(dir.as_fd(), &name, member),
            Kind::Symlink(target) => {
                self.clear(dir.as_fd(), &name, member)?;
                rustix::fs::symlinkat(target.as_slice(), &dir, &name).map_err(|e| failed(e.into()))?;
                let (uid, gid) = self.owner;
                if rustix::process::geteuid().is_root() {
                    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
                    rustix::fs::chownat(&dir, &name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                        .map_err(|e| failed(e.into()))?;
                }
                Ok(())
            }
            Kind::HardLink(target) => {
                let (from_parent, from) = split(target)?
                    .ok_or_else(|| FileError::Archive("a hard link to a directory".to_owned()))?;
                let from_dir = self.parent(&from_parent)?;
                let stat = rustix::fs::statat(&from_dir, &from, AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(|e| FileError::io("linking to", target, e))?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Err(FileError::Archive(format!(
                        "the hard link {} is not to a file",
                        shown(&member.name)
                    )));
                }
                self.clear(dir.as_fd(), &name, member)?;
                rustix::fs::linkat(&from_dir, &from, &dir, &name, AtFlags::empty())
                    .map_err(|e| failed(e.into()))
            }
            Kind::File => {
                if member.size > MAX_MEMBER {
                    let why = format!("{} is longer than {} GiB", shown(&member.name), MAX_MEMBER >> 30);
                    return Err(FileError::Archive(why));
                }
                self.put_file(dir.as_fd(), &name, member, content)
            }
        }
    }

    /// Writes a file. An existing file with the name stays until the new one is complete, and a transfer that breaks
    /// off leaves nothing of it.
    fn put_file(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        member: &Member,
        content: &mut dyn Read,
    ) -> Result<()> {
        let failed = |e: Errno| FileError::io("extracting", &member.name, e);
        let open = |name: &[u8]| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)
        };
        // Most names are new. A new file is written under its final name.
        let (fd, beside) = match open(name) {
            Err(Errno::EXIST) => {
                let there = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
                if FileType::from_raw_mode(there.st_mode) == FileType::Directory {
                    return Err(FileError::refused(&member.name, "a directory is in the way"));
                }
                let beside = format!(".bay-part-{}", bay_types::ExecId::generate()).into_bytes();
                (open(&beside).map_err(failed)?, Some(beside))
            }
            opened => (opened.map_err(failed)?, None),
        };
        let written = self.fill_file(&File::from(fd), member, content).and_then(|()| match &beside {
            Some(beside) => rustix::fs::renameat(dir, beside.as_slice(), dir, name).map_err(failed),
            None => Ok(()),
        });
        if written.is_err() {
            let _ = rustix::fs::unlinkat(dir, beside.as_deref().unwrap_or(name), AtFlags::empty());
        }
        written
    }

    fn make_directory(&self, dir: BorrowedFd<'_>, name: &[u8], member: &Member) -> Result<()> {
        let failed = |e: io::Error| FileError::io("extracting", &member.name, e);
        match path::make_dir(dir, name, member.mode, self.owner) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other.map_err(failed),
        }
        // An existing directory stays, even if it is a link to a directory below the target. Anything else is replaced.
        match self.open_below(&member.name) {
            Ok(existing) => {
                let mode = Mode::from_raw_mode(member.mode);
                rustix::fs::fchmod(&existing, mode).map_err(|e| failed(e.into()))
            }
            Err(_) => {
                self.clear(dir, name, member)?;
                path::make_dir(dir, name, member.mode, self.owner).map_err(failed)
            }
        }
    }

    fn fill_file(&mut self, file: &File, member: &Member, content: &mut dyn Read) -> Result<()> {
        let failed = |e: io::Error| FileError::io("extracting", &member.name, e);
        let mut left = member.size;
        while left > 0 {
            let got = match content.read(&mut self.buffer) {
                Ok(0) => {
                    return Err(FileError::Archive(format!(
                        "it ends in the middle of {}",
                        shown(&member.name)
                    )));
                }
                Ok(got) => got,
                Err(_) => return Err(FileError::BrokeOff),
            };
            write_data(file, member.size - left, &self.buffer[..got]).map_err(failed)?;
            left = left.saturating_sub(got as u64);
        }
        // A hole at the end has no write of its own.
        file.set_len(member.size).map_err(failed)?;
        let finish = || -> io::Result<()> {
            // The owner first, because changing it removes the set-user-id bits.
            path::set_owner(file.as_fd(), self.owner)?;
            rustix::fs::fchmod(file, Mode::from_raw_mode(member.mode))?;
            let time = Timespec { tv_sec: member.mtime, tv_nsec: 0 };
            rustix::fs::futimens(file, &Timestamps { last_access: time, last_modification: time })?;
            Ok(())
        };
        finish().map_err(failed)
    }

    /// Removes a file or link with the name. A directory is not replaced by something else.
    fn clear(&self, dir: BorrowedFd<'_>, name: &[u8], member: &Member) -> Result<()> {
        match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR) => Err(FileError::refused(&member.name, "a directory is in the way")),
            Err(e) => Err(FileError::io("replacing", &member.name, e)),
        }
    }

    fn delete(&mut self, name: &[u8]) -> Result<()> {
        let Some((parent, last)) = split(name)? else {
            return Err(FileError::Archive(
                "the list of paths to delete names the directory itself".to_owned(),
            ));
        };
        let parent = match self.open_below(&parent) {
            Ok(dir) => dir,
            // The name does not exist, so there is nothing to delete.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(());
            }
            Err(e) => return Err(FileError::io("deleting", name, e)),
        };
        remove_tree(parent.as_fd(), &last).map_err(|e| FileError::io("deleting", name, e))
    }

    /// The directory for members of that name. Made if it does not exist.
    fn parent(&mut self, name: &[u8]) -> Result<OwnedFd> {
        let failed = |e: io::Error| FileError::io("extracting into", name, e);
        if let Some(at) = self.parents.iter().position(|(known, _)| known == name) {
            return self.parents[at].1.try_clone().map_err(failed);
        }
        let dir = match self.open_below(name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.make_parents(name)?,
            other => other.map_err(failed)?,
        };
        let copy = dir.try_clone().map_err(failed)?;
        self.parents.push_front((name.to_vec(), dir));
        self.parents.truncate(OPEN_PARENTS);
        Ok(copy)
    }

    /// Iterative, from the top down: a name may have thousands of parts.
    fn make_parents(&self, name: &[u8]) -> Result<OwnedFd> {
        let failed = |e: io::Error| FileError::io("extracting into", name, e);
        let mut dir = self.open_below(b"").map_err(failed)?;
        let mut so_far = Vec::with_capacity(name.len());
        for part in name.split(|b| *b == b'/') {
            if !so_far.is_empty() {
                so_far.push(b'/');
            }
            so_far.extend_from_slice(part);
            dir = match self.open_below(&so_far) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    path::make_dir(dir.as_fd(), part, 0o755, self.owner).map_err(failed)?;
                    self.open_below(&so_far)
                }
                other => other,
            }
            .map_err(failed)?;
        }
        Ok(dir)
    }

    fn open_below(&self, name: &[u8]) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let name = if name.is_empty() { b".".as_slice() } else { name };
        Ok(bay_sys::paths::open_below(&self.dir, name, flags, ResolveFlags::BENEATH)?)
    }
}

/// The directory part and the last part of a member's name, without `.` and doubled slashes. None for the directory
/// itself.
fn split(name: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
    if name.starts_with(b"/") {
        return Err(FileError::Archive(format!("{} is an absolute name", shown(name))));
    }
    let mut parts: Vec<&[u8]> = name.split(|b| *b == b'/').filter(|p| !p.is_empty() && *p != b".").collect();
    if parts.contains(&&b".."[..]) || name.contains(&0) {
        return Err(FileError::Archive(format!("{} leads out of the directory", shown(name))));
    }
    let last = parts.pop();
    Ok(last.map(|last| (parts.join(&b'/'), last.to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_names_are_split_and_hostile_ones_refused() {
        let part = |n: &str| {
            split(n.as_bytes()).map(|p| p.map(|(a, b)| (String::from_utf8(a), String::from_utf8(b))))
        };
        assert_eq!(part("./a//b/./c/").unwrap(), Some((Ok("a/b".into()), Ok("c".into()))));
        assert_eq!(part("a").unwrap(), Some((Ok(String::new()), Ok("a".into()))));
        assert_eq!(part("./").unwrap(), None);
        for bad in ["/etc/passwd", "../x", "a/../../x", "a/..", "a\0b"] {
            assert!(part(bad).is_err(), "{bad:?}");
        }
    }
}
