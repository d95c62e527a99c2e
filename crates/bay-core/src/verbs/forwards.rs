//! Forwards: a client reaches TCP ports of a bay from its own host.
//!
//! ```text
//!  open ──► event forward.open ──► lines about the bay's state ──► the client leaves, or the bay is removed
//!   │                                                                      └──► event forward.end
//!   └─ connect, for each TCP connection ──► guest ──► bytes both ways, until either side ends or the policy closes the ports
//! ```
//!
//! An open forward is no use of the bay: an idle bay stops, and the forward waits for its next start. An open connection
//! is a use, like an attached client.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bay_store::Draft;
use bay_types::bay::State;
use bay_types::event::forward::{ForwardEnd, ForwardOpen};
use bay_types::forward::{ForwardLine, ForwardSpec, MAX_CONNECTIONS, MAX_FORWARDS};
use bay_types::id::ForwardId;
use bay_types::principal::Principal;
use bay_types::{Action, CoreError, ErrorCode, Hint};
use bytes::Bytes;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::{execs, policy};
use crate::authorize::Verb;
use crate::byte_stream::{self, ByteStream};
use crate::channel::plain_text;
use crate::daemon::Daemon;
use crate::open_forwards::Forward;
use crate::registry::{Attached, BayHandle};

/// How many lines wait for the client. A client that reads none misses states in between, never the last one.
const IN_FLIGHT: usize = 8;

/// One forwarded connection.
#[derive(Debug)]
pub struct Connection {
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    guest: Upgraded,
    forward: Arc<Forward>,
    /// Counts as a use of the bay until the connection ends.
    _attached: Attached,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// Passes bytes between the caller and the bay until either ends, or the bay's policy closes its ports. A
    /// caller that sends before it has the answer is dropped: nothing would hold what it sends.
    pub async fn serve(self, caller: Upgraded) {
        let caller = match caller.downcast::<TokioIo<UnixStream>>() {
            Ok(unix) if unix.read_buf.is_empty() => return self.pass(unix.io.into_inner()).await,
            Ok(_) => return,
            Err(other) => other,
        };
        if let Ok(tcp) = caller.downcast::<TokioIo<TcpStream>>()
            && tcp.read_buf.is_empty()
        {
            self.pass(tcp.io.into_inner()).await;
        }
    }

    async fn pass(self, caller: impl AsyncRead + AsyncWrite + AsFd + Unpin) {
        // The stream itself is borrowed while it waits for the guest.
        let watched = caller.as_fd().try_clone_to_owned();
        let gone = || watched.as_ref().is_ok_and(bay_tunnel::hung_up);
        let guest = TokioIo::new(self.guest);
        tokio::select! {
            passed = bay_tunnel::pass(caller, guest, gone, &self.forward.moved) => {
                tracing::trace!(?passed, "a forwarded connection ended");
            }
            () = ingress_closed(&self.daemon, &self.handle) => {}
        }
    }
}

/// Opens a forward, and returns its lines. It ends when the client drops them, or the bay is removed.
pub async fn open(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    spec: ForwardSpec,
) -> Result<ByteStream, CoreError> {
    let handle = daemon.bay_for(who, Verb::ForwardOpen, bay)?;
    spec.check()?;
    execs::must_run(&handle)?;
    allowed(daemon, &handle).await?;
    let (id, forward) = handle.forwards.add(spec).ok_or_else(|| {
        CoreError::new(
            ErrorCode::Interrupted,
            format!("the bay {} has {MAX_FORWARDS} open forwards, the most allowed", handle.name),
            "end one of them, or name several ports in one forward",
        )
    })?;
    let event = Draft::of(ForwardOpen {
        forward: id.into(),
        ports: forward.spec.ports.clone(),
        all: forward.spec.all,
        listen: forward.spec.listen,
        by: who.by(),
    });
    let (lines, receiver) = mpsc::channel(IN_FLIGHT);
    let _ = lines.try_send(byte_stream::json_line(&ForwardLine::Open { forward: id }));
    let daemon = Arc::clone(daemon);
    // A task of its own: the end is recorded also if the client leaves during the opening.
    let (opened, open) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let recorded = daemon.store.event_append(Some(handle.id), &event).await.map_err(|e| e.to_api());
        let is_open = recorded.is_ok();
        let _ = opened.send(recorded.map(drop));
        if is_open {
            until_left(&handle, &lines).await;
        }
        handle.forwards.remove(id);
        if is_open {
            ended(&daemon, &handle, id, &forward).await;
        }
    });
    open.await.map_err(|e| CoreError::internal(&e))??;
    Ok(byte_stream::received_bytes(receiver))
}

/// An error if the bay's policy closes its ports.
async fn allowed(daemon: &Daemon, handle: &BayHandle) -> Result<(), CoreError> {
    if policy::effective(daemon, handle).await.ingress() {
        return Ok(());
    }
    let name = &handle.name;
    Err(CoreError::new(
        ErrorCode::Denied,
        format!("the policy of {name} closes its ports to the outside (`ingress`)"),
        Hint::new("{} shows which layer of the policy says so", [Action::ShowPolicy(name.into())]),
    ))
}

/// Waits until the bay's policy closes its ports, or the bay is gone.
async fn ingress_closed(daemon: &Daemon, handle: &BayHandle) {
    let mut changes = daemon.policies.subscribe(handle.id);
    while policy::effective(daemon, handle).await.ingress() {
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Reports the states of the bay until the client leaves or the bay is removed.
async fn until_left(handle: &BayHandle, lines: &mpsc::Sender<Bytes>) {
    let mut rows = handle.row_changes();
    let mut last = State::Running;
    loop {
        let (state, reason) = {
            let row = rows.borrow_and_update();
            (row.state, row.reason.clone())
        };
        if state != last {
            last = state;
            let line = match state {
                State::Deleting => ForwardLine::Removed,
                _ => ForwardLine::State { state, reason: plain_text(&reason) },
            };
            if lines.send(byte_stream::json_line(&line)).await.is_err() || state == State::Deleting {
                return;
            }
        }
        tokio::select! {
            changed = rows.changed() => if changed.is_err() { return },
            () = lines.closed() => return,
        }
    }
}

async fn ended(daemon: &Daemon, handle: &BayHandle, id: ForwardId, forward: &Forward) {
    let event = Draft::of(ForwardEnd {
        forward: id.into(),
        connections: forward.connections.load(Ordering::Relaxed),
        bytes_in: forward.moved.there.load(Ordering::Relaxed),
        bytes_out: forward.moved.back.load(Ordering::Relaxed),
    });
    if let Err(error) = daemon.store.event_append(Some(handle.id), &event).await {
        tracing::warn!(bay = %handle.name, %error, "the end of a forward could not be recorded");
    }
}

/// Connects to a port of a forward.
pub async fn connect(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    forward: &str,
    port: u16,
) -> Result<Connection, CoreError> {
    let handle = daemon.bay_for(who, Verb::ForwardConnect, bay)?;
    let id = forward.parse().ok();
    let forward = id.and_then(|id| handle.forwards.find(id)).ok_or_else(|| {
        CoreError::new(
            ErrorCode::Interrupted,
            format!("the bay {} has no such open forward: {}", handle.name, plain_text(forward)),
            "open it again",
        )
    })?;
    if !forward.spec.covers(port) {
        return Err(CoreError::new(
            ErrorCode::InvalidInput,
            format!("the forward does not cover port {port}"),
            "open one that names the port",
        ));
    }
    execs::must_run(&handle)?;
    allowed(daemon, &handle).await?;
    let place = handle.forwards.place().ok_or_else(|| {
        CoreError::new(
            ErrorCode::Interrupted,
            format!("the bay {} has {MAX_CONNECTIONS} forwarded connections, the most allowed", handle.name),
            Hint::new(
                "close some of them; {} lists its listeners",
                [Action::ListPorts((&handle.name).into())],
            ),
        )
    })?;
    let attached = handle.client_attached();
    let guest = handle.guest.tcp(port).await?;
    forward.connections.fetch_add(1, Ordering::Relaxed);
    Ok(Connection { daemon: Arc::clone(daemon), handle, guest, forward, _attached: attached, _place: place })
}
