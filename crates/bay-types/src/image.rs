//! Images: what a bay's root filesystem starts as.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::ImageId;

/// `POST /v1/images`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageImport {
    /// `host`, `dir:/path` or `tar:/path`.
    pub source: String,
    /// What to call it; derived from the source when absent.
    #[serde(default)]
    pub name: Option<String>,
    /// Directories of the host to take along with `host` (toolchains in a home directory).
    #[serde(default)]
    pub add: Vec<PathBuf>,
    /// Import again even when nothing changed.
    #[serde(default)]
    pub force: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageView {
    pub id: ImageId,
    pub name: String,
    pub source: String,
    /// Hash of what it was made from; the same key is never imported twice.
    pub key: String,
    pub created_at: Timestamp,
    pub files: u64,
    pub bytes: u64,
    /// Directories of the host that were taken along with `host`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<PathBuf>,
    /// What could not be taken, and why, in a line for a person; empty when nothing was left out.
    pub left_out: String,
    pub bays: u64,
}
