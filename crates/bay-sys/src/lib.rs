//! The raw system calls that no well-kept library wraps, each behind a safe function.
//!
//! This is the only crate with `unsafe`. Every block says why it is sound and why it is needed; everything above it
//! (`bay-pool`, `bay-runtime`, `bay-guest`) forbids it.
//!
//! | module       | for                                                                      |
//! |--------------|--------------------------------------------------------------------------|
//! | [`borrowed`] | calls made by a waiting process of ours (runtime)                         |
//! | [`btrfs`]    | subvolumes, snapshots, quotas (pool)                                     |
//! | [`loopdev`]  | the loop device below a pool file (pool)                                 |
//! | [`descriptors`] | nothing inherited by accident (CLI)                                  |
//! | [`identity`] | threads that act as another user (image import)                           |
//! | [`signals`]  | PID 1 that no signal of its own namespace ends (guest)                  |
//! | [`spawn`]    | a child straight into a cgroup, with a terminal or pipes (guest)         |
//! | [`memory`]   | values that are not swapped out (backend)                                |
//! | [`namespace`]| clone into new namespaces, id maps, id-mapped mounts (runtime)           |
//! | [`paths`]    | opening below a directory of somebody else's (pool, runtime, guest)      |
//! | [`readiness`]| async waiting for any descriptor (guest, backend)                         |
//! | [`sk_lookup`]| one listener for all ports of a network namespace (runtime)              |
//! | [`tcp`]      | sockets that a repair left unusable (runtime)                            |
//! | [`seccomp`]  | installing filters without `no_new_privs` (runtime)                      |

pub mod borrowed;
pub mod btrfs;
mod clone;
pub mod descriptors;
pub mod identity;
pub mod loopdev;
pub mod memory;
pub mod namespace;
pub mod paths;
pub mod readiness;
pub mod seccomp;
pub mod signals;
pub mod sk_lookup;
pub mod spawn;
pub mod tcp;
