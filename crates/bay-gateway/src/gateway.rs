//! The gateway of one bay: what its parts share, and the doors they listen at.

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

/// What a gateway begins with.
#[derive(Debug)]
pub struct Settings {
    pub authority: Arc<Authority>,
    pub names: Names,
    /// The authorities that certificates of origins are checked against.
    pub roots: RootCertStore,
    pub timeouts: Timeouts,
}

/// The egress of one bay. Dropping it ends the tunnels that are open; whoever runs the `serve_…` futures ends the rest
/// by dropping those.
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

    /// Serves connections that the bay made to whatever address: the listener's namespace makes every address local, and
    /// the local end of an accepted connection is where the bay wanted to go.
    pub fn serve_tcp(&self, listener: TcpListener) -> impl Future<Output = ()> + Send + 'static {
        listener::serve(self.state.clone(), listener, Listens::Destinations)
    }

    /// Serves every connection of the bay, whatever carries it here: by the address and port it was made to.
    pub fn serve_any<A: Arrivals>(
        &self,
        arrivals: A,
        own: Own,
    ) -> impl Future<Output = ()> + Send + 'static + use<A> {
        let listens = Listens::All { own, dns: self.dns.clone() };
        listener::serve(self.state.clone(), arrivals, listens)
    }

    /// Serves clients that were told of a proxy: CONNECT, and whole URLs.
    pub fn serve_proxy(&self, listener: TcpListener) -> impl Future<Output = ()> + Send + 'static {
        listener::serve(self.state.clone(), listener, Listens::Proxy)
    }

    /// Serves DNS. An answer is sent from the address that the question went to.
    pub fn serve_dns_udp<D: Datagrams>(
        &self,
        socket: D,
    ) -> impl Future<Output = ()> + Send + 'static + use<D> {
        dns::serve_udp(self.dns.clone(), socket)
    }

    pub fn serve_dns_tcp(&self, listener: TcpListener) -> impl Future<Output = ()> + Send + 'static {
        dns::serve_tcp(self.dns.clone(), listener)
    }

    /// The names that have addresses, to be kept.
    #[must_use]
    pub fn names(&self) -> SavedNames {
        self.state.names.lock().unwrap_or_else(PoisonError::into_inner).saved()
    }

    /// Has everything that is under way decided on once more; what is no longer allowed ends before its next byte.
    pub fn policy_changed(&self) {
        self.updates.announce();
    }

    /// Has connections end once what they were asked is answered, and waits for them that long. What takes longer, and
    /// tunnels, are left to whoever ends them.
    pub async fn finish(&self, within: Duration) {
        self.state.ending.send_replace(true);
        timeout(within, self.state.ending.closed()).await.ok();
    }

    /// DNS questions that were dropped because there were too many.
    #[must_use]
    pub fn dns_dropped(&self) -> u64 {
        self.dns.dropped()
    }
}
