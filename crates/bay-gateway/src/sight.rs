//! What can be seen of a request beside its canonical form, by whoever decides on it.

use http::HeaderMap;
use http::header::USER_AGENT;

use crate::body::Source;
use crate::limits::{LOOK_WITHIN, MAX_LOOK_BYTES};

/// The headers of a request and the beginning of its body. The body is only read where somebody looks at it, and what was
/// looked at is sent on all the same.
pub struct Sight<'a> {
    request: Option<(&'a HeaderMap, &'a mut Source)>,
    secrets: Vec<String>,
    looked: bool,
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
        Self { request: Some((headers, body)), secrets, looked: false }
    }

    /// That of a tunnel, of which nothing is to be seen.
    #[must_use]
    pub fn nothing() -> Self {
        Self { request: None, secrets: Vec::new(), looked: false }
    }

    /// That of a login with this secret, of which nothing else is to be seen.
    pub(crate) fn of_login(secret: String) -> Self {
        Self { request: None, secrets: vec![secret], looked: false }
    }

    /// The headers as they go to the origin, without `Host`.
    #[must_use]
    pub fn headers(&self) -> Option<&HeaderMap> {
        self.request.as_ref().map(|(headers, _)| *headers)
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
        let Some((_, body)) = self.request.as_mut() else { return Beginning::default() };
        if !self.looked {
            self.looked = true;
            body.look(MAX_LOOK_BYTES as u64, LOOK_WITHIN).await;
        }
        let (bytes, whole) = body.looked_at(MAX_LOOK_BYTES);
        let length = if whole { Some(bytes.len() as u64) } else { body.length() };
        Beginning { bytes, whole, length }
    }
}
