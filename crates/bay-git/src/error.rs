//! Errors of git runs.

use std::io;

use bay_types::error::chain;
use bay_types::{Action, CoreError, ErrorCode, Hint, HintBay};

pub(crate) type Result<T> = std::result::Result<T, GitError>;

/// An error of git, or of the system below it.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    #[error("git is needed to work with repositories, and this host does not have it")]
    Missing,
    /// A system call failed. That includes a full disk, whether git or this program met it.
    #[error("could not {doing}")]
    System {
        doing: String,
        #[source]
        source: io::Error,
    },
    #[error("git failed on the repository {location}: {why}")]
    Failed { location: String, why: String },
    /// The agent's work lacks something that it must contain, or contains something that it must not.
    #[error("what came out of the bay was refused: {why}")]
    Refused { why: String },
}

impl GitError {
    pub(crate) fn system(doing: impl Into<String>, error: impl Into<io::Error>) -> Self {
        Self::System { doing: doing.into(), source: error.into() }
    }

    /// Whether the disk is full.
    #[must_use]
    pub fn is_full_disk(&self) -> bool {
        matches!(self, Self::System { source, .. }
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }

    /// The error as the API returns it.
    #[must_use]
    pub fn to_api(&self) -> CoreError {
        let (code, hint) = match self {
            Self::Missing => (
                ErrorCode::HostUnfit,
                "install the package git (on Debian and Ubuntu: apt install git)".into(),
            ),
            Self::System { .. } if self.is_full_disk() => {
                (ErrorCode::NotEnough, "free some space on that disk".into())
            }
            Self::System { .. } => return CoreError::internal(self),
            Self::Failed { .. } => {
                (ErrorCode::RepoFetch, "check the repository with `git fsck` and try again".into())
            }
            Self::Refused { .. } => (
                ErrorCode::WorkRefused,
                Hint::new(
                    "nothing was written; look at the repository inside: {}",
                    [Action::CheckRepository(HintBay::OfRequest)],
                ),
            ),
        };
        CoreError::new(code, chain(self), hint)
    }
}
