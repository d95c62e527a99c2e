//! Why the core could not start its work, and what to do about it.

use std::io;
use std::path::PathBuf;

use bay_store::StoreError;
use bay_types::backend::BackendName;
use bay_types::{CoreError, ErrorCode};

/// Why the core could not start its work.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the data directory cannot be used at {}", path.display())]
    DataDir {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the state that an earlier daemon left could not be repaired: {0}")]
    Adopt(CoreError),
    #[error("the ledger's key {} cannot be used: {why}", path.display())]
    LedgerKey { path: PathBuf, why: String },
    #[error("{} cannot be used for the gateway: {why}", path.display())]
    Gateway { path: PathBuf, why: String },
    #[error("there is no backend {name} here")]
    Backend { name: BackendName, known: String },
}

impl OpenError {
    /// The error as a person sees it.
    #[must_use]
    pub fn to_api(&self) -> CoreError {
        let (code, next) = match self {
            Self::Store(error) => return error.to_api(),
            Self::Adopt(error) => {
                return CoreError { message: self.to_string(), ..error.clone() };
            }
            Self::DataDir { source, .. } => (
                io_code(source),
                "check that the disk is there, writable and not full, or give another --data-dir".to_owned(),
            ),
            Self::LedgerKey { path, .. } => (
                ErrorCode::LedgerBroken,
                format!(
                    "restore the file from a backup; moving the directory {} away begins with a new key, which everybody who verifies must be given",
                    path.parent().unwrap_or(path).display()
                ),
            ),
            Self::Gateway { .. } => (
                ErrorCode::InvalidInput,
                "fix the file that --gateway-hosts or --gateway-ca names, or leave it out".to_owned(),
            ),
            Self::Backend { known, .. } => {
                (ErrorCode::InvalidInput, format!("the backends on this host are: {known}"))
            }
        };
        CoreError::new(code, bay_types::error::chain(self), next)
    }
}

/// The code of an error of the host's file system.
#[must_use]
pub fn io_code(error: &io::Error) -> ErrorCode {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::PoolFull,
        io::ErrorKind::ReadOnlyFilesystem => ErrorCode::PoolReadOnly,
        io::ErrorKind::PermissionDenied => ErrorCode::NotRoot,
        _ => ErrorCode::InvalidInput,
    }
}
