//! Cached repositories: fetched once, shared by all bays of a daemon, never written by an agent.
//!
//! ```text
//!  repos/<id>/meta.json            location without credentials, when it was last synced
//!            /git/                 bare; branches and tags as the source has them, pushed commits in refs/bay/
//!            /checkouts/<key>      read-only clones that workspaces are snapshots of
//! ```
//!
//! Each change of a repository holds the lock on its directory. Everything is made under another name and renamed
//! into place. The next sweep removes leftovers of killed work (`.tmp-…`, git's own lock files and half-received
//! packs).

use std::fs::File;
use std::path::{Path, PathBuf};

use bay_git::{Git, failed, is_object_id, is_ref_name};
use bay_types::RepoId;
use bay_types::repo::RepoView;
use jiff::Timestamp;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Doing, PoolError, Result, one_line};
use crate::files::{make_private_dir, read_json, retry, sync_dir, write_json};
use crate::pool::Pool;
use crate::subvolume::{self, entries, open_dir, remove_all};

mod checkout;
pub(crate) mod fetch;
mod location;
mod refs;

pub use fetch::MAX_BUNDLE_BYTES;
use location::Location;
use refs::Refs;

/// Most tips that a caller gets for leaving out what the cache has.
const MAX_TIPS: usize = 64;

/// A resolved ref of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    pub commit: String,
    /// Set if the ref is a branch, or the default branch.
    pub branch: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Meta {
    id: RepoId,
    location: String,
    synced_at: Timestamp,
}

impl Pool {
    fn repo_dir(&self, repo: RepoId) -> PathBuf {
        self.corner("repos").join(repo.to_string())
    }

    fn repo_git(&self, repo: RepoId) -> PathBuf {
        self.repo_dir(repo).join("git")
    }

    fn repo_meta(&self, repo: RepoId) -> Result<Meta> {
        read_json(&self.repo_dir(repo).join("meta.json"))?
            .ok_or_else(|| PoolError::RepoNotFound { repo: repo.to_string() })
    }

    fn repo_metas(&self) -> Result<Vec<Meta>> {
        let mut metas = Vec::new();
        for path in entries(&self.corner("repos"))? {
            match read_json::<Meta>(&path.join("meta.json")) {
                Ok(Some(meta)) => metas.push(meta),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(error = %bay_types::error::chain(&error), "a repository is left out");
                }
            }
        }
        Ok(metas)
    }

    /// One change at a time per repository.
    pub(crate) fn repo_lock(&self, repo: RepoId) -> Result<File> {
        let dir = self.repo_open(repo)?;
        retry(|| rustix::fs::flock(&dir, FlockOperation::LockExclusive))
            .doing(|| format!("lock the repository {repo}"))?;
        // The previous holder may have removed the repository.
        self.repo_meta(repo)?;
        Ok(dir)
    }

    fn repo_open(&self, repo: RepoId) -> Result<File> {
        match open_dir(&self.repo_dir(repo)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(PoolError::RepoNotFound { repo: repo.to_string() })
            }
            other => other.doing(|| format!("open the repository {repo}")),
        }
    }

    /// The repository of this location; a new, empty one if unknown.
    pub fn repo_for(&self, location: &str) -> Result<RepoId> {
        let location = Location::parse(location)?;
        let _making = self.inner.repo_making.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(meta) = self.repo_metas()?.into_iter().find(|meta| meta.location == location.as_str()) {
            return Ok(meta.id);
        }
        self.check_writable()?;
        let id = RepoId::generate();
        let meta = Meta { id, location: location.as_str().to_owned(), synced_at: Timestamp::UNIX_EPOCH };
        let tmp = self.tmp().join(id.to_string());
        make_private_dir(&tmp)?;
        make_private_dir(&tmp.join("checkouts"))?;
        write_json(&tmp.join("meta.json"), &meta)?;
        std::fs::rename(&tmp, self.repo_dir(id)).doing(|| "name the repository".to_owned())?;
        sync_dir(&self.corner("repos"))?;
        Ok(id)
    }

    pub fn repo_list(&self) -> Result<Vec<RepoView>> {
        self.repo_metas()?.into_iter().map(|meta| self.repo_look(meta)).collect()
    }

    pub fn repo_view(&self, repo: RepoId) -> Result<RepoView> {
        self.repo_look(self.repo_meta(repo)?)
    }

    fn repo_look(&self, meta: Meta) -> Result<RepoView> {
        let checkouts = self.repo_checkouts(meta.id)?;
        let parents: Vec<_> =
            checkouts.iter().filter_map(|path| Some(subvolume::info(path).ok()?.uuid)).collect();
        Ok(RepoView {
            id: meta.id,
            location: meta.location,
            synced_at: meta.synced_at,
            bytes: bytes_below(&self.repo_git(meta.id), 0),
            checkouts: checkouts.len() as u64,
            bays: self.bays_snapshotting(&[self.own_corner()], "workspace", &parents)?,
        })
    }

    /// A git run in this repository that may change it.
    fn repo_run<'a>(&self, repo: RepoId, arguments: &[&'a str]) -> Git<'a> {
        let directory = self.repo_git(repo);
        let mut git = Git::new(self.git_home(), arguments);
        git.write = vec![directory.clone()];
        git.repository = Some(directory);
        git
    }

    /// A git run in this repository that only reads.
    fn repo_ask<'a>(&self, repo: RepoId, arguments: &[&'a str]) -> Git<'a> {
        let mut git = self.repo_run(repo, arguments);
        git.read = std::mem::take(&mut git.write);
        git
    }

    pub fn repo_has_commit(&self, repo: RepoId, commit: &str) -> Result<bool> {
        let meta = self.repo_meta(repo)?;
        let Some(refs) = self.repo_refs(repo)? else { return Ok(false) };
        if !is_object_id(commit) {
            return Ok(false);
        }
        if refs.has_tip(commit) {
            return Ok(true);
        }
        let name = format!("{commit}^{{commit}}");
        let said = self.repo_ask(repo, &["cat-file", "-e", &name]).run(&mut |_| {})?;
        match said.status.code() {
            Some(0) => Ok(true),
            Some(1 | 128) => Ok(false),
            _ => Err(failed(&meta.location, &said).into()),
        }
    }

    /// The refs on disk; `None` if nothing was fetched yet.
    fn repo_refs(&self, repo: RepoId) -> Result<Option<Refs>> {
        match Refs::read(&self.repo_git(repo)) {
            Ok(refs) => Ok(Some(refs)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.repo_meta(repo)?;
                Ok(None)
            }
            Err(error) => Err(error).doing(|| format!("read the refs of {repo}")),
        }
    }

    /// Tips in the cache, newest first, at most 64.
    pub fn repo_tips(&self, repo: RepoId) -> Result<Vec<String>> {
        let meta = self.repo_meta(repo)?;
        if self.repo_refs(repo)?.is_none_or(|refs| refs.all.is_empty()) {
            return Ok(Vec::new());
        }
        // Several refs often have the same commit, so more are listed than needed.
        let count = format!("--count={}", MAX_TIPS * 4);
        let arguments = [
            "for-each-ref",
            "--sort=-committerdate",
            &count,
            "--format=%(objectname)",
            "refs/heads",
            "refs/bay",
        ];
        let output = self.repo_ask(repo, &arguments).output(&meta.location)?;
        let mut tips: Vec<String> = Vec::new();
        for line in String::from_utf8_lossy(&output).lines() {
            if tips.len() < MAX_TIPS && is_object_id(line) && !tips.iter().any(|tip| tip == line) {
                tips.push(line.to_owned());
            }
        }
        Ok(tips)
    }

    /// Resolves a branch, tag or commit; the default branch if none is given.
    pub fn repo_resolve(&self, repo: RepoId, reference: Option<&str>) -> Result<Resolved> {
        let meta = self.repo_meta(repo)?;
        let refs = self.repo_refs(repo)?.unwrap_or_default();
        let Some(reference) = reference else {
            let branch = refs.head.clone().filter(|branch| refs.branch(branch).is_some());
            return match branch.as_ref().and_then(|branch| refs.branch(branch)) {
                Some(commit) => Ok(Resolved { commit: commit.to_owned(), branch }),
                None => Err(PoolError::RepoEmpty { location: meta.location }),
            };
        };
        let unknown =
            || PoolError::RefNotFound { location: meta.location.clone(), reference: one_line(reference) };
        let branch = reference.strip_prefix("refs/heads/").unwrap_or(reference);
        if is_ref_name(branch)
            && let Some(commit) = refs.branch(branch)
        {
            return Ok(Resolved { commit: commit.to_owned(), branch: Some(branch.to_owned()) });
        }
        if refs.all.is_empty()
            || reference.is_empty()
            || reference.starts_with('-')
            || reference.contains('\0')
        {
            return Err(unknown());
        }
        let name = format!("{reference}^{{commit}}");
        let arguments = ["rev-parse", "--verify", "--quiet", "--end-of-options", &name];
        let said = self.repo_ask(repo, &arguments).run(&mut |_| {})?;
        let commit = String::from_utf8_lossy(&said.output).trim().to_owned();
        if said.status.success() && is_object_id(&commit) {
            return Ok(Resolved { commit, branch: None });
        }
        Err(unknown())
    }

    pub fn repo_remove(&self, repo: RepoId) -> Result<()> {
        self.check_writable()?;
        let _lock = self.repo_lock(repo)?;
        let _held = self.beginnings_part_from(&self.repo_checkouts(repo)?)?;
        self.trash().remove(&self.repo_dir(repo))
    }

    /// Removes a repository that nothing was fetched into, unless somebody is using it. Returns whether it did.
    pub fn repo_remove_if_empty(&self, repo: RepoId) -> Result<bool> {
        self.check_writable()?;
        let dir = self.repo_open(repo)?;
        match retry(|| rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive)) {
            Err(Errno::WOULDBLOCK) => return Ok(false),
            other => other.doing(|| format!("lock the repository {repo}"))?,
        }
        if self.repo_refs(repo)?.is_some_and(|refs| !refs.all.is_empty()) {
            return Ok(false);
        }
        self.trash().remove(&self.repo_dir(repo))?;
        Ok(true)
    }

    /// Removes leftovers of killed work: unfinished checkouts, git's lock files, half-received packs.
    pub(crate) fn repo_sweep(&self) -> Result<()> {
        for dir in entries(&self.corner("repos"))? {
            for path in entries(&dir.join("checkouts")).unwrap_or_default() {
                if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
                    remove_all(&path)?;
                }
            }
            let git = dir.join("git");
            for place in [git.clone(), git.join("objects/pack"), git.join("refs/heads"), git.join("refs/bay")]
            {
                for path in entries(&place).unwrap_or_default() {
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    if name.ends_with(".lock") || name.starts_with("tmp_") {
                        remove_all(&path)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Bytes of the files below a directory of the pool.
fn bytes_below(dir: &Path, depth: usize) -> u64 {
    const MAX_DEPTH: usize = 16;
    let Ok(listed) = std::fs::read_dir(dir) else { return 0 };
    listed
        .filter_map(std::result::Result::ok)
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() && depth < MAX_DEPTH => bytes_below(&entry.path(), depth + 1),
            Ok(found) if found.is_file() => found.len(),
            _ => 0,
        })
        .sum()
}
