//! The notation for the uses of a secret: `[METHODS ]HOST[:PORT][/PATH] as SLOT`, `rule:ID as SLOT`, or
//! `HOST[:PORT][/DATABASE] as postgres [USER] [with replication]`, also with `postgres-plain`.

use std::fmt;

use bay_policy::rule::Matcher;
use bay_policy::{CanonicalRequest, CompiledPolicy, Host, Kind, Layer, Outcome, Places, Scheme, parse};
use serde_json::json;

use super::login::{DEFAULT_PORT, Login};
use super::slot::Slot;

/// A use that cannot be parsed, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} does not say what a secret is for: {why}")]
pub struct SpecError {
    pub text: String,
    pub why: String,
}

/// One use of a secret: hosts, methods and paths, and the slot in their requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    text: String,
    matcher: Matcher,
    hosts: Vec<String>,
    /// `None` if the use comes from a rule of the policy, which may have several ports.
    port: Option<u16>,
    slot: Slot,
    /// For logins: the database, or `None` for any.
    database: Option<String>,
}

/// A use as it was written. It names a place, or a rule of the bay's policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    Place(Box<Use>),
    Rule { id: String, slot: Slot, text: String },
}

impl Named {
    /// Parses the notation.
    ///
    /// # Errors
    /// The text names no place, more than one host, or no slot.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let wrong = |why: String| SpecError { text: text.to_owned(), why };
        let Some((place, slot)) = text.rsplit_once(" as ") else {
            return Err(wrong(
                "write `HOST/PATH as SLOT`, such as `api.example.com/v1/** as bearer`".to_owned(),
            ));
        };
        let slot = Slot::parse(slot.trim()).map_err(&wrong)?;
        let place = place.trim();
        if matches!(slot, Slot::Postgres { .. }) {
            return database(text, place, slot).map(|one| Self::Place(Box::new(one))).map_err(wrong);
        }
        if let Some(id) = place.strip_prefix("rule:") {
            let fits = !id.is_empty() && !id.contains(char::is_whitespace);
            return match fits {
                true => Ok(Self::Rule { id: id.to_owned(), slot, text: text.to_owned() }),
                false => Err(wrong("`rule:` wants the id of one rule of the policy".to_owned())),
            };
        }
        let (methods, place) = match place.split_once(' ') {
            None => (Vec::new(), place),
            Some((methods, place)) => (methods.split(',').collect(), place.trim()),
        };
        let place = place.strip_prefix("https://").unwrap_or(place);
        if place.contains("://") {
            return Err(wrong("over HTTP a secret is only sent with TLS, to `https` places".to_owned()));
        }
        let (authority, path) = match place.find('/') {
            Some(at) => (&place[..at], &place[at..]),
            None => (place, "/**"),
        };
        if authority.contains('*') {
            return Err(wrong(
                "name each host in full: a secret is for hosts that somebody chose".to_owned(),
            ));
        }
        let (host, port) = bay_policy::canonical::host::parse_authority(authority)
            .map_err(|refusal| wrong(refusal.to_string()))?;
        let port = port.unwrap_or(Scheme::Https.default_port());
        let methods = if methods.is_empty() { json!("*") } else { json!(methods) };
        // TOML writes strings and lists of strings as JSON does.
        let rule = format!(
            "[[rule]]\noutcome = \"allow\"\nhost = {}\nport = {port}\nmethod = {methods}\npath = {}\n",
            json!(host.to_string()),
            json!(path),
        );
        let read = parse(Layer::Bay, "secret", &rule, &Places::default());
        let read = read.map_err(|problems| {
            let first = problems.0.first().map(ToString::to_string).unwrap_or_default();
            wrong(first)
        })?;
        let Some(rule) = read.rules.into_iter().next() else {
            return Err(wrong("it names nothing".to_owned()));
        };
        Ok(Self::Place(Box::new(Use {
            text: text.to_owned(),
            matcher: rule.matcher,
            hosts: vec![host.to_string()],
            port: Some(port),
            slot,
            database: None,
        })))
    }

    /// The uses that are meant under this policy. A `rule:ID` means the rules with this id that do not deny, match only
    /// `https` requests, and name each of their hosts in full. There may be none.
    #[must_use]
    pub fn uses(&self, policy: &CompiledPolicy) -> Vec<Use> {
        let (id, slot, text) = match self {
            Self::Place(one) => return vec![(**one).clone()],
            Self::Rule { id, slot, text } => (id, slot, text),
        };
        let rules = policy.layers().flat_map(|layer| &layer.rules);
        let meant = rules.filter(|rule| {
            rule.id == *id
                && rule.outcome != Outcome::Deny
                && rule.matcher.kind == Kind::Http
                && rule.matcher.schemes == [Scheme::Https]
        });
        let used = meant.filter_map(|rule| {
            let hosts: Option<Vec<String>> = rule.matcher.hosts.iter().map(one_host).collect();
            Some(Use {
                text: text.clone(),
                matcher: rule.matcher.clone(),
                hosts: hosts?,
                port: None,
                slot: slot.clone(),
                database: None,
            })
        });
        used.collect()
    }
}

/// Parses `HOST[:PORT][/DATABASE]`, a use for logins.
fn database(text: &str, place: &str, slot: Slot) -> Result<Use, String> {
    let place = place.strip_prefix("postgres://").unwrap_or(place);
    if place.contains(char::is_whitespace) || place.contains("://") || place.starts_with("rule:") {
        return Err("a password of PostgreSQL is for `HOST[:PORT][/DATABASE]`".to_owned());
    }
    let (authority, name) = place.split_once('/').unwrap_or((place, ""));
    if authority.contains('*') || name.contains('*') {
        return Err("name the host and the database in full".to_owned());
    }
    if matches!(slot, Slot::Postgres { replication: true, .. }) && !name.is_empty() {
        return Err("replication reads every database: write it for `HOST[:PORT]`, without one".to_owned());
    }
    let (host, port) =
        bay_policy::canonical::host::parse_authority(authority).map_err(|refusal| refusal.to_string())?;
    let port = port.unwrap_or(DEFAULT_PORT);
    // TOML writes strings as JSON does.
    let host = host.to_string();
    let rule =
        format!("[[rule]]\noutcome = \"allow\"\nkind = \"tcp\"\nhost = {}\nport = {port}\n", json!(host));
    let read = parse(Layer::Bay, "secret", &rule, &Places::default());
    let read = read.map_err(|problems| problems.0.first().map(ToString::to_string).unwrap_or_default())?;
    let rule = read.rules.into_iter().next().ok_or("it names nothing")?;
    Ok(Use {
        text: text.to_owned(),
        matcher: rule.matcher,
        hosts: vec![host],
        port: Some(port),
        slot,
        database: (!name.is_empty()).then(|| name.to_owned()),
    })
}

/// The host of a pattern that matches exactly one.
fn one_host(pattern: &bay_policy::pattern::HostPattern) -> Option<String> {
    let text = pattern.to_string();
    if text.contains(['*', '/']) {
        return None;
    }
    Host::parse(&text).ok().map(|host| host.to_string())
}

impl Use {
    #[must_use]
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Whether the use names this `HOST[:PORT]`, with the port of `https` by default. A use from a rule names no
    /// port, so it is at none.
    #[must_use]
    pub fn is_at(&self, authority: &str) -> bool {
        let Ok((host, port)) = bay_policy::canonical::host::parse_authority(authority) else { return false };
        let port = port.unwrap_or(Scheme::Https.default_port());
        self.is_for(&host.to_string()) && self.port == Some(port)
    }

    /// Whether the use is for logins to databases at this place.
    pub(super) fn has_logins(&self, host: &str, port: u16) -> bool {
        matches!(self.slot, Slot::Postgres { .. }) && self.is_for(host) && self.port == Some(port)
    }

    /// If the use is for this login: whether TLS may be missing, and whether it is for replicas.
    pub(super) fn login(&self, login: &Login<'_>) -> Option<(bool, bool)> {
        let Slot::Postgres { user, plain, replication } = &self.slot else { return None };
        let meant = self.has_logins(&login.host.to_string(), login.port)
            && user.as_ref().is_none_or(|user| user == login.user)
            && self.database.as_ref().is_none_or(|database| database == login.database);
        meant.then_some((*plain, *replication))
    }

    /// The hosts of the use.
    #[must_use]
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    pub(super) fn is_for(&self, host: &str) -> bool {
        self.hosts.iter().any(|own| own == host)
    }

    /// Whether a value may be put into this request. It must be HTTP over TLS that the gateway inspects.
    pub(super) fn matches(&self, request: &CanonicalRequest) -> bool {
        request.http().is_some_and(|http| http.scheme() == Scheme::Https)
            && self.matcher.matches(request, Outcome::Allow)
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
