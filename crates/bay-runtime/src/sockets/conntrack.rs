//! The kernel's table of translated connections: containers in a bay share the bay's address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bay_types::egress::Transport;

use super::kernel::{Kernel, NLA_NESTED, attribute, written};

// From linux/netfilter/nfnetlink.h and nfnetlink_conntrack.h.
const IPCTNL_MSG_CT_GET: u16 = 1 << 8 | 1;
const FAMILY_HEADER: usize = 4;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;

/// The address at which a connection began inside the bay, if the bay translated it. None if it has the same address.
pub(super) fn origin(
    kernel: &mut Kernel,
    local: SocketAddr,
    remote: SocketAddr,
    transport: Transport,
) -> io::Result<Option<IpAddr>> {
    let family = if local.is_ipv4() { AF_INET } else { AF_INET6 };
    let mut question = vec![family, 0, 0, 0];
    // An answer goes from the remote end to the local end.
    question.extend(written(CTA_TUPLE_REPLY | NLA_NESTED, &tuple(remote, local, transport)));
    let found = match kernel.ask(IPCTNL_MSG_CT_GET, &question) {
        Ok((_, body)) => body.get(FAMILY_HEADER..).and_then(source),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    Ok(found.filter(|source| *source != local.ip()))
}

fn tuple(source: SocketAddr, destination: SocketAddr, transport: Transport) -> Vec<u8> {
    let number = match transport {
        Transport::Tcp => 6,
        Transport::Udp => 17,
    };
    let addresses = match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            [written(CTA_IP_V4_SRC, &from.octets()), written(CTA_IP_V4_DST, &to.octets())].concat()
        }
        (from, to) => {
            let octets = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            [written(CTA_IP_V6_SRC, &octets(from)), written(CTA_IP_V6_DST, &octets(to))].concat()
        }
    };
    let ports = [
        written(CTA_PROTO_NUM, &[number]),
        written(CTA_PROTO_SRC_PORT, &source.port().to_be_bytes()),
        written(CTA_PROTO_DST_PORT, &destination.port().to_be_bytes()),
    ]
    .concat();
    [written(CTA_TUPLE_IP | NLA_NESTED, &addresses), written(CTA_TUPLE_PROTO | NLA_NESTED, &ports)].concat()
}

/// The address that began the connection.
fn source(attributes: &[u8]) -> Option<IpAddr> {
    let addresses = attribute(attribute(attributes, CTA_TUPLE_ORIG)?, CTA_TUPLE_IP)?;
    let v4 = attribute(addresses, CTA_IP_V4_SRC).and_then(|bytes| bytes.first_chunk::<4>());
    let v6 = || attribute(addresses, CTA_IP_V6_SRC).and_then(|bytes| bytes.first_chunk::<16>());
    v4.map(|bytes| Ipv4Addr::from(*bytes).into()).or_else(|| v6().map(|bytes| Ipv6Addr::from(*bytes).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_a_connection_is_read_from_its_message() {
        for (from, to) in [("172.17.0.2:4000", "1.2.3.4:443"), ("[fd01::2]:4000", "[fd02::1]:443")] {
            let from: SocketAddr = from.parse().unwrap();
            let entry =
                written(CTA_TUPLE_ORIG | NLA_NESTED, &tuple(from, to.parse().unwrap(), Transport::Tcp));
            assert_eq!(source(&entry), Some(from.ip()));
        }
        assert_eq!(source(&[]), None);
    }
}
