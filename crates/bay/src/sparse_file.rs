//! A new file of the caller's that receives what a bay sends: zeros become holes, and the disk keeps its reserve.

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
    /// `file` is empty.
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

    /// Leaves a hole up to this place, which is not before what was written.
    pub(crate) fn skip_to(&mut self, at: u64) {
        debug_assert!(at >= self.at);
        self.at = at;
    }

    /// Gives the file its length: a hole at the end has no write of its own.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.file.set_len(self.at)
    }
}
