//! Git over SSH: the commands that a client may run on its server, and nothing else.
//!
//! A client sends a command line for a shell: `git-upload-pack 'team/app.git'`. The gateway parses it and runs no
//! shell: it accepts one of git's two services and a path, with or without single quotes around it. It sends a command
//! line that it writes from the parsed parts.

use serde::Serialize;

use super::path::CanonicalPath;
use super::refusal::{Part, Quoted, Refusal, RefusalCode};
use super::request::Pushing;

/// Longest command line that is parsed.
const MAX_COMMAND_BYTES: usize = 4096;

/// The direction of a git command: from the repository or to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GitService {
    /// `git-upload-pack`.
    Fetch,
    /// `git-receive-pack`.
    Push,
}

impl GitService {
    pub const ALL: [Self; 2] = [Self::Fetch, Self::Push];

    /// The word that rules use in the field where HTTP has its method.
    #[must_use]
    pub fn method(self) -> &'static str {
        match self {
            Self::Fetch => "FETCH",
            Self::Push => "PUSH",
        }
    }

    #[must_use]
    pub fn from_method(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|service| service.method() == method)
    }

    fn program(self) -> &'static str {
        match self {
            Self::Fetch => "git-upload-pack",
            Self::Push => "git-receive-pack",
        }
    }
}

/// One service of one repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct GitSsh {
    service: GitService,
    path: CanonicalPath,
    /// The refs that a push changes, if they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    refs: Option<Vec<String>>,
}

impl GitSsh {
    /// Accepts only plain paths: characters that shells and servers are expected to read in one way.
    pub(super) fn new(service: GitService, path: &str) -> Result<Self, Refusal> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@~,:=".contains(&byte);
        if !path.bytes().all(plain) {
            return Err(refuse(
                format!("the repository {} has other letters than names of repositories have", Quoted(path)),
                "use letters, digits and ._-+@~,:= only",
            ));
        }
        let path = CanonicalPath::parse(path)?;
        if path.segments().any(str::is_empty) {
            return Err(refuse(format!("the path {path} names no repository"), "write /OWNER/NAME"));
        }
        // A home directory on the server. Which one depends on the server.
        if path.as_str().starts_with("/~") {
            return Err(refuse(
                format!("the repository {path} begins with ~, which servers read in different ways"),
                "write the whole path, as it is on the server",
            ));
        }
        Ok(Self { service, path, refs: None })
    }

    /// Parses the command that a client sends: the service, and the path in the form that URLs use.
    pub fn read_command(command: &[u8]) -> Result<(GitService, String), Refusal> {
        let short = &command[..command.len().min(MAX_COMMAND_BYTES)];
        let shown = String::from_utf8_lossy(short);
        let other = || {
            refuse(
                format!("{} is not a command that goes through the gateway", Quoted(&shown)),
                "only git fetch and git push go over SSH; for others use HTTPS",
            )
        };
        if command.len() > MAX_COMMAND_BYTES {
            return Err(other());
        }
        let text = std::str::from_utf8(command).map_err(|_| other())?;
        let (program, path) = text.split_once(' ').ok_or_else(other)?;
        // Git itself sends the first form. Some other clients send `git upload-pack`.
        let (program, path) = match program {
            "git" => match path.split_once(' ') {
                Some((service, path)) => (format!("git-{service}"), path),
                None => return Err(other()),
            },
            program => (program.to_owned(), path),
        };
        let service = GitService::ALL.into_iter().find(|service| service.program() == program);
        let service = service.ok_or_else(other)?;
        let quoted = path.strip_prefix('\'').and_then(|path| path.strip_suffix('\''));
        let path = quoted.unwrap_or(path);
        if path.contains(['\'', '"', '\\', ' ']) {
            return Err(other());
        }
        // Forges treat `host:team/app` and `ssh://host/team/app` as one repository, with or without a slash at the end.
        let path = path.strip_suffix('/').unwrap_or(path);
        Ok((service, if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }))
    }

    #[must_use]
    pub fn service(&self) -> GitService {
        self.service
    }

    #[must_use]
    pub fn path(&self) -> &CanonicalPath {
        &self.path
    }

    pub(super) fn set_refs(&mut self, refs: Vec<String>) {
        self.refs = Some(refs);
    }

    pub(super) fn refs(&self) -> Option<&[String]> {
        self.refs.as_deref()
    }

    pub(super) fn pushing(&self) -> Pushing<'_> {
        match self.service {
            GitService::Fetch => Pushing::No,
            GitService::Push => Pushing::of(self.refs()),
        }
    }

    /// The command for the server. The characters of its path need no quoting beyond the single quotes.
    #[must_use]
    pub fn command(&self) -> String {
        format!("{} '{}'", self.service.program(), self.path)
    }
}

fn refuse(why: String, next: &str) -> Refusal {
    Refusal::new(Part::Path, RefusalCode::Invalid, why, next)
}
