//! The flags of `bay serve`, which the executable turns into the configuration of a daemon.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bay_types::backend::BackendName;
use bay_types::mib;
use clap::Args;
use jiff::SignedDuration;

/// Run the daemon in the foreground, for service managers and for debugging, or end it. Verbs that need a daemon
/// start one if none answers and root runs them.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bay serve\n  bay serve --data-dir /srv/bays --pool /mnt/btrfs/bays\n  bay serve --listen 127.0.0.1:7070\n  bay serve --otlp http://127.0.0.1:4318\n  bay serve --stop\n\nBAY_LOG sets the log level: error, warn, info (default), debug, trace."
)]
pub struct Serve {
    /// End the running daemon of the data directory, in order. Bays keep running; nothing leaves them until a daemon
    /// runs again.
    #[arg(long)]
    pub stop: bool,
    /// Also serve the API on this loopback TCP address, for callers with the token from the file `token` of the data
    /// directory.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// Send spans of execs and their network requests to this OpenTelemetry collector, as OTLP/JSON over plain HTTP
    /// [default: OTEL_EXPORTER_OTLP_ENDPOINT, if it is usable].
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
    /// Size of a new pool file, in MiB or with a unit, such as 40G [default: depends on the free disk].
    #[arg(long, value_name = "SIZE", value_parser = mib::parse)]
    pub pool_mib: Option<u64>,
    /// Disk space that a pool file leaves free on the host, in MiB or with a unit [default: a tenth of the disk, 2048 to
    /// 5120].
    #[arg(long, env = "BAY_DISK_RESERVE_MIB", value_name = "SIZE", value_parser = mib::parse)]
    pub disk_reserve_mib: Option<u64>,
    /// The group whose members may use the socket, if the host has it. Its members have the rights of root.
    #[arg(long, env = "BAY_GROUP", value_name = "NAME", default_value = bay_types::installation::GROUP)]
    pub group: String,
    /// The backend of new bays, unless `bay up` names one.
    #[arg(long, env = "BAY_BACKEND", value_name = "NAME", default_value = BackendName::LOCAL)]
    pub backend: String,
    /// The runsc binary for bays inside gVisor [default: the installed one].
    #[arg(long, env = "BAY_RUNSC", value_name = "PATH")]
    pub runsc: Option<PathBuf>,
    /// The CRIU binary for memory checkpoints [default: the first that is 4.2 or newer].
    #[arg(long, env = "BAY_CRIU", value_name = "PATH")]
    pub criu: Option<PathBuf>,
    /// Memory that live forks and restores leave free on the host, in MiB or with a unit [default: a twentieth of the
    /// host's memory, at least 256].
    #[arg(long, env = "BAY_MEMORY_RESERVE_MIB", value_name = "SIZE", value_parser = mib::parse)]
    pub memory_reserve_mib: Option<u64>,
    /// The key that encrypts secrets in the data directory [default: a key that the first start creates below
    /// /etc/workbay/keys].
    #[arg(long, env = "BAY_KEY_FILE", value_name = "PATH")]
    pub key_file: Option<PathBuf>,
    /// A file in the format of /etc/hosts. Gateways resolve the names in it from this file, not by DNS.
    #[arg(long, env = "BAY_GATEWAY_HOSTS", value_name = "PATH")]
    pub gateway_hosts: Option<PathBuf>,
    /// Certificates (PEM) of authorities that gateways trust besides those of the host; repeatable.
    #[arg(long, env = "BAY_GATEWAY_CA", value_name = "PATH", value_delimiter = ':')]
    pub gateway_ca: Vec<PathBuf>,
    /// The OpenSSH key, without a passphrase, that gateways use to fetch and push over SSH at a host; if USER is
    /// omitted, git; repeatable.
    #[arg(long, env = "BAY_SSH_KEY", value_name = "[USER@]HOST[:PORT]=FILE", value_delimiter = ',')]
    pub ssh_key: Vec<String>,
    /// The known SSH servers, in the format of OpenSSH's known_hosts. No server is trusted on first use.
    #[arg(long, env = "BAY_SSH_KNOWN_HOSTS", value_name = "PATH")]
    pub ssh_known_hosts: Option<PathBuf>,
    /// How long an approval waits for an answer, such as 15m; then it is denied [default: 15m].
    #[arg(long, env = "BAY_ASK_TIMEOUT", value_name = "TIME", value_parser = time)]
    pub ask_timeout: Option<Duration>,
    /// How long the gateway holds a request before it answers a client that retries by itself.
    #[arg(long, env = "BAY_ASK_HOLD", hide = true, value_parser = time)]
    pub ask_hold: Option<Duration>,
    /// Leave the caller's session, so that its terminal may close.
    #[arg(long, hide = true)]
    pub detached: bool,
    /// Fail intentionally at a named point.
    #[arg(long, env = "BAY_FAULT", hide = true)]
    pub fault: Option<String>,
}

fn time(text: &str) -> Result<Duration, String> {
    let wrong = || "give a time such as 90s, 10m or 2h".to_owned();
    let time: SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(time).ok().filter(|time| !time.is_zero()).ok_or_else(wrong)
}
