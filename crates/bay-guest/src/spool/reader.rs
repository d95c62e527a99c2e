//! Reads kept output from any byte, in a directory that may be hostile.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bay_types::ExecId;
use bay_types::exec::ExecStatus;
use bay_types::frame::{Frame, Gap, GapReason};

use super::index::{CameAt, Index, IsStderr, pread};
use super::layout::{data_name, index_name, open_regular, segment_starts, times_name};
use super::{EXEC_BYTES, SEGMENT_BYTES, SpoolError, open_exec};

/// How often a segment may vanish between being listed and being opened before reading fails.
const MAX_RACES: usize = 8;

/// The next part of an exec's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// This many bytes of one stream, which are now in the buffer.
    Output { stderr: bool, len: usize },
    /// These bytes are not kept.
    Gap(Gap),
    /// The end.
    End,
}

/// Whether a read may wait for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Disk,
    Never,
}

/// Reads the kept output of one exec in order. A call waits for nothing but the disk.
#[derive(Debug)]
pub struct Reader {
    dir: OwnedFd,
    at: u64,
    limit: u64,
    /// Up to which offset the bound has dropped output, if known. The writer updates it before it drops.
    bounded_to: Option<Arc<AtomicU64>>,
    segment: Option<Opened>,
    /// Bytes that may still be delivered, if the directory is not trusted to end.
    allowance: Option<u64>,
    /// When output came is read too.
    timed: bool,
    /// When the last piece came, in milliseconds since 1970. Zero: not recorded.
    time: u64,
    /// The time in the last frame of a time.
    told: Option<u64>,
}

#[derive(Debug)]
struct Opened {
    start: u64,
    data: OwnedFd,
    index: Option<Index<IsStderr>>,
    times: Option<Index<CameAt>>,
}

impl Reader {
    /// Reads the output of an exec to which no writer appends any more, from `since` on. `status` comes from
    /// [`read_status`](super::read_status).
    ///
    /// # Errors
    /// If nothing is kept of the exec or the directory cannot be opened.
    pub fn open(state: BorrowedFd<'_>, status: &ExecStatus, since: u64) -> Result<Self, SpoolError> {
        let bounded_to = status.bounded_to.map(|to| Arc::new(AtomicU64::new(to)));
        let mut reader = Self::follow(state, status.spec.id, since, bounded_to)?;
        reader.limit = status.output_bytes;
        reader.allowance = Some(EXEC_BYTES + SEGMENT_BYTES);
        Ok(reader)
    }

    /// Reads while a writer appends. [`Self::extend`] says how far the writer is.
    pub(crate) fn follow(
        state: BorrowedFd<'_>,
        id: ExecId,
        since: u64,
        bounded_to: Option<Arc<AtomicU64>>,
    ) -> Result<Self, SpoolError> {
        let dir = open_exec(state, id)?;
        let (segment, allowance, timed, time, told) = (None, None, false, 0, None);
        Ok(Self { dir, at: since, limit: since, bounded_to, segment, allowance, timed, time, told })
    }

    /// Reads also when output came. A piece then has one time.
    #[must_use]
    pub fn with_times(self, timed: bool) -> Self {
        Self { timed, ..self }
    }

    /// The frame that goes before the last piece of output, if its time is another than that of the frame before.
    pub fn time_frame(&mut self) -> Option<Vec<u8>> {
        let changed = self.timed && self.told != Some(self.time);
        self.told = Some(self.time);
        changed.then(|| Frame::Time(self.time).to_bytes())
    }

    /// The offset of the next byte.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// The offset at which the segment of the last piece begins.
    pub(crate) fn segment_start(&self) -> Option<u64> {
        self.segment.as_ref().map(|segment| segment.start)
    }

    /// Allows reading up to `end`: every byte before it is on disk or will never be.
    pub(crate) fn extend(&mut self, end: u64) {
        self.limit = end;
    }

    /// Continues at another offset.
    pub(crate) fn seek(&mut self, at: u64) {
        self.at = at;
        // The index of an open segment is only read forwards.
        self.segment = None;
        self.time = 0;
    }

    /// Puts the next part of the output into `buffer`, which must not be empty.
    ///
    /// # Errors
    /// If the disk fails or the directory has content that the writer never makes.
    pub fn next(&mut self, buffer: &mut [u8]) -> Result<Piece, SpoolError> {
        // Only `Wait::Never` returns None.
        Ok(self.next_waiting(buffer, Wait::Disk)?.unwrap_or(Piece::End))
    }

    /// Puts the next part of the output into `buffer`. None if the bytes are not in memory and `wait` forbids reading
    /// the disk.
    pub(crate) fn next_waiting(
        &mut self,
        buffer: &mut [u8],
        wait: Wait,
    ) -> Result<Option<Piece>, SpoolError> {
        for _ in 0..MAX_RACES {
            if self.at >= self.limit {
                return Ok(Some(Piece::End));
            }
            if let Some(stretch) = self.stretch()? {
                return self.read(stretch, buffer, wait);
            }
            if !self.enter()? {
                let starts = segment_starts(self.dir.as_fd())?;
                return Ok(Some(Piece::Gap(self.gap(&starts))));
            }
        }
        Err(SpoolError::Damaged("its segments come and go"))
    }

    /// The gap at `at`, with one reason for all of it. Moves behind it.
    fn gap(&mut self, starts: &[u64]) -> Gap {
        let next = starts.iter().copied().find(|start| *start > self.at);
        let mut end = next.unwrap_or(self.limit).min(self.limit);
        // The bound drops segments from the front and never the last one. So any other hole comes from the disk.
        let in_front = next.is_some() && starts.first().copied() == next;
        let why = match self.bounded_to.as_ref().map(|to| to.load(Ordering::Acquire)) {
            None if in_front => GapReason::Bound,
            Some(bounded_to) if self.at < bounded_to => {
                end = end.min(bounded_to);
                GapReason::Bound
            }
            _ => GapReason::DiskFull,
        };
        let dropped = end - self.at;
        self.at = end;
        Gap { dropped, why }
    }

    /// The stream of the byte at `at`, and how many bytes of that stream follow. None if the open segment does not have
    /// that byte.
    fn stretch(&mut self) -> Result<Option<(bool, u64)>, SpoolError> {
        let Some(segment) = &mut self.segment else {
            return Ok(None);
        };
        let size = rustix::fs::fstat(&segment.data).map_err(|e| SpoolError::io("a segment", e))?.st_size;
        let end = (segment.start + u64::try_from(size).unwrap_or(0).min(SEGMENT_BYTES)).min(self.limit);
        if self.at < segment.start || self.at >= end {
            return Ok(None);
        }
        let (stream, run_end) = match &mut segment.index {
            Some(index) => index.run_at(self.at)?,
            None => (None, None),
        };
        let (came, step_end) = match &mut segment.times {
            Some(times) => times.run_at(self.at)?,
            None => (None, None),
        };
        self.time = came.map_or(0, |came| came.0);
        let end = run_end.unwrap_or(end).min(step_end.unwrap_or(end)).min(end);
        Ok(Some((stream.is_some_and(|stream| stream.0), end - self.at)))
    }

    fn read(
        &mut self,
        (stderr, len): (bool, u64),
        buffer: &mut [u8],
        wait: Wait,
    ) -> Result<Option<Piece>, SpoolError> {
        let Some(segment) = &self.segment else {
            return Ok(Some(Piece::End));
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(buffer.len());
        let Some(got) = pread(segment.data.as_fd(), &mut buffer[..len], self.at - segment.start, wait)?
        else {
            return Ok(None);
        };
        if got == 0 {
            return Err(SpoolError::Damaged("a segment became shorter"));
        }
        if let Some(allowance) = &mut self.allowance {
            *allowance = allowance
                .checked_sub(got as u64)
                .ok_or(SpoolError::Damaged("there is more of it than is ever kept"))?;
        }
        self.at += got as u64;
        Ok(Some(Piece::Output { stderr, len: got }))
    }

    /// Opens the segment that has the byte at `at`. Returns whether there is one.
    fn enter(&mut self) -> Result<bool, SpoolError> {
        // Usually the next segment starts where the last one ended.
        if self.open_segment(self.at)? {
            return Ok(true);
        }
        let starts = segment_starts(self.dir.as_fd())?;
        let Some(start) = starts.into_iter().rev().find(|start| *start <= self.at) else {
            return Ok(false);
        };
        self.open_segment(start)
    }

    /// Opens one segment. Returns false if it does not exist or does not reach `at`.
    fn open_segment(&mut self, start: u64) -> Result<bool, SpoolError> {
        let open = |name: String, what| match open_regular(self.dir.as_fd(), &name) {
            Ok((fd, size)) => Ok(Some((fd, size))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(SpoolError::io(what, e)),
        };
        let Some((data, size)) = open(data_name(start), "a segment")? else {
            return Ok(false);
        };
        if start.saturating_add(size.min(SEGMENT_BYTES)) <= self.at {
            return Ok(false);
        }
        let index = open(index_name(start), "an index")?.map(|(file, _)| Index::new(file));
        // Without times the output is still whole, so a file that is not one of times is no error.
        let times = open_regular(self.dir.as_fd(), &times_name(start)).ok().filter(|_| self.timed);
        let times = times.map(|(file, _)| Index::new(file));
        self.segment = Some(Opened { start, data, index, times });
        Ok(true)
    }
}
