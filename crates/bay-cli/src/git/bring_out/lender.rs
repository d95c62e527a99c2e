//! Finds a repository of the caller that has the commit a bay began from, so that only newer objects are downloaded.

use std::path::{Path, PathBuf};

use bay_git::Lender;
use bay_types::bay::Origin;

use crate::failure::Failure;
use crate::git::{LocalRepo, discover};

/// The repository in the current directory, or the one that the bay was made from, if it has the commit and is
/// neither a shallow nor a partial clone.
pub(super) async fn find(origin: Option<&Origin>) -> Result<Option<Lender>, Failure> {
    let Some(origin) = origin else { return Ok(None) };
    let here = std::env::current_dir().ok();
    let there = Some(PathBuf::from(&origin.location)).filter(|path| path.is_absolute());
    for place in here.into_iter().chain(there) {
        // If the repository cannot be read, it lends no objects, and the download is larger.
        if let Ok(Some(repo)) = discover(&place).await
            && let Some(lender) = repo.lends(&origin.commit).await
        {
            return Ok(Some(lender));
        }
    }
    Ok(None)
}

impl LocalRepo {
    /// Its objects, if it has the commit and is neither a shallow nor a partial clone.
    async fn lends(&self, commit: &str) -> Option<Lender> {
        if self.shallow || !self.has(commit).await {
            return None;
        }
        let partial = ["config", "--get", "extensions.partialClone"];
        if self.line(&partial).await.ok()?.is_some() {
            return None;
        }
        let objects = self.line(&["rev-parse", "--git-path", "objects"]).await.ok()??;
        let objects = self.top.join(Path::new(&objects)).canonicalize().ok()?;
        Some(Lender { objects, commit: commit.to_owned() }).filter(Lender::can_be_named)
    }
}
