//! Rules and grants: what they contain, and whether they match a request.

use std::fmt;

use ipnet::IpNet;
use jiff::Timestamp;
use serde::Serialize;

use crate::canonical::path::Reading;
use crate::canonical::request::Pushing;
use crate::canonical::{CanonicalRequest, Http, Scheme, What};
use crate::pattern::{HostPattern, Methods, PathPattern, Ports, QueryPattern, Strictness};
use crate::push::RefPattern;

/// The outcome of a rule, a layer or the whole policy for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Allow,
    /// A person is asked. Only an approval or a grant turns it into an allow.
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

/// The owner of a rule. Each layer can only narrow what the others allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// The operator's layer, for every bay of the host.
    Host,
    /// The layer of a project, for each of its bays.
    Project,
    /// The layer of one bay.
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

/// The file and line of a rule.
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

/// The kind of traffic that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// HTTP requests, which the gateway reads.
    Http,
    /// Bytes of any protocol to a host and port.
    Tcp,
    /// TLS that the gateway does not decrypt. It never gets credentials.
    Passthrough,
    /// Git over SSH: services of repositories, with the operator's key.
    #[serde(rename = "git-ssh")]
    GitSsh,
    /// All kinds. A deny has it if it names no kind and nothing that only HTTP has. No other rule has it.
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

    /// Whether the gateway can read methods and paths of this traffic.
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

/// The conditions of a rule or a grant. A request must meet all of them, except `addresses`, which are checked when the
/// gateway connects.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Matcher {
    pub kind: Kind,
    /// The request's host must match one of them.
    pub hosts: Vec<HostPattern>,
    pub ports: Ports,
    /// For `http` and `git-ssh`: the request must have one of them.
    pub schemes: Vec<Scheme>,
    /// For `http` and `git-ssh`.
    pub methods: Methods,
    /// For `http` and `git-ssh`: the request's path must match one of them.
    pub paths: Vec<PathPattern>,
    /// For `http`.
    pub query: QueryPattern,
    /// For `http`: header names that must all be present. In lower case.
    pub headers: Vec<String>,
    /// If not empty, only pushes to git repositories that change these refs match. If empty, branches do not matter.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub branches: Vec<RefPattern>,
    /// If present, the request must have exactly these secrets attached. Sorted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Vec<String>>,
    /// Networks of addresses that are not public and that the name may resolve to.
    pub addresses: Vec<IpNet>,
}

impl Matcher {
    /// Whether it matches the request, in whichever way a server may divide its path. An allow must match all readings;
    /// an ask or a deny must match one.
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

    /// Whether it matches one reading of the request's path.
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

    /// An allow of GET does not cover a WebSocket. An ask or deny of GET does, because the handshake begins with a GET.
    fn matches_method(&self, http: &Http, strictness: Strictness) -> bool {
        self.methods.contains(http.method())
            || (strictness == Strictness::Forgiving && self.methods.contains(http.sent_method()))
    }

    /// Whether the branches of the rule match a push.
    ///
    /// An allow matches pushes that change only these branches, and the request before such a push. Ask and deny match
    /// pushes that change, or may change, one of these branches. A push may change any branch if its refs are unknown
    /// or it has push options.
    pub(crate) fn matches_push(&self, request: &CanonicalRequest, strictness: Strictness) -> bool {
        let forgiving = strictness == Strictness::Forgiving;
        let fits = |name: &String| self.branches.iter().any(|branch| branch.matches(name, forgiving));
        match request.pushing() {
            _ if self.branches.is_empty() => true,
            Pushing::No => false,
            Pushing::Preparing => !forgiving,
            Pushing::Unknown => forgiving,
            // Options may concern anything in the repository, whatever the refs are.
            Pushing::Refs(_) if request.push_options() > 0 => forgiving,
            Pushing::Refs(refs) if forgiving => refs.iter().any(fits),
            Pushing::Refs(refs) => refs.iter().all(fits),
        }
    }

    /// Whether it surely matches everything that the other matches. `false` if that cannot be told from the patterns.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.kind.includes(other.kind)
            && other.hosts.iter().all(|host| self.hosts.iter().any(|own| own.covers(host)))
            && self.covers_what(other)
    }

    /// Whether it surely matches, as a deny, everything that the other matches. A deny also matches special addresses
    /// and names.
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

    /// Whether some request could match both. It may return true too often.
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
    /// Why the rule exists, in the words of its author.
    pub reason: Option<String>,
    /// The time from which the rule has no effect.
    pub expires: Option<Timestamp>,
    /// For an ask: whether the bay's files are checkpointed before a person is asked.
    pub checkpoint: bool,
    /// Requests that the rule must match.
    pub examples: Vec<String>,
    /// Requests that the rule must not match.
    pub counterexamples: Vec<String>,
}

impl Rule {
    #[must_use]
    pub fn is_active(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

/// A temporary permission. It answers an `ask`. It also replaces a missing rule in the project's and the bay's layer.
/// It overrides no rule that denies, and not a host layer that denies what its rules do not cover.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Grant {
    pub id: String,
    pub origin: Origin,
    pub matcher: Matcher,
    pub reason: Option<String>,
    pub expires: Timestamp,
}
