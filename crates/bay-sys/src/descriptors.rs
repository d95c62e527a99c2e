//! The descriptor table as a whole.

use std::io;

/// Marks every descriptor from `first` on close-on-exec, so that a program started next inherits none of them: neither
/// a lock of the script that called us nor a socket it forgot.
///
/// # Errors
/// What the kernel says: `ENOSYS` before 5.9.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: only flags of descriptors change; none is closed now. Needed because no library wraps the flag.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
