//! Runs the daemon in this process, configured by the flags of `bay serve`.

use std::io::IsTerminal;

use bay_cli::{DaemonLocation, Serve};
use bay_cli_words::Words;
use bay_client::{invalid, local};
use bay_daemon::{ApprovalsConfig, Collector, EgressConfig, RestFront, ServerConfig, SshKey};
use bay_pool::{GIT_VARIABLES, PoolOptions};
use bay_types::ApiError;
use tracing_subscriber::EnvFilter;

const REST: RestFront = RestFront { router: bay_front_rest::router, refusal: bay_front_rest::encoded };

/// Runs a daemon until it is told to end, or fails.
pub(crate) fn serve(options: Serve, location: DaemonLocation) -> Result<(), ApiError> {
    if options.detached {
        // Fails only if this process already leads a session, which is as good.
        let _ = rustix::process::setsid();
    }
    let filter = EnvFilter::try_from_env("BAY_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let config = config(options, location)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| local("starting up", &error))?;
    let served = runtime.block_on(bay_daemon::serve(config, REST));
    runtime.shutdown_background();
    served.map_err(|error| error.to_api())
}

fn config(options: Serve, location: DaemonLocation) -> Result<ServerConfig, ApiError> {
    let otlp = collector(options.otlp.as_deref())?;
    let ssh_keys = options.ssh_key.iter().map(|given| ssh_key(given)).collect::<Result<_, _>>()?;
    Ok(ServerConfig {
        data_dir: location.data_dir,
        pool_dir: location.pool,
        socket: location.socket,
        group: options.group,
        listen: options.listen,
        executable: std::env::current_exe().map_err(|error| local("finding the bay executable", &error))?,
        pool_options: PoolOptions {
            initial_mib: options.pool_mib,
            reserve_mib: options.disk_reserve_mib,
            git_environment: GIT_VARIABLES
                .iter()
                .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
                .collect(),
            must_exist: false,
            owner: None,
        },
        otlp,
        backend: options.backend.into(),
        runsc: options.runsc,
        criu: options.criu,
        memory_reserve_mib: options.memory_reserve_mib,
        egress: EgressConfig {
            key_file: options.key_file,
            hosts: options.gateway_hosts,
            authorities: options.gateway_ca,
            ssh_keys,
            ssh_known_hosts: options.ssh_known_hosts,
        },
        approvals: ApprovalsConfig { timeout: options.ask_timeout, hold: options.ask_hold },
        fault: options.fault.filter(|fault| !fault.is_empty()),
    })
}

fn ssh_key(given: &str) -> Result<SshKey, ApiError> {
    given.parse().map_err(|why| {
        invalid(
            format!("invalid value '{given}' for '--ssh-key <[USER@]HOST[:PORT]=FILE>': {why}"),
            "`bay serve --help` shows the usage",
        )
    })
}

/// The collector for spans. One from the command line must be usable. One from the environment that is not usable is
/// ignored, with a message.
fn collector(given: Option<&str>) -> Result<Option<Collector>, ApiError> {
    if let Some(url) = given {
        return Collector::parse(url).map(Some).map_err(|error| Words::default().error(error));
    }
    let Some(url) = std::env::var("OTEL_EXPORTER_OTLP_ENDPOINT").ok().filter(|url| !url.is_empty()) else {
        return Ok(None);
    };
    match Collector::parse(&url) {
        Ok(collector) => Ok(Some(collector)),
        Err(error) => {
            bay_cli::talk(&format!("OTEL_EXPORTER_OTLP_ENDPOINT is not used: {}", error.message));
            Ok(None)
        }
    }
}
