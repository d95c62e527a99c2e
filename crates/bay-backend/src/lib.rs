//! The interface to whatever runs bays. Each driver is a crate of its own.
//!
//! A backend starts, finds, pauses and clears runtimes. It keeps no state of its own. It derives what it needs to find
//! a runtime again from the bay's id, or has returned it as a [`RuntimeHandle`]. Differences between drivers belong in
//! their [`Capabilities`], not in more verbs.
//!
//! | verb      | promise                                                                                        |
//! |-----------|------------------------------------------------------------------------------------------------|
//! | `start`   | the guest runs and listens, or nothing is left; leftovers of an earlier start are cleared first |
//! | `inspect` | the state at this moment, never a cached one                                                   |
//! | `reclaim_guest` | moves PID 1 back to its own group, where nobody in the bay can freeze it; reports what it found |
//! | `set_limits` | the limits apply when it returns; a memory limit below what the bay holds is refused         |
//! | `stats`   | what the bay uses, measured by the host; values that this host does not measure are absent     |
//! | `examine` | what in a running bay cannot be captured; stops nothing                                        |
//! | `capture` | memory and the caller's snapshots of one moment; then the bay continues, or ends if ordered; or nothing is kept |
//! | `abandon` | a capture whose caller died has ended, and nothing of it is left                               |
//! | `restore` | the bay continues from the checkpoint and its guest answers, or nothing is left                |
//! | `egress`  | every TCP connection that leaves a running bay arrives at this port, and nowhere else          |
//! | `attribution` | the kernel's answer to who in the bay opened a connection: that exec, or unknown, never another bay's |
//! | `clear`   | ends and removes the bay's whole runtime; harmless if there is none                            |
//! | `leftovers` | the ids of all bays of which this backend still holds anything                               |
//!
//! If something cannot be removed after a failure, `leftovers` lists the bay.
#![forbid(unsafe_code)]

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bay_types::backend::Support;
use bay_types::bay::{Author, BayUser, Isolation, Limits, Mount};
use bay_types::checkpoint::Point;
use bay_types::durability::Durability;
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

/// Why a backend could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error("the runtime helper could not be run")]
    Helper(#[source] io::Error),
    #[error("the runtime helper failed at step {step}: {message}")]
    Step { step: String, message: String },
    #[error("the runtime helper did not end in time and was killed")]
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
    /// This host cannot capture memory at all.
    #[error("memory cannot be captured on this host: {0}")]
    MemoryUnsupported(String),
    /// Something in the bay cannot be captured. Nothing was stopped.
    #[error("the bay's memory cannot be captured: {}", listed(.0))]
    Obstacles(Vec<Obstacle>),
    /// The caller's own part of a capture failed.
    #[error("the capture was abandoned: {0}")]
    Snapshot(String),
    /// The driver's disk returned an error, which says what to do about it.
    #[error("{}", .0.message)]
    Disk(Box<CoreError>),
    /// No driver on this host can run the bay.
    #[error("{0}")]
    DriverMissing(String),
    /// The memory was captured on another kind of machine.
    #[error("{0}")]
    OtherMachine(String),
}

/// The reason of a backend that has only files.
const NO_MEMORY: &str = "this backend keeps files only";

fn listed(obstacles: &[Obstacle]) -> String {
    obstacles.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The parts from which a runtime is started.
#[derive(Debug, Clone)]
pub struct StartSpec {
    pub bay: BayId,
    pub name: BayName,
    pub machine_id: String,
    pub author: Option<Author>,
    /// The user that the bay was given. Absent if commands run as root unless they name another user.
    pub user: Option<BayUser>,
    /// The certificate with which the bay's gateway ends TLS, as PEM. Absent if no gateway does.
    pub certificate: Option<String>,
    /// How the bay's gateway answers SSH. Absent if it does not.
    pub ssh: Option<GatewaySsh>,
    /// The sentinels that the bay has in the place of secrets.
    pub secrets: Vec<bay_types::secret::Delivered>,
    pub mounts: Vec<Mount>,
    pub id_base: u32,
    /// The index among the children of a fork. Absent if the bay is no fork.
    pub fork_index: Option<u32>,
    pub limits: Limits,
    pub durability: Durability,
}

/// Limits for a running runtime.
#[derive(Debug, Clone)]
pub struct LimitSpec {
    pub bay: BayId,
    pub id_base: u32,
    pub limits: Limits,
}

/// Captured memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured {
    /// How long the bay was paused.
    pub pause: Duration,
}

/// A bay that was restored from memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    pub runtime: RuntimeHandle,
    /// Failed fork hooks, in the guest's own words: bounded in length, and not to be trusted.
    pub notes: Vec<String>,
}

/// The parameters of a capture.
#[derive(Debug, Clone)]
pub struct CaptureOrder {
    /// The bay, as it was started.
    pub bay: StartSpec,
    pub runtime: RuntimeHandle,
    /// Whether the bay ends with the capture.
    pub end: bool,
}

/// The caller's work while the bay is paused. The error is the reason of its failure.
pub type WhileStopped<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// A stream of bytes in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for T {}
pub type BoxedStream = Box<dyn ByteStream>;

/// Facts that identify one runtime, for people, for the record and for telling runtimes apart. What is done with a
/// runtime does not depend on them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeFacts {
    /// Constant while the runtime lives, and unique to it.
    pub identity: String,
    /// The host's number of the bay's PID 1, if it has one.
    pub host_pid: Option<i32>,
    /// The boot of the host in which it was started, if it runs on this host's kernel.
    pub boot_id: Option<String>,
}

/// The only egress of one running bay. While this exists, the bay's connections arrive here; afterwards they are
/// refused.
#[derive(Debug)]
pub struct EgressPort {
    pub connections: Box<dyn Connections>,
    /// One for each address of the resolver.
    pub questions: Vec<Box<dyn Datagrams>>,
    pub counters: Box<dyn EgressCounters>,
}

/// Accepts the connections that one bay makes, whatever their transport.
#[async_trait]
pub trait Connections: Send + Sync + Debug {
    async fn accept(&self) -> io::Result<BayConnection>;
}

/// One connection that a bay made.
pub struct BayConnection {
    pub stream: BoxedStream,
    pub bay_end: SocketAddr,
    /// The destination that the bay connected to.
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

/// Receives the datagrams that one bay sends to its resolver, and sends the answers.
#[async_trait]
pub trait Datagrams: Send + Sync + Debug {
    /// The next datagram, with the bay's address.
    async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)>;
    /// Sends without waiting. A datagram that cannot be sent immediately is lost.
    fn send(&self, datagram: &[u8], bay_end: SocketAddr) -> io::Result<()>;
}

/// Counts packets of a bay that were dropped.
pub trait EgressCounters: Send + Sync + Debug {
    fn dropped(&self) -> io::Result<Dropped>;
}

/// The present state of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    Running,
    Paused,
    Gone,
}

/// Determines who in one running bay opened a connection. It is made anew for every start and restore. It keeps the
/// bay's network alive, so it is dropped when the bay ends.
///
/// The name of a group identifies an exec. Root in the bay can make a group of any name. So a caller that knows the
/// bay's execs ignores all other names ([`Who::confined_to`]).
pub trait Attribution: Send + Sync + Debug {
    /// The exec that opened a connection or sends from a port, but not its process. It is called for every packet, so
    /// it never waits.
    fn who(&self, bay_end: SocketAddr, gateway_end: SocketAddr, transport: Transport) -> Who;
    /// The process at the bay's end, if it can be determined. May take some milliseconds.
    fn process(
        &self,
        _bay_end: SocketAddr,
        _gateway_end: SocketAddr,
        _transport: Transport,
    ) -> Option<Process> {
        None
    }
    /// Notes the present groups of execs, so that an exec can still be identified after it ended. Called when one has
    /// begun.
    fn note(&self) {}
}

#[async_trait]
pub trait Backend: Send + Sync + Debug {
    fn isolation(&self) -> Isolation;
    /// What this driver can do on this host, as determined when it was opened.
    fn capabilities(&self) -> Capabilities;
    /// Returns the reason from the capabilities if memory checkpoints are not supported.
    fn require_memory(&self) -> Result<(), BackendError> {
        match self.capabilities().memory_checkpoints {
            Support::Yes => Ok(()),
            Support::No { reason } => Err(BackendError::MemoryUnsupported(reason)),
        }
    }
    /// The files of the driver's bays.
    fn files(&self) -> Arc<dyn BayFiles>;
    /// Facts about a runtime. They are part of every view of a bay, so this must not wait.
    fn facts(&self, runtime: &RuntimeHandle) -> RuntimeFacts;
    async fn start(&self, spec: &StartSpec) -> Result<RuntimeHandle, BackendError>;
    async fn inspect(&self, bay: BayId, runtime: &RuntimeHandle) -> Seen;
    /// Moves PID 1 back if root in the bay moved it, and reports that. `None` if PID 1 is in its place, or out of the
    /// bay's reach.
    async fn reclaim_guest(&self, _bay: BayId, _runtime: &RuntimeHandle) -> Option<Moved> {
        None
    }
    /// The bay's present usage, measured from outside of it.
    async fn stats(&self, bay: BayId, runtime: &RuntimeHandle) -> BayStats;
    /// Memory that the bay's processes hold, without caches: about the size of a capture. Absent if it is not counted.
    async fn memory_held(&self, _bay: BayId) -> Option<u64> {
        None
    }
    /// The bay's present connections to the outside.
    async fn network(&self, runtime: &RuntimeHandle) -> NetworkUse;
    /// The only egress of a running bay.
    async fn egress(&self, bay: BayId) -> io::Result<EgressPort>;
    async fn clear(&self, bay: BayId) -> Result<(), BackendError>;
    async fn pause(&self, bay: BayId) -> Result<(), BackendError>;
    async fn resume(&self, bay: BayId) -> Result<(), BackendError>;
    /// Lists what cannot be captured. Empty if no obstacle is known.
    async fn examine(&self, _order: &CaptureOrder) -> Result<Vec<Obstacle>, BackendError> {
        Err(BackendError::MemoryUnsupported(NO_MEMORY.to_owned()))
    }
    /// The caller has closed all connections to the guest and opens none until this returns. `while_stopped` runs when
    /// the memory is captured and the bay is still paused. If it fails, nothing is kept and the bay continues.
    async fn capture(
        &self,
        _order: &CaptureOrder,
        _while_stopped: WhileStopped<'_>,
    ) -> Result<Captured, BackendError> {
        Err(BackendError::MemoryUnsupported(NO_MEMORY.to_owned()))
    }
    /// Ends a capture whose caller died. Returns when no process works on it any more and nothing of it is left.
    /// Harmless if there is none.
    async fn abandon(&self, _order: &CaptureOrder) -> Result<(), BackendError> {
        Ok(())
    }
    /// Whether this host can restore the memory of this checkpoint, or why not. Starts and stops nothing.
    async fn can_restore(&self, _from: Point) -> Result<(), BackendError> {
        Err(BackendError::MemoryUnsupported(NO_MEMORY.to_owned()))
    }
    /// Starts a bay from the memory of a checkpoint, with the checkpoint's files. With a fork index, the guest takes
    /// the identity in `spec` and runs the fork hooks before any other process continues.
    async fn restore(
        &self,
        _spec: &StartSpec,
        _from: Point,
        _fork_index: Option<u32>,
    ) -> Result<Restored, BackendError> {
        Err(BackendError::MemoryUnsupported(NO_MEMORY.to_owned()))
    }
    /// Whether this host supports these limits at all.
    fn can_keep(&self, limits: &Limits) -> Result<(), BackendError>;
    /// Changes the limits of a running or paused bay. If it fails, some of them may be set.
    async fn set_limits(&self, spec: &LimitSpec) -> Result<(), BackendError>;
    /// How often a bay reached its limits so far. Called with every exec, so it is cheap. Zero if it is not counted.
    fn limit_events(&self, _bay: BayId) -> LimitEvents {
        LimitEvents::default()
    }
    /// Opens the attribution of a bay's connections. May take a millisecond.
    ///
    /// # Errors
    /// If the bay does not run, or this driver has no attribution.
    fn attribution(&self, _bay: BayId, _runtime: &RuntimeHandle) -> io::Result<Arc<dyn Attribution>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// A new connection to the guest.
    async fn connect(&self, bay: BayId) -> io::Result<BoxedStream>;
    /// Returns when this PID 1 has ended; immediately if it already has.
    async fn wait_gone(&self, runtime: &RuntimeHandle);
    async fn leftovers(&self) -> Result<Vec<BayId>, BackendError>;
}
