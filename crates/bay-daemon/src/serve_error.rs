//! Why a daemon could not start, and what to do about it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use bay_cli_words::Words;
use bay_core::{OpenError, io_code};
use bay_pool::PoolError;
use bay_store::StoreError;
use bay_types::{ApiError, ErrorCode};

/// Why a daemon could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the data directory cannot be used at {}", path.display())]
    DataDir {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the data directory {} belongs to the user with the id {owner}, not to the one the daemon runs as", path.display())]
    Foreign { path: PathBuf, owner: u32 },
    #[error("another daemon{} uses the data directory {}", holder(*pid), path.display())]
    Busy { path: PathBuf, pid: Option<u32> },
    #[error("the executable {} could not be copied into the data directory", path.display())]
    Executable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Core(#[from] OpenError),
    #[error("listening at {place} failed")]
    Listen {
        place: String,
        #[source]
        source: io::Error,
    },
    #[error("{address} can be reached by others: the API listens on loopback only")]
    NotLoopback { address: SocketAddr },
    #[error("the fault cannot be injected: {0}")]
    Fault(String),
    #[error("signals cannot be received")]
    Signals(#[source] io::Error),
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

impl ServeError {
    /// The error as it is shown to a person, with the hints of the CLI, which started the daemon.
    #[must_use]
    pub fn to_api(&self) -> ApiError {
        let (code, next) = match self {
            Self::Store(error) => return Words::default().error(error.to_api()),
            Self::Pool(error) => return Words::default().error(error.to_api()),
            Self::Core(error) => return Words::default().error(error.to_api()),
            Self::DataDir { source, .. } => (
                io_code(source),
                "check that the disk is there, writable and not full, or give another --data-dir".to_owned(),
            ),
            Self::Foreign { .. } => (
                ErrorCode::InvalidInput,
                "give another --data-dir; the owner of this one could change the daemon's files".to_owned(),
            ),
            Self::Busy { .. } => (
                ErrorCode::DataDirBusy,
                "use that daemon, stop it first, or give another --data-dir".to_owned(),
            ),
            Self::Executable { source, .. } => {
                (io_code(source), "check the disk of the data directory".to_owned())
            }
            Self::Listen { place, .. } if place.parse::<SocketAddr>().is_ok() => {
                (ErrorCode::InvalidInput, "give another port with --listen".to_owned())
            }
            Self::Listen { .. } => (
                ErrorCode::InvalidInput,
                "give another path with --socket or BAY_SOCKET (at most 107 bytes)".to_owned(),
            ),
            Self::NotLoopback { address } => (
                ErrorCode::InvalidInput,
                format!("use --listen 127.0.0.1:{}, and a tunnel to reach it from elsewhere", address.port()),
            ),
            Self::Fault(_) => (ErrorCode::InvalidInput, "write runtime:STEP or daemon:POINT".to_owned()),
            Self::Signals(_) => return ApiError::internal(self),
        };
        ApiError::new(code, bay_types::error::chain(self), next)
    }
}
