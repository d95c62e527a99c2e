//! The `bay` command: one executable that is the CLI, the daemon, the runtime helper and PID 1 of every bay.
//!
//! ```text
//!  bay __guest, bay __runtime ──► multicall: no arguments parsed, no threads, no runtime started
//!  bay-ctl, inside a bay ───────► bay_ctl: asks that bay's guest
//!  bay serve ───────────────────► commands::serve: the daemon
//!  any other verb ──► clap ──► commands::VERB ──► client ──► D/bay.sock ──► daemon
//!                                                   │
//!                                                   └─ no daemon answers, caller is root: start one, wait for it
//! ```
//!
//! A verb never opens the daemon's files: everything goes through the socket. The caller's own things (repository,
//! files, terminal) are read here, with the caller's rights, and streamed.
//!
//! Failure paths:
//! - no daemon answers and none can be started: `daemon-unreachable` or `not-root`, with the last lines of the daemon's log;
//! - the connection breaks during an exec: the client attaches again at the next byte ([`session`]), so no output is lost;
//! - the daemon refuses: its code, message and next step are printed unchanged ([`output`]);
//! - standard output is closed: the verb exits with 141, as if it had received SIGPIPE.
#![forbid(unsafe_code)]

mod archive;
mod bay_ctl;
mod cli;
mod commands;
mod daemon_start;
mod disk_space;
mod doctor;
mod failure;
mod git;
mod global_options;
mod multicall;
mod naming;
mod one_thread;
mod operator;
mod output;
#[cfg(test)]
mod reference;
mod session;
mod sparse_file;
mod terminal;
mod top;
mod workspace;

use std::process::ExitCode;

fn main() -> ExitCode {
    multicall::dispatch().unwrap_or_else(cli::run)
}
