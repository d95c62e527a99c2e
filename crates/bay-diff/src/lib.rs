//! What differs between two trees that an agent wrote, and what of it needs a person's eye.
//!
//! ```text
//!  two directories ── walk ──► what looks changed ── renames ──► content ──► DiffEntry… ──► review ──► Findings
//!                      │        held back, bounded,    paired      read, compared,            pure: reads entries,
//!                      │        in the order of paths              made into a patch          touches no file
//!                      └─ unchanged: same inode, size and times
//! ```
//!
//! Both trees are hostile. They should be read-only snapshots, so that nothing moves under the walk; even if they are
//! not, nothing is opened through a symbolic link or outside of the tree (`openat2`), only regular files are ever opened
//! for reading, and no program runs: no git, no attributes, no filters.
//!
//! What is too much is told, never left out in silence: directories that do not fit into memory or are nested too deep
//! become entries of the change `unread`, files that are too large are compared byte by byte and told as `too-large`, and
//! where more changed than is held back, renames are told as deleted and added (`renames_incomplete`).
//!
//! | module       | for                                                                     |
//! |--------------|-------------------------------------------------------------------------|
//! | `tree`       | opening, listing and looking at what lies below a directory             |
//! | `walk`       | both trees side by side, in the order of names                          |
//! | `renames`    | which of what went and what came are one thing                          |
//! | `content`    | comparing contents                                                      |
//! | [`patch`]    | unified patches                                                         |
//! | [`packages`] | packages of the distribution on both sides                              |
//! | [`ignored`]  | what the repository ignored before                                      |
//! | [`mod@review`] | secrets, weakened tests, files that run code                          |
#![forbid(unsafe_code)]

use std::io;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;

use bay_types::diff::{DiffEntry, DiffSummary};
use bay_types::progress::Progress;

mod compare;
mod content;
pub mod ignored;
pub mod packages;
pub mod patch;
mod renames;
pub mod review;
#[cfg(test)]
mod tests;
mod tree;
mod walk;

pub use compare::compare;
pub use review::review;

/// Largest file that is compared line by line when a person looks at the difference.
pub const SHOWN_FILE_BYTES: u64 = 2 << 20;
/// Longest patch of one file that is shown.
pub const SHOWN_PATCH_BYTES: usize = 1 << 20;
/// The same for a review, which reads more than a person would. A line costs some forty bytes of memory, however short.
pub const REVIEWED_FILE_BYTES: u64 = 4 << 20;

/// How trees are compared.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether entries carry patches, or only the numbers of lines.
    pub patch: bool,
    /// Larger files are compared byte by byte and told as too large.
    pub max_file_bytes: u64,
    /// Longer patches are left out of their entries.
    pub max_patch_bytes: usize,
    pub git: GitDirectories,
    /// Files that changed after this moment (seconds and nanoseconds) are compared by their contents even where inode and
    /// times are the same: the clock of the filesystem is coarse, and a change right after a snapshot may not show.
    pub settled_before: Option<(i64, u32)>,
}

impl Options {
    /// For showing to a person.
    #[must_use]
    pub fn shown(patch: bool) -> Self {
        Self {
            patch,
            max_file_bytes: SHOWN_FILE_BYTES,
            max_patch_bytes: SHOWN_PATCH_BYTES,
            git: GitDirectories::LeftOut,
            settled_before: None,
        }
    }

    /// For [`mod@review`].
    #[must_use]
    pub fn reviewed() -> Self {
        Self {
            patch: true,
            max_file_bytes: REVIEWED_FILE_BYTES,
            // Both sides of the largest file, and the marks before each line.
            max_patch_bytes: REVIEWED_FILE_BYTES as usize * 4,
            git: GitDirectories::WhatRuns,
            settled_before: None,
        }
    }
}

/// What of directories named `.git` is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GitDirectories {
    All,
    /// Nothing: objects and refs are noise beside the files they are about.
    LeftOut,
    /// Settings and hooks: what git runs.
    WhatRuns,
}

/// What is told on the way.
#[derive(Debug)]
pub enum Told {
    Progress(Progress),
    Entry(Box<DiffEntry>),
}

/// Hears of everything; [`ControlFlow::Break`] ends the comparison.
pub type Hear<'a> = &'a mut dyn FnMut(Told) -> ControlFlow<()>;

/// A tree: its top directory, or nothing for an empty one.
pub type Tree<'a> = Option<BorrowedFd<'a>>;

#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// Whoever asked does not listen any more.
    #[error("the comparison was given up")]
    Stopped,
    #[error("could not read the top of the tree")]
    Top(#[source] io::Error),
}

pub(crate) type Result<T> = std::result::Result<T, DiffError>;

/// Counts and tells, often enough for a person and seldom enough to cost nothing.
pub(crate) struct Talk<'a> {
    hear: Hear<'a>,
    pub(crate) summary: DiffSummary,
    bytes: u64,
}

/// Paths between two pieces of news.
const NEWS_EVERY: u64 = 512;
/// Bytes of large files between two pieces of news.
const NEWS_EVERY_BYTES: u64 = 8 << 20;

impl<'a> Talk<'a> {
    pub(crate) fn new(hear: Hear<'a>) -> Self {
        Self { hear, summary: DiffSummary::default(), bytes: 0 }
    }

    pub(crate) fn tell(&mut self, told: Told) -> Result<()> {
        match (self.hear)(told) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(DiffError::Stopped),
        }
    }

    /// One more path was looked at.
    pub(crate) fn compared(&mut self) -> Result<()> {
        self.summary.compared += 1;
        if self.summary.compared % NEWS_EVERY == 1 {
            return self.progress("comparing", self.summary.compared, None, "files");
        }
        Ok(())
    }

    /// So many more bytes of contents were read.
    pub(crate) fn read(&mut self, bytes: usize) -> Result<()> {
        let before = self.bytes / NEWS_EVERY_BYTES;
        self.bytes += bytes as u64;
        if self.bytes / NEWS_EVERY_BYTES > before {
            return self.progress("reading what changed", self.bytes, None, "bytes");
        }
        Ok(())
    }

    pub(crate) fn progress(&mut self, stage: &str, done: u64, total: Option<u64>, unit: &str) -> Result<()> {
        self.tell(Told::Progress(Progress { stage: stage.to_owned(), done, total, unit: unit.to_owned() }))
    }
}
