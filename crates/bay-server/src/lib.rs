//! The daemon: services, one reconciler per bay, and the REST API over a unix socket.
//!
//! ```text
//!   caller ──► listen (who is it) ──► api (read, answer) ──► service (verb)
//!                                                               │ one transaction: the wish and its event
//!                                                               ▼
//!   bay-store ◄──────────────────────────────────────── registry (rows in memory)
//!                                                               │ wakes
//!                     step (pure: wish + truth ─► what next)    ▼
//!   bay-pool, bay-backend, guest ◄──────────────────── reconcile, one task per bay
//!                                                               ▲
//!   guest events ──► follow ──► ends of execs                   └── timer, death of PID 1, idle
//!                                   ├──► telemetry: counters, costs, spans
//!                                   └──► changes: which files changed meanwhile
//!   held requests ──► approvals: asked, answered by a person, used; all of it on record
//!   a bay's connections ──► egress (policy, who, record) ──► the world; service/traffic reads that record for people
//! ```
//!
//! **Start**: lock the data directory, copy the executable, open store and pool, `adopt` what an earlier daemon left,
//! then listen. **End** (SIGTERM, SIGINT): stop accepting, finish requests, exit; bays go on, and the next daemon
//! adopts them.
//!
//! Failure paths:
//! * **The daemon is killed** at any line: every wish is in the store before anything is done about it, every step may
//!   be repeated, and what is half done is found again by the bay's id (`adopt`).
//! * **A guest dies**: the bay's state says so at once; it is started again a few times, then failed (`reconcile`).
//! * **A guest lies, floods or stalls**: bounded bodies, lines and waits (`channel`, `follow`).
//! * **A caller hangs up**: what it asked for goes on.
//! * **The disk is full or read-only, the database or the pool damaged**: a [`ServeError`] or an error answer that says
//!   what to do; nothing is deleted or overwritten.
//!
//! Tests can make the daemon or the runtime helper die at named points: see `fault`.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bay_backend::Backend;
use bay_backend_gvisor::Gvisor;
use bay_backend_local::{Local, LocalConfig};
use bay_pool::{Pool, PoolOptions};
use bay_store::Store;
use bay_types::ApiError;
use bay_types::backend::BackendName;
use futures_util::future::join_all;
use jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, RwLock, Semaphore, watch};

mod admission;
mod adopt;
mod api;
mod approvals;
mod authorize;
mod backends;
mod background;
mod byte_stream;
mod changes;
mod channel;
mod checked_output;
mod daemon;
mod egress;
mod fault;
mod follow;
mod followers;
mod gateway_files;
mod gateway_settings;
mod guest_connection;
mod host_size;
mod idle;
mod keyring;
mod last_usage;
mod ledger;
mod listen;
mod notify;
mod outgoing_http;
mod policies;
mod reconcile;
mod registry;
mod restarts;
mod secrets;
mod serve_error;
mod service;
mod spool;
mod startup;
mod step;
mod telemetry;
mod validate;
mod wishes;

pub use approvals::ApprovalsConfig;
use backends::Backends;
use background::blocking;
use daemon::Daemon;
use fault::Fault;
pub use gateway_settings::{EgressConfig, SshKey};
use host_size::HostSize;
pub use keyring::look as look_at_keys;
pub use serve_error::ServeError;
pub use telemetry::Collector;
use telemetry::Telemetry;

/// How often the pool is looked at for room.
const GROW_EVERY: Duration = Duration::from_secs(5);
/// How long a daemon that ends waits for those whose requests it holds to be told to come again.
const LET_GO_WITHIN: Duration = Duration::from_secs(2);
/// How long a daemon that ends waits for answers that are under way to reach the bays.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// How long a daemon that ends waits for the collector to take its last spans.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// How a daemon is set up; parsed by the caller from flags and environment.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Lock, database, socket, run directories and the executable's copy live here.
    pub data_dir: PathBuf,
    pub pool_dir: PathBuf,
    /// Where the API listens.
    pub socket: PathBuf,
    /// Loopback TCP beside it, for callers with the token.
    pub listen: Option<SocketAddr>,
    /// The executable that is copied and run as guest and runtime helper: this one.
    pub executable: PathBuf,
    pub pool_options: PoolOptions,
    /// Where spans of execs go.
    pub otlp: Option<Collector>,
    /// The backend of new bays for which nobody names one.
    pub backend: BackendName,
    /// The runsc to run bays inside gVisor with, instead of the first that is found.
    pub runsc: Option<PathBuf>,
    /// The CRIU to keep memory with, instead of the first that is found.
    pub criu: Option<PathBuf>,
    /// Memory that bays which go on from theirs leave to the host, instead of a share of it.
    pub memory_reserve_mib: Option<u64>,
    pub egress: EgressConfig,
    pub approvals: ApprovalsConfig,
    /// Tests: where to die.
    pub fault: Option<String>,
}

/// Runs a daemon until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start; see [`ServeError`].
pub async fn serve(config: ServerConfig) -> Result<(), ServeError> {
    let fault = Fault::parse(config.fault.as_deref()).map_err(ServeError::Fault)?;
    // Before anything is touched: an address that will not do is a slip of the keyboard.
    let tcp = match config.listen {
        Some(address) => Some(listen::tcp(address).await?),
        None => None,
    };
    startup::data_dir(&config.data_dir)?;
    let _lock = startup::lock(&config.data_dir)?;
    startup::harden();

    let store = Store::open(&config.data_dir.join("bay.db")).await?;
    let ledger = Arc::new(ledger::Ledger::open(&config.data_dir, &store).await?);
    let keys = keyring::Keyring::open(config.egress.key_file.as_deref(), &store).await?;
    let keys = Arc::new(keys);
    let egress = Arc::new(gateway_settings::GatewaySettings::new(
        &config.egress,
        &config.data_dir,
        Arc::clone(&keys),
    )?);
    let secrets = secrets::Vault::open(&config.data_dir, keys);
    let guest = {
        let (data_dir, executable) = (config.data_dir.clone(), config.executable.clone());
        tokio::task::spawn_blocking(move || startup::guest_copy(&data_dir, &executable))
            .await
            .map_err(|e| ServeError::Adopt(ApiError::internal(&e)))??
    };
    let current = guest.clone();
    let on_record = !store.bay_list().await?.is_empty();
    let pool = open_pool(&config, store.daemon_id().to_owned(), on_record).await?;
    let drivers = drivers(&config, store.daemon_id(), guest, &fault).await;
    let backends = Backends::new(drivers, config.backend.clone())
        .map_err(|known| ServeError::Backend { name: config.backend.clone(), known })?;
    let telemetry = Telemetry::new(config.otlp.clone(), store.daemon_id());
    telemetry.costs.restore(store.cost_list().await?);
    let host = HostSize::here();
    let policies = Arc::<policies::Policies>::default();
    let approvals = approvals::Approvals::new(config.approvals, store.clone(), Arc::clone(&policies));
    let daemon = Arc::new(Daemon {
        store,
        ledger,
        egress,
        secrets,
        pool: OnceLock::from(pool),
        backends,
        bays: registry::Registry::default(),
        start_reconciler: reconcile::spawn,
        fault,
        admission: admission::Admission::new(config.memory_reserve_mib, host.memory_mib),
        host,
        data_dir: config.data_dir.clone(),
        pool_dir: config.pool_dir.clone(),
        started_at: Timestamp::now(),
        importing: Mutex::default(),
        making: RwLock::default(),
        last_usage: last_usage::LastUsage::default(),
        uploads: Semaphore::new(daemon::MAX_UPLOADS),
        diffs: Arc::new(Semaphore::new(service::diff::MAX_DIFFS)),
        telemetry,
        changes: Arc::default(),
        approvals,
        policies,
        notify: notify::Notify::new(&config.data_dir),
    });
    daemon.approvals.restore().await?;
    notify::restore(&daemon.notify, &daemon.egress).await;
    adopt::adopt(&daemon).await.map_err(ServeError::Adopt)?;
    startup::drop_old_copies(&current);

    let tcp = match tcp {
        Some(listener) => {
            let port = listener.local_addr().map_or(0, |address| address.port());
            let gate = listen::Gate::new(&startup::token(&config.data_dir)?, port);
            Some((listener, gate))
        }
        None => None,
    };
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
    let (unix, socket) = listen::unix(&config.socket)?;
    tracing::info!(
        version = bay_types::VERSION,
        pid = std::process::id(),
        socket = %config.socket.display(),
        listen = ?tcp.as_ref().and_then(|(listener, _)| listener.local_addr().ok()),
        bays = daemon.bays.list().len(),
        "ready"
    );

    let (end, ending) = watch::channel(false);
    let asked_to_end = Arc::clone(&daemon);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("asked to end; bays go on");
        let _ = end.send(true);
        // Whoever waits for a person is told to come again, and does not keep this daemon from ending.
        asked_to_end.approvals.close(Duration::ZERO).await;
        // The sender lives until the process ends, so that nobody takes its end for a signal.
        std::future::pending::<()>().await;
    });
    tokio::spawn(grow_pool(Arc::clone(&daemon)));
    tokio::spawn(ledger::keep_heads(Arc::clone(&daemon.ledger), daemon.store.clone()));
    let swept = Arc::clone(&daemon);
    tokio::spawn(async move { swept.approvals.sweep().await });
    tokio::spawn(service::secrets::record_refreshes(Arc::clone(&daemon)));
    tokio::spawn(service::webhooks::follow(Arc::clone(&daemon)));
    if let Some(pool) = daemon.pool.get() {
        tokio::spawn(changes::watch(Arc::clone(&daemon.changes), daemon.store.clone(), pool.clone()));
    }
    tokio::spawn(service::costs::watch(Arc::clone(&daemon)));
    tokio::spawn(service::costs::watch_disks(Arc::clone(&daemon)));
    listen::serve(api::router(Arc::clone(&daemon)), unix, tcp, ending).await;
    socket.remove();
    // Whoever is held is told to come again, by a connection that is still there.
    daemon.approvals.close(LET_GO_WITHIN).await;
    let bays = daemon.bays.list();
    let open: Vec<_> = bays.iter().filter_map(|handle| handle.egress()).collect();
    join_all(open.iter().map(|egress| egress.finish(ANSWER_WITHIN))).await;
    for handle in bays {
        handle.close_egress().await;
    }
    service::costs::save(&daemon).await;
    if let Some(spans) = &daemon.telemetry.spans {
        spans.flush(FLUSH_WITHIN).await;
    }
    if let Err(error) = daemon.ledger.sign().await {
        tracing::warn!(message = %error.message, "the last head of the ledger was not kept");
    }
    daemon.store.close().await;
    Ok(())
}

/// The drivers that this host can run bays with.
async fn drivers(
    config: &ServerConfig,
    daemon_id: &str,
    guest: PathBuf,
    fault: &Fault,
) -> Vec<Arc<dyn Backend>> {
    let local = Local::open(LocalConfig {
        run_dir: config.data_dir.join("run"),
        cgroup: PathBuf::from("workbay").join(daemon_id),
        helper: guest.clone(),
        guest,
        criu: config.criu.clone(),
        die_before: fault.runtime.clone(),
    });
    let local = Arc::new(local.await);
    let mut drivers: Vec<Arc<dyn Backend>> = vec![local.clone()];
    match Gvisor::open(local, config.runsc.clone()).await {
        Ok(gvisor) => drivers.push(Arc::new(gvisor)),
        Err(why) => tracing::info!(why, "there is no backend gvisor"),
    }
    drivers
}

/// Agents fill the pool without asking; it grows ahead of them while the host's disk has room.
async fn grow_pool(daemon: Arc<Daemon>) {
    let mut told = false;
    loop {
        tokio::time::sleep(GROW_EVERY).await;
        match daemon.with_pool(Pool::grow_if_needed).await {
            Ok(grew) => {
                if grew {
                    tracing::info!("the pool grew");
                }
                told = false;
            }
            // Once per stretch of trouble, not every few seconds.
            Err(error) if !told => {
                tracing::warn!(message = %error.message, "the pool cannot grow");
                told = true;
            }
            Err(_) => {}
        }
    }
}

/// Opening may make, mount, check or grow the pool: its news go to the log.
async fn open_pool(config: &ServerConfig, corner: String, must_exist: bool) -> Result<Pool, ServeError> {
    let dir = config.pool_dir.clone();
    let options = PoolOptions { must_exist, ..config.pool_options.clone() };
    let opened = blocking(move || {
        let mut stage = String::new();
        Ok(Pool::open(&dir, &corner, &options, &mut |progress| {
            if progress.stage != stage {
                tracing::info!(stage = progress.stage, "opening the pool");
                stage = progress.stage;
            }
        }))
    });
    Ok(opened.await.map_err(ServeError::Adopt)??)
}
