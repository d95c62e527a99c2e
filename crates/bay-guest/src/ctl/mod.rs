//! What the bay's own processes may ask: who they are, what they may do, how the services are, and that the bay stays
//! awake. What they change so is told to the daemon, which records it.
//!
//! Everything that comes in here is hostile. A request has no more than a short time, and no body but for the definition
//! of a service; there is one per connection, and no more connections at once than [`MAX_CONNECTIONS`], none of them
//! taken from the daemon's. What changes services is for root of the bay, which could end and start their processes
//! anyway. For everybody else nothing is done but to note until when the bay should stay awake.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bay_types::bay::Limits;
use bay_types::diff::DiffAsk;
use bay_types::guest::{GuestConfig, WORKSPACE};
use bay_types::id::ParseIdError;
use bay_types::inside::{
    Activity, Ask, CTL_SOCKET, Can, Hold, InsideChange, MAX_HOLD_S, Message, Network, WhoAmI,
};
use bay_types::{ApiError, ErrorCode, ExecId, VERSION};
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use crate::execs::TerminalClock;
use crate::http::{ACCEPT_PAUSE, Answer, Query, error, invalid, json, require_json};
use crate::services::Services;
use crate::{ports, spool};

mod asks;
mod lease;
mod services;

pub(crate) use asks::Asks;
use lease::{Lease, since_boot};

/// Connections at once. One more waits for its turn in the kernel's queue.
const MAX_CONNECTIONS: usize = 32;
/// A connection ends after this, whatever it is doing. It bounds how long idle ones keep others waiting.
const CONNECTION_TIME: Duration = Duration::from_secs(5);
const MAX_HEADERS: usize = 32;
/// Longest head of a request, and the smallest that the library takes.
const BUFFER: usize = 8 << 10;

/// What the guest knows for its own processes.
#[derive(Debug)]
pub(crate) struct Ctl {
    guest: Mutex<GuestConfig>,
    /// Those that hold now.
    limits: Mutex<Limits>,
    started_at: Timestamp,
    terminals: Arc<TerminalClock>,
    /// None where the bay can keep none.
    services: Option<Arc<Services>>,
    pub(crate) asks: Asks,
    lease: Mutex<Option<Lease>>,
}

/// Who asks, by the kernel's word.
#[derive(Debug, Clone, Copy)]
struct Peer {
    uid: u32,
    pid: Option<i32>,
}

/// What changes the whole bay is for its root.
fn root_only(peer: Peer) -> Result<(), ApiError> {
    if peer.uid == 0 {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::NotRoot,
        format!("only root of the bay may do this, and this is user {}", peer.uid),
        "run it as root of the bay; `bay-ctl checkpoints` works for every user",
    ))
}

/// Makes the socket anew. Anything may have its name: the directory is on the agent's filesystem.
pub(crate) fn listen(root: &Path) -> io::Result<UnixListener> {
    let path = root.join(CTL_SOCKET.trim_start_matches('/'));
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    make_way(File::open(dir)?, name)?;
    let listener = StdListener::bind(&path)?;
    // For every user of the bay.
    std::fs::set_permissions(&path, Permissions::from_mode(0o666))?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Takes away whatever has the name. A directory may hold millions of files, for which nothing is to wait: it is moved
/// aside and removed meanwhile.
fn make_way(dir: File, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    let aside = format!(".bay-old-{}", ExecId::generate());
    rustix::fs::renameat(&dir, name, &dir, &aside)?;
    // What cannot be removed is the agent's own litter.
    tokio::task::spawn_blocking(move || spool::remove_tree(dir.as_fd(), aside.as_bytes()));
    Ok(())
}

impl Ctl {
    pub(crate) fn new(
        guest: GuestConfig,
        started_at: Timestamp,
        terminals: Arc<TerminalClock>,
        services: Option<Arc<Services>>,
        asks: Asks,
    ) -> Self {
        let limits = Mutex::new(guest.about.limits.clone());
        Self {
            guest: Mutex::new(guest),
            limits,
            started_at,
            terminals,
            services,
            asks,
            lease: Mutex::default(),
        }
    }

    /// A lease that has run out is none.
    fn hold_until(&self) -> Option<Timestamp> {
        let lease = *self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        lease.and_then(|lease| lease.until(since_boot(), Timestamp::now()))
    }

    pub(crate) fn activity(&self) -> Activity {
        Activity { hold_until: self.hold_until(), last_input_at: self.terminals.last() }
    }

    fn limits(&self) -> Limits {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes note of limits that were changed. What the bay is to know about itself now, to be written down for it.
    pub(crate) fn set_limits(&self, limits: Limits) -> GuestConfig {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&limits);
        let mut guest = self.guest();
        guest.about.limits = limits;
        guest
    }

    fn guest(&self) -> GuestConfig {
        self.guest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes note that this is another bay from now on.
    pub(crate) fn become_other(&self, guest: GuestConfig) {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&guest.about.limits);
        *self.guest.lock().unwrap_or_else(PoisonError::into_inner) = guest;
    }

    /// Never returns.
    pub(crate) async fn serve(self: Arc<Self>, listener: UnixListener) {
        let turns = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let ctl = Arc::clone(&self);
            tokio::spawn(async move {
                let _turn = turn;
                let asking = AtomicBool::new(false);
                let mut answering = std::pin::pin!(ctl.answer_one(stream, &asking));
                let late = tokio::time::timeout(CONNECTION_TIME, answering.as_mut()).await.is_err();
                // Only what waits for the daemon may take longer, and not many can.
                if late && asking.load(Ordering::Relaxed) {
                    let _ = tokio::time::timeout(asks::ANSWER_WITHIN, answering).await;
                }
            });
        }
    }

    async fn answer_one(&self, stream: UnixStream, asking: &AtomicBool) {
        let Ok(credentials) = stream.peer_cred() else { return };
        let peer = Peer { uid: credentials.uid(), pid: credentials.pid() };
        let service = service_fn(|request| async move {
            let answer = self.route(peer, request, asking).await;
            Ok::<_, Infallible>(answer.unwrap_or_else(|e| error(&e)))
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(CONNECTION_TIME)
            .keep_alive(false)
            .max_headers(MAX_HEADERS)
            .max_buf_size(BUFFER)
            .auto_date_header(false);
        // Whoever talks nonsense ends its own connection and nothing else.
        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
    }

    /// A further noun has its line here; see [`bay_types::inside`] for the table.
    async fn route(&self, peer: Peer, request: Request<Incoming>, asking: &AtomicBool) -> Answer {
        let query = Query::of(&request)?;
        let path = request.uri().path().to_owned();
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        match (request.method(), parts.as_slice()) {
            (&Method::GET, ["v1", "whoami"]) => Ok(json(StatusCode::OK, &self.whoami(peer))),
            (&Method::GET, ["v1", "can"]) => Ok(json(StatusCode::OK, &self.can())),
            (&Method::GET, ["v1", "ports"]) => {
                ports::route(Some(peer.uid), |run| self.services.as_deref()?.name_of(run)).await
            }
            (&Method::POST, ["v1", "hold"]) => {
                let seconds = query.number("seconds", 10)?.ok_or_else(|| invalid("seconds= is missing"))?;
                let hold = self.hold(seconds)?;
                self.asks.tell(InsideChange::HoldTaken { until: hold.hold_until });
                Ok(json(StatusCode::OK, &hold))
            }
            (&Method::DELETE, ["v1", "hold"]) => {
                self.asks.tell(InsideChange::HoldReleased);
                *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = None;
                Ok(json(StatusCode::OK, &Hold::default()))
            }
            (&Method::GET, ["v1", "egress"]) => self.ask(Ask::Egress, asking).await,
            (&Method::GET, ["v1", "checkpoints"]) => self.ask(Ask::Checkpoints, asking).await,
            (&Method::POST, ["v1", "checkpoints"]) => {
                root_only(peer)?;
                let Message { message } = require_json(request.into_body()).await?;
                self.ask(Ask::Checkpoint { message }, asking).await
            }
            (&Method::POST, ["v1", "restore", checkpoint]) => {
                root_only(peer)?;
                let checkpoint = checkpoint.parse().map_err(|e: ParseIdError| invalid(e.to_string()))?;
                self.ask(Ask::Restore { checkpoint }, asking).await
            }
            (&Method::POST, ["v1", "diff"]) => {
                root_only(peer)?;
                let DiffAsk { from, to, part, patch } = require_json(request.into_body()).await?;
                self.ask(Ask::Diff { from, to, part, patch }, asking).await
            }
            (_, ["v1", "services", rest @ ..]) => {
                let method = request.method().clone();
                let services = self.services.as_ref();
                let answer =
                    services::route(services, &self.asks, asking, peer.uid, rest, &query, request).await?;
                if let Some(change) = services::changed(self.services.as_ref(), &method, rest).await {
                    self.asks.tell(change);
                }
                Ok(answer)
            }
            _ => Err(ApiError::new(
                ErrorCode::InvalidInput,
                "the bay does not know this request",
                "`bay-ctl --help` lists what can be asked",
            )),
        }
    }

    async fn ask(&self, ask: Ask, asking: &AtomicBool) -> Answer {
        Ok(json(StatusCode::OK, &self.asks.ask(ask, asking).await?))
    }

    fn whoami(&self, peer: Peer) -> WhoAmI {
        let guest = self.guest();
        WhoAmI {
            bay: guest.bay_id,
            name: guest.hostname,
            exec: peer.pid.and_then(ports::exec_of),
            uid: peer.uid,
            started_at: self.started_at,
            version: VERSION.to_owned(),
            limits: self.limits(),
            isolation: guest.about.isolation,
        }
    }

    fn can(&self) -> Can {
        Can {
            network: Network {
                outbound: "policy".to_owned(),
                detail: "what the bay's policy allows leaves, everything else is refused at once with the reason; \
                         `bay-ctl egress` tells what it allows; loopback works"
                    .to_owned(),
            },
            mounts: self.guest().about.mounts,
            workspace: WORKSPACE.into(),
            limits: self.limits(),
            hold_until: self.hold_until(),
        }
    }

    /// A later end replaces an earlier one and the other way round: the last word counts.
    fn hold(&self, seconds: u64) -> Result<Hold, ApiError> {
        let lease = Some(seconds)
            .filter(|seconds| (1..=MAX_HOLD_S).contains(seconds))
            .and_then(|seconds| Lease::new(seconds, since_boot(), Timestamp::now()))
            .ok_or_else(|| {
                ApiError::new(
                    ErrorCode::InvalidInput,
                    format!("a bay can be held for 1 to {MAX_HOLD_S} seconds, not {seconds}"),
                    "hold it for less, and again when that is over",
                )
            })?;
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = Some(lease);
        Ok(Hold { hold_until: self.hold_until() })
    }
}
