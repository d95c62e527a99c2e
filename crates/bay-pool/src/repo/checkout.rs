//! Checkouts: complete clones, cached as read-only subvolumes, one per used commit and branch.
//!
//! A checkout has its own `.git` with its own objects. The pack files share their blocks with the cache (reflinks),
//! so nothing is copied. Git writes out the first checkout; every later one begins as a snapshot of an earlier one,
//! and only the differing files are written. Snapshots keep inode numbers and times, so the index stays valid in
//! every workspace made from it: `git status` there compares times and reads no files.
//!
//! No filter, hook or submodule runs, because nothing configures one. Large-file pointers stay pointers.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bay_git::{Git, LONG_SILENCE, is_object_id, is_ref_name};
use bay_sys::btrfs;
use bay_text::hex;
use bay_types::RepoId;
use bay_types::progress::{Progress, Report};
use rustix::fs::{Timespec, Timestamps};
use sha2::{Digest, Sha256};

use super::refs::Refs;
use crate::error::{Doing, PoolError, Result, one_line};
use crate::files::sync_dir;
use crate::pool::Pool;
use crate::subvolume::{self, entries, remove_all};

const WORKSPACE_MODE: u32 = 0o755;
/// Most checkouts per repository. A further one replaces the oldest; bays made from that are not affected.
const MAX_CHECKOUTS: usize = 32;
/// If writing the files took longer than this, they are so many that waiting for the clock pays off (see `settle`).
const LONG_WRITE: Duration = Duration::from_millis(250);

impl Pool {
    fn checkouts_dir(&self, repo: RepoId) -> PathBuf {
        self.repo_dir(repo).join("checkouts")
    }

    /// Complete checkouts, oldest first.
    pub(crate) fn repo_checkouts(&self, repo: RepoId) -> Result<Vec<PathBuf>> {
        let dir = self.checkouts_dir(repo);
        if !dir.exists() {
            return Ok(Vec::new());
        }
        let mut found: Vec<(u64, PathBuf)> = entries(&dir)?
            .into_iter()
            .filter(|path| !path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")))
            .filter_map(|path| Some((subvolume::info(&path).ok()?.id, path)))
            .collect();
        found.sort();
        Ok(found.into_iter().map(|(_, path)| path).collect())
    }

    fn checkout_path(&self, repo: RepoId, commit: &str, branch: Option<&str>) -> Result<PathBuf> {
        let refuse = |what: String, why: &str| Err(PoolError::Invalid { what, why: why.to_owned() });
        if !is_object_id(commit) {
            return refuse(format!("the commit {:?}", one_line(commit)), "it must be a full commit id");
        }
        let key = match branch {
            None => commit.to_owned(),
            Some(branch) if is_ref_name(branch) => {
                format!("{commit}-{}", &hex::encode(Sha256::digest(branch))[..16])
            }
            Some(branch) => {
                return refuse(format!("the branch name {:?}", one_line(branch)), "git does not allow it");
            }
        };
        Ok(self.checkouts_dir(repo).join(key))
    }

    /// The checkout for a new workspace, which must exist.
    pub(crate) fn repo_checkout_ready(
        &self,
        repo: RepoId,
        commit: &str,
        branch: Option<&str>,
    ) -> Result<PathBuf> {
        let path = self.checkout_path(repo, commit, branch)?;
        if subvolume::exists(&path) {
            return Ok(path);
        }
        let location = self.repo_meta(repo)?.location;
        Err(PoolError::RefNotFound { location, reference: commit.to_owned() })
    }

    /// Makes the read-only checkout that workspaces are snapshots of, if it is missing.
    pub fn repo_checkout(
        &self,
        repo: RepoId,
        commit: &str,
        branch: Option<&str>,
        report: Report<'_>,
    ) -> Result<()> {
        let path = self.checkout_path(repo, commit, branch)?;
        if subvolume::exists(&path) {
            return Ok(());
        }
        self.check_writable()?;
        let _lock = self.repo_lock(repo)?;
        if subvolume::exists(&path) {
            return Ok(());
        }
        let location = self.repo_meta(repo)?.location;
        if !self.repo_has_commit(repo, commit)? {
            return Err(PoolError::RefNotFound { location, reference: commit.to_owned() });
        }
        if !self.room_left() {
            return Err(PoolError::Full {
                doing: format!("check out {location}"),
                source: rustix::io::Errno::NOSPC.into(),
            });
        }
        report(Progress { stage: "checking out files".to_owned(), ..Progress::default() });
        let mut name = OsString::from(".tmp-");
        name.push(path.file_name().unwrap_or_default());
        let tmp = path.with_file_name(name);
        remove_all(&tmp)?;
        let earlier = self.repo_checkouts(repo)?;
        match earlier.last() {
            Some(earlier) => subvolume::snapshot(earlier, &tmp, None)?,
            None => subvolume::create(&tmp, WORKSPACE_MODE, None)?,
        }
        let clone = Clone { pool: self, repo, location: &location, commit, branch, tree: &tmp };
        let made = clone.make(report);
        if made.is_err()
            && let Err(error) = remove_all(&tmp)
        {
            tracing::warn!(error = %bay_types::error::chain(&error), "a failed checkout stays until the next sweep");
        }
        made?;
        std::fs::rename(&tmp, &path).doing(|| "name the checkout".to_owned())?;
        sync_dir(&self.checkouts_dir(repo))?;
        for old in earlier.iter().take((earlier.len() + 1).saturating_sub(MAX_CHECKOUTS)) {
            self.checkout_drop(old)?;
        }
        Ok(())
    }

    /// A read-only subvolume can be renamed only within its directory. So it is first hidden there, then destroyed.
    fn checkout_drop(&self, path: &Path) -> Result<()> {
        let aside = path.with_file_name(format!(".trash-{}", RepoId::generate()));
        let held = self.beginnings_part_from(&[path.to_owned()])?;
        std::fs::rename(path, &aside).doing(|| format!("remove {}", path.display()))?;
        drop(held);
        remove_all(&aside)
    }
}

/// A clone being made in `tree`.
struct Clone<'a> {
    pool: &'a Pool,
    repo: RepoId,
    location: &'a str,
    commit: &'a str,
    branch: Option<&'a str>,
    tree: &'a Path,
}

impl Clone<'_> {
    fn make(&self, report: Report<'_>) -> Result<()> {
        let refs = self.refs()?;
        let git = self.tree.join(".git");
        for dir in ["", "objects", "objects/info", "objects/pack", "refs", "refs/heads", "refs/tags", "info"]
        {
            match std::fs::create_dir(git.join(dir)) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(error).doing(|| format!("make {}", git.join(dir).display()));
                }
                _ => {}
            }
        }
        share_objects(&self.pool.repo_git(self.repo).join("objects"), &git.join("objects"))
            .doing(|| format!("share the objects of {}", self.location))?;
        self.write(&git, "config", &self.config())?;
        self.write(&git, "packed-refs", &refs.packed_for_clone(self.branch, self.commit))?;
        let head = match self.branch {
            Some(branch) => format!("ref: refs/heads/{branch}\n"),
            None => format!("{}\n", self.commit),
        };
        self.write(&git, "HEAD", &head)?;
        self.write_remote_head(&git, &refs)?;
        let began = Instant::now();
        self.write_files(&git, report)?;
        if began.elapsed() > LONG_WRITE {
            settle(&git.join("index"))?;
        }
        subvolume::seal(self.tree)?;
        btrfs::sync(self.pool.top()?).doing(|| "sync the pool".to_owned())
    }

    /// The cache's refs, packed into one file, which includes the targets of tags.
    fn refs(&self) -> Result<Refs> {
        let read = || self.pool.repo_refs(self.repo).map(Option::unwrap_or_default);
        let refs = read()?;
        if !refs.loose {
            return Ok(refs);
        }
        self.pool.repo_run(self.repo, &["pack-refs", "--all", "--prune"]).output(self.location)?;
        read()
    }

    fn write(&self, git: &Path, name: &str, contents: &str) -> Result<()> {
        let path = git.join(name);
        std::fs::write(&path, contents).doing(|| format!("write {}", path.display()))
    }

    /// The settings that `git clone` would write.
    fn config(&self) -> String {
        let sha256 = self.commit.len() == 64;
        let mut text = format!(
            "[core]\n\trepositoryformatversion = {}\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n",
            u8::from(sha256)
        );
        if sha256 {
            text.push_str("[extensions]\n\tobjectformat = sha256\n");
        }
        text.push_str(&format!(
            "[remote \"origin\"]\n\turl = {}\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n",
            quoted(self.location)
        ));
        if let Some(branch) = self.branch {
            text.push_str(&format!(
                "[branch {}]\n\tremote = origin\n\tmerge = {}\n",
                quoted(branch),
                quoted(&format!("refs/heads/{branch}"))
            ));
        }
        text
    }

    fn write_remote_head(&self, git: &Path, refs: &Refs) -> Result<()> {
        let Some(head) = refs.head.as_ref().filter(|head| refs.branch(head).is_some()) else { return Ok(()) };
        let dir = git.join("refs/remotes/origin");
        std::fs::create_dir_all(&dir).doing(|| format!("make {}", dir.display()))?;
        self.write(&dir, "HEAD", &format!("ref: refs/remotes/origin/{head}\n"))
    }

    /// Sets the working tree and the index to the commit.
    fn write_files(&self, git: &Path, report: Report<'_>) -> Result<()> {
        let mut run = Git::new(
            self.pool.git_home(),
            &["read-tree", "--reset", "-u", "-v", "--no-recurse-submodules", self.commit],
        );
        run.repository = Some(git.to_owned());
        run.work_tree = Some(self.tree.to_owned());
        run.write = vec![self.tree.to_owned()];
        run.sha256 = self.commit.len() == 64;
        let may_go_on = || self.pool.room_left();
        run.may_go_on = Some(&may_go_on);
        // Git reports nothing while it writes large files.
        run.patience = Some(LONG_SILENCE);
        let said = run.run(report)?;
        if said.status.success() { Ok(()) } else { Err(bay_git::failed(self.location, &said).into()) }
    }
}

/// Quotes a value for a git settings file.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Shares the cache's object files with a clone, and removes those from the clone that the cache no longer has (git
/// merged them into others).
fn share_objects(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut wanted = BTreeSet::new();
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let name = entry.file_name();
        let (source, target) = (entry.path(), to.join(&name));
        if kind.is_dir() {
            match std::fs::create_dir(&target) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            share_objects(&source, &target)?;
        } else if kind.is_file() && !name.as_encoded_bytes().starts_with(b"tmp_") {
            // An object file never changes under its name; the few index files may.
            let fixed =
                target.parent().is_some_and(|dir| dir.ends_with("pack")) && name != "multi-pack-index";
            if !(fixed && target.exists()) {
                share_file(&source, &target)?;
            }
            wanted.insert(name);
        }
    }
    for entry in std::fs::read_dir(to)? {
        let entry = entry?;
        if entry.file_type()?.is_file() && !wanted.contains(&entry.file_name()) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn share_file(source: &Path, target: &Path) -> std::io::Result<()> {
    let from = File::open(source)?;
    match std::fs::remove_file(target) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let to = File::create_new(target)?;
    rustix::fs::ioctl_ficlone(&to, &from)?;
    to.set_permissions(from.metadata()?.permissions())
}

/// Git trusts a file's times only if the file is older than the index by whole seconds: the first `git status`
/// reads a file again that was written in the same second. After a long write, the index is dated to the next
/// second and this waits for that second, so that no later change falls into a second that the index covers.
fn settle(index: &Path) -> Result<()> {
    let doing = || format!("settle {}", index.display());
    let file = match File::open(index) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.doing(doing)?,
    };
    let now = || jiff::Timestamp::now().as_millisecond();
    let next = now() / 1000 + 1;
    let stamp = Timespec { tv_sec: next, tv_nsec: 0 };
    rustix::fs::futimens(&file, &Timestamps { last_access: stamp, last_modification: stamp }).doing(doing)?;
    let (clock, never) = (Mutex::new(()), Condvar::new());
    let mut waiting = clock.lock().unwrap_or_else(PoisonError::into_inner);
    while let Ok(left @ 1..=1000) = u64::try_from(next * 1000 - now()) {
        waiting = never
            .wait_timeout(waiting, Duration::from_millis(left))
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
    drop(waiting);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_in_a_settings_file_cannot_start_another_setting() {
        assert_eq!(quoted("a\"b\\c"), "\"a\\\"b\\\\c\"");
        assert_eq!(quoted("x\n[core]\x01"), "\"x\\n[core]\"");
    }
}
