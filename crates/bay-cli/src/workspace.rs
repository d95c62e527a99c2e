//! Copies a local directory into a new bay: how the workspace begins, and the uncommitted changes on top of it.
//!
//! | the directory is                    | the workspace begins as          | streamed on top                        |
//! |-------------------------------------|----------------------------------|----------------------------------------|
//! | a git tree with commits             | the commit, from the cache       | changed, new and deleted files; files of checked-out submodules. Nothing with `--ref` or `--committed-only` |
//! | a bare repository                   | the commit, from the cache       | nothing                                |
//! | a git tree without commits          | empty                            | every file git does not ignore         |
//! | a shallow clone                     | empty                            | everything, `.git` included            |
//! | any other directory                 | empty                            | everything                             |

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bay_client::{Client, bay_path, invalid, local, transfer};
use bay_text::percent::path_value;
use bay_types::bay::Source;
use bay_types::guest::WORKSPACE;
use bay_types::progress::Progress;
use bay_types::repo::{RepoOffer, RepoOffered, RepoView};
use bay_types::{ApiError, ErrorCode};
use http::Method;
use tokio::io::AsyncReadExt;

use crate::archive::{Packed, Packer, pack};
use crate::git::{Changes, Commit, LocalRepo, discover};
use crate::output::progress::Meter;
use bay_text::escape::one_line;
use bay_text::percent::segment;

/// How deep submodules of submodules are followed, below those of the repository itself.
const MAX_SUBMODULE_DEPTH: usize = 8;

/// How a local directory becomes a workspace.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) source: Begin,
    pub(crate) overlay: Overlay,
    /// The directory that gives the bay its name.
    pub(crate) directory: PathBuf,
    /// Notes for the caller, one line each.
    pub(crate) notes: Vec<String>,
}

#[derive(Debug)]
pub(crate) enum Begin {
    Empty,
    Commit { repo: LocalRepo, commit: Commit },
}

#[derive(Debug)]
pub(crate) enum Overlay {
    Nothing,
    /// The changes that `git status` reports, and the files of submodules. They are looked for while the bay is made.
    Changes(LocalRepo),
    /// The whole directory.
    Tree(PathBuf),
}

/// Plans the copy of `path`.
pub(crate) async fn plan(
    path: &Path,
    reference: Option<&str>,
    committed_only: bool,
) -> Result<Plan, ApiError> {
    let path = crate::naming::absolute(path)?;
    if !path.is_dir() {
        return Err(ApiError::new(
            ErrorCode::PathRefused,
            format!("{} is not a directory", path.display()),
            "name a directory, a git repository or a git URL",
        ));
    }
    match discover(&path).await? {
        Some(repo) => plan_repository(repo, &path, reference, committed_only).await,
        None => plan_directory(path, reference),
    }
}

async fn plan_repository(
    repo: LocalRepo,
    path: &Path,
    reference: Option<&str>,
    committed_only: bool,
) -> Result<Plan, ApiError> {
    let mut notes = Vec::new();
    let directory = repo.top.clone();
    if !repo.bare && repo.top != path {
        notes.push(format!("copying the whole repository at {}", repo.top.display()));
    }
    if repo.uses_lfs() {
        notes.push(
            "this repository uses Git LFS: unchanged LFS files arrive as pointers (`git lfs pull` inside)"
                .into(),
        );
    }
    if repo.shallow {
        if reference.is_some() || committed_only || repo.bare {
            return Err(ApiError::new(
                ErrorCode::RepoFetch,
                format!("{} is a shallow clone: commits cannot be taken out of it", repo.top.display()),
                "run `git fetch --unshallow` first, or leave --ref and --committed-only out",
            ));
        }
        notes.push("a shallow clone: the directory is copied as it is, with its .git".into());
        return Ok(Plan { source: Begin::Empty, overlay: Overlay::Tree(repo.top), directory, notes });
    }
    let commit = match reference {
        Some(reference) => repo.resolve(reference).await?,
        None => match repo.head.clone() {
            Some(head) => head,
            None if repo.bare || committed_only => {
                return Err(ApiError::new(
                    ErrorCode::RepoEmpty,
                    format!("{} has no commits", repo.top.display()),
                    "make a first commit, or name another repository; `bay up DIR` also takes a directory that is no repository",
                ));
            }
            None => {
                notes.push("the repository has no commits yet: its files are copied, its .git is not".into());
                return Ok(Plan { source: Begin::Empty, overlay: Overlay::Changes(repo), directory, notes });
            }
        },
    };
    let overlay = if repo.bare || committed_only || reference.is_some() {
        if reference.is_some() && !committed_only && !repo.bare {
            notes.push("--ref was given: uncommitted changes stay here".into());
        }
        Overlay::Nothing
    } else {
        Overlay::Changes(repo.clone())
    };
    Ok(Plan { source: Begin::Commit { repo, commit }, overlay, directory, notes })
}

fn plan_directory(path: PathBuf, reference: Option<&str>) -> Result<Plan, ApiError> {
    if reference.is_some() {
        return Err(invalid(
            format!("--ref was given, but {} is not a git repository", path.display()),
            "leave --ref out",
        ));
    }
    let home = std::env::var_os("HOME").and_then(|home| Path::new(&home).canonicalize().ok());
    if path == Path::new("/") || home.as_deref() == Some(&path) {
        return Err(invalid(
            format!("{} is not a project: everything in it would be copied into the bay", path.display()),
            "name a project's directory, such as `bay up ~/project`",
        ));
    }
    let notes = vec!["not a git repository: the directory is copied as it is".to_owned()];
    Ok(Plan { source: Begin::Empty, overlay: Overlay::Tree(path.clone()), directory: path, notes })
}

/// Makes sure that the cache has the commit, and returns how the bay begins.
pub(crate) async fn provide(
    client: &mut Client,
    begin: &Begin,
    meter: &mut Meter,
) -> Result<Source, ApiError> {
    let Begin::Commit { repo, commit } = begin else {
        return Ok(Source::Empty);
    };
    let location = match repo.top.to_str() {
        Some(text) => text.to_owned(),
        // It serves only as a name, so different paths must merely stay different.
        None => repo.top.as_os_str().as_bytes().escape_ascii().to_string(),
    };
    let offer = RepoOffer { location, commit: commit.id.clone() };
    let offered: RepoOffered = client.post("/v1/repos/offer", &offer).await?;
    if !offered.present {
        send_bundle(client, repo, commit, &offered, meter).await?;
    }
    Ok(Source::Cached { repo: offered.repo, commit: commit.id.clone(), branch: commit.branch.clone() })
}

async fn send_bundle(
    client: &mut Client,
    repo: &LocalRepo,
    commit: &Commit,
    offered: &RepoOffered,
    meter: &mut Meter,
) -> Result<(), ApiError> {
    let mut git = repo.bundle(commit, &offered.have).await?;
    let (Some(stdout), Some(stderr)) = (git.stdout.take(), git.stderr.take()) else {
        return Err(local("running git bundle", &io::Error::other("it has no output")));
    };
    // Read concurrently with the bundle: a full pipe would block git.
    let complaints = tokio::spawn(async move {
        let mut text = Vec::new();
        let mut limited = stderr.take(64 * 1024);
        let _ = limited.read_to_end(&mut text).await;
        let _ = tokio::io::copy(&mut limited.into_inner(), &mut tokio::io::sink()).await;
        one_line(&String::from_utf8_lossy(&text))
    });
    let finish = move || async move {
        let status = git.wait().await?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("git bundle failed: {status}"))) }
    };
    let path = format!("/v1/repos/{}/bundle", segment(&offered.repo.to_string()));
    let news = Progress {
        stage: "sending the repository to the cache".into(),
        unit: "bytes".into(),
        ..Progress::default()
    };
    let result: Result<RepoView, ApiError> =
        transfer::send(client, Method::POST, &path, stdout, finish, news, meter).await;
    match result {
        Ok(_) => Ok(()),
        Err(error) => {
            let said = complaints.await.unwrap_or_default();
            if said.contains("fatal") || said.contains("error") {
                let message = format!("bundling {}: git said: {said}", repo.top.display());
                return Err(ApiError::new(
                    ErrorCode::RepoFetch,
                    message,
                    "check the repository with `git fsck`",
                ));
            }
            Err(error)
        }
    }
}

/// The files to stream on top of the commit, or of nothing.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    changes: Changes,
    /// Files of submodules, relative to the top.
    submodule_files: Vec<PathBuf>,
    submodules: u64,
}

/// Looks for the files to stream. This runs while the bay is made, because on a large tree it takes longer.
pub(crate) async fn look(overlay: &Overlay) -> Result<Findings, ApiError> {
    let Overlay::Changes(repo) = overlay else {
        return Ok(Findings::default());
    };
    let changes = repo.changes().await?;
    let mut findings = Findings { changes, ..Findings::default() };
    let mut waiting: Vec<(PathBuf, usize)> =
        repo.submodules().await?.into_iter().map(|path| (path, 0)).collect();
    while let Some((path, depth)) = waiting.pop() {
        findings.submodules += 1;
        let files = repo.files_of(&path).await?;
        findings.submodule_files.extend(files.iter().map(|file| path.join(file)));
        if depth < MAX_SUBMODULE_DEPTH {
            let inner = LocalRepo { top: repo.top.join(&path), ..repo.clone() };
            waiting.extend(inner.submodules().await?.into_iter().map(|sub| (path.join(sub), depth + 1)));
        }
    }
    Ok(findings)
}

/// Streams the overlay into the bay. `None` if there was nothing to send.
pub(crate) async fn send(
    client: &mut Client,
    bay: &str,
    overlay: Overlay,
    findings: Findings,
) -> Result<Option<Packed>, ApiError> {
    let (body, packing) = match overlay {
        Overlay::Nothing => return Ok(None),
        Overlay::Tree(top) => pack(move |packer| packer.add_tree(&top, Path::new(""))),
        Overlay::Changes(repo) => {
            if findings.is_empty() {
                return Ok(None);
            }
            pack(move |packer| findings.pack(packer, &repo.top))
        }
    };
    // What the bay is made from is no change of the agent's.
    let path = bay_path(bay, &format!("/archive?path={}&beginning=true", path_value(WORKSPACE.as_bytes())));
    let sent = client.upload::<serde_json::Value>(Method::PUT, &path, body).await;
    let packed = packing.await.map_err(|e| ApiError::internal(&e))?;
    match (sent, packed) {
        (Ok(_), Ok(packed)) => Ok(Some(packed)),
        // The reason is a local error; the daemon only saw the stream end.
        (Err(_), Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(local("reading the changes", &error))
        }
        (Err(error), _) => Err(error),
        (Ok(_), Err(error)) => Err(local("reading the changes", &error)),
    }
}

impl Findings {
    fn is_empty(&self) -> bool {
        self.changes.present.is_empty() && self.changes.deleted.is_empty() && self.submodule_files.is_empty()
    }

    pub(crate) fn notes(&self) -> Option<String> {
        (self.submodules > 0).then(|| {
            let submodules = crate::output::count(self.submodules, "submodule");
            format!("{submodules} taken along as plain files")
        })
    }

    fn pack(&self, packer: &mut Packer, top: &Path) -> io::Result<()> {
        packer.delete(&self.changes.deletions())?;
        for path in &self.changes.present {
            if path.as_os_str().as_bytes().ends_with(b"/") {
                packer.add_tree(&top.join(path), path)?;
            } else {
                packer.add(&top.join(path), path)?;
            }
        }
        for path in &self.submodule_files {
            let source = top.join(path);
            // A nested submodule is listed as a directory. Its files are listed separately.
            if source.symlink_metadata().is_ok_and(|m| !m.is_dir()) {
                packer.add(&source, path)?;
            }
        }
        Ok(())
    }
}
