//! What all execs of a guest share: directories, the bay's identity, limits and the log.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bay_sys::seccomp::{BpfProgram, sock_filter, without_flushes};
use bay_types::durability::Durability;
use jiff::Timestamp;

use super::{Bounds, TerminalClock};
use crate::log::Log;
use crate::sentinels::Sentinels;

/// What all execs of this guest have in common.
#[derive(Debug)]
pub(crate) struct ExecContext {
    pub(crate) state: OwnedFd,
    pub(crate) root: OwnedFd,
    /// Opened before any other process of the bay could replace `/dev/null`.
    pub(crate) null: OwnedFd,
    pub(crate) cgroup: Option<Arc<OwnedFd>>,
    pub(crate) identity: Arc<BayIdentity>,
    pub(crate) sentinels: Arc<Sentinels>,
    pub(crate) bounds: Bounds,
    /// Limit of open files (soft, hard) that commands get. The guest raises its own limit.
    pub(crate) open_files: Option<(u64, u64)>,
    pub(crate) flushes: Arc<Flushes>,
    pub(crate) started_at: Timestamp,
    /// Whether these execs are runs of services. The first variable of a run's environment then names its service.
    pub(crate) services: bool,
    /// When input or output last went through any terminal.
    pub(crate) terminals: Arc<TerminalClock>,
    pub(crate) log: Arc<Log>,
}

/// The id and name of the bay. A fork gets its own, different from its parent's.
#[derive(Debug)]
pub(crate) struct BayIdentity(Mutex<(String, String)>);

impl BayIdentity {
    pub(crate) fn new(bay_id: String, hostname: String) -> Self {
        Self(Mutex::new((bay_id, hostname)))
    }

    pub(crate) fn replace(&self, bay_id: String, hostname: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (bay_id, hostname);
    }

    /// The bay's id and its name.
    pub(crate) fn current(&self) -> (String, String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What flushes of commands that are started from now on wait for.
#[derive(Debug)]
pub(crate) struct Flushes {
    relaxed: AtomicBool,
    /// The filter of relaxed commands. `None` if this machine has no filters.
    filter: Option<BpfProgram>,
}

impl Flushes {
    pub(crate) fn new(durability: Durability, log: &Log) -> Self {
        let filter = without_flushes().inspect_err(|error| {
            log.line("flushes.refused", format_args!("error={error}"));
        });
        Self { relaxed: AtomicBool::new(durability == Durability::Relaxed), filter: filter.ok() }
    }

    pub(crate) fn set(&self, durability: Durability) {
        self.relaxed.store(durability == Durability::Relaxed, Ordering::Relaxed);
    }

    /// The filter of a command that is started now.
    pub(super) fn filter(&self) -> Option<&[sock_filter]> {
        self.filter.as_deref().filter(|_| self.relaxed.load(Ordering::Relaxed))
    }
}

impl ExecContext {
    /// The context for runs of services in the same bay. Their output is kept in another directory.
    pub(crate) fn for_services(&self, state: OwnedFd, bounds: Bounds) -> std::io::Result<Self> {
        Ok(Self {
            state,
            root: self.root.try_clone()?,
            null: self.null.try_clone()?,
            cgroup: self.cgroup.clone(),
            identity: Arc::clone(&self.identity),
            sentinels: Arc::clone(&self.sentinels),
            bounds,
            open_files: self.open_files,
            flushes: Arc::clone(&self.flushes),
            started_at: self.started_at,
            services: true,
            terminals: Arc::clone(&self.terminals),
            log: Arc::clone(&self.log),
        })
    }
}
