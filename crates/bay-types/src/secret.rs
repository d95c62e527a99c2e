//! Secrets: credentials that only the daemon holds.
//!
//! A bay sees a *sentinel* where its tools expect a credential. The gateway replaces the sentinel by the value, in
//! one slot of requests that the secret may be used for, and nowhere else. No answer of the API contains a value.

use std::fmt;

use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest name of a secret.
pub const MAX_SECRET_NAME: usize = 64;
/// Shortest value. A shorter one could not be told from ordinary words when answers are scrubbed.
pub const MIN_SECRET_BYTES: usize = 8;
/// Longest value.
pub const MAX_SECRET_BYTES: usize = 8 << 10;
/// Most secrets of a daemon.
pub const MAX_SECRETS: usize = 256;
/// Most uses of a secret.
pub const MAX_USES: usize = 32;
/// Most variables of a secret. The same limit applies to its files and to its hosts for git.
pub const MAX_PLACES: usize = 16;
/// The placeholder of the sentinel in the text of a file.
pub const SENTINEL_MARK: &str = "{}";

/// A secret value. `Debug` does not show it, and its memory is cleared when it is dropped. Serializing writes it: it
/// crosses the API in requests.
#[derive(Clone)]
pub struct SecretText(SecretString);

impl SecretText {
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(SecretString::from(text))
    }

    /// The value itself. Each caller of this method is a place where the value can leak.
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
    /// Given by the caller.
    Value(SecretText),
    /// A command line. The daemon runs it as the user who set the secret, now and whenever the value is too old.
    Command {
        line: SecretText,
        /// Age in seconds at which the value is fetched again.
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

/// A secret to set. Everything replaces the earlier settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretSet {
    pub source: SecretSource,
    /// Its uses: `[METHODS ]HOST[:PORT][/PATH] as SLOT`, `rule:ID as SLOT`, or a preset.
    pub uses: Vec<String>,
    /// Variables that hold the sentinel in every command of the bay.
    #[serde(default)]
    pub env: Vec<String>,
    #[serde(default)]
    pub files: Vec<SecretFile>,
    /// Hosts to which git sends it as a header.
    #[serde(default)]
    pub git: Vec<String>,
    /// Bays that have it, with their forks; empty for all bays.
    #[serde(default)]
    pub bays: Vec<String>,
    /// Do not manage other credentials that are sent to its hosts.
    #[serde(default)]
    pub unmanaged: bool,
    /// Let bodies to its hosts contain sentinels unchanged, for hosts that receive what a bay printed.
    #[serde(default)]
    pub literal_bodies: bool,
    /// Accept a value that is easy to guess. An answer that contains such a value is cut off; other values are
    /// overwritten.
    #[serde(default)]
    pub allow_weak: bool,
    /// From then on it is not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
}

/// A new value for an existing secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretRotate {
    /// Absent: run the secret's command again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<SecretText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Accept a value that is easy to guess.
    #[serde(default)]
    pub allow_weak: bool,
}

/// A secret as the API shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretView {
    pub name: String,
    pub uses: Vec<String>,
    pub env: Vec<String>,
    /// Paths.
    pub files: Vec<String>,
    pub git: Vec<String>,
    /// Names of bays, as given; empty for all bays.
    pub bays: Vec<String>,
    pub managed: bool,
    pub literal_bodies: bool,
    /// The value is easy to guess: answers that contain it are cut off.
    #[serde(default)]
    pub weak: bool,
    pub source: SourceView,
    pub set_at: Timestamp,
    /// When the value was set or refreshed last.
    pub value_since: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// When it was last attached to a request, if this daemon knows.
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

/// What a bay has of one secret, sent to the guest.
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

/// A header that git sends to a URL.
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
