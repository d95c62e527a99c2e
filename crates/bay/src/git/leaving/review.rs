//! What leaves, looked at in the clean repository before it does.

use bay_pool::Entry;
use bay_types::{ApiError, ErrorCode};
use serde::Serialize;

use super::Work;
use crate::output::count;

/// What leaves, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Leaving {
    pub(crate) commits: u64,
    /// Files added, changed or deleted.
    pub(crate) files: u64,
    /// Entries that name a commit of another repository, whose files do not come along.
    pub(crate) repositories: u64,
}

impl Leaving {
    /// For a person: `2 commits, 3 files changed`.
    pub(crate) fn told(&self) -> String {
        format!("{}, {} changed", count(self.commits, "commit"), count(self.files, "file"))
    }
}

/// Looks at everything between where the bay began and the work.
pub(crate) async fn review(work: &Work) -> Result<Leaving, ApiError> {
    let exclude = work.base.as_ref().map(|base| format!("^{base}"));
    let mut arguments = vec!["rev-list", "--count", &work.tip];
    arguments.extend(exclude.as_deref());
    let commits = work.clean.ask(&arguments).await?;
    let commits = std::str::from_utf8(&commits).ok().and_then(|text| text.trim().parse().ok());
    let commits = commits.ok_or_else(odd)?;
    let changes = work.clean.changes(&work.tip, work.base.as_deref()).await?;
    let repositories =
        changes.iter().filter(|change| change.after.as_ref().is_some_and(Entry::is_repository)).count();
    Ok(Leaving { commits, files: changes.len() as u64, repositories: repositories as u64 })
}

fn odd() -> ApiError {
    ApiError::new(
        ErrorCode::WorkRefused,
        "git did not tell the number of commits",
        "check that the git on this machine works: `git --version`",
    )
}
