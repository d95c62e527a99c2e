//! The gateway's end of a bay's network: sockets in the bay's gateway namespace that belong to the daemon.
//!
//! A thread enters the namespace, makes the sockets and ends. When the daemon ends, the sockets are closed, and the
//! kernel refuses the bay's connections until the next daemon opens new sockets.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use bay_sys::namespace::{flags, leave_namespaces};
use bay_sys::sk_lookup::{Steering, steer};
use bay_types::egress::Dropped;
use bay_types::guest::{DNS_PORT, GATEWAY_V4, GATEWAY_V6};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::run_directory;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// The sockets on which the gateway of one bay listens.
#[derive(Debug)]
pub struct GatewaySockets {
    /// Accepts every TCP connection of the bay. The local address of each is the address that the bay wanted to reach.
    pub tcp: TcpListener,
    /// One for each address of the resolver.
    pub dns: Vec<UdpSocket>,
    steering: Steering,
    namespace: OwnedFd,
}

/// Access to the namespace's packet counters.
#[derive(Debug)]
pub struct Counters {
    namespace: OwnedFd,
    _steering: Steering,
}

impl GatewaySockets {
    /// Opens the sockets of a running bay.
    ///
    /// # Errors
    /// If the namespace does not exist, or the kernel does not allow steering its connections.
    pub fn open(run_dir: &Path) -> io::Result<Self> {
        let namespace: OwnedFd = File::open(run_directory::gateway_handle(run_dir))?.into();
        let (tcp, dns) = inside(&namespace, || Ok((listener()?, resolvers()?)))?;
        let steering = steer(&namespace, &tcp)?;
        Ok(Self { tcp, dns, steering, namespace })
    }

    /// The sockets, and access to the counters.
    #[must_use]
    pub fn into_parts(self) -> (TcpListener, Vec<UdpSocket>, Counters) {
        (self.tcp, self.dns, Counters { namespace: self.namespace, _steering: self.steering })
    }
}

impl Counters {
    /// What the kernel has dropped so far.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn dropped(&self) -> io::Result<Dropped> {
        inside(&self.namespace, || {
            let read = |file: &str| fs::read_to_string(format!("/proc/thread-self/net/{file}"));
            Ok(dropped(&read("snmp")?, &read("snmp6").unwrap_or_default()))
        })
    }
}

/// Tries to steer connections, in a new network namespace that ends with the attempt.
///
/// # Errors
/// The error of the kernel, if it does not allow this.
pub fn can_steer() -> io::Result<()> {
    let attempt = std::thread::spawn(|| {
        leave_namespaces(flags::NET)?;
        let namespace: OwnedFd = File::open("/proc/thread-self/ns/net")?.into();
        let listener = listener()?;
        steer(&namespace, &listener).map(drop)
    });
    attempt.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

/// Runs `work` in a thread that enters the network namespace and then ends.
fn inside<T: Send>(namespace: &OwnedFd, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let entered = scope.spawn(|| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            work()
        });
        entered.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}

/// Bound to a port that the kernel chooses. Connections to every port are steered to it.
fn listener() -> io::Result<TcpListener> {
    let open = |family, address: IpAddr| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, false)?;
        }
        bind(&socket, &SocketAddr::new(address, 0))?;
        listen(&socket, BACKLOG)?;
        io::Result::Ok(TcpListener::from(socket))
    };
    // On a host without IPv6, bays have no IPv6.
    open(AddressFamily::INET6, Ipv6Addr::UNSPECIFIED.into())
        .or_else(|_| open(AddressFamily::INET, Ipv4Addr::UNSPECIFIED.into()))
}

/// Each is bound to an address to which queries are sent, because answers must come from it.
fn resolvers() -> io::Result<Vec<UdpSocket>> {
    let open = |address: IpAddr| {
        let socket = UdpSocket::bind((address, DNS_PORT))?;
        socket.set_nonblocking(true)?;
        io::Result::Ok(socket)
    };
    let mut all = vec![open(GATEWAY_V4.into())?];
    all.extend(open(GATEWAY_V6.into()).ok());
    Ok(all)
}

/// Reads the kernel's tables: the first has two lines for each protocol, the second a line for each counter.
fn dropped(v4: &str, v6: &str) -> Dropped {
    let table = |protocol: &str, counter: &str| {
        let mut rows = v4.lines().filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(": "));
        let (names, values) = (rows.next().unwrap_or_default(), rows.next().unwrap_or_default());
        let mut pairs = names.split_ascii_whitespace().zip(values.split_ascii_whitespace());
        pairs.find(|(name, _)| *name == counter).and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
    };
    let row = |counter: &str| {
        let mut words = v6.lines().map(str::split_ascii_whitespace);
        let found =
            words.find_map(|mut words| words.next().filter(|name| *name == counter).and(words.next()));
        found.and_then(|value| value.parse().ok()).unwrap_or(0)
    };
    let sum = |a: u64, b: u64| a.saturating_add(b);
    Dropped {
        udp: sum(table("Udp", "NoPorts"), row("Udp6NoPorts")),
        icmp: sum(table("Icmp", "InEchos"), row("Icmp6InEchos")),
        other: sum(table("Ip", "InUnknownProtos"), row("Ip6InUnknownProtos")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;
    use crate::network;

    #[test]
    fn connections_to_every_port_and_address_reach_one_listener_until_it_is_closed() {
        let lab = std::thread::spawn(|| {
            leave_namespaces(flags::NET).unwrap();
            network::prepare_gateway().unwrap();
            network::make_all_local().unwrap();
            let namespace: OwnedFd = File::open("/proc/thread-self/ns/net").unwrap().into();
            let listener = listener().unwrap();
            listener.set_nonblocking(false).unwrap();
            let to = ["192.0.2.7:4444", "198.51.100.1:1", "[2001:db8::5]:65535"];
            assert!(to.iter().all(|to| TcpStream::connect(to).is_err()), "nobody listens there yet");
            let steering = steer(&namespace, &listener).unwrap();
            for to in to {
                let mut client = TcpStream::connect(to).unwrap();
                let (mut served, _) = listener.accept().unwrap();
                let local = served.local_addr().unwrap();
                let wanted: SocketAddr = to.parse().unwrap();
                assert_eq!(SocketAddr::new(local.ip().to_canonical(), local.port()), wanted);
                client.write_all(b"x").unwrap();
                served.read_exact(&mut [0]).unwrap();
            }
            drop(listener);
            assert!(to.iter().all(|to| TcpStream::connect(to).is_err()), "a closed listener takes nothing");
            drop(steering);
        });
        lab.join().unwrap();
    }

    #[test]
    fn dropped_packets_are_read_from_both_tables() {
        let v4 = "Ip: Forwarding InUnknownProtos\nIp: 2 3\nIcmp: InMsgs InEchos\nIcmp: 9 5\n\
                  IcmpMsg: InType8\nIcmpMsg: 5\nUdp: InDatagrams NoPorts\nUdp: 1 7\nUdpLite: NoPorts\nUdpLite: 8\n";
        let v6 = "Ip6InUnknownProtos\t1\nIcmp6InEchos\t2\nUdp6NoPorts\t30\n";
        assert_eq!(dropped(v4, v6), Dropped { udp: 37, icmp: 7, other: 4 });
        assert_eq!(dropped("", "odd"), Dropped::default());
        assert_eq!(dropped("Udp: NoPorts\nUdp:", ""), Dropped::default());
    }
}
