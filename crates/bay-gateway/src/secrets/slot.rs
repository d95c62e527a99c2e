//! The places into which the value of a secret can be put.

use std::borrow::Cow;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use zeroize::Zeroizing;

/// The place of a request, or the login, into which one use of a secret puts the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slot {
    /// `Authorization: Bearer …`
    Bearer,
    /// `Authorization: token …`
    Token,
    /// The password of `Authorization: Basic …`, with any user.
    Basic,
    /// The user of `Authorization: Basic …`, where some APIs expect their keys.
    BasicUser,
    /// A complete header value.
    Header(HeaderName),
    /// The complete value of a query parameter.
    Query(String),
    /// The password of a PostgreSQL login, for this user or for any user.
    Postgres {
        user: Option<String>,
        /// Also if the database offers no TLS.
        plain: bool,
        /// Also for replicas, which read every database.
        replication: bool,
    },
}

/// The suffix of a slot that is also for replicas.
const WITH_REPLICATION: &str = "with replication";

/// Headers that cannot be slots: those that describe the request or that the gateway sets, and cookies.
const NO_SLOTS: &[&str] = &[
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "proxy-authorization",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];

impl Slot {
    /// Parses the text after `as`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let known = "bearer, token, basic, basic-user, x-api-key, header NAME, query NAME, postgres [USER] [with replication] \
                     and postgres-plain [USER] [with replication]";
        match text.split_once(' ').map_or((text, ""), |(word, rest)| (word, rest.trim())) {
            ("bearer", "") => Ok(Self::Bearer),
            ("token", "") => Ok(Self::Token),
            ("basic", "") => Ok(Self::Basic),
            ("basic-user", "") => Ok(Self::BasicUser),
            ("x-api-key", "") => Ok(Self::Header(HeaderName::from_static("x-api-key"))),
            ("header", name) => match HeaderName::try_from(name.to_ascii_lowercase()) {
                Ok(name) if !NO_SLOTS.contains(&name.as_str()) => Ok(Self::Header(name)),
                Ok(name) => Err(format!("no credential stands in the header {name}")),
                Err(_) => Err(format!("{name:?} is not a name of a header")),
            },
            ("query", name) => {
                let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
                if name.is_empty() || !name.bytes().all(fits) {
                    return Err(format!("{name:?} is not a name of a parameter"));
                }
                Ok(Self::Query(name.to_owned()))
            }
            (word @ ("postgres" | "postgres-plain"), rest) => {
                let (user, replication) = match rest.strip_suffix(WITH_REPLICATION) {
                    Some(before) if before.is_empty() || before.ends_with(' ') => (before.trim(), true),
                    _ => (rest, false),
                };
                if user.contains(char::is_whitespace) {
                    return Err(format!("{user:?} is not the name of one user"));
                }
                let user = (!user.is_empty()).then(|| user.to_owned());
                Ok(Self::Postgres { user, plain: word == "postgres-plain", replication })
            }
            _ => Err(format!("{text:?} is no slot: there are {known}")),
        }
    }

    pub(super) fn header(&self) -> Option<&HeaderName> {
        match self {
            Self::Bearer | Self::Token | Self::Basic | Self::BasicUser => Some(&AUTHORIZATION),
            Self::Header(name) => Some(name),
            Self::Query(_) | Self::Postgres { .. } => None,
        }
    }

    /// The header line with this credential in the slot, for tools that accept one. `None` if the slot is no header, or
    /// the user of `Basic`.
    #[must_use]
    pub fn header_line(&self, user: &str, credential: &str) -> Option<String> {
        Some(match self {
            Self::Bearer => format!("Authorization: Bearer {credential}"),
            Self::Token => format!("Authorization: token {credential}"),
            Self::Basic => {
                format!("Authorization: Basic {}", STANDARD.encode(format!("{user}:{credential}")))
            }
            Self::Header(name) => format!("{name}: {credential}"),
            Self::BasicUser | Self::Query(_) | Self::Postgres { .. } => return None,
        })
    }

    /// The credential in the slot of this header.
    pub(super) fn credential<'a>(&self, name: &HeaderName, value: &'a HeaderValue) -> Option<Cow<'a, str>> {
        if self.header() != Some(name) {
            return None;
        }
        let text = value.to_str().ok()?;
        match self {
            Self::Bearer => scheme(text, "bearer").map(Cow::Borrowed),
            Self::Token => scheme(text, "token").map(Cow::Borrowed),
            Self::Basic => basic(text).map(|(_, password)| Cow::Owned(password)),
            Self::BasicUser => basic(text).map(|(user, _)| Cow::Owned(user)),
            Self::Header(_) => Some(Cow::Borrowed(text.trim())),
            Self::Query(_) | Self::Postgres { .. } => None,
        }
    }

    /// The header with another credential in the slot and the rest unchanged.
    pub(super) fn filled(&self, old: &HeaderValue, value: &str) -> Option<HeaderValue> {
        let text = old.to_str().ok()?;
        let new = Zeroizing::new(match self {
            Self::Bearer | Self::Token => format!("{} {value}", text.split_once(' ')?.0),
            Self::Basic => {
                let plain = Zeroizing::new(format!("{}:{value}", basic(text)?.0));
                format!("Basic {}", STANDARD.encode(plain.as_bytes()))
            }
            Self::BasicUser => {
                let plain = Zeroizing::new(format!("{value}:{}", basic(text)?.1));
                format!("Basic {}", STANDARD.encode(plain.as_bytes()))
            }
            Self::Header(_) => value.to_owned(),
            Self::Query(_) | Self::Postgres { .. } => return None,
        });
        let mut header = HeaderValue::from_str(&new).ok()?;
        header.set_sensitive(true);
        Some(header)
    }
}

/// The text after the name of an authentication scheme.
fn scheme<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (word, rest) = text.split_once(' ')?;
    word.eq_ignore_ascii_case(name).then(|| rest.trim())
}

/// The user and the password.
pub(super) fn basic(text: &str) -> Option<(String, String)> {
    let plain = String::from_utf8(STANDARD.decode(scheme(text, "basic")?).ok()?).ok()?;
    let (user, password) = plain.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bearer => f.write_str("bearer"),
            Self::Token => f.write_str("token"),
            Self::Basic => f.write_str("basic"),
            Self::BasicUser => f.write_str("basic-user"),
            Self::Header(name) => write!(f, "header {name}"),
            Self::Query(name) => write!(f, "query {name}"),
            Self::Postgres { user, plain, replication } => {
                f.write_str(if *plain { "postgres-plain" } else { "postgres" })?;
                user.iter().try_for_each(|user| write!(f, " {user}"))?;
                if *replication { write!(f, " {WITH_REPLICATION}") } else { Ok(()) }
            }
        }
    }
}
