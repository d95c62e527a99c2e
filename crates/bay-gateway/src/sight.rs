//! What can be seen of a request beside its canonical form, by whoever decides on it.

use http::HeaderMap;
use http::header::USER_AGENT;

use crate::body::Source;
use crate::limits::{LOOK_WITHIN, MAX_LOOK_BYTES};
use crate::ssh::Ahead;

/// The headers of a request and the beginning of its body, or the beginning of a push. The body is only read where somebody looks at it, and what was
/// looked at is sent on all the same.
pub struct Sight<'a> {
    what: What<'a>,
    secrets: Vec<String>,
    login: Option<String>,
    looked: bool,
}

enum What<'a> {
    Nothing,
    Request(&'a HeaderMap, &'a mut Source),
    Push(&'a mut Ahead),
}

/// The beginning of a body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Beginning {
    /// At most [`MAX_LOOK_BYTES`].
    pub bytes: Vec<u8>,
    /// Whether that is all of it.
    pub whole: bool,
    /// How long all of it is, as far as the client says so.
    pub length: Option<u64>,
}

impl std::fmt::Debug for Sight<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sight").finish_non_exhaustive()
    }
}

impl<'a> Sight<'a> {
    /// `secrets` are the names of those that are put into it if it is allowed.
    pub(crate) fn new(headers: &'a HeaderMap, body: &'a mut Source, secrets: Vec<String>) -> Self {
        Self { what: What::Request(headers, body), secrets, login: None, looked: false }
    }

    /// That of a tunnel, of which nothing is to be seen.
    #[must_use]
    pub fn nothing() -> Self {
        Self { what: What::Nothing, secrets: Vec::new(), login: None, looked: false }
    }

    /// That of a login with this secret: as whom, to what.
    pub(crate) fn of_login(secret: String, login: String) -> Self {
        Self { what: What::Nothing, secrets: vec![secret], login: Some(login), looked: false }
    }

    /// As whom a login is, and to what.
    #[must_use]
    pub fn login(&self) -> Option<&str> {
        self.login.as_deref()
    }

    /// That of a push over SSH: what it changes, and the beginning of what it brings.
    pub(crate) fn of_push(ahead: &'a mut Ahead) -> Self {
        Self { what: What::Push(ahead), secrets: Vec::new(), login: None, looked: false }
    }

    /// The headers as they go to the origin, without `Host`.
    #[must_use]
    pub fn headers(&self) -> Option<&HeaderMap> {
        match &self.what {
            What::Request(headers, _) => Some(headers),
            What::Nothing | What::Push(_) => None,
        }
    }

    /// Names of the secrets whose values are put into it if it is allowed.
    #[must_use]
    pub fn secrets(&self) -> &[String] {
        &self.secrets
    }

    /// What the client calls itself.
    #[must_use]
    pub fn user_agent(&self) -> Option<&str> {
        self.headers()?.get(USER_AGENT)?.to_str().ok()
    }

    /// The beginning of the body. Waits for it, within bounds of size and time.
    pub async fn beginning(&mut self) -> Beginning {
        let body = match &mut self.what {
            What::Nothing => return Beginning::default(),
            What::Push(ahead) => {
                return Beginning { bytes: ahead.look().await.to_vec(), whole: false, length: None };
            }
            What::Request(_, body) => body,
        };
        if !self.looked {
            self.looked = true;
            body.look(MAX_LOOK_BYTES as u64, LOOK_WITHIN).await;
        }
        let (bytes, whole) = body.looked_at(MAX_LOOK_BYTES);
        let length = if whole { Some(bytes.len() as u64) } else { body.length() };
        Beginning { bytes, whole, length }
    }
}
