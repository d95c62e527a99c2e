//! The daemon: opens what the core works with, listens, and ends in order.
//!
//! ```text
//!   caller ──► listen (who is it) ──► a front (parse, encode) ──► bay-core (verbs)
//! ```
//!
//! **Start**: reserve the TCP address, lock the data directory, open the store, copy the executable, open the
//! pool, find the drivers, let the core adopt the bays of an earlier daemon, then listen on the socket and accept.
//! **End** (SIGTERM, SIGINT): stop accepting, give requests some seconds to finish, exit. Bays keep running, and
//! the next daemon adopts them.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::Arc;

use bay_backend::Backend;
use bay_backend_gvisor::Gvisor;
use bay_backend_local::{Local, LocalConfig};
use bay_core::{Daemon, Fault, HostSize, OpenError, Parts};
use bay_pool::{Pool, PoolOptions};
use bay_store::Store;
use bay_types::CoreError;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

mod config;
mod group;
mod listen;
mod serve_error;
mod startup;

pub use bay_core::{ApprovalsConfig, Collector, EgressConfig, SshKey, look_at_keys};
pub use config::ServerConfig;
pub use listen::RestFront;
pub use serve_error::ServeError;

/// Runs a daemon until SIGTERM or SIGINT.
///
/// # Errors
/// If it cannot start; see [`ServeError`].
pub async fn serve(config: ServerConfig, rest: RestFront) -> Result<(), ServeError> {
    fault(&config)?;
    // Check the address first: if it is unusable, nothing was changed yet.
    let tcp = match config.listen {
        Some(address) => Some(listen::tcp(address).await?),
        None => None,
    };
    let group = group::id_of(&config.group);
    let shares_data_dir = group.filter(|_| config.socket.starts_with(&config.data_dir));
    startup::data_dir(&config.data_dir, shares_data_dir)?;
    let _lock = startup::lock(&config.data_dir)?;
    startup::harden();

    let store = Store::open(&config.data_dir.join("bay.db")).await?;
    let (data_dir, executable) = (config.data_dir.clone(), config.executable.clone());
    let guest = off_the_async_threads(move || startup::guest_copy(&data_dir, &executable)).await?;
    let on_record = !store.bay_list().await?.is_empty();
    let key = bay_core::key_path(config.egress.key_file.as_deref(), store.daemon_id());
    let new_key = bay_core::makes_key(&key, &store).await?;
    startup::keep_record(&config, store.daemon_id(), new_key.then_some(&key))?;
    let opened = open(&config, &store, guest.clone(), on_record, group).await;
    if opened.is_err() && new_key && !on_record {
        bay_core::forget_new_key(&key, &store).await?;
    }
    let (daemon, unix, socket) = opened?;
    startup::drop_old_copies(&guest);

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
    tracing::info!(
        version = bay_types::VERSION,
        pid = std::process::id(),
        socket = %config.socket.display(),
        listen = ?tcp.as_ref().and_then(|(listener, _)| listener.local_addr().ok()),
        bays = daemon.bay_count(),
        "ready"
    );

    let (end, ending) = watch::channel(false);
    let asked_to_end = Arc::clone(&daemon);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping; bays keep running");
        let _ = end.send(true);
        asked_to_end.stop_asking().await;
        // The sender must live until the process ends, because its drop would count as a signal.
        std::future::pending::<()>().await;
    });
    listen::serve(rest, Arc::clone(&daemon), unix, tcp, ending).await;
    socket.remove();
    daemon.finish().await;
    Ok(())
}

/// Opens what the daemon works with, adopts the bays of an earlier daemon and makes the socket.
async fn open(
    config: &ServerConfig,
    store: &Store,
    guest: PathBuf,
    on_record: bool,
    group: Option<u32>,
) -> Result<(Arc<Daemon>, UnixListener, listen::OwnSocket), ServeError> {
    let pool = open_pool(config, store.daemon_id().to_owned(), on_record).await?;
    let backends = drivers(config, store.daemon_id(), guest, &pool, &fault(config)?).await;
    let daemon = Daemon::assemble(Parts {
        store: store.clone(),
        pool: Some(pool),
        backends,
        backend: config.backend.clone(),
        data_dir: config.data_dir.clone(),
        pool_dir: config.pool_dir.clone(),
        host: HostSize::here(),
        memory_reserve_mib: config.memory_reserve_mib,
        otlp: config.otlp.clone(),
        egress: config.egress.clone(),
        approvals: config.approvals,
        fault: fault(config)?,
    })
    .await?;
    daemon.begin().await?;
    let (unix, socket) = listen::unix(&config.socket, group)?;
    Ok((daemon, unix, socket))
}

fn fault(config: &ServerConfig) -> Result<Fault, ServeError> {
    Fault::parse(config.fault.as_deref()).map_err(ServeError::Fault)
}

/// The drivers that can run bays on this host.
async fn drivers(
    config: &ServerConfig,
    daemon_id: &str,
    guest: PathBuf,
    pool: &Pool,
    fault: &Fault,
) -> Vec<Arc<dyn Backend>> {
    let local = Local::open(LocalConfig {
        run_dir: config.data_dir.join("run"),
        cgroup: PathBuf::from("workbay").join(daemon_id),
        helper: guest.clone(),
        guest,
        pool: pool.clone(),
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

/// Opens the pool. It may be made, mounted, checked or grown, which takes long, so the log reports each stage.
async fn open_pool(config: &ServerConfig, corner: String, must_exist: bool) -> Result<Pool, ServeError> {
    let dir = config.pool_dir.clone();
    let options =
        PoolOptions { must_exist, owner: Some(config.data_dir.clone()), ..config.pool_options.clone() };
    let open = move || {
        let mut stage = String::new();
        let opened = Pool::open(&dir, &corner, &options, &mut |progress| {
            if progress.stage != stage {
                tracing::info!(stage = progress.stage, "opening the pool");
                stage = progress.stage;
            }
        });
        opened.map_err(ServeError::from)
    };
    off_the_async_threads(open).await
}

/// Runs blocking work. A panic in it becomes an error.
async fn off_the_async_threads<T, F>(work: F) -> Result<T, ServeError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, ServeError> + Send + 'static,
{
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|panic| OpenError::Adopt(CoreError::internal(&panic)))?
}
