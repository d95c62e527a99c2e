//! The descriptor table as a whole.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// The descriptors below it are the standard streams.
const FIRST_OWN: RawFd = 3;

/// Marks every descriptor from `first` on as close-on-exec, so that the next program inherits none of them, such as a
/// lock or a socket of the calling script.
///
/// # Errors
/// The error of the kernel: `ENOSYS` before 5.9.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: only flags of descriptors change; none is closed now. Needed because no library wraps the flag.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A file descriptor that the process inherited. It is duplicated, because the number itself may have another owner in
/// this process. The original stays open but is not inherited by children.
///
/// # Errors
/// `EBADF` if it is not open.
pub fn inherited_fd(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: these calls access no memory and close nothing; a number that is not open makes them fail. The result of
    // F_DUPFD_CLOEXEC is a new descriptor without another owner.
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

/// Closes the original of a descriptor that [`inherited_fd`] duplicated. Nothing in this process may use its number any
/// more.
///
/// # Errors
/// `EBADF` if it is not open.
pub fn close_inherited(number: RawFd) -> io::Result<()> {
    // SAFETY: the process was started with this number open, and nothing in it owns the number, which the caller
    // promises. The duplicate stays open.
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
