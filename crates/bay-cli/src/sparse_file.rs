//! A new file of the caller's for data from a bay: zeros become holes, and the disk keeps its reserve.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use bay_types::sparse::data_runs;

use crate::disk_space::DiskSpace;

/// A file that is written from its beginning to its end.
#[derive(Debug)]
pub(crate) struct SparseFile<'a> {
    file: &'a File,
    space: &'a mut DiskSpace,
    at: u64,
}

impl<'a> SparseFile<'a> {
    /// `file` must be empty.
    pub(crate) fn new(file: &'a File, space: &'a mut DiskSpace) -> Self {
        Self { file, space, at: 0 }
    }

    /// Writes the next bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        for run in data_runs(self.at, bytes) {
            self.space.take(run.len() as u64)?;
            self.file.write_all_at(&bytes[run.clone()], self.at + run.start as u64)?;
        }
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Leaves a hole up to this offset, which must not lie before the written data.
    pub(crate) fn skip_to(&mut self, at: u64) {
        debug_assert!(at >= self.at);
        self.at = at;
    }

    /// Sets the length of the file, because a hole at the end is not written.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.file.set_len(self.at)
    }
}
