//! The driver `gvisor`: a bay whose system calls a kernel in user space serves, Google's gVisor (`runsc`, systrap).
//!
//! Disk, control groups, gateway namespace and guest are those of the driver `local`. Only the kernel that serves the
//! bay's system calls differs. So this driver starts bays, connects to guests and attributes connections in its own
//! way, and delegates almost everything else to `local`. What the sandbox cannot do is in its [`Capabilities`].
//! `CONTRACT.md` of the crate `bay-backend` describes the differences.
#![forbid(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bay_backend::{
    Attribution, Backend, BackendError, BayFiles, BoxedStream, Capabilities, EgressPort, LimitEvents,
    LimitSpec, NetworkUse, RuntimeFacts, RuntimeHandle, Seen, StartSpec,
};
use bay_backend_local::Local;
use bay_types::BayId;
use bay_types::backend::{AttributionGrain, IsolationGrade, Support};
use bay_types::bay::{Isolation, Limits};
use bay_types::checkpoint::Point;
use bay_types::egress::{Transport, Who};
use bay_types::runtime::{RuntimeRequest, SandboxSpec};
use bay_types::stats::BayStats;
use tokio::process::Command;

mod handshake;

/// The name of this driver.
pub const NAME: &str = "gvisor";
/// The paths where runsc is searched.
pub const RUNSC_PLACES: [&str; 2] = ["/usr/local/bin/runsc", "/usr/bin/runsc"];
/// A runsc that does not report its version within this time counts as missing.
const RUNSC_ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// How long a guest may take to answer on a new connection.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// Most connections in a row that the sandbox may reset before the guest counts as unreachable.
const MAX_RESETS: u32 = 5;
/// Pause after each reset, before the next connection.
const AFTER_RESET: Duration = Duration::from_millis(20);

const NO_MEMORY: &str =
    "gVisor refuses to save a sandbox in which any TCP connection is open or has just been closed";
const NO_CONTAINERS: &str = "gVisor's kernel lacks what container runtimes need";

/// Bays inside gVisor.
#[derive(Debug)]
pub struct Gvisor {
    /// Does everything in which the drivers do not differ.
    local: Arc<Local>,
    runsc: PathBuf,
    version: String,
}

impl Gvisor {
    /// Opens the driver if this host has runsc: the given one, or the first that is found.
    ///
    /// # Errors
    /// Why there is no runsc that works.
    pub async fn open(local: Arc<Local>, given: Option<PathBuf>) -> Result<Self, String> {
        let found = || RUNSC_PLACES.iter().map(PathBuf::from).find(|place| place.exists());
        let runsc = given.or_else(found).ok_or("runsc is not installed")?;
        let asked = Command::new(&runsc)
            .arg("--version")
            .env_clear()
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let said = match tokio::time::timeout(RUNSC_ANSWERS_WITHIN, asked).await {
            Ok(said) => said.map_err(|error| format!("{}: {error}", runsc.display()))?,
            Err(_) => return Err(format!("{} did not report its version in time", runsc.display())),
        };
        let said = String::from_utf8_lossy(&said.stdout);
        let version = said.lines().find_map(|line| line.strip_prefix("runsc version "));
        let version = version.ok_or_else(|| format!("{} is not runsc", runsc.display()))?.trim().to_owned();
        Ok(Self { local, runsc, version })
    }
}

#[async_trait]
impl Backend for Gvisor {
    fn isolation(&self) -> Isolation {
        Isolation {
            backend: NAME.to_owned(),
            grade: IsolationGrade::UserKernel.as_str().to_owned(),
            detail: format!(
                "gVisor {} (systrap): a kernel in user space serves the bay's system calls; it runs in namespaces and \
                 control groups of its own, behind a system call filter",
                self.version
            ),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolation: IsolationGrade::UserKernel,
            memory_checkpoints: Support::no(NO_MEMORY),
            // The host's kernel does not know the sandbox's sockets.
            attribution: AttributionGrain::Bay,
            nested_containers: Support::no(NO_CONTAINERS),
            ..self.local.capabilities()
        }
    }

    fn files(&self) -> Arc<dyn BayFiles> {
        self.local.files()
    }

    fn facts(&self, runtime: &RuntimeHandle) -> RuntimeFacts {
        self.local.facts(runtime)
    }

    async fn start(&self, spec: &StartSpec) -> Result<RuntimeHandle, BackendError> {
        let runsc = self.runsc.clone();
        let sandbox = |runtime| RuntimeRequest::Sandbox(Box::new(SandboxSpec { runtime, runsc }));
        self.local.start_as(spec, self.isolation(), sandbox).await
    }

    async fn inspect(&self, bay: BayId, runtime: &RuntimeHandle) -> Seen {
        self.local.inspect(bay, runtime).await
    }

    async fn stats(&self, bay: BayId, runtime: &RuntimeHandle) -> BayStats {
        self.local.stats(bay, runtime).await
    }

    async fn memory_held(&self, bay: BayId) -> Option<u64> {
        self.local.memory_held(bay).await
    }

    /// The host sees the packets of a bay, but not which connections they belong to. So every bay counts as having one.
    async fn network(&self, runtime: &RuntimeHandle) -> NetworkUse {
        NetworkUse { external_connections: 1, ..self.local.network(runtime).await }
    }

    async fn egress(&self, bay: BayId) -> io::Result<EgressPort> {
        self.local.egress(bay).await
    }

    async fn clear(&self, bay: BayId) -> Result<(), BackendError> {
        self.local.clear(bay).await
    }

    async fn pause(&self, bay: BayId) -> Result<(), BackendError> {
        self.local.pause(bay).await
    }

    async fn resume(&self, bay: BayId) -> Result<(), BackendError> {
        self.local.resume(bay).await
    }

    async fn can_restore(&self, _: Point) -> Result<(), BackendError> {
        self.require_memory()
    }

    fn can_keep(&self, limits: &Limits) -> Result<(), BackendError> {
        self.local.can_keep(limits)
    }

    async fn set_limits(&self, spec: &LimitSpec) -> Result<(), BackendError> {
        self.local.set_limits(spec).await
    }

    fn limit_events(&self, bay: BayId) -> LimitEvents {
        self.local.limit_events(bay)
    }

    fn attribution(&self, _: BayId, _: &RuntimeHandle) -> io::Result<Arc<dyn Attribution>> {
        Ok(Arc::new(BayOnly))
    }

    /// Returns a connection only after the guest has answered on it. Under load the sandbox sometimes accepts a
    /// connection and resets it. A request that was sent on such a connection could not be repeated without doing its
    /// work twice.
    async fn connect(&self, bay: BayId) -> io::Result<BoxedStream> {
        let mut tries = 0;
        loop {
            let mut stream = self.local.connect(bay).await?;
            let answer = tokio::time::timeout(ANSWERS_WITHIN, handshake::answered(&mut stream)).await;
            match answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(()) => return Ok(stream),
                Err(error) if tries < MAX_RESETS && handshake::is_reset(&error) => {
                    tries += 1;
                    tokio::time::sleep(AFTER_RESET).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn wait_gone(&self, runtime: &RuntimeHandle) {
        self.local.wait_gone(runtime).await;
    }

    /// The driver `local` reports all leftovers, because both keep their runtimes in the same places.
    async fn leftovers(&self) -> Result<Vec<BayId>, BackendError> {
        Ok(Vec::new())
    }
}

/// Only the sandbox's own kernel knows which process owns a socket.
#[derive(Debug)]
struct BayOnly;

impl Attribution for BayOnly {
    fn who(&self, _: SocketAddr, _: SocketAddr, _: Transport) -> Who {
        Who::default()
    }
}
