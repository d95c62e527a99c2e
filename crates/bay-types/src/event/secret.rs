use jiff::Timestamp;

use super::area::area;

area! {
    /// Secrets. Nothing of a value is ever in an event.
    Secret: SecretEvent;

    /// A secret is about to be set.
    Set(SecretSet) = "secret.set" {
        /// Its name.
        name: String,
        /// What it is for.
        uses: Vec<String>,
        /// The variables that hold its sentinel.
        env: Vec<String>,
        /// The files that hold its sentinel.
        files: Vec<String>,
        /// The hosts for which git has its sentinel.
        git: Vec<String>,
        /// The ids of the bays that have it. Empty if all do.
        bays: Vec<String>,
        /// Whether other credentials to its hosts are refused.
        managed: bool,
        /// Whether its value is easy to guess.
        weak: bool,
        /// Where its value comes from: `command` or `value`.
        source: String,
        /// When the value ends, if that is known.
        expires: Option<Timestamp>,
        /// Who asked.
        by: String,
    }

    /// A secret is about to get another value.
    Rotated(SecretRotated) = "secret.rotated" {
        /// Its name.
        name: String,
        /// When the value ends, if that is known. Absent if its command was run by the daemon.
        #[serde(skip_serializing_if = "Option::is_none")]
        expires: Option<Option<Timestamp>>,
        /// Whether the value is easy to guess. Absent if its command was run by the daemon.
        #[serde(skip_serializing_if = "Option::is_none")]
        weak: Option<bool>,
        /// Who asked.
        by: String,
    }

    /// A secret is about to be removed.
    Removed(SecretRemoved) = "secret.removed" {
        /// Its name.
        name: String,
        /// Who asked.
        by: String,
    }

    /// The command of a secret gave no new value: the old one stays.
    Stale(SecretStale) = "secret.stale" {
        /// Its name.
        name: String,
        /// What went wrong.
        why: String,
    }
}
