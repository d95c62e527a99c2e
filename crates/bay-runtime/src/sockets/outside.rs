//! Aborts connections that lead out of a bay. After a restore nobody is at their other end: the gateway namespace is
//! new, and another bay may use the same connections.

use std::io;
use std::net::{IpAddr, SocketAddr};

use bay_types::egress::Transport;
use bay_types::guest::{BAY_V4, BAY_V6};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;

use super::diag;
use super::kernel::Kernel;

/// Aborts every TCP connection and connected UDP socket of the calling thread's network namespace whose other end has
/// none of the bay's own addresses. Processes that wait for one learn it at once. Returns their number.
///
/// # Errors
/// `Unsupported` if the kernel cannot destroy the sockets of other processes.
pub(crate) fn destroy_outside() -> io::Result<usize> {
    let mut kernel = Kernel::open(NETLINK_SOCK_DIAG)?;
    let mut destroyed = 0;
    for transport in [Transport::Tcp, Transport::Udp] {
        let sockets = diag::connected(&mut kernel, transport)?;
        for socket in sockets.iter().filter(|socket| leads_out(socket.local, socket.remote)) {
            diag::destroy(&mut kernel, socket, transport)?;
            destroyed += 1;
        }
    }
    Ok(destroyed)
}

/// Whether this kernel can destroy the sockets of other processes (`CONFIG_INET_DIAG_DESTROY`). Asks about a socket
/// that cannot exist.
///
/// # Errors
/// Without the right to ask, or without `sock_diag`.
pub fn can_destroy() -> io::Result<bool> {
    let mut kernel = Kernel::open(NETLINK_SOCK_DIAG)?;
    match diag::destroy_nothing(&mut kernel) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(false),
        Err(error) => Err(error),
    }
}

fn leads_out(local: SocketAddr, remote: SocketAddr) -> bool {
    let (local, remote) = (local.ip().to_canonical(), remote.ip().to_canonical());
    !remote.is_loopback()
        && !remote.is_unspecified()
        && remote != local
        && remote != IpAddr::from(BAY_V4)
        && remote != IpAddr::from(BAY_V6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_within_the_bay_do_not_lead_out() {
        for (local, remote, out) in [
            ("10.0.2.2:4000", "10.0.2.1:53", true),
            ("10.0.2.2:4000", "198.18.0.7:443", true),
            ("[::ffff:10.0.2.2]:4000", "[::ffff:198.18.0.7]:443", true),
            ("[fd00:ba::2]:4000", "[fd00:ba::1]:443", true),
            ("127.0.0.1:4000", "127.0.0.1:5432", false),
            ("[::ffff:127.0.0.1]:4000", "[::ffff:127.0.0.1]:5432", false),
            ("[::1]:4000", "[::1]:5432", false),
            ("127.0.0.1:4000", "10.0.2.2:5432", false),
            ("10.0.2.2:4000", "10.0.2.2:5432", false),
            ("[fd00:ba::2]:4000", "[fd00:ba::2]:5432", false),
            ("[fe80::1]:4000", "[fe80::1]:5432", false),
            ("0.0.0.0:68", "0.0.0.0:0", false),
        ] {
            assert_eq!(leads_out(local.parse().unwrap(), remote.parse().unwrap()), out, "{local} {remote}");
        }
    }
}
