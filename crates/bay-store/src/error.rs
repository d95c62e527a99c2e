//! Errors of the store.

use std::io;
use std::path::{Path, PathBuf};

use bay_types::{Action, BayName, CoreError, ErrorCode, ExecId, Hint};

/// Primary result codes of SQLite that have an error of their own here.
mod code {
    pub(super) const BUSY: i32 = 5;
    pub(super) const LOCKED: i32 = 6;
    pub(super) const READ_ONLY: i32 = 8;
    pub(super) const INPUT_OUTPUT: i32 = 10;
    pub(super) const CORRUPT: i32 = 11;
    pub(super) const FULL: i32 = 13;
    pub(super) const CANNOT_OPEN: i32 = 14;
    pub(super) const NOT_A_DATABASE: i32 = 26;
}

/// With less free space than this, SQLite cannot extend its index and reports an I/O error instead of a full disk.
const NO_ROOM: u64 = 64 * 1024;

/// The state of the disk that holds the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disk {
    Fine,
    Full,
    ReadOnly,
}

impl Disk {
    /// Looks at the directory, because the file itself may be missing.
    fn of(database: &Path) -> Self {
        let Some(dir) = database.parent() else { return Self::Fine };
        match rustix::fs::statvfs(dir) {
            Ok(stat) if stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) => Self::ReadOnly,
            // Filesystems without a fixed number of inodes report zero inodes in total.
            Ok(stat)
                if stat.f_bavail.saturating_mul(stat.f_frsize) < NO_ROOM
                    || (stat.f_files > 0 && stat.f_favail == 0) =>
            {
                Self::Full
            }
            _ => Self::Fine,
        }
    }
}

/// What a result code of SQLite means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Damaged,
    ReadOnly,
    Full,
    Reach,
    Busy,
    Defect,
}

/// The lower byte of a code is its primary code. SQLite reports several disk problems as one code; the state of the
/// disk separates them.
fn meaning(code: i32, disk: impl FnOnce() -> Disk) -> Meaning {
    match code & 0xff {
        code::CORRUPT | code::NOT_A_DATABASE => Meaning::Damaged,
        code::READ_ONLY => Meaning::ReadOnly,
        code::FULL => Meaning::Full,
        code::INPUT_OUTPUT | code::CANNOT_OPEN => match disk() {
            Disk::ReadOnly => Meaning::ReadOnly,
            Disk::Full => Meaning::Full,
            Disk::Fine => Meaning::Reach,
        },
        code::BUSY | code::LOCKED => Meaning::Busy,
        _ => Meaning::Defect,
    }
}

pub(crate) type Result<T> = std::result::Result<T, StoreError>;

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
    #[error("the database {} was locked by another process for too long", path.display())]
    Busy {
        path: PathBuf,
        #[source]
        source: sqlx::Error,
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
        let code = match &source {
            sqlx::Error::Database(e) => e.code().and_then(|c| c.parse::<i32>().ok()),
            _ => None,
        };
        let meaning = code.map_or(Meaning::Defect, |code| meaning(code, || Disk::of(path)));
        let path = path.to_owned();
        match (meaning, source) {
            (Meaning::Damaged, source) => Self::Damaged { path, what: source.to_string() },
            (Meaning::ReadOnly, source) => Self::ReadOnly { path, source },
            (Meaning::Full, source) => Self::Full { path, source },
            (Meaning::Reach, source) => Self::Reach { path, source: io::Error::other(source) },
            (Meaning::Busy, source) => Self::Busy { path, source },
            (Meaning::Defect, sqlx::Error::Io(source)) => Self::Reach { path, source },
            (Meaning::Defect, source) => Self::Query { what, source },
        }
    }

    pub(crate) fn column(
        what: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Column { what, source: source.into() }
    }

    /// The error as the API returns it.
    #[must_use]
    pub fn to_api(&self) -> CoreError {
        let (code, hint) = match self {
            Self::Damaged { path, .. } => (
                ErrorCode::StoreDamaged,
                Hint::from(format!(
                    "nothing was changed; restore {0} (and {0}-wal) from a backup, or move them away to start empty",
                    path.display()
                )),
            ),
            Self::Newer { .. } => {
                (ErrorCode::StoreDamaged, "nothing was changed; run the newer release of Workbay".into())
            }
            Self::ReadOnly { .. } => {
                (ErrorCode::PoolReadOnly, "mount that disk read-write, then repeat the command".into())
            }
            Self::Full { .. } => {
                (ErrorCode::PoolFull, "free some space on that disk, then repeat the command".into())
            }
            Self::Reach { path, .. } => (
                ErrorCode::StoreDamaged,
                Hint::from(format!("check the permissions and the disk of {}", path.display())),
            ),
            Self::Busy { .. } => (
                ErrorCode::Interrupted,
                "repeat the command; nothing but the daemon should have its database open".into(),
            ),
            Self::NameTaken(name) => (
                ErrorCode::BayExists,
                Hint::new(
                    "{} shows it; choose another name with --name, or {}",
                    [Action::ShowBay(name.into()), Action::RemoveBays(vec![name.to_string()])],
                ),
            ),
            Self::BayUnknown(_) => {
                (ErrorCode::BayNotFound, Hint::new("{} lists the bays", [Action::ListBays]))
            }
            Self::IdsExhausted(_) => (
                ErrorCode::NotEnough,
                Hint::new("remove bays that are no longer used with {}", [Action::RemoveAnyBay]),
            ),
            Self::ExecConflict(_) => {
                (ErrorCode::ExecConflict, "choose a new exec id for another command".into())
            }
            Self::Query { .. } | Self::Column { .. } => return CoreError::internal(self),
        };
        CoreError::new(code, bay_types::error::chain(self), hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_disk_is_not_reported_as_a_defect_of_the_program() {
        for (code, disk, expected) in [
            (14, Disk::Fine, Meaning::Reach),
            (14, Disk::ReadOnly, Meaning::ReadOnly),
            (10, Disk::Fine, Meaning::Reach),
            // SQLite extends the index of its log on a full disk.
            (10 | 19 << 8, Disk::Full, Meaning::Full),
            (10 | 3 << 8, Disk::Fine, Meaning::Reach),
            (5, Disk::Fine, Meaning::Busy),
            (6, Disk::Fine, Meaning::Busy),
            (13, Disk::Fine, Meaning::Full),
            (8, Disk::Fine, Meaning::ReadOnly),
            (11, Disk::Full, Meaning::Damaged),
            (1, Disk::Full, Meaning::Defect),
        ] {
            assert_eq!(meaning(code, || disk), expected, "{code}");
        }
    }
}
