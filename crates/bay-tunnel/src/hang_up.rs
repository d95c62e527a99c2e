//! Noticing that a sender is gone while what it sent cannot be delivered.
//!
//! The end of a stream comes behind its last bytes. If nobody takes those, nobody reads the end either.

use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How often to look while a delivery makes no progress.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Whether the other end of a socket is closed in both directions, or the socket has failed.
pub fn hung_up(socket: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&socket, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Finishes a delivery, unless its sender is gone meanwhile.
pub(crate) async fn unless_gone(
    delivery: impl Future<Output = io::Result<()>>,
    gone: impl Fn() -> bool,
) -> io::Result<()> {
    let mut delivery = pin!(delivery);
    loop {
        match tokio::time::timeout(LOOK_AGAIN, &mut delivery).await {
            Ok(delivered) => return delivered,
            Err(_) if gone() => return Err(io::ErrorKind::ConnectionReset.into()),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_half_close_is_no_hang_up() {
        let (near, far) = UnixStream::pair().unwrap();
        assert!(!hung_up(&near));
        far.shutdown(Shutdown::Write).unwrap();
        assert!(!hung_up(&near));
        drop(far);
        assert!(hung_up(&near));
    }
}
