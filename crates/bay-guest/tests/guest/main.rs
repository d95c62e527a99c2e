//! Tests of the guest as a process of its own, through its socket.
//!
//! As root it runs as PID 1 of a PID namespace, as in a bay, so that what a failing test leaves behind ends with it.
//! Otherwise it runs as a plain process that adopts orphans.
#![forbid(unsafe_code)]

mod cgroup_leaves;
mod envd;
mod execs;
mod files;
mod guest_end;
mod harness;
mod hashes;
mod inside;
mod origin;
mod services;
mod streams;
mod trust;

/// Not a test: the process that the tests start.
#[test]
#[ignore = "it is the process that the tests start"]
fn guest_process() {
    harness::guest_process();
}
