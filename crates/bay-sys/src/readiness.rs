//! Waits for any descriptor in the async runtime.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the runtime's poller.
///
/// # Errors
/// If the poller refuses it (for example a regular file).
pub fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` owns a valid descriptor, which cannot be replaced while `AsyncFd` holds it. Needed because
    // the general function cannot know that of its argument and so is unsafe.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}
