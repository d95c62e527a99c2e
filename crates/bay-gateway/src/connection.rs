//! One connection of the bay, from its first byte: what it is, and who serves it.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bay_policy::{CanonicalRequest, Connection, Host, Outcome, Route, Scheme};
use futures_util::future::Either;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::server::Acceptor;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;

use crate::body::AnswerBody;
use crate::decider::{Caller, Ending, Failure, Refused};
use crate::dns;
use crate::exchange::{self, Site};
use crate::gateway::Shared;
use crate::hello;
use crate::limits::{
    CONNECTION_WINDOW_BYTES, HEADER_TABLE_BYTES, MAX_FRAME_BYTES, MAX_HEAD_BYTES, MAX_HEADER_LIST_BYTES,
    MAX_HEADERS, MAX_RESET_STREAMS, MAX_STREAMS, SEND_BUFFER_BYTES, STREAM_WINDOW_BYTES,
};
use crate::names::Meaning;
use crate::postgres;
use crate::progress::Progress;
use crate::proxy;
use crate::scrub::{Stream, Tally};
use crate::sight::Sight;
use crate::ssh;
use crate::stream::{Gathering, Io, Prefixed};
use crate::tunnel;
use crate::upstream::dial;

/// The first byte of a TLS record with a handshake in it.
pub(crate) const TLS_HANDSHAKE: u8 = 0x16;
/// How often old connections to origins are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(20);
/// How long accepting rests where the system has no more to give.
const ACCEPT_REST: Duration = Duration::from_millis(20);
/// Ports whose clients speak first.
const SPEAKING_PORTS: &[u16] = &[80, 443];

/// What a listener is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Door {
    Transparent,
    Proxy,
    /// All of them: the gateway's own addresses have DNS and the proxy at their ports, every other is somebody's.
    Any(Own),
}

/// Where the gateway is to be found for those who address it itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    pub addresses: Vec<IpAddr>,
    pub dns_port: u16,
    pub proxy_port: u16,
}

impl Door {
    /// Which door a connection came to.
    fn of(&self, local: SocketAddr) -> Entered {
        match self {
            Self::Transparent => Entered::Transparent,
            Self::Proxy => Entered::Proxy,
            Self::Any(own) if !own.addresses.contains(&local.ip()) => Entered::Transparent,
            Self::Any(own) if local.port() == own.dns_port => Entered::Dns,
            Self::Any(own) if local.port() == own.proxy_port => Entered::Proxy,
            Self::Any(_) => Entered::Transparent,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entered {
    Transparent,
    Proxy,
    Dns,
}

/// Where connections of a bay arrive, however its backend carries them.
pub trait Arrivals: Send + Sync + 'static {
    type Stream: Io;

    /// The next one.
    fn accept(&self) -> impl Future<Output = io::Result<Arrival<Self::Stream>>> + Send;
}

/// One connection that a bay made.
#[derive(Debug)]
pub struct Arrival<S> {
    pub stream: S,
    pub bay_end: SocketAddr,
    /// Where the bay wanted to go.
    pub wanted: SocketAddr,
}

impl Arrivals for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<Arrival<TcpStream>> {
        let (stream, bay_end) = Self::accept(self).await?;
        stream.set_nodelay(true).ok();
        let wanted = stream.local_addr()?;
        Ok(Arrival { stream, bay_end, wanted })
    }
}

pub(crate) async fn serve_listener(shared: Arc<Shared>, arrivals: impl Arrivals, door: Door) {
    let mut connections = JoinSet::new();
    let mut sweep = tokio::time::interval(SWEEP_EVERY);
    loop {
        tokio::select! {
            accepted = arrivals.accept() => match accepted {
                Ok(arrival) => {
                    if let Some(serving) = begin(&shared, arrival, &door) {
                        connections.spawn(serving);
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "accepting a connection of a bay");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            },
            Some(_) = connections.join_next() => {}
            _ = sweep.tick() => shared.origins.forget_old(),
        }
    }
}

/// Says who it is and whether there is room.
fn begin<S: Io>(
    shared: &Arc<Shared>,
    arrival: Arrival<S>,
    door: &Door,
) -> Option<impl Future<Output = ()> + Send + 'static + use<S>> {
    let Arrival { stream, bay_end, wanted } = arrival;
    let local = SocketAddr::new(wanted.ip().to_canonical(), wanted.port());
    let peer = SocketAddr::new(bay_end.ip().to_canonical(), bay_end.port());
    let entered = door.of(local);
    if entered == Entered::Dns {
        return dns::begin(shared, stream, peer).map(Either::Left);
    }
    let caller = Caller { peer, local, known: shared.decider.attribute(peer, local) };
    let permit = shared.room.clone().try_acquire_owned();
    let shared = shared.clone();
    Some(Either::Right(async move {
        let Ok(permit) = permit else {
            drop(stream);
            shared.decider.refused(&caller, &Refused::TooMany { destination: local }).await;
            return;
        };
        let busy: Arc<dyn Send + Sync> = Arc::new(permit);
        match entered {
            Entered::Dns => {}
            Entered::Proxy => proxy::serve(shared, stream, caller, busy).await,
            Entered::Transparent => {
                let meant = host_at(&shared, local.ip());
                let Some(host) = meant else {
                    shared.decider.refused(&caller, &Refused::Nameless { destination: local }).await;
                    return;
                };
                let pinned = Pinned { shared, caller, host, port: local.port(), busy };
                pinned.serve(Prefixed::new(stream)).await;
            }
        }
    }))
}

/// Whom the bay means by an address; nobody where it is one of the pool that no name has.
pub(crate) fn host_at(shared: &Shared, address: IpAddr) -> Option<Host> {
    let names = shared.names.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match names.meaning(address) {
        Meaning::Name(name) => Some(Host::Name((*name).into())),
        Meaning::Nobody => None,
        Meaning::Foreign => Some(Host::Address(address)),
    }
}

/// A connection whose destination is known.
pub(crate) struct Pinned {
    pub(crate) shared: Arc<Shared>,
    pub(crate) caller: Caller,
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) busy: Arc<dyn Send + Sync>,
}

impl Pinned {
    pub(crate) async fn serve(self, stream: Prefixed) {
        let timeouts = &self.shared.timeouts;
        let first = timeouts.first_byte;
        match self.shared.decider.route(&self.host, self.port) {
            Route::Tcp { .. } if self.shared.decider.secrets().has_logins(&self.host, self.port) => {
                postgres::serve(self, stream).await;
            }
            Route::Tcp { .. } => self.pass_tcp(stream).await,
            Route::Passthrough { .. } => self.pass_tls(stream).await,
            Route::Inspect => self.inspect(stream, first, None).await,
            Route::GitSsh => ssh::serve(self, stream).await,
            Route::Refuse { decision } => {
                let speaks = SPEAKING_PORTS.contains(&self.port);
                let within = if speaks { first } else { timeouts.refused_first_byte };
                self.inspect(stream, within, Some(decision)).await;
            }
        }
    }

    pub(crate) async fn refused_protocol(&self, why: &str) {
        let what = Refused::Protocol { host: &self.host, port: self.port, why };
        self.shared.decider.refused(&self.caller, &what).await;
    }

    /// Reads what is spoken and has each request decided on. Where nothing can be allowed, that is what is answered.
    async fn inspect(self, mut stream: Prefixed, within: Duration, refused: Option<bay_policy::Decision>) {
        let first = timeout(within, stream.first()).await;
        match (first, refused) {
            (Ok(Ok(Some(TLS_HANDSHAKE))), _) => self.serve_tls(stream).await,
            (Ok(Ok(Some(b'S'))), _)
                if matches!(timeout(within, ssh::is_spoken(&mut stream)).await, Ok(true)) =>
            {
                // Whatever it asks for is decided on, so that it can be told.
                ssh::serve(self, stream).await;
            }
            // Methods are words.
            (Ok(Ok(Some(byte))), _) if byte.is_ascii_alphabetic() => self.serve_plain(stream).await,
            (_, Some(decision)) => {
                let what = Refused::Connection { host: &self.host, port: self.port, decision: &decision };
                self.shared.decider.refused(&self.caller, &what).await;
            }
            (Ok(Ok(Some(_))), None) => self.refused_protocol("it is neither TLS nor HTTP").await,
            // A client that opened a connection in advance and had no use for it.
            (Ok(Ok(None) | Err(_)), None) => {}
            (Err(_), None) => self.refused_protocol("it said nothing").await,
        }
    }

    fn site(self, sni: Option<String>, scheme: Scheme) -> Site {
        Site {
            shared: self.shared,
            caller: self.caller,
            host: self.host,
            port: self.port,
            sni,
            scheme,
            busy: self.busy,
        }
    }

    async fn serve_plain(self, stream: Prefixed) {
        serve_http1(self.site(None, Scheme::Http), stream).await;
    }

    async fn serve_tls(self, stream: Prefixed) {
        let within = self.shared.timeouts.handshake;
        let handshake = async {
            let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
            let sni = start.client_hello().server_name().map(str::to_owned);
            // A certificate for the name that the client asks for, so that it can be told why that name is refused.
            let name = match sni.as_deref().map(Host::parse) {
                Some(Ok(host)) => host,
                Some(Err(_)) | None => self.host.clone(),
            };
            let name = match name {
                Host::Name(name) => name.into_string(),
                Host::Address(address) => address.to_string(),
            };
            let config = self.shared.leaves.server(&name).map_err(io::Error::other)?;
            Ok::<_, io::Error>((sni, start.into_stream(config).await?))
        };
        let (sni, stream) = match timeout(within, handshake).await {
            Ok(Ok(done)) => done,
            Ok(Err(error)) => {
                return self.refused_protocol(&format!("the TLS handshake failed: {error}")).await;
            }
            Err(_) => return self.refused_protocol("the TLS handshake took too long").await,
        };
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let site = self.site(sni, Scheme::Https);
        if is_http2 {
            serve_http2(site, stream).await;
        } else {
            serve_http1(site, stream).await;
        }
    }

    async fn pass_tcp(self, stream: Prefixed) {
        match CanonicalRequest::tcp(&self.host.to_string(), self.port) {
            Ok(request) => self.pass(stream, request, true).await,
            Err(refusal) => {
                let what = Refused::Form { host: &self.host, port: self.port, refusal: &refusal };
                self.shared.decider.refused(&self.caller, &what).await;
            }
        }
    }

    async fn pass_tls(self, mut stream: Prefixed) {
        let hello = match hello::read(&mut stream, self.shared.timeouts.handshake).await {
            Ok(hello) => hello,
            Err(why) => return self.refused_protocol(why).await,
        };
        if hello.hides_name {
            return self
                .refused_protocol("its TLS handshake hides the name of a server (ECH); turn that off")
                .await;
        }
        let destination = self.host.to_string();
        let connection =
            Connection { destination: &destination, port: self.port, sni: hello.server_name.as_deref() };
        match CanonicalRequest::passthrough(&connection) {
            Ok(request) => self.pass(stream, request, false).await,
            // The client can still be told: its handshake is answered, and each request refused for its names.
            Err(_) => self.serve_tls(stream).await,
        }
    }

    /// Passes bytes on, if that is allowed. They are scrubbed where they are `readable`.
    async fn pass(self, stream: Prefixed, request: CanonicalRequest, readable: bool) {
        let shared = &self.shared;
        let known_in = shared.generation();
        let secrets = shared.decider.secrets();
        if let Some(misuse) = secrets.closed(&self.host.to_string()) {
            let what = Refused::Secret { host: &self.host, port: self.port, misuse: &misuse };
            shared.decider.refused(&self.caller, &what).await;
            return;
        }
        let decided_in = shared.generation();
        let ruling = shared.decider.decide(&self.caller, &request, &mut Sight::nothing()).await;
        let progress =
            Progress::new(shared, ruling.id.clone(), request.clone(), decided_in, self.busy.clone());
        if ruling.decision.outcome != Outcome::Allow {
            return progress.end(Ending::Refused);
        }
        // What is encrypted between its two ends shows nothing here; anything else is scrubbed like other answers of the host.
        let Ok(patterns) = secrets.patterns(&self.host.to_string(), &[]) else {
            return progress.end_failed(Failure::Secret);
        };
        let scrub = patterns.filter(|_| readable).map(|patterns| {
            let renewal = shared.renewal(&self.host, Vec::new(), known_in);
            Stream::new(patterns).renewed_by(renewal).tallied(Tally::connection(Vec::new()))
        });
        match dial(&*shared.upstream, &shared.timeouts, &ruling.decision, &request).await {
            Ok(dialled) => {
                let idle = shared.timeouts.tunnel_idle;
                tunnel::run(stream, dialled.stream, progress, idle, shared.changes.clone(), scrub).await;
            }
            Err(error) => progress.end_failed(error.failure()),
        }
    }
}

async fn serve_http1(site: Site, stream: impl Io) {
    let site = Arc::new(site);
    let service = service_fn({
        let site = site.clone();
        move |request| exchange::serve(site.clone(), request)
    });
    let connection = http1_server(&site.shared)
        .serve_connection(TokioIo::new(Gathering::new(stream)), service)
        .with_upgrades();
    let served = serve_connection(&site.shared, connection).await;
    tell_parse_error(&site, served).await;
}

/// Serves a connection to its end. When the gateway is about to end, so is the connection: after the answer that is under
/// way.
pub(crate) async fn serve_connection<I: Io, S>(
    shared: &Shared,
    connection: http1::UpgradeableConnection<TokioIo<I>, S>,
) -> Result<(), hyper::Error>
where
    S: HttpService<Incoming, ResBody = AnswerBody, Error = Infallible>,
{
    let mut ending = shared.ending.subscribe();
    tokio::pin!(connection);
    tokio::select! {
        served = connection.as_mut() => return served,
        _ = ending.wait_for(|ending| *ending) => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}

pub(crate) fn http1_server(shared: &Shared) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(shared.timeouts.head)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .auto_date_header(false);
    builder
}

/// What hyper could not read was answered by it with a 400 or 431, and is recorded here.
async fn tell_parse_error(site: &Site, served: Result<(), hyper::Error>) {
    if let Err(error) = served
        && error.is_parse()
    {
        let why = format!("not HTTP as it should be: {error}");
        site.refuse(&Refused::Protocol { host: &site.host, port: site.port, why: &why }).await;
    }
}

async fn serve_http2(site: Site, stream: impl Io) {
    let site = Arc::new(site);
    let service = service_fn({
        let site = site.clone();
        move |request| exchange::serve(site.clone(), request)
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .max_local_error_reset_streams(MAX_RESET_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .header_table_size(HEADER_TABLE_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(Gathering::new(stream)), service);
    tokio::pin!(connection);
    let idle = site.shared.timeouts.head;
    let mut was_idle = false;
    let mut ending = site.shared.ending.subscribe();
    let mut told_to_end = false;
    loop {
        let served = tokio::select! {
            served = timeout(idle, connection.as_mut()) => served,
            _ = ending.wait_for(|ending| *ending), if !told_to_end => {
                connection.as_mut().graceful_shutdown();
                told_to_end = true;
                continue;
            }
        };
        match served {
            Ok(served) => return tell_parse_error(&site, served).await,
            // The site holds it once; everything under way holds it once more.
            Err(_) if Arc::strong_count(&site.busy) > 1 => was_idle = false,
            Err(_) if was_idle => return,
            Err(_) => {
                connection.as_mut().graceful_shutdown();
                was_idle = true;
            }
        }
    }
}
