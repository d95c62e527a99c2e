//! Installing seccomp filters, and the one that answers flushes.

use std::collections::BTreeMap;
use std::io;

pub use seccompiler::{BpfProgram, sock_filter};
use seccompiler::{SeccompAction, SeccompFilter, TargetArch};

/// The calls that wait until the disk has what was written.
const FLUSHES: [libc::c_long; 6] = [
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync,
    libc::SYS_syncfs,
    libc::SYS_sync_file_range,
    libc::SYS_msync,
];

/// A filter under which flushes return at once, as if they had succeeded. Writes to a file that was opened with `O_SYNC`
/// still wait.
///
/// # Errors
/// If this architecture has no filters.
pub fn without_flushes() -> io::Result<BpfProgram> {
    let rules: BTreeMap<_, _> = FLUSHES.iter().map(|call| (*call, Vec::new())).collect();
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(0), architecture)
        .and_then(TryInto::try_into)
        .map_err(io::Error::other)
}

/// Adds a filter to this thread and everything that it starts.
///
/// The usual installers set `no_new_privs` first, which would disable set-user-id programs (sudo) in a bay. The kernel allows a
/// filter without it to processes with `CAP_SYS_ADMIN` in their own user namespace.
///
/// # Errors
/// The error of the kernel: `EACCES` without that capability.
pub fn install(program: &BpfProgram) -> io::Result<()> {
    let Some(prog) = fprog(program) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a seccomp filter is too long"));
    };
    // SAFETY: `prog` and the instructions that it points to live through the call. seccompiler's instruction has the
    // layout of the kernel's sock_filter, as its own installer relies on. Needed because of no_new_privs, see above.
    let done = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, std::ptr::from_ref(&prog))
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The form in which the kernel takes a filter. `None` if it is too long. The filter must live while this is used.
pub(crate) fn fprog(program: &[sock_filter]) -> Option<libc::sock_fprog> {
    Some(libc::sock_fprog {
        len: u16::try_from(program.len()).ok()?,
        // The kernel only reads it; the C type has no const.
        filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    })
}
