//! The pool and its corners.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `POST /v1/pool/prune`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolPrune {
    /// Only the corners of these daemons. Without it, all whose daemon's data directory is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemons: Option<Vec<String>>,
    /// List what would be removed, and remove nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// What `POST /v1/pool/prune` removed, or would remove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolPruned {
    pub corners: Vec<CornerView>,
    pub dry_run: bool,
}

/// A daemon's part of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CornerView {
    /// The daemon's id.
    pub daemon: String,
    /// Where its data directory was.
    pub data_dir: PathBuf,
    /// Bays whose files are in it.
    pub bays: u64,
}
