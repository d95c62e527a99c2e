//! Examines the head of a request: finds the secrets to attach, and refuses misused sentinels and foreign
//! credentials.

use std::fmt;

use bay_policy::{CanonicalRequest, Scheme};
use bay_text::percent::decode_forgiving;
use http::HeaderMap;
use http::header::{AUTHORIZATION, COOKIE, HeaderName, HeaderValue};
use serde::Serialize;

use super::attach::{Attachment, Attachments};
use super::slot::{Slot, basic};
use super::{Finder, Held, Secrets, foreign_credentials};

/// The kinds of misuse. Their names are stable: they appear in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MisuseKind {
    /// No use of the secret is for this host.
    Host,
    /// The secret is for this host, but not for this method, path or port.
    Request,
    /// The secret is for this request, but not in this place, or its sentinel is not alone there.
    Slot,
    /// The request is plain HTTP without TLS.
    Plain,
    /// The sentinel is in the path.
    Path,
    /// The sentinel is in the query, and the secret is not for this parameter, or the sentinel is not its whole value.
    Query,
    /// The sentinel is in the body.
    Body,
    /// The secret was removed.
    Gone,
    /// The host's answers contained too many guesses of a value.
    Guessed,
    /// What looks like a credential that is not one of the bay's secrets, to a host whose credentials are managed.
    OtherCredential,
}

impl MisuseKind {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Request => "request",
            Self::Slot => "slot",
            Self::Plain => "plain",
            Self::Path => "path",
            Self::Query => "query",
            Self::Body => "body",
            Self::Gone => "gone",
            Self::Guessed => "guessed",
            Self::OtherCredential => "other-credential",
        }
    }
}

/// Why a request is refused. Contains neither the value nor the sentinel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misuse {
    pub kind: MisuseKind,
    /// The secret of the sentinel, the secret that the host is managed for, or the secret that was guessed.
    pub secret: String,
    /// The place in the request.
    pub place: String,
    /// The uses of the secret, for the message to the client.
    pub uses: Vec<String>,
}

impl Misuse {
    pub(super) fn in_body(held: &Held) -> Self {
        let uses = held.uses.iter().map(ToString::to_string).collect();
        Self { kind: MisuseKind::Body, secret: held.name.clone(), place: "the body".to_owned(), uses }
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, secret, place, uses } = self;
        let meant = match uses.as_slice() {
            [] => String::new(),
            uses => format!("; it is for {}", uses.join(", ")),
        };
        match kind {
            MisuseKind::Host => write!(f, "the secret {secret} ({place}) is not for this host{meant}"),
            MisuseKind::Request => {
                write!(f, "the secret {secret} ({place}) is not for this method, path or port{meant}")
            }
            MisuseKind::Slot => write!(f, "the secret {secret} is not for {place}{meant}"),
            MisuseKind::Plain => {
                write!(f, "the secret {secret} ({place}) is not sent over HTTP without TLS; use https")
            }
            MisuseKind::Path => write!(f, "the secret {secret} has no place in a path{meant}"),
            MisuseKind::Query => write!(f, "the secret {secret} has no place in this query{meant}"),
            MisuseKind::Body => write!(f, "the secret {secret} has no place in a body{meant}"),
            MisuseKind::Gone => {
                write!(f, "the secret {secret} ({place}) was taken back, or is not this bay's any more")
            }
            MisuseKind::Guessed => {
                // The bay must not learn the name of a secret that it does not have. The record has the name.
                let whose = match uses.is_empty() {
                    true => "a secret that it does not have".to_owned(),
                    false => format!("the secret {secret}"),
                };
                write!(
                    f,
                    "{place} is closed to this bay: its answers had the value of {whose} in them, or guesses of it, as if the bay tried to \
                     find it out; the operator opens the host again with `bay secret rotate`"
                )
            }
            MisuseKind::OtherCredential => write!(
                f,
                "{place} has a credential of its own, and those of this host are managed: send the sentinel of {secret} or none{meant}"
            ),
        }
    }
}

impl Secrets {
    /// The secrets to attach to a request.
    ///
    /// # Errors
    /// A sentinel is misplaced, or a credential is not one of the bay's secrets.
    pub fn examine(&self, request: &CanonicalRequest, headers: &HeaderMap) -> Result<Attachments, Misuse> {
        if let Some(closed) = self.closed(&request.host().to_string()) {
            return Err(closed);
        }
        let Some(finder) = &self.anywhere else { return Ok(Attachments::default()) };
        let looking = Looking { secrets: self, finder, request };
        let mut found = Vec::new();
        for (name, value) in headers {
            if let Some(one) = looking.header(name, value, headers)? {
                found.push(one);
            }
        }
        looking.path()?;
        found.extend(looking.query()?);
        looking.foreign_credentials(headers, &found)?;
        Ok(Attachments { found })
    }

    /// Whether cookies to this host are removed. Clients keep these credentials by themselves.
    #[must_use]
    pub fn drops_cookies(&self, host: &str) -> bool {
        self.of_host(host).any(|held| held.managed)
    }
}

/// The examination of one request.
struct Looking<'a> {
    secrets: &'a Secrets,
    finder: &'a Finder,
    request: &'a CanonicalRequest,
}

impl Looking<'_> {
    fn misuse(&self, kind: MisuseKind, held: &Held, place: &str) -> Misuse {
        let uses = held.uses.iter().map(ToString::to_string).collect();
        Misuse { kind, secret: held.name.clone(), place: place.to_owned(), uses }
    }

    /// Why no use of the secret is for this request; `None` if one is.
    fn unfit(&self, held: &Held) -> Option<MisuseKind> {
        let http = self.request.http();
        if held.uses.is_empty() {
            return Some(MisuseKind::Gone);
        }
        if http.is_some_and(|http| http.scheme() == Scheme::Http) {
            return Some(MisuseKind::Plain);
        }
        if !held.is_for(&self.request.host().to_string()) {
            return Some(MisuseKind::Host);
        }
        (!held.uses.iter().any(|one| one.matches(self.request))).then_some(MisuseKind::Request)
    }

    fn header(
        &self,
        name: &HeaderName,
        value: &HeaderValue,
        all: &HeaderMap,
    ) -> Result<Option<Attachment>, Misuse> {
        let mut texts = vec![value.as_bytes().to_vec()];
        if *name == AUTHORIZATION
            && let Some((user, password)) = value.to_str().ok().and_then(basic)
        {
            texts.push(format!("{user}:{password}").into_bytes());
        }
        let Some((text, (at, range))) =
            texts.iter().find_map(|text| self.finder.first(text).map(|found| (text, found)))
        else {
            return Ok(None);
        };
        let held = &self.secrets.held[at];
        let place = format!("the header {name}");
        if let Some(kind) = self.unfit(held) {
            return Err(self.misuse(kind, held, &place));
        }
        let alone = self.finder.count(text) == 1 && all.get_all(name).iter().count() == 1;
        let said = &text[range];
        let fits = |slot: &Slot| {
            slot.credential(name, value).is_some_and(|credential| credential.as_bytes() == said)
        };
        let slot =
            held.uses.iter().filter(|one| one.matches(self.request)).map(super::Use::slot).find(|s| fits(s));
        match slot {
            Some(slot) if alone => Ok(Some(Attachment { secret: at, slot: slot.clone() })),
            _ => Err(self.misuse(MisuseKind::Slot, held, &place)),
        }
    }

    fn path(&self) -> Result<(), Misuse> {
        let Some(http) = self.request.http() else { return Ok(()) };
        let wire = http.path().to_string();
        let decoded = decode_forgiving(wire.as_bytes());
        let found = self.finder.first(wire.as_bytes()).or_else(|| self.finder.first(&decoded));
        match found {
            None => Ok(()),
            Some((at, _)) => Err(self.misuse(MisuseKind::Path, &self.secrets.held[at], "the path")),
        }
    }

    fn query(&self) -> Result<Option<Attachment>, Misuse> {
        let Some(http) = self.request.http() else { return Ok(None) };
        let Some(wire) = http.query().as_str() else { return Ok(None) };
        let decoded = decode_forgiving(wire.as_bytes());
        let Some((at, range)) = self.finder.first(&decoded) else { return Ok(None) };
        let held = &self.secrets.held[at];
        if let Some(kind) = self.unfit(held) {
            return Err(self.misuse(kind, held, "the query"));
        }
        let said = &decoded[range];
        let misplaced = || self.misuse(MisuseKind::Query, held, "the query");
        // A server that splits at semicolons would read other parameters.
        if self.finder.count(&decoded) != 1 || wire.contains(';') {
            return Err(misplaced());
        }
        let uses = held.uses.iter().filter(|one| one.matches(self.request));
        for slot in uses.map(super::Use::slot) {
            let Slot::Query(name) = slot else { continue };
            let mut values = http.query().pairs().filter(|(key, _)| key == name).map(|(_, value)| value);
            if values.next().is_some_and(|value| value.as_bytes() == said) && values.next().is_none() {
                return Ok(Some(Attachment { secret: at, slot: slot.clone() }));
            }
        }
        Err(misplaced())
    }

    /// Refuses other credentials on a host whose credentials are managed.
    fn foreign_credentials(&self, headers: &HeaderMap, found: &[Attachment]) -> Result<(), Misuse> {
        let host = self.request.host().to_string();
        let managed: Vec<&Held> = self.secrets.of_host(&host).filter(|held| held.managed).collect();
        let Some(first) = managed.first() else { return Ok(()) };
        let attached: Vec<&HeaderName> = found.iter().filter_map(|one| one.slot.header()).collect();
        let slots: Vec<&HeaderName> = managed
            .iter()
            .flat_map(|held| &held.uses)
            .filter(|one| one.is_for(&host))
            .filter_map(|one| one.slot().header())
            .filter(|name| **name != COOKIE)
            .collect();
        let parameters = found.iter().filter_map(|one| match &one.slot {
            Slot::Query(name) => Some(name.as_str()),
            _ => None,
        });
        let parameters: Vec<&str> = parameters.collect();
        match foreign_credentials::find(self.request, headers, &attached, &slots, &parameters) {
            None => Ok(()),
            Some(place) => Err(self.misuse(MisuseKind::OtherCredential, first, &place)),
        }
    }
}
