//! Secrets on disk: one encrypted file for each, with its value and its settings. The database has no value: it
//! has only the events of changes, with names.
//!
//! ```text
//!   data directory/secrets/<name>.age
//! ```

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use bay_types::secret::{MAX_SECRETS, SecretFile, SecretText};
use bay_types::{BayId, CoreError, ErrorCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::keyring::Keyring;

const EXTENSION: &str = "age";

/// A secret as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) name: String,
    /// When it was first set, in microseconds. A secret that is set again after its removal is another secret.
    pub(crate) incarnation: u64,
    pub(crate) value: SecretText,
    pub(crate) value_since: Timestamp,
    /// Former values, if an earlier release stored them here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) earlier: Vec<SecretText>,
    #[serde(default)]
    pub(crate) expires: Option<Timestamp>,
    #[serde(default)]
    pub(crate) command: Option<KeptCommand>,
    pub(crate) uses: Vec<String>,
    #[serde(default)]
    pub(crate) env: Vec<String>,
    #[serde(default)]
    pub(crate) files: Vec<SecretFile>,
    #[serde(default)]
    pub(crate) git: Vec<String>,
    #[serde(default)]
    pub(crate) bays: Vec<KeptBay>,
    pub(crate) managed: bool,
    pub(crate) literal_bodies: bool,
    /// The operator accepted values that are easy to guess.
    #[serde(default)]
    pub(crate) allow_weak: bool,
    pub(crate) set_at: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct KeptCommand {
    pub(crate) line: SecretText,
    pub(crate) refresh_s: u64,
    pub(crate) uid: u32,
}

/// A bay that a secret is limited to, and the bay's name at that time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptBay {
    pub(crate) id: BayId,
    pub(crate) name: String,
}

impl Kept {
    /// Replaces the value. The former value is remembered when this is stored.
    pub(crate) fn replace_value(&mut self, value: SecretText) {
        self.value = value;
        self.value_since = Timestamp::now();
    }
}

fn failed(what: &str, path: &Path, error: &dyn std::fmt::Display) -> CoreError {
    CoreError::new(
        ErrorCode::Internal,
        format!("{what} {} failed: {error}", path.display()),
        "check the disk of the data directory",
    )
}

fn path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.{EXTENSION}"))
}

pub(crate) fn write(dir: &Path, kept: &Kept, keys: &Keyring) -> Result<(), CoreError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|e| failed("making", dir, &e))?;
    let path = path(dir, &kept.name);
    let text = serde_json::to_vec(kept).map_err(|e| failed("writing", &path, &e))?;
    keys.write(&path, &Zeroizing::new(text))
}

pub(crate) fn remove(dir: &Path, name: &str) -> Result<(), CoreError> {
    let path = path(dir, name);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("removing", &path, &error)),
        _ => Ok(()),
    }
}

/// Reads all secrets. A file that cannot be read becomes a problem, and the others are still read. Without the
/// key, this is an error.
pub(crate) fn read_all(dir: &Path, keys: &Keyring) -> Result<(Vec<Kept>, Vec<String>), CoreError> {
    let (mut all, mut problems) = (Vec::new(), Vec::new());
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((all, problems)),
        Err(error) => return Err(failed("reading", dir, &error)),
    };
    for entry in entries.flatten().take(2 * MAX_SECRETS) {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != EXTENSION) {
            continue;
        }
        match keys.read(&path).map(|text| text.map(|text| serde_json::from_slice(&text))) {
            Ok(Some(Ok(kept))) => all.push(kept),
            // A parser's message could contain a part of the secret.
            Ok(Some(Err(_))) => problems.push(format!("{} is not a secret of this release", path.display())),
            Ok(None) => {}
            Err(error) if error.code == ErrorCode::KeyUnusable && !keys.is_usable() => return Err(error),
            Err(error) => problems.push(error.message),
        }
    }
    Ok((all, problems))
}
