//! Hosts of rules: a name, `*.name` for everything below a name, `*`, an address, a network.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Serialize, Serializer};

use crate::address::{self, NameClass};
use crate::canonical::{Host, Refusal};

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostPattern {
    /// In an allow or an ask: every name, but no address, and no name of the host, the local network or a metadata
    /// service. In a deny: every host.
    Any,
    /// Every name below this one, at any depth, but not the name itself. An allow or an ask does not match names of
    /// metadata services by it.
    Below(Box<str>),
    Name(Box<str>),
    /// Addresses of the network. An allow or an ask matches special ones only as in [`address::named_by`].
    Network(IpNet),
}

/// How specific a pattern is: larger is more specific.
pub(crate) type Specificity = (u8, usize);

impl HostPattern {
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        if text == "*" {
            return Ok(Self::Any);
        }
        if let Some(name) = text.strip_prefix("*.") {
            return match Host::parse(name)? {
                Host::Name(name) => Ok(Self::Below(name)),
                Host::Address(_) => Err(not_a_pattern(text)),
            };
        }
        if let Some((address, prefix)) = text.split_once('/') {
            let Host::Address(address) = Host::parse(address)? else { return Err(not_a_pattern(text)) };
            let plain = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
            let prefix = prefix.parse().ok().filter(|_| plain);
            let network = prefix.and_then(|prefix| IpNet::new(address, prefix).ok());
            // An address with host bits set is more often a slip than intended.
            return match network {
                Some(network) if network.network() == address => Ok(Self::Network(network)),
                _ => Err(not_a_pattern(text)),
            };
        }
        if text.contains('*') {
            return Err(not_a_pattern(text));
        }
        Ok(match Host::parse(text)? {
            Host::Name(name) => Self::Name(name),
            Host::Address(address) => Self::Network(IpNet::from(address)),
        })
    }

    /// Whether an allow or ask matches the host. It matches special addresses and names only if it names them.
    pub(crate) fn permits(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Network(network), Host::Address(address)) => {
                address::named_by(network, *address, address::classify(*address))
            }
            (Self::Any, Host::Name(name)) => address::classify_name(name) == NameClass::Ordinary,
            (Self::Below(suffix), Host::Name(name)) => {
                is_below(name, suffix) && address::classify_name(name) != NameClass::Metadata
            }
            (Self::Name(own), Host::Name(name)) => own == name,
            _ => false,
        }
    }

    /// Whether a deny matches the host.
    pub(crate) fn forbids(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Any, _) => true,
            (Self::Network(network), Host::Address(address)) => {
                network.contains(address) || embedded(*address).is_some_and(|inner| network.contains(&inner))
            }
            (Self::Below(suffix), Host::Name(name)) => is_below(name, suffix),
            (Self::Name(own), Host::Name(name)) => own == name,
            _ => false,
        }
    }

    pub(crate) fn specificity(&self) -> Specificity {
        match self {
            Self::Any => (0, 0),
            Self::Network(network) if network.prefix_len() == network.max_prefix_len() => (3, 0),
            Self::Network(network) => (1, usize::from(network.prefix_len())),
            Self::Below(suffix) => (2, suffix.split('.').count()),
            Self::Name(_) => (3, 0),
        }
    }

    /// Whether it matches every host that the other pattern matches.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, Self::Any) => true,
            (Self::Any, Self::Below(suffix)) => {
                // A suffix decides the class of all names below it, so any name below it is a valid sample.
                address::classify_name(&format!("any.{suffix}")) == NameClass::Ordinary
            }
            (Self::Any, Self::Name(name)) => address::classify_name(name) == NameClass::Ordinary,
            (Self::Below(suffix), Self::Below(other)) => suffix == other || is_below(other, suffix),
            (Self::Below(suffix), Self::Name(name)) => {
                is_below(name, suffix) && address::classify_name(name) != NameClass::Metadata
            }
            (Self::Name(name), Self::Name(other)) => name == other,
            (Self::Network(network), Self::Network(other)) => network.contains(other),
            _ => false,
        }
    }

    /// Whether it matches, as a deny, every host that the other matches. A deny also matches special addresses and
    /// names.
    pub(crate) fn forbids_all_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Below(suffix), Self::Name(name)) => is_below(name, suffix),
            _ => self.covers(other),
        }
    }

    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.forbids_all_of(other) || other.forbids_all_of(self)
    }
}

/// The IPv4 address that an IPv6 address embeds.
fn embedded(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => address::embedded(address).map(IpAddr::V4),
    }
}

fn is_below(name: &str, suffix: &str) -> bool {
    name.strip_suffix(suffix).is_some_and(|rest| rest.ends_with('.'))
}

fn not_a_pattern(text: &str) -> Refusal {
    use crate::canonical::refusal::{Part, Quoted, RefusalCode};
    Refusal::new(
        Part::Host,
        RefusalCode::Invalid,
        format!("{} is not a host of a rule", Quoted(text)),
        "write a name, *.name for everything below it, * for every name, an address, or a network such as 192.0.2.0/24",
    )
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Below(suffix) => write!(f, "*.{suffix}"),
            Self::Name(name) => f.write_str(name),
            Self::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                write!(f, "{}", network.addr())
            }
            Self::Network(network) => write!(f, "{network}"),
        }
    }
}

impl Serialize for HostPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
