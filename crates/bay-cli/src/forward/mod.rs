//! Forwards: listeners on this host whose connections lead to ports of a bay.
//!
//! ```text
//!  bind ──► opened ──► lines about the bay ──► the bay is removed: an error
//!             ▲                │
//!             │                ▼ the daemon went away
//!             └──────────── opening again ──► no daemon for AWAY_FOR: an error
//!
//!  each accepted connection ──► the daemon ──► relayed until it ends
//!                                  └─ refused ──► reset, with one note until a later connection to that port succeeds
//! ```
//!
//! The listeners stay while the bay does not run, or the daemon restarts: new connections are reset meanwhile.

mod listeners;
mod port_pair;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bay_client::{Client, bay_path, broken};
use bay_text::escape;
use bay_text::lines::LineBuffer;
use bay_text::percent::segment;
use bay_types::bay::State;
use bay_types::forward::{ForwardLine, ForwardSpec};
use bay_types::inside::{Port, Protocol};
use bay_types::{ApiError, ErrorCode, ForwardId};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::net::TcpStream;

use crate::session::note;
use listeners::Listeners;
pub(crate) use port_pair::PortPair;

/// Longest line of the daemon.
const MAX_LINE: usize = 64 << 10;
/// How long no daemon may answer before the forward is given up.
const AWAY_FOR: Duration = Duration::from_secs(60);
/// A service manager usually restarts a daemon that died. This program starts one only after this time.
const START_AFTER: Duration = Duration::from_secs(3);
/// Pause between two attempts to open the forward again.
const TRY_AGAIN: Duration = Duration::from_millis(200);
/// How often the bay's ports are read to follow them.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// The first port that is followed. A bay must not take well-known ports of this host by listening on them.
const FIRST_FOLLOWED: u16 = 1024;
/// The most ports that are followed at once.
const MAX_FOLLOWED: usize = 100;
/// Open files that this program asks for. Each connection needs two.
const WANTED_FILES: u64 = 4096;

/// What a caller wants to forward.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) bay: String,
    pub(crate) pairs: Vec<PortPair>,
    /// Also other TCP ports on which the bay listens, from [`FIRST_FOLLOWED`] on, under the same number.
    pub(crate) all: bool,
    pub(crate) listen: IpAddr,
}

/// Something to show to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Connections to the address lead to the bay's port.
    Opened(SocketAddr, u16),
    /// They do so no longer.
    Closed(SocketAddr, u16),
}

/// What the connections of a forward share.
#[derive(Debug)]
struct Shared {
    /// A template for clients.
    client: Client,
    bay: String,
    /// `None` while the daemon is away.
    forward: Mutex<Option<ForwardId>>,
    /// Ports to which connections are refused.
    outages: Mutex<HashMap<u16, Outage>>,
}

/// From a refused connection to a port until one succeeds that came later.
#[derive(Debug)]
struct Outage {
    /// Why it was refused.
    code: ErrorCode,
    noted: Instant,
}

/// An open forward.
#[derive(Debug)]
pub(crate) struct Forwarding {
    shared: Arc<Shared>,
    wanted: Wanted,
    spec: ForwardSpec,
    listeners: Listeners,
    lines: Lines,
    /// Whether the bay was last reported not to run.
    waits: bool,
}

/// The lines of the daemon.
#[derive(Debug)]
struct Lines {
    body: Incoming,
    read: LineBuffer,
    /// The connection ends with its client.
    _client: Client,
}

impl Lines {
    /// The next line. `None` if the daemon is gone.
    async fn next(&mut self) -> Result<Option<ForwardLine>, ApiError> {
        loop {
            if let Some(line) = self.read.next_line() {
                let line = serde_json::from_slice(&line);
                return line.map(Some).map_err(|e| broken(&format!("a line cannot be read: {e}")));
            }
            if self.read.unfinished() > MAX_LINE {
                return Err(broken("a line of its answer is too long"));
            }
            let Some(Ok(frame)) = self.body.frame().await else { return Ok(None) };
            if let Some(data) = frame.data_ref() {
                self.read.push(data);
            }
        }
    }
}

impl Forwarding {
    /// Listens on this host, then opens the forward.
    pub(crate) async fn open(client: Client, wanted: Wanted) -> Result<Self, ApiError> {
        raise_open_files();
        let shared = Arc::new(Shared {
            client: client.another_without_starting(),
            bay: wanted.bay.clone(),
            forward: Mutex::default(),
            outages: Mutex::default(),
        });
        let mut listeners = Listeners::default();
        for pair in &wanted.pairs {
            let address = SocketAddr::new(wanted.listen, pair.host);
            listeners
                .add(address, pair.inside, &shared)
                .map_err(|error| listeners::taken(&wanted.bay, *pair, address, &error))?;
        }
        let ports = wanted.pairs.iter().map(|pair| pair.inside).collect();
        let spec = ForwardSpec { ports, all: wanted.all, listen: Some(wanted.listen) };
        let (forward, lines) = opened(client, &wanted.bay, &spec).await?;
        shared.set(Some(forward));
        Ok(Self { shared, wanted, spec, listeners, lines, waits: false })
    }

    /// The listeners that there are now.
    pub(crate) fn listening(&self) -> impl Iterator<Item = Change> {
        self.wanted
            .pairs
            .iter()
            .map(|pair| Change::Opened(SocketAddr::new(self.wanted.listen, pair.host), pair.inside))
    }

    /// Keeps the forward open, and shows what changes, until it cannot continue. Returns the reason.
    pub(crate) async fn run<E: From<ApiError>>(mut self, mut show: impl FnMut(Change) -> Result<(), E>) -> E {
        let mut follow = tokio::time::interval(FOLLOW_EVERY);
        follow.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut ports_client = self.shared.client.another_without_starting();
        let mut reported = Vec::new();
        loop {
            let done = tokio::select! {
                line = self.lines.next() => match line {
                    Ok(Some(line)) => self.take(line),
                    Ok(None) => self.open_again().await,
                    Err(error) => Err(error),
                },
                _ = follow.tick(), if self.wanted.all => {
                    let changes = self.follow(&mut ports_client, &mut reported).await;
                    if let Err(error) = changes.into_iter().try_for_each(&mut show) {
                        return error;
                    }
                    Ok(())
                }
            };
            if let Err(error) = done {
                return error.into();
            }
        }
    }

    /// Handles a line of the daemon.
    fn take(&mut self, line: ForwardLine) -> Result<(), ApiError> {
        let bay = &self.wanted.bay;
        match line {
            ForwardLine::Open { forward } => self.shared.set(Some(forward)),
            ForwardLine::Removed => return Err(removed(bay)),
            ForwardLine::State { state: State::Running, .. } if self.waits => {
                self.waits = false;
                note(&format!("the bay {bay} runs again; the forward continues"));
            }
            ForwardLine::State { state: State::Running | State::Starting | State::Stopping, .. } => {}
            ForwardLine::State { state, reason } => {
                self.waits = true;
                let reason = escape::one_line(&reason);
                let verb = if state == State::Paused { "resume" } else { "start" };
                note(&format!(
                    "the bay {bay} is {state} ({reason}); the forward waits until it runs again: `bay {verb} {bay}`"
                ));
            }
        }
        Ok(())
    }

    /// Opens the forward again after the daemon went away.
    async fn open_again(&mut self) -> Result<(), ApiError> {
        self.shared.set(None);
        let mut away_since = Instant::now();
        loop {
            let template = &self.shared.client;
            let client = match away_since.elapsed() {
                away if away < START_AFTER => template.another_without_starting(),
                _ => template.another(),
            };
            match opened(client, &self.wanted.bay, &self.spec).await {
                Ok((forward, lines)) => {
                    self.lines = lines;
                    self.shared.set(Some(forward));
                    if std::mem::take(&mut self.waits) {
                        note(&format!("the bay {} runs again; the forward continues", self.wanted.bay));
                    }
                    return Ok(());
                }
                Err(error) if error.code == ErrorCode::BayNotFound => return Err(removed(&self.wanted.bay)),
                Err(error) if error.code == ErrorCode::BayState => {
                    if !std::mem::replace(&mut self.waits, true) {
                        let why = escape::one_line(&error.message);
                        note(&format!("{why}; the forward waits until it runs again: {}", error.next));
                    }
                    away_since = Instant::now();
                }
                Err(error) if passing(&error) && away_since.elapsed() < AWAY_FOR => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    /// Follows the ports on which the bay listens: opens and closes listeners beside those of the named pairs.
    /// `reported` are ports that cannot be followed.
    async fn follow(&mut self, client: &mut Client, reported: &mut Vec<u16>) -> Vec<Change> {
        let ports: Vec<Port> = match client.get(&bay_path(&self.wanted.bay, "/ports")).await {
            Ok(ports) => ports,
            // Nothing listens in a bay that does not run.
            Err(error) if error.code == ErrorCode::BayState => Vec::new(),
            // The next attempt may know.
            Err(_) => return Vec::new(),
        };
        let named: Vec<u16> = self.wanted.pairs.iter().map(|pair| pair.inside).collect();
        let mut now: Vec<u16> = ports
            .iter()
            .filter(|port| port.protocol == Protocol::Tcp && reachable(port.address))
            .map(|port| port.port)
            .filter(|port| *port >= FIRST_FOLLOWED && !named.contains(port))
            .collect();
        now.sort_unstable();
        now.dedup();
        now.truncate(MAX_FOLLOWED);
        reported.retain(|port| now.contains(port));
        let mut changes = self.listeners.remove(|port| !named.contains(&port) && !now.contains(&port)).await;
        for port in now {
            let address = SocketAddr::new(self.wanted.listen, port);
            if self.listeners.has(address) {
                continue;
            }
            match self.listeners.add(address, port, &self.shared) {
                Ok(()) => changes.push(Change::Opened(address, port)),
                Err(error) if !reported.contains(&port) => {
                    reported.push(port);
                    let error = listeners::taken(&self.wanted.bay, PortPair::same(port), address, &error);
                    note(&format!("{}; {}", error.message, error.next));
                }
                Err(_) => {}
            }
        }
        changes
    }
}

/// Whether the guest, which connects to loopback, reaches a listener at this address.
fn reachable(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || address.is_unspecified()
}

async fn opened(mut client: Client, bay: &str, spec: &ForwardSpec) -> Result<(ForwardId, Lines), ApiError> {
    let body = client.post_and_read(&bay_path(bay, "/forwards"), spec).await?;
    let mut lines = Lines { body, read: LineBuffer::default(), _client: client };
    match lines.next().await? {
        Some(ForwardLine::Open { forward }) => Ok((forward, lines)),
        _ => Err(broken("the daemon did not say that the forward is open")),
    }
}

fn removed(bay: &str) -> ApiError {
    ApiError::new(
        ErrorCode::BayNotFound,
        format!("the forward has ended: the bay {bay} was removed"),
        "`bay ls` lists the bays",
    )
}

/// Whether an error means that the daemon is only temporarily unreachable.
fn passing(error: &ApiError) -> bool {
    matches!(error.code, ErrorCode::DaemonUnreachable | ErrorCode::GuestUnreachable | ErrorCode::Interrupted)
}

fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(WANTED_FILES, |hard| hard.min(WANTED_FILES));
    if limit.current.is_some_and(|soft| soft < most) {
        limit.current = Some(most);
        // With fewer files there are fewer connections at once, which each refusal reports.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

impl Shared {
    fn set(&self, forward: Option<ForwardId>) {
        *self.forward.lock().unwrap_or_else(PoisonError::into_inner) = forward;
    }

    /// Relays a connection that came at this time to the bay's port, or resets it.
    async fn carry(&self, tcp: TcpStream, port: u16, came: Instant) {
        match self.connect(port).await {
            Ok((link, early)) => {
                self.end_outage(port, came);
                bay_tunnel::relay(tcp, link, &early).await;
            }
            Err(error) => {
                bay_tunnel::reset(tcp);
                self.note_refusal(port, &error);
            }
        }
    }

    async fn connect(&self, port: u16) -> Result<(tokio::net::UnixStream, bytes::Bytes), ApiError> {
        let forward = *self.forward.lock().unwrap_or_else(PoisonError::into_inner);
        let forward = forward.ok_or_else(|| broken("the forward has no connection to it right now"))?;
        let rest = format!("/forwards/{}/ports/{port}", segment(&forward.to_string()));
        self.client.another_without_starting().tcp(&bay_path(&self.bay, &rest)).await
    }

    /// A connection that came before the outage says nothing about its end, however late it is carried.
    fn end_outage(&self, port: u16, came: Instant) {
        let mut outages = self.outages.lock().unwrap_or_else(PoisonError::into_inner);
        if outages.get(&port).is_some_and(|outage| outage.noted < came) {
            outages.remove(&port);
        }
    }

    fn note_refusal(&self, port: u16, error: &ApiError) {
        let outage = Outage { code: error.code, noted: Instant::now() };
        let mut outages = self.outages.lock().unwrap_or_else(PoisonError::into_inner);
        let before = outages.get(&port).map(|outage| outage.code);
        if before != Some(error.code) {
            outages.insert(port, outage);
            drop(outages);
            let message = escape::one_line(&error.message);
            let next = if error.next.is_empty() { String::new() } else { format!(" ({})", error.next) };
            note(&format!("a connection to port {port} was closed: {message}{next}; the forward continues"));
        }
    }

    fn note_accept(&self, address: SocketAddr, error: &io::Error) {
        note(&format!("{address} cannot accept connections right now: {error}"));
    }
}
