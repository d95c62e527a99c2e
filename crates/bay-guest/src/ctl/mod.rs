//! The front for the bay's own processes, which use it through `bay-ctl`: who they are, what they may do, the ports,
//! the services, keeping the bay awake, and requests to the daemon ([`daemon_requests`]). The daemon, if one is
//! connected, gets a report of each change of a service and of the time that the bay stays awake, and records it.
//!
//! All input here is hostile. A connection carries one request, and ends after [`CONNECTION_TIME`] unless the request
//! waits for the daemon. At most [`MAX_CONNECTIONS`] are served at once, separate from the daemon's. Only root of the
//! bay may change services, because it could also end and start their processes. Checkpoints, restores and diffs are
//! for root too. Other users may look, and set until when the bay stays awake.

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

mod daemon_requests;
mod keep_awake;
mod services;

pub(crate) use daemon_requests::DaemonRequests;
use keep_awake::{KeepAwake, since_boot};

/// Connections that are served at once. Further ones wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 32;
/// A connection ends after this time, unless its request waits for the daemon. So idle connections delay others only
/// briefly.
const CONNECTION_TIME: Duration = Duration::from_secs(5);
const MAX_HEADERS: usize = 32;
/// Longest head of a request; the smallest buffer that hyper accepts.
const BUFFER: usize = 8 << 10;

/// What the guest knows about the bay, for the bay's own processes.
#[derive(Debug)]
pub(crate) struct Ctl {
    guest: Mutex<GuestConfig>,
    /// The limits in force now.
    limits: Mutex<Limits>,
    started_at: Timestamp,
    terminals: Arc<TerminalClock>,
    /// None if the bay can keep no services.
    services: Option<Arc<Services>>,
    pub(crate) daemon: DaemonRequests,
    keep_awake: Mutex<Option<KeepAwake>>,
}

/// The process at the other end of a connection, as the kernel reports it.
#[derive(Debug, Clone, Copy)]
struct Peer {
    uid: u32,
    pid: Option<i32>,
}

/// Refuses users other than root.
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

/// Binds the socket. The directory is on the agent's filesystem, so anything may have the socket's name already.
pub(crate) fn listen(root: &Path) -> io::Result<UnixListener> {
    let path = root.join(CTL_SOCKET.trim_start_matches('/'));
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    remove_obstacle(File::open(dir)?, name)?;
    let listener = StdListener::bind(&path)?;
    // Every user of the bay may connect.
    std::fs::set_permissions(&path, Permissions::from_mode(0o666))?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Removes what has the name. A directory may hold millions of files, so it is renamed and removed in the background.
fn remove_obstacle(dir: File, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    let aside = format!(".bay-old-{}", ExecId::generate());
    rustix::fs::renameat(&dir, name, &dir, &aside)?;
    // If it cannot be removed, it stays as a file of the agent.
    tokio::task::spawn_blocking(move || spool::remove_tree(dir.as_fd(), aside.as_bytes()));
    Ok(())
}

impl Ctl {
    pub(crate) fn new(
        guest: GuestConfig,
        started_at: Timestamp,
        terminals: Arc<TerminalClock>,
        services: Option<Arc<Services>>,
        daemon: DaemonRequests,
    ) -> Self {
        let limits = Mutex::new(guest.about.limits.clone());
        Self {
            guest: Mutex::new(guest),
            limits,
            started_at,
            terminals,
            services,
            daemon,
            keep_awake: Mutex::default(),
        }
    }

    /// None if the time has passed.
    fn hold_until(&self) -> Option<Timestamp> {
        let keep_awake = *self.keep_awake.lock().unwrap_or_else(PoisonError::into_inner);
        keep_awake.and_then(|keep_awake| keep_awake.until(since_boot(), Timestamp::now()))
    }

    pub(crate) fn activity(&self) -> Activity {
        Activity { hold_until: self.hold_until(), last_input_at: self.terminals.last() }
    }

    fn limits(&self) -> Limits {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets changed limits. Returns what the bay should now know about itself, for its README.
    pub(crate) fn set_limits(&self, limits: Limits) -> GuestConfig {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&limits);
        let mut guest = self.guest();
        guest.about.limits = limits;
        guest
    }

    fn guest(&self) -> GuestConfig {
        self.guest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the configuration of a restored bay; a fork is another bay.
    pub(crate) fn set_config(&self, guest: GuestConfig) {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&guest.about.limits);
        *self.guest.lock().unwrap_or_else(PoisonError::into_inner) = guest;
    }

    /// Serves connections; never returns.
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
                // Only a request that waits for the daemon may take longer, and few can wait at once.
                if late && asking.load(Ordering::Relaxed) {
                    let _ = tokio::time::timeout(daemon_requests::ANSWER_WITHIN, answering).await;
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
        // If a client sends nonsense, only its own connection ends.
        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
    }

    /// A new noun gets its line here. The table is in [`bay_types::inside`].
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
                self.daemon.report(InsideChange::HoldTaken { until: hold.hold_until });
                Ok(json(StatusCode::OK, &hold))
            }
            (&Method::DELETE, ["v1", "hold"]) => {
                self.daemon.report(InsideChange::HoldReleased);
                *self.keep_awake.lock().unwrap_or_else(PoisonError::into_inner) = None;
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
                let DiffAsk { from, to, part, patch, ignored } = require_json(request.into_body()).await?;
                self.ask(Ask::Diff { from, to, part, patch, ignored }, asking).await
            }
            (_, ["v1", "services", rest @ ..]) => {
                let method = request.method().clone();
                let services = self.services.as_ref();
                let answer =
                    services::route(services, &self.daemon, asking, peer.uid, rest, &query, request).await?;
                if let Some(change) = services::changed(self.services.as_ref(), &method, rest).await {
                    self.daemon.report(change);
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
        Ok(json(StatusCode::OK, &self.daemon.ask(ask, asking).await?))
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
                detail: "what the bay's policy allows leaves; anything else is refused with the reason, or waits for \
                         an approval; `bay-ctl egress` tells what it allows; loopback works"
                    .to_owned(),
            },
            mounts: self.guest().about.mounts,
            workspace: WORKSPACE.into(),
            limits: self.limits(),
            hold_until: self.hold_until(),
        }
    }

    /// A new hold replaces the present one, whether it ends earlier or later.
    fn hold(&self, seconds: u64) -> Result<Hold, ApiError> {
        let keep_awake = Some(seconds)
            .filter(|seconds| (1..=MAX_HOLD_S).contains(seconds))
            .and_then(|seconds| KeepAwake::new(seconds, since_boot(), Timestamp::now()))
            .ok_or_else(|| {
                ApiError::new(
                    ErrorCode::InvalidInput,
                    format!(
                        "a bay can be kept from its idle stop for 1 to {MAX_HOLD_S} seconds, not {seconds}"
                    ),
                    "use a shorter time, and repeat the command when it is over",
                )
            })?;
        *self.keep_awake.lock().unwrap_or_else(PoisonError::into_inner) = Some(keep_awake);
        Ok(Hold { hold_until: self.hold_until() })
    }
}
