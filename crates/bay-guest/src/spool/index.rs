//! Reads the index and the times of a segment, in files that may be hostile.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, ReadWriteFlags};

use super::layout::{self, ENTRY_LEN, TIME_LEN};
use super::reader::Wait;
use super::{SEGMENT_INDEX_BYTES, SEGMENT_TIMES_BYTES, SpoolError};

/// Bytes that are read of an index at once: a multiple of the length of every entry.
const BLOCK: usize = 512;

/// What an entry says of the stretch that begins at its offset.
pub(super) trait Entry: Copy {
    const LEN: u64;
    /// Longest file.
    const MOST: u64;
    /// The offset and the entry, of [`Self::LEN`] bytes.
    fn decode(bytes: &[u8]) -> Option<(u64, Self)>;
}

/// The stream of a stretch.
#[derive(Debug, Clone, Copy)]
pub(super) struct IsStderr(pub(super) bool);

/// When a stretch came, in milliseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct CameAt(pub(super) u64);

impl Entry for IsStderr {
    const LEN: u64 = ENTRY_LEN;
    const MOST: u64 = SEGMENT_INDEX_BYTES;

    fn decode(bytes: &[u8]) -> Option<(u64, Self)> {
        let (offset, stderr) = layout::decode_entry(u64::from_le_bytes(bytes.try_into().ok()?));
        Some((offset, Self(stderr)))
    }
}

impl Entry for CameAt {
    const LEN: u64 = TIME_LEN;
    const MOST: u64 = SEGMENT_TIMES_BYTES;

    fn decode(bytes: &[u8]) -> Option<(u64, Self)> {
        let (offset, at) = bytes.split_first_chunk()?;
        Some((u64::from_le_bytes(*offset), Self(u64::from_le_bytes(at.try_into().ok()?))))
    }
}

/// A position in the index of one segment.
#[derive(Debug)]
pub(super) struct Index<E> {
    file: OwnedFd,
    /// Number of the entry that was used last, if any.
    current: Option<u64>,
    /// The entries that were read last, and the number of the first of them.
    block: Vec<(u64, E)>,
    block_first: u64,
}

impl<E: Entry> Index<E> {
    pub(super) fn new(file: OwnedFd) -> Self {
        Self { file, current: None, block: Vec::new(), block_first: 0 }
    }

    /// The entry that covers an offset, and the offset at which the next entry starts, which is always greater.
    pub(super) fn run_at(&mut self, at: u64) -> Result<(Option<E>, Option<u64>), SpoolError> {
        let mut current = match self.current {
            Some(current) => current,
            None => match self.search(at)? {
                Some(found) => found,
                None => return Ok((None, self.entry(0)?.map(|e| e.0).filter(|o| *o > at))),
            },
        };
        // This ends: the length of an index is bounded, and each step moves one entry on.
        let next = loop {
            match self.entry(current + 1)? {
                Some((offset, _)) if offset <= at => current += 1,
                Some((offset, _)) => break Some(offset),
                None => break None,
            }
        };
        self.current = Some(current);
        Ok((self.entry(current)?.map(|e| e.1), next))
    }

    /// Number of the last entry that starts at or before an offset.
    fn search(&mut self, at: u64) -> Result<Option<u64>, SpoolError> {
        let size = rustix::fs::fstat(&self.file).map_err(|e| SpoolError::io("an index", e))?.st_size;
        let (mut low, mut high) = (0, u64::try_from(size).unwrap_or(0).min(E::MOST) / E::LEN);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.entry(middle)? {
                Some((offset, _)) if offset <= at => low = middle + 1,
                _ => high = middle,
            }
        }
        Ok(low.checked_sub(1))
    }

    fn entry(&mut self, number: u64) -> Result<Option<(u64, E)>, SpoolError> {
        if number >= E::MOST / E::LEN {
            return Ok(None);
        }
        let in_block = |block: &[(u64, E)], first: u64| {
            number.checked_sub(first).and_then(|at| block.get(usize::try_from(at).ok()?).copied())
        };
        if let Some(entry) = in_block(&self.block, self.block_first) {
            return Ok(Some(entry));
        }
        let mut bytes = [0; BLOCK];
        let got = pread(self.file.as_fd(), &mut bytes, number * E::LEN, Wait::Disk)?.unwrap_or(0);
        let entries = bytes[..got].chunks_exact(usize::try_from(E::LEN).unwrap_or(BLOCK));
        self.block = entries.filter_map(E::decode).collect();
        self.block_first = number;
        Ok(self.block.first().copied())
    }
}

pub(super) fn pread(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    at: u64,
    wait: Wait,
) -> Result<Option<usize>, SpoolError> {
    let mut flags = if wait == Wait::Never { ReadWriteFlags::NOWAIT } else { ReadWriteFlags::empty() };
    loop {
        match rustix::io::preadv2(fd, &mut [IoSliceMut::new(buffer)], at, flags) {
            Ok(got) => return Ok(Some(got)),
            Err(Errno::AGAIN) if wait == Wait::Never => return Ok(None),
            // A filesystem in memory, where reads never wait.
            Err(Errno::OPNOTSUPP) if !flags.is_empty() => flags = ReadWriteFlags::empty(),
            Err(Errno::INTR) => {}
            Err(e) => return Err(SpoolError::io("a segment", e)),
        }
    }
}
