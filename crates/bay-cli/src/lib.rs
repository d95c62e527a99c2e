//! The command line of `bay`: grammar, verbs, output.
//!
//! ```text
//!  bay serve ───► [`DaemonInThisExecutable`]
//!  most verbs ──► clap ──► commands::VERB ──► client ──► D/bay.sock ──► daemon
//!                                               │
//!                                               └─ no daemon answers, caller is root: start one, wait for it
//!  install, uninstall, doctor, completions ──► clap ──► commands::VERB, without a daemon
//!  bay-ctl, inside a bay ──► [`bay_ctl`]: asks that bay's guest
//! ```
//!
//! Only what starts, ends, checks or removes a daemon opens the daemon's files. Every other verb goes through the
//! socket. The caller's own things (repository, files, terminal) are read here, with the caller's rights, and
//! streamed.
//!
//! Failure paths:
//! - no daemon answers: `not-root` if the caller may not start one, or `daemon-unreachable`, with the last lines of the
//!   daemon's log if one was started and failed;
//! - the connection breaks during an exec: the client attaches again at the next byte ([`session`]), so no kept output is
//!   lost;
//! - the daemon refuses: its code, message and next step are printed ([`output`]). A few verbs put them into other words;
//! - standard output is closed: the verb exits with 141, as if it had received SIGPIPE.
#![forbid(unsafe_code)]

mod archive;
pub mod bay_ctl;
mod cli;
mod commands;
mod daemon_in_this_executable;
mod daemon_start;
mod disk_space;
mod doctor;
#[cfg(test)]
mod examples;
mod failure;
mod forward;
#[cfg(fuzzing)]
pub mod fuzz;
mod git;
mod global_options;
mod installation;
mod misuse;
#[cfg(test)]
mod misuse_tests;
mod naming;
mod one_thread;
mod operator;
mod output;
#[cfg(test)]
mod reference;
mod removed_bay;
mod serve_options;
mod session;
mod sparse_file;
mod terminal;
mod top;
mod typed_words;
mod unused_recipes;
mod workspace;

pub use cli::run;
pub use daemon_in_this_executable::DaemonInThisExecutable;
pub use daemon_start::DaemonLocation;
pub use output::talk;
pub use serve_options::Serve;
