//! Fetches from a remote and imports of a caller's bundle.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read, Write};
use std::path::{Path, PathBuf};

use bay_git::{Git, GitError, LONG_SILENCE, STRICT, Said, failed, is_object_id, is_ref_name};
use bay_sys::btrfs;
use bay_types::RepoId;
use bay_types::progress::{Progress, Report};
use jiff::Timestamp;

use super::Meta;
use super::location::{Location, Transport};
use crate::error::{Doing, PoolError, Result, one_line};
use crate::files::{make_private_dir, write_json};
use crate::pool::{CHECK_SPACE_EVERY, Pool};
use crate::subvolume::entries;

/// Largest bundle.
pub const MAX_BUNDLE_BYTES: u64 = 64 * 1024 * 1024 * 1024;
/// Longest line of a bundle's header: an id, a space and the name of a ref.
const MAX_HEADER_LINE: u64 = 64 * 1024;
/// With more packs, git and new checkouts become slow, so a change of the repository ends with merging them.
const MAX_PACKS: usize = 40;

impl Pool {
    /// Makes the bare repository if it is missing.
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

    /// Fetches the branches and tags from the repository's location. Refuses a location that is a directory of this
    /// host.
    pub fn repo_fetch(&self, repo: RepoId, report: Report<'_>) -> Result<()> {
        self.check_writable()?;
        let _lock = self.repo_lock(repo)?;
        let meta = self.repo_meta(repo)?;
        let location = Location::parse(&meta.location)?;
        if location.is_local() {
            return Err(PoolError::RepoLocal { location: meta.location });
        }
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
        self.reach(&mut git, &location);
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

    /// Lets a git run connect to the location, with the daemon's proxy settings and certificates.
    fn reach<'a>(&'a self, git: &mut Git<'a>, location: &Location) {
        git.transport = Some(location.transport().name());
        git.variables = &self.inner.network.variables;
        git.read.extend_from_slice(&self.inner.network.files);
    }

    /// Lists the refs of the remote. This also shows whether it exists, is readable, and has commits.
    fn remote_refs(&self, location: &Location, report: Report<'_>) -> Result<RemoteRefs> {
        let mut git = Git::new(
            self.git_home(),
            &["ls-remote", "--symref", "--", location.as_str(), "HEAD", "refs/heads/*", "refs/tags/*"],
        );
        self.reach(&mut git, location);
        let said = git.run(report)?;
        if !said.status.success() {
            return Err(fetch_failure(location, &said));
        }
        let text = String::from_utf8_lossy(&said.output);
        let remote = RemoteRefs::parse(&text);
        if remote.any {
            Ok(remote)
        } else {
            Err(PoolError::RepoEmpty { location: location.as_str().to_owned() })
        }
    }

    fn repo_set_head(&self, repo: RepoId, location: &str, branch: &str) -> Result<()> {
        let name = format!("refs/heads/{branch}");
        self.repo_run(repo, &["symbolic-ref", "HEAD", &name]).output(location)?;
        Ok(())
    }

    /// Packs refs into one file, and merges packs.
    fn repo_tidy(&self, repo: RepoId, location: &str) -> Result<()> {
        self.repo_run(repo, &["pack-refs", "--all", "--prune"]).output(location)?;
        let packs = entries(&self.repo_git(repo).join("objects/pack"))?;
        if packs.iter().filter(|path| path.extension() == Some(OsStr::new("pack"))).count() > MAX_PACKS {
            // No object is ever removed: a bay may come from a commit that no branch has any more.
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

    /// Imports a git bundle: its branches and tags under their names, and every tip under `refs/bay/`, so that a
    /// pushed commit stays.
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
        // Git before 2.46 does not check the objects of a bundle that it fetches, so the pack is imported and
        // checked first. The fetch then finds every object present, checks that none is missing, and sets the refs.
        let mut git = self.repo_run(repo, &["index-pack", "-v", "--stdin", "--fix-thin", STRICT]);
        git.input = Some(Box::new(pack_in_bundle(&file.path).doing(|| format!("read {path}"))?));
        let may_go_on = || self.room_left();
        git.may_go_on = Some(&may_go_on);
        let taken = |said: &Said| match failed(&meta.location, said) {
            _ if said.status.success() => Ok(()),
            GitError::Failed { why, .. } => Err(refuse(why)),
            other => Err(other.into()),
        };
        taken(&git.run(&mut |_| {})?)?;
        let mut git = self.repo_run(
            repo,
            &["fetch", "--progress", "--force", "--no-tags", "--no-write-fetch-head", "--stdin", "--", &path],
        );
        git.transport = Some(Transport::File.name());
        git.read.push(file.path.clone());
        git.input = Some(Box::new(Cursor::new(heads.refspecs())));
        git.may_go_on = Some(&may_go_on);
        taken(&git.run(&mut |_| {})?)?;
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
}

/// A file that is removed when this is dropped.
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

/// The output of `git ls-remote --symref`.
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
        // If HEAD names no branch: a usual name, or any branch.
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

    /// The branch of the bundle's HEAD.
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

/// The pack of a bundle: everything after the empty line that ends its header.
fn pack_in_bundle(path: &Path) -> std::io::Result<impl Read + Send + use<>> {
    let mut file = BufReader::new(File::open(path)?);
    let mut line = Vec::new();
    // With an endless header there is no pack, and git refuses the bundle.
    while file.by_ref().take(MAX_HEADER_LINE).read_until(b'\n', &mut line)? > 0 && line != b"\n" {
        line.clear();
    }
    Ok(file)
}

/// Classifies a failed fetch by the messages of git, ssh and well-known servers.
fn fetch_failure(location: &Location, said: &Said) -> PoolError {
    const ASKS: &[&str] = &[
        "could not read Username",
        "could not read Password",
        "terminal prompts disabled",
        "Authentication failed",
        "Permission denied (",
        "Host key verification failed",
        "returned error: 401",
        "returned error: 403",
        "ccess denied",
    ];
    const ABSENT: &[&str] = &[
        "repository not exported",
        "epository not found",
        "' not found",
        "does not appear to be a git repository",
        "could not be found",
        "returned error: 404",
    ];
    let says = |words: &[&str]| words.iter().any(|word| said.messages.contains(word));
    match failed(location.as_str(), said) {
        // The git protocol has no login: a denied repository does not exist, or is not public.
        GitError::Failed { location: text, why } if location.transport() != Transport::Git && says(ASKS) => {
            PoolError::RepoAuth { location: text, why }
        }
        GitError::Failed { location, why } if says(ABSENT) => PoolError::RepoAbsent { location, why },
        GitError::Failed { location, why } => PoolError::RepoFetch { location, why },
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_branch_is_what_head_names_or_the_usual_one() {
        let (a, b) = ("a".repeat(40), "b".repeat(40));
        let all =
            format!("ref: refs/heads/dev\tHEAD\n{a}\tHEAD\n{a}\trefs/heads/dev\n{b}\trefs/heads/main\n");
        assert_eq!(RemoteRefs::parse(&all).head.as_deref(), Some("dev"));
        let detached = format!("{a}\tHEAD\n{a}\trefs/heads/dev\n{b}\trefs/heads/main\n");
        assert_eq!(RemoteRefs::parse(&detached).head.as_deref(), Some("main"));
        assert!(!RemoteRefs::parse("").any);
        assert!(RemoteRefs::parse(&format!("{}\trefs/heads/x\n", "c".repeat(64))).sha256);
    }

    #[test]
    fn a_bundles_tips_become_refs_once_each() {
        let (a, b) = ("a".repeat(40), "b".repeat(40));
        let heads =
            BundleHeads::parse(&format!("{a} refs/heads/main\n{a} HEAD\n{b} refs/x\n{b} -bad\nnot one\n"));
        assert_eq!(
            heads.refspecs(),
            format!(
                "+refs/heads/main:refs/bay/{a}\n+refs/heads/main:refs/heads/main\n+refs/x:refs/bay/{b}\n"
            )
        );
        assert_eq!(heads.head_branch(), Some("main"));
    }
}
