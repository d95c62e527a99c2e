//! What the executable tells the daemon at its start.

use std::net::SocketAddr;
use std::path::PathBuf;

use bay_core::{ApprovalsConfig, Collector, EgressConfig};
use bay_pool::PoolOptions;
use bay_types::backend::BackendName;

/// The configuration of a daemon. The caller parses it from flags and environment.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Contains the lock, the database, the secrets, the run directories, the executable's copy, and by default
    /// the socket.
    pub data_dir: PathBuf,
    /// Contains the files of bays, images and repositories.
    pub pool_dir: PathBuf,
    /// The socket of the API.
    pub socket: PathBuf,
    /// The group whose members may use the socket, if the host has it. They have the rights of root then.
    pub group: String,
    /// An additional loopback TCP address, for callers with the token.
    pub listen: Option<SocketAddr>,
    /// The executable of this process. A copy of it runs as guest and runtime helper.
    pub executable: PathBuf,
    pub pool_options: PoolOptions,
    /// The collector that spans of bays, execs and their requests are sent to.
    pub otlp: Option<Collector>,
    /// The backend of new bays, unless the caller names one.
    pub backend: BackendName,
    /// The runsc binary for bays inside gVisor, instead of the first that is found.
    pub runsc: Option<PathBuf>,
    /// The CRIU binary for memory checkpoints, instead of the first that is found.
    pub criu: Option<PathBuf>,
    /// Memory that live forks and restores leave to the host, instead of a share of it.
    pub memory_reserve_mib: Option<u64>,
    pub egress: EgressConfig,
    pub approvals: ApprovalsConfig,
    /// For tests: the point at which the daemon dies.
    pub fault: Option<String>,
}
