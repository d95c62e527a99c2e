//! What all verbs and reconcilers share.

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

/// Uploads of bundles at the same time. Each takes a blocking thread, which the pool's own work needs too.
pub(crate) const MAX_UPLOADS: usize = 32;
/// How long another upload waits for its turn.
const UPLOAD_TURN_WITHIN: Duration = Duration::from_secs(30);
/// How long a removal waits for bays that are being made.
const ALONE_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Daemon {
    pub(crate) store: Store,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) egress: Arc<GatewaySettings>,
    pub(crate) secrets: Vault,
    /// Without a pool, as in some tests, verbs that need a disk answer that the caller should retry.
    pub(crate) pool: OnceLock<Pool>,
    pub(crate) backends: Backends,
    pub(crate) bays: Registry,
    /// Starts the reconciler of a bay. Verbs are below the reconcilers and do not name them.
    pub(crate) start_reconciler: fn(Arc<Daemon>, Arc<BayHandle>),
    pub(crate) fault: Fault,
    pub(crate) host: HostSize,
    /// Admits bays that are restored from memory checkpoints.
    pub(crate) admission: Admission,
    pub(crate) data_dir: PathBuf,
    pub(crate) pool_dir: PathBuf,
    pub(crate) started_at: Timestamp,
    /// One import at a time. A second import of the same image finds the result of the first.
    pub(crate) importing: Mutex<()>,
    /// Locked for reading while a bay is made from an image and a repository, and for writing while one of those is
    /// removed.
    pub(crate) making: RwLock<()>,
    /// One report of the disk at a time.
    pub(crate) measuring_disk: Mutex<()>,
    /// What all bays used when it was last measured.
    pub(crate) last_usage: LastUsage,
    /// Each upload of a bundle occupies a blocking thread until its sender is done.
    pub(crate) uploads: Semaphore,
    /// Each comparison of trees needs a blocking thread, a snapshot and much memory.
    pub(crate) diffs: Arc<Semaphore>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) changes: Arc<Changes>,
    pub(crate) policies: Arc<Policies>,
    pub(crate) approvals: Approvals,
    pub(crate) notify: Notify,
}

impl Daemon {
    /// The limits that a new bay may have now. If the pool does not report its size, it sets no limit here.
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

    /// Excludes the making of bays while something is removed that they are made from. A fetch or import that takes
    /// long has precedence: waiting for it would delay every new bay.
    pub(crate) async fn alone(&self) -> Result<RwLockWriteGuard<'_, ()>, CoreError> {
        tokio::time::timeout(ALONE_WITHIN, self.making.write()).await.map_err(|_| {
            CoreError::new(
                ErrorCode::Interrupted,
                "a bay is being made right now, and may need what would be removed",
                "repeat the command when the bay is made",
            )
        })
    }

    /// The turn for an upload.
    pub(crate) async fn upload_turn(&self) -> Result<SemaphorePermit<'_>, CoreError> {
        match tokio::time::timeout(UPLOAD_TURN_WITHIN, self.uploads.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => Err(CoreError::new(
                ErrorCode::Interrupted,
                format!("{MAX_UPLOADS} repositories are being uploaded, the most allowed at a time"),
                "repeat the command when one of the uploads has ended",
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

    /// The bay as it is at this moment. The reconciler notices a death within milliseconds. Until it has stored that,
    /// the row says that the bay runs, so this asks the backend.
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
                // All processes are on disk, so the end of the runtime is no loss.
                Some(from) if row.desired == Desired::Paused => (State::Paused, paused_on(from.checkpoint)),
                _ => (State::Stopped, "the guest died just now".to_owned()),
            };
            view.host_pid = None;
        }
        view
    }

    /// The bay as it was last stored.
    pub(crate) fn view(&self, handle: &BayHandle) -> BayView {
        let row = handle.row();
        // The recorded state of a bay without its driver is kept, but nobody can check it.
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
            environment: row.environment,
            limits: row.spec.limits,
            idle_stop_s: row.spec.idle_stop_s,
            durability: row.spec.durability,
            mounts: row.spec.mounts,
            user: row.spec.user,
            reach: row.spec.reach,
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

/// The reason of a bay that is paused on disk.
pub(crate) fn paused_on(checkpoint: CheckpointName) -> String {
    format!("on disk as {checkpoint}; it outlives a reboot")
}
