//! The secrets of one bay: where the gateway looks for their sentinels, and where it may put their values.
//!
//! The bay has a *sentinel* for each secret, and is not given the value. The gateway examines every HTTP request before
//! the decision:
//!
//! ```text
//!  examine: does the request contain a sentinel?
//!    ├─ no ─ is a managed secret for this host? ── yes: what looks like a credential is refused; cookies are removed
//!    └─ yes ─ is it in the slot, for the host, method and path of one of its uses, over TLS?
//!               ├─ yes: attached, if the policy allows it and the use is recorded on disk ([`Decider::attach`])
//!               └─ no:  refused and reported, whatever the policy says
//! ```
//!
//! A value replaces its sentinel in the slot, and goes nowhere else. Bodies are searched for sentinels in transit,
//! unless a secret for the host lets them pass. Answers of a host that a secret is for are scrubbed of the value,
//! even if the secret belongs to another bay or was removed ([`Covered`]). So such hosts are asked neither for ranges
//! nor for encodings that the scrubber cannot read. A password for a database is proved and replaced within the login
//! instead ([`Login`]).
//!
//! [`Decider::attach`]: crate::Decider::attach

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use aho_corasick::AhoCorasick;
use bay_policy::CanonicalRequest;
use secrecy::SecretString;

use crate::scrub::{Guesses, Patterns};

mod attach;
mod covered;
mod examine;
mod foreign_credentials;
mod login;
mod slot;
mod spec;
mod watch;

pub use attach::Attachments;
pub use covered::Covered;
pub(crate) use covered::Sent;
pub use examine::{Misuse, MisuseKind};
pub use login::{Login, LoginSecret};
pub use slot::Slot;
pub use spec::{Named, SpecError, Use};
pub(crate) use watch::Watch;

/// One secret of a bay.
#[derive(Debug, Clone)]
pub struct Held {
    pub name: String,
    /// Changes when the secret is removed and set again, but not when its value is replaced.
    pub incarnation: u64,
    /// Empty if the secret was removed. Its sentinels stay known.
    pub uses: Vec<Use>,
    /// The bay's own sentinel first, then those of its ancestors.
    pub sentinels: Vec<String>,
    /// Values to scrub, the current one first.
    pub values: Vec<Arc<SecretString>>,
    /// The number of bytes at the beginning of its value that are not secret.
    pub public: usize,
    /// Whether the value is easy to guess. If so, an answer is cut where the value occurs.
    pub weak: bool,
    /// Whether the gateway refuses what looks like another credential to its hosts, and removes cookies to them.
    pub managed: bool,
    /// Whether bodies to its hosts may contain sentinels, which are then sent as they are.
    pub literal_bodies: bool,
    /// Counts guesses of its value in answers.
    pub guesses: Arc<Guesses>,
}

impl Held {
    /// A secret that was removed from the bay or deleted.
    #[must_use]
    pub fn gone(name: String, sentinels: Vec<String>) -> Self {
        Self {
            name,
            incarnation: 0,
            uses: Vec::new(),
            sentinels,
            values: Vec::new(),
            public: 0,
            weak: false,
            managed: false,
            literal_bodies: false,
            guesses: Arc::default(),
        }
    }

    pub(crate) fn is_for(&self, host: &str) -> bool {
        self.uses.iter().any(|one| one.is_for(host))
    }

    /// A name that may replace the sentinel in a slot.
    fn alias(&self) -> String {
        format!("__{}__", self.name)
    }
}

/// A snapshot of all secrets of one bay.
pub struct Secrets {
    held: Vec<Held>,
    covered: Vec<Covered>,
    /// Finds sentinels and aliases.
    anywhere: Option<Finder>,
    /// Finds sentinels only, because an alias may be an ordinary word of a text.
    in_bodies: Option<Finder>,
    /// The patterns for each host, compiled at first use.
    patterns: Mutex<HashMap<String, Arc<Patterns>>>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.held.iter().map(|held| &held.name)).finish()
    }
}

/// A search for several texts, each with the index of its secret.
struct Finder {
    automaton: AhoCorasick,
    of: Vec<usize>,
    longest: usize,
}

impl Finder {
    /// `None` if there are no texts.
    fn new(texts: Vec<(String, usize)>) -> Option<Self> {
        let longest = texts.iter().map(|(text, _)| text.len()).max()?;
        let (texts, of): (Vec<String>, Vec<usize>) = texts.into_iter().unzip();
        // Fails only if the texts exceed the memory, which they never do.
        let automaton = AhoCorasick::new(texts).ok()?;
        Some(Self { automaton, of, longest })
    }

    /// The first match: the index of its secret, and its place.
    fn first(&self, bytes: &[u8]) -> Option<(usize, std::ops::Range<usize>)> {
        self.automaton.find(bytes).map(|found| (self.of[found.pattern().as_usize()], found.range()))
    }

    fn count(&self, bytes: &[u8]) -> usize {
        self.automaton.find_iter(bytes).count()
    }
}

impl Secrets {
    #[must_use]
    pub fn new(held: Vec<Held>) -> Self {
        let mut sentinels = Vec::new();
        for (at, one) in held.iter().enumerate() {
            sentinels.extend(one.sentinels.iter().map(|sentinel| (sentinel.clone(), at)));
        }
        let aliases = held.iter().enumerate().map(|(at, one)| (one.alias(), at));
        let anywhere = Finder::new(sentinels.iter().cloned().chain(aliases).collect());
        let in_bodies = Finder::new(sentinels);
        Self { held, covered: Vec::new(), anywhere, in_bodies, patterns: Mutex::default() }
    }

    #[must_use]
    pub fn none() -> Self {
        Self::new(Vec::new())
    }

    #[must_use]
    pub fn held(&self) -> &[Held] {
        &self.held
    }

    /// The secrets that are for this host, on any port and path.
    pub fn of_host(&self, host: &str) -> impl Iterator<Item = &Held> {
        self.held.iter().filter(move |held| held.is_for(host))
    }

    /// Whether the secret of this incarnation can still be used.
    #[must_use]
    pub fn has(&self, name: &str, incarnation: u64) -> bool {
        let is = |held: &Held| held.name == name && held.incarnation == incarnation && !held.uses.is_empty();
        self.held.iter().any(is)
    }

    /// A scanner for the body of a request. `None` if there are no sentinels, or bodies to the host may contain them.
    pub(crate) fn watch(
        self: &Arc<Self>,
        request: &CanonicalRequest,
        tell: impl Fn(Misuse) + Send + Sync + 'static,
    ) -> Option<Watch> {
        let host = request.host().to_string();
        if self.of_host(&host).any(|held| held.literal_bodies) {
            return None;
        }
        self.in_bodies.as_ref()?;
        Some(Watch::new(Arc::clone(self), Box::new(tell)))
    }
}

#[cfg(test)]
mod tests;
