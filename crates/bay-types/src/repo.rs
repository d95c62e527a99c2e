//! Cached repositories.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::RepoId;

/// `POST /v1/repos/offer`: the CLI has a local repository at this commit, and asks whether the cache has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepoOffer {
    /// The caller's path, used as a name only: the daemon never opens it.
    pub location: String,
    pub commit: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepoOffered {
    pub repo: RepoId,
    /// The commit is in the cache: no bundle is needed.
    pub present: bool,
    /// Commits of this repository in the cache, newest first. A bundle can leave them out.
    pub have: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepoView {
    pub id: RepoId,
    /// URL or path, credentials removed.
    pub location: String,
    pub synced_at: Timestamp,
    pub bytes: u64,
    /// Cached checkouts, one per used commit.
    pub checkouts: u64,
    pub bays: u64,
}

/// `POST /v1/repos/sync`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepoSync {
    /// Id, URL or a unique part of the location.
    pub repo: String,
}
