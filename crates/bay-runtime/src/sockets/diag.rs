//! The kernel's table of sockets (`sock_diag`).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bay_types::egress::Transport;

use super::kernel::{Kernel, attribute};

// From linux/sock_diag.h and linux/inet_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const INET_DIAG_CGROUP_ID: u16 = 21;
/// Length of `inet_diag_msg`, before its attributes.
const ENTRY: usize = 72;
/// Length of a socket's identity, which is after 8 bytes in requests and after 4 bytes in answers.
const IDENTITY: usize = 48;
const NO_COOKIE: [u8; 8] = [0xff; 8];
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const LISTENING: u8 = 10;
/// TCP states with a remote end, except `TIME_WAIT`, in which there is nothing left to destroy. Connected UDP sockets
/// are in the first of them.
const CONNECTED: u32 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;

/// One socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    family: u8,
    state: u8,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    identity: [u8; IDENTITY],
    /// The user id on the host.
    pub(super) uid: u32,
    /// Zero if no process has the socket open.
    pub(super) inode: u64,
    /// None if only the two addresses of a closed connection are left.
    pub(super) cgroup: Option<u64>,
}

fn protocol(transport: Transport) -> u8 {
    match transport {
        Transport::Tcp => 6,
        Transport::Udp => 17,
    }
}

fn question(family: u8, transport: Transport, states: u32, identity: &[u8; IDENTITY]) -> Vec<u8> {
    let mut bytes = vec![family, protocol(transport), 0, 0];
    bytes.extend(states.to_ne_bytes());
    bytes.extend(identity);
    bytes
}

fn identity(source: SocketAddr, destination: SocketAddr, interface: u32) -> [u8; IDENTITY] {
    let mut bytes = [0; IDENTITY];
    bytes[..2].copy_from_slice(&source.port().to_be_bytes());
    bytes[2..4].copy_from_slice(&destination.port().to_be_bytes());
    for (at, end) in [(4, source), (20, destination)] {
        match end.ip() {
            IpAddr::V4(address) => bytes[at..at + 4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => bytes[at..at + 16].copy_from_slice(&address.octets()),
        }
    }
    bytes[36..40].copy_from_slice(&interface.to_ne_bytes());
    bytes[40..].copy_from_slice(&NO_COOKIE);
    bytes
}

/// The socket with these two ends, in the bay and outside. A socket for both families that uses IPv4 is in the table of
/// IPv4. Sockets that are bound to the bay's one interface are found too.
pub(super) fn find(
    kernel: &mut Kernel,
    local: SocketAddr,
    remote: SocketAddr,
    interface: u32,
    transport: Transport,
) -> io::Result<Option<Entry>> {
    let family = if local.is_ipv4() { AF_INET } else { AF_INET6 };
    // For UDP the kernel finds the socket that a packet is for, so the ends are those of the packet.
    let identity = match transport {
        Transport::Tcp => identity(local, remote, interface),
        Transport::Udp => identity(remote, local, interface),
    };
    let asked = question(family, transport, u32::MAX, &identity);
    match kernel.ask(SOCK_DIAG_BY_FAMILY, &asked) {
        // The kernel also returns listeners, and UDP sockets that are not connected.
        Ok((SOCK_DIAG_BY_FAMILY, body)) => {
            let is_it = |found: &Entry| {
                found.local.port() == local.port()
                    && found.state != LISTENING
                    && (transport == Transport::Udp || found.is_between(local, remote))
            };
            Ok(entry(body).filter(is_it))
        }
        Ok(_) => Err(io::ErrorKind::InvalidData.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sockets with a remote end.
pub(super) fn connected(kernel: &mut Kernel, transport: Transport) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let asked = question(family, transport, CONNECTED, &[0; IDENTITY]);
        match kernel.list(SOCK_DIAG_BY_FAMILY, &asked, |body| found.extend(entry(body))) {
            // A host without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(found)
}

/// Destroys a socket. A process that has it open learns at once that the connection was aborted.
pub(super) fn destroy(kernel: &mut Kernel, socket: &Entry, transport: Transport) -> io::Result<()> {
    let order = question(socket.family, transport, u32::MAX, &socket.identity);
    match kernel.command(SOCK_DESTROY, &order) {
        // It was closed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Asks to destroy a socket that cannot exist, to find out whether the kernel supports it.
pub(super) fn destroy_nothing(kernel: &mut Kernel) -> io::Result<()> {
    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let nothing = identity(nowhere, nowhere, 0);
    match kernel.command(SOCK_DESTROY, &question(AF_INET, Transport::Tcp, u32::MAX, &nothing)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

impl Entry {
    fn is_between(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let same = |a: SocketAddr, b: SocketAddr| {
            a.port() == b.port() && a.ip().to_canonical() == b.ip().to_canonical()
        };
        same(self.local, local) && same(self.remote, remote)
    }
}

fn entry(body: &[u8]) -> Option<Entry> {
    let (fixed, attributes) = body.split_at_checked(ENTRY)?;
    let family = fixed[0];
    let identity: [u8; IDENTITY] = *fixed.get(4..)?.first_chunk()?;
    let address = |at: usize| -> Option<IpAddr> {
        let bytes = identity.get(at..)?;
        Some(match family {
            AF_INET => Ipv4Addr::from(*bytes.first_chunk::<4>()?).into(),
            AF_INET6 => Ipv6Addr::from(*bytes.first_chunk::<16>()?).into(),
            _ => return None,
        })
    };
    let port = |at: usize| Some(u16::from_be_bytes(*identity.get(at..)?.first_chunk()?));
    let number = |at: usize| Some(u32::from_ne_bytes(*fixed.get(at..)?.first_chunk()?));
    Some(Entry {
        family,
        state: fixed[1],
        local: SocketAddr::new(address(4)?, port(0)?),
        remote: SocketAddr::new(address(20)?, port(2)?),
        identity,
        uid: number(64)?,
        inode: number(68)?.into(),
        cgroup: attribute(attributes, INET_DIAG_CGROUP_ID)
            .and_then(|id| id.first_chunk())
            .map(|id| u64::from_ne_bytes(*id)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_finds_its_own_sockets_and_no_others() {
        let mut kernel = Kernel::open(netlink_sys::protocols::NETLINK_SOCK_DIAG).unwrap();
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let (local, remote) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        let found = find(&mut kernel, local, remote, 0, Transport::Tcp).unwrap().unwrap();
        assert_eq!((found.local, found.remote), (local, remote));
        assert!(found.cgroup.is_some() && found.inode != 0);
        assert!(connected(&mut kernel, Transport::Tcp).unwrap().contains(&found));
        // A listener is no connection.
        let other: SocketAddr = "127.0.0.9:9".parse().unwrap();
        assert_eq!(find(&mut kernel, remote, other, 0, Transport::Tcp).unwrap(), None);
        let talker = std::net::UdpSocket::bind("[::]:0").unwrap();
        let own = SocketAddr::new(local.ip(), talker.local_addr().unwrap().port());
        assert!(find(&mut kernel, own, other, 0, Transport::Udp).unwrap().is_some());
    }

    #[test]
    fn a_destroyed_connection_ends_at_once_for_the_process_that_has_it() {
        if !bay_tests::suite::has_root("destroying a connection") {
            return;
        }
        let mut kernel = Kernel::open(netlink_sys::protocols::NETLINK_SOCK_DIAG).unwrap();
        destroy_nothing(&mut kernel).unwrap();
        let server = std::net::TcpListener::bind("[::1]:0").unwrap();
        let mut client = std::net::TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let (local, remote) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        let found = find(&mut kernel, local, remote, 0, Transport::Tcp).unwrap().unwrap();
        destroy(&mut kernel, &found, Transport::Tcp).unwrap();
        let end = io::Read::read(&mut client, &mut [0]).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::ConnectionAborted);
        // Destroying a socket that is gone succeeds.
        destroy(&mut kernel, &found, Transport::Tcp).unwrap();
    }

    #[test]
    fn a_truncated_answer_is_ignored() {
        assert_eq!(entry(&[2; ENTRY - 1]), None);
        assert_eq!(entry(&[7; ENTRY]), None);
        assert!(entry(&[2; ENTRY]).is_some_and(|entry| entry.cgroup.is_none()));
    }
}
