//! What every service and reconciler shares.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bay_backend::Seen;
use bay_pool::{Pool, PoolError};
use bay_store::Store;
use bay_types::bay::{BayView, Desired, State};
use bay_types::{CheckpointName, CoreError, ErrorCode};
use jiff::Timestamp;
use tokio::sync::{Mutex, RwLock, RwLockWriteGuard, Semaphore, SemaphorePermit};

use crate::admission::Admission;
use crate::approvals::Approvals;
use crate::backends::Backends;
use crate::background::blocking;
use crate::changes::Changes;
use crate::fault::Fault;
use crate::gateway_settings::GatewaySettings;
use crate::host_size::HostSize;
use crate::last_usage::LastUsage;
use crate::ledger::Ledger;
use crate::notify::Notify;
use crate::policies::Policies;
use crate::registry::{BayHandle, Registry};
use crate::secrets::Vault;
use crate::telemetry::Telemetry;

/// Bundles uploaded at once. The pool's own work needs blocking threads too, and there are not endlessly many.
pub(crate) const MAX_UPLOADS: usize = 32;
/// How long one more waits for its turn.
const UPLOAD_TURN_WITHIN: Duration = Duration::from_secs(30);
/// How long a removal waits for bays that are being made.
const ALONE_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Daemon {
    pub(crate) store: Store,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) egress: Arc<GatewaySettings>,
    pub(crate) secrets: Vault,
    /// Set once the pool is open; whatever needs disk before that is told to come back.
    pub(crate) pool: OnceLock<Pool>,
    pub(crate) backends: Backends,
    pub(crate) bays: Registry,
    /// Starts the reconciler of a bay. Verbs stand below the reconcilers and do not name them.
    pub(crate) start_reconciler: fn(Arc<Daemon>, Arc<BayHandle>),
    pub(crate) fault: Fault,
    pub(crate) host: HostSize,
    /// Lets bays in that go on from their memory.
    pub(crate) admission: Admission,
    pub(crate) data_dir: PathBuf,
    pub(crate) pool_dir: PathBuf,
    pub(crate) started_at: Timestamp,
    /// One import at a time: a second one for the same image finds the first one's result.
    pub(crate) importing: Mutex<()>,
    /// Read while a bay is made from an image and a repository, written while one of those is removed.
    pub(crate) making: RwLock<()>,
    /// What all bays used a moment ago.
    pub(crate) last_usage: LastUsage,
    /// Each upload of a bundle holds a blocking thread for as long as its sender takes.
    pub(crate) uploads: Semaphore,
    /// Each comparison of trees holds a blocking thread, a snapshot and much memory.
    pub(crate) diffs: Arc<Semaphore>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) changes: Arc<Changes>,
    pub(crate) policies: Arc<Policies>,
    pub(crate) approvals: Approvals,
    pub(crate) notify: Notify,
}

impl Daemon {
    /// What a new bay may ask for at this moment. A pool that does not tell its size refuses nothing here; it is full
    /// when it is full.
    pub(crate) fn room(&self) -> HostSize {
        let capacity = self.pool.get().and_then(|pool| pool.capacity().ok());
        HostSize { disk_mib: capacity.map_or(self.host.disk_mib, |bytes| bytes >> 20), ..self.host }
    }

    pub(crate) fn pool(&self) -> Result<Pool, CoreError> {
        self.pool.get().cloned().ok_or_else(|| {
            CoreError::new(
                ErrorCode::Interrupted,
                "the pool is not open yet",
                "repeat the command in a moment",
            )
        })
    }

    /// Keeps bays from being made while something they are made from is removed. A fetch or import that takes long wins:
    /// waiting for it would hold up every new bay.
    pub(crate) async fn alone(&self) -> Result<RwLockWriteGuard<'_, ()>, CoreError> {
        tokio::time::timeout(ALONE_WITHIN, self.making.write()).await.map_err(|_| {
            CoreError::new(
                ErrorCode::Interrupted,
                "a bay is being made right now, and may be made from what is to be removed",
                "repeat the command when it is done",
            )
        })
    }

    /// A place among those who upload.
    pub(crate) async fn upload_turn(&self) -> Result<SemaphorePermit<'_>, CoreError> {
        match tokio::time::timeout(UPLOAD_TURN_WITHIN, self.uploads.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => Err(CoreError::new(
                ErrorCode::Interrupted,
                format!("{MAX_UPLOADS} repositories are being uploaded already"),
                "repeat the command when some of them are done",
            )),
        }
    }

    /// Runs blocking pool work off the async threads.
    pub(crate) async fn with_pool<T, F>(&self, work: F) -> Result<T, CoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Pool) -> Result<T, PoolError> + Send + 'static,
    {
        let pool = self.pool()?;
        blocking(move || work(&pool).map_err(|e| e.to_api())).await
    }

    /// The bay as it is this very moment. The reconciler hears of a death within milliseconds; until it has written that
    /// down, nobody shall be told that the bay runs.
    pub(crate) async fn view_now(&self, handle: &BayHandle) -> BayView {
        let mut view = self.view(handle);
        let record = handle.row().runtime;
        if matches!(view.state, State::Running | State::Paused)
            && let Some(record) = record
            && handle.driver_missing.is_none()
            && handle.backend.inspect(handle.id, &record).await == Seen::Gone
        {
            let row = handle.row();
            (view.state, view.reason) = match row.thaw_from {
                // Everything that ran is on disk: its end is no loss.
                Some(from) if row.desired == Desired::Paused => (State::Paused, paused_on(from.checkpoint)),
                _ => (State::Stopped, "the guest died just now".to_owned()),
            };
            view.host_pid = None;
        }
        view
    }

    pub(crate) fn view(&self, handle: &BayHandle) -> BayView {
        let row = handle.row();
        // What is on record of a bay whose driver is missing is kept, but nobody knows whether it is true.
        let (state, reason, capabilities) = match &handle.driver_missing {
            Some(why) => (State::Failed, why.clone(), None),
            None => (row.state, row.reason, Some(handle.backend.capabilities())),
        };
        BayView {
            id: row.id,
            name: row.name,
            state,
            reason,
            since: row.since,
            desired: row.desired,
            created_at: row.created_at,
            image: row.spec.image,
            image_id: row.image_id,
            origin: row.origin,
            checkpoint: row.checkpoint,
            forked_from: row.forked_from,
            limits: row.spec.limits,
            idle_stop_s: row.spec.idle_stop_s,
            mounts: row.spec.mounts,
            backend: row.backend,
            isolation: handle.backend.isolation(),
            capabilities,
            workspace: bay_types::guest::WORKSPACE.to_owned(),
            execs_running: handle.execs_open() as u64,
            host_pid: row.runtime.and_then(|runtime| handle.backend.facts(&runtime).host_pid),
            cost: Some(self.telemetry.costs.cost(row.id, row.created_at)),
        }
    }
}

/// Why a bay is paused whose processes are all in a checkpoint.
pub(crate) fn paused_on(checkpoint: CheckpointName) -> String {
    format!("on disk as {checkpoint}; it outlives a reboot")
}
