//! Connections to origins. Each is opened for an allowed request. An HTTP connection may be kept for later requests to
//! the same place.
//!
//! A kept connection has an address. A later request may use it only if its own decision permits that address.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use bay_policy::{CanonicalRequest, Decision, Host, Scheme, check_address};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::BufReader;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::body::Metered;
use crate::decider::Failure;
use crate::limits::{
    CONNECTION_WINDOW_BYTES, HEADER_TABLE_BYTES, MAX_FRAME_BYTES, MAX_HEAD_BYTES, MAX_HEADER_LIST_BYTES,
    MAX_HEADERS, MAX_IDLE, MAX_IDLE_PER_ORIGIN, MAX_RESET_STREAMS, ORIGIN_READ_BYTES, SEND_BUFFER_BYTES,
    STREAM_WINDOW_BYTES, Timeouts,
};
use crate::stream::{Gathering, Io};
use crate::upstream::{self, DialError, Dialled, Upstream, own_addresses, own_words, seconds};

/// Interval of pings on an HTTP/2 connection to an origin, while it has requests under way.
const PING_EVERY: Duration = Duration::from_secs(30);
/// Timeout of a ping.
const PING_WITHIN: Duration = Duration::from_secs(20);
/// How long a connection may take to be ready for its next request.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// The destination of a connection, and the protocols that its request may use.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    host: Host,
    port: u16,
    scheme: Scheme,
    may_be_http2: bool,
}

enum Sender {
    Http1(http1::SendRequest<Metered>),
    Http2(http2::SendRequest<Metered>),
}

impl Sender {
    fn usable(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_ready(),
            Self::Http2(sender) => sender.is_ready(),
        }
    }
}

struct Idle {
    sender: Sender,
    address: IpAddr,
    since: Instant,
}

/// The connections of one bay to origins.
pub(crate) struct Origins {
    upstream: Arc<dyn Upstream>,
    timeouts: Timeouts,
    any: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
    idle: Mutex<HashMap<Key, Vec<Idle>>>,
}

impl fmt::Debug for Origins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origins").finish_non_exhaustive()
    }
}

/// A connection in use. An HTTP/1.1 connection that is not given back closes after its request.
pub(crate) struct Lease {
    key: Key,
    sender: Sender,
    address: IpAddr,
    origins: Weak<Origins>,
    pub(crate) reused: bool,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", &self.key)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Origins {
    pub(crate) fn new(
        roots: RootCertStore,
        provider: Arc<rustls::crypto::CryptoProvider>,
        upstream: Arc<dyn Upstream>,
        timeouts: Timeouts,
    ) -> Result<Self, rustls::Error> {
        let mut http1 = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut any = http1.clone();
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        any.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let idle = Mutex::new(HashMap::new());
        Ok(Self { any: Arc::new(any), http1: Arc::new(http1), idle, upstream, timeouts })
    }

    /// The TLS configuration for an origin that speaks `protocol` instead of HTTP.
    pub(crate) fn speaking(&self, protocol: &[u8]) -> Arc<ClientConfig> {
        let mut config = (*self.http1).clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        Arc::new(config)
    }

    /// A kept connection that this request may use.
    fn kept(
        &self,
        key: &Key,
        decision: &Decision,
        request: &CanonicalRequest,
        own: &[IpAddr],
    ) -> Option<(Sender, IpAddr)> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle.get_mut(key)?;
        kept.retain(|idle| idle.sender.usable() && idle.since.elapsed() < self.timeouts.keep_idle);
        let at = kept.iter().rposition(|idle| check_address(decision, request, idle.address, own).is_ok())?;
        let address = kept[at].address;
        let sender = match &kept[at].sender {
            // Many requests share one HTTP/2 connection, so it stays in the pool.
            Sender::Http2(sender) => {
                let sender = Sender::Http2(sender.clone());
                kept[at].since = Instant::now();
                sender
            }
            Sender::Http1(_) => kept.swap_remove(at).sender,
        };
        Some((sender, address))
    }

    fn keep(&self, key: Key, sender: Sender, address: IpAddr) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.values().map(Vec::len).sum::<usize>() >= MAX_IDLE {
            return;
        }
        let kept = idle.entry(key).or_default();
        if kept.len() < MAX_IDLE_PER_ORIGIN {
            kept.push(Idle { sender, address, since: Instant::now() });
        }
    }

    /// Forgets kept connections that were not used for too long or that have ended.
    pub(crate) fn forget_old(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|_, kept| {
            kept.retain(|idle| idle.sender.usable() && idle.since.elapsed() < self.timeouts.keep_idle);
            !kept.is_empty()
        });
    }

    pub(crate) fn upstream(&self) -> &dyn Upstream {
        &*self.upstream
    }

    /// Connects to the host of an allowed request.
    pub(crate) async fn dial(
        &self,
        decision: &Decision,
        request: &CanonicalRequest,
    ) -> Result<Dialled, DialError> {
        upstream::dial(&*self.upstream, &self.timeouts, decision, request).await
    }

    /// A kept or new connection for an allowed request.
    pub(crate) async fn lease(
        self: &Arc<Self>,
        decision: &Decision,
        request: &CanonicalRequest,
        may_be_http2: bool,
        fresh: bool,
    ) -> Result<Lease, DialError> {
        let scheme = request.http().map_or(Scheme::Https, |http| http.scheme());
        let may_be_http2 = may_be_http2 && scheme == Scheme::Https;
        let key = Key { host: request.host().clone(), port: request.port(), scheme, may_be_http2 };
        let origins = Arc::downgrade(self);
        if !fresh {
            let own = own_addresses(&*self.upstream)?;
            if let Some((sender, address)) = self.kept(&key, decision, request, &own) {
                return Ok(Lease { key, sender, address, origins, reused: true });
            }
        }
        let dialled = self.dial(decision, request).await?;
        let address = dialled.address;
        let handshake = async {
            match scheme {
                Scheme::Http => http1_on(dialled.stream).await,
                Scheme::Ssh => Err(DialError::failed(Failure::Broken, "no HTTP request is sent over SSH")),
                Scheme::Https => {
                    let config = if may_be_http2 { &self.any } else { &self.http1 };
                    let name = match request.host() {
                        Host::Name(name) => ServerName::try_from(name.to_string()).map_err(|error| {
                            DialError::failed(
                                Failure::Certificate,
                                format!("{name} cannot be in a certificate: {error}"),
                            )
                        })?,
                        Host::Address(address) => ServerName::from(*address),
                    };
                    let connector = TlsConnector::from(config.clone());
                    let stream = connector
                        .connect(name, BufReader::with_capacity(ORIGIN_READ_BYTES, dialled.stream))
                        .await
                        .map_err(|error| tls_error(request.host(), &error))?;
                    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    if is_http2 { http2_on(stream).await } else { http1_on(stream).await }
                }
            }
        };
        let sender = timeout(self.timeouts.connect, handshake).await.unwrap_or_else(|_| {
            let within = seconds(self.timeouts.connect);
            let why = format!("{} at {address} did not finish the handshake within {within}", request.host());
            Err(DialError::failed(Failure::ConnectTimeout, why))
        })?;
        if let Sender::Http2(sender) = &sender {
            self.keep(key.clone(), Sender::Http2(sender.clone()), address);
        }
        Ok(Lease { key, sender, address, origins, reused: false })
    }
}

pub(crate) fn tls_error(host: &Host, error: &io::Error) -> DialError {
    let certificate =
        error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()).is_some_and(|error| {
            matches!(error, rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented)
        });
    let failure = if certificate { Failure::Certificate } else { Failure::Tls };
    DialError::failed(failure, format!("TLS with {host} failed: {}", own_words(error)))
}

fn not_http(error: &hyper::Error) -> DialError {
    DialError::failed(Failure::BadAnswer, format!("the origin does not speak HTTP: {}", own_words(error)))
}

async fn http1_on(io: impl Io) -> Result<Sender, DialError> {
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .handshake(TokioIo::new(Gathering::new(io)))
        .await
        .map_err(|error| not_http(&error))?;
    tokio::spawn(connection.with_upgrades());
    Ok(Sender::Http1(sender))
}

async fn http2_on(io: impl Io) -> Result<Sender, DialError> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .header_table_size(HEADER_TABLE_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WITHIN)
        .handshake(TokioIo::new(Gathering::new(io)))
        .await
        .map_err(|error| not_http(&error))?;
    tokio::spawn(connection);
    Ok(Sender::Http2(sender))
}

impl Lease {
    pub(crate) fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2(_))
    }

    pub(crate) async fn send(
        &mut self,
        request: Request<Metered>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Metered>>> {
        match &mut self.sender {
            Sender::Http1(sender) => sender.try_send_request(request).await,
            Sender::Http2(sender) => sender.try_send_request(request).await,
        }
    }

    /// Keeps the connection for the next request. HTTP/2 connections are in the pool from the beginning.
    pub(crate) fn give_back(self) {
        let Sender::Http1(mut sender) = self.sender else { return };
        let (key, address, origins) = (self.key, self.address, self.origins);
        // Without a runtime the program is exiting.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            if let Ok(Ok(())) = timeout(READY_WITHIN, sender.ready()).await
                && let Some(origins) = origins.upgrade()
            {
                origins.keep(key, Sender::Http1(sender), address);
            }
        });
    }
}
