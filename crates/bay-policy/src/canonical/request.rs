//! Whole requests. Every name of a connection must be the same one, and no header and no parameter may ask for another
//! request.

use std::fmt;

use serde::Serialize;

use super::git::{GitService, GitSsh};
use super::host::{Host, parse_authority, parse_port};
use super::overrides::{is_overriding_field, is_overriding_header};
use super::path::CanonicalPath;
use super::query::CanonicalQuery;
use super::refusal::{Part, Quoted, Refusal, RefusalCode};
use crate::push::{Commands, is_ref};

/// Longest method.
pub const MAX_METHOD_BYTES: usize = 32;
/// Most headers whose names are checked.
pub const MAX_HEADERS: usize = 256;

/// The word for the handshake of a WebSocket, in the place of a method. The gateway sends the handshake as a GET. It
/// has a word of its own because a client that may read a resource may not therefore keep a two-way connection for
/// hours.
pub const WEBSOCKET: &str = "WEBSOCKET";
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    Http,
    Https,
    /// The scheme of git over SSH. No HTTP request has it.
    Ssh,
}

impl Scheme {
    #[must_use]
    pub fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
            Self::Ssh => 22,
        }
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Ssh => "ssh",
        }
    }
}

/// The connection that a request arrived on.
#[derive(Debug, Clone, Copy)]
pub struct Connection<'a> {
    /// The name whose lookup gave the address of the connection, or the host of a CONNECT. If there was no lookup, the
    /// address itself.
    pub destination: &'a str,
    pub port: u16,
    /// The server name of the TLS handshake.
    pub sni: Option<&'a str>,
}

/// A request as it was received, in parts, before any of them is checked.
#[derive(Debug, Clone, Copy)]
pub struct RawRequest<'a> {
    pub connection: Connection<'a>,
    pub scheme: Scheme,
    pub method: &'a str,
    /// The request target: `/path?query`, or a whole URL if the client spoke to a proxy.
    pub target: &'a str,
    /// The values of every `Host` and `:authority`.
    pub authorities: &'a [&'a str],
    /// The names of all headers.
    pub headers: &'a [&'a str],
    /// Whether the request is a complete handshake of a WebSocket, after which the connection is no longer HTTP.
    pub websocket: bool,
}

/// A request in its canonical form. The policy decides on it, and the gateway sends what it says.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct CanonicalRequest {
    host: Host,
    port: u16,
    /// Names of the secrets that would be attached, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    secrets: Vec<String>,
    /// How many push options a push has. Zero unless its refs are known.
    #[serde(skip_serializing_if = "is_zero")]
    push_options: usize,
    #[serde(flatten)]
    what: What,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// The kind of traffic, with the parts of it that the gateway can read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum What {
    Http(Http),
    /// Git over SSH: one service of one repository.
    GitSsh(GitSsh),
    /// Bytes of any protocol to a host and port.
    Tcp,
    /// TLS that the gateway does not decrypt. It knows only the looked-up name and the SNI.
    Passthrough,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Http {
    scheme: Scheme,
    method: String,
    path: CanonicalPath,
    query: CanonicalQuery,
    /// Lower case, in order, each once.
    headers: Vec<String>,
    /// The refs that a git push changes, if they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    refs: Option<Vec<String>>,
}

/// Whether a request pushes to a git repository, and what the push changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushing<'a> {
    No,
    /// The request for the list of refs, which comes before a push, or a push that changes nothing.
    Preparing,
    /// A push whose refs are unknown.
    Unknown,
    Refs(&'a [String]),
}

impl<'a> Pushing<'a> {
    pub(super) fn of(refs: Option<&'a [String]>) -> Self {
        match refs {
            None => Self::Unknown,
            Some([]) => Self::Preparing,
            Some(refs) => Self::Refs(refs),
        }
    }
}

impl Http {
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The word that rules match: the request's method, or [`WEBSOCKET`].
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The method that the gateway sends.
    #[must_use]
    pub fn sent_method(&self) -> &str {
        if self.is_websocket() { "GET" } else { &self.method }
    }

    #[must_use]
    pub fn is_websocket(&self) -> bool {
        self.method == WEBSOCKET
    }

    #[must_use]
    pub fn path(&self) -> &CanonicalPath {
        &self.path
    }

    #[must_use]
    pub fn query(&self) -> &CanonicalQuery {
        &self.query
    }

    #[must_use]
    pub fn has_header(&self, name: &str) -> bool {
        self.headers.binary_search_by(|header| header.as_str().cmp(name)).is_ok()
    }

    #[must_use]
    pub fn headers(&self) -> &[String] {
        &self.headers
    }

    /// Whether the most forgiving server would treat the request as a push to a git repository.
    #[must_use]
    pub fn is_push(&self) -> bool {
        let path = self.path.as_str().to_ascii_lowercase();
        path.trim_end_matches(['/', '.', ' ']).ends_with("git-receive-pack")
    }

    fn pushing(&self) -> Pushing<'_> {
        let service = self.query.pairs().any(|pair| pair == ("service", "git-receive-pack"));
        match &self.refs {
            _ if self.is_push() => Pushing::of(self.refs.as_deref()),
            _ if service && self.path.as_str().ends_with("/info/refs") => Pushing::Preparing,
            _ => Pushing::No,
        }
    }
}

impl CanonicalRequest {
    /// The request to fetch from or push to a repository by git over SSH.
    pub fn git_ssh(destination: &str, port: u16, service: GitService, path: &str) -> Result<Self, Refusal> {
        let git = GitSsh::new(service, path)?;
        Ok(Self {
            host: Host::parse(destination)?,
            port: checked_port(port)?,
            secrets: Vec::new(),
            push_options: 0,
            what: What::GitSsh(git),
        })
    }

    /// The request for a connection that carries any protocol.
    pub fn tcp(destination: &str, port: u16) -> Result<Self, Refusal> {
        Ok(Self {
            host: Host::parse(destination)?,
            port: checked_port(port)?,
            secrets: Vec::new(),
            push_options: 0,
            what: What::Tcp,
        })
    }

    /// The request for a TLS connection that is passed on undecrypted. The SNI must be present and equal the looked-up
    /// name.
    pub fn passthrough(connection: &Connection<'_>) -> Result<Self, Refusal> {
        let host = Host::parse(connection.destination)?;
        same_sni(&host, connection.sni)?;
        if host.name().is_none() {
            return Err(Refusal::new(
                Part::Names,
                RefusalCode::NameMissing,
                "TLS to a bare address carries no name to decide on",
                "connect to the name",
            ));
        }
        Ok(Self {
            host,
            port: checked_port(connection.port)?,
            secrets: Vec::new(),
            push_options: 0,
            what: What::Passthrough,
        })
    }

    /// Adds the refs that a push changes, read from its body. A request that is no push stays as it is.
    #[must_use]
    pub fn with_refs(mut self, refs: Vec<String>) -> Self {
        if !self.is_push() || !refs.iter().all(|name| is_ref(name)) {
            return self;
        }
        match &mut self.what {
            What::Http(http) => http.refs = Some(refs),
            What::GitSsh(git) => git.set_refs(refs),
            What::Tcp | What::Passthrough => {}
        }
        self
    }

    /// Adds the refs that the request's body changes, and the number of its push options.
    #[must_use]
    pub fn with_commands(self, commands: Commands) -> Self {
        let options = commands.options.len();
        self.with_refs(commands.updates.into_iter().map(|update| update.name).collect())
            .with_push_options(options)
    }

    /// Sets the number of push options. It stays zero unless the request is a push of known refs.
    #[must_use]
    pub(crate) fn with_push_options(mut self, count: usize) -> Self {
        self.push_options = if matches!(self.pushing(), Pushing::Refs(_)) { count } else { 0 };
        self
    }

    /// The number of push options.
    #[must_use]
    pub fn push_options(&self) -> usize {
        self.push_options
    }

    /// Adds the names of the secrets that would be attached. The written form of the request does not contain them.
    #[must_use]
    pub fn with_secrets(mut self, mut names: Vec<String>) -> Self {
        names.sort_unstable();
        names.dedup();
        self.secrets = names;
        self
    }

    #[must_use]
    pub fn secrets(&self) -> &[String] {
        &self.secrets
    }

    /// Whether the request is, or could be taken for, a push to a git repository, over HTTP or SSH.
    #[must_use]
    pub fn is_push(&self) -> bool {
        match &self.what {
            What::Http(http) => http.is_push(),
            What::GitSsh(git) => git.service() == GitService::Push,
            What::Tcp | What::Passthrough => false,
        }
    }

    pub(crate) fn pushing(&self) -> Pushing<'_> {
        match &self.what {
            What::Http(http) => http.pushing(),
            What::GitSsh(git) => git.pushing(),
            What::Tcp | What::Passthrough => Pushing::No,
        }
    }

    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    #[must_use]
    pub fn what(&self) -> &What {
        &self.what
    }

    #[must_use]
    pub fn http(&self) -> Option<&Http> {
        match &self.what {
            What::Http(http) => Some(http),
            What::GitSsh(_) | What::Tcp | What::Passthrough => None,
        }
    }

    /// The service and repository, if the request is git over SSH.
    #[must_use]
    pub fn git(&self) -> Option<&GitSsh> {
        match &self.what {
            What::GitSsh(git) => Some(git),
            What::Http(_) | What::Tcp | What::Passthrough => None,
        }
    }

    /// The path, if the gateway can read one.
    #[must_use]
    pub fn path(&self) -> Option<&CanonicalPath> {
        match &self.what {
            What::Http(http) => Some(&http.path),
            What::GitSsh(git) => Some(git.path()),
            What::Tcp | What::Passthrough => None,
        }
    }

    /// The method, if the gateway can read one; for git over SSH `FETCH` or `PUSH`.
    #[must_use]
    pub fn method(&self) -> Option<&str> {
        match &self.what {
            What::Http(http) => Some(&http.method),
            What::GitSsh(git) => Some(git.service().method()),
            What::Tcp | What::Passthrough => None,
        }
    }

    #[must_use]
    pub fn scheme(&self) -> Option<Scheme> {
        match &self.what {
            What::Http(http) => Some(http.scheme),
            What::GitSsh(_) => Some(Scheme::Ssh),
            What::Tcp | What::Passthrough => None,
        }
    }

    /// The `Host` header or `:authority` to send.
    #[must_use]
    pub fn authority(&self) -> String {
        match self.scheme() {
            Some(scheme) if scheme.default_port() == self.port => self.host.to_string(),
            _ => format!("{}:{}", self.host, self.port),
        }
    }

    /// The request target to send.
    #[must_use]
    pub fn target(&self) -> String {
        self.http().map(|http| format!("{}{}", http.path, http.query)).unwrap_or_default()
    }
}

/// The request as one line, without its headers and secrets. [`CanonicalRequest::from_line`] parses it back.
impl fmt::Display for CanonicalRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::Tcp => write!(f, "tcp://{}:{}", self.host, self.port),
            What::Passthrough => write!(f, "tls://{}:{}", self.host, self.port),
            What::GitSsh(git) => {
                write!(f, "{} ssh://{}{}", git.service().method(), self.authority(), git.path())?;
                write_refs(f, git.refs(), self.push_options)
            }
            What::Http(http) => {
                let scheme = http.scheme.as_str();
                write!(f, "{} {scheme}://{}{}{}", http.method, self.authority(), http.path, http.query)?;
                write_refs(f, http.refs.as_deref(), self.push_options)
            }
        }
    }
}

fn write_refs(f: &mut fmt::Formatter<'_>, refs: Option<&[String]>, options: usize) -> fmt::Result {
    match refs {
        None => Ok(()),
        Some([]) => f.write_str(" pushing nothing yet"),
        Some(refs) => {
            write!(f, " pushing {}", refs.join(","))?;
            match options {
                0 => Ok(()),
                count => write!(f, " ({})", options_in_words(count)),
            }
        }
    }
}

/// `1 push option`, `2 push options`.
pub(crate) fn options_in_words(count: usize) -> String {
    format!("{count} push option{}", if count == 1 { "" } else { "s" })
}

/// The canonical form of a request.
pub fn canonicalise(raw: &RawRequest<'_>) -> Result<CanonicalRequest, Refusal> {
    let host = Host::parse(raw.connection.destination)?;
    let port = checked_port(raw.connection.port)?;
    match raw.scheme {
        Scheme::Https => same_sni(&host, raw.connection.sni)?,
        Scheme::Http => {}
        Scheme::Ssh => {
            let why = "no HTTP request is sent over SSH";
            return Err(Refusal::new(Part::Names, RefusalCode::Invalid, why, "use https"));
        }
    }
    let method = method(raw.method)?;
    let target = origin_form(raw, &host, port)?;
    if raw.authorities.is_empty() {
        return Err(Refusal::new(
            Part::Names,
            RefusalCode::NameMissing,
            "the request has neither Host nor :authority",
            "send one",
        ));
    }
    for authority in raw.authorities {
        same_authority("Host or :authority", authority, raw.scheme, &host, port)?;
    }
    let headers = header_names(raw.headers)?;
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let path = CanonicalPath::parse(path)?;
    let query = CanonicalQuery::parse(query)?;
    let overridden =
        query.readings().flatten().find(|(name, value)| is_overriding_field(name) && *value != method);
    if let Some((name, _)) = overridden {
        return Err(Refusal::new(
            Part::Query,
            RefusalCode::Override,
            format!("the query {} asks for another method than {method}", Quoted(name)),
            "send the method that is meant",
        ));
    }
    let method = if raw.websocket { websocket(&method)? } else { method };
    let http = Http { scheme: raw.scheme, method, path, query, headers, refs: None };
    Ok(CanonicalRequest { host, port, secrets: Vec::new(), push_options: 0, what: What::Http(http) })
}

fn checked_port(port: u16) -> Result<u16, Refusal> {
    if port == 0 { parse_port("0") } else { Ok(port) }
}

/// The method, which must be in capitals: some servers compare methods with regard to case and some without.
fn method(text: &str) -> Result<String, Refusal> {
    let letters =
        |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
    let fits = (1..=MAX_METHOD_BYTES).contains(&text.len()) && text.bytes().all(letters);
    if !fits {
        return Err(Refusal::new(
            Part::Method,
            RefusalCode::Invalid,
            format!("{} is not a method in capital letters", Quoted(text)),
            "send it in capitals, such as GET",
        ));
    }
    match text {
        // The content of a tunnel cannot be decided on. TRACE shows the client the headers that the gateway added.
        // WEBSOCKET is no method, but the word that rules use for a handshake.
        "CONNECT" | "TRACE" | "TRACK" | WEBSOCKET => Err(Refusal::new(
            Part::Method,
            RefusalCode::MethodRefused,
            format!("{text} does not go through the gateway"),
            "use another method",
        )),
        _ => Ok(text.to_owned()),
    }
}

/// Checks that a handshake is a GET.
fn websocket(method: &str) -> Result<String, Refusal> {
    if method == "GET" {
        return Ok(WEBSOCKET.to_owned());
    }
    let why = format!("a WebSocket begins with a GET, not with {method}");
    Err(Refusal::new(Part::Method, RefusalCode::MethodRefused, why, "send GET"))
}

/// The path and query of the target. If the target is a whole URL, its authority must be that of the connection.
fn origin_form<'a>(raw: &RawRequest<'a>, host: &Host, port: u16) -> Result<&'a str, Refusal> {
    if raw.target.starts_with('/') {
        return Ok(raw.target);
    }
    let differs = |why: String| {
        Refusal::new(Part::Names, RefusalCode::NamesDiffer, why, "connect to the host that is meant")
    };
    let Some((scheme, rest)) = raw.target.split_once("://") else {
        return Err(Refusal::new(
            Part::Path,
            RefusalCode::NotAbsolute,
            format!("the target {} is neither a path nor a URL", Quoted(raw.target)),
            "send a path that begins with a slash",
        ));
    };
    if scheme != raw.scheme.as_str() {
        return Err(differs(format!(
            "the target says {} on a connection of {}",
            Quoted(scheme),
            raw.scheme.as_str()
        )));
    }
    let Some(at) = rest.find(['/', '?']).filter(|at| rest.as_bytes()[*at] == b'/') else {
        return Err(Refusal::new(
            Part::Path,
            RefusalCode::NotAbsolute,
            "the URL has no path".to_owned(),
            "end the host with a slash",
        ));
    };
    same_authority("the target", &rest[..at], raw.scheme, host, port)?;
    Ok(&rest[at..])
}

fn same_authority(source: &str, text: &str, scheme: Scheme, host: &Host, port: u16) -> Result<(), Refusal> {
    let (named, named_port) = parse_authority(text)?;
    if named == *host && named_port.unwrap_or(scheme.default_port()) == port {
        return Ok(());
    }
    Err(Refusal::new(
        Part::Names,
        RefusalCode::NamesDiffer,
        format!("{source} says {} on a connection to {host}:{port}", Quoted(text)),
        "connect to the host that is meant",
    ))
}

fn same_sni(host: &Host, sni: Option<&str>) -> Result<(), Refusal> {
    match (host, sni) {
        // RFC 6066: there is no server name for an address.
        (Host::Address(_), None) => Ok(()),
        (Host::Name(_), None) => Err(Refusal::new(
            Part::Names,
            RefusalCode::NameMissing,
            format!("the TLS handshake for {host} names no server"),
            "use a client that sends SNI, without encrypting it",
        )),
        (_, Some(sni)) if Host::parse(sni)? == *host => Ok(()),
        (_, Some(sni)) => Err(Refusal::new(
            Part::Names,
            RefusalCode::NamesDiffer,
            format!("the TLS handshake names {} on a connection to {host}", Quoted(sni)),
            "connect to the host that is meant",
        )),
    }
}

fn header_names(names: &[&str]) -> Result<Vec<String>, Refusal> {
    let refuse = |code, why: String, next: &str| Err(Refusal::new(Part::Header, code, why, next));
    if names.len() > MAX_HEADERS {
        return refuse(
            RefusalCode::TooLong,
            format!("there are more than {MAX_HEADERS} headers"),
            "send fewer",
        );
    }
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let mut headers = Vec::with_capacity(names.len());
    for name in names {
        if name.is_empty() || !name.bytes().all(token) {
            return refuse(
                RefusalCode::Invalid,
                format!("{} is not a name of a header", Quoted(name)),
                "remove it",
            );
        }
        let name = name.to_ascii_lowercase();
        if is_overriding_header(&name) {
            return refuse(
                RefusalCode::Override,
                format!("the header {name} makes some servers serve another request than the one decided on"),
                "send the request that is meant, without this header",
            );
        }
        headers.push(name);
    }
    headers.sort_unstable();
    headers.dedup();
    Ok(headers)
}
