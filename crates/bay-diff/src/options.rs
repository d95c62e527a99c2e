//! Options of a comparison.

/// Largest file that is compared line by line for display.
pub const SHOWN_FILE_BYTES: u64 = 2 << 20;
/// Longest patch of one file for display.
pub const SHOWN_PATCH_BYTES: usize = 1 << 20;
/// Largest file that is compared line by line for a review, which reads more than a person would. A line takes
/// about forty bytes of memory, even if it is short.
pub const REVIEWED_FILE_BYTES: u64 = 4 << 20;

/// How trees are compared.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether entries have patches, or only counts of lines.
    pub patch: bool,
    /// Larger files are compared byte by byte and reported as too large.
    pub max_file_bytes: u64,
    /// Longer patches are omitted.
    pub max_patch_bytes: usize,
    pub git: GitDirectories,
    /// Files that changed after this moment (seconds and nanoseconds) are compared by content even if inode and
    /// times are equal. The clock of the filesystem is coarse, so a change right after a snapshot may keep the same
    /// times.
    pub settled_before: Option<(i64, u32)>,
    /// Whether another owner is a difference. The workspace of a bay with its own user belongs to that user, and what it
    /// began from does not.
    pub owners: bool,
    /// Whether the link to `bay-ctl` that the guest makes is a difference. In a root filesystem it is not the agent's.
    pub ctl_link: bool,
}

impl Options {
    /// Options for display to a person.
    #[must_use]
    pub fn shown(patch: bool) -> Self {
        Self {
            patch,
            max_file_bytes: SHOWN_FILE_BYTES,
            max_patch_bytes: SHOWN_PATCH_BYTES,
            git: GitDirectories::LeftOut,
            settled_before: None,
            owners: true,
            ctl_link: true,
        }
    }

    /// Options for [`mod@review`].
    #[must_use]
    pub fn reviewed() -> Self {
        Self {
            patch: true,
            max_file_bytes: REVIEWED_FILE_BYTES,
            // Enough for both sides of the largest file, with a mark before each line.
            max_patch_bytes: REVIEWED_FILE_BYTES as usize * 4,
            git: GitDirectories::WhatRuns,
            settled_before: None,
            owners: true,
            ctl_link: true,
        }
    }
}

/// Which parts of directories named `.git` are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GitDirectories {
    All,
    /// Nothing: objects and refs are noise.
    LeftOut,
    /// The settings, hooks and `info`: what can make git run programs.
    WhatRuns,
}
