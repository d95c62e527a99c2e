//! PID 1 of a bay: runs execs, keeps their output, transfers files, reaps all processes.
//!
//! The runtime helper starts it inside all namespaces with four things: a listening socket, a cgroup to make leaves in,
//! its configuration and a state directory ([`bay_types::guest`]). In gVisor it makes the socket itself, and has no
//! cgroup. It serves the guest protocol over HTTP/1.1 on one
//! thread. What it must not lose is on disk ([`spool`]).
//!
//! ```text
//!   hyper (server) ──► routes ──► execs ──► start ──► bay_sys::spawn ──► the command, in its own cgroup leaf
//!                        │          ▲  │                                    │ pipes or terminal
//!                        │   reaper ┘  └──► exec_task (one per exec) ◄──────┘
//!                        │                     │ appends              reaps ▲ SIGCHLD
//!                        │                     ▼                            │
//!                        ├──► attach, output ◄─ spool on disk        every process of the bay
//!                        ├──► services ──► execs of their own, restarted and checked for health
//!                        ├──► watch (a thread each), ports
//!                        ├──► files, archives (threads, only during a transfer)
//!                        └──► envd: E2B's interface to execs and files
//!   ctl (a socket of its own) ──► services, ports: for the bay's own processes
//!   standalone ──► envd, without a bay
//! ```
//!
//! The modules are in layers. Below are the primitives: `execs`, `files`, `watch`, `ports` and what they need.
//! `services` is above `execs`. The fronts `server`, `ctl`, `envd` and `standalone` serve them; `boot` starts `server`.
//!
//! The life of an exec:
//!
//! ```text
//!            clone          program runs            leader reaped, pipes read empty         pipes closed
//!  (nothing) ────► starting ───────────► running ──────────────────────────────► ended ────────────► finished
//!                     │                     │  exited · signaled · killed ·         │  late output of     │ DELETE, or the
//!                     ▼                     │  timed-out                            │  children is kept   ▼ bound on kept execs
//!                 (nothing)                 └── guest or bay goes down ──► lost ────┴──────────────► (nothing)
//!          not found, not executable,
//!          no such directory or user
//! ```
//!
//! Failure paths, and what each costs:
//!
//! - A client goes away: nothing. Output goes to the spool in any case, and a command that was started goes on.
//! - A client is slow: it reads from the spool later. If the bound on kept output dropped bytes, it gets a gap frame.
//! - The disk is full: the command goes on. Output is dropped and counted. The record of the exec's end replaces old
//!   output.
//! - A command does not end when killed (it hangs in the kernel): after a grace it counts as ended, with a process left.
//! - A malformed request or frame: it is answered with an error, and at most that connection ends.
//! - No cgroup, or the kernel refuses one: process trees are found through `/proc`, which a process can evade.
//! - The guest dies: the kernel ends the bay. The records on disk say what ran; the next guest reports it as lost.
#![forbid(unsafe_code)]

use std::process::ExitCode;

pub use boot::{prepare, serve};
pub use execs::Bounds;
pub use primitives::Config;
pub use services::{stored_runs, stored_services};

mod after_restore;
mod boot;
mod ctl;
mod envd;
mod etc_environment;
mod execs;
mod executor;
mod files;
mod fork_hooks;
#[cfg(fuzzing)]
pub mod fuzz;
mod http;
mod log;
mod ports;
mod primitives;
mod procfs;
mod root_files;
mod sentinels;
mod server;
mod services;
pub mod spool;
mod standalone;
mod tcp;
mod trust;
mod users;
mod watch;

/// `bay __guest`: PID 1 of a bay. Returns only if the guest cannot be started; otherwise the process ends with the bay.
/// With `--alone` it serves envd without a bay, until it is told to end.
#[must_use]
pub fn run() -> ExitCode {
    let mut arguments = std::env::args_os().skip(2).peekable();
    if arguments.peek().is_some_and(|first| first == bay_types::guest::boot::SANDBOXED) {
        return boot::run(boot::from_shared_directory);
    }
    match standalone::parse(arguments) {
        Ok(None) => {}
        arguments => {
            let outcome =
                arguments.and_then(|arguments| arguments.as_ref().map_or(Ok(()), standalone::serve));
            return outcome.map_or_else(
                |error| {
                    eprintln!("{error}");
                    ExitCode::FAILURE
                },
                |()| ExitCode::SUCCESS,
            );
        }
    }
    boot::run(boot::from_descriptors)
}
