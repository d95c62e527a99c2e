//! Runs git in the clean repository on a separate thread, so that a signal can still interrupt this program.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bay_client::{ShowProgress, local};
use bay_git::{Changed, CleanRepo, GitError, LaidOut, Lender, Taken};
use bay_types::progress::Progress;
use bay_types::{ApiError, ErrorCode};
use tempfile::TempDir;
use tokio::sync::watch;

use crate::output::progress::Meter;

/// The directory for large temporary files, unless `TMPDIR` names another. `/tmp` is often in memory.
const LARGE_TEMPORARY: &str = "/var/tmp";

/// The clean repository in its temporary directory. Both are deleted on drop.
#[derive(Debug)]
pub(crate) struct Clean {
    repo: Arc<CleanRepo>,
    go_on: Arc<AtomicBool>,
    /// Held by the thread that runs git.
    busy: Arc<Mutex<()>>,
    dir: TempDir,
}

impl Drop for Clean {
    fn drop(&mut self) {
        // Ends git and waits for it, because it would write into a directory that is being deleted.
        self.go_on.store(false, Ordering::Relaxed);
        drop(self.busy.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn temporary() -> io::Result<TempDir> {
    let large = Path::new(LARGE_TEMPORARY);
    let mut builder = tempfile::Builder::new();
    builder.prefix("bay-work-");
    if std::env::var_os("TMPDIR").is_none()
        && large.is_dir()
        && let Ok(dir) = builder.tempdir_in(large)
    {
        return Ok(dir);
    }
    builder.tempdir()
}

impl Clean {
    pub(super) async fn create(sha256: bool, lender: Option<Lender>) -> Result<Self, ApiError> {
        let dir = temporary().map_err(|e| local("making a temporary directory", &e))?;
        let go_on = Arc::new(AtomicBool::new(true));
        let (place, flag) = (dir.path().to_owned(), Arc::clone(&go_on));
        let made = tokio::task::spawn_blocking(move || CleanRepo::create(&place, sha256, lender, flag));
        let repo = made.await.map_err(|e| ApiError::internal(&e))?.map_err(|e| explained(&e, dir.path()))?;
        Ok(Self { repo: Arc::new(repo), go_on, busy: Arc::default(), dir })
    }

    pub(super) fn incoming(&self) -> PathBuf {
        self.repo.incoming()
    }

    pub(crate) fn repo(&self) -> &CleanRepo {
        &self.repo
    }

    /// The directory that contains the repository and the files made from it.
    pub(crate) fn place(&self) -> &Path {
        self.dir.path()
    }

    async fn on_a_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&CleanRepo) -> Result<T, GitError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (repo, busy) = (Arc::clone(&self.repo), Arc::clone(&self.busy));
        let done = tokio::task::spawn_blocking(move || {
            let _busy = busy.lock().unwrap_or_else(PoisonError::into_inner);
            work(&repo)
        });
        done.await.map_err(|e| ApiError::internal(&e))?.map_err(|e| explained(&e, self.dir.path()))
    }

    pub(super) async fn take_in(
        &self,
        tip: &str,
        base: Option<&str>,
        meter: &mut Meter,
    ) -> Result<Taken, ApiError> {
        let (tip, base) = (tip.to_owned(), base.map(str::to_owned));
        let (tell, mut told) = watch::channel(Progress::default());
        let taken = self.on_a_thread(move |repo| {
            repo.take_in(&tip, base.as_deref(), &mut |news| {
                let _ = tell.send(Progress { stage: "checking the work".to_owned(), ..news });
            })
        });
        tokio::pin!(taken);
        let taken = loop {
            tokio::select! {
                taken = &mut taken => break taken,
                Ok(()) = told.changed() => meter.show(&told.borrow_and_update()),
            }
        };
        meter.clear();
        taken
    }

    pub(super) async fn has(&self, commit: &str) -> bool {
        let commit = format!("{commit}^{{commit}}");
        self.on_a_thread(move |repo| repo.ask(&["cat-file", "-e", &commit])).await.is_ok()
    }

    /// Writes `tip` into a new bundle, as a branch.
    pub(crate) async fn bundle(
        &self,
        tip: &str,
        branch: &str,
        exclude: Option<&str>,
    ) -> Result<PathBuf, ApiError> {
        let (tip, branch, exclude) = (tip.to_owned(), branch.to_owned(), exclude.map(str::to_owned));
        self.on_a_thread(move |repo| repo.bundle(&tip, &branch, exclude.as_deref())).await
    }

    /// The changed files between the base, or nothing, and `tip`.
    pub(crate) async fn changes(&self, tip: &str, base: Option<&str>) -> Result<Vec<Changed>, ApiError> {
        let (tip, base) = (tip.to_owned(), base.map(str::to_owned));
        self.on_a_thread(move |repo| repo.changes(&tip, base.as_deref())).await
    }

    /// Writes the files that changed between the base, or nothing, and `tip` as plain files below [`Self::place`].
    pub(crate) async fn lay_out(&self, tip: &str, base: Option<&str>) -> Result<LaidOut, ApiError> {
        let (tip, base) = (tip.to_owned(), base.map(str::to_owned));
        self.on_a_thread(move |repo| repo.lay_out(&tip, base.as_deref())).await
    }

    /// The output of a git command in the repository.
    pub(crate) async fn ask(&self, arguments: &[&str]) -> Result<Vec<u8>, ApiError> {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        self.on_a_thread(move |repo| {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            repo.ask(&arguments)
        })
        .await
    }
}

/// The error of a git command. A full disk is one of the machine that runs this program.
fn explained(error: &GitError, place: &Path) -> ApiError {
    if !error.is_full_disk() {
        return bay_cli_words::Words::default().error(error.to_api());
    }
    ApiError::new(
        ErrorCode::NotEnough,
        format!("the disk with {} is full, and the work is checked there", place.display()),
        "free some space, or set TMPDIR to a directory with more of it",
    )
}
