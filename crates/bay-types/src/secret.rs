//! Secrets: credentials that stay with the daemon, and what bays see of them.
//!
//! A bay sees a *sentinel* where its tools look for a credential. The gateway puts the value in its place, in one slot of
//! requests that the secret is for, and nowhere else. No answer of the API has a value in it.

use std::fmt;

use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest name of a secret.
pub const MAX_SECRET_NAME: usize = 64;
/// Lengths of values that are taken. A shorter one could not be told from ordinary words in what is scrubbed of it.
pub const MIN_SECRET_BYTES: usize = 8;
pub const MAX_SECRET_BYTES: usize = 8 << 10;
/// Most secrets of one daemon, and most uses, variables and files of one secret.
pub const MAX_SECRETS: usize = 256;
pub const MAX_USES: usize = 32;
pub const MAX_PLACES: usize = 16;
/// What stands for the sentinel in the text of a file.
pub const SENTINEL_MARK: &str = "{}";

/// A value on its way to the daemon, or kept by it. Not printable, and gone from memory when it is dropped.
#[derive(Clone)]
pub struct SecretText(SecretString);

impl SecretText {
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(SecretString::from(text))
    }

    /// The value itself. Whoever calls this is where it can leak.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl From<SecretText> for SecretString {
    fn from(text: SecretText) -> Self {
        text.0
    }
}

impl PartialEq for SecretText {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl Eq for SecretText {}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(…)")
    }
}

impl Serialize for SecretText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.expose())
    }
}

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SecretSource {
    /// Read by whoever set it.
    Value(SecretText),
    /// A command line that the daemon has the caller's shell user run, now and whenever the value is too old.
    Command {
        line: SecretText,
        /// From when on a value is asked for anew.
        refresh_s: u64,
    },
}

/// A file in the bay that has the sentinel in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretFile {
    /// Absolute.
    pub path: String,
    /// With [`SENTINEL_MARK`] where the sentinel goes.
    pub text: String,
}

/// A secret to be set. Everything but the value takes the place of what was set before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretSet {
    pub source: SecretSource,
    /// What it is for: `[METHODS ]HOST[:PORT][/PATH] as SLOT`, `rule:ID as SLOT`, or a preset.
    pub uses: Vec<String>,
    /// Variables of every command in the bay.
    #[serde(default)]
    pub env: Vec<String>,
    #[serde(default)]
    pub files: Vec<SecretFile>,
    /// Hosts to which git sends it by itself.
    #[serde(default)]
    pub git: Vec<String>,
    /// Bays that have it, and their forks; all bays where this is empty.
    #[serde(default)]
    pub bays: Vec<String>,
    /// Other credentials to its hosts are left alone.
    #[serde(default)]
    pub unmanaged: bool,
    /// Bodies to its hosts may have sentinels in them, as they are: for hosts that are told what a bay printed.
    #[serde(default)]
    pub literal_bodies: bool,
    /// Take a value that is easy to guess. Answers with it in them are cut off, where another would be overwritten.
    #[serde(default)]
    pub allow_weak: bool,
    /// From then on it is not used any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
}

/// A new value for a secret that there is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretRotate {
    /// Nothing to have the secret's own command run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<SecretText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Take a value that is easy to guess.
    #[serde(default)]
    pub allow_weak: bool,
}

/// All that is told of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretView {
    pub name: String,
    pub uses: Vec<String>,
    pub env: Vec<String>,
    /// Paths.
    pub files: Vec<String>,
    pub git: Vec<String>,
    /// Names of bays, as they were given; all bays where this is empty.
    pub bays: Vec<String>,
    pub managed: bool,
    pub literal_bodies: bool,
    /// The value is easy to guess: answers with it in them are cut off.
    #[serde(default)]
    pub weak: bool,
    pub source: SourceView,
    pub set_at: Timestamp,
    /// Since when the value is what it is.
    pub value_since: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// When it was last put into a request, as far as this daemon knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used: Option<Timestamp>,
    /// Why it cannot be used, or could not be refreshed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum SourceView {
    Value,
    Command { refresh_s: u64, as_uid: u32 },
}

/// What a bay sees of one secret: told to the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivered {
    pub name: String,
    pub sentinel: String,
    #[serde(default)]
    pub env: Vec<String>,
    #[serde(default)]
    pub files: Vec<SecretFile>,
    #[serde(default)]
    pub git: Vec<GitHeader>,
}

/// A header that git sends to a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitHeader {
    /// `https://HOST[:PORT]/`.
    pub url: String,
    /// `Name: value`, with the sentinel in it.
    pub header: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_not_printed() {
        let set = SecretSet {
            source: SecretSource::Value(SecretText::new("an-unusual-word".to_owned())),
            uses: vec!["api.test as bearer".to_owned()],
            env: Vec::new(),
            files: Vec::new(),
            git: Vec::new(),
            bays: Vec::new(),
            unmanaged: false,
            literal_bodies: false,
            allow_weak: false,
            expires: None,
        };
        assert!(!format!("{set:?}").contains("unusual"));
        let read: SecretSet = serde_json::from_str(&serde_json::to_string(&set).unwrap()).unwrap();
        assert_eq!(read, set);
    }
}
