//! The arguments of `clone3`.

use std::os::fd::RawFd;

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// `struct clone_args` of Linux 5.7. All later kernels accept this size.
#[repr(C, align(8))]
#[derive(Default)]
pub(crate) struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

impl CloneArgs {
    /// Arguments for a child as `fork` makes it, in the cgroup (version 2) that is open at `cgroup`.
    pub(crate) fn new(flags: u64, cgroup: Option<RawFd>) -> Self {
        let mut args = Self { flags, exit_signal: libc::SIGCHLD as u64, ..Self::default() };
        if let Some(fd) = cgroup {
            args.flags |= CLONE_INTO_CGROUP;
            args.cgroup = u64::try_from(fd).unwrap_or(u64::MAX);
        }
        args
    }
}
