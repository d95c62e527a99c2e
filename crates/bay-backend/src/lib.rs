//! The one interface behind which a bay can run anywhere. Each driver is a crate of its own.
//!
//! A backend starts, finds, freezes and clears runtimes. It keeps no state of its own: what it needs to find a runtime
//! again is derived from the bay's id or was returned as a [`RuntimeHandle`]. Differences between drivers belong in
//! their [`Capabilities`], not in more verbs.
//!
//! | verb      | promise                                                                                        |
//! |-----------|------------------------------------------------------------------------------------------------|
//! | `start`   | the guest runs and listens, or nothing is left; anything an earlier start left is cleared first |
//! | `inspect` | the truth at this moment, never a memory of it                                                 |
//! | `reclaim_guest` | PID 1 is not frozen by anybody in the bay, and where it was put; tells when that was not so      |
//! | `set_limits` | they hold when it returns, and nothing that runs was killed to make them fit                 |
//! | `stats`   | what the bay uses as the host measures it; what this host does not measure is absent           |
//! | `examine` | what in a running bay cannot be kept in memory, with nothing stopped                            |
//! | `capture` | memory and the caller's snapshots of one moment, and the bay goes on; or nothing is kept       |
//! | `abandon` | a capture that nobody waits for any more is over, and nothing of it is left                    |
//! | `restore` | the bay goes on from there and its guest answers, or nothing is left                           |
//! | `egress`  | every connection of a running bay arrives there, and nowhere else                               |
//! | `attribution` | who in the bay is behind a connection, from the kernel: that exec, or unknown, never another bay's |
//! | `clear`   | ends and removes everything of that bay's runtime; harmless when there is nothing              |
//! | `leftovers` | every bay id of which this backend still holds anything                                      |
#![forbid(unsafe_code)]

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bay_types::backend::Support;
use bay_types::bay::{Author, Isolation, Limits, Mount};
use bay_types::checkpoint::Point;
pub use bay_types::egress::Dropped;
use bay_types::egress::{Process, Transport, Who};
use bay_types::guest::GatewaySsh;
pub use bay_types::runtime::{Moved, Obstacle, RuntimeHandle};
use bay_types::stats::BayStats;
pub use bay_types::stats::{LimitEvents, NetworkUse};
use bay_types::{BayId, BayName, CoreError};
use tokio::io::{AsyncRead, AsyncWrite};

pub mod files;

pub use files::BayFiles;

pub use bay_types::backend::Capabilities;

/// Why a runtime could not be started, frozen or cleared.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error("the runtime helper could not be run")]
    Helper(#[source] io::Error),
    #[error("the runtime helper failed at step {step}: {message}")]
    Step { step: String, message: String },
    #[error("the runtime helper did not come to an end and was killed")]
    HelperSlow,
    #[error("the runtime helper ended without an answer ({status})")]
    HelperLost { status: String },
    #[error("{0}")]
    Hangs(String),
    /// The bay holds more than the limit; with what it holds.
    #[error("the bay holds {0}")]
    LimitInUse(String),
    #[error("{0}")]
    LimitUnsupported(String),
    /// This host cannot keep memory at all.
    #[error("memory cannot be kept on this host: {0}")]
    MemoryUnsupported(String),
    /// Something in the bay cannot be kept; nothing was stopped.
    #[error("the bay's memory cannot be kept: {}", listed(.0))]
    Obstacles(Vec<Obstacle>),
    /// The caller's own part of a capture failed.
    #[error("the capture was given up: {0}")]
    Snapshot(String),
    /// The driver's disk refused; with what to do about it.
    #[error("{}", .0.message)]
    Disk(Box<CoreError>),
    /// Nobody here can run the bay.
    #[error("{0}")]
    DriverMissing(String),
    /// The memory was captured on another kind of machine.
    #[error("{0}")]
    OtherMachine(String),
}

/// What a backend says that has only files.
const NO_MEMORY: &str = "this backend keeps files only";

fn listed(obstacles: &[Obstacle]) -> String {
    obstacles.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// What a runtime is made from.
#[derive(Debug, Clone)]
pub struct StartSpec {
    pub bay: BayId,
    pub name: BayName,
    pub machine_id: String,
    pub author: Option<Author>,
    /// The certificate by which the bay's gateway ends TLS, as PEM; absent where no gateway does.
    pub certificate: Option<String>,
    /// How the bay's gateway answers SSH; absent where it does not.
    pub ssh: Option<GatewaySsh>,
    /// What the bay has in the place of secrets.
    pub secrets: Vec<bay_types::secret::Delivered>,
    pub mounts: Vec<Mount>,
    pub id_base: u32,
    /// Which of the children of a fork it is; absent when it was not forked.
    pub fork_index: Option<u32>,
    pub limits: Limits,
}

/// Limits for a runtime that runs.
#[derive(Debug, Clone)]
pub struct LimitSpec {
    pub bay: BayId,
    pub id_base: u32,
    pub limits: Limits,
}

/// Memory that was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured {
    /// How long the bay stood still.
    pub pause: Duration,
}

/// A bay that goes on from kept memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    pub runtime: RuntimeHandle,
    /// Fork hooks that failed, in the guest's own words: bounded, and not to be trusted.
    pub notes: Vec<String>,
}

/// What a capture is to be of.
#[derive(Debug, Clone)]
pub struct CaptureOrder {
    /// The bay as it was started.
    pub bay: StartSpec,
    pub runtime: RuntimeHandle,
    /// Whether the bay ends with the capture.
    pub end: bool,
}

/// What the caller does while the bay stands still; the reason when it could not.
pub type WhileStopped<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// A connection that bytes go both ways on.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for T {}
pub type BoxedStream = Box<dyn ByteStream>;

/// What one runtime is, for people and for keeping runtimes apart. Nothing acts on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeFacts {
    /// The same for as long as the runtime lives, and no other runtime's.
    pub identity: String,
    /// PID 1 of the bay as this host numbers it, where it has a number here.
    pub host_pid: Option<i32>,
    /// The boot of the host during which it was started, where it runs on this host's kernel.
    pub boot_id: Option<String>,
}

/// The only way out of one running bay. As long as somebody has it, what the bay sends arrives here; afterwards it is
/// refused.
#[derive(Debug)]
pub struct EgressPort {
    pub connections: Box<dyn Connections>,
    /// One for each address of the resolver.
    pub questions: Vec<Box<dyn Datagrams>>,
    pub counters: Box<dyn EgressCounters>,
}

/// Connections that one bay makes, whatever carries them here.
#[async_trait]
pub trait Connections: Send + Sync + Debug {
    async fn accept(&self) -> io::Result<BayConnection>;
}

/// One connection that a bay made.
pub struct BayConnection {
    pub stream: BoxedStream,
    pub bay_end: SocketAddr,
    /// Where the bay wanted to go.
    pub wanted: SocketAddr,
}

impl Debug for BayConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BayConnection")
            .field("bay_end", &self.bay_end)
            .field("wanted", &self.wanted)
            .finish_non_exhaustive()
    }
}

/// Datagrams that one bay sends to its resolver, and the way back.
#[async_trait]
pub trait Datagrams: Send + Sync + Debug {
    /// The next one, with the bay's end.
    async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)>;
    /// Sends without waiting: what cannot be sent at once is lost.
    fn send(&self, datagram: &[u8], bay_end: SocketAddr) -> io::Result<()>;
}

/// What of a bay's traffic arrives nowhere.
pub trait EgressCounters: Send + Sync + Debug {
    fn dropped(&self) -> io::Result<Dropped>;
}

/// What is true of a runtime right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    Running,
    Paused,
    Gone,
}

/// Tells who in one running bay is behind a connection. Made anew for every start and restore; what holds it holds the
/// bay's network, so it is let go of when the bay ends.
///
/// An exec is told by the name of its group. Root in the bay can make a group of any name, so whoever knows which execs a
/// bay has takes no other for one of them ([`Who::confined_to`]).
pub trait Attribution: Send + Sync + Debug {
    /// Who opened a connection, or asks from a port: the exec, and what goes with it; not the process. Asked on the path
    /// of packets: it does not wait.
    fn who(&self, bay_end: SocketAddr, gateway_end: SocketAddr, transport: Transport) -> Who;
    /// The process at the bay's end, as far as it can be seen. May take some milliseconds.
    fn process(
        &self,
        _bay_end: SocketAddr,
        _gateway_end: SocketAddr,
        _transport: Transport,
    ) -> Option<Process> {
        None
    }
    /// Takes note of the execs there are, so that they are known by what they left when they are gone. Wanted when one has
    /// begun.
    fn note(&self) {}
}

#[async_trait]
pub trait Backend: Send + Sync + Debug {
    fn isolation(&self) -> Isolation;
    /// What this driver can do on this host, as found out when it was opened.
    fn capabilities(&self) -> Capabilities;
    /// Refuses, with the reason in the capabilities, what needs memory checkpoints where there are none.
    fn require_memory(&self) -> Result<(), BackendError> {
        match self.capabilities().memory_checkpoints {
            Support::Yes => Ok(()),
            Support::No { reason } => Err(BackendError::MemoryUnsupported(reason)),
        }
    }
    /// The files of its bays.
    fn files(&self) -> Arc<dyn BayFiles>;
    /// What a handle is of. Asked for with every view of a bay: it does not wait.
    fn facts(&self, runtime: &RuntimeHandle) -> RuntimeFacts;
    async fn start(&self, spec: &StartSpec) -> Result<RuntimeHandle, BackendError>;
    async fn inspect(&self, bay: BayId, runtime: &RuntimeHandle) -> Seen;
    /// Undoes what root in the bay did to where PID 1 is, and tells it; nothing where PID 1 is out of the bay's reach.
    async fn reclaim_guest(&self, _bay: BayId, _runtime: &RuntimeHandle) -> Option<Moved> {
        None
    }
    /// What it uses at this moment, measured from outside of it.
    async fn stats(&self, bay: BayId, runtime: &RuntimeHandle) -> BayStats;
    /// Memory that its processes hold, without caches: about what a capture of it will hold. Absent where nobody counts.
    async fn memory_held(&self, _bay: BayId) -> Option<u64> {
        None
    }
    /// What it has to do with the world outside of it.
    async fn network(&self, runtime: &RuntimeHandle) -> NetworkUse;
    /// The only way out of a running bay.
    async fn egress(&self, bay: BayId) -> io::Result<EgressPort>;
    async fn clear(&self, bay: BayId) -> Result<(), BackendError>;
    async fn pause(&self, bay: BayId) -> Result<(), BackendError>;
    async fn resume(&self, bay: BayId) -> Result<(), BackendError>;
    /// Empty when nothing is known to stand in the way.
    async fn examine(&self, _order: &CaptureOrder) -> Result<Vec<Obstacle>, BackendError> {
        Err(BackendError::MemoryUnsupported(NO_MEMORY.to_owned()))
    }
    /// The caller has closed all connections to the guest and makes none until this returns. `while_stopped` runs when
    /// memory is kept and everything still stands; when it fails, nothing is kept and the bay goes on.
    async fn capture(
        &self,
        _order: &CaptureOrder,
        _while_stopped: WhileStopped<'_>,
    ) -> Result<Captured, BackendError> {
        Err(BackendError::MemoryUnsupported(NO_MEMORY.to_owned()))
    }
    /// Ends a capture that nobody waits for any more: returns when whoever works at it has let go of the bay, and nothing
    /// of it is left. Harmless when there is none.
    async fn abandon(&self, _order: &CaptureOrder) -> Result<(), BackendError> {
        Ok(())
    }
    /// Whether the memory of this checkpoint can go on here, and if not, why. Stops and starts nothing.
    async fn can_restore(&self, _from: Point) -> Result<(), BackendError> {
        Err(BackendError::MemoryUnsupported(NO_MEMORY.to_owned()))
    }
    /// Starts a bay from a checkpoint's memory instead of from nothing; its files are those of the checkpoint. With a fork index
    /// the guest takes the identity in `spec` and runs the fork hooks before anything else goes on.
    async fn restore(
        &self,
        _spec: &StartSpec,
        _from: Point,
        _fork_index: Option<u32>,
    ) -> Result<Restored, BackendError> {
        Err(BackendError::MemoryUnsupported(NO_MEMORY.to_owned()))
    }
    /// Whether this host can keep these limits at all.
    fn can_keep(&self, limits: &Limits) -> Result<(), BackendError>;
    /// Gives a running or paused bay other limits. May have set some of them when it fails.
    async fn set_limits(&self, spec: &LimitSpec) -> Result<(), BackendError>;
    /// How often a bay was held to its limits so far. Cheap: asked for with every exec. Zero where nobody counts.
    fn limit_events(&self, _bay: BayId) -> LimitEvents {
        LimitEvents::default()
    }
    /// A way to find out who in a bay is behind a connection. May take a millisecond.
    ///
    /// # Errors
    /// When the bay does not run, or nobody can tell.
    fn attribution(&self, _bay: BayId, _runtime: &RuntimeHandle) -> io::Result<Arc<dyn Attribution>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// A fresh connection to the guest.
    async fn connect(&self, bay: BayId) -> io::Result<BoxedStream>;
    /// Returns when that very PID 1 is gone (at once when it already is).
    async fn wait_gone(&self, runtime: &RuntimeHandle);
    async fn leftovers(&self) -> Result<Vec<BayId>, BackendError>;
}
