//! Errors of disk, images and repositories.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;

use bay_git::GitError;
use bay_text::foreign;
use bay_types::error::chain;
use bay_types::{Action, CoreError, ErrorCode, Hint, HintBay};
use rustix::io::Errno;

pub(crate) type Result<T> = std::result::Result<T, PoolError>;

/// Errors of the pool; `to_api` adds a hint for the reader.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("{program} is needed to {purpose}, and this host does not have it")]
    ProgramMissing { program: &'static str, package: &'static str, purpose: &'static str },
    #[error("this host cannot hold a pool: {why}")]
    HostUnfit {
        why: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "the disk below the pool {pool} is too full: {needed_mib} MiB are \
         needed, {free_mib} MiB may be used{}", reserved(*reserve_mib)
    )]
    HostFull {
        pool: PathBuf,
        needed_mib: u64,
        free_mib: u64,
        /// What of the disk's free space is left to the host.
        reserve_mib: Option<u64>,
    },
    #[error("the pool file {image} is still mounted somewhere, although Workbay unmounted it")]
    StillMounted { image: PathBuf },
    #[error("could not {doing}: the pool is full")]
    Full {
        doing: String,
        #[source]
        source: io::Error,
    },
    #[error("could not {doing}: the bay has used all of the disk it was given (--disk-mib)")]
    Quota {
        doing: String,
        #[source]
        source: io::Error,
    },
    #[error("the pool {pool} is damaged: {why}")]
    Damaged { pool: PathBuf, why: String },
    #[error("the pool {pool} is not the one in which the recorded bays were made: {why}")]
    Lost { pool: PathBuf, why: &'static str },
    #[error("the pool {pool} is read-only: {why}")]
    ReadOnly { pool: PathBuf, why: &'static str },
    #[error("could not {doing}: the pool gives input/output errors")]
    Failing {
        doing: String,
        #[source]
        source: io::Error,
    },
    #[error("could not {doing}: the pool is read-only")]
    TurnedReadOnly {
        doing: String,
        #[source]
        source: io::Error,
    },
    #[error("could not {doing}")]
    Io {
        doing: String,
        #[source]
        source: io::Error,
    },
    #[error("{what} cannot be used: {why}")]
    Invalid { what: String, why: String },
    #[error("there is no image {image}")]
    ImageNotFound { image: String },
    #[error("image {image} is used by {bays} bay(s)")]
    ImageInUse { image: String, bays: u64 },
    #[error("could not import {source_name}: {why}")]
    ImageImport { source_name: String, why: String },
    #[error(
        "could not import {source_name}: it is an image in layers, as `docker save` writes it, and not the files of a root filesystem"
    )]
    ImageInLayers { source_name: String },
    #[error(
        "could not import {source_name}: it has no shell (an executable /bin/sh), so no bay could run in it"
    )]
    ImageWithoutShell { source_name: String },
    #[error("the bay holds {held_mib} MiB of disk already, more than the {mib} MiB it was to have")]
    QuotaInUse { held_mib: u64, mib: u64 },
    #[error("bay {bay} has no files on this pool")]
    BayFilesMissing { bay: String },
    #[error("no workspace {workspace:?} is kept")]
    KeptNotFound { workspace: String },
    #[error("the pool has no checkpoint {checkpoint} of that bay")]
    CheckpointNotFound { checkpoint: String },
    #[error("there is no repository {repo} in the cache")]
    RepoNotFound { repo: String },
    #[error("could not fetch {location}: {why}")]
    RepoFetch { location: String, why: String },
    #[error("could not fetch {location}: it asks for credentials ({why})")]
    RepoAuth { location: String, why: String },
    #[error("could not fetch {location}: there is no such repository ({why})")]
    RepoAbsent { location: String, why: String },
    #[error("the repository {location} is a directory of this machine, which the daemon does not open")]
    RepoLocal { location: String },
    #[error("the repository {location} has no commits")]
    RepoEmpty { location: String },
    #[error("the repository {location} has no branch, tag or commit {reference:?}")]
    RefNotFound { location: String, reference: String },
    #[error("the bundle for {location} was refused: {why}")]
    Bundle { location: String, why: String },
    #[error("git failed on the cached repository {location}: {why}")]
    Git { location: String, why: String },
}

impl PoolError {
    /// The error as the API returns it.
    #[must_use]
    pub fn to_api(&self) -> CoreError {
        let (code, hint) = match self {
            Self::ProgramMissing { package, .. } => (
                ErrorCode::HostUnfit,
                Hint::from(format!(
                    "install the package {package} (on Debian and Ubuntu: apt install {package})"
                )),
            ),
            Self::QuotaInUse { .. } => {
                (ErrorCode::BayState, "delete files in the bay first, or set a higher limit; the old limits remain".into())
            }
            Self::HostUnfit { .. } => {
                (ErrorCode::HostUnfit, Hint::new("{} shows what this host lacks", [Action::Doctor]))
            }
            Self::HostFull { reserve_mib: Some(_), .. } => (
                ErrorCode::PoolFull,
                what_may_be_freed().and(Hint::new(
                    "or free space on that disk, lower the reserve with {}, or place the pool on another disk with --pool DIR",
                    [Action::SetDiskReserve],
                )),
            ),
            Self::HostFull { reserve_mib: None, .. } => (
                ErrorCode::PoolFull,
                what_may_be_freed()
                    .and("or free space on that disk, or place the pool on another one with --pool DIR"),
            ),
            Self::Full { .. } => (
                ErrorCode::PoolFull,
                what_may_be_freed().and(Hint::from("or free space on the disk below the pool, so that it can grow")),
            ),
            // A process that was started while the pool was mounted may have a mount namespace with a copy of it.
            Self::StillMounted { image } => (
                ErrorCode::DataDirBusy,
                Hint::from(format!(
                    "end the program that has it (`grep -l {} /proc/*/mountinfo` lists them), and repeat the command",
                    image.parent().unwrap_or(image).display()
                )),
            ),
            Self::Quota { .. } => (ErrorCode::DiskLimit, Hint::disk_limit()),
            Self::Damaged { pool, .. } => (
                ErrorCode::PoolDamaged,
                Hint::from(format!(
                    "nothing was changed; restore {} from a backup, or move it away to begin with an empty pool",
                    pool.display()
                )),
            ),
            Self::Lost { .. } => (
                ErrorCode::PoolDamaged,
                "nothing was changed; put the pool back, or name the right one with --pool DIR".into(),
            ),
            Self::ReadOnly { .. } => (
                ErrorCode::PoolReadOnly,
                "nothing was changed; the kernel's log (`dmesg`) has the reason; \
                 repair the disk, unmount the pool and start the daemon again"
                    .into(),
            ),
            // In the middle of an operation, a part of it may have been written already.
            Self::TurnedReadOnly { .. } => (
                ErrorCode::PoolReadOnly,
                "the kernel's log (`dmesg`) has the reason; repair the disk, unmount the pool and start the daemon again"
                    .into(),
            ),
            Self::Failing { .. } => (
                ErrorCode::PoolDamaged,
                "the kernel's log (`dmesg`) has the reason; check the disk below the pool before \
                 anything else"
                    .into(),
            ),
            Self::Io { .. } => return CoreError::internal(self),
            Self::Invalid { .. } => (ErrorCode::InvalidInput, "give another value".into()),
            Self::ImageNotFound { .. } => (
                ErrorCode::ImageNotFound,
                Hint::new("{} lists the images; {} imports one", [Action::ListImages, Action::ImportImage]),
            ),
            Self::ImageInUse { .. } => (
                ErrorCode::ImageInUse,
                Hint::new("remove those bays first; {} lists the bays", [Action::ListBays]),
            ),
            Self::ImageImport { .. } => (
                ErrorCode::ImageImport,
                "check that the source exists and that you may read it, then import again".into(),
            ),
            Self::ImageInLayers { .. } => (
                ErrorCode::ImageImport,
                Hint::new(
                    "write its files as one archive: `docker create --name c IMAGE && docker export c -o image.tar && docker rm c`, then {} tar:image.tar",
                    [Action::ImportImage],
                ),
            ),
            Self::ImageWithoutShell { .. } => (
                ErrorCode::ImageImport,
                "name the directory or archive whose top has bin, etc and usr; an image without a shell, such as a \
                 distroless one, needs one added"
                    .into(),
            ),
            Self::BayFilesMissing { .. } => (
                ErrorCode::BayFailed,
                Hint::new("remove the bay with {} and make it again", [Action::RemoveAnyBay]),
            ),
            Self::KeptNotFound { .. } => (
                ErrorCode::WorkspaceNotFound,
                Hint::new("{} lists the kept workspaces", [Action::ListWorkspaces]),
            ),
            Self::CheckpointNotFound { .. } => (
                ErrorCode::CheckpointNotFound,
                Hint::new("{} lists the checkpoints", [Action::ListCheckpoints(HintBay::OfRequest)]),
            ),
            Self::RepoNotFound { .. } => {
                (ErrorCode::RepoNotFound, Hint::new("{} lists the cached repositories", [Action::ListRepos]))
            }
            Self::RepoFetch { .. } => (
                ErrorCode::RepoFetch,
                "check the address and the network; `git ls-remote ADDRESS` shows the same failure".into(),
            ),
            Self::RepoAuth { .. } => (
                ErrorCode::RepoAuth,
                Hint::new(
                    "the daemon holds no credentials; clone it yourself and give the path: {}",
                    [Action::MakeBayFromPath],
                ),
            ),
            Self::RepoAbsent { .. } => (
                ErrorCode::RepoFetch,
                "check the address; some servers say the same of a private one: clone \
                 that yourself and give the path"
                    .into(),
            ),
            Self::RepoLocal { .. } => (
                ErrorCode::InvalidInput,
                Hint::new("{} copies its commits, also the new ones", [Action::MakeBayFromPath]),
            ),
            Self::RepoEmpty { .. } => (
                ErrorCode::RepoEmpty,
                Hint::new(
                    "make a first commit, or name another repository; {} also takes a directory that is no repository",
                    [Action::MakeBayFromPath],
                ),
            ),
            Self::RefNotFound { .. } => (
                ErrorCode::RefNotFound,
                Hint::new("{} fetches new commits; check the name with `git ls-remote`", [Action::SyncRepos]),
            ),
            Self::Bundle { .. } => {
                (ErrorCode::RepoFetch, "check the repository with `git fsck` and try again".into())
            }
            Self::Git { .. } => (
                ErrorCode::RepoFetch,
                Hint::new(
                    "{} and a new {} rebuild the cache of this repository",
                    [Action::RemoveRepo, Action::MakeBay],
                ),
            ),
        };
        CoreError::new(code, chain(self), hint)
    }
}

fn reserved(reserve_mib: Option<u64>) -> String {
    reserve_mib.map_or_else(String::new, |mib| format!(" ({mib} MiB of it are reserved for the host)"))
}

/// The commands that free space of a pool, those that cost least first.
fn what_may_be_freed() -> Hint {
    Hint::new(
        "{} shows where the disk goes; {} removes images that no bay uses, {} old checkpoints, {} a cached repository, {} a bay",
        [
            Action::ShowDisk,
            Action::PruneImages,
            Action::RemoveCheckpoints(HintBay::OfRequest),
            Action::RemoveRepo,
            Action::RemoveAnyBay,
        ],
    )
}

impl From<GitError> for PoolError {
    fn from(error: GitError) -> Self {
        match error {
            GitError::Missing => {
                Self::ProgramMissing { program: "git", package: "git", purpose: "work with repositories" }
            }
            GitError::System { doing, source } => classified(source, doing),
            GitError::Failed { location, why } => Self::Git { location, why },
            // The cache only imports bundles and fetches; this error belongs to work that leaves a bay.
            GitError::Refused { why } => Self::Git { location: "in the cache".to_owned(), why },
        }
    }
}

/// Adds what was being done to an error of the system, and classifies it.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| classified(error.into(), what()))
    }
}

fn classified(source: io::Error, doing: String) -> PoolError {
    match Errno::from_io_error(&source) {
        Some(Errno::NOSPC) => PoolError::Full { doing, source },
        Some(Errno::DQUOT) => PoolError::Quota { doing, source },
        Some(Errno::ROFS) => PoolError::TurnedReadOnly { doing, source },
        Some(Errno::IO | Errno::UCLEAN) => PoolError::Failing { doing, source },
        _ => PoolError::Io { doing, source },
    }
}

/// Text from outside (git's remote, an archive) as an error message quotes it.
pub(crate) fn one_line(text: impl Display) -> String {
    /// With the ellipsis, 300 bytes of plain text.
    const SHOWN: usize = 297;
    foreign::one_line(&text.to_string(), SHOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(code: Errno) -> ErrorCode {
        std::result::Result::<(), _>::Err(code).doing(|| "write".to_owned()).unwrap_err().to_api().code
    }

    #[test]
    fn errors_of_the_system_become_codes_of_their_own() {
        assert_eq!(full(Errno::NOSPC), ErrorCode::PoolFull);
        assert_eq!(full(Errno::DQUOT), ErrorCode::DiskLimit);
        assert_eq!(full(Errno::ROFS), ErrorCode::PoolReadOnly);
        assert_eq!(full(Errno::IO), ErrorCode::PoolDamaged);
        assert_eq!(full(Errno::INVAL), ErrorCode::Internal);
    }

    #[test]
    fn text_from_outside_is_one_plain_line() {
        assert_eq!(one_line("a\x1b[31m\r\nb\tc"), "a [31m b c");
        assert!(one_line("x".repeat(5000)).len() <= 300);
    }
}
