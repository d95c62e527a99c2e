//! Names of files, index entries, and opening files in a directory that may be hostile.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bay_sys::paths::open_below;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{MAX_ENTRIES, MAX_SEGMENTS, SEGMENT_BYTES, SpoolError};

/// Digits of the offset in a segment's name; enough for any `u64`.
const DIGITS: usize = 20;
const DATA_SUFFIX: &[u8] = b".out";
/// Deepest directory that is removed: each level needs a descriptor and a part of the stack. The directory of an exec
/// has none below it, unless somebody in the bay made one.
const MAX_REMOVE_DEPTH: usize = 64;
/// An index entry has 63 bits for the offset.
pub(super) const MAX_OFFSET: u64 = u64::MAX >> 1;

pub(super) const ENTRY_LEN: u64 = 8;
pub(super) const TIME_LEN: u64 = 16;

pub(super) fn data_name(start: u64) -> String {
    format!("{start:0DIGITS$}.out")
}

pub(super) fn index_name(start: u64) -> String {
    format!("{start:0DIGITS$}.idx")
}

pub(super) fn times_name(start: u64) -> String {
    format!("{start:0DIGITS$}.at")
}

/// The offset in a segment's name. None for any other name.
pub(super) fn parse_data_name(name: &[u8]) -> Option<u64> {
    let digits = name.strip_suffix(DATA_SUFFIX)?;
    if digits.len() != DIGITS || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok().filter(|start| *start <= MAX_OFFSET)
}

pub(super) fn encode_entry(offset: u64, stderr: bool) -> [u8; ENTRY_LEN as usize] {
    (offset << 1 | u64::from(stderr)).to_le_bytes()
}

/// An entry of the times: from this offset on, output came at this time, in milliseconds since 1970.
pub(super) fn encode_time(offset: u64, at_ms: u64) -> [u8; TIME_LEN as usize] {
    let mut entry = [0; TIME_LEN as usize];
    entry[..8].copy_from_slice(&offset.to_le_bytes());
    entry[8..].copy_from_slice(&at_ms.to_le_bytes());
    entry
}

/// The offset, and whether the stream is stderr.
pub(super) fn decode_entry(entry: u64) -> (u64, bool) {
    (entry >> 1, entry & 1 == 1)
}

fn resolve() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV
}

pub(crate) fn open_directory(parent: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(open_below(parent, name, flags, resolve())?)
}

/// Opens a regular file for reading, and returns its size. Never blocks, not even on a FIFO or a lease.
pub(crate) fn open_regular(dir: BorrowedFd<'_>, name: &str) -> io::Result<(OwnedFd, u64)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = open_below(dir, name, flags, resolve())?;
    let stat = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
    }
    Ok((fd, u64::try_from(stat.st_size).unwrap_or(0)))
}

pub(crate) fn for_each_name(dir: BorrowedFd<'_>, mut each: impl FnMut(&[u8])) -> Result<(), SpoolError> {
    let entries = Dir::read_from(dir).map_err(|e| SpoolError::io("the directory", e))?;
    for (seen, entry) in entries.enumerate() {
        if seen >= MAX_ENTRIES {
            return Err(SpoolError::Damaged("its directory has too many entries"));
        }
        each(entry.map_err(|e| SpoolError::io("the directory", e))?.file_name().to_bytes());
    }
    Ok(())
}

/// Where the kept output begins and ends. Both are None if there are no segments.
pub(super) struct Kept {
    pub(super) start: Option<u64>,
    pub(super) end: Option<u64>,
}

/// Offsets of the segments, ascending.
pub(super) fn segment_starts(dir: BorrowedFd<'_>) -> Result<Vec<u64>, SpoolError> {
    let mut starts = Vec::new();
    for_each_name(dir, |name| starts.extend(parse_data_name(name)))?;
    // The writer keeps one fewer. There may be one more while it has made a segment and not yet dropped another.
    if starts.len() > MAX_SEGMENTS + 1 {
        return Err(SpoolError::Damaged("it has too many segments"));
    }
    starts.sort_unstable();
    Ok(starts)
}

pub(super) fn kept_segments(dir: BorrowedFd<'_>) -> Result<Kept, SpoolError> {
    let starts = segment_starts(dir)?;
    let mut end = None;
    if let Some(&last) = starts.last() {
        let size = match open_regular(dir, &data_name(last)) {
            Ok((_, size)) => size.min(SEGMENT_BYTES),
            Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
            Err(e) => return Err(SpoolError::io("a segment", e)),
        };
        end = Some(last + size);
    }
    Ok(Kept { start: starts.first().copied(), end })
}

/// Removes a file or a whole directory without following links. Succeeds if the name does not exist.
pub(crate) fn remove_tree(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    remove_below(parent, name, 0)
}

fn remove_below(parent: BorrowedFd<'_>, name: &[u8], depth: usize) -> io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // For a directory, Linux returns EISDIR and other systems EPERM.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(e) => return Err(e.into()),
    }
    if depth >= MAX_REMOVE_DEPTH {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the directory is nested too deeply to remove",
        ));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let inner = entry.file_name().to_bytes();
        if inner != b"." && inner != b".." {
            remove_below(dir.as_fd(), inner, depth + 1)?;
        }
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
