//! The values that answers are scrubbed of: the bay's own, and values that the bay has no access to.

use std::fmt;
use std::sync::{Arc, PoisonError};

use secrecy::{ExposeSecret, SecretString};

use super::{Attachments, Held, Misuse, MisuseKind, Secrets};
use crate::scrub::{Guesses, Hidden, Patterns, REDACTION, ValueError};

/// A value that is scrubbed although the bay cannot use it: another bay's secret, or one that was replaced or
/// removed. A server may have stored it and may send it to anybody.
#[derive(Clone)]
pub struct Covered {
    /// The name of the secret. The bay does not get it.
    pub name: String,
    pub value: Arc<SecretString>,
    /// Hosts that may have received the value, on any port.
    pub hosts: Vec<String>,
    /// The replacement if the bay ever had the secret; otherwise [`REDACTION`].
    pub sentinel: Option<String>,
    /// The number of bytes at its beginning that are not secret.
    pub public: usize,
    /// Whether the value is easy to guess.
    pub weak: bool,
    pub guesses: Arc<Guesses>,
}

impl fmt::Debug for Covered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Covered")
            .field("name", &self.name)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

impl Covered {
    fn is_for(&self, host: &str) -> bool {
        self.hosts.iter().any(|own| own == host)
    }
}

/// A value that was put into a request, and the name of its secret.
#[derive(Clone)]
pub(crate) struct Sent {
    pub(crate) name: String,
    pub(crate) value: Arc<SecretString>,
}

impl Sent {
    /// Pairs each wanted secret with its value.
    pub(crate) fn all(wanted: &[(String, u64)], values: &[Arc<SecretString>]) -> Vec<Self> {
        let pairs = wanted.iter().zip(values);
        pairs.map(|((name, _), value)| Self { name: name.clone(), value: Arc::clone(value) }).collect()
    }
}

impl Secrets {
    /// Sets the values that are only scrubbed.
    #[must_use]
    pub fn covering(mut self, covered: Vec<Covered>) -> Self {
        self.covered = covered;
        self
    }

    fn covered_at(&self, host: &str) -> impl Iterator<Item = &Covered> {
        self.covered.iter().filter(move |covered| covered.is_for(host))
    }

    /// Whether answers of the host are scrubbed.
    pub(crate) fn scrubs(&self, host: &str) -> bool {
        self.of_host(host).next().is_some() || self.covered_at(host).next().is_some()
    }

    /// The counters of guesses for the secrets that a request carries.
    pub(crate) fn carried(&self, attachments: &Attachments) -> Vec<Arc<Guesses>> {
        let held = attachments.found.iter().filter_map(|one| self.held.get(one.secret));
        held.map(|held| Arc::clone(&held.guesses)).collect()
    }

    /// Why the host is closed to the bay, with a secret or without one: there were too many guesses of a value.
    pub(crate) fn closed(&self, host: &str) -> Option<Misuse> {
        if let Some(held) = self.of_host(host).find(|held| held.guesses.are_too_many()) {
            let uses = held.uses.iter().map(ToString::to_string).collect();
            let (kind, secret, place) = (MisuseKind::Guessed, held.name.clone(), host.to_owned());
            return Some(Misuse { kind, secret, place, uses });
        }
        let covered = self.covered_at(host).find(|covered| covered.guesses.are_too_many())?;
        let (kind, secret, place) = (MisuseKind::Guessed, covered.name.clone(), host.to_owned());
        Some(Misuse { kind, secret, place, uses: Vec::new() })
    }

    /// The patterns to scrub answers of a host with. `None` if there is no value to hide. `sent` are the values in the
    /// request, which may be newer than this snapshot.
    ///
    /// # Errors
    /// A value cannot be found in an answer, so the request must not be sent.
    pub(crate) fn patterns(&self, host: &str, sent: &[Sent]) -> Result<Option<Arc<Patterns>>, ValueError> {
        let mut hidden: Vec<Hidden<'_>> = Vec::new();
        for held in self.of_host(host) {
            hidden.extend(held.values.iter().map(|value| of_held(held, value)));
        }
        for covered in self.covered_at(host) {
            let value = covered.value.expose_secret().as_bytes();
            if hidden.iter().any(|one| one.value == value) {
                continue;
            }
            hidden.push(Hidden {
                value,
                sentinel: covered.sentinel.as_deref().unwrap_or(REDACTION).as_bytes(),
                public: covered.public,
                weak: covered.weak,
                guesses: Arc::clone(&covered.guesses),
            });
        }
        let known = hidden.len();
        for Sent { name, value } in sent {
            if hidden.iter().any(|one| one.value == value.expose_secret().as_bytes()) {
                continue;
            }
            hidden.push(match self.held.iter().find(|held| held.name == *name) {
                Some(held) => of_held(held, value),
                None => Hidden::new(value.expose_secret().as_bytes(), REDACTION.as_bytes()),
            });
        }
        if hidden.is_empty() {
            return Ok(None);
        }
        if hidden.len() > known {
            return Patterns::new(&hidden).map(|made| Some(Arc::new(made)));
        }
        let mut ready = self.patterns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = ready.get(host) {
            return Ok(Some(Arc::clone(made)));
        }
        let made = Arc::new(Patterns::new(&hidden)?);
        ready.insert(host.to_owned(), Arc::clone(&made));
        Ok(Some(made))
    }
}

/// The entry for a value of the bay's own secret.
fn of_held<'a>(held: &'a Held, value: &'a SecretString) -> Hidden<'a> {
    Hidden {
        value: value.expose_secret().as_bytes(),
        sentinel: held.sentinels.first().map_or(REDACTION, String::as_str).as_bytes(),
        public: held.public,
        weak: held.weak,
        guesses: Arc::clone(&held.guesses),
    }
}
