//! Images: the initial root filesystems of bays.

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
    /// Its name; derived from the source when absent.
    #[serde(default)]
    pub name: Option<String>,
    /// Directories of the host to copy in addition to `host`, such as toolchains in a home directory.
    #[serde(default)]
    pub add: Vec<PathBuf>,
    /// Import even if nothing changed.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/images/prune`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImagePrune {
    /// Only images that a newer one of the same name and source replaces.
    #[serde(default)]
    pub superseded: bool,
    /// Only these, as far as no bay uses them. Without it, all that no bay uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<Vec<ImageId>>,
    /// List what would be removed, and remove nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// What `POST /v1/images/prune` removed, or would remove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImagesPruned {
    pub images: Vec<ImageView>,
    pub dry_run: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageView {
    pub id: ImageId,
    pub name: String,
    pub source: String,
    /// Hash of its source; an import with the same key is not repeated.
    pub key: String,
    pub created_at: Timestamp,
    pub files: u64,
    pub bytes: u64,
    /// Directories of the host that were copied in addition to `host`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<PathBuf>,
    /// What was left out of the import and why, on one line; empty if nothing was.
    pub left_out: String,
    pub bays: u64,
}
