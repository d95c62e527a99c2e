//! Requests as a person writes them: `GET https://host/path`, `FETCH ssh://host/path`, `tcp://host:port`, `tls://host`.

use super::git::GitService;
use super::host::parse_authority;
use super::refusal::{Part, Quoted, Refusal, RefusalCode};
use super::request::{CanonicalRequest, Connection, RawRequest, Scheme, WEBSOCKET, canonicalise};
use crate::push::{MAX_OPTIONS, is_ref};

/// What the line of a push says if the push changes no ref, or none is known yet.
const NOTHING: &str = "nothing yet";

impl CanonicalRequest {
    /// Parses `[METHOD] URL [pushing REF,REF… [(N push options)]] [with HEADER, HEADER…]`.
    ///
    /// The default method is GET, and FETCH for `ssh://HOST/REPOSITORY`. The method WEBSOCKET means the handshake of a
    /// WebSocket.
    /// `tcp://HOST:PORT` and `tls://HOST[:PORT]` are connections whose content the gateway does not inspect.
    pub fn from_line(line: &str) -> Result<Self, Refusal> {
        let line = line.trim();
        let (line, headers) = line.split_once(" with ").unwrap_or((line, ""));
        if let Some((line, refs)) = line.split_once(" pushing ") {
            let (refs, options) = split_options(refs).ok_or_else(|| not_a_line(line))?;
            let refs = refs.split(',').map(str::trim).filter(|name| !name.is_empty() && *name != NOTHING);
            let refs: Vec<String> = refs.map(str::to_owned).collect();
            let request = Self::from_line(&if headers.is_empty() {
                line.to_owned()
            } else {
                format!("{line} with {headers}")
            })?;
            if !refs.iter().all(|name| is_ref(name)) || !request.is_push() {
                return Err(not_a_line(line));
            }
            return Ok(request.with_refs(refs).with_push_options(options));
        }
        let (method, url) = match line.split_once(' ') {
            Some((method, url)) => (Some(method), url.trim_start()),
            None => (None, line),
        };
        let Some((scheme, rest)) = url.split_once("://") else { return Err(not_a_line(url)) };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        if scheme == "ssh" {
            return git_from_line(method, authority, target, line);
        }
        let (host, port) = parse_authority(authority)?;
        let destination = host.to_string();
        let scheme = match scheme {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            "tcp" | "tls" if method.is_some() || !target.is_empty() || !headers.is_empty() => {
                return Err(not_a_line(line));
            }
            "tcp" => {
                let port = port.ok_or_else(|| {
                    Refusal::new(
                        Part::Port,
                        RefusalCode::Empty,
                        "a TCP connection needs a port",
                        "write tcp://HOST:PORT",
                    )
                })?;
                return Self::tcp(&destination, port);
            }
            "tls" => {
                let port = port.unwrap_or(Scheme::Https.default_port());
                return Self::passthrough(&Connection {
                    destination: &destination,
                    port,
                    sni: Some(&destination),
                });
            }
            _ => return Err(not_a_line(url)),
        };
        let port = port.unwrap_or(scheme.default_port());
        let authority = format!("{destination}:{port}");
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        let headers: Vec<&str> = headers.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let websocket = method == Some(WEBSOCKET);
        canonicalise(&RawRequest {
            connection: Connection { destination: &destination, port, sni: host.name() },
            scheme,
            method: method.filter(|_| !websocket).unwrap_or("GET"),
            target: &target,
            authorities: &[&authority],
            headers: &headers,
            websocket,
        })
    }
}

/// The refs of a push, and how many push options it has: `REF,REF… (2 push options)`.
fn split_options(text: &str) -> Option<(&str, usize)> {
    let Some((refs, options)) = text.split_once(" (") else { return Some((text, 0)) };
    let (count, name) = options.strip_suffix(')')?.split_once(' ')?;
    let count = count.parse().ok().filter(|count| (1..=MAX_OPTIONS).contains(count))?;
    matches!(name, "push option" | "push options").then_some((refs, count))
}

/// Parses `FETCH ssh://HOST[:PORT]/REPOSITORY`, with or without the `git@` that addresses of repositories have.
fn git_from_line(
    method: Option<&str>,
    authority: &str,
    path: &str,
    line: &str,
) -> Result<CanonicalRequest, Refusal> {
    let (host, port) = parse_authority(authority.strip_prefix("git@").unwrap_or(authority))?;
    let service = method.map_or(Some(GitService::Fetch), GitService::from_method);
    let service = service.ok_or_else(|| not_a_line(line))?;
    CanonicalRequest::git_ssh(&host.to_string(), port.unwrap_or(Scheme::Ssh.default_port()), service, path)
}

fn not_a_line(text: &str) -> Refusal {
    Refusal::new(
        Part::Path,
        RefusalCode::Invalid,
        format!("{} is not a request", Quoted(text)),
        "write METHOD https://HOST/PATH, FETCH or PUSH ssh://HOST/REPOSITORY, tcp://HOST:PORT or tls://HOST",
    )
}
