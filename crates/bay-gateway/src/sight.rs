//! What can be seen of a request beside its canonical form, by whoever decides on it.

use async_trait::async_trait;
use http::HeaderMap;
use http::header::USER_AGENT;

/// The headers of a request and the beginning of its body, or the beginning of a push. The body is only read where somebody looks at it, and what was
/// looked at is sent on all the same.
pub struct Sight<'a> {
    what: What<'a>,
    secrets: Vec<String>,
    login: Option<String>,
}

enum What<'a> {
    Nothing,
    Request(&'a HeaderMap, &'a mut dyn ReadAhead),
    Push(&'a mut dyn ReadAhead),
}

/// Something whose beginning can be read before it is decided on. What was read is sent on later all the same.
#[async_trait]
pub(crate) trait ReadAhead: Send + Sync {
    /// Waits for the beginning, within bounds of size and time.
    async fn beginning(&mut self) -> Beginning;
}

/// The beginning of a body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Beginning {
    /// At most [`MAX_LOOK_BYTES`](crate::limits::MAX_LOOK_BYTES).
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
    pub(crate) fn new(headers: &'a HeaderMap, body: &'a mut dyn ReadAhead, secrets: Vec<String>) -> Self {
        Self { what: What::Request(headers, body), secrets, login: None }
    }

    /// That of a tunnel, of which nothing is to be seen.
    #[must_use]
    pub fn nothing() -> Self {
        Self { what: What::Nothing, secrets: Vec::new(), login: None }
    }

    /// That of a login with this secret: as whom, to what.
    pub(crate) fn of_login(secret: String, login: String) -> Self {
        Self { what: What::Nothing, secrets: vec![secret], login: Some(login) }
    }

    /// As whom a login is, and to what.
    #[must_use]
    pub fn login(&self) -> Option<&str> {
        self.login.as_deref()
    }

    /// That of a push over SSH: what it changes, and the beginning of what it brings.
    pub(crate) fn of_push(push: &'a mut dyn ReadAhead) -> Self {
        Self { what: What::Push(push), secrets: Vec::new(), login: None }
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
        match &mut self.what {
            What::Nothing => Beginning::default(),
            What::Request(_, body) => body.beginning().await,
            What::Push(push) => push.beginning().await,
        }
    }
}
