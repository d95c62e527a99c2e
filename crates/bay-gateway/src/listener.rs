//! Accepts the connections of a bay, and passes each to DNS, to the proxy, or to the service of its destination.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::bay_connection::BayConnection;
use crate::connection;
use crate::decider::{Caller, Refused};
use crate::dns::{self, DnsServer};
use crate::proxy;
use crate::state::GatewayState;
use crate::stream::{Io, Prefixed};

/// How often idle connections to origins are checked for their age.
const SWEEP_EVERY: Duration = Duration::from_secs(20);
/// The pause after accepting failed, for example because no file descriptor is free.
const ACCEPT_REST: Duration = Duration::from_millis(20);

/// Which connections a listener accepts.
#[derive(Debug)]
pub(crate) enum Listens {
    /// All connections count as connections to other hosts.
    Destinations,
    /// All connections count as connections to the proxy.
    Proxy,
    /// All connections of the bay: to other hosts, to the proxy, and to DNS.
    All { own: Own, dns: Arc<DnsServer> },
}

/// The gateway's own addresses as the bay sees them, and the ports of its services there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    pub addresses: Vec<IpAddr>,
    pub dns_port: u16,
    pub proxy_port: u16,
}

/// Who serves a connection.
enum Service<'a> {
    Destination,
    Proxy,
    Dns(&'a Arc<DnsServer>),
}

impl Listens {
    fn service_at(&self, local: SocketAddr) -> Service<'_> {
        match self {
            Self::Destinations => Service::Destination,
            Self::Proxy => Service::Proxy,
            Self::All { own, .. } if !own.addresses.contains(&local.ip()) => Service::Destination,
            Self::All { own, dns } if local.port() == own.dns_port => Service::Dns(dns),
            Self::All { own, .. } if local.port() == own.proxy_port => Service::Proxy,
            Self::All { .. } => Service::Destination,
        }
    }
}

/// A source of the bay's connections. Each backend transports them in its own way.
pub trait Arrivals: Send + Sync + 'static {
    type Stream: Io;

    /// Waits for the next connection.
    fn accept(&self) -> impl Future<Output = io::Result<Arrival<Self::Stream>>> + Send;
}

/// One connection that a process of the bay opened.
#[derive(Debug)]
pub struct Arrival<S> {
    pub stream: S,
    pub bay_end: SocketAddr,
    /// The destination address that the process chose.
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

pub(crate) async fn serve(gateway: Arc<GatewayState>, arrivals: impl Arrivals, listens: Listens) {
    let mut connections = JoinSet::new();
    let mut sweep = tokio::time::interval(SWEEP_EVERY);
    loop {
        tokio::select! {
            accepted = arrivals.accept() => match accepted {
                Ok(arrival) => {
                    if let Some(serving) = begin(&gateway, arrival, &listens) {
                        connections.spawn(serving);
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "accepting a connection of a bay");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            },
            Some(_) = connections.join_next() => {}
            _ = sweep.tick() => gateway.origins.forget_old(),
        }
    }
}

/// Prepares the service of a connection. Unless it goes to DNS, the decider attributes it and it takes a permit. If too
/// many are open, the connection is closed, and recorded unless it goes to DNS.
fn begin<S: Io>(
    gateway: &Arc<GatewayState>,
    arrival: Arrival<S>,
    listens: &Listens,
) -> Option<impl Future<Output = ()> + Send + 'static + use<S>> {
    let Arrival { stream, bay_end, wanted } = arrival;
    let local = SocketAddr::new(wanted.ip().to_canonical(), wanted.port());
    let peer = SocketAddr::new(bay_end.ip().to_canonical(), bay_end.port());
    let to_proxy = match listens.service_at(local) {
        Service::Dns(server) => return dns::begin(server, stream, peer).map(Either::Left),
        Service::Proxy => true,
        Service::Destination => false,
    };
    let caller = Caller { peer, local, known: gateway.decider().attribute(peer, local) };
    let permit = gateway.connections.clone().try_acquire_owned();
    let gateway = gateway.clone();
    Some(Either::Right(async move {
        let Ok(permit) = permit else {
            drop(stream);
            gateway.decider().refused(&caller, &Refused::TooMany { destination: local }).await;
            return;
        };
        let busy: Arc<dyn Send + Sync> = Arc::new(permit);
        if to_proxy {
            return proxy::serve(gateway, stream, caller, busy).await;
        }
        let Some(host) = gateway.host_at(local.ip()) else {
            gateway.decider().refused(&caller, &Refused::Nameless { destination: local }).await;
            return;
        };
        let connection = BayConnection { gateway, caller, host, port: local.port(), busy };
        connection::serve(connection, Prefixed::new(stream)).await;
    }))
}
