//! Raw system calls that no well-maintained library wraps, each behind a safe function.
//!
//! This is the only crate with `unsafe`. Every block says why it is sound and why it is needed. All other crates forbid it.
//!
//! | module          | for                                                                      |
//! |-----------------|--------------------------------------------------------------------------|
//! | [`remote_calls`]| system calls that another process is made to make (runtime)              |
//! | [`btrfs`]       | subvolumes, snapshots, quotas (pool)                                     |
//! | [`loopdev`]     | the loop device of a pool file (pool)                                    |
//! | [`descriptors`] | inheriting descriptors only on purpose (CLI, guest)                      |
//! | [`identity`]    | threads that act as another user, children that end with the daemon (pool, git) |
//! | [`signals`]     | signals that must not end PID 1 (guest)                                  |
//! | [`spawn`]       | starting a child in a cgroup, with a terminal or pipes (guest)           |
//! | [`memory`]      | values that are not swapped out (core)                                   |
//! | [`namespace`]   | clone into new namespaces, id maps, id-mapped mounts (runtime)           |
//! | [`paths`]       | opening paths below a directory that another user controls (most crates that read bays' files) |
//! | [`readiness`]   | waiting for any descriptor in the async runtime (backend)                |
//! | [`sk_lookup`]   | one listener for all ports of a network namespace (runtime)              |
//! | [`tcp`]         | sockets that were left in repair mode (runtime)                          |
//! | [`seccomp`]     | installing filters without `no_new_privs` (runtime)                      |

pub mod btrfs;
mod clone;
pub mod descriptors;
pub mod identity;
pub mod loopdev;
pub mod memory;
pub mod namespace;
pub mod paths;
pub mod readiness;
pub mod remote_calls;
pub mod seccomp;
pub mod signals;
pub mod sk_lookup;
pub mod spawn;
pub mod tcp;
