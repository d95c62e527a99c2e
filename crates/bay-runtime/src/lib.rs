//! The runtime helper, `bay __runtime`: a process that serves one request and exits. It begins with one thread, because
//! only such a process can enter a user namespace, and copy itself safely. The daemon itself uses the parts of this
//! crate that only look at a running bay or change its limits, and the sockets of its gateway.
//!
//! A start turns the bay's subvolumes into a running machine. What it starts does not depend on the helper or on the
//! daemon: the parent of a bay's PID 1 is the host's init.
//!
//! # Start, step by step
//!
//! ```text
//!  helper (root of the host)                        what exists afterwards
//!  ─────────────────────────                        ──────────────────────
//!  clear      remove what a lost helper left        nothing of this bay
//!  cgroups    make groups, set limits               v1/v2 groups of the bay
//!  gateway    own network namespace, pinned         a network that leads nowhere
//!  user-ns    id maps                               a user namespace, held by a descriptor
//!  mounts     id-mapped trees, private mount ns     the bay's file tree, seen by the helper only
//!  clone      two clones: into the bay's cgroups,   PID 1, waiting
//!             then into every other namespace
//!  network    veth pair, addresses, routes          a bay that reaches its gateway namespace
//!  release    PID 1 builds /proc, /dev, … and       the guest
//!             becomes the guest
//! ```
//!
//! # What protects the host
//!
//! * The helper makes every mount that needs the host's rights in a mount namespace that the host owns. The bay gets a
//!   *copy* of that namespace, owned by its own user namespace. The kernel then locks read-only, nodev and the mounts
//!   themselves: root in the bay can neither change them nor look below them.
//! * After its first start, the agent controls the root filesystem. Every path in it is opened with `openat2` below its own
//!   directory, without following a link, and mounted by descriptor.
//! * The guest's executable is not readable inside the bay. So the kernel does not let the bay's root trace the guest.
//!
//! # Failure paths
//!
//! * A step fails: the helper ends the processes that it started, and answers `Failed` with the step's name. If it
//!   waited in vain for processes of the bay, it answers `Hangs`. A new helper clears the rest.
//! * The helper of a start is killed: PID 1, if it waits to be released, reads end-of-file and exits. The rest
//!   (groups, namespace handle, socket) stays at the paths in [`RuntimePlace`](bay_types::runtime::RuntimePlace), and
//!   the next `Start` or `Clear` for that bay removes it.
//! * Two helpers for one bay: the second waits for a lock on the run directory.
#![forbid(unsafe_code)]

mod cgroup;
mod cgroup2_mount;
mod clear;
mod failure;
mod gateway;
mod limit_events;
mod memory;
mod mounts;
mod namespace_check;
mod network;
mod network_use;
mod pid1_setup;
mod run_directory;
mod sandbox;
mod seccomp_filter;
pub mod sockets;
mod start;

use std::io::{self, BufRead, Read, Write};
use std::process::ExitCode;

use bay_types::runtime::{RuntimeReply, RuntimeRequest};

pub use cgroup::{Hierarchies, LimitContext};
pub use cgroup2_mount::{CGROUP2_MOUNT, detached_v2};
pub use failure::Failure;
pub use gateway::{Counters, GatewaySockets, can_steer};
pub use limit_events::limit_events;
pub use memory::{CRIU_FLOOR, CRIU_PLACES, PROGRAM, can_restore_here, find_criu};
pub use namespace_check::{ATTEMPT_MADE, ATTEMPT_NAMESPACES};
pub use network::own_addresses;
pub use network_use::network_use;
pub use run_directory::{GUEST_SOCKET, guest_socket, process_start_ticks};
pub use start::STEPS;

/// Longest request that is accepted.
const MAX_REQUEST_BYTES: u64 = 1 << 20;

/// Entry of `bay __runtime`: reads a request from standard input and answers on standard output.
#[must_use]
pub fn run() -> ExitCode {
    match std::env::args().nth(2).as_deref() {
        Some("--steps") => {
            println!("{}", STEPS.join("\n"));
            return ExitCode::SUCCESS;
        }
        Some(ATTEMPT_NAMESPACES) => return namespace_check::attempt_namespaces(),
        _ => {}
    }
    let mut text = String::new();
    // A statement of its own, so that the lock of standard input ends before the request is served, which may read
    // more.
    let read = io::stdin().lock().take(MAX_REQUEST_BYTES).read_line(&mut text);
    let reply = match read {
        Err(error) => failed("request", &error.to_string()),
        Ok(_) => match serde_json::from_str::<RuntimeRequest>(&text) {
            Err(error) => failed("request", &error.to_string()),
            Ok(request) => handle(&request),
        },
    };
    let ok = !matches!(reply, RuntimeReply::Failed { .. } | RuntimeReply::Hangs { .. });
    // An error means that the daemon is gone. What was done stays done, and the next daemon finds it.
    if let Ok(mut line) = serde_json::to_vec(&reply) {
        line.push(b'\n');
        let _ = io::stdout().write_all(&line);
    }
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn handle(request: &RuntimeRequest) -> RuntimeReply {
    let done = match request {
        RuntimeRequest::Start(spec) => match start::start(spec) {
            Ok(record) => return RuntimeReply::Started { record },
            Err(failure) => Err(failure),
        },
        RuntimeRequest::Sandbox(spec) => match sandbox::start(spec) {
            Ok(record) => return RuntimeReply::Started { record },
            Err(failure) => Err(failure),
        },
        RuntimeRequest::Clear(place) => clear::clear(place),
        RuntimeRequest::Freeze(place) => Hierarchies::ready().and_then(|h| h.freeze(&place.cgroup, true)),
        RuntimeRequest::Thaw(place) => Hierarchies::ready().and_then(|h| h.freeze(&place.cgroup, false)),
        RuntimeRequest::Mend(spec) => memory::undo_failed(spec),
        RuntimeRequest::Examine(spec) => match memory::examine(spec) {
            Ok(obstacles) => return RuntimeReply::Examined { obstacles },
            Err(failure) => Err(failure),
        },
        RuntimeRequest::Capture(spec) => match memory::capture(spec) {
            Ok(reply) => return reply,
            Err(failure) => Err(failure),
        },
        RuntimeRequest::Restore(spec) => match memory::restore(spec) {
            Ok(reply) => return reply,
            Err(failure) => Err(failure),
        },
    };
    match done {
        Ok(()) => RuntimeReply::Done,
        Err(failure) if failure.source.kind() == io::ErrorKind::TimedOut => {
            RuntimeReply::Hangs { message: failure.what }
        }
        Err(failure) => failed(failure.step, &bay_types::error::chain(&failure)),
    }
}

fn failed(step: &str, message: &str) -> RuntimeReply {
    RuntimeReply::Failed { step: step.to_owned(), message: message.to_owned() }
}
