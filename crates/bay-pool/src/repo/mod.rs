//! Repositories: fetched once, shared by all bays of a daemon, never written by an agent.
//!
//! ```text
//!  repos/<id>/meta.json            location without credentials, when it was last synced
//!            /git/                 bare; branches and tags as the source has them, pushed commits in refs/bay/
//!            /checkouts/<key>      read-only clones that workspaces are snapshots of
//! ```
//!
//! Whatever changes a repository holds a lock on its directory. Everything is made aside and renamed into place;
//! leftovers of killed work (`.tmp-…`, git's own lock files and half-received packs) go at the next sweep.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use bay_sys::btrfs;
use bay_types::RepoId;
use bay_types::progress::Progress;
use bay_types::repo::RepoView;
use jiff::Timestamp;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::backing::{Space, make_private_dir, retry, sync_dir};
use crate::error::{Doing, PoolError, Result, one_line};
use crate::pool::{Pool, read_json, write_json};
use crate::subvolume::{self, entries, open_dir, remove_all};
use crate::{Report, Resolved};

mod checkout;
pub(crate) mod git;
mod location;
mod refs;

use git::{Git, LONG_SILENCE, Said, failed};
use location::{Location, Transport};
use refs::{Refs, is_object_id, is_ref_name};

/// Largest bundle taken in.
pub const MAX_BUNDLE_BYTES: u64 = 64 * 1024 * 1024 * 1024;
/// Most tips told to a caller who wants to leave out what the cache has.
const MAX_TIPS: usize = 64;
/// With this many packs git and every new checkout become slow: they are then made into one.
const MAX_PACKS: usize = 40;
/// Free space that fetching leaves to the bays.
const LEAVE_FREE: u64 = 256 * 1024 * 1024;
/// How often an incoming bundle looks at the free space.
const CHECK_SPACE_EVERY: u64 = 64 * 1024 * 1024;

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
    fn repo_lock(&self, repo: RepoId) -> Result<File> {
        let dir = match open_dir(&self.repo_dir(repo)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(PoolError::RepoNotFound { repo: repo.to_string() });
            }
            other => other.doing(|| format!("open the repository {repo}"))?,
        };
        retry(|| rustix::fs::flock(&dir, FlockOperation::LockExclusive))
            .doing(|| format!("lock the repository {repo}"))?;
        Ok(dir)
    }

    /// The repo of this location, made (empty) when unknown.
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
            bays: self.bays_born_of(&[self.own_corner()], "workspace", &parents)?,
        })
    }

    /// A run of git in this repository, allowed to change it.
    fn repo_run<'a>(&self, repo: RepoId, arguments: &[&'a str]) -> Git<'a> {
        let directory = self.repo_git(repo);
        let mut git = Git::new(self.git_home(), arguments);
        git.write = vec![directory.clone()];
        git.repository = Some(directory);
        git
    }

    /// A run of git that only reads.
    fn repo_ask<'a>(&self, repo: RepoId, arguments: &[&'a str]) -> Git<'a> {
        let mut git = self.repo_run(repo, arguments);
        git.read = std::mem::take(&mut git.write);
        git
    }

    /// Is there room to go on, growing the pool where that helps?
    fn room_left(&self) -> bool {
        let _ = self.grow_if_needed();
        Space::of(self.base()).is_ok_and(|space| space.free >= LEAVE_FREE.min(space.total / 10))
    }

    /// The bare repository, made when it is not there yet.
    fn repo_init(&self, repo: RepoId, location: &str, sha256: bool) -> Result<()> {
        let place = self.repo_git(repo);
        if place.exists() {
            return Ok(());
        }
        let tmp = self.tmp().join(format!("init-{}", RepoId::generate()));
        make_private_dir(&tmp)?;
        let mut git = Git::new(self.git_home(), &["init", "--quiet", "--bare", "--template="]);
        git.repository = Some(tmp.clone());
        git.write = vec![tmp.clone()];
        git.sha256 = sha256;
        git.output(location)?;
        std::fs::rename(&tmp, &place).doing(|| format!("name the repository {repo}"))
    }

    /// Fetches everything from the repo's location.
    pub fn repo_fetch(&self, repo: RepoId, report: Report<'_>) -> Result<()> {
        self.check_writable()?;
        let _lock = self.repo_lock(repo)?;
        let meta = self.repo_meta(repo)?;
        let location = Location::parse(&meta.location)?;
        report(Progress { stage: format!("asking {}", location.as_str()), ..Progress::default() });
        let remote = self.remote_refs(&location, report)?;
        self.repo_init(repo, location.as_str(), remote.sha256)?;
        let mut git = self.repo_run(
            repo,
            &[
                "fetch",
                "--progress",
                "--prune",
                "--force",
                "--no-tags",
                "--no-write-fetch-head",
                "--",
                location.as_str(),
                "+refs/heads/*:refs/heads/*",
                "+refs/tags/*:refs/tags/*",
            ],
        );
        git.transport = Some(location.transport());
        git.read.extend(location.local_path());
        let may_go_on = || self.room_left();
        git.may_go_on = Some(&may_go_on);
        let said = git.run(report)?;
        if !said.status.success() {
            return Err(fetch_failure(&location, &said));
        }
        if let Some(head) = &remote.head {
            self.repo_set_head(repo, location.as_str(), head)?;
        }
        self.repo_tidy(repo, location.as_str())?;
        self.repo_synced(meta)
    }

    /// What the other side has: first of all whether it exists, can be read, and holds anything.
    fn remote_refs(&self, location: &Location, report: Report<'_>) -> Result<RemoteRefs> {
        let mut git = Git::new(
            self.git_home(),
            &["ls-remote", "--symref", "--", location.as_str(), "HEAD", "refs/heads/*", "refs/tags/*"],
        );
        git.transport = Some(location.transport());
        if let Some(path) = location.local_path() {
            if !path.exists() {
                return Err(PoolError::RepoFetch {
                    location: location.as_str().to_owned(),
                    why: "there is no such directory".to_owned(),
                });
            }
            git.read.push(path);
        }
        let said = git.run(report)?;
        if !said.status.success() {
            return Err(fetch_failure(location, &said));
        }
        let text = String::from_utf8_lossy(&said.output);
        let remote = RemoteRefs::parse(&text);
        if remote.any { Ok(remote) } else { Err(PoolError::RepoEmpty { location: location.as_str().to_owned() }) }
    }

    fn repo_set_head(&self, repo: RepoId, location: &str, branch: &str) -> Result<()> {
        let name = format!("refs/heads/{branch}");
        self.repo_run(repo, &["symbolic-ref", "HEAD", &name]).output(location).map(drop)
    }

    /// Keeps refs in one file and packs few.
    fn repo_tidy(&self, repo: RepoId, location: &str) -> Result<()> {
        self.repo_run(repo, &["pack-refs", "--all", "--prune"]).output(location)?;
        let packs = entries(&self.repo_git(repo).join("objects/pack"))?;
        if packs.iter().filter(|path| path.extension() == Some(OsStr::new("pack"))).count() > MAX_PACKS {
            // Nothing is ever thrown away here: a bay may have been made from a commit that no branch has any more.
            let mut git = self.repo_run(repo, &["repack", "-a", "-d", "-k", "-q"]);
            git.patience = Some(LONG_SILENCE);
            git.output(location)?;
        }
        Ok(())
    }

    fn repo_synced(&self, meta: Meta) -> Result<()> {
        let path = self.repo_dir(meta.id).join("meta.json");
        let top = self.top()?;
        btrfs::sync(&top).doing(|| "sync the pool".to_owned())?;
        write_json(&path, &Meta { synced_at: Timestamp::now(), ..meta })
    }

    /// Takes in a git bundle: its branches and tags under their names, and every tip under `refs/bay/`, so that a
    /// commit once pushed stays.
    pub fn repo_unbundle(&self, repo: RepoId, bundle: &mut dyn Read) -> Result<()> {
        self.check_writable()?;
        let meta = self.repo_meta(repo)?;
        let file = TemporaryFile { path: self.tmp().join(format!("bundle-{}", RepoId::generate())) };
        self.receive(bundle, &file.path, &meta.location)?;
        let _lock = self.repo_lock(repo)?;
        self.repo_init(repo, &meta.location, is_sha256_bundle(&file.path))?;
        let refuse = |why: String| PoolError::Bundle { location: meta.location.clone(), why };
        let path = file.path.to_string_lossy().into_owned();

        let mut git = self.repo_ask(repo, &["bundle", "list-heads", &path]);
        git.read.push(file.path.clone());
        let said = git.run(&mut |_| {})?;
        if !said.status.success() {
            return Err(refuse(said.why()));
        }
        let heads = BundleHeads::parse(&String::from_utf8_lossy(&said.output));
        if heads.tips.is_empty() {
            return Err(refuse("it holds no commits".to_owned()));
        }
        let mut git = self.repo_run(
            repo,
            &["fetch", "--progress", "--force", "--no-tags", "--no-write-fetch-head", "--stdin", "--", &path],
        );
        git.transport = Some(Transport::File);
        git.read.push(file.path.clone());
        git.input = heads.refspecs().into_bytes();
        let may_go_on = || self.room_left();
        git.may_go_on = Some(&may_go_on);
        let said = git.run(&mut |_| {})?;
        if !said.status.success() {
            return Err(match failed(&meta.location, &said) {
                PoolError::Git { why, .. } => refuse(why),
                other => other,
            });
        }
        if let Some(branch) = heads.head_branch() {
            self.repo_set_head(repo, &meta.location, branch)?;
        }
        self.repo_tidy(repo, &meta.location)?;
        self.repo_synced(meta)
    }

    fn receive(&self, bundle: &mut dyn Read, path: &Path, location: &str) -> Result<()> {
        let doing = || format!("receive the bundle of {location}");
        let mut file = File::create_new(path).doing(doing)?;
        let mut total = 0_u64;
        let mut since = CHECK_SPACE_EVERY;
        let mut buffer = vec![0_u8; 256 * 1024];
        loop {
            let count = match bundle.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(PoolError::Bundle {
                        location: location.to_owned(),
                        why: format!("it did not arrive whole ({})", one_line(error)),
                    });
                }
            };
            total += count as u64;
            since += count as u64;
            if total > MAX_BUNDLE_BYTES {
                return Err(PoolError::Bundle {
                    location: location.to_owned(),
                    why: format!("it is larger than {} GiB", MAX_BUNDLE_BYTES >> 30),
                });
            }
            if since >= CHECK_SPACE_EVERY {
                since = 0;
                if !self.room_left() {
                    return Err(PoolError::Full { doing: doing(), source: rustix::io::Errno::NOSPC.into() });
                }
            }
            file.write_all(&buffer[..count]).doing(doing)?;
        }
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
            _ => Err(failed(&meta.location, &said)),
        }
    }

    /// The refs as they are on disk; `None` while nothing was fetched.
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

    /// Tips the cache has, newest first, at most 64.
    pub fn repo_tips(&self, repo: RepoId) -> Result<Vec<String>> {
        let meta = self.repo_meta(repo)?;
        if self.repo_refs(repo)?.is_none_or(|refs| refs.all.is_empty()) {
            return Ok(Vec::new());
        }
        // Several refs often name one commit, so more are asked for than are told.
        let count = format!("--count={}", MAX_TIPS * 4);
        let arguments =
            ["for-each-ref", "--sort=-committerdate", &count, "--format=%(objectname)", "refs/heads", "refs/bay"];
        let output = self.repo_ask(repo, &arguments).output(&meta.location)?;
        let mut tips: Vec<String> = Vec::new();
        for line in String::from_utf8_lossy(&output).lines() {
            if tips.len() < MAX_TIPS && is_object_id(line) && !tips.iter().any(|tip| tip == line) {
                tips.push(line.to_owned());
            }
        }
        Ok(tips)
    }

    /// What a branch, tag or commit is; the default branch when none is named.
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
        let unknown = || PoolError::RefNotFound {
            location: meta.location.clone(),
            reference: one_line(reference),
        };
        let branch = reference.strip_prefix("refs/heads/").unwrap_or(reference);
        if is_ref_name(branch)
            && let Some(commit) = refs.branch(branch)
        {
            return Ok(Resolved { commit: commit.to_owned(), branch: Some(branch.to_owned()) });
        }
        if refs.all.is_empty() || reference.is_empty() || reference.starts_with('-') || reference.contains('\0') {
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
        self.trash().remove(&self.repo_dir(repo))
    }

    /// What killed work left: unfinished checkouts, git's lock files, half-received packs.
    pub(crate) fn repo_sweep(&self) -> Result<()> {
        for dir in entries(&self.corner("repos"))? {
            for path in entries(&dir.join("checkouts")).unwrap_or_default() {
                if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
                    remove_all(&path)?;
                }
            }
            let git = dir.join("git");
            for place in [git.clone(), git.join("objects/pack"), git.join("refs/heads"), git.join("refs/bay")] {
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

/// A file that goes with its owner.
struct TemporaryFile {
    path: PathBuf,
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %error, "a temporary file stays until the next sweep");
        }
    }
}

/// What `git ls-remote --symref` said.
#[derive(Debug, Default, PartialEq, Eq)]
struct RemoteRefs {
    any: bool,
    /// The default branch.
    head: Option<String>,
    sha256: bool,
}

impl RemoteRefs {
    fn parse(text: &str) -> Self {
        let mut remote = Self::default();
        let mut branches = Vec::new();
        let mut named = None;
        for line in text.lines() {
            let Some((left, name)) = line.split_once('\t') else { continue };
            if let Some(target) = left.strip_prefix("ref: refs/heads/") {
                if name == "HEAD" && is_ref_name(target) {
                    named = Some(target.to_owned());
                }
            } else if is_object_id(left) && name.starts_with("refs/") {
                remote.any = true;
                remote.sha256 = left.len() == 64;
                if let Some(branch) = name.strip_prefix("refs/heads/").filter(|branch| is_ref_name(branch)) {
                    branches.push(branch.to_owned());
                }
            }
        }
        // A HEAD that names no branch: the usual ones, then any.
        let usual = || ["main", "master"].iter().find(|name| branches.iter().any(|b| b == *name));
        remote.head = named
            .filter(|name| branches.contains(name))
            .or_else(|| usual().map(|name| (*name).to_owned()))
            .or_else(|| branches.first().cloned());
        remote
    }
}

/// The tips of a bundle.
#[derive(Debug, Default)]
struct BundleHeads {
    tips: Vec<(String, String)>,
}

impl BundleHeads {
    fn parse(text: &str) -> Self {
        let tips = text
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(object, name)| is_object_id(object) && is_ref_name(name))
            .map(|(object, name)| (object.to_owned(), name.to_owned()))
            .collect();
        Self { tips }
    }

    fn refspecs(&self) -> String {
        let mut text = String::new();
        let mut kept = std::collections::BTreeSet::new();
        for (object, name) in &self.tips {
            if kept.insert(object) {
                text.push_str(&format!("+{name}:refs/bay/{object}\n"));
            }
            if name.starts_with("refs/heads/") || name.starts_with("refs/tags/") {
                text.push_str(&format!("+{name}:{name}\n"));
            }
        }
        text
    }

    /// The branch that the bundle's HEAD is at.
    fn head_branch(&self) -> Option<&str> {
        let head = self.tips.iter().find(|(_, name)| name == "HEAD").map(|(object, _)| object);
        let at = |object: &String| head.is_none_or(|head| head == object);
        self.tips.iter().find_map(|(object, name)| name.strip_prefix("refs/heads/").filter(|_| at(object)))
    }
}

fn is_sha256_bundle(path: &Path) -> bool {
    let mut start = [0_u8; 256];
    let count = File::open(path).and_then(|mut file| file.read(&mut start)).unwrap_or(0);
    String::from_utf8_lossy(&start[..count]).lines().any(|line| line == "@object-format=sha256")
}

fn fetch_failure(location: &Location, said: &Said) -> PoolError {
    const ASKS: &[&str] = &[
        "could not read Username",
        "could not read Password",
        "terminal prompts disabled",
        "Authentication failed",
        "Permission denied",
        "Host key verification failed",
        "returned error: 401",
        "returned error: 403",
        "access denied",
    ];
    match failed(location.as_str(), said) {
        PoolError::Git { location: text, why } => {
            let remote = location.transport() != Transport::File;
            if remote && ASKS.iter().any(|text| said.messages.contains(text)) {
                PoolError::RepoAuth { location: text, why }
            } else {
                PoolError::RepoFetch { location: text, why }
            }
        }
        other => other,
    }
}

/// Bytes of the files below a directory of ours.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_branch_is_what_head_names_or_the_usual_one() {
        let (a, b) = ("a".repeat(40), "b".repeat(40));
        let all = format!("ref: refs/heads/dev\tHEAD\n{a}\tHEAD\n{a}\trefs/heads/dev\n{b}\trefs/heads/main\n");
        assert_eq!(RemoteRefs::parse(&all).head.as_deref(), Some("dev"));
        let detached = format!("{a}\tHEAD\n{a}\trefs/heads/dev\n{b}\trefs/heads/main\n");
        assert_eq!(RemoteRefs::parse(&detached).head.as_deref(), Some("main"));
        assert!(!RemoteRefs::parse("").any);
        assert!(RemoteRefs::parse(&format!("{}\trefs/heads/x\n", "c".repeat(64))).sha256);
    }

    #[test]
    fn a_bundles_tips_become_refs_once_each() {
        let (a, b) = ("a".repeat(40), "b".repeat(40));
        let heads = BundleHeads::parse(&format!("{a} refs/heads/main\n{a} HEAD\n{b} refs/x\n{b} -bad\nnot one\n"));
        assert_eq!(
            heads.refspecs(),
            format!("+refs/heads/main:refs/bay/{a}\n+refs/heads/main:refs/heads/main\n+refs/x:refs/bay/{b}\n")
        );
        assert_eq!(heads.head_branch(), Some("main"));
    }
}
