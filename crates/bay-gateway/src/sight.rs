//! The parts of a request beside its canonical form that a decider can read before it decides.

use async_trait::async_trait;
use http::HeaderMap;
use http::header::USER_AGENT;

/// The headers of a request and the beginning of its body, the beginning of a push over SSH, or the user and the
/// database of a login. The bytes that [`Sight::beginning`] reads ahead are not lost: they are sent if the request is.
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

/// Input whose beginning can be read before the decision. The bytes stay in the input.
#[async_trait]
pub(crate) trait ReadAhead: Send + Sync {
    /// Waits for the beginning, within limits of size and time.
    async fn beginning(&mut self) -> Beginning;
}

/// The beginning of a body or of a push.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Beginning {
    /// At most [`MAX_LOOK_BYTES`](crate::limits::MAX_LOOK_BYTES).
    pub bytes: Vec<u8>,
    /// Whether these bytes are known to be the whole body.
    pub whole: bool,
    /// The length of the whole body, if the client gave it or all of it has arrived.
    pub length: Option<u64>,
}

impl std::fmt::Debug for Sight<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sight").finish_non_exhaustive()
    }
}

impl<'a> Sight<'a> {
    /// `secrets` are the names of the secrets that the request gets if it is allowed.
    pub(crate) fn new(headers: &'a HeaderMap, body: &'a mut dyn ReadAhead, secrets: Vec<String>) -> Self {
        Self { what: What::Request(headers, body), secrets, login: None }
    }

    /// The view of something that has nothing to read ahead: a tunnel, or a command over SSH.
    #[must_use]
    pub fn nothing() -> Self {
        Self { what: What::Nothing, secrets: Vec::new(), login: None }
    }

    /// The view of a login with this secret. `login` describes the user and the database.
    pub(crate) fn of_login(secret: String, login: String) -> Self {
        Self { what: What::Nothing, secrets: vec![secret], login: Some(login) }
    }

    /// The user and the database of a login.
    #[must_use]
    pub fn login(&self) -> Option<&str> {
        self.login.as_deref()
    }

    /// The view of a push over SSH.
    pub(crate) fn of_push(push: &'a mut dyn ReadAhead) -> Self {
        Self { what: What::Push(push), secrets: Vec::new(), login: None }
    }

    /// The headers for the origin, before the gateway adds `Host` and the values of secrets.
    #[must_use]
    pub fn headers(&self) -> Option<&HeaderMap> {
        match &self.what {
            What::Request(headers, _) => Some(headers),
            What::Nothing | What::Push(_) => None,
        }
    }

    /// Names of the secrets that the request gets if it is allowed.
    #[must_use]
    pub fn secrets(&self) -> &[String] {
        &self.secrets
    }

    /// The client's `User-Agent`.
    #[must_use]
    pub fn user_agent(&self) -> Option<&str> {
        self.headers()?.get(USER_AGENT)?.to_str().ok()
    }

    /// The beginning of the body or the push. Waits for it, within limits of size and time. Empty if there is neither.
    pub async fn beginning(&mut self) -> Beginning {
        match &mut self.what {
            What::Nothing => Beginning::default(),
            What::Request(_, body) => body.beginning().await,
            What::Push(push) => push.beginning().await,
        }
    }
}
