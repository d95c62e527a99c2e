//! The output of execs and how they ended, on disk, readable from any byte.
//!
//! ```text
//! STATE/execs/exec_…/meta.json                   Meta: spec, times, exit; replaced by rename, never half written
//! STATE/execs/exec_…/00000000000000000000.out    segment: both streams, in the order in which they came
//! STATE/execs/exec_…/00000000000000000000.idx    its index: which stretch belongs to which stream
//! STATE/execs/exec_…/00000000000000000000.at     its times: when which stretch came
//! STATE/execs/exec_…/00000000000016777216.out    the next segment; its name is the offset at which it starts
//! ```
//!
//! An index entry is a little-endian `u64`: the offset at which a stretch starts, shifted left by one, and in the
//! lowest bit 1 for stderr. An entry is written before the bytes that it describes, and only when the stream changes.
//! So a reader that knows where the output ends can find the stream of every byte before.
//!
//! An entry of the times is two little-endian `u64`: the offset at which a stretch starts, and when it came, in
//! milliseconds since 1970. Output that came within [`TIME_STEP_MS`] of an entry has no entry of its own. A segment of an
//! earlier release has no times, and neither has one whose times the disk had no room for.
//!
//! Offsets count every byte that the command wrote. Bytes that were dropped (the bound removed old segments) or never
//! written (the disk was full) are holes between segments. A reader gets the length and the reason of each hole: the
//! record says up to which offset the bound has dropped output; every other hole is the disk's.
//!
//! The writer runs inside the bay and never fails: what cannot be kept is dropped and counted. The reader also runs in
//! the daemon, as root of the host, on the directory of a stopped bay, whose content is hostile. So it opens only
//! regular files, follows no link, reads no more than the bounds below, and does not hang on any content.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bay_types::ExecId;
use bay_types::exec::ExecStatus;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

mod check;
mod index;
mod layout;
mod reader;
mod writer;

pub use check::Check;
use layout::{Kept, kept_segments};
pub(crate) use layout::{for_each_name, open_directory, open_regular, remove_tree};
pub(crate) use reader::Wait;
pub use reader::{Piece, Reader};
pub(crate) use writer::Writer;

/// Output kept of one exec, including indexes and times. The oldest segments are dropped first.
pub const EXEC_BYTES: u64 = 256 << 20;
/// Longest segment. Old output is dropped by whole segments.
pub const SEGMENT_BYTES: u64 = 16 << 20;
/// Longest index of a segment. A command that alternates between its streams at every byte fills the index first.
pub const SEGMENT_INDEX_BYTES: u64 = 2 << 20;
/// Longest file of times of a segment. A new segment begins when it is full.
pub const SEGMENT_TIMES_BYTES: u64 = 2 << 20;
/// Output that comes within so many milliseconds has one time. This bounds the times of a command that prints byte by
/// byte.
pub const TIME_STEP_MS: u64 = 10;
/// Segments of one exec. The byte limits allow fewer, but a disk that is full from time to time causes short segments.
pub const MAX_SEGMENTS: usize = 1024;
/// Longest `meta.json`: the arguments of a command, where JSON may need six bytes for one, and some room.
pub const META_BYTES: u64 = 8 << 20;
/// Directory entries that are read before the directory is treated as hostile.
pub const MAX_ENTRIES: usize = 65_536;

const FORMAT: u32 = 1;
const EXECS: &str = "execs";
const META: &str = "meta.json";
const META_NEW: &str = "meta.json.new";

/// Why kept output cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    #[error("nothing is kept of {0}")]
    Absent(ExecId),
    #[error("{what} of an exec's kept output could not be read")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the kept output is damaged: {0}")]
    Damaged(&'static str),
}

impl SpoolError {
    fn io(what: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io { what, source: source.into() }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Meta {
    format: u32,
    status: ExecStatus,
}

/// How much is kept. Tests use smaller bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub exec_bytes: u64,
    pub segment_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { exec_bytes: EXEC_BYTES, segment_bytes: SEGMENT_BYTES }
    }
}

/// Every exec of which something is kept in this state directory, in no particular order.
///
/// # Errors
/// If the directory cannot be read or has too many entries.
pub fn list(state: BorrowedFd<'_>) -> Result<Vec<ExecId>, SpoolError> {
    let execs = match open_directory(state, EXECS) {
        Ok(fd) => fd,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(SpoolError::io("the directory", e)),
    };
    let mut ids = Vec::new();
    for_each_name(execs.as_fd(), |name| {
        if let Some(id) = std::str::from_utf8(name).ok().and_then(|n| n.parse().ok()) {
            ids.push(id);
        }
    })?;
    Ok(ids)
}

/// The last recorded status of an exec, with the extent of its output on disk. If the exec was running when its bay
/// ended, it has no `exit`. Root in the bay can write this file, so an exit in it proves nothing, and hashes in it are
/// left out.
///
/// # Errors
/// If nothing is kept of the exec, or what is kept is damaged.
pub fn read_status(state: BorrowedFd<'_>, id: ExecId) -> Result<ExecStatus, SpoolError> {
    let dir = open_exec(state, id)?;
    let (file, size) = match open_regular(dir.as_fd(), META) {
        Ok(opened) => opened,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(SpoolError::Absent(id)),
        Err(e) => return Err(SpoolError::io("the record", e)),
    };
    if size > META_BYTES {
        return Err(SpoolError::Damaged("its record is too long"));
    }
    let mut text = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(std::fs::File::from(file), META_BYTES), &mut text)
        .map_err(|e| SpoolError::io("the record", e))?;
    let meta: Meta =
        serde_json::from_slice(&text).map_err(|_| SpoolError::Damaged("its record is not understood"))?;
    if meta.format != FORMAT || meta.status.spec.id != id {
        return Err(SpoolError::Damaged("its record is of another format or exec"));
    }
    let mut status = ExecStatus { witnessed: false, output_hashes: None, ..meta.status };
    let Kept { start, end } = kept_segments(dir.as_fd())?;
    status.output_bytes = status.output_bytes.max(end.unwrap_or(0));
    status.output_start = start.unwrap_or(status.output_bytes).min(status.output_bytes);
    Ok(status)
}

fn open_exec(state: BorrowedFd<'_>, id: ExecId) -> Result<OwnedFd, SpoolError> {
    open_directory(state, EXECS).and_then(|execs| open_directory(execs.as_fd(), &id.to_string())).map_err(
        |e| match e.kind() {
            io::ErrorKind::NotFound => SpoolError::Absent(id),
            _ => SpoolError::io("the directory", e),
        },
    )
}

/// Makes an empty directory for an exec. Removes what an earlier exec with this id left.
pub(crate) fn create_exec(state: BorrowedFd<'_>, id: ExecId) -> io::Result<OwnedFd> {
    let private = Mode::RWXU;
    match rustix::fs::mkdirat(state, EXECS, private) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    let execs = open_directory(state, EXECS)?;
    let name = id.to_string();
    if rustix::fs::mkdirat(&execs, &name, private) == Err(Errno::EXIST) {
        remove_tree(execs.as_fd(), name.as_bytes())?;
        rustix::fs::mkdirat(&execs, &name, private)?;
    }
    open_directory(execs.as_fd(), &name)
}

/// Removes everything that is kept of an exec.
pub(crate) fn remove_exec(state: BorrowedFd<'_>, id: ExecId) -> io::Result<()> {
    match open_directory(state, EXECS) {
        Ok(execs) => remove_tree(execs.as_fd(), id.to_string().as_bytes()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// Replaces an exec's record atomically.
pub(crate) fn write_status(dir: BorrowedFd<'_>, status: &ExecStatus) -> io::Result<()> {
    let status = ExecStatus { witnessed: false, output_hashes: None, ..status.clone() };
    let text = serde_json::to_vec(&Meta { format: FORMAT, status })?;
    // O_EXCL fails if a leftover has the name. Without it, a write could go through a link.
    let _ = rustix::fs::unlinkat(dir, META_NEW, AtFlags::empty());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, META_NEW, flags, Mode::RUSR | Mode::WUSR)?;
    io::Write::write_all(&mut std::fs::File::from(file), &text)?;
    rustix::fs::renameat(dir, META_NEW, dir, META)?;
    Ok(())
}

/// Records the status of an exec whose directory may not exist.
pub(crate) fn save_status(state: BorrowedFd<'_>, status: &ExecStatus) -> io::Result<()> {
    let dir = match open_exec(state, status.spec.id) {
        Ok(dir) => dir,
        Err(SpoolError::Absent(id)) => create_exec(state, id)?,
        Err(e) => return Err(io::Error::other(e)),
    };
    write_status(dir.as_fd(), status)
}

/// The size of an exec's output on disk.
pub(crate) fn kept_bytes(status: &ExecStatus) -> u64 {
    status.output_bytes.saturating_sub(status.output_start).min(EXEC_BYTES)
}

#[cfg(test)]
mod tests;
