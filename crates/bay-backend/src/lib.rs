//! The one interface behind which a bay can run anywhere, and its drivers.
//!
//! A backend starts, finds, freezes and clears runtimes. It keeps no state of its own: what it needs to find a runtime
//! again is derived from the bay's id or was returned as a [`RuntimeRecord`]. Differences between drivers belong in
//! what they say of themselves ([`Backend::isolation`]), not in more verbs.
//!
//! | verb      | promise                                                                                        |
//! |-----------|------------------------------------------------------------------------------------------------|
//! | `start`   | the guest runs and listens, or nothing is left; anything an earlier start left is cleared first |
//! | `inspect` | the truth at this moment, never a memory of it                                                 |
//! | `set_limits` | they hold when it returns, and nothing that runs was killed to make them fit                 |
//! | `stats`   | what the bay uses as the host measures it; what this host does not measure is absent           |
//! | `clear`   | ends and removes everything of that bay's runtime; harmless when there is nothing              |
//! | `leftovers` | every bay id of which this backend still holds anything                                      |
#![forbid(unsafe_code)]

use std::fmt::Debug;
use std::io;

use async_trait::async_trait;
use bay_pool::BayDisk;
pub use bay_runtime::LimitEvents;
use bay_types::bay::{Author, Isolation, Limits, Mount};
use bay_types::runtime::RuntimeRecord;
use bay_types::stats::BayStats;
use bay_types::{ApiError, BayId, BayName, ErrorCode};
use tokio::net::UnixStream;

pub use bay_runtime::NetworkUse;

pub mod local;

/// Why a runtime could not be started, frozen or cleared.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error("the runtime helper could not be run")]
    Helper(#[source] io::Error),
    #[error("the runtime helper failed at step {step}: {message}")]
    Step { step: String, message: String },
    #[error("the runtime helper did not come to an end and was killed")]
    HelperSlow,
    #[error("the runtime helper ended without an answer ({status})")]
    HelperLost { status: String },
    #[error("{0}")]
    Hangs(String),
    #[error("{0}")]
    LimitInUse(String),
    #[error("{0}")]
    LimitUnsupported(String),
}

impl BackendError {
    #[must_use]
    pub fn to_api(&self) -> ApiError {
        match self {
            Self::Hangs(_) => {
                return ApiError::new(
                    ErrorCode::BayFailed,
                    self.to_string(),
                    "only what it waits for can release it: a disk, or a directory of the host that the bay has mounted; \
                     a stop or removal that was asked for goes on by itself then",
                );
            }
            Self::LimitInUse(_) => {
                return ApiError::new(
                    ErrorCode::BayState,
                    self.to_string(),
                    "end something in it first (`bay execs ls NAME`), or give it more; the old limits hold",
                );
            }
            Self::LimitUnsupported(_) => {
                return ApiError::new(
                    ErrorCode::HostUnfit,
                    self.to_string(),
                    "leave that limit out; `bay doctor` tells which controllers this host has",
                );
            }
            _ => {}
        }
        ApiError::new(
            ErrorCode::BayFailed,
            bay_types::error::chain(self),
            "`bay doctor` tells what this host lacks; `bay start NAME` tries again",
        )
    }
}

/// What a runtime is made from.
#[derive(Debug, Clone)]
pub struct StartSpec {
    pub bay: BayId,
    pub name: BayName,
    pub machine_id: String,
    pub author: Option<Author>,
    pub disk: BayDisk,
    pub mounts: Vec<Mount>,
    pub id_base: u32,
    pub limits: Limits,
    /// The disks that the pool is on, each as `major:minor`.
    pub io_devices: Vec<String>,
}

/// Limits for a runtime that runs.
#[derive(Debug, Clone)]
pub struct LimitSpec {
    pub bay: BayId,
    pub id_base: u32,
    pub limits: Limits,
    pub io_devices: Vec<String>,
}

/// What is true of a runtime right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    Running,
    Paused,
    Gone,
}

#[async_trait]
pub trait Backend: Send + Sync + Debug {
    fn isolation(&self) -> Isolation;
    async fn start(&self, spec: &StartSpec) -> Result<RuntimeRecord, BackendError>;
    async fn inspect(&self, bay: BayId, record: &RuntimeRecord) -> Seen;
    /// What it uses at this moment, measured from outside of it.
    async fn stats(&self, bay: BayId, record: &RuntimeRecord) -> BayStats;
    /// What it has to do with the world outside of it.
    async fn network(&self, record: &RuntimeRecord) -> NetworkUse;
    async fn clear(&self, bay: BayId) -> Result<(), BackendError>;
    async fn pause(&self, bay: BayId) -> Result<(), BackendError>;
    async fn resume(&self, bay: BayId) -> Result<(), BackendError>;
    /// Whether this host can keep these limits at all.
    fn can_keep(&self, limits: &Limits) -> Result<(), BackendError>;
    /// Gives a running or paused bay other limits. May have set some of them when it fails.
    async fn set_limits(&self, spec: &LimitSpec) -> Result<(), BackendError>;
    /// How often a bay was held to its limits so far. Cheap: asked for with every exec. Zero where nobody counts.
    fn limit_events(&self, _bay: BayId) -> LimitEvents {
        LimitEvents::default()
    }
    /// A fresh connection to the guest.
    async fn connect(&self, bay: BayId) -> io::Result<UnixStream>;
    /// Returns when that very PID 1 is gone (at once when it already is).
    async fn wait_gone(&self, record: &RuntimeRecord);
    async fn leftovers(&self) -> Result<Vec<BayId>, BackendError>;
}
