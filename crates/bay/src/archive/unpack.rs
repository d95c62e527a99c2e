//! Putting a tar that came out of a bay onto the caller's disk. Everything in it is hostile.
//!
//! Every member is placed relative to an open directory, one component at a time, and no component may be a link:
//! neither one that the archive made nor one that was there before. A file is always a new file, so nothing is ever
//! written through a link of either kind. Devices and pipes are skipped, set-id bits dropped, owners ignored.
//! Symbolic links are made as they are (a virtual environment needs them) but those that point out of the tree are
//! counted, so that the caller hears of them.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use bay_types::guest::ARCHIVE_BROKE_OFF;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use tar::{Archive, Entry, EntryType};
use tokio::sync::mpsc;

use super::pipe::PipeReader;

/// The longest name of a member; the kernel takes no longer path.
const MAX_PATH: usize = 4096;
/// The longest block of extended attributes of one member.
const MAX_EXTENSION: u64 = 64 * 1024;
/// The most that is shown of why a bay sent no more.
const LONGEST_REASON: usize = 400;
const MODE_MASK: u32 = 0o777;
/// Without these the caller could not even remove what was copied.
const OWNER_BITS: u32 = 0o700;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unpacked {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Devices, pipes and sockets.
    pub(crate) skipped: u64,
    /// Links that lead out of the copied tree.
    pub(crate) links_out: u64,
}

/// Unpacks an answer's body into a directory that exists.
pub(crate) async fn unpack(mut body: Incoming, into: &Path) -> io::Result<Unpacked> {
    let root = rustix::fs::open(into, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let (sender, reader) = PipeReader::new();
    let worker = tokio::task::spawn_blocking(move || unpack_from(reader, &root));
    while let Some(frame) = body.frame().await {
        let piece = frame.map(|f| f.into_data().unwrap_or_default()).map_err(io::Error::other);
        if !pass_on(&sender, piece).await {
            break;
        }
    }
    drop(sender);
    worker.await.map_err(io::Error::other)?
}

async fn pass_on(sender: &mpsc::Sender<io::Result<Bytes>>, piece: io::Result<Bytes>) -> bool {
    let good = piece.is_ok();
    sender.send(piece).await.is_ok() && good
}

/// What extension members said about the one that follows.
#[derive(Default)]
struct Extension {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

pub(crate) fn unpack_from(mut reader: impl Read, root: &OwnedFd) -> io::Result<Unpacked> {
    let mut done = Unpacked::default();
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
                _ => place(&mut entry, std::mem::take(&mut extension), root, &mut done)?,
            }
        }
    }
    // Read on to the end: an error of the connection shows only there.
    io::copy(&mut reader, &mut io::sink())?;
    Ok(done)
}

fn refused(path: &[u8], why: &str) -> io::Error {
    let name = crate::output::escape::visible(&String::from_utf8_lossy(path));
    let name = crate::output::escape::clip(&name, 200);
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
            _ => {}
        }
        Ok(())
    })
}

/// The bay says why it sends no more.
fn broke_off(entry: &mut Entry<'_, impl Read>) -> io::Result<()> {
    records(entry, |key, value| {
        if key != ARCHIVE_BROKE_OFF.as_bytes() {
            return Ok(());
        }
        let why = crate::output::escape::one_line(&String::from_utf8_lossy(value));
        let why = crate::output::escape::clip(&why, LONGEST_REASON);
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("the bay sent no more: {why}")))
    })
}

fn place(
    entry: &mut Entry<'_, impl Read>,
    extension: Extension,
    root: &OwnedFd,
    done: &mut Unpacked,
) -> io::Result<()> {
    let name = extension.name.unwrap_or_else(|| entry.path_bytes().into_owned());
    let parts = components(&name)?;
    let kind = entry.header().entry_type();
    let mode = entry.header().mode().unwrap_or(0o644) & MODE_MASK;
    let Some((last, parents)) = parts.split_last() else {
        // The directory itself, which is there already.
        return if kind == EntryType::Directory { Ok(()) } else { Err(refused(&name, "it has no name")) };
    };
    let parent = descend(root, parents).map_err(|e| refused(&name, &e.to_string()))?;
    let here = parent.as_ref().map_or(root.as_fd(), AsFd::as_fd);
    match kind {
        EntryType::Directory => directory(here, last, mode).map_err(|e| refused(&name, &e.to_string())),
        EntryType::Regular | EntryType::Continuous => {
            done.bytes += file(entry, here, last, mode, &name)?;
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

/// The parts of a member's name; anything that could lead elsewhere is refused.
fn components(name: &[u8]) -> io::Result<Vec<OsString>> {
    if name.len() > MAX_PATH || name.contains(&0) {
        return Err(refused(name, "its name is too long or holds a NUL"));
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

/// Opens the parents one by one, making those that are missing. `None` is the root itself.
fn descend(root: &OwnedFd, parents: &[OsString]) -> io::Result<Option<OwnedFd>> {
    let mut here: Option<OwnedFd> = None;
    for part in parents {
        let at = here.as_ref().map_or(root.as_fd(), AsFd::as_fd);
        let next = match rustix::fs::openat(at, part.as_os_str(), DIRECTORY_FLAGS, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => {
                directory(at, part, OWNER_BITS | 0o055)?;
                rustix::fs::openat(at, part.as_os_str(), DIRECTORY_FLAGS, Mode::empty())?
            }
            // What O_NOFOLLOW with O_DIRECTORY says of a link, too.
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

/// Takes away what is in the place of a new file, unless it is a directory.
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
) -> io::Result<u64> {
    clear(at, name, member)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(at, name.as_os_str(), flags, Mode::from_raw_mode(mode))?;
    let mut file = std::fs::File::from(fd);
    let (expected, mtime) = (entry.size(), entry.header().mtime().unwrap_or(0));
    let written = io::copy(entry, &mut file)?;
    if written != expected {
        return Err(refused(member, "it ends too early"));
    }
    if let Some(time) = std::time::UNIX_EPOCH.checked_add(std::time::Duration::from_secs(mtime)) {
        // A time is a courtesy: one the filesystem cannot hold is no reason to fail.
        let _ = file.set_modified(time);
    }
    Ok(written)
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
        // A link to itself: it was just taken away, and so was the file.
        Err(rustix::io::Errno::NOENT) => Err(refused(member, "it is a link to itself")),
        other => Ok(other?),
    }
}

/// Whether a link at this depth leads above the top of the tree.
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
