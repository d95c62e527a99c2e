//! Differences between two trees that an agent wrote, and a review of them for a person.
//!
//! ```text
//!  two directories ── walk ──► candidates ── renames ──► content ──► DiffEntry… ──► review ──► Findings
//!                      │      held, bounded,   paired      read, compared,            pure: reads entries,
//!                      │      sorted by path               made into a patch          opens no file
//!                      └─ unchanged: same inode, size and times
//! ```
//!
//! Both trees are hostile. They should be read-only snapshots, which do not change during the walk. In any case
//! nothing is opened through a symbolic link or outside of the tree (`openat2`), only regular files are opened for
//! reading, and no program runs: no git, no attributes, no filters.
//!
//! What a repository ignores can be left out; it is counted. A comparison reports where a limit made it incomplete: a
//! directory that does not fit into memory or is nested too deep becomes an entry of the change `unread`. A file
//! that is too large is compared byte by byte and reported as `too-large`. If too much changed to hold all of it,
//! some renames appear as a deletion and an addition (`renames_incomplete`).
//!
//! | module       | for                                                                     |
//! |--------------|-------------------------------------------------------------------------|
//! | `options`    | how trees are compared                                                  |
//! | `report`     | entries and progress on their way to the caller                         |
//! | `tree`       | opening and listing files below a directory                             |
//! | `walk`       | both trees side by side, in the order of names                          |
//! | `renames`    | pairs of a deleted and an added path that are one rename                |
//! | `content`    | comparing contents                                                      |
//! | [`patch`]    | unified patches                                                         |
//! | [`packages`] | installed packages on both sides                                        |
//! | `left_out`   | what is not compared because the repository ignores it                  |
//! | `ignored`    | rules of `.gitignore` files                                             |
//! | [`mod@review`] | secrets, weakened tests, files that run code                          |
#![forbid(unsafe_code)]

mod compare;
mod content;
mod ignored;
mod left_out;
mod options;
pub mod packages;
pub mod patch;
mod renames;
mod report;
pub mod review;
#[cfg(test)]
mod tests;
mod tree;
mod walk;

pub use compare::{compare, compare_without};
pub use ignored::{IgnoredPaths, ignored_by};
pub use left_out::{LeftOut, RulesOf};
pub use options::{GitDirectories, Options, REVIEWED_FILE_BYTES, SHOWN_FILE_BYTES, SHOWN_PATCH_BYTES};
pub use report::{DiffError, Hear, Told};
pub use review::review;
pub use tree::Tree;
