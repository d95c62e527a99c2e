//! Unpacks a tar from a bay onto the caller's disk. All of its content is hostile.
//!
//! Every member is created relative to an open directory, one path component at a time. No component may be a link,
//! neither one from the archive nor one that existed before. A file is always a new file, so nothing is ever written
//! through a symbolic or hard link. Devices and pipes are skipped, set-id bits dropped, owners ignored. Symbolic links
//! are created unchanged, because a virtual environment needs them. Those that by their text point out of the tree are
//! counted and reported to the caller. Zeros become holes, and the reserve of the caller's disk stays free
//! ([`crate::disk_space`]).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use bay_types::guest::ARCHIVE_BROKE_OFF;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use tar::{Archive, Entry, EntryType};
use tokio::sync::mpsc;

use super::pipe::PipeReader;
use super::sparse::{self, Sparse};
use crate::disk_space::DiskSpace;
use crate::sparse_file::SparseFile;

/// Longest name of a member. The kernel accepts no longer path.
const MAX_PATH: usize = 4096;
/// Longest block of extended attributes of one member.
const MAX_EXTENSION: u64 = 64 * 1024;
/// Most characters that are shown of a bay's reason for stopping the transfer.
const LONGEST_REASON: usize = 400;
/// Size of the buffer for copying a file.
const COPIED_AT_ONCE: usize = 256 << 10;
const MODE_MASK: u32 = 0o777;
/// Without these permissions the caller could not even delete the copy.
const OWNER_BITS: u32 = 0o700;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unpacked {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Devices and pipes.
    pub(crate) skipped: u64,
    /// Links that point out of the copied tree.
    pub(crate) links_out: u64,
}

/// Unpacks a response body into an existing directory.
pub(crate) async fn unpack(body: Incoming, into: &Path) -> io::Result<Unpacked> {
    let root = rustix::fs::open(into, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    in_thread(body, move |reader| unpack_from(reader, &root)).await
}

/// Unpacks a response body, an archive of one file, into that empty file. Returns the number of data bytes.
pub(crate) async fn unpack_file(body: Incoming, into: File, mut space: DiskSpace) -> io::Result<u64> {
    in_thread(body, move |reader| unpack_one(reader, &into, &mut space)).await
}

/// How long an aborted copy waits for its thread, which has to delete the file that it was writing.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// A thread that unpacks a body. If it is dropped early, the thread stops reading and deletes the file that it was
/// writing.
struct Worker {
    sender: Option<mpsc::Sender<io::Result<Bytes>>>,
    ended: std::sync::mpsc::Receiver<()>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.sender = None;
        let _ = self.ended.recv_timeout(ENDS_WITHIN);
    }
}

async fn in_thread<T: Send + 'static>(
    mut body: Incoming,
    work: impl FnOnce(PipeReader) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, reader) = PipeReader::new();
    let (ends, ended) = std::sync::mpsc::channel();
    let thread = tokio::task::spawn_blocking(move || {
        let result = work(reader);
        let _ = ends.send(());
        result
    });
    let mut worker = Worker { sender: Some(sender), ended };
    while let Some(frame) = body.frame().await {
        let piece = frame.map(|f| f.into_data().unwrap_or_default()).map_err(io::Error::other);
        let Some(sender) = &worker.sender else { break };
        if !pass_on(sender, piece).await {
            break;
        }
    }
    worker.sender = None;
    thread.await.map_err(io::Error::other)?
}

async fn pass_on(sender: &mpsc::Sender<io::Result<Bytes>>, piece: io::Result<Bytes>) -> bool {
    let good = piece.is_ok();
    sender.send(piece).await.is_ok() && good
}

/// What extension members state about the member after them.
#[derive(Default)]
struct Extension {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    sparse: Sparse,
}

/// Unpacks an archive of one file into that file.
fn unpack_one(mut reader: impl Read, into: &File, space: &mut DiskSpace) -> io::Result<u64> {
    let mut written = None;
    {
        let mut archive = Archive::new(&mut reader);
        let mut extension = Extension::default();
        for entry in archive.entries()?.raw(true) {
            let mut entry = entry?;
            match entry.header().entry_type() {
                EntryType::GNULongName => drop(long_name(&mut entry)?),
                EntryType::XHeader => pax(&mut entry, &mut extension)?,
                EntryType::XGlobalHeader => broke_off(&mut entry)?,
                EntryType::Regular if written.is_none() => {
                    let sparse = std::mem::take(&mut extension).sparse;
                    written = Some(content(&mut entry, into, space, &sparse, b"the file")?);
                }
                _ => return Err(refused(b"more than a file", "one file was asked for")),
            }
        }
    }
    io::copy(&mut reader, &mut io::sink())?;
    written.ok_or_else(|| refused(b"an empty archive", "one file was asked for"))
}

pub(crate) fn unpack_from(mut reader: impl Read, root: &OwnedFd) -> io::Result<Unpacked> {
    let mut done = Unpacked::default();
    let mut space = DiskSpace::below(root.try_clone()?);
    {
        let mut archive = Archive::new(&mut reader);
        let mut extension = Extension::default();
        // Raw members: the library would read a name of any length into memory.
        for entry in archive.entries()?.raw(true) {
            let mut entry = entry?;
            match entry.header().entry_type() {
                EntryType::GNULongName => extension.name = Some(long_name(&mut entry)?),
                EntryType::GNULongLink => extension.link = Some(long_name(&mut entry)?),
                EntryType::XHeader => pax(&mut entry, &mut extension)?,
                EntryType::XGlobalHeader => broke_off(&mut entry)?,
                _ => {
                    space.take_member()?;
                    place(&mut entry, std::mem::take(&mut extension), root, &mut space, &mut done)?;
                }
            }
        }
    }
    // Read to the end, because an error of the connection appears only there.
    io::copy(&mut reader, &mut io::sink())?;
    Ok(done)
}

fn refused(path: &[u8], why: &str) -> io::Error {
    let name = bay_text::escape::visible(&String::from_utf8_lossy(path));
    let name = bay_text::clip(&name, 200);
    io::Error::new(io::ErrorKind::InvalidData, format!("the bay sent {name:?}: {why}"))
}

fn long_name(entry: &mut Entry<'_, impl Read>) -> io::Result<Vec<u8>> {
    let mut name = Vec::new();
    entry.take(MAX_PATH as u64 + 2).read_to_end(&mut name)?;
    while name.last() == Some(&0) {
        name.pop();
    }
    if name.len() > MAX_PATH {
        return Err(refused(&name, "its name is too long"));
    }
    Ok(name)
}

/// Calls `each` with every record of an extended header.
fn records(
    entry: &mut Entry<'_, impl Read>,
    mut each: impl FnMut(&[u8], &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    if entry.size() > MAX_EXTENSION {
        return Err(refused(b"an extended header", "it is too long"));
    }
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes)?;
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let malformed = || refused(b"an extended header", "it is malformed");
        let blank = rest.iter().position(|b| *b == b' ').ok_or_else(malformed)?;
        let length: usize =
            std::str::from_utf8(&rest[..blank]).ok().and_then(|t| t.parse().ok()).ok_or_else(malformed)?;
        let record = rest.get(blank + 1..length).and_then(|r| r.strip_suffix(b"\n")).ok_or_else(malformed)?;
        let equals = record.iter().position(|b| *b == b'=').ok_or_else(malformed)?;
        each(&record[..equals], &record[equals + 1..])?;
        rest = &rest[length..];
    }
    Ok(())
}

fn pax(entry: &mut Entry<'_, impl Read>, extension: &mut Extension) -> io::Result<()> {
    records(entry, |key, value| {
        match key {
            b"path" => extension.name = Some(value.to_vec()),
            b"linkpath" => extension.link = Some(value.to_vec()),
            b"size" => return Err(refused(b"an extended header", "it changes a size")),
            _ => extension.sparse.record(key, value).map_err(|why| refused(b"an extended header", why))?,
        }
        Ok(())
    })
}

/// Reports the reason that the bay gave for stopping the transfer.
fn broke_off(entry: &mut Entry<'_, impl Read>) -> io::Result<()> {
    records(entry, |key, value| {
        if key != ARCHIVE_BROKE_OFF.as_bytes() {
            return Ok(());
        }
        let why = bay_text::escape::one_line(&String::from_utf8_lossy(value));
        let why = bay_text::clip(&why, LONGEST_REASON);
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("the bay sent no more: {why}")))
    })
}

fn place(
    entry: &mut Entry<'_, impl Read>,
    mut extension: Extension,
    root: &OwnedFd,
    space: &mut DiskSpace,
    done: &mut Unpacked,
) -> io::Result<()> {
    let name = extension.sparse.name.take().or(extension.name);
    let name = name.unwrap_or_else(|| entry.path_bytes().into_owned());
    let parts = components(&name)?;
    let kind = entry.header().entry_type();
    let mode = entry.header().mode().unwrap_or(0o644) & MODE_MASK;
    let Some((last, parents)) = parts.split_last() else {
        // The directory itself, which already exists.
        return if kind == EntryType::Directory { Ok(()) } else { Err(refused(&name, "it has no name")) };
    };
    let parent = descend(root, parents).map_err(|e| refused(&name, &e.to_string()))?;
    let here = parent.as_ref().map_or(root.as_fd(), AsFd::as_fd);
    match kind {
        EntryType::Directory => directory(here, last, mode).map_err(|e| refused(&name, &e.to_string())),
        EntryType::Regular | EntryType::Continuous => {
            done.bytes += file(entry, here, last, mode, &name, space, &extension.sparse)?;
            done.files += 1;
            Ok(())
        }
        EntryType::Symlink => {
            let target = link_target(entry, extension.link, &name)?;
            if leads_out(parents.len(), &target) {
                done.links_out += 1;
            }
            clear(here, last, &name)?;
            rustix::fs::symlinkat(OsStr::from_bytes(&target), here, last.as_os_str())?;
            done.files += 1;
            Ok(())
        }
        EntryType::Link => {
            let target = link_target(entry, extension.link, &name)?;
            hard_link(root, &target, here, last, &name)?;
            done.files += 1;
            Ok(())
        }
        EntryType::Char | EntryType::Block | EntryType::Fifo => {
            done.skipped += 1;
            Ok(())
        }
        _ => Err(refused(&name, "it is of a kind that is not copied")),
    }
}

/// The components of a member's name. Refuses any name that could leave the tree.
fn components(name: &[u8]) -> io::Result<Vec<OsString>> {
    if name.len() > MAX_PATH || name.contains(&0) {
        return Err(refused(name, "its name is too long or contains a NUL byte"));
    }
    let path = PathBuf::from(OsString::from_vec(name.to_vec()));
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_owned()),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(refused(name, "its name leads out of the copied tree"));
            }
        }
    }
    Ok(parts)
}

const DIRECTORY_FLAGS: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::PATH);

/// Opens the parent directories one by one and makes the missing ones. `None` means the root itself.
fn descend(root: &OwnedFd, parents: &[OsString]) -> io::Result<Option<OwnedFd>> {
    let mut here: Option<OwnedFd> = None;
    for part in parents {
        let at = here.as_ref().map_or(root.as_fd(), AsFd::as_fd);
        let next = match rustix::fs::openat(at, part.as_os_str(), DIRECTORY_FLAGS, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => {
                directory(at, part, OWNER_BITS | 0o055)?;
                rustix::fs::openat(at, part.as_os_str(), DIRECTORY_FLAGS, Mode::empty())?
            }
            // The kernel also returns these for a link, because of O_NOFOLLOW with O_DIRECTORY.
            Err(rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
                return Err(io::Error::other("it lies below something that is not a directory"));
            }
            other => other?,
        };
        here = Some(next);
    }
    Ok(here)
}

fn directory(at: BorrowedFd<'_>, name: &OsString, mode: u32) -> io::Result<()> {
    match rustix::fs::mkdirat(at, name.as_os_str(), Mode::from_raw_mode(mode | OWNER_BITS)) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::EXIST) => {
            let stat = rustix::fs::statat(at, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(stat.st_mode).is_dir() {
                Ok(())
            } else {
                Err(io::Error::other("something that is not a directory is in its place"))
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Deletes whatever a new file will replace, unless that is a directory.
fn clear(at: BorrowedFd<'_>, name: &OsString, member: &[u8]) -> io::Result<()> {
    match rustix::fs::unlinkat(at, name.as_os_str(), AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(rustix::io::Errno::ISDIR) => Err(refused(member, "a directory is in its place")),
        Err(error) => Err(error.into()),
    }
}

fn file(
    entry: &mut Entry<'_, impl Read>,
    at: BorrowedFd<'_>,
    name: &OsString,
    mode: u32,
    member: &[u8],
    space: &mut DiskSpace,
    sparse: &Sparse,
) -> io::Result<u64> {
    clear(at, name, member)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(at, name.as_os_str(), flags, Mode::from_raw_mode(mode))?;
    let file = File::from(fd);
    let mtime = entry.header().mtime().unwrap_or(0);
    let written = content(entry, &file, space, sparse, member).inspect_err(|_| {
        // A partial file must not look complete.
        let _ = rustix::fs::unlinkat(at, name.as_os_str(), AtFlags::empty());
    })?;
    if let Some(time) = std::time::UNIX_EPOCH.checked_add(Duration::from_secs(mtime)) {
        // If the filesystem cannot store the time, that is no reason to fail.
        let _ = file.set_modified(time);
    }
    Ok(written)
}

/// Writes a member's content into a new file, and returns the number of data bytes.
fn content(
    entry: &mut Entry<'_, impl Read>,
    file: &File,
    space: &mut DiskSpace,
    sparse: &Sparse,
    member: &[u8],
) -> io::Result<u64> {
    let size = entry.size();
    let mut into = SparseFile::new(file, space);
    let Some(real) = sparse.real_size().map_err(|why| refused(member, why))? else {
        copy(entry, &mut into, size, member)?;
        into.finish()?;
        return Ok(size);
    };
    // First of all, because not every filesystem supports a file of this length.
    file.set_len(real).map_err(|error| too_long(error, real))?;
    let map = sparse::map(entry, real).map_err(|why| refused(member, &why.to_string()))?;
    let mut written = 0;
    for extent in map {
        into.skip_to(extent.offset);
        copy(entry, &mut into, extent.length, member)?;
        written += extent.length;
    }
    into.skip_to(real);
    into.finish()?;
    Ok(written)
}

fn too_long(error: io::Error, real: u64) -> io::Error {
    if error.kind() != io::ErrorKind::FileTooLarge {
        return error;
    }
    let why = format!("it is {} long, and no file on this disk can be: {error}", crate::output::size(real));
    io::Error::new(error.kind(), why)
}

fn copy(from: &mut impl Read, to: &mut SparseFile<'_>, length: u64, member: &[u8]) -> io::Result<()> {
    let mut buffer = vec![0; COPIED_AT_ONCE];
    let mut left = length;
    while left > 0 {
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let got = from.read(&mut buffer[..most])?;
        if got == 0 {
            return Err(refused(member, "it ends too early"));
        }
        to.write(&buffer[..got])?;
        left -= got as u64;
    }
    Ok(())
}

fn link_target(entry: &Entry<'_, impl Read>, long: Option<Vec<u8>>, member: &[u8]) -> io::Result<Vec<u8>> {
    let target =
        long.or_else(|| entry.link_name_bytes().map(std::borrow::Cow::into_owned)).unwrap_or_default();
    if target.is_empty() || target.len() > MAX_PATH || target.contains(&0) {
        return Err(refused(member, "it is a link to nowhere"));
    }
    Ok(target)
}

fn hard_link(
    root: &OwnedFd,
    target: &[u8],
    at: BorrowedFd<'_>,
    name: &OsString,
    member: &[u8],
) -> io::Result<()> {
    let parts = components(target)?;
    let Some((last, parents)) = parts.split_last() else {
        return Err(refused(member, "it is a link to a directory"));
    };
    let parent = descend(root, parents).map_err(|e| refused(member, &e.to_string()))?;
    let there = parent.as_ref().map_or(root.as_fd(), AsFd::as_fd);
    let stat = rustix::fs::statat(there, last.as_os_str(), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|_| refused(member, "it is a link to something that was not copied"))?;
    if !FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(refused(member, "it is a link to something that is not a file"));
    }
    clear(at, name, member)?;
    match rustix::fs::linkat(there, last.as_os_str(), at, name.as_os_str(), AtFlags::empty()) {
        // A link to itself. The file was deleted just before.
        Err(rustix::io::Errno::NOENT) => Err(refused(member, "it is a link to itself")),
        other => Ok(other?),
    }
}

/// Whether a link at this depth points above the top of the tree.
fn leads_out(depth: usize, target: &[u8]) -> bool {
    let mut depth = depth;
    for component in Path::new(OsStr::from_bytes(target)).components() {
        match component {
            Component::RootDir | Component::Prefix(_) => return true,
            Component::CurDir => {}
            Component::Normal(_) => depth += 1,
            Component::ParentDir => match depth.checked_sub(1) {
                Some(up) => depth = up,
                None => return true,
            },
        }
    }
    false
}

#[cfg(test)]
mod tests;
