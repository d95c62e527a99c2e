//! The caller's own repository, read and written as the caller, with the caller's git.
//!
//! Git runs only on a tree that the caller named, is in, or made the bay from. An agent's work reaches it from a
//! clean repository of our own ([`bring_out`]). The tree itself may come from a stranger, so no program that its
//! configuration names is run ([`safe_command`]).

mod author;
pub(crate) mod bring_out;
mod local_branch;
pub(crate) mod push;
mod safe_command;
mod sudo_user;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use bay_client::local;
use bay_types::{ApiError, ErrorCode};
use tokio::io::AsyncWriteExt;

pub(crate) use author::author;
use bay_text::escape::one_line;
pub(crate) use local_branch::Arrived;
use safe_command::{git, git_on_content};

/// Most commits of the cache that a bundle is made against. More would only lengthen the command line.
const MAX_HAVE: usize = 64;

/// A git working tree or bare repository of the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalRepo {
    /// Top of the working tree, or the bare repository itself.
    pub(crate) top: PathBuf,
    pub(crate) bare: bool,
    /// A shallow clone lacks history, so no bundle can be made from it.
    pub(crate) shallow: bool,
    /// `None` if there is no commit yet.
    pub(crate) head: Option<Commit>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(crate) id: String,
    pub(crate) branch: Option<String>,
    /// The full ref, if a ref named the commit.
    pub(crate) reference: Option<String>,
}

/// How a working tree differs from its commit.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Changed or new files, relative to the top. A trailing slash marks a repository within the tree.
    pub(crate) present: Vec<PathBuf>,
    pub(crate) deleted: Vec<PathBuf>,
}

impl Changes {
    /// Paths to delete before the present files are written. They include a directory that was replaced by a file.
    pub(crate) fn deletions(&self) -> Vec<PathBuf> {
        let mut deletions = self.deleted.clone();
        let parents: BTreeSet<&Path> = self
            .deleted
            .iter()
            .flat_map(|path| path.ancestors().skip(1))
            .filter(|p| !p.as_os_str().is_empty())
            .collect();
        deletions.extend(self.present.iter().filter(|path| parents.contains(path.as_path())).cloned());
        deletions
    }
}

fn not_run(error: &io::Error) -> ApiError {
    match error.kind() {
        io::ErrorKind::NotFound => ApiError::new(
            ErrorCode::HostUnfit,
            "git is not installed, and the path is a git repository",
            "install git, for example with `apt install git`",
        ),
        _ => local("running git", error),
    }
}

fn refused(doing: &str, output: &Output) -> ApiError {
    let said = one_line(&String::from_utf8_lossy(&output.stderr));
    let next = if said.contains("dubious ownership") {
        "run the command as the owner (with sudo), or `git config --global --add safe.directory PATH`"
    } else {
        "check the repository with `git status`"
    };
    ApiError::new(ErrorCode::RepoFetch, format!("{doing}: git said: {said}"), next)
}

/// The repository that contains `dir`, or `None`.
pub(crate) async fn discover(dir: &Path) -> Result<Option<LocalRepo>, ApiError> {
    let output = git(dir)
        .args(["rev-parse", "--is-bare-repository", "--is-shallow-repository", "--is-inside-work-tree"])
        .args(["--show-toplevel", "HEAD", "--symbolic-full-name", "HEAD"])
        .output()
        .await;
    let output = match output {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !dir.join(".git").exists() => {
            return Ok(None);
        }
        other => other.map_err(|e| not_run(&e))?,
    };
    let mut lines = output.stdout.split(|b| *b == b'\n').filter(|l| !l.is_empty());
    let (Some(bare), Some(shallow), Some(inside)) = (lines.next(), lines.next(), lines.next()) else {
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("not a git repository") {
            return Ok(None);
        }
        return Err(refused("reading the repository", &output));
    };
    let shallow = shallow == b"true";
    if bare == b"true" {
        return discover_bare(dir, shallow).await.map(Some);
    }
    let (b"true", Some(top)) = (inside, lines.next()) else {
        return Err(bay_client::invalid(
            format!("{} is inside a .git directory", dir.display()),
            "name the working tree",
        ));
    };
    let head = if output.status.success() { commit(lines.next(), lines.next()) } else { None };
    let top = PathBuf::from(OsStr::from_bytes(top));
    if top != dir {
        same_repository(dir, &top).await?;
    }
    Ok(Some(LocalRepo { top, bare: false, shallow, head }))
}

/// The origin of the repository that contains a directory.
pub(crate) async fn upstream(dir: &Path) -> Option<String> {
    discover(dir).await.ok()??.line(&["config", "--get", "remote.origin.url"]).await.ok()?
}

/// Refuses a repository whose configuration (`core.worktree`) names a tree that is not its own. Otherwise the caller's
/// home, for instance, would be copied into the bay.
async fn same_repository(dir: &Path, top: &Path) -> Result<(), ApiError> {
    let mut places = Vec::new();
    for place in [dir, top] {
        let output =
            git(place).args(["rev-parse", "--absolute-git-dir"]).output().await.map_err(|e| not_run(&e))?;
        places.push(output.status.success().then_some(output.stdout));
    }
    if places[0].is_some() && places[0] == places[1] {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::PathRefused,
        format!(
            "the repository at {} says that its working tree is {}, which belongs to another or to none",
            dir.display(),
            top.display()
        ),
        "see `git config core.worktree`; name the directory itself if that is what you want",
    ))
}

async fn discover_bare(dir: &Path, shallow: bool) -> Result<LocalRepo, ApiError> {
    let output = git(dir)
        .args(["rev-parse", "--absolute-git-dir", "HEAD", "--symbolic-full-name", "HEAD"])
        .output()
        .await
        .map_err(|e| not_run(&e))?;
    let mut lines = output.stdout.split(|b| *b == b'\n').filter(|l| !l.is_empty());
    let top = lines.next().ok_or_else(|| refused("reading the repository", &output))?;
    let top = PathBuf::from(OsStr::from_bytes(top));
    let head = if output.status.success() { commit(lines.next(), lines.next()) } else { None };
    Ok(LocalRepo { top, bare: true, shallow, head })
}

fn commit(id: Option<&[u8]>, reference: Option<&[u8]>) -> Option<Commit> {
    let id = String::from_utf8(id?.to_vec()).ok()?;
    let reference =
        reference.and_then(|r| String::from_utf8(r.to_vec()).ok()).filter(|r| r.starts_with("refs/"));
    let branch = reference.as_deref().and_then(|r| r.strip_prefix("refs/heads/")).map(str::to_owned);
    Some(Commit { id, branch, reference })
}

impl LocalRepo {
    /// The commit of a ref in this repository.
    pub(crate) async fn resolve(&self, reference: &str) -> Result<Commit, ApiError> {
        let missing = || {
            ApiError::new(
                ErrorCode::RefNotFound,
                format!("{reference:?} is not a branch, tag or commit of {}", self.top.display()),
                "`git branch -a` and `git tag` list all of them",
            )
        };
        let peeled = format!("{reference}^{{commit}}");
        let id = self.line(&["rev-parse", "--verify", "--quiet", "--end-of-options", &peeled]).await?;
        let id = id.ok_or_else(missing)?;
        let name_it =
            ["rev-parse", "--symbolic-full-name", "--verify", "--quiet", "--end-of-options", reference];
        let full = self.line(&name_it).await?.filter(|name| name.starts_with("refs/"));
        if full.is_none() {
            let contains = format!("--contains={id}");
            if self.line(&["for-each-ref", "--count=1", "--format=%(refname)", &contains]).await?.is_none() {
                return Err(ApiError::new(
                    ErrorCode::RefNotFound,
                    format!("commit {id} is on no branch or tag of {}", self.top.display()),
                    format!("make a branch for it: `git branch NAME {id}`"),
                ));
            }
        }
        commit(Some(id.as_bytes()), full.as_deref().map(str::as_bytes)).ok_or_else(missing)
    }

    /// Whether it has the commit.
    pub(crate) async fn has(&self, commit: &str) -> bool {
        let commit = format!("{commit}^{{commit}}");
        let asked = git(&self.top).args(["cat-file", "-e", "--end-of-options", &commit]).output().await;
        asked.is_ok_and(|output| output.status.success())
    }

    /// First line of a git command's output. `None` if the command failed or printed nothing.
    async fn line(&self, arguments: &[&str]) -> Result<Option<String>, ApiError> {
        let output = git(&self.top).args(arguments).output().await.map_err(|e| not_run(&e))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().next().map(str::to_owned).filter(|l| output.status.success() && !l.is_empty()))
    }

    /// Starts to write a bundle with `commit` and everything that branches and tags reach, without what `have` covers.
    pub(crate) async fn bundle(
        &self,
        commit: &Commit,
        have: &[String],
    ) -> Result<tokio::process::Child, ApiError> {
        let known = self.known(have).await?;
        let mut command = git(&self.top);
        command.args(["bundle", "create", "--quiet", "-", "HEAD", "--branches", "--tags"]);
        match &commit.reference {
            Some(reference) => {
                command.arg(reference);
            }
            None => {
                command.arg("--all");
            }
        }
        command.args(known.iter().map(|id| format!("^{id}")));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|e| not_run(&e))
    }

    /// The commits that this repository also has.
    async fn known(&self, ids: &[String]) -> Result<Vec<String>, ApiError> {
        let ids: Vec<&String> =
            ids.iter().filter(|id| id.bytes().all(|b| b.is_ascii_hexdigit())).take(MAX_HAVE).collect();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut check = git(&self.top)
            .args(["cat-file", "--batch-check=%(objecttype) %(objectname)"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| not_run(&e))?;
        if let Some(mut questions) = check.stdin.take() {
            let text: String = ids.iter().map(|id| format!("{id}\n")).collect();
            questions.write_all(text.as_bytes()).await.map_err(|e| local("asking git", &e))?;
        }
        let output = check.wait_with_output().await.map_err(|e| not_run(&e))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| line.strip_prefix("commit ")).map(str::to_owned).collect())
    }

    /// The files that differ from the commit. Ignored files are not included.
    pub(crate) async fn changes(&self) -> Result<Changes, ApiError> {
        let output = git_on_content(&self.top)
            .await?
            .args(["status", "--porcelain=v2", "-z", "--untracked-files=all", "--no-renames"])
            .arg("--ignore-submodules=all")
            .output()
            .await
            .map_err(|e| not_run(&e))?;
        if !output.status.success() {
            return Err(refused("reading the uncommitted changes", &output));
        }
        let top = self.top.clone();
        Ok(sort_changes(&status_paths(&output.stdout), |path| {
            top.join(path).symlink_metadata().is_ok_and(|m| !m.is_dir())
        }))
    }

    /// Paths of submodules that are checked out here.
    pub(crate) async fn submodules(&self) -> Result<Vec<PathBuf>, ApiError> {
        if self.bare || !self.top.join(".gitmodules").exists() {
            return Ok(Vec::new());
        }
        let output = git(&self.top)
            .args(["config", "--file", ".gitmodules", "-z", "--get-regexp", r"^submodule\..*\.path$"])
            .output()
            .await
            .map_err(|e| not_run(&e))?;
        let paths = output.stdout.split(|b| *b == 0).filter_map(|entry| {
            let value = entry.splitn(2, |b| *b == b'\n').nth(1)?;
            let path = PathBuf::from(OsStr::from_bytes(value));
            stays_below(&path).then_some(path)
        });
        Ok(paths.filter(|path| self.top.join(path).join(".git").exists()).collect())
    }

    /// Tracked and new files of a submodule, relative to it.
    pub(crate) async fn files_of(&self, submodule: &Path) -> Result<Vec<PathBuf>, ApiError> {
        let output = git(&self.top.join(submodule))
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"])
            .output()
            .await
            .map_err(|e| not_run(&e))?;
        if !output.status.success() {
            return Err(refused("listing a submodule", &output));
        }
        Ok(output.stdout.split(|b| *b == 0).filter(|p| !p.is_empty()).map(to_path).collect())
    }

    /// Whether `.gitattributes` at the top names LFS. Then the commit contains only pointers to some files.
    pub(crate) fn uses_lfs(&self) -> bool {
        std::fs::read_to_string(self.top.join(".gitattributes")).is_ok_and(|text| text.contains("filter=lfs"))
    }
}

fn to_path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes.to_vec()))
}

fn stays_below(path: &Path) -> bool {
    let mut components = path.components();
    components.all(|c| matches!(c, std::path::Component::Normal(_))) && !path.as_os_str().is_empty()
}

/// The paths of `git status --porcelain=v2 -z --no-renames`.
fn status_paths(output: &[u8]) -> Vec<PathBuf> {
    let entries = output.split(|b| *b == 0).filter(|e| !e.is_empty());
    let path_of = |entry: &[u8]| {
        // The kind of line decides how many blank-separated fields precede the path.
        let fields = match entry[0] {
            b'1' => 8,
            b'u' => 10,
            b'?' => 1,
            _ => return None,
        };
        entry.splitn(fields + 1, |b| *b == b' ').nth(fields).map(to_path)
    };
    entries.filter_map(path_of).collect()
}

/// The existence of a path decides, not how git classifies the change: staged, unstaged and conflicted are treated
/// alike.
fn sort_changes(paths: &[PathBuf], is_there: impl Fn(&Path) -> bool) -> Changes {
    let mut changes = Changes::default();
    for path in paths {
        let nested_repository = path.as_os_str().as_bytes().ends_with(b"/");
        if nested_repository || is_there(path) {
            changes.present.push(path.clone());
        } else {
            changes.deleted.push(path.clone());
        }
    }
    changes.present.dedup();
    changes.deleted.dedup();
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_lines_give_their_paths_with_any_characters() {
        let output =
            b"1 .M N... 100644 100644 100644 aa bb a file\n with ?\0? new\0u UU N... 1 2 3 4 a b c both\0\
            ! ignored\0# branch.oid x\0? \xff\0";
        let paths = status_paths(output);
        let expected: Vec<PathBuf> =
            [&b"a file\n with ?"[..], b"new", b"both", b"\xff"].into_iter().map(to_path).collect();
        assert_eq!(paths, expected);
    }

    #[test]
    fn a_path_that_does_not_exist_counts_as_deleted() {
        let paths = ["gone", "here", "nested/"].map(PathBuf::from);
        let changes = sort_changes(&paths, |path| path == Path::new("here"));
        assert_eq!(changes.present, [PathBuf::from("here"), PathBuf::from("nested/")]);
        assert_eq!(changes.deleted, [PathBuf::from("gone")]);
    }

    #[test]
    fn a_directory_that_became_a_file_is_deleted_first() {
        let changes =
            Changes { present: vec!["d".into(), "x".into()], deleted: vec!["d/a".into(), "d/b/c".into()] };
        let expected: Vec<PathBuf> = ["d/a", "d/b/c", "d"].map(PathBuf::from).into();
        assert_eq!(changes.deletions(), expected);
    }

    #[test]
    fn a_submodule_path_cannot_leave_the_tree() {
        assert!(stays_below(Path::new("a/b")));
        for bad in ["../x", "/x", "a/../../x", ""] {
            assert!(!stays_below(Path::new(bad)), "{bad}");
        }
    }
}
