//! The other programs inside this executable. Nothing else of the crate knows how they are called.

use std::path::PathBuf;
use std::process::ExitCode;

use bay_server::ServerConfig;
use bay_types::ApiError;

/// Runs the runtime helper, the guest, `bay-ctl` or the bench's load generator when this process was started as one.
///
/// Looks at nothing but its name and the first argument: helper and guest must be single-threaded, and both are on the
/// way to a bay's first command.
pub(crate) fn dispatch() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    let name = arguments.next()?;
    if std::path::Path::new(&name).file_name().is_some_and(|name| name == crate::bay_ctl::NAME) {
        return Some(crate::bay_ctl::run());
    }
    let first = arguments.next()?;
    match first.to_str()? {
        "__runtime" => Some(bay_runtime::run()),
        "__guest" => Some(bay_guest::run()),
        "__load" => Some(bay_bench::load(arguments.next()?.to_str()?)),
        _ => None,
    }
}

/// What `bay serve` was told.
#[derive(Debug)]
pub(crate) struct Serve {
    pub(crate) data_dir: PathBuf,
    pub(crate) pool_dir: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) listen: Option<std::net::SocketAddr>,
    pub(crate) executable: PathBuf,
    pub(crate) pool_mib: Option<u64>,
    pub(crate) disk_reserve_mib: Option<u64>,
    pub(crate) otlp: Option<bay_server::Collector>,
    pub(crate) backend: String,
    pub(crate) runsc: Option<PathBuf>,
    pub(crate) criu: Option<PathBuf>,
    pub(crate) memory_reserve_mib: Option<u64>,
    pub(crate) egress: bay_server::EgressConfig,
    pub(crate) approvals: bay_server::ApprovalsConfig,
    pub(crate) fault: Option<String>,
}

pub(crate) async fn serve(told: Serve) -> Result<(), ApiError> {
    bay_server::serve(ServerConfig {
        data_dir: told.data_dir,
        pool_dir: told.pool_dir,
        socket: told.socket,
        listen: told.listen,
        executable: told.executable,
        pool_options: bay_pool::PoolOptions {
            initial_mib: told.pool_mib,
            reserve_mib: told.disk_reserve_mib,
            git_environment: bay_pool::GIT_VARIABLES
                .iter()
                .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
                .collect(),
            must_exist: false,
        },
        otlp: told.otlp,
        backend: told.backend.into(),
        runsc: told.runsc,
        criu: told.criu,
        memory_reserve_mib: told.memory_reserve_mib,
        egress: told.egress,
        approvals: told.approvals,
        fault: told.fault,
    })
    .await
    .map_err(|error| error.to_api())
}
