//! The `bay` command: one executable that is the CLI, the daemon, the runtime helper and PID 1 of every bay.
//!
//! ```text
//!  bay __guest, bay __runtime ──► multicall: no arguments parsed, no threads, no runtime started
//!  bay-ctl, inside a bay ───────► bay_ctl: asks that bay's guest
//!  bay serve ───────────────────► commands::serve: the daemon
//!  any other verb ──► clap ──► commands::VERB ──► client ──► D/bay.sock ──► daemon
//!                                                   │
//!                                                   └─ nobody answers, caller is root: start a daemon, wait for it
//! ```
//!
//! A verb never touches the daemon's files: everything goes through the socket. What the caller owns (their
//! repository, their files, their terminal) is read here, as the caller, and streamed.
//!
//! Failure paths:
//! - nobody answers and none can be started: `daemon-unreachable` or `not-root`, with the daemon's last words;
//! - the connection breaks under an exec: attached again from the byte reached ([`session`]), so no output is lost;
//! - the daemon refuses: its code, message and next step are printed as they are ([`output`]);
//! - standard output is closed: the verb ends with 141, as if the shell had sent SIGPIPE.
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
