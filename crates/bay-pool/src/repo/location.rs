//! The address of a repository: checked, normalised, and without credentials.

use std::path::{Component, Path, PathBuf};

use crate::error::{PoolError, Result, one_line};

/// Longest address.
const MAX_LOCATION: usize = 4096;

/// An address as it is stored, shown, compared and passed to git.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    text: String,
    transport: Transport,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Https,
    Http,
    Ssh,
    Git,
    File,
}

impl Transport {
    /// The name in git's `protocol.*.allow` settings.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
            Self::Ssh => "ssh",
            Self::Git => "git",
            Self::File => "file",
        }
    }
}

impl Location {
    pub(crate) fn parse(given: &str) -> Result<Self> {
        let refuse = |why: &str| {
            Err(PoolError::Invalid {
                what: format!("the repository address {:?}", one_line(without_userinfo(given))),
                why: why.to_owned(),
            })
        };
        if given.is_empty() || given.len() > MAX_LOCATION {
            return refuse("it is empty or too long");
        }
        if given.starts_with('-') {
            return refuse("it must not begin with '-'");
        }
        if given.chars().any(|c| c.is_control() || c.is_whitespace() && c != ' ') {
            return refuse("it has control characters in it");
        }
        if given.starts_with('/') {
            return match clean_path(given) {
                Some(text) => Ok(Self { text, transport: Transport::File }),
                None => refuse("a path must not contain .."),
            };
        }
        if let Some((scheme, rest)) = given.split_once("://") {
            return match Self::of_url(&scheme.to_ascii_lowercase(), rest) {
                Ok(location) => Ok(location),
                Err(why) => refuse(why),
            };
        }
        // Git runs a program for TRANSPORT::ADDRESS.
        if given.contains("::") {
            return refuse("only https, http, ssh, git and file addresses and absolute paths are fetched");
        }
        match given.split_once(':') {
            Some((host, path)) if is_scp_host(host) && !path.is_empty() && !path.starts_with('-') => {
                let host = host.to_owned();
                Ok(Self { text: format!("{host}:{}", path.trim_end_matches('/')), transport: Transport::Ssh })
            }
            _ => refuse("it is neither an address git knows nor an absolute path"),
        }
    }

    fn of_url(scheme: &str, rest: &str) -> std::result::Result<Self, &'static str> {
        let transport = match scheme {
            "https" => Transport::Https,
            "http" => Transport::Http,
            "ssh" | "git+ssh" | "ssh+git" => Transport::Ssh,
            "git" => Transport::Git,
            "file" => Transport::File,
            _ => return Err("only https, http, ssh, git and file addresses are fetched"),
        };
        if transport == Transport::File {
            let path = rest.strip_prefix("localhost").unwrap_or(rest);
            if !path.starts_with('/') {
                return Err("a file address must have an absolute path: file:///path");
            }
            let path = clean_path(path).ok_or("a path must not contain ..")?;
            return Ok(Self { text: format!("file://{path}"), transport });
        }
        let (authority, path) = rest.split_once('/').ok_or("it has no path")?;
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        if !is_host(host) {
            return Err("it has no valid host name");
        }
        if path.contains(['?', '#']) {
            return Err("an address with '?' or '#' is not one of a repository");
        }
        let path = path.trim_end_matches('/');
        if path.is_empty() {
            return Err("it has no path");
        }
        // An ssh login needs the user name, which is not secret. Anything else before the @ may be a secret.
        let user = match (transport, user) {
            (Transport::Ssh, Some(user)) => {
                let name = user.split(':').next().unwrap_or_default();
                if name.is_empty() || name.starts_with('-') || !name.bytes().all(is_name_byte) {
                    return Err("it has no valid user name");
                }
                format!("{name}@")
            }
            _ => String::new(),
        };
        let host = host.to_ascii_lowercase();
        let default = match transport {
            Transport::Https => ":443",
            Transport::Http => ":80",
            Transport::Ssh => ":22",
            _ => ":9418",
        };
        let host = host.strip_suffix(default).unwrap_or(&host);
        Ok(Self { text: format!("{}://{user}{host}/{path}", transport.name()), transport })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    /// Whether it is a directory of this host. The daemon never opens it; callers send bundles of it.
    pub(crate) fn is_local(&self) -> bool {
        self.transport == Transport::File
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'+' | b'~')
}

fn is_host(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) => {
                if !address.bytes().all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.')) {
                    return false;
                }
                ("v6", port.strip_prefix(':').unwrap_or(port))
            }
            None => return false,
        },
        None => host.split_once(':').unwrap_or((host, "")),
    };
    !name.is_empty()
        && !name.starts_with('-')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
        && (port.is_empty() || port.parse::<u16>().is_ok())
}

/// `user@host` or `host`, as in `git@example.org:group/project`.
fn is_scp_host(text: &str) -> bool {
    let (user, host) = text.split_once('@').unwrap_or(("git", text));
    !user.is_empty()
        && !user.starts_with('-')
        && user.bytes().all(is_name_byte)
        && is_host(host)
        && !host.contains(':')
}

/// An absolute path without doubled slashes and single dots; `None` if it has `..`.
fn clean_path(path: &str) -> Option<String> {
    let mut clean = PathBuf::from("/");
    for part in Path::new(path).components() {
        match part {
            Component::Normal(part) => clean.push(part),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    clean.into_os_string().into_string().ok()
}

/// Removes what of a URL may be a password, for messages about refused addresses.
fn without_userinfo(text: &str) -> String {
    match text.split_once("://") {
        Some((scheme, rest)) => {
            let end = rest.find('/').unwrap_or(rest.len());
            let authority = rest[..end].rsplit_once('@').map_or(&rest[..end], |(_, host)| host);
            let path = rest[end..].split(['?', '#']).next().unwrap_or_default();
            format!("{scheme}://{authority}{path}")
        }
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(given: &str) -> String {
        Location::parse(given).unwrap().as_str().to_owned()
    }

    #[test]
    fn credentials_ports_and_slashes_are_dropped() {
        assert_eq!(text("https://me:secret@GitHub.com:443/o/r/"), "https://github.com/o/r");
        assert_eq!(text("HTTP://example.org/x.git"), "http://example.org/x.git");
        assert_eq!(text("ssh://git:pw@host:22/o/r"), "ssh://git@host/o/r");
        assert_eq!(text("git@github.com:o/r.git"), "git@github.com:o/r.git");
        assert_eq!(text("/srv//repos/./x/"), "/srv/repos/x");
        assert_eq!(text("file:///srv/x/"), "file:///srv/x");
        assert_eq!(text("https://[2001:db8::1]:8443/x"), "https://[2001:db8::1]:8443/x");
    }

    #[test]
    fn addresses_that_would_run_something_or_mean_nothing_are_refused() {
        for given in [
            "",
            "-uhelper",
            "--upload-pack=x",
            "ext::sh -c id",
            "fd::7",
            "transport::https://x/y",
            "ftp://host/x",
            "relative/path",
            "../up",
            "/a/../b",
            "file://host/x",
            "https://",
            "https://host",
            "https:///x",
            "https://-oProxyCommand=x/y",
            "ssh://-oProxyCommand=x/y",
            "ssh://-x@host/y",
            "-oProxyCommand=x:y",
            "host:-x",
            "https://host/x?token=1",
            "https://host/x\ny",
            "https://ho st/x",
            "host:",
            "a\0b",
        ] {
            assert!(Location::parse(given).is_err(), "{given:?}");
        }
        assert!(Location::parse(&format!("/{}", "x".repeat(5000))).is_err());
    }

    #[test]
    fn a_refusal_never_shows_a_password() {
        let error = Location::parse("ftp://me:hunter2@host/x?token=hunter2").unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
