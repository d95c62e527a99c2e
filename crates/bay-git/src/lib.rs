//! Git, confined, on data that an agent or a server wrote.
//!
//! ```text
//!  bay-pool: the cache of repositories ──► Git ──┐
//!  bay: the work that leaves a bay ──► CleanRepo ┴──► Confinement ──► git, a child that dies with its caller
//! ```
//!
//! Git never runs here with settings, hooks or a transport that a repository or a user chose, and of the environment
//! it gets only what its caller names. On a kernel with Landlock the process can change only the directories that
//! its task names. Its output is hostile too: it is bounded, and an error quotes it on one line.
//!
//! | module        | what it is for                                                            |
//! |---------------|---------------------------------------------------------------------------|
//! | `confinement` | running a program of the host on data that may be hostile                  |
//! | `run`         | one run of git: its settings, its deadlines, its progress                  |
//! | `clean`       | a repository of our own making for the work that leaves a bay              |
//! | `names`       | ids of objects and names of refs                                          |
//! | `error`       | what can go wrong                                                          |
#![forbid(unsafe_code)]

mod clean;
mod confinement;
mod error;
mod names;
mod run;

pub use clean::{Changed, CleanRepo, Entry, LaidOut, Lender, Taken};
pub use confinement::{Confinement, SYSTEM_PATH};
pub use error::GitError;
pub use names::{is_object_id, is_ref_name};
pub use run::{Git, LONG_SILENCE, Report, STRICT, Said, failed};
