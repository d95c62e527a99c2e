//! Start and end of the core.
//!
//! [`Daemon::assemble`] builds it from the parts that the caller opened. [`Daemon::begin`] adopts the bays of an
//! earlier daemon and starts the background tasks. [`Daemon::finish`] ends it after the last API server (front) has
//! closed.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bay_backend::Backend;
use bay_pool::Pool;
use bay_store::Store;
use bay_types::backend::BackendName;
use futures_util::future::join_all;
use jiff::Timestamp;
use tokio::sync::{Mutex, RwLock, Semaphore};

use crate::admission::Admission;
use crate::approvals::{Approvals, ApprovalsConfig};
use crate::backends::Backends;
use crate::daemon::{Daemon, MAX_UPLOADS};
use crate::fault::Fault;
use crate::gateway_settings::{EgressConfig, GatewaySettings};
use crate::host_size::HostSize;
use crate::keyring::Keyring;
use crate::ledger::Ledger;
use crate::notify::Notify;
use crate::open_error::OpenError;
use crate::policies::Policies;
use crate::registry::Registry;
use crate::secrets::Vault;
use crate::telemetry::{Collector, Telemetry};
use crate::verbs::diff::MAX_DIFFS;
use crate::{adopt, changes, ledger, notify, reconcile, verbs};

/// Interval between checks of the pool's free space.
const GROW_EVERY: Duration = Duration::from_secs(5);
/// After so many checks in a row that found the pool roomy, it shrinks a step with each further check. Space that
/// is free for a moment only must not cause a shrink and then a growth.
const SHRINK_AFTER_CHECKS: u32 = 12;
/// How long an ending daemon waits until the clients of held requests have their answer.
const HELD_REQUESTS_WITHIN: Duration = Duration::from_secs(2);
/// How long an ending daemon waits until answers that are under way have reached the bays.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// How long an ending daemon waits for the collector to take its last spans.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// The parts that the core works with.
#[derive(Debug)]
pub struct Parts {
    pub store: Store,
    /// Without a pool, as in some tests, verbs that need a disk are refused.
    pub pool: Option<Pool>,
    pub backends: Vec<Arc<dyn Backend>>,
    /// The backend of a new bay if its creator names none.
    pub backend: BackendName,
    pub data_dir: PathBuf,
    pub pool_dir: PathBuf,
    pub host: HostSize,
    /// Memory that restores from memory checkpoints leave free on the host. If `None`, a twentieth of the host's memory,
    /// at least 256 MiB.
    pub memory_reserve_mib: Option<u64>,
    /// Where spans of bays, execs and their requests are sent.
    pub otlp: Option<Collector>,
    pub egress: EgressConfig,
    pub approvals: ApprovalsConfig,
    /// For tests: where the daemon kills itself.
    pub fault: Fault,
}

impl Daemon {
    /// Builds the core from its parts. If a collector is set, the task that sends spans starts here. The other
    /// tasks start in [`Daemon::begin`] or later.
    ///
    /// # Errors
    /// If a key, a file of the gateway or the store cannot be used, or the default backend is not among `backends`.
    pub async fn assemble(parts: Parts) -> Result<Arc<Self>, OpenError> {
        let Parts { store, data_dir, host, .. } = parts;
        let ledger = Arc::new(Ledger::open(&data_dir, &store).await?);
        let keys = Arc::new(Keyring::open(parts.egress.key_file.as_deref(), &store).await?);
        let egress = Arc::new(GatewaySettings::new(&parts.egress, &data_dir, Arc::clone(&keys))?);
        let backends = Backends::new(parts.backends, parts.backend.clone())
            .map_err(|known| OpenError::Backend { name: parts.backend, known })?;
        let telemetry = Telemetry::new(parts.otlp, store.daemon_id());
        telemetry.costs.restore(store.cost_list().await?);
        let policies = Arc::<Policies>::default();
        let approvals = Approvals::new(parts.approvals, store.clone(), Arc::clone(&policies));
        Ok(Arc::new(Self {
            store,
            ledger,
            egress,
            secrets: Vault::open(&data_dir, keys),
            pool: parts.pool.map_or_else(OnceLock::new, OnceLock::from),
            backends,
            bays: Registry::default(),
            start_reconciler: reconcile::spawn,
            fault: parts.fault,
            host,
            admission: Admission::new(parts.memory_reserve_mib, host.memory_mib),
            notify: Notify::new(&data_dir),
            data_dir,
            pool_dir: parts.pool_dir,
            started_at: Timestamp::now(),
            importing: Mutex::default(),
            making: RwLock::default(),
            measuring_disk: Mutex::default(),
            last_usage: crate::last_usage::LastUsage::default(),
            uploads: Semaphore::new(MAX_UPLOADS),
            diffs: Arc::new(Semaphore::new(MAX_DIFFS)),
            telemetry: Arc::new(telemetry),
            changes: Arc::default(),
            policies,
            approvals,
        }))
    }

    /// Adopts the bays of an earlier daemon, and starts the background tasks.
    ///
    /// # Errors
    /// If the store cannot be read, or the bays cannot be adopted.
    pub async fn begin(self: &Arc<Self>) -> Result<(), OpenError> {
        self.approvals.restore().await?;
        notify::restore(&self.notify, &self.egress).await;
        adopt::adopt(self).await.map_err(OpenError::Adopt)?;
        tokio::spawn(resize_pool(Arc::clone(self)));
        verbs::images::remove_superseded_soon(self);
        tokio::spawn(ledger::keep_heads(Arc::clone(&self.ledger), self.store.clone()));
        let daemon = Arc::clone(self);
        tokio::spawn(async move { daemon.approvals.sweep().await });
        tokio::spawn(verbs::secrets::record_refreshes(Arc::clone(self)));
        tokio::spawn(verbs::webhooks::follow(Arc::clone(self)));
        if let Some(pool) = self.pool.get() {
            tokio::spawn(changes::watch(Arc::clone(&self.changes), self.store.clone(), pool.clone()));
        }
        tokio::spawn(verbs::costs::watch(Arc::clone(self)));
        tokio::spawn(verbs::costs::watch_disks(Arc::clone(self)));
        Ok(())
    }

    /// How many bays there are.
    #[must_use]
    pub fn bay_count(&self) -> usize {
        self.bays.list().len()
    }

    /// Asks no new questions, and answers the clients of held requests that they should retry. An ending daemon does
    /// not wait for a person.
    pub async fn stop_asking(&self) {
        self.approvals.close(Duration::ZERO).await;
    }

    /// Ends the core after the last API server (front) has closed. The bays keep running.
    pub async fn finish(&self) {
        // While the gateways are still open, each client of a held request gets its answer on its own connection.
        self.approvals.close(HELD_REQUESTS_WITHIN).await;
        let bays = self.bays.list();
        let open: Vec<_> = bays.iter().filter_map(|handle| handle.egress()).collect();
        join_all(open.iter().map(|egress| egress.finish(ANSWER_WITHIN))).await;
        for handle in bays {
            handle.close_egress().await;
        }
        verbs::costs::save(self).await;
        if let Some(spans) = &self.telemetry.spans {
            spans.flush(FLUSH_WITHIN).await;
        }
        if let Err(error) = self.ledger.sign().await {
            tracing::warn!(message = %error.message, "the last head of the ledger could not be stored");
        }
        self.store.close().await;
    }
}

/// Grows the pool when little of it is free, while the host's disk has space. If much of it stays free, gives that
/// back to the host.
async fn resize_pool(daemon: Arc<Daemon>) {
    let mut is_reported = false;
    let mut roomy_checks = 0;
    loop {
        tokio::time::sleep(GROW_EVERY).await;
        let roomy = daemon.with_pool(Pool::is_roomy).await.unwrap_or(false);
        roomy_checks = if roomy { roomy_checks + 1 } else { 0 };
        if roomy_checks > SHRINK_AFTER_CHECKS
            && let Err(error) = daemon.with_pool(Pool::shrink_if_roomy).await
        {
            tracing::warn!(message = %error.message, "the pool could not shrink");
            roomy_checks = 0;
        }
        match daemon.with_pool(Pool::grow_if_needed).await {
            Ok(grew) => {
                if grew {
                    tracing::info!("the pool grew");
                }
                is_reported = false;
            }
            // Reported once per stretch of failures, not every few seconds.
            Err(error) if !is_reported => {
                tracing::warn!(message = %error.message, "the pool cannot grow");
                is_reported = true;
            }
            Err(_) => {}
        }
    }
}
