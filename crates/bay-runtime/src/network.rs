//! A network with one neighbour: the bay's gateway namespace, which has no link to the host.
//!
//! Every address but the bay's own is local to the gateway namespace (AnyIP). So whatever address outside the bay a
//! TCP connection is for, the gateway namespace answers: with the gateway if it listens, otherwise with an immediate
//! refusal.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bay_types::guest::{BAY_V4, BAY_V6, GATEWAY_V4, GATEWAY_V6};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// `lo` is the first device of every network namespace.
const LOOPBACK_INDEX: u32 = 1;
/// The index of both ends of the veth pair. It is fixed, so that no lookup is needed.
pub(crate) const LINK_INDEX: u32 = 2;
/// `RT_TABLE_LOCAL`, which the kernel consults before every other table.
const LOCAL_TABLE: u8 = 255;
const V4_PREFIX: u8 = 24;
const V6_PREFIX: u8 = 64;
/// The same in every bay, so that a fork finds its own address unchanged.
const GATEWAY_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
const BAY_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x02];

/// For how many seconds a socket that its process has closed still shows who opened it, when nothing else is to come on
/// it.
pub(crate) const ORPHANS_KEPT_S: u32 = 3;
/// In seconds. While this is more than a minute, the kernel keeps a socket without a process whole for the time above a
/// minute. Below that, it keeps only the two addresses.
const FIN_TIMEOUT: u32 = 60 + ORPHANS_KEPT_S;

/// Called in the gateway namespace before the bay exists.
pub(crate) fn prepare_gateway() -> io::Result<()> {
    // AnyIP would answer pings to every address of the Internet. And the gateway namespace must not accept routers,
    // routes or addresses that the bay announces.
    for (switch, value) in [
        ("net/ipv4/icmp_echo_ignore_all", "1"),
        ("net/ipv4/ip_forward", "0"),
        ("net/ipv4/conf/all/accept_redirects", "0"),
        ("net/ipv4/conf/default/accept_redirects", "0"),
        ("net/ipv6/icmp/echo_ignore_all", "1"),
        ("net/ipv6/conf/all/forwarding", "0"),
        ("net/ipv6/conf/default/accept_ra", "0"),
        ("net/ipv6/conf/default/accept_redirects", "0"),
        ("net/ipv6/conf/default/autoconf", "0"),
    ] {
        match std::fs::write(format!("/proc/sys/{switch}"), value) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Route::open()?.link_up(LOOPBACK_INDEX)
}

/// Called in the gateway namespace when this process exists in the bay's network namespace. Connects the two.
pub(crate) fn join(bay_pid: u32) -> io::Result<()> {
    let mut route = Route::open()?;
    route.veth(bay_pid)?;
    route.address(GATEWAY_V4.into(), V4_PREFIX)?;
    route.link_up(LINK_INDEX)?;
    // Every address is local, except that of the bay, which is over the link.
    route.route(RouteKind::Local, IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0)?;
    route.route(RouteKind::Over, BAY_V4.into(), 32)?;
    route.neighbour(BAY_V4.into(), BAY_MAC)?;
    v6(route.neighbour(BAY_V6.into(), BAY_MAC))?;
    v6(route.address(GATEWAY_V6.into(), V6_PREFIX))?;
    v6(route.route(RouteKind::Over, BAY_V6.into(), 128))?;
    v6(route.route(RouteKind::Local, IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0))
}

/// The part of [`join`] that needs no bay.
#[cfg(test)]
pub(crate) fn make_all_local() -> io::Result<()> {
    let mut route = Route::open()?;
    route.route(RouteKind::Local, IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0)?;
    v6(route.route(RouteKind::Local, IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0))
}

/// Every address of the network namespace of the caller.
///
/// # Errors
/// If the kernel does not list them.
pub fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let mut route = Route::open()?;
    route.sequence += 1;
    let mut packet = NetlinkMessage::from(RouteNetlinkMessage::GetAddress(AddressMessage::default()));
    packet.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    packet.header.sequence_number = route.sequence;
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    route.socket.send(&bytes, 0)?;
    let mut found = Vec::new();
    loop {
        let (answer, _) = route.socket.recv_from_full()?;
        let mut rest = answer.as_slice();
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            let length = usize::try_from(message.header.length).unwrap_or(usize::MAX);
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(found),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(one)) => {
                    found.extend(one.attributes.into_iter().filter_map(|attribute| match attribute {
                        AddressAttribute::Address(address) | AddressAttribute::Local(address) => {
                            Some(address)
                        }
                        _ => None,
                    }));
                }
                _ => {}
            }
            rest = rest.get(length.max(1)..).unwrap_or_default();
        }
    }
}

/// Called in the bay's network namespace before the guest runs in it.
pub(crate) fn configure_bay() -> io::Result<()> {
    let mut route = Route::open()?;
    route.link_up(LOOPBACK_INDEX)?;
    route.address(BAY_V4.into(), V4_PREFIX)?;
    v6(route.address(BAY_V6.into(), V6_PREFIX))?;
    route.link_up(LINK_INDEX)?;
    route.neighbour(GATEWAY_V4.into(), GATEWAY_MAC)?;
    v6(route.neighbour(GATEWAY_V6.into(), GATEWAY_MAC))?;
    // If this fails, the owner of a socket may be unknown when its process ends right after sending. Nothing else
    // depends on it.
    let _ = std::fs::write("/proc/sys/net/ipv4/tcp_fin_timeout", FIN_TIMEOUT.to_string());
    route.route(RouteKind::Default(GATEWAY_V4.into()), IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0)?;
    v6(route.route(RouteKind::Default(GATEWAY_V6.into()), IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0))
}

/// On a host without IPv6, bays have no IPv6.
fn v6(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::EACCES)) =>
        {
            Ok(())
        }
        other => other,
    }
}

#[derive(Clone, Copy)]
enum RouteKind {
    /// Delivered here, whatever the address (table `local`).
    Local,
    /// Directly over the link (table `local`, where it takes precedence over the wider local route).
    Over,
    /// Through a gateway (table `main`).
    Default(IpAddr),
}

/// A connection to the kernel's routing tables, in the network namespace in which it was opened.
struct Route {
    socket: Socket,
    sequence: u32,
}

impl Route {
    fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    fn link_up(&mut self, index: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.ask(RouteNetlinkMessage::SetLink(message), 0)
    }

    fn veth(&mut self, bay_pid: u32) -> io::Result<()> {
        let mut peer = LinkMessage::default();
        peer.header.index = LINK_INDEX;
        peer.attributes = vec![
            LinkAttribute::IfName("eth0".to_owned()),
            LinkAttribute::Address(BAY_MAC.to_vec()),
            LinkAttribute::NetNsPid(bay_pid),
        ];
        let mut message = LinkMessage::default();
        message.header.index = LINK_INDEX;
        message.attributes = vec![
            LinkAttribute::IfName("bay".to_owned()),
            LinkAttribute::Address(GATEWAY_MAC.to_vec()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
            ]),
        ];
        self.ask(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    fn address(&mut self, address: IpAddr, prefix: u8) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.index = LINK_INDEX;
        message.header.prefix_len = prefix;
        message.header.family = family(address);
        message.attributes.push(AddressAttribute::Address(address));
        match address {
            IpAddr::V4(_) => message.attributes.push(AddressAttribute::Local(address)),
            // No other host can have the address. Checking for a conflict would only delay the first connection.
            IpAddr::V6(_) => message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad)),
        }
        self.ask(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Adds a permanent entry for an address on the link. So no lookup is needed, and another bay cannot displace it by
    /// filling the kernel's neighbour table, which all namespaces share: permanent entries do not count there.
    fn neighbour(&mut self, address: IpAddr, mac: [u8; 6]) -> io::Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = LINK_INDEX;
        message.header.state = NeighbourState::Permanent;
        let address = match address {
            IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
            IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
        };
        message.attributes = vec![
            NeighbourAttribute::Destination(address),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        self.ask(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    fn route(&mut self, kind: RouteKind, to: IpAddr, prefix: u8) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(to);
        message.header.destination_prefix_length = prefix;
        message.header.protocol = RouteProtocol::Static;
        message.header.table = LOCAL_TABLE;
        if prefix > 0 {
            message.attributes.push(RouteAttribute::Destination(route_address(to)));
        }
        let device = match kind {
            RouteKind::Local => {
                message.header.kind = RouteType::Local;
                message.header.scope = RouteScope::Host;
                LOOPBACK_INDEX
            }
            RouteKind::Over => {
                message.header.kind = RouteType::Unicast;
                message.header.scope = RouteScope::Link;
                LINK_INDEX
            }
            RouteKind::Default(gateway) => {
                message.header.kind = RouteType::Unicast;
                message.header.scope = RouteScope::Universe;
                message.header.table = RouteHeader::RT_TABLE_MAIN;
                message.attributes.push(RouteAttribute::Gateway(route_address(gateway)));
                LINK_INDEX
            }
        };
        message.attributes.push(RouteAttribute::Oif(device));
        self.ask(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Sends one request and reads its acknowledgement.
    fn ask(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence += 1;
        let mut packet = NetlinkMessage::from(message);
        packet.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        packet.header.sequence_number = self.sequence;
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let (answer, _) = self.socket.recv_from_full()?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        match answer.payload {
            NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
            _ => Ok(()),
        }
    }
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(v4) => RouteAddress::Inet(v4),
        IpAddr::V6(v6) => RouteAddress::Inet6(v6),
    }
}
