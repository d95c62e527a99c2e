//! Former values of secrets: replaced, removed, or sent to hosts that the secret is no longer for. A server may have
//! stored one and repeat it to any bay, and it may still be valid. So the gateway scrubs it from answers of its hosts
//! for a while, also under the next daemon.
//!
//! ```text
//!   data directory/former-secrets.age
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bay_types::CoreError;
use bay_types::secret::SecretText;
use jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{sentinel, strength, text};
use crate::keyring::Keyring;

/// How long a value is remembered after it was last the value of a secret, unless newer ones displace it.
pub(crate) const REMEMBERED_FOR: SignedDuration = SignedDuration::from_hours(30 * 24);
/// The most remembered values of one name; the oldest are dropped first. The gateway looks for each of them in answers
/// of its hosts, and a command can print another value every ten seconds.
pub(crate) const MAX_OF_ONE: usize = 8;
/// The most remembered values of all names; the oldest are dropped first.
pub(crate) const MAX_REMEMBERED: usize = 256;
/// The most hosts that rules of policies add to one secret.
const MAX_RULE_HOSTS: usize = 256;
/// The longest text of all remembered values: less than the limit of an encrypted file.
const MAX_KEPT_BYTES: usize = 768 << 10;
const FILE: &str = "former-secrets.age";

/// One former value.
#[derive(Clone)]
pub(crate) struct FormerValue {
    pub(crate) name: String,
    pub(crate) value: Arc<SecretString>,
    pub(crate) hosts: Vec<String>,
    pub(crate) until: Timestamp,
    pub(crate) public: usize,
    pub(crate) weak: bool,
}

/// A former value as it is stored.
#[derive(Serialize, Deserialize)]
struct KeptValue {
    name: String,
    value: SecretText,
    hosts: Vec<String>,
    until: Timestamp,
}

#[derive(Default, Serialize, Deserialize)]
struct KeptFormer {
    #[serde(default)]
    values: Vec<KeptValue>,
    #[serde(default)]
    rule_hosts: BTreeMap<String, BTreeSet<String>>,
}

/// All former values.
#[derive(Default)]
pub(crate) struct Former {
    /// The newest last.
    values: Vec<FormerValue>,
    /// Hosts that `rule:ID` meant under some bay's policy, by the name of the secret. Other bays have other policies.
    rule_hosts: BTreeMap<String, BTreeSet<String>>,
    /// What is stored could not be read. It is not overwritten, so that a later daemon may still know the values.
    unreadable: bool,
}

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join(FILE)
}

impl FormerValue {
    fn new(name: &str, value: Arc<SecretString>, hosts: Vec<String>, until: Timestamp) -> Self {
        let (public, weak) = {
            let value = value.expose_secret();
            super::keep_from_swap(value);
            (sentinel::public_prefix(value), strength::weakness(value).is_some())
        };
        Self { name: name.to_owned(), value, hosts, until, public, weak }
    }
}

impl Former {
    /// Reads the stored values that are not too old.
    pub(crate) fn open(data_dir: &Path, keys: &Keyring) -> Result<Self, CoreError> {
        let path = path(data_dir);
        let Some(read) = keys.read(&path)? else { return Ok(Self::default()) };
        // A parser's message could contain a part of a value.
        let kept: KeptFormer = serde_json::from_slice(&read).map_err(|_| {
            CoreError::internal(&std::io::Error::other(format!("{} is not of this release", path.display())))
        })?;
        let now = Timestamp::now();
        let values = kept.values.into_iter().filter(|one| one.until > now).map(|one| {
            FormerValue::new(&one.name, Arc::new(SecretString::from(one.value)), one.hosts, one.until)
        });
        Ok(Self { values: values.collect(), rule_hosts: kept.rule_hosts, unreadable: false })
    }

    /// What is there if the stored values cannot be read.
    pub(crate) fn unreadable() -> Self {
        Self { unreadable: true, ..Self::default() }
    }

    fn keep(&mut self, data_dir: &Path, keys: &Keyring) -> Result<(), CoreError> {
        if self.unreadable {
            let why = format!("{} cannot be read, and is not overwritten", path(data_dir).display());
            return Err(CoreError::internal(&std::io::Error::other(why)));
        }
        let mut text = self.text()?;
        while text.len() > MAX_KEPT_BYTES && !self.values.is_empty() {
            self.values.remove(0);
            text = self.text()?;
        }
        keys.write(&path(data_dir), &text)
    }

    fn text(&self) -> Result<Zeroizing<Vec<u8>>, CoreError> {
        let value = |one: &FormerValue| KeptValue {
            name: one.name.clone(),
            value: text(one.value.expose_secret()),
            hosts: one.hosts.clone(),
            until: one.until,
        };
        let kept = KeptFormer {
            values: self.values.iter().map(value).collect(),
            rule_hosts: self.rule_hosts.clone(),
        };
        let text = serde_json::to_vec(&kept).map_err(|e| CoreError::internal(&std::io::Error::other(e)))?;
        Ok(Zeroizing::new(text))
    }

    /// Remembers a value of a secret and its hosts. If it cannot be stored, it is still remembered in memory.
    pub(crate) fn remember(
        &mut self,
        name: &str,
        value: &Arc<SecretString>,
        mut hosts: Vec<String>,
        (data_dir, keys): (&Path, &Keyring),
    ) -> Result<(), CoreError> {
        let now = Timestamp::now();
        self.values.retain(|one| one.until > now);
        let same = |one: &FormerValue| one.name == name && one.value.expose_secret() == value.expose_secret();
        if let Some(at) = self.values.iter().position(same) {
            hosts.extend(self.values.remove(at).hosts);
            hosts.sort();
            hosts.dedup();
        }
        self.values.push(FormerValue::new(name, Arc::clone(value), hosts, now + REMEMBERED_FOR));
        let mut of_name = self.values.iter().filter(|one| one.name == name).count();
        while of_name > MAX_OF_ONE
            && let Some(oldest) = self.values.iter().position(|one| one.name == name)
        {
            self.values.remove(oldest);
            of_name -= 1;
        }
        let surplus = self.values.len().saturating_sub(MAX_REMEMBERED);
        self.values.drain(..surplus);
        self.keep(data_dir, keys)
    }

    /// The values that are not too old.
    pub(crate) fn values(&self) -> impl Iterator<Item = &FormerValue> {
        let now = Timestamp::now();
        self.values.iter().filter(move |one| one.until > now)
    }

    /// The hosts that rules added to this secret.
    pub(crate) fn rule_hosts(&self, name: &str) -> impl Iterator<Item = &String> {
        self.rule_hosts.get(name).into_iter().flatten()
    }

    /// Notes hosts that rules add to this secret. Returns whether there were new ones.
    pub(crate) fn note_rule_hosts(
        &mut self,
        name: &str,
        hosts: impl IntoIterator<Item = String>,
        (data_dir, keys): (&Path, &Keyring),
    ) -> Result<bool, CoreError> {
        let known = self.rule_hosts.entry(name.to_owned()).or_default();
        let before = known.len();
        for host in hosts {
            if known.len() < MAX_RULE_HOSTS {
                known.insert(host);
            }
        }
        let grown = known.len() > before;
        if known.is_empty() {
            self.rule_hosts.remove(name);
        }
        if grown {
            self.keep(data_dir, keys)?;
        }
        Ok(grown)
    }
}
