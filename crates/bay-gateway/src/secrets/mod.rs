//! Secrets as the gateway of one bay knows them: what it looks for in everything that the bay sends, and where it may put
//! a value.
//!
//! The bay has a *sentinel* for each secret, and never the value. Of every request, before it is decided on:
//!
//! ```text
//!  examine: is there a sentinel in it?
//!    ├─ no ─ is the host one that a secret is for? ── yes: any other credential refuses it; cookies are left out
//!    └─ yes ─ in the slot, for the host, method and path of one of its uses, over TLS?
//!               ├─ yes: attached, when the policy allows it and that is durably on record ([`Decider::attach`])
//!               └─ no:  refused and reported, whatever the policy says
//! ```
//!
//! A value is put into the one slot and nowhere else. Bodies are looked through as they pass. Whatever comes back from a host
//! that a secret is for is scrubbed of the value, also if the secret is another bay's or was removed ([`Covered`]), so such hosts are
//! asked neither for parts of a body nor for encodings that cannot be read.
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
mod login;
mod others;
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

/// One secret as one bay has it.
#[derive(Debug, Clone)]
pub struct Held {
    pub name: String,
    /// Changes when the secret is removed and set again, and not when its value does.
    pub incarnation: u64,
    /// None where the secret is gone: its sentinels are known for ever.
    pub uses: Vec<Use>,
    /// The bay's own first, then those of its ancestors.
    pub sentinels: Vec<String>,
    /// Values that answers are scrubbed of: the one in use first.
    pub values: Vec<Arc<SecretString>>,
    /// So many bytes of the beginning of its value are no secret.
    pub public: usize,
    /// Whether the value is easy to guess: answers with it in them end there.
    pub weak: bool,
    /// Whether other credentials to its hosts are refused.
    pub managed: bool,
    /// Whether bodies to its hosts may have sentinels in them, as they are.
    pub literal_bodies: bool,
    /// How often answers had guesses of its value in them.
    pub guesses: Arc<Guesses>,
}

impl Held {
    /// One that is not the bay's any more, or nobody's.
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

    /// What may stand for the sentinel in a slot.
    fn alias(&self) -> String {
        format!("__{}__", self.name)
    }
}

/// All secrets of one bay at one moment.
pub struct Secrets {
    held: Vec<Held>,
    covered: Vec<Covered>,
    /// Finds sentinels, and with them names that stand for them.
    anywhere: Option<Finder>,
    /// Finds sentinels only: the names are ordinary words of a text.
    in_bodies: Option<Finder>,
    /// What finds values in answers of a host, made when it is first needed.
    patterns: Mutex<HashMap<String, Arc<Patterns>>>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.held.iter().map(|held| &held.name)).finish()
    }
}

/// Texts that are looked for, and whose they are.
struct Finder {
    automaton: AhoCorasick,
    of: Vec<usize>,
    longest: usize,
}

impl Finder {
    /// Nothing where there is nothing to look for.
    fn new(texts: Vec<(String, usize)>) -> Option<Self> {
        let longest = texts.iter().map(|(text, _)| text.len()).max()?;
        let (texts, of): (Vec<String>, Vec<usize>) = texts.into_iter().unzip();
        // Fails for more texts than memory has room for, and there are never so many.
        let automaton = AhoCorasick::new(texts).ok()?;
        Some(Self { automaton, of, longest })
    }

    /// Whose text is first found, and where it is.
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

    /// The secrets that are for this host, on whatever port and path.
    pub fn of_host(&self, host: &str) -> impl Iterator<Item = &Held> {
        self.held.iter().filter(move |held| held.is_for(host))
    }

    /// Whether this very secret can still be used.
    #[must_use]
    pub fn has(&self, name: &str, incarnation: u64) -> bool {
        let is = |held: &Held| held.name == name && held.incarnation == incarnation && !held.uses.is_empty();
        self.held.iter().any(is)
    }

    /// What looks through the body of a request; nothing where there is nothing to look for, or bodies may have it.
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
