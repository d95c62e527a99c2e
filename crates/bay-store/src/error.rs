//! Why the store could not do what was asked.

use std::io;
use std::path::{Path, PathBuf};

use bay_types::{ApiError, BayName, ErrorCode, ExecId};

/// Primary result codes of SQLite that mean something to a person.
mod code {
    pub(super) const READ_ONLY: i32 = 8;
    pub(super) const CORRUPT: i32 = 11;
    pub(super) const FULL: i32 = 13;
    pub(super) const NOT_A_DATABASE: i32 = 26;
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the database {} is damaged: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    #[error("the database {} is of version {found}; this release knows up to {known}", path.display())]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error("the database {} cannot be written: the disk is read-only", path.display())]
    ReadOnly {
        path: PathBuf,
        #[source]
        source: sqlx::Error,
    },
    #[error("the database {} cannot grow: the disk is full", path.display())]
    Full {
        path: PathBuf,
        #[source]
        source: sqlx::Error,
    },
    #[error("the database {} cannot be reached", path.display())]
    Reach {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("a bay named {0} exists")]
    NameTaken(BayName),
    #[error("no bay with the id {0} is known")]
    BayUnknown(bay_types::BayId),
    #[error("all {0} ranges of user ids are taken by bays")]
    IdsExhausted(u32),
    #[error("the exec {0} exists with another command or in another bay")]
    ExecConflict(ExecId),
    #[error("{what} failed")]
    Query {
        what: &'static str,
        #[source]
        source: sqlx::Error,
    },
    #[error("a column of {what} does not hold what it should")]
    Column {
        what: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl StoreError {
    pub(crate) fn query(path: &Path, what: &'static str, source: sqlx::Error) -> Self {
        let primary = match &source {
            sqlx::Error::Database(e) => e.code().and_then(|c| c.parse::<i32>().ok()).map(|c| c & 0xff),
            _ => None,
        };
        let path = path.to_owned();
        match primary {
            Some(code::CORRUPT | code::NOT_A_DATABASE) => Self::Damaged { path, what: source.to_string() },
            Some(code::READ_ONLY) => Self::ReadOnly { path, source },
            Some(code::FULL) => Self::Full { path, source },
            _ => match source {
                sqlx::Error::Io(source) => Self::Reach { path, source },
                source => Self::Query { what, source },
            },
        }
    }

    pub(crate) fn column(
        what: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Column { what, source: source.into() }
    }

    /// The error as a caller sees it.
    #[must_use]
    pub fn to_api(&self) -> ApiError {
        let (code, next) = match self {
            Self::Damaged { path, .. } => (
                ErrorCode::StoreDamaged,
                format!(
                    "nothing was changed; restore {0} (and {0}-wal) from a backup, or move them away to start empty",
                    path.display()
                ),
            ),
            Self::Newer { .. } => {
                (ErrorCode::StoreDamaged, "nothing was changed; run the newer release of Workbay".to_owned())
            }
            Self::ReadOnly { .. } => {
                (ErrorCode::PoolReadOnly, "mount that disk read-write, then repeat the command".to_owned())
            }
            Self::Full { .. } => {
                (ErrorCode::PoolFull, "free some space on that disk, then repeat the command".to_owned())
            }
            Self::Reach { path, .. } => {
                (ErrorCode::StoreDamaged, format!("check the permissions and the disk of {}", path.display()))
            }
            Self::NameTaken(name) => (
                ErrorCode::BayExists,
                format!("`bay show {name}` shows it; choose another name with --name, or `bay rm {name}`"),
            ),
            Self::BayUnknown(_) => (ErrorCode::BayNotFound, "`bay ls` shows the bays there are".to_owned()),
            Self::IdsExhausted(_) => {
                (ErrorCode::NotEnough, "remove bays that are no longer used with `bay rm`".to_owned())
            }
            Self::ExecConflict(_) => {
                (ErrorCode::ExecConflict, "choose a new exec id for another command".to_owned())
            }
            Self::Query { .. } | Self::Column { .. } => return ApiError::internal(self),
        };
        ApiError::new(code, bay_types::error::chain(self), next)
    }
}
