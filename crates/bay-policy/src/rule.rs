//! Rules and grants: what they say, and whether a request is what they speak of.

use std::fmt;

use ipnet::IpNet;
use jiff::Timestamp;
use serde::Serialize;

use crate::canonical::path::Reading;
use crate::canonical::request::Pushing;
use crate::canonical::{CanonicalRequest, Http, Scheme, What};
use crate::pattern::{HostPattern, Methods, PathPattern, Ports, QueryPattern, Strictness};
use crate::push::RefPattern;

/// What a rule, a layer or the whole policy says to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Allow,
    /// Held until a person has answered.
    Ask,
    Deny,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        })
    }
}

/// Whose word a rule is. A layer can only narrow what the layers before it leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// The operator's, for every bay of the host.
    Host,
    /// For every bay of a project.
    Project,
    /// For one bay.
    Bay,
}

impl Layer {
    pub const ALL: [Self; 3] = [Self::Host, Self::Project, Self::Bay];
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Project => "project",
            Self::Bay => "bay",
        })
    }
}

/// Where a rule was written.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Origin {
    pub layer: Layer,
    pub file: String,
    pub line: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} ({} layer)", self.file, self.line, self.layer)
    }
}

/// What kind of traffic a rule speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Requests that the gateway reads.
    Http,
    /// Bytes of any protocol to a host and port.
    Tcp,
    /// TLS that the gateway does not look into; never with credentials.
    Passthrough,
    /// Git over SSH: services of repositories, with the operator's key.
    #[serde(rename = "git-ssh")]
    GitSsh,
    /// All of it; for deny only.
    Any,
}

impl Kind {
    pub(crate) fn includes(self, other: Self) -> bool {
        self == other || self == Self::Any
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Tcp => "tcp",
            Self::Passthrough => "passthrough",
            Self::GitSsh => "git-ssh",
            Self::Any => "any",
        }
    }

    /// Whether the gateway sees methods and paths of it.
    #[must_use]
    pub fn has_paths(self) -> bool {
        matches!(self, Self::Http | Self::GitSsh)
    }
}

impl CanonicalRequest {
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.what() {
            What::Http(_) => Kind::Http,
            What::GitSsh(_) => Kind::GitSsh,
            What::Tcp => Kind::Tcp,
            What::Passthrough => Kind::Passthrough,
        }
    }
}

/// What a rule or a grant speaks of. Everything given must fit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Matcher {
    pub kind: Kind,
    /// One of them.
    pub hosts: Vec<HostPattern>,
    pub ports: Ports,
    /// For `http` and `git-ssh`: one of them.
    pub schemes: Vec<Scheme>,
    /// For `http` and `git-ssh`.
    pub methods: Methods,
    /// For `http` and `git-ssh`: one of them.
    pub paths: Vec<PathPattern>,
    /// For `http`.
    pub query: QueryPattern,
    /// For `http`: all of them are there. In lower case.
    pub headers: Vec<String>,
    /// Of pushes to git repositories those that change these refs. Without any: all requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub branches: Vec<RefPattern>,
    /// Only with exactly these secrets attached, in order; with any where this is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Vec<String>>,
    /// Addresses that are not public and to which the name may lead.
    pub addresses: Vec<IpNet>,
}

impl Matcher {
    /// Whether it speaks of the request, whatever way a server may divide its path: for an allow in all of them, for ask
    /// and deny in one.
    #[must_use]
    pub fn matches(&self, request: &CanonicalRequest, outcome: Outcome) -> bool {
        match request.path() {
            None => self.matches_reading(request, None, outcome),
            Some(path) => {
                let fits = |reading| self.matches_reading(request, Some(reading), outcome);
                let mut readings = path.readings().iter();
                if outcome == Outcome::Allow { readings.all(fits) } else { readings.any(fits) }
            }
        }
    }

    /// The same for one way of dividing the path.
    pub(crate) fn matches_reading(
        &self,
        request: &CanonicalRequest,
        reading: Option<&Reading>,
        outcome: Outcome,
    ) -> bool {
        self.matches_except_host(request, reading, outcome)
            && self.hosts.iter().any(|host| match outcome {
                Outcome::Allow | Outcome::Ask => host.permits(request.host()),
                Outcome::Deny => host.forbids(request.host()),
            })
    }

    fn matches_except_host(
        &self,
        request: &CanonicalRequest,
        reading: Option<&Reading>,
        outcome: Outcome,
    ) -> bool {
        let strictness = if outcome == Outcome::Allow { Strictness::Exact } else { Strictness::Forgiving };
        self.kind.includes(request.kind())
            && self.secrets.as_ref().is_none_or(|secrets| secrets == request.secrets())
            && match (request.what(), reading) {
                (What::Http(http), Some(reading)) => {
                    self.matches_http(http, request.port(), reading, strictness)
                        && self.matches_push(request, strictness)
                }
                (What::GitSsh(git), Some(reading)) => {
                    self.schemes.contains(&Scheme::Ssh)
                        && self.ports.contains(request.port(), Scheme::Ssh)
                        && self.methods.contains(git.service().method())
                        && self.paths.iter().any(|path| path.matches(reading, strictness))
                        && self.matches_push(request, strictness)
                }
                (What::Http(_) | What::GitSsh(_), None) => false,
                (What::Tcp | What::Passthrough, _) => self.ports.contains(request.port(), Scheme::Https),
            }
    }

    fn matches_http(&self, http: &Http, port: u16, reading: &Reading, strictness: Strictness) -> bool {
        self.schemes.contains(&http.scheme())
            && self.ports.contains(port, http.scheme())
            && self.matches_method(http, strictness)
            && self.paths.iter().any(|path| path.matches(reading, strictness))
            && self.query.matches(http.query(), strictness)
            && self.headers.iter().all(|header| http.has_header(header))
    }

    /// An allow of GET is none of a WebSocket; deny and ask are for whatever begins with a GET.
    fn matches_method(&self, http: &Http, strictness: Strictness) -> bool {
        self.methods.contains(http.method())
            || (strictness == Strictness::Forgiving && self.methods.contains(http.sent_method()))
    }

    /// An allow is for pushes that change nothing else, and for what comes before them; deny and ask are for pushes that
    /// change one of the refs, or may: those of which that is not known, and those with push options.
    pub(crate) fn matches_push(&self, request: &CanonicalRequest, strictness: Strictness) -> bool {
        let forgiving = strictness == Strictness::Forgiving;
        let fits = |name: &String| self.branches.iter().any(|branch| branch.matches(name, forgiving));
        match request.pushing() {
            _ if self.branches.is_empty() => true,
            Pushing::No => false,
            Pushing::Preparing => !forgiving,
            Pushing::Unknown => forgiving,
            // Options may be about anything of the repository, whatever the refs are.
            Pushing::Refs(_) if request.push_options() > 0 => forgiving,
            Pushing::Refs(refs) if forgiving => refs.iter().any(fits),
            Pushing::Refs(refs) => refs.iter().all(fits),
        }
    }

    /// Whether everything the other speaks of is spoken of here.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.kind.includes(other.kind)
            && other.hosts.iter().all(|host| self.hosts.iter().any(|own| own.covers(host)))
            && self.covers_what(other)
    }

    /// The same where this one is a deny: that spares no special address or name.
    #[must_use]
    pub fn forbids_all_of(&self, other: &Self) -> bool {
        self.kind.includes(other.kind)
            && other.hosts.iter().all(|host| self.hosts.iter().any(|own| own.forbids_all_of(host)))
            && self.covers_what(other)
    }

    fn covers_what(&self, other: &Self) -> bool {
        if self.secrets.is_some() && self.secrets != other.secrets {
            return false;
        }
        if matches!(other.kind, Kind::Tcp | Kind::Passthrough) {
            return self.ports.covers(&other.ports, Scheme::Https);
        }
        other
            .schemes
            .iter()
            .all(|scheme| self.schemes.contains(scheme) && self.ports.covers(&other.ports, *scheme))
            && self.methods.covers(&other.methods)
            && other.paths.iter().all(|path| self.paths.iter().any(|own| own.covers(path)))
            && self.query.covers(&other.query)
            && self.headers.iter().all(|header| other.headers.contains(header))
            && (self.branches.is_empty() || self.covers_branches(other))
    }

    fn covers_branches(&self, other: &Self) -> bool {
        let covered = |branch: &RefPattern| self.branches.iter().any(|own| own.covers(branch));
        !other.branches.is_empty() && other.branches.iter().all(covered)
    }

    /// Whether a request may exist that both speak of.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let kinds = self.kind.includes(other.kind) || other.kind.includes(self.kind);
        let hosts = self.hosts.iter().any(|own| other.hosts.iter().any(|host| own.overlaps(host)));
        if !kinds || !hosts {
            return false;
        }
        if !self.kind.has_paths() && !other.kind.has_paths() {
            return self.ports.overlaps(&other.ports, Scheme::Https);
        }
        let schemes = self.schemes.iter().filter(|scheme| other.schemes.contains(scheme));
        schemes.into_iter().any(|scheme| self.ports.overlaps(&other.ports, *scheme))
            && self.methods.overlaps(&other.methods)
            && self.paths.iter().any(|own| other.paths.iter().any(|path| own.overlaps(path)))
            && self.query.overlaps(&other.query)
    }
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Rule {
    pub id: String,
    pub origin: Origin,
    pub outcome: Outcome,
    pub matcher: Matcher,
    /// Why it is there, in the words of whoever wrote it.
    pub reason: Option<String>,
    /// From this moment on it has no effect.
    pub expires: Option<Timestamp>,
    /// For an ask: whether the bay's files are kept before a person is asked.
    pub checkpoint: bool,
    /// Requests that it must speak of.
    pub examples: Vec<String>,
    /// Requests that it must not speak of.
    pub counterexamples: Vec<String>,
}

impl Rule {
    #[must_use]
    pub fn is_active(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

/// A temporary permission. It answers an `ask`, and stands in for a rule where the project's and the bay's layer have
/// none; it is above no deny, and above no silence of the host's layer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Grant {
    pub id: String,
    pub origin: Origin,
    pub matcher: Matcher,
    pub reason: Option<String>,
    pub expires: Timestamp,
}
