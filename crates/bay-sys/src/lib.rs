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
//! | [`identity`]    | threads that act as another user (image import)                          |
//! | [`signals`]     | signals that must not end PID 1 (guest)                                  |
//! | [`spawn`]       | starting a child in a cgroup, with a terminal or pipes (guest)           |
//! | [`memory`]      | values that are not swapped out (backend)                                |
//! | [`namespace`]   | clone into new namespaces, id maps, id-mapped mounts (runtime)           |
//! | [`paths`]       | opening paths below a directory that another user controls (pool, runtime, guest) |
//! | [`readiness`]   | waiting for any descriptor in the async runtime (guest, backend)         |
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
