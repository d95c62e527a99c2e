//! Entries and progress that a comparison passes to its caller, and its errors.

use std::io;
use std::ops::ControlFlow;

use bay_types::diff::{DiffEntry, DiffSummary};
use bay_types::progress::Progress;

/// One update of a running comparison.
#[derive(Debug)]
pub enum Told {
    Progress(Progress),
    Entry(Box<DiffEntry>),
}

/// The caller's function for updates. [`ControlFlow::Break`] cancels the comparison.
pub type Hear<'a> = &'a mut dyn FnMut(Told) -> ControlFlow<()>;

#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// The caller cancelled it.
    #[error("the comparison was stopped")]
    Stopped,
    #[error("could not read the top of the tree")]
    Top(#[source] io::Error),
}

pub(crate) type Result<T> = std::result::Result<T, DiffError>;

/// Counts what was compared, and reports progress at reasonable intervals.
pub(crate) struct Reporter<'a> {
    hear: Hear<'a>,
    pub(crate) summary: DiffSummary,
    bytes: u64,
}

/// Compared paths between two reports of progress.
const PROGRESS_EVERY: u64 = 512;
/// Bytes of content between two reports of progress.
const PROGRESS_EVERY_BYTES: u64 = 8 << 20;

impl<'a> Reporter<'a> {
    pub(crate) fn new(hear: Hear<'a>) -> Self {
        Self { hear, summary: DiffSummary::default(), bytes: 0 }
    }

    pub(crate) fn report(&mut self, told: Told) -> Result<()> {
        match (self.hear)(told) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(DiffError::Stopped),
        }
    }

    /// Counts one compared path.
    pub(crate) fn compared(&mut self) -> Result<()> {
        self.summary.compared += 1;
        if self.summary.compared % PROGRESS_EVERY == 1 {
            return self.progress("comparing", self.summary.compared, None, "files");
        }
        Ok(())
    }

    /// Counts bytes of content that were read.
    pub(crate) fn read(&mut self, bytes: usize) -> Result<()> {
        let before = self.bytes / PROGRESS_EVERY_BYTES;
        self.bytes += bytes as u64;
        if self.bytes / PROGRESS_EVERY_BYTES > before {
            return self.progress("reading what changed", self.bytes, None, "bytes");
        }
        Ok(())
    }

    pub(crate) fn progress(&mut self, stage: &str, done: u64, total: Option<u64>, unit: &str) -> Result<()> {
        self.report(Told::Progress(Progress { stage: stage.to_owned(), done, total, unit: unit.to_owned() }))
    }
}
