//! Comparing contents. Holes are skipped, and a file is read into memory only to compare it as text.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use bay_types::diff::Content;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::options::Options;
use crate::patch::{self, Patch};
use crate::report::{Reporter, Result};
use crate::tree::{Meta, open_file};

/// Bytes per read.
const CHUNK: usize = 1 << 20;
/// How long to search for the shortest edit script of one file. After that a longer script is accepted.
const SCRIPT_WITHIN: Duration = Duration::from_millis(250);
/// How long to search for edit scripts in the whole comparison.
const SCRIPTS_WITHIN: Duration = Duration::from_secs(20);

/// One side of a comparison: a file, or `None`.
pub(crate) type FileSide<'a> = Option<(BorrowedFd<'a>, &'a [u8], &'a Meta)>;

/// Compares contents within a time budget.
#[derive(Debug)]
pub(crate) struct Contents<'a> {
    options: &'a Options,
    spent: Duration,
}

impl<'a> Contents<'a> {
    pub(crate) fn new(options: &'a Options) -> Self {
        Self { options, spent: Duration::ZERO }
    }

    /// See [`Options::settled_before`].
    pub(crate) fn settled_before(&self) -> Option<(i64, u32)> {
        self.options.settled_before
    }

    pub(crate) fn compare(
        &mut self,
        before: FileSide<'_>,
        after: FileSide<'_>,
        reporter: &mut Reporter<'_>,
    ) -> Result<Content> {
        let size = |side: &FileSide<'_>| side.map_or(0, |(_, _, meta)| meta.size);
        let read = size(&before).max(size(&after)) <= self.options.max_file_bytes;
        let compared = if read {
            self.as_text(before, after, reporter)
        } else if size(&before) != size(&after) {
            Ok(Ok(Content::TooLarge))
        } else {
            same_bytes(before, after, reporter)
                .map(|same| same.map(|same| if same { Content::Same } else { Content::TooLarge }))
        };
        // The outer result is an error of the comparison, the inner one of reading.
        Ok(compared?.unwrap_or_else(|error| Content::Unread { why: format!("it cannot be read: {error}") }))
    }

    fn as_text(
        &mut self,
        before: FileSide<'_>,
        after: FileSide<'_>,
        reporter: &mut Reporter<'_>,
    ) -> Result<io::Result<Content>> {
        let (old, new) = match (self.whole(before), self.whole(after)) {
            (Ok(Some(old)), Ok(Some(new))) => (old, new),
            (Ok(_), Ok(_)) => return Ok(Ok(Content::TooLarge)),
            (Err(error), _) | (_, Err(error)) => return Ok(Err(error)),
        };
        reporter.read(old.len() + new.len())?;
        if old == new {
            return Ok(Ok(Content::Same));
        }
        if memchr::memchr(0, &old).is_some() || memchr::memchr(0, &new).is_some() {
            return Ok(Ok(Content::Binary));
        }
        let began = Instant::now();
        let within = SCRIPT_WITHIN.min(SCRIPTS_WITHIN.saturating_sub(self.spent));
        let limit = self.options.patch.then_some(self.options.max_patch_bytes);
        let Patch { added, removed, text } = patch::unified(&old, &new, limit, began + within);
        self.spent += began.elapsed();
        let (patch, lossy) = match text.map(String::from_utf8) {
            None => (None, false),
            Some(Ok(text)) => (Some(text), false),
            Some(Err(bytes)) => (Some(String::from_utf8_lossy(bytes.as_bytes()).into_owned()), true),
        };
        Ok(Ok(Content::Text { added, removed, patch, lossy }))
    }

    /// The whole file; `None` if it grew beyond the limit.
    fn whole(&self, side: FileSide<'_>) -> io::Result<Option<Vec<u8>>> {
        let Some((top, path, meta)) = side else { return Ok(Some(Vec::new())) };
        if meta.size == 0 {
            return Ok(Some(Vec::new()));
        }
        let capacity = usize::try_from(meta.size).unwrap_or(CHUNK).saturating_add(1);
        let mut bytes = Vec::with_capacity(capacity);
        open_file(top, path)?.take(self.options.max_file_bytes + 1).read_to_end(&mut bytes)?;
        Ok((bytes.len() as u64 <= self.options.max_file_bytes).then_some(bytes))
    }
}

/// Whether two files of the same size have equal contents, whatever their size. Reads only where one of them has
/// data.
fn same_bytes(
    before: FileSide<'_>,
    after: FileSide<'_>,
    reporter: &mut Reporter<'_>,
) -> Result<io::Result<bool>> {
    let (Some((old_top, old_path, meta)), Some((new_top, new_path, _))) = (before, after) else {
        return Ok(Ok(before.is_none() && after.is_none()));
    };
    let (old, new) = match (open_file(old_top, old_path), open_file(new_top, new_path)) {
        (Ok(old), Ok(new)) => (old, new),
        (Err(error), _) | (_, Err(error)) => return Ok(Err(error)),
    };
    let (mut left, mut right) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut at = 0;
    loop {
        let next = match (next_data(&old, at, meta.size), next_data(&new, at, meta.size)) {
            (Ok(old), Ok(new)) => old.min(new),
            (Err(error), _) | (_, Err(error)) => return Ok(Err(error)),
        };
        if next >= meta.size {
            return Ok(Ok(true));
        }
        let len = usize::try_from(meta.size - next).map_or(CHUNK, |rest| rest.min(CHUNK));
        for (file, buffer) in [(&old, &mut left), (&new, &mut right)] {
            if let Err(error) = file.read_exact_at(&mut buffer[..len], next) {
                return Ok(Err(error));
            }
        }
        reporter.read(2 * len)?;
        if left[..len] != right[..len] {
            return Ok(Ok(false));
        }
        at = next + len as u64;
    }
}

/// Where data begins at or after `at`, or `end` if there is none.
fn next_data(file: &File, at: u64, end: u64) -> io::Result<u64> {
    if at >= end {
        return Ok(end);
    }
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(next) => Ok(next),
        Err(Errno::NXIO) => Ok(end),
        // The filesystem does not report holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(at),
        Err(errno) => Err(errno.into()),
    }
}

/// A hash of a small file, for detecting files that were copied and deleted.
pub(crate) fn fingerprint(top: BorrowedFd<'_>, path: &[u8], size: u64) -> io::Result<[u8; 32]> {
    let mut digest = Sha256::new();
    let mut file = open_file(top, path)?.take(size);
    let mut buffer = vec![0; CHUNK.min(usize::try_from(size).unwrap_or(CHUNK)).max(1)];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(digest.finalize().into()),
            got => digest.update(&buffer[..got]),
        }
    }
}
