//! PID 1 of a bay: runs execs, keeps their output, hands files in and out, reaps everything.
//!
//! The runtime helper starts it inside all namespaces with four things: a listening socket, a cgroup to make leaves in,
//! its configuration and a state directory ([`bay_types::guest`]). It serves the guest protocol over HTTP/1.1 on one
//! thread and needs nothing else; what it knows and must not lose is on disk ([`spool`]).
//!
//! ```text
//!   hyper (server) ──► routes ──► execs ──► start ──► bay_sys::spawn ──► the command, in its own cgroup leaf
//!                        │          ▲  │                                    │ pipes or terminal
//!                        │   reaper ┘  └──► pump (one task per exec) ◄──────┘
//!                        │                     │ appends              reaps ▲ SIGCHLD
//!                        │                     ▼                            │
//!                        ├──► attach, output ◄─ spool on disk        every process of the bay
//!                        ├──► services ──► execs of their own, kept running and asked for their health
//!                        ├──► watch (a thread each), ports; ctl: the same for the bay's own processes
//!                        ├──► files, archives (threads, only while one is copied)
//!                        └──► envd: E2B's interface to all of this; [`alone`] serves nothing else
//! ```
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
//! - A client goes away: nothing. Output goes to the spool whether or not somebody reads; a start once made is kept.
//! - A client is slow: it reads the spool later. If the bound on kept output overtakes it, it is told the gap.
//! - The disk is full: the command goes on, output is dropped and counted, the record of its end makes way for itself.
//! - A command does not end when killed (it hangs in the kernel): after a grace it is called ended, with a process left.
//! - A malformed request or frame: that connection ends.
//! - No cgroup, or the kernel refuses one: trees are found through `/proc`, which a process can evade.
//! - The guest dies: the kernel ends the bay. The records on disk say what ran; the next guest calls it lost.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bay_types::guest::GuestConfig;

pub use services::{kept_runs, kept_services};

mod alone;
mod boot;
mod ctl;
mod envd;
mod execs;
mod files;
mod fork_hooks;
#[cfg(fuzzing)]
pub mod fuzz;
mod http;
mod log;
mod ports;
mod procfs;
mod sentinels;
mod server;
mod services;
mod settings;
pub mod spool;
mod trust;
mod users;
mod wake;
mod watch;

/// Finished execs whose output and end are kept; the ones that ended first go first.
pub const FINISHED_EXECS: usize = 256;
/// Output kept of all finished execs together.
pub const FINISHED_BYTES: u64 = 1 << 30;
/// Threads for files, archives and bulk output. They exist only while there is such work, and a little longer.
const BLOCKING_THREADS: usize = 24;
const BLOCKING_KEEP_ALIVE: Duration = Duration::from_secs(1);
const BLOCKING_STACK: usize = 1 << 20;

/// What a guest runs with. [`run`] makes one for a bay; tests make their own.
#[derive(Debug)]
pub struct Config {
    pub guest: GuestConfig,
    pub listener: UnixListener,
    /// Directory of the cgroup v2 group to make leaves in. Without it trees are found through `/proc`.
    pub cgroup: Option<OwnedFd>,
    /// Where output is kept.
    pub state_dir: PathBuf,
    /// What the file routes call `/`, and where users are looked up.
    pub root: PathBuf,
    pub bounds: Bounds,
}

/// How much is kept; the constants of this crate by default.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub output: spool::Bounds,
    pub finished_execs: usize,
    pub finished_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            output: spool::Bounds::default(),
            finished_execs: FINISHED_EXECS,
            finished_bytes: FINISHED_BYTES,
        }
    }
}

/// `bay __guest`: PID 1 of a bay. Returns when the bay is to end. With arguments it is a guest without a bay: [`alone`].
#[must_use]
pub fn run() -> ExitCode {
    let mut arguments = std::env::args_os().skip(2).peekable();
    if arguments.peek().is_some_and(|first| first == bay_types::guest::boot::SANDBOXED) {
        return begin(boot::sandboxed);
    }
    match alone::wanted(arguments) {
        Ok(None) => {}
        wanted => {
            let outcome = wanted.and_then(|wanted| wanted.as_ref().map_or(Ok(()), alone::serve));
            return outcome.map_or_else(
                |error| {
                    eprintln!("{error}");
                    ExitCode::FAILURE
                },
                |()| ExitCode::SUCCESS,
            );
        }
    }
    begin(boot::inherited)
}

/// PID 1 of a bay that gets its configuration by `configure`.
fn begin(configure: fn() -> io::Result<Config>) -> ExitCode {
    let begun = bay_sys::signals::withstand()
        .and_then(|()| bay_sys::signals::work_apart(move || as_first_process(configure)));
    let Err(error) = begun;
    log::last_words(&error);
    ExitCode::FAILURE
}

/// PID 1 of a bay, from its beginning to its end.
fn as_first_process(configure: fn() -> io::Result<Config>) -> i32 {
    let outcome = configure().and_then(|config| {
        prepare(&config);
        serve(config)
    });
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            // Nobody listens to PID 1's standard error; the helper sees that the socket closes.
            log::last_words(&error);
            1
        }
    }
}

/// Writes the files that a bay has whatever its image is. What cannot be written is logged.
pub fn prepare(config: &Config) {
    boot::prepare_root(&config.guest, &config.root, &log::Log::open(&config.state_dir));
}

/// Serves until a shutdown is asked for and done.
///
/// # Errors
/// When the socket or the state directory cannot be used at all.
pub fn serve(config: Config) -> io::Result<()> {
    let runtime = runtime()?;
    let outcome = runtime.block_on(server::serve(config));
    // A thread may be stuck in a copy; the end of PID 1 ends it.
    runtime.shutdown_background();
    outcome
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(BLOCKING_KEEP_ALIVE)
        .thread_stack_size(BLOCKING_STACK)
        .build()
}
