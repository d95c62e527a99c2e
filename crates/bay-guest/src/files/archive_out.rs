//! Sends a directory or a file as a tar stream, produced while it is read. Sockets, devices, FIFOs, and what is in the
//! kernel's own filesystems below the directory are left out.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bay_types::guest::ARCHIVE_BROKE_OFF;
use bay_types::sparse;
use bytes::Bytes;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;

use super::path::{self, absolute};
use super::{CHUNK, FileError, Result, kind_name, sparse_member};

/// Most bytes of one file in an archive, because a sparse file may claim to be longer than any disk. Holes count if the
/// receiver does not support holes.
const MAX_FILE: u64 = 64 << 30;
/// Deepest directory. One descriptor is open per level.
const MAX_DEPTH: usize = 256;

/// What goes into the archive.
#[derive(Debug)]
pub(super) enum Contents {
    Directory(OwnedFd),
    File { name: Vec<u8>, file: File, stat: Stat },
}

pub(super) fn open(root: BorrowedFd<'_>, path: &[u8], sparse: bool) -> Result<Contents> {
    let stat = path::stat(root, path, true)?;
    let failed = |e| FileError::io("opening", path, e);
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(Contents::Directory(
            path::open(root, path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?,
        )),
        FileType::RegularFile => {
            let fd = path::open(root, path, OFlags::RDONLY | OFlags::NONBLOCK).map_err(failed)?;
            let stat = rustix::fs::fstat(&fd).map_err(|e| failed(e.into()))?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                return Err(FileError::refused(path, format!("it is {}", kind_name(&stat))));
            }
            // For a tree this can only be checked on the way; for a single file it can be checked first.
            if !sparse && u64::try_from(stat.st_size).is_ok_and(|size| size > MAX_FILE) {
                return Err(FileError::refused(path, format!("it is longer than {} GiB", MAX_FILE >> 30)));
            }
            let name = absolute(path).split(|b| *b == b'/').next_back().unwrap_or_default().to_vec();
            Ok(Contents::File { name, file: fd.into(), stat })
        }
        _ => Err(FileError::refused(path, format!("it is {}", kind_name(&stat)))),
    }
}

/// Sends the archive. An error on the way cuts the stream, or puts its reason where a member would be, so that the
/// receiver does not take a part for the whole.
pub(super) fn send(contents: Contents, sparse: bool, to: &mpsc::Sender<io::Result<Bytes>>) {
    let mut builder = Builder::new(Sink { to: to.clone(), chunk: Vec::with_capacity(CHUNK) });
    builder.sparse(false);
    let outcome = match contents {
        Contents::Directory(dir) => walk(&mut builder, dir, sparse),
        Contents::File { name, file, stat } => regular(&mut builder, &name, file, &stat, sparse),
    };
    if let Err(error) = &outcome
        && error.get_ref().is_some_and(|why| why.is::<Refused>())
    {
        // If the reader went away, nobody needs the error.
        let _ = send_reason(builder.get_mut(), &error.to_string());
        return;
    }
    let outcome = outcome.and_then(|()| builder.into_inner()?.flush());
    if let Err(error) = outcome {
        // If the reader went away, nobody needs the error.
        let _ = to.blocking_send(Err(error));
    }
}

/// Why a tree cannot be archived. Sent only between two members, where the reader expects a header.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, Refused(why))
}

/// Sends the reason for which the archive breaks off, in a header that applies to none of its members. The connection
/// then ends normally, because cutting it could lose the last bytes. What follows is no header, so other readers of
/// archives refuse it.
fn send_reason(to: &mut Sink, why: &str) -> io::Result<()> {
    const BLOCK: usize = 512;
    let record = format!(" {ARCHIVE_BROKE_OFF}={}\n", why.replace('\n', " "));
    // The length includes its own digits.
    let length =
        (1..=4).map(|digits| record.len() + digits).find(|all| record.len() + all.to_string().len() == *all);
    let Some(length) = length else { return Ok(()) };
    let mut header = Header::new_ustar();
    header.set_path("pax_global_header")?;
    header.set_entry_type(EntryType::XGlobalHeader);
    header.set_size(length as u64);
    header.set_mode(0o644);
    header.set_cksum();
    to.write_all(header.as_bytes())?;
    to.write_all(format!("{length}{record}").as_bytes())?;
    to.write_all(&vec![0; length.next_multiple_of(BLOCK) - length])?;
    to.write_all(&[b'!'; BLOCK])?;
    to.flush()
}

/// A directory that is being walked.
struct Level {
    entries: Dir,
    /// Length of the prefix that its members' names share.
    prefix: usize,
    device: u64,
}

impl Level {
    fn new(dir: OwnedFd, prefix: usize) -> io::Result<Self> {
        let device = rustix::fs::fstat(&dir)?.st_dev;
        Ok(Self { entries: Dir::new(dir)?, prefix, device })
    }
}

/// Walks without recursion: the agent chooses the depth, and the stack is limited.
fn walk(builder: &mut Builder<Sink>, dir: OwnedFd, sparse: bool) -> io::Result<()> {
    let mut levels = vec![Level::new(dir, 0)?];
    let mut full = Vec::new();
    while let Some(level) = levels.last_mut() {
        full.truncate(level.prefix);
        let Some(entry) = level.entries.next() else {
            levels.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        full.extend_from_slice(name);
        let inner = match member(builder, level, name, &full, sparse) {
            // It was deleted meanwhile.
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            other => other?,
        };
        if let Some(inner) = inner {
            if levels.len() >= MAX_DEPTH {
                let at = path::shown(&full);
                return Err(refused(format!("{at} is more than {MAX_DEPTH} directories deep")));
            }
            full.push(b'/');
            levels.push(Level::new(inner, full.len())?);
        }
    }
    Ok(())
}

/// Adds one member to the archive. Returns it if it is a directory that must be walked.
fn member(
    builder: &mut Builder<Sink>,
    level: &Level,
    name: &[u8],
    full: &[u8],
    sparse: bool,
) -> io::Result<Option<OwnedFd>> {
    let dir = level.entries.fd()?;
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let inner = rustix::fs::openat(dir, name, flags, Mode::empty())?;
            let mut header = header(&stat, EntryType::Directory, 0);
            builder.append_data(&mut header, path_of(full), io::empty())?;
            Ok((stat.st_dev == level.device || !is_generated(inner.as_fd())).then_some(inner))
        }
        FileType::RegularFile => {
            let flags =
                OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let fd = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
                // A symbolic link has replaced it.
                Err(Errno::LOOP) => return Ok(None),
                other => other?,
            };
            let stat = rustix::fs::fstat(&fd)?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                regular(builder, full, fd.into(), &stat, sparse)?;
            }
            Ok(None)
        }
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
            let mut header = header(&stat, EntryType::Symlink, 0);
            builder.append_link(&mut header, path_of(full), path_of(target.to_bytes()))?;
            Ok(None)
        }
        _ => Ok(None),
    }
}

/// Whether a directory is in a filesystem whose files the kernel generates. Their content means nothing elsewhere.
fn is_generated(dir: BorrowedFd<'_>) -> bool {
    const MADE_UP: [i64; 4] = [
        0x9fa0,      // proc
        0x6265_6572, // sysfs
        0x6367_7270, // cgroup2
        0x1cd1,      // devpts
    ];
    rustix::fs::fstatfs(dir).is_ok_and(|s| MADE_UP.contains(&s.f_type))
}

/// Adds a file; with `sparse`, without its holes.
fn regular(
    builder: &mut Builder<Sink>,
    name: &[u8],
    file: File,
    stat: &Stat,
    sparse: bool,
) -> io::Result<()> {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let extents = if sparse { sparse_member::extents(&file, size) } else { None };
    let sent = extents.as_ref().map_or(size, |extents| sparse_member::length(&[], extents));
    if sent > MAX_FILE {
        let (name, most) = (path::shown(name), MAX_FILE >> 30);
        return Err(refused(format!(
            "{name} has {} GiB in it, and files of more than {most} GiB are not copied",
            sent >> 30
        )));
    }
    if let Some(extents) = extents {
        let (records, content) = sparse_member::records(name, size)?;
        builder.append(&records, &*content)?;
        let map = sparse::map(&extents);
        let mut header = header(stat, EntryType::Regular, sparse_member::length(&map, &extents));
        let content = (&*map).chain(sparse_member::Data::new(&file, &extents));
        return builder.append_data(&mut header, sparse::PLACEHOLDER, content);
    }
    // Looking for holes moved the file offset.
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    let mut header = header(stat, EntryType::Regular, size);
    builder.append_data(&mut header, path_of(name), Exactly { file, left: size })
}

fn header(stat: &Stat, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

/// Exactly as many bytes as the header says: a file that grows is cut, a file that shrinks is filled with zeros.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let got = match self.file.read(&mut buffer[..most])? {
            0 => {
                buffer[..most].fill(0);
                most
            }
            got => got,
        };
        self.left -= got as u64;
        Ok(got)
    }
}

/// Collects small writes into chunks for the connection.
struct Sink {
    to: mpsc::Sender<io::Result<Bytes>>,
    chunk: Vec<u8>,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..len]);
        if self.chunk.len() >= CHUNK {
            self.flush()?;
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK));
        self.to.blocking_send(Ok(chunk.into())).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
