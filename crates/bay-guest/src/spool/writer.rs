//! Appends output within its bound, and goes on when the disk fails.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bay_types::exec::ExecStatus;
use bay_types::output::{MAX_OUTPUT_HASHES, OutputHash};
use rustix::fs::{AtFlags, Mode, OFlags};

use super::check::Stretch;
use super::layout::{self, ENTRY_LEN, TIME_LEN, data_name, index_name, times_name};
use super::{Bounds, MAX_SEGMENTS, SEGMENT_INDEX_BYTES, SEGMENT_TIMES_BYTES, TIME_STEP_MS, write_status};

/// For how long output is dropped after the disk refused some. Otherwise a command that prints while the disk is full
/// would make a new segment for every chunk.
const REFUSED_PAUSE: Duration = Duration::from_millis(250);

/// Appends the output of one exec. Appending never fails: what cannot be kept is dropped and counted.
#[derive(Debug)]
pub(crate) struct Writer {
    /// None if the directory could not be made.
    dir: Option<OwnedFd>,
    bounds: Bounds,
    /// Ordered by offset, including the open segment.
    segments: VecDeque<Segment>,
    /// Sum over `segments`.
    kept: u64,
    open: Option<Open>,
    end: u64,
    /// The bound has dropped output before this offset. Readers use it to find the reason of a gap.
    bounded_to: Arc<AtomicU64>,
    refused_bytes: u64,
    refused_at: Option<Instant>,
}

#[derive(Debug)]
struct Segment {
    start: u64,
    bytes: u64,
    /// The hash of its output, computed from what was written and not from the disk.
    hash: Stretch,
}

#[derive(Debug)]
struct Open {
    data: File,
    index: File,
    len: u64,
    index_len: u64,
    stderr: Option<bool>,
    /// None if the disk refused a time: what is not known must not look known.
    times: Option<Times>,
}

#[derive(Debug)]
struct Times {
    file: File,
    len: u64,
    last_ms: Option<u64>,
}

impl Times {
    /// Notes when the byte at this offset came. Returns how many bytes that took.
    fn note(&mut self, offset: u64, now_ms: u64) -> io::Result<u64> {
        // A clock that was set back must not stop the times.
        if self.last_ms.is_some_and(|last| now_ms.abs_diff(last) < TIME_STEP_MS) {
            return Ok(0);
        }
        self.file.write_all(&layout::encode_time(offset, now_ms))?;
        self.last_ms = Some(now_ms);
        self.len += TIME_LEN;
        Ok(TIME_LEN)
    }
}

fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0)
}

impl Writer {
    pub(crate) fn new(dir: Option<OwnedFd>, bounds: Bounds, bounded_to: Arc<AtomicU64>) -> Self {
        Self {
            dir,
            bounds,
            segments: VecDeque::new(),
            kept: 0,
            open: None,
            end: 0,
            bounded_to,
            refused_bytes: 0,
            refused_at: None,
        }
    }

    /// Bytes that the command has written.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Offset of the first byte that is still kept.
    pub(crate) fn start(&self) -> u64 {
        self.segments.front().map_or(self.end, |s| s.start)
    }

    /// Bytes that the disk had no room for, including old output that made room for the record.
    pub(crate) fn refused_bytes(&self) -> u64 {
        self.refused_bytes
    }

    /// Hashes of what is kept, ordered by offset. Only the newest [`MAX_OUTPUT_HASHES`].
    pub(crate) fn hashes(&self) -> Vec<OutputHash> {
        let skip = self.segments.len().saturating_sub(MAX_OUTPUT_HASHES);
        let kept = self.segments.iter().skip(skip).map(|segment| segment.hash.hash());
        kept.filter(|hash| hash.bytes > 0).collect()
    }

    /// Where the last segment ends; less than `end` if output was refused since.
    #[cfg(test)]
    pub(super) fn segments_end(&self) -> u64 {
        self.open.as_ref().map_or(0, |o| self.segments.back().map_or(0, |s| s.start) + o.len)
    }

    /// Appends bytes, and counts those that could not be appended. Returns how many bytes, from the first on, are on
    /// disk.
    pub(crate) fn append(&mut self, stderr: bool, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.append_some(stderr, rest) {
                Ok(done) => rest = &rest[done..],
                Err(_) => {
                    self.close_refused();
                    self.end += rest.len() as u64;
                    self.refused_bytes += rest.len() as u64;
                    return bytes.len() - rest.len();
                }
            }
        }
        bytes.len()
    }

    /// Writes an exec's record beside its output. If the disk is full, old output is deleted to make room: how a
    /// command ended matters more than its early output. The last segment stays, because nobody else has that output;
    /// the guest and the daemon still have the record in memory.
    pub(crate) fn write_status(&mut self, status: &ExecStatus) -> io::Result<()> {
        loop {
            let Some(dir) = &self.dir else {
                return Err(io::ErrorKind::StorageFull.into());
            };
            let refused = match write_status(dir.as_fd(), status) {
                Err(e) if matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => e,
                other => return other,
            };
            if self.segments.len() <= 1 {
                return Err(refused);
            }
            let start = self.start();
            self.drop_oldest();
            self.refused_bytes += self.start() - start;
        }
    }

    fn append_some(&mut self, stderr: bool, bytes: &[u8]) -> io::Result<usize> {
        if self.open.as_ref().is_some_and(|o| {
            o.len >= self.bounds.segment_bytes
                || o.index_len + ENTRY_LEN > SEGMENT_INDEX_BYTES
                || o.times.as_ref().is_some_and(|times| times.len + TIME_LEN > SEGMENT_TIMES_BYTES)
        }) {
            self.open = None;
        }
        let open = match &mut self.open {
            Some(open) => open,
            None => {
                if self.pauses() {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                let fresh = open_segment(self.dir.as_ref(), self.end)?;
                self.refused_at = None;
                self.segments.push_back(Segment { start: self.end, bytes: 0, hash: Stretch::new(self.end) });
                self.open.insert(fresh)
            }
        };
        let mut grown = 0;
        if open.stderr != Some(stderr) {
            open.index.write_all(&layout::encode_entry(self.end, stderr))?;
            open.index_len += ENTRY_LEN;
            open.stderr = Some(stderr);
            grown += ENTRY_LEN;
        }
        if let Some(times) = &mut open.times {
            match times.note(self.end, now_ms()) {
                Ok(bytes) => grown += bytes,
                Err(_) => {
                    open.times = None;
                    if let (Some(dir), Some(segment)) = (&self.dir, self.segments.back()) {
                        let _ = rustix::fs::unlinkat(dir, times_name(segment.start), AtFlags::empty());
                    }
                }
            }
        }
        let room = usize::try_from(self.bounds.segment_bytes.saturating_sub(open.len)).unwrap_or(usize::MAX);
        let part = &bytes[..bytes.len().min(room.max(1))];
        let written = loop {
            match open.data.write(part) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => break n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        };
        open.len += written as u64;
        grown += written as u64;
        self.end += written as u64;
        self.kept += grown;
        if let Some(last) = self.segments.back_mut() {
            last.bytes += grown;
            last.hash.add(stderr, &part[..written]);
        }
        while self.segments.len() > 1
            && (self.kept > self.bounds.exec_bytes || self.segments.len() > MAX_SEGMENTS)
        {
            if let Some(next) = self.segments.get(1) {
                // Before the segment is deleted: a reader that misses the segment must see the new value.
                self.bounded_to.store(next.start, Ordering::Release);
            }
            self.drop_oldest();
        }
        Ok(written)
    }

    fn pauses(&self) -> bool {
        self.refused_at.is_some_and(|at| at.elapsed() < REFUSED_PAUSE)
    }

    /// Closes the open segment, because it must not continue after a hole.
    fn close_refused(&mut self) {
        if !self.pauses() {
            self.refused_at = Some(Instant::now());
        }
        if self.open.take().is_some_and(|o| o.len == 0)
            && let Some(empty) = self.segments.pop_back()
        {
            self.kept -= empty.bytes;
            self.unlink(empty.start);
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.segments.pop_front() {
            self.kept -= oldest.bytes;
            self.unlink(oldest.start);
        }
    }

    fn unlink(&self, start: u64) {
        if let Some(dir) = &self.dir {
            // The data first: an index without a segment is never read.
            for name in [data_name(start), index_name(start), times_name(start)] {
                let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
            }
        }
    }
}

fn open_segment(dir: Option<&OwnedFd>, start: u64) -> io::Result<Open> {
    let dir = dir.ok_or(io::ErrorKind::StorageFull)?;
    if start > layout::MAX_OFFSET {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let create = |name: String| -> io::Result<File> {
        Ok(rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    };
    // The index first, so that a reader that finds the segment also finds its index.
    let index = create(index_name(start))?;
    let times = create(times_name(start)).ok().map(|file| Times { file, len: 0, last_ms: None });
    match create(data_name(start)) {
        Ok(data) => Ok(Open { data, index, len: 0, index_len: 0, stderr: None, times }),
        Err(e) => {
            for name in [index_name(start), times_name(start)] {
                let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
            }
            Err(e)
        }
    }
}
