//! Classes of addresses. An address that is not public is refused unless rules name it, whatever name resolved to it.
//! The one exception is the loopback under the name of the host itself.
//!
//! The gateway calls [`check_address`](crate::check_address) with exactly the address that it is about to connect to. A
//! name that resolved to a public address a moment ago may resolve to one of the host's own services now.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::Serialize;

/// The kind of network or purpose that an address belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AddressClass {
    /// Reachable from the public internet. Documentation addresses count as public: nobody has them, and labs use them.
    Public,
    /// Metadata services of clouds. They give credentials to every process of a machine that asks.
    Metadata,
    /// An address of the host itself, as the gateway reported it.
    Own,
    Loopback,
    Unspecified,
    LinkLocal,
    /// RFC 1918 and unique local addresses.
    Private,
    /// RFC 6598, between carriers and customers.
    Shared,
    Multicast,
    Broadcast,
    /// An IPv6 address with an IPv4 address in it: mapped, compatible, NAT64, 6to4, Teredo, ISATAP.
    Embedded,
    /// Reserved for purposes other than hosts.
    Reserved,
}

impl AddressClass {
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Public => "a public address",
            Self::Metadata => "an address of a cloud's metadata service",
            Self::Own => "an address of the host itself",
            Self::Loopback => "a loopback address",
            Self::Unspecified => "the unspecified address",
            Self::LinkLocal => "a link-local address",
            Self::Private => "a private address",
            Self::Shared => "a shared address of a carrier (RFC 6598)",
            Self::Multicast => "a multicast address",
            Self::Broadcast => "a broadcast address",
            Self::Embedded => "an IPv6 address with an IPv4 address in it",
            Self::Reserved => "a reserved address",
        }
    }
}

/// Metadata services outside link-local space, and those within it that need a stricter class than their neighbours.
const METADATA_V4: &[Ipv4Addr] = &[
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(169, 254, 170, 2),
    Ipv4Addr::new(169, 254, 170, 23),
    Ipv4Addr::new(169, 254, 169, 253),
    Ipv4Addr::new(169, 254, 0, 23),
    Ipv4Addr::new(169, 254, 42, 42),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(100, 100, 100, 20),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];
const METADATA_V6: &[Ipv6Addr] = &[
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
];
/// Names by which metadata services are reached.
const METADATA_NAMES: &[&str] = &[
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "instance-data",
    "instance-data.ec2.internal",
    "metadata.azure.internal",
    "metadata.tencentyun.com",
    "metadata.platformequinix.com",
];
/// Suffixes of names that a host or a local network answers, not the public DNS.
const LOCAL_SUFFIXES: &[&str] =
    &["localhost", "local", "internal", "intranet", "lan", "home.arpa", "localdomain"];

/// The class of a name, as far as the name alone shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NameClass {
    Ordinary,
    /// Names of the host or the local network. An allow or an ask matches one if it names it or a suffix of it, and not
    /// by `*`. A deny also matches by `*`.
    Local,
    /// Names of metadata services. An allow or an ask must name one in full. A deny also matches by a suffix or `*`.
    Metadata,
}

/// The class of a canonical name.
#[must_use]
pub fn classify_name(name: &str) -> NameClass {
    if METADATA_NAMES.contains(&name) {
        return NameClass::Metadata;
    }
    let below = |suffix: &str| name.strip_suffix(suffix).is_some_and(|rest| rest.ends_with('.'));
    if !name.contains('.') || LOCAL_SUFFIXES.iter().any(|suffix| below(suffix)) || name == "home.arpa" {
        return NameClass::Local;
    }
    NameClass::Ordinary
}

/// The class of an address; `own` are the addresses of the host, public ones included.
#[must_use]
pub fn classify_with(address: IpAddr, own: &[IpAddr]) -> AddressClass {
    match classify(address) {
        class @ (AddressClass::Metadata | AddressClass::Embedded) => class,
        _ if own.contains(&address) => AddressClass::Own,
        class => class,
    }
}

/// The class of an address.
#[must_use]
pub fn classify(address: IpAddr) -> AddressClass {
    match address {
        IpAddr::V4(address) => classify_v4(address),
        IpAddr::V6(address) => classify_v6(address),
    }
}

fn classify_v4(address: Ipv4Addr) -> AddressClass {
    let octets = address.octets();
    if METADATA_V4.contains(&address) {
        return AddressClass::Metadata;
    }
    match octets {
        [0, 0, 0, 0] => AddressClass::Unspecified,
        [127, ..] => AddressClass::Loopback,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => AddressClass::Private,
        [100, 64..=127, ..] => AddressClass::Shared,
        [169, 254, ..] => AddressClass::LinkLocal,
        [224..=239, ..] => AddressClass::Multicast,
        [255, 255, 255, 255] => AddressClass::Broadcast,
        // "This network", protocol assignments, the 6to4 relay, benchmarks, and what is reserved for the future.
        [0, ..] | [192, 0, 0, _] | [192, 88, 99, _] | [198, 18..=19, ..] | [240..=255, ..] => {
            AddressClass::Reserved
        }
        _ => AddressClass::Public,
    }
}

fn classify_v6(address: Ipv6Addr) -> AddressClass {
    if METADATA_V6.contains(&address) {
        return AddressClass::Metadata;
    }
    if address.is_unspecified() {
        return AddressClass::Unspecified;
    }
    if address.is_loopback() {
        return AddressClass::Loopback;
    }
    if let Some(inner) = embedded(address) {
        return match classify_v4(inner) {
            AddressClass::Metadata => AddressClass::Metadata,
            _ => AddressClass::Embedded,
        };
    }
    match address.segments() {
        [0xff00..=0xffff, ..] => AddressClass::Multicast,
        [0xfe80..=0xfebf, ..] => AddressClass::LinkLocal,
        // Site-local addresses are deprecated, but some routers still route them.
        [0xfec0..=0xfeff, ..] | [0xfc00..=0xfdff, ..] => AddressClass::Private,
        // Only 2000::/3 is allocated. Protocol assignments and ORCHID within it are not hosts either.
        [0x2001, 0..=0x1ff, ..] => AddressClass::Reserved,
        [0x2000..=0x3fff, ..] => AddressClass::Public,
        _ => AddressClass::Reserved,
    }
}

/// The IPv4 address in an IPv6 address.
#[must_use]
pub fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match address.segments() {
        // Mapped, translated (SIIT) and compatible. `::` and `::1` match too: `classify_v6` has classified them before.
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0, 0, 0, 0, 0, 0, high, low] => Some(v4(high, low)),
        // NAT64: the well-known prefix, and the prefix for local use, whose shorter forms all end in host bits.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x64, 0xff9b, 1, _, _, _, high, low] => Some(v4(high, low)),
        [0x2002, high, low, ..] => Some(v4(high, low)),
        // Teredo hides the client's address by inverting it.
        [0x2001, 0, _, _, _, _, high, low] => Some(v4(!high, !low)),
        // ISATAP.
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => Some(v4(high, low)),
        _ => None,
    }
}

/// Whether a network that a rule names also covers this address. A rule must name a metadata address, or an address of
/// the host, by itself. Any other special address needs a network that lies wholly in one block of special addresses:
/// `0.0.0.0/0` covers no private address.
#[must_use]
pub fn named_by(network: &IpNet, address: IpAddr, class: AddressClass) -> bool {
    if !network.contains(&address) {
        return false;
    }
    match class {
        AddressClass::Public => true,
        AddressClass::Metadata | AddressClass::Own => network.prefix_len() == network.max_prefix_len(),
        _ => SPECIAL_NETWORKS.iter().any(|special| special.contains(network)),
    }
}

/// The blocks of special addresses. A network must be part of one of them to cover a special address.
const SPECIAL_NETWORKS: &[IpNet] = &[
    v4([0, 0, 0, 0], 8),
    v4([10, 0, 0, 0], 8),
    v4([100, 64, 0, 0], 10),
    v4([127, 0, 0, 0], 8),
    v4([169, 254, 0, 0], 16),
    v4([172, 16, 0, 0], 12),
    v4([192, 0, 0, 0], 24),
    v4([192, 88, 99, 0], 24),
    v4([192, 168, 0, 0], 16),
    v4([198, 18, 0, 0], 15),
    v4([224, 0, 0, 0], 3),
    // Everything that begins with eight zero bits: loopback, unspecified, mapped, NAT64.
    v6(0, 8),
    v6(0x2001, 23),
    v6(0x2002, 16),
    v6(0xfc00, 7),
    v6(0xfe80, 9),
    v6(0xff00, 8),
];

const fn v4([a, b, c, d]: [u8; 4], prefix: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix))
}

const fn v6(first: u16, prefix: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0), prefix))
}
