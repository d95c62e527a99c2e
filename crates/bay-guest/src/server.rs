//! Starts the guest, and serves the daemon: socket, connections, routes.

use std::convert::Infallible;
use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bay_types::exec::{ExecSpec, ExecStatus, SignalRequest, Signalled};
use bay_types::frame::{INPUT, UPGRADE};
use bay_types::guest::{ExecEnded, GuestEvent, GuestInfo, PROTOCOL, Shutdown, ShutdownReport};
use bay_types::secret::Delivered;
use bay_types::{ApiError, ErrorCode, ExecId, InputId, VERSION};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde::Serialize;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore, broadcast, mpsc};

use crate::after_restore::AfterRestore;
use crate::ctl::{self, Ctl, DaemonRequests};
use crate::envd::{self, Envd};
use crate::execs::Execs;
use crate::execs::attach::{self, Target};
use crate::execs::output::{self, Follow, Output};
use crate::files::{self, Files};
use crate::http::{
    ACCEPT_PAUSE, Answer, Body, Query, connection, empty, error, invalid, json, read_json, require_json,
    stream,
};
use crate::log::Log;
use crate::primitives::{Config, Primitives};
use crate::services::{self, Services};
use crate::{fork_hooks, ports, root_files, tcp, watch};

/// Most connections at once from outside the bay, which come from the daemon. A further one is closed.
const MAX_CONNECTIONS: usize = 1024;
/// Most connections at once from processes of the bay, which may do anything. They have slots of their own, so they
/// cannot keep the daemon out.
const MAX_INNER_CONNECTIONS: usize = 64;
/// How long a client inside the bay may take for the head of a request, or wait before the next one. Connections of the
/// daemon have no such limit.
const INNER_HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest grace of a shutdown.
const MAX_GRACE: Duration = Duration::from_secs(600);
/// The share of a shutdown's grace that services may use before everything else is asked to end.
const SERVICES_GRACE: f32 = 0.75;
/// How long the daemon may take to read the answer to a shutdown before the guest ends anyway.
const LAST_ANSWER: Duration = Duration::from_secs(1);
const EVENT_LINES: usize = 16;

/// The status of an exec after a signal, and which other processes were signalled.
#[derive(Serialize)]
struct SignalAnswer {
    #[serde(flatten)]
    status: ExecStatus,
    #[serde(flatten)]
    signalled: Signalled,
}

/// Everything that a route uses.
struct Guest {
    execs: Arc<Execs>,
    files: Arc<Files>,
    /// The services, or why the bay cannot store any.
    services: Result<Arc<Services>, String>,
    /// The root directory for watches.
    root: PathBuf,
    ctl: Arc<Ctl>,
    envd: Arc<Envd>,
    started_at: Timestamp,
    /// The fork hooks that failed at this start.
    troubles: Vec<String>,
    restored: Arc<AfterRestore>,
    /// A shutdown is over. The guest ends when its answer has been sent.
    done: AtomicBool,
    leave: Notify,
}

impl Guest {
    fn services(&self) -> Result<&Arc<Services>, ApiError> {
        self.services.as_ref().map_err(|why| {
            ApiError::new(
                ErrorCode::PoolDamaged,
                format!("the services cannot be stored in the bay's state: {why}"),
                "free some of the bay's disk, then stop and start the bay",
            )
        })
    }
}

/// Runs the guest until a shutdown is over. In a fork, the fork hooks run first; then it listens, and starts the
/// services.
pub(crate) async fn serve(config: Config, listener: StdListener) -> io::Result<()> {
    let (about, state_dir, root) = (config.guest.clone(), config.state_dir.clone(), config.root.clone());
    let Primitives { execs, files, log } = Primitives::start(config)?;
    let troubles = match about.fork_index {
        Some(index) => fork_hooks::run(&execs, &state_dir, &root, index, &log).await,
        None => Vec::new(),
    };
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let started_at = execs.context.started_at;
    let services = Services::open(&execs).map(Arc::new).map_err(|error| {
        log.line("services.refused", format_args!("error={error}"));
        error.to_string()
    });
    if let Ok(services) = &services {
        tokio::spawn(Arc::clone(services).load());
    }
    let terminals = Arc::clone(&execs.context.terminals);
    let ctl = Arc::new(Ctl::new(
        about,
        started_at,
        terminals,
        services.as_ref().ok().cloned(),
        DaemonRequests::new(execs.events.clone()),
    ));
    match ctl::listen(&root) {
        Ok(listener) => drop(tokio::spawn(Arc::clone(&ctl).serve(listener))),
        // The bay works without this socket.
        Err(error) => log.line("ctl.refused", format_args!("error={error}")),
    }
    let (listeners, new_listeners) = mpsc::channel(1);
    let restored = AfterRestore {
        listeners,
        execs: Arc::clone(&execs),
        services: services.as_ref().ok().cloned(),
        ctl: Arc::clone(&ctl),
        root: root.clone(),
        state_dir,
    };
    let guest = Arc::new(Guest {
        restored: Arc::new(restored),
        envd: Arc::new(Envd::new(Arc::clone(&execs), Arc::new(files.with_own_limit()?))),
        started_at,
        troubles,
        execs,
        files,
        services,
        root,
        ctl,
        done: AtomicBool::new(false),
        leave: Notify::new(),
    });
    tokio::select! {
        () = accept(listener, new_listeners, &guest, &log) => {}
        () = guest.leave.notified() => {}
    }
    log.line("guest.stopped", format_args!(""));
    Ok(())
}

async fn accept(
    mut listener: UnixListener,
    mut new_listeners: mpsc::Receiver<UnixListener>,
    guest: &Arc<Guest>,
    log: &Log,
) {
    let outer = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let inner = Arc::new(Semaphore::new(MAX_INNER_CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(new) = new_listeners.recv() => {
                listener = new;
                continue;
            }
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                log.line("accept.failed", format_args!("error={error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // A process outside the guest's PID namespace has no pid in it.
        let from_inside = stream.peer_cred().ok().and_then(|c| c.pid()).is_some_and(|pid| pid > 0);
        let slots = if from_inside { &inner } else { &outer };
        // Over the limit, the connection is closed at once.
        if let Ok(slot) = Arc::clone(slots).try_acquire_owned() {
            let guest = Arc::clone(guest);
            tokio::spawn(async move {
                let _slot = slot;
                serve_connection(stream, &guest, from_inside).await;
            });
        }
    }
}

async fn serve_connection(stream: UnixStream, guest: &Arc<Guest>, from_inside: bool) {
    let service = service_fn(|request| {
        let guest = Arc::clone(guest);
        async move {
            let answer = route(&guest, request).await;
            Ok::<_, Infallible>(answer.unwrap_or_else(|e| error(&e)))
        }
    });
    let builder = connection(from_inside.then_some(INNER_HEAD_TIMEOUT));
    // If a client breaks off or sends nonsense, only its own connection ends.
    let _ = builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
    if guest.done.load(Ordering::Relaxed) {
        guest.leave.notify_one();
    }
}

async fn route(guest: &Arc<Guest>, request: Request<Incoming>) -> Answer {
    if envd::serves(request.uri().path()) {
        return Ok(guest.envd.answer(request).await);
    }
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let query = Query::of(&request)?;
    let execs = &guest.execs;
    match (request.method(), parts.as_slice()) {
        (&Method::GET, ["v1", "info"]) => {
            let info = GuestInfo {
                version: VERSION.to_owned(),
                protocol: PROTOCOL,
                started_at: guest.started_at,
                troubles: guest.troubles.clone(),
            };
            Ok(json(StatusCode::OK, &info))
        }
        (&Method::GET, ["v1", "execs"]) => {
            let execs = Arc::clone(execs);
            let all = tokio::task::spawn_blocking(move || execs.list())
                .await
                .map_err(|e| ApiError::internal(&e))??;
            Ok(json(StatusCode::OK, &all))
        }
        (&Method::PUT, ["v1", "execs", id]) => {
            let spec = spec_for(parse_id(id)?, require_json(request.into_body()).await?)?;
            let (found, new) = execs.start(spec).await?;
            Ok(json(if new { StatusCode::CREATED } else { StatusCode::OK }, &found.status()))
        }
        (&Method::GET, ["v1", "execs", id]) => {
            Ok(json(StatusCode::OK, &execs.get_started(parse_id(id)?).await?.status_now()))
        }
        (&Method::DELETE, ["v1", "execs", id]) => {
            execs.forget(parse_id(id)?).await?;
            Ok(empty(StatusCode::NO_CONTENT))
        }
        (&Method::POST, ["v1", "execs", id, "attach"]) => {
            attach_route(execs, parse_id(id)?, &query, request).await
        }
        (&Method::GET, ["v1", "execs", id, "output"]) => {
            let since = query.number("since", 10)?.unwrap_or(0);
            let follow = if query.flag("follow")? { Follow::UntilExit } else { Follow::WhatIsThere };
            let found = execs.get_started(parse_id(id)?).await?;
            output::check_since(&found, since)?;
            let output = Output::of(execs, &found, since, follow)?.with_times(query.flag("times")?);
            Ok(stream(output::body(output), None))
        }
        (&Method::POST, ["v1", "execs", id, "signal"]) => {
            let id = parse_id(id)?;
            let wanted: SignalRequest = require_json(request.into_body()).await?;
            let (status, signalled) = execs.signal(id, wanted)?;
            Ok(json(StatusCode::OK, &SignalAnswer { status, signalled }))
        }
        (_, ["v1", "services", rest @ ..]) => services::route(guest.services()?, rest, &query, request).await,
        (&Method::GET, ["v1", "events"]) => Ok(stream(events(execs.events.subscribe()), None)),
        (&Method::POST, ["v1", "asks", id]) => {
            let id = id.parse().map_err(|_| invalid("the request to the daemon has no number"))?;
            guest.ctl.daemon.answer(id, require_json(request.into_body()).await?);
            Ok(empty(StatusCode::NO_CONTENT))
        }
        (&Method::GET, ["v1", "stat"]) => files::stat(&guest.files, &query).await,
        (&Method::GET, ["v1", "files"]) => files::get(&guest.files, &query).await,
        (&Method::PUT, ["v1", "files"]) => files::put(&guest.files, &query, request.into_body()).await,
        (&Method::GET, ["v1", "archive"]) => files::archive_get(&guest.files, &query).await,
        (&Method::PUT, ["v1", "archive"]) => {
            files::archive_put(&guest.files, &query, request.into_body()).await
        }
        (&Method::GET, ["v1", "watch"]) => watch::route(&guest.root, &query).await,
        (&Method::GET, ["v1", "ports"]) => {
            ports::route(None, |run| guest.services.as_deref().ok()?.name_of(run)).await
        }
        (&Method::POST, ["v1", "tcp", port]) => tcp::route(port, request).await,
        (&Method::GET, ["v1", "activity"]) => Ok(json(StatusCode::OK, &guest.ctl.activity())),
        (&Method::PUT, ["v1", "limits"]) => {
            let now = guest.ctl.set_limits(require_json(request.into_body()).await?);
            let (root, log) = (guest.root.clone(), Arc::clone(&execs.context.log));
            tokio::task::spawn_blocking(move || root_files::rewrite_readme(&root, &now, &log))
                .await
                .map_err(|e| ApiError::internal(&e))?;
            Ok(empty(StatusCode::NO_CONTENT))
        }
        (&Method::PUT, ["v1", "durability"]) => {
            execs.context.flushes.set(require_json(request.into_body()).await?);
            Ok(empty(StatusCode::NO_CONTENT))
        }
        (&Method::PUT, ["v1", "secrets"]) => {
            let now: Vec<Delivered> = require_json(request.into_body()).await?;
            let (root, execs) = (guest.root.clone(), Arc::clone(execs));
            tokio::task::spawn_blocking(move || {
                execs.context.sentinels.replace(now, &root, &execs.context.log);
            })
            .await
            .map_err(|e| ApiError::internal(&e))?;
            Ok(empty(StatusCode::NO_CONTENT))
        }
        (&Method::POST, ["v1", "wake"]) => guest.restored.route(request).await,
        (&Method::POST, ["v1", "shutdown"]) => {
            let wanted: Shutdown = require_json(request.into_body()).await?;
            let ended = stop(guest, Duration::from_millis(wanted.grace_ms).min(MAX_GRACE)).await;
            Ok(last_answer(guest, &ShutdownReport { ended }))
        }
        (method, _) => Err(ApiError::new(
            ErrorCode::InvalidInput,
            format!("the guest does not know {method} {path}"),
            "the daemon and the guest may be of different versions: replace the bay",
        )),
    }
}

/// Stops services first, in their order, within most of the grace; then everything else in the rest of it.
async fn stop(guest: &Guest, grace: Duration) -> Vec<ExecEnded> {
    let began = tokio::time::Instant::now();
    if let Ok(services) = &guest.services {
        services.stop(grace.mul_f32(SERVICES_GRACE)).await;
    }
    guest.execs.stop(grace.saturating_sub(began.elapsed())).await
}

fn parse_id(text: &str) -> Result<ExecId, ApiError> {
    text.parse().map_err(|e: bay_types::id::ParseIdError| invalid(e.to_string()))
}

fn spec_for(id: ExecId, spec: ExecSpec) -> Result<ExecSpec, ApiError> {
    if spec.id != id {
        return Err(invalid(format!("the request is for {id}, but its body for {}", spec.id)));
    }
    Ok(spec)
}

/// The guest ends when this answer has been sent, or soon after.
fn last_answer(guest: &Arc<Guest>, last: &ShutdownReport) -> Response<Body> {
    guest.done.store(true, Ordering::Relaxed);
    let guest = Arc::clone(guest);
    tokio::spawn(async move {
        tokio::time::sleep(LAST_ANSWER).await;
        guest.leave.notify_one();
    });
    let mut response = json(StatusCode::OK, last);
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn attach_route(
    execs: &Arc<Execs>,
    id: ExecId,
    query: &Query,
    mut request: Request<Incoming>,
) -> Answer {
    let asked = request.headers().get(header::UPGRADE).is_some_and(|v| v.as_bytes() == UPGRADE.as_bytes());
    if !asked {
        return Err(invalid(format!("attach needs the header `Upgrade: {UPGRADE}`")));
    }
    let since = query.number("since", 10)?.unwrap_or(0);
    let input = named_input(&request)?;
    let upgrade = hyper::upgrade::on(&mut request);
    let found = match read_json::<ExecSpec>(request.into_body()).await? {
        Some(spec) => execs.start(spec_for(id, spec)?).await?.0,
        None => execs.get_started(id).await?,
    };
    output::check_since(&found, since)?;
    let output = Output::of(execs, &found, since, Follow::UntilExit)?;
    let target = output::live(&found).map(|exec| Target {
        exec: Arc::clone(exec),
        source: input.map_or_else(Arc::default, |id| exec.input_queue.named(id)),
        reports: input.is_some(),
    });
    let mut response = empty(StatusCode::SWITCHING_PROTOCOLS);
    if input.is_some() {
        let received = target.as_ref().map_or(0, |target| target.source.received());
        response.headers_mut().insert(INPUT, HeaderValue::from(received));
    }
    tokio::spawn(attach_upgraded(upgrade, target, output));
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(UPGRADE));
    Ok(response)
}

/// The id that the client gave its input, if it wants to know how much of it was received.
fn named_input(request: &Request<Incoming>) -> Result<Option<InputId>, ApiError> {
    let Some(value) = request.headers().get(INPUT) else { return Ok(None) };
    let id = value.to_str().ok().and_then(|text| text.parse().ok());
    id.map(Some).ok_or_else(|| invalid(format!("the header `{INPUT}` names no input")))
}

async fn attach_upgraded(upgrade: hyper::upgrade::OnUpgrade, target: Option<Target>, output: Output) {
    // The client went away before it had the answer.
    let Ok(upgraded) = upgrade.await else { return };
    let Ok(parts) = upgraded.downcast::<TokioIo<UnixStream>>() else { return };
    attach::serve(parts.io.into_inner(), &parts.read_buf, target, output).await;
}

/// Lines of events, until the reader goes away or is too far behind.
fn events(mut events: broadcast::Receiver<GuestEvent>) -> mpsc::Receiver<io::Result<Bytes>> {
    let (sender, receiver) = mpsc::channel(EVENT_LINES);
    tokio::spawn(async move {
        let mut next = Some(GuestEvent::Hello);
        while let Some(event) = next {
            let mut line = serde_json::to_vec(&event).unwrap_or_default();
            line.push(b'\n');
            if sender.send(Ok(line.into())).await.is_err() {
                return;
            }
            next = tokio::select! {
                event = events.recv() => event.ok(),
                () = sender.closed() => return,
            };
        }
    });
    receiver
}
