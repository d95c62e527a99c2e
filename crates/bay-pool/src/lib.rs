//! skeleton
#![forbid(unsafe_code)]
use std::io::Read;
use std::path::{Path, PathBuf};

use bay_types::image::{ImageImport, ImageView};
use bay_types::progress::Progress;
use bay_types::repo::RepoView;
use bay_types::{ApiError, BayId, ImageId, RepoId};

/// Called with news during long work; may be called often, so it must be cheap.
pub type Report<'a> = &'a mut dyn FnMut(Progress);

#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("skeleton")]
    Skeleton,
}
impl PoolError {
    /// The error as a caller sees it.
    #[must_use]
    pub fn to_api(&self) -> ApiError {
        unreachable!()
    }
}
type Result<T> = std::result::Result<T, PoolError>;

#[derive(Debug, Clone, Default)]
pub struct PoolOptions {
    /// Size of a new pool file; chosen from the free disk when absent.
    pub initial_mib: Option<u64>,
}
/// Cheap to clone; every method blocks.
#[derive(Debug, Clone)]
pub struct Pool {}
/// Host paths of a bay's subvolumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BayDisk {
    pub root: PathBuf,
    pub workspace: PathBuf,
    pub state: PathBuf,
}
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkspaceFrom {
    Empty,
    /// A commit made ready with `repo_checkout`.
    Checkout { repo: RepoId, commit: String, branch: Option<String> },
}
/// What a ref means in a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    pub commit: String,
    /// Set when the ref is a branch (or the default branch).
    pub branch: Option<String>,
}
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUsage {
    pub total_bytes: u64,
    pub free_bytes: u64,
}
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BayUsage {
    /// Bytes only this bay holds.
    pub own_bytes: u64,
}

impl Pool {
    pub fn open(_dir: &Path, _corner: &str, _options: &PoolOptions, _report: Report<'_>) -> Result<Self> { unreachable!() }
    pub fn usage(&self) -> Result<PoolUsage> { unreachable!() }

    /// Imports, or returns the image that already has the same key (unless `force`). `caller_uid` is whose rights apply to paths.
    pub fn image_import(&self, _import: &ImageImport, _caller_uid: u32, _report: Report<'_>) -> Result<ImageView> { unreachable!() }
    /// The newest image with this name, id or source (`host` imports it when it is absent or out of date).
    pub fn image_find(&self, _name: &str) -> Result<Option<ImageView>> { unreachable!() }
    pub fn image_list(&self) -> Result<Vec<ImageView>> { unreachable!() }
    pub fn image_remove(&self, _id: ImageId) -> Result<()> { unreachable!() }

    pub fn bay_create(&self, _bay: BayId, _image: ImageId, _from: &WorkspaceFrom, _disk_mib: Option<u64>) -> Result<BayDisk> { unreachable!() }
    pub fn bay_disk(&self, _bay: BayId) -> BayDisk { unreachable!() }
    pub fn bay_replace_root(&self, _bay: BayId, _image: ImageId) -> Result<()> { unreachable!() }
    /// Removes everything of the bay; with `keep_workspace` moves the workspace aside and returns where.
    pub fn bay_remove(&self, _bay: BayId, _keep_workspace: Option<&str>) -> Result<Option<PathBuf>> { unreachable!() }
    pub fn bay_list(&self) -> Result<Vec<BayId>> { unreachable!() }
    pub fn bay_usage(&self, _bay: BayId) -> Result<BayUsage> { unreachable!() }

    pub fn repo_list(&self) -> Result<Vec<RepoView>> { unreachable!() }
    /// The repo of this location, made (empty) when unknown.
    pub fn repo_for(&self, _location: &str) -> Result<RepoId> { unreachable!() }
    pub fn repo_view(&self, _repo: RepoId) -> Result<RepoView> { unreachable!() }
    /// Fetches everything from the repo's location (a URL).
    pub fn repo_fetch(&self, _repo: RepoId, _report: Report<'_>) -> Result<()> { unreachable!() }
    /// Takes in a git bundle.
    pub fn repo_unbundle(&self, _repo: RepoId, _bundle: &mut dyn Read) -> Result<()> { unreachable!() }
    pub fn repo_has_commit(&self, _repo: RepoId, _commit: &str) -> Result<bool> { unreachable!() }
    /// Tips the cache has, newest first, at most 64.
    pub fn repo_tips(&self, _repo: RepoId) -> Result<Vec<String>> { unreachable!() }
    pub fn repo_resolve(&self, _repo: RepoId, _reference: Option<&str>) -> Result<Resolved> { unreachable!() }
    /// Makes the read-only checkout that workspaces are snapshots of; nothing to do when it is there.
    pub fn repo_checkout(&self, _repo: RepoId, _commit: &str, _branch: Option<&str>, _report: Report<'_>) -> Result<()> { unreachable!() }
    pub fn repo_remove(&self, _repo: RepoId) -> Result<()> { unreachable!() }
}
