//! Destinations: prefixes of URLs with `http` or `https`, as settings of tools and rules name them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Serialize, Serializer};

use crate::address::{self, AddressClass, NameClass};
use crate::canonical::host::parse_authority;
use crate::canonical::refusal::{Part, Quoted, RefusalCode};
use crate::canonical::{CanonicalPath, Host, Refusal, Scheme};
use crate::pattern::PathPattern;

/// A scheme, a host, a port and the path prefix that the destination covers: the value of the key `place` in a policy
/// file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    scheme: Scheme,
    host: Host,
    port: u16,
    /// Without a slash at the end. Empty for the whole host.
    prefix: String,
    /// Private and shared addresses that the host resolves to.
    addresses: Vec<IpAddr>,
}

impl Place {
    /// Parses a URL. Refuses credentials, fragments, queries, stars, and schemes other than `http` and `https`.
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

    /// Sets the addresses that the host resolves to. Rules made from the destination then name the private and the
    /// shared ones, as operators of an internal mirror expect. A person has to name any other special address.
    #[must_use]
    pub fn resolving_to(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let private = |address: &IpAddr| {
            matches!(address::classify(*address), AddressClass::Private | AddressClass::Shared)
        };
        self.addresses = addresses.into_iter().filter(private).collect();
        self.addresses.sort_unstable();
        self.addresses.dedup();
        self
    }

    /// The addresses that rules made from this destination name.
    #[must_use]
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Whether both are the same destination, whatever their hosts resolve to.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        (self.scheme, &self.host, self.port, &self.prefix)
            == (other.scheme, &other.host, other.port, &other.prefix)
    }

    /// Whether the name belongs to the public web. A destination from a repository must have such a name. Otherwise a
    /// file in a repository could make the daemon ask a person about the host's own services.
    fn is_public(&self) -> bool {
        match &self.host {
            Host::Address(address) => address::classify(*address) == AddressClass::Public,
            Host::Name(name) => address::classify_name(name) == NameClass::Ordinary,
        }
    }

    /// Where a repository is expected over HTTP or HTTPS, derived from the address it was cloned from. For an SSH
    /// address that is HTTPS on the same host. A path on some machine has no such destination.
    #[must_use]
    pub fn of_repository(location: &str) -> Option<Self> {
        let without_user = |authority: &str| authority.rsplit('@').next().map(str::to_owned);
        if let Some((scheme, rest)) = location.split_once("://") {
            let (authority, path) = rest.split_once('/')?;
            let host = without_user(authority)?;
            return match scheme {
                "https" | "http" => Self::parse(&format!("{scheme}://{host}/{path}")).ok(),
                // The port belongs to SSH, not to HTTPS.
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

    /// The parent destination, if this one ends in this segment: package indices lie beside the packages.
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

    /// The pattern of a path below this destination.
    pub(crate) fn pattern(&self, below: &str) -> Result<PathPattern, Refusal> {
        PathPattern::parse(&format!("{}{below}", self.prefix))
    }

    /// The repository with and without `.git`: git servers accept both.
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

/// Destinations found on the operator's machine. Rules refer to them as `@NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Places {
    /// Package registries that the operator's tools are configured for.
    pub registries: Vec<Place>,
    /// The repository of the bay.
    pub forge: Vec<Place>,
    /// Destinations that only files of the repository name.
    pub proposed: Vec<Place>,
    /// Destinations that the operator listed for this bay.
    pub listed: Vec<Place>,
}

impl Places {
    pub const NAMES: [&str; 4] = ["registries", "forge", "proposed", "listed"];

    pub(crate) fn named(&self, name: &str) -> Option<Vec<Place>> {
        let mut places = match name {
            "registries" => self.registries.clone(),
            "forge" => self.forge.iter().flat_map(Place::git_spellings).collect(),
            // A destination that the operator's tools use needs no proposal.
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
