//! TCP sockets of other processes.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Off, without notifying the other side of a changed window.
const REPAIR_OFF: libc::c_int = -1;

/// Ends the repair mode of a socket, in which it sends and receives nothing. Returns whether the socket was in it. For
/// sockets whose repairing process is gone.
///
/// # Errors
/// The error of the kernel: `EPERM` without `CAP_NET_ADMIN` over the socket's network namespace.
pub fn leave_repair(socket: impl AsFd) -> io::Result<bool> {
    let socket = socket.as_fd().as_raw_fd();
    let mut mode: libc::c_int = 0;
    let mut length = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or_default();
    // SAFETY: both pointers are to valid memory of the sizes given, and the kernel keeps neither. Needed because no
    // library wraps this option.
    unsafe {
        let (level, option) = (libc::IPPROTO_TCP, libc::TCP_REPAIR);
        if libc::getsockopt(socket, level, option, (&raw mut mode).cast(), &raw mut length) != 0 {
            return Err(io::Error::last_os_error());
        }
        if mode == 0 {
            return Ok(false);
        }
        mode = REPAIR_OFF;
        if libc::setsockopt(socket, level, option, (&raw const mode).cast(), length) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(true)
}
