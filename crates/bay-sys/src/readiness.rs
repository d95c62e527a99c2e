//! Waiting for any descriptor in the async runtime.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the runtime's poller.
///
/// # Errors
/// When the poller refuses it (a regular file, for example).
pub fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` owns a valid descriptor and offers no way to replace it while `AsyncFd` holds it. Needed
    // because the general function cannot know that of its argument and so is unsafe.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}
