//! Reads and writes one regular file.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::SystemTime;

use bay_types::sparse;
use bytes::Bytes;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use tokio::sync::mpsc;

use super::path::{self, Slot, shown};
use super::{CHUNK, FileError, Result, Source, kind_name};

/// Mode of a new file if the request has none.
const DEFAULT_MODE: u32 = 0o644;
/// Tries to find an unused name for the temporary file.
const NAME_TRIES: u32 = 64;

/// Opens a regular file for reading.
pub(crate) fn open(root: BorrowedFd<'_>, path: &[u8]) -> Result<(File, u64)> {
    let check = |stat: &Stat| match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        _ => Err(FileError::refused(path, format!("it is {}, not a file", kind_name(stat)))),
    };
    // Checked before opening, because opening a device has effects; and checked again after opening, because it may
    // have been replaced.
    check(&path::stat(root, path, true)?)?;
    let fd = path::open(root, path, OFlags::RDONLY | OFlags::NONBLOCK)
        .map_err(|e| FileError::io("opening", path, e))?;
    let stat = rustix::fs::fstat(&fd).map_err(|e| FileError::io("looking at", path, e))?;
    check(&stat)?;
    Ok((fd.into(), u64::try_from(stat.st_size).unwrap_or(0)))
}

/// Sends `size` bytes, or everything if the file does not know its size.
pub(crate) fn send(file: File, size: u64, to: &mpsc::Sender<io::Result<Bytes>>) {
    let mut left = if size > 0 { size } else { u64::MAX };
    let mut file = file;
    while left > 0 {
        let most = CHUNK.min(usize::try_from(left).unwrap_or(CHUNK));
        let mut chunk = Vec::with_capacity(most);
        let next = match (&mut file).take(most as u64).read_to_end(&mut chunk) {
            Ok(0) if size == 0 => return,
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter")),
            Ok(got) => {
                left -= got as u64;
                Ok(chunk.into())
            }
            Err(e) => Err(e),
        };
        let failed = next.is_err();
        // The reader may go away; that is no error.
        if to.blocking_send(next).is_err() || failed {
            return;
        }
    }
}

/// What to write, and where.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) path: Vec<u8>,
    pub(super) mode: Option<u32>,
    pub(super) owner: Option<(u32, u32)>,
    pub(super) parents: bool,
}

/// Writes a file atomically: next to its destination under another name, then renamed.
pub(super) fn write(root: BorrowedFd<'_>, wanted: &Wanted, source: Source) -> Result<Stat> {
    let path = &wanted.path;
    let slot = path::slot(root, path, wanted.parents, wanted.owner.unwrap_or((0, 0)))?;
    let mode = wanted.mode.or(slot.existing.map(|s| s.st_mode & 0o7777)).unwrap_or(DEFAULT_MODE);
    let owner = wanted.owner.or(slot.existing.map(|s| (s.st_uid, s.st_gid))).unwrap_or((0, 0));
    let temporary = Temporary::create(&slot, path)?;
    fill(&temporary.file, source, path)?;
    let finish = || -> io::Result<Stat> {
        path::set_owner(temporary.file.as_fd(), owner)?;
        rustix::fs::fchmod(&temporary.file, Mode::from_raw_mode(mode))?;
        rustix::fs::renameat(&slot.dir, &temporary.name, &slot.dir, &slot.name)?;
        Ok(rustix::fs::fstat(&temporary.file)?)
    };
    finish().map_err(|e| match e.kind() {
        io::ErrorKind::IsADirectory => FileError::refused(path, "it is a directory"),
        _ => FileError::io("writing", path, e),
    })
}

fn fill(file: &File, mut source: Source, path: &[u8]) -> Result<()> {
    let failed = |e: io::Error| FileError::io("writing", path, e);
    let mut at = 0;
    loop {
        let bytes = source.next().map_err(|_| FileError::BrokeOff)?;
        if bytes.is_empty() {
            // A hole at the end has no write of its own.
            return file.set_len(at).map_err(failed);
        }
        write_data(file, at, &bytes).map_err(failed)?;
        at += bytes.len() as u64;
    }
}

/// Writes the parts that are not zero to a new file, and leaves holes for the rest.
pub(super) fn write_data(file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    sparse::data_runs(at, bytes)
        .into_iter()
        .try_for_each(|run| file.write_all_at(&bytes[run.clone()], at + run.start as u64))
}

/// A file that is deleted unless it was renamed to its destination.
struct Temporary<'a> {
    dir: &'a OwnedFd,
    name: String,
    file: File,
}

impl<'a> Temporary<'a> {
    fn create(slot: &'a Slot, path: &[u8]) -> Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        for n in 0..NAME_TRIES {
            let name = format!(".bay-put-{now:x}-{n}");
            match rustix::fs::openat(&slot.dir, &name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(fd) => return Ok(Self { dir: &slot.dir, name, file: fd.into() }),
                Err(rustix::io::Errno::EXIST) => {}
                Err(e) => return Err(FileError::io("writing beside", path, e)),
            }
        }
        Err(FileError::refused(path, format!("no free name beside {}", shown(path))))
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // After the rename the name no longer exists.
        let _ = rustix::fs::unlinkat(self.dir, &self.name, AtFlags::empty());
    }
}
