//! The descriptor table as a whole.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Below it are the standard streams.
const FIRST_OWN: RawFd = 3;

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

/// A file descriptor that the process was started with. It is duplicated, because the number itself may have another
/// owner in this process; the original stays open but is not passed on to children.
///
/// # Errors
/// `EBADF` when it is not open.
pub fn inherited_fd(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: these calls touch no memory and close nothing; a number that is not open makes them fail. The result
    // of F_DUPFD_CLOEXEC is a new descriptor that nobody else owns.
    unsafe {
        let flags = libc::fcntl(number, libc::F_GETFD);
        if flags < 0 || libc::fcntl(number, libc::F_SETFD, flags | libc::FD_CLOEXEC) < 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::fcntl(number, libc::F_DUPFD_CLOEXEC, FIRST_OWN) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Closes the original of a descriptor that [`inherited_fd`] was asked for, once nothing in this process uses its number.
///
/// # Errors
/// `EBADF` when it is not open.
pub fn let_go_of_inherited(number: RawFd) -> io::Result<()> {
    // SAFETY: the process was started with this number open and nothing in it has made an owner of it, which is what the
    // caller promises; the duplicate stays.
    if unsafe { libc::close(number) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_is_not_open_was_not_inherited() {
        assert!(inherited_fd(-1).is_err());
        assert!(inherited_fd(0).is_ok());
    }
}
