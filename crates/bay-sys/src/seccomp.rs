//! Installing seccomp filters.

use std::io;

use seccompiler::BpfProgram;

/// Adds a filter to this thread and everything that it starts.
///
/// The usual installers set `no_new_privs` first, which would disable set-user-id programs (sudo) in a bay. The kernel allows a
/// filter without it to processes with `CAP_SYS_ADMIN` in their own user namespace.
///
/// # Errors
/// The error of the kernel: `EACCES` without that capability.
pub fn install(program: &BpfProgram) -> io::Result<()> {
    let Ok(len) = u16::try_from(program.len()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a seccomp filter is too long"));
    };
    let prog = libc::sock_fprog {
        len,
        // The kernel only reads it; the C type has no const.
        filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    // SAFETY: `prog` and the instructions that it points to live through the call. seccompiler's instruction has the
    // layout of the kernel's sock_filter, as its own installer relies on. Needed because of no_new_privs, see above.
    let done = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, std::ptr::from_ref(&prog))
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
