//! git, confined, on what an agent or a server wrote.
//!
//! ```text
//!  bay-pool: the cache of repositories ──► Git ──┐
//!  bay: the work that leaves a bay ──► CleanRepo ┴──► Confinement ──► git, a child that dies with its caller
//! ```
//!
//! Git never runs here with an environment, settings, hooks or a network that a repository or a caller chose, and the process
//! can change only the directories named for its task. What it says is hostile too: it is bounded and kept on one line.
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

use bay_types::progress::Progress;

pub use clean::{Changed, CleanRepo, Entry, LaidOut, Lender, Taken};
pub use confinement::Confinement;
pub use error::GitError;
pub use names::{is_object_id, is_ref_name};
pub use run::{Git, LONG_SILENCE, STRICT, Said, failed};

/// Where programs of the host are looked for, whatever the caller's environment says.
pub const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Called with progress during long work; may be called often, so it must be cheap.
pub type Report<'a> = &'a mut dyn FnMut(Progress);
