//! Places: the beginning of URLs, as settings of tools and rules name them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Serialize, Serializer};

use crate::address::{self, AddressClass, NameClass};
use crate::canonical::host::parse_authority;
use crate::canonical::refusal::{Part, Quoted, RefusalCode};
use crate::canonical::{CanonicalPath, Host, Refusal, Scheme};
use crate::pattern::PathPattern;

/// A scheme, a host, a port and the path below which everything belongs to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    scheme: Scheme,
    host: Host,
    port: u16,
    /// Without a slash at the end; empty for the whole host.
    prefix: String,
    /// Addresses that are not public and to which its name leads.
    addresses: Vec<IpAddr>,
}

impl Place {
    /// Reads a URL. Credentials and fragments in it are refused, a query too.
    pub fn parse(url: &str) -> Result<Self, Refusal> {
        let not_a_place = || {
            Refusal::new(
                Part::Path,
                RefusalCode::Invalid,
                format!("{} is not a place", Quoted(url)),
                "write https://HOST/PATH",
            )
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(not_a_place)?;
        let scheme = match scheme {
            "https" => Scheme::Https,
            "http" => Scheme::Http,
            _ => return Err(not_a_place()),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (host, port) = parse_authority(authority)?;
        let path = CanonicalPath::parse(if path.is_empty() { "/" } else { path })?;
        if path.as_str().contains('*') {
            return Err(not_a_place());
        }
        let prefix = path.as_str().trim_end_matches('/').to_owned();
        let port = port.unwrap_or(scheme.default_port());
        Ok(Self { scheme, host, port, prefix, addresses: Vec::new() })
    }

    /// The same place, whose name leads to these addresses. Private ones are named by the rules that are made of it, as
    /// whoever runs a mirror inside expects; every other special address is for a person to name.
    #[must_use]
    pub fn leading_to(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let private = |address: &IpAddr| {
            matches!(address::classify(*address), AddressClass::Private | AddressClass::Shared)
        };
        self.addresses = addresses.into_iter().filter(private).collect();
        self.addresses.sort_unstable();
        self.addresses.dedup();
        self
    }

    /// Addresses that rules made of it name.
    #[must_use]
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Whether it is the same place, wherever its name leads.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        (self.scheme, &self.host, self.port, &self.prefix)
            == (other.scheme, &other.host, other.port, &other.prefix)
    }

    /// Whether it is of the public web by its name. What a repository names must be: nobody is to be asked about the
    /// host's own services because a file in a repository says so.
    fn is_public(&self) -> bool {
        match &self.host {
            Host::Address(address) => address::classify(*address) == AddressClass::Public,
            Host::Name(name) => address::classify_name(name) == NameClass::Ordinary,
        }
    }

    /// Where a repository can be fetched over HTTPS, by the address it came from. What is reached over SSH is offered at
    /// the same host; a path of some machine is offered nowhere.
    #[must_use]
    pub fn of_repository(location: &str) -> Option<Self> {
        let without_user = |authority: &str| authority.rsplit('@').next().map(str::to_owned);
        if let Some((scheme, rest)) = location.split_once("://") {
            let (authority, path) = rest.split_once('/')?;
            let host = without_user(authority)?;
            return match scheme {
                "https" | "http" => Self::parse(&format!("{scheme}://{host}/{path}")).ok(),
                // The port is that of another service.
                "ssh" | "git+ssh" => {
                    let host = match host.strip_prefix('[') {
                        Some(rest) => format!("[{}]", rest.split(']').next()?),
                        None => host.split(':').next()?.to_owned(),
                    };
                    Self::parse(&format!("https://{host}/{path}")).ok()
                }
                _ => None,
            };
        }
        if location.starts_with('/') {
            return None;
        }
        let (host, path) = location.split_once(':')?;
        Self::parse(&format!("https://{}/{}", without_user(host)?, path.trim_start_matches('/'))).ok()
    }

    /// The place above, where this one ends in this segment: indices of packages stand beside the packages.
    #[must_use]
    pub fn above(&self, segment: &str) -> Option<Self> {
        let prefix = self.prefix.strip_suffix(segment)?.strip_suffix('/')?;
        Some(Self { prefix: prefix.to_owned(), ..self.clone() })
    }

    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The pattern of a path below this place.
    pub(crate) fn pattern(&self, below: &str) -> Result<PathPattern, Refusal> {
        PathPattern::parse(&format!("{}{below}", self.prefix))
    }

    /// The same repository as git servers also name it: with and without `.git`.
    #[must_use]
    pub fn git_spellings(&self) -> Vec<Self> {
        let bare = self.prefix.strip_suffix(".git").unwrap_or(&self.prefix);
        if bare.is_empty() {
            return vec![self.clone()];
        }
        let with = |prefix: String| Self { prefix, ..self.clone() };
        vec![with(bare.to_owned()), with(format!("{bare}.git"))]
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.as_str(), self.host)?;
        if self.port != self.scheme.default_port() {
            write!(f, ":{}", self.port)?;
        }
        write!(f, "{}/", self.prefix)
    }
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Places that are found on the operator's machine and that rules refer to as `@NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Places {
    /// Package registries that the operator's tools are configured for.
    pub registries: Vec<Place>,
    /// The repository of the bay.
    pub forge: Vec<Place>,
    /// What only files of the repository name.
    pub proposed: Vec<Place>,
    /// What the operator listed for this bay.
    pub listed: Vec<Place>,
}

impl Places {
    pub const NAMES: [&str; 4] = ["registries", "forge", "proposed", "listed"];

    pub(crate) fn named(&self, name: &str) -> Option<Vec<Place>> {
        let mut places = match name {
            "registries" => self.registries.clone(),
            "forge" => self.forge.iter().flat_map(Place::git_spellings).collect(),
            // What the operator has too needs no proposal.
            "proposed" => {
                let known = |place: &Place| self.registries.iter().any(|own| own.is(place));
                let proposed = self.proposed.iter().filter(|place| place.is_public() && !known(place));
                proposed.map(|place| Place { addresses: Vec::new(), ..place.clone() }).collect()
            }
            "listed" => self.listed.clone(),
            _ => return None,
        };
        let mut seen = BTreeMap::new();
        places.retain(|place| seen.insert(place.to_string(), ()).is_none());
        Some(places)
    }
}
