//! The gateway of one bay: it connects the parts and opens the listeners.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::RootCertStore;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::authority::{Authority, AuthorityError, Leaves};
use crate::decider::Decider;
use crate::dns::{self, Datagrams, DnsServer};
use crate::limits::{MAX_CONNECTIONS, MAX_REQUESTS, MAX_SSH_CONNECTIONS, Timeouts};
use crate::listener::{self, Arrivals, Listens, Own};
use crate::names::{Names, SavedNames};
use crate::origin::Origins;
use crate::policy::{Policy, PolicyUpdates};
use crate::state::GatewayState;
use crate::upstream::Upstream;

/// The configuration of a gateway.
#[derive(Debug)]
pub struct Settings {
    pub authority: Arc<Authority>,
    pub names: Names,
    /// The certificate authorities that the gateway trusts for origins.
    pub roots: RootCertStore,
    pub timeouts: Timeouts,
}

/// The egress of one bay. Dropping it ends open tunnels. The caller ends the bay's other connections by dropping the
/// `serve_…` futures.
pub struct Gateway {
    state: Arc<GatewayState>,
    dns: Arc<DnsServer>,
    updates: PolicyUpdates,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").finish_non_exhaustive()
    }
}

impl Gateway {
    pub fn new(
        settings: Settings,
        decider: Arc<dyn Decider>,
        upstream: Arc<dyn Upstream>,
    ) -> Result<Self, AuthorityError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let names = Arc::new(Mutex::new(settings.names));
        let dns = Arc::new(DnsServer::new(decider.clone(), names.clone()));
        let (policy, updates) = Policy::new(decider);
        let state = GatewayState {
            policy,
            origins: Arc::new(Origins::new(settings.roots, provider.clone(), upstream, settings.timeouts)?),
            leaves: Leaves::new(settings.authority.clone(), provider)?,
            authority: settings.authority,
            names,
            timeouts: settings.timeouts,
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
            ssh_connections: Arc::new(Semaphore::new(MAX_SSH_CONNECTIONS)),
            ending: watch::Sender::new(false),
        };
        Ok(Self { state: Arc::new(state), dns, updates })
    }

    /// Serves connections to other hosts, whatever their address is. In the listener's namespace every address is
    /// local, so the local address of an accepted connection is the destination that the bay chose.
    pub fn serve_tcp(&self, listener: TcpListener) -> impl Future<Output = ()> + Send + 'static {
        listener::serve(self.state.clone(), listener, Listens::Destinations)
    }

    /// Serves every connection of the bay. The destination address decides whether DNS, the proxy or a remote host is
    /// meant.
    pub fn serve_any<A: Arrivals>(
        &self,
        arrivals: A,
        own: Own,
    ) -> impl Future<Output = ()> + Send + 'static + use<A> {
        let listens = Listens::All { own, dns: self.dns.clone() };
        listener::serve(self.state.clone(), arrivals, listens)
    }

    /// Serves clients that are configured to use a proxy: CONNECT, and absolute URLs.
    pub fn serve_proxy(&self, listener: TcpListener) -> impl Future<Output = ()> + Send + 'static {
        listener::serve(self.state.clone(), listener, Listens::Proxy)
    }

    /// Serves DNS over UDP.
    pub fn serve_dns_udp<D: Datagrams>(
        &self,
        socket: D,
    ) -> impl Future<Output = ()> + Send + 'static + use<D> {
        dns::serve_udp(self.dns.clone(), socket)
    }

    /// Serves DNS over TCP.
    pub fn serve_dns_tcp(&self, listener: TcpListener) -> impl Future<Output = ()> + Send + 'static {
        dns::serve_tcp(self.dns.clone(), listener)
    }

    /// The names that have addresses, for storage.
    #[must_use]
    pub fn names(&self) -> SavedNames {
        self.state.names.lock().unwrap_or_else(PoisonError::into_inner).saved()
    }

    /// Announces a change of the policy or the secrets. The decider reviews each request under way at its next byte,
    /// and each tunnel and each request with a secret at once. What it no longer allows ends there.
    pub fn policy_changed(&self) {
        self.updates.announce();
    }

    /// Closes each HTTP connection of the bay after its current answers, and waits for them for at most `within`.
    /// Tunnels, SSH and slower answers go on until the caller drops them.
    pub async fn finish(&self, within: Duration) {
        self.state.ending.send_replace(true);
        timeout(within, self.state.ending.closed()).await.ok();
    }

    /// DNS questions and DNS connections that the gateway dropped without an answer because there were too many.
    #[must_use]
    pub fn dns_dropped(&self) -> u64 {
        self.dns.dropped()
    }
}
