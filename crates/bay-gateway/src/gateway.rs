//! The gateway of one bay: what its parts share, and the doors they listen at.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bay_policy::Host;
use rustls::RootCertStore;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::authority::{Authority, AuthorityError, Leaves};
use crate::connection::{self, Arrivals, Own};
use crate::decider::Decider;
use crate::dns::{self, Allowance, Datagrams};
use crate::limits::{MAX_CONNECTIONS, MAX_DNS_CONNECTIONS, MAX_REQUESTS, MAX_SSH_CONNECTIONS, Timeouts};
use crate::names::{Names, SavedNames};
use crate::origin::Origins;
use crate::scrub::Renewal;
use crate::secrets::Sent;
use crate::ssh::HostKey;
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

/// How much was dropped without a record of its own.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    dns_dropped: AtomicU64,
}

impl Counts {
    pub(crate) fn dns_dropped(&self) {
        self.dns_dropped.fetch_add(1, Relaxed);
    }
}

/// What all parts of one gateway see.
pub(crate) struct Shared {
    pub(crate) decider: Arc<dyn Decider>,
    pub(crate) upstream: Arc<dyn Upstream>,
    pub(crate) names: Mutex<Names>,
    pub(crate) leaves: Leaves,
    pub(crate) origins: Origins,
    pub(crate) timeouts: Timeouts,
    pub(crate) allowance: Mutex<Allowance>,
    pub(crate) counts: Counts,
    pub(crate) room: Arc<Semaphore>,
    pub(crate) requests: Arc<Semaphore>,
    pub(crate) dns_room: Arc<Semaphore>,
    pub(crate) ssh_room: Arc<Semaphore>,
    pub(crate) ssh_host_key: HostKey,
    pub(crate) changes: watch::Receiver<u64>,
    /// Turns true when the gateway is about to end. Whoever answers requests listens for as long as it does.
    pub(crate) ending: watch::Sender<bool>,
    generation: Arc<AtomicU64>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    /// Which policy is in force, counted.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// What answers of a host must not show when something has changed since then. `sent` are values that the request carried.
    pub(crate) fn renewal(self: &Arc<Self>, host: &Host, sent: Vec<Sent>, since: u64) -> Renewal {
        let (shared, host, mut seen) = (Arc::clone(self), host.to_string(), since);
        Box::new(move || {
            let now = shared.generation();
            if now == seen {
                return None;
            }
            seen = now;
            shared.decider.secrets().patterns(&host, &sent).ok().flatten()
        })
    }
}

/// The egress of one bay. Dropping it ends the tunnels that are open; whoever runs the `serve_…` futures ends the rest
/// by dropping those.
pub struct Gateway {
    shared: Arc<Shared>,
    generation: Arc<AtomicU64>,
    changes: watch::Sender<u64>,
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
        let generation = Arc::new(AtomicU64::new(0));
        let (changes, seen) = watch::channel(0);
        let ssh_host_key = settings.authority.host_key();
        let shared = Shared {
            decider,
            upstream,
            names: Mutex::new(settings.names),
            leaves: Leaves::new(settings.authority, provider.clone())?,
            origins: Origins::new(settings.roots, provider, &settings.timeouts)?,
            timeouts: settings.timeouts,
            allowance: Mutex::new(Allowance::new()),
            counts: Counts::default(),
            room: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
            dns_room: Arc::new(Semaphore::new(MAX_DNS_CONNECTIONS)),
            ssh_room: Arc::new(Semaphore::new(MAX_SSH_CONNECTIONS)),
            ssh_host_key,
            changes: seen,
            ending: watch::Sender::new(false),
            generation: generation.clone(),
        };
        Ok(Self { shared: Arc::new(shared), generation, changes })
    }

    /// Serves connections that the bay made to whatever address: the listener's namespace makes every address local, and
    /// the local end of an accepted connection is where the bay wanted to go.
    pub fn serve_tcp(&self, listener: TcpListener) -> impl Future<Output = ()> + Send + 'static {
        connection::serve_listener(self.shared.clone(), listener, connection::Door::Transparent)
    }

    /// Serves every connection of the bay, whatever carries it here: by the address and port it was made to.
    pub fn serve_any<A: Arrivals>(
        &self,
        arrivals: A,
        own: Own,
    ) -> impl Future<Output = ()> + Send + 'static + use<A> {
        connection::serve_listener(self.shared.clone(), arrivals, connection::Door::Any(own))
    }

    /// Serves clients that were told of a proxy: CONNECT, and whole URLs.
    pub fn serve_proxy(&self, listener: TcpListener) -> impl Future<Output = ()> + Send + 'static {
        connection::serve_listener(self.shared.clone(), listener, connection::Door::Proxy)
    }

    /// Serves DNS. An answer is sent from the address that the question went to.
    pub fn serve_dns_udp<D: Datagrams>(
        &self,
        socket: D,
    ) -> impl Future<Output = ()> + Send + 'static + use<D> {
        dns::serve_udp(self.shared.clone(), socket)
    }

    pub fn serve_dns_tcp(&self, listener: TcpListener) -> impl Future<Output = ()> + Send + 'static {
        dns::serve_tcp(self.shared.clone(), listener)
    }

    /// The names that have addresses, to be kept.
    #[must_use]
    pub fn names(&self) -> SavedNames {
        self.shared.names.lock().unwrap_or_else(PoisonError::into_inner).saved()
    }

    /// Has everything that is under way decided on once more; what is no longer allowed ends before its next byte.
    pub fn policy_changed(&self) {
        let now = self.generation.fetch_add(1, Relaxed) + 1;
        self.changes.send_replace(now);
    }

    /// Has connections end once what they were asked is answered, and waits for them that long. What takes longer, and
    /// tunnels, are left to whoever ends them.
    pub async fn finish(&self, within: Duration) {
        self.shared.ending.send_replace(true);
        timeout(within, self.shared.ending.closed()).await.ok();
    }

    /// DNS questions that were dropped because there were too many.
    #[must_use]
    pub fn dns_dropped(&self) -> u64 {
        self.shared.counts.dns_dropped.load(Relaxed)
    }
}
