//! The way out of each bay: a gateway on the sockets of its gateway namespace, as long as it runs.
//!
//! ```text
//!   bay ──► sockets in its gateway namespace (bay-backend) ──► bay_gateway::Gateway ──► host's network
//!                                                                  │ asks
//!                                     policy ◄── BayDecider ◄──────┘
//!                          record (floods added up) ◄──┘
//! ```
//! It is opened when a bay starts, or is found again by a new daemon, and closed when the bay's runtime goes. While no
//! daemon runs there is nobody at the sockets, and the kernel refuses what the bay sends.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bay_backend::{Dropped, EgressCounters, EgressPort};
use bay_gateway::secrets::Secrets;
use bay_gateway::{Authority, Gateway, Own, Settings, Timeouts, Upstream};
use bay_policy::CompiledPolicy;
use bay_store::BayRow;
use bay_types::guest::{DNS_PORT, GATEWAY_V4, GATEWAY_V6, GatewaySsh, PROXY_PORT};
use bay_types::traffic::DroppedPackets;
use bay_types::{ApiError, BayId, ErrorCode};
use http::Method;
use jiff::Timestamp;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::sync::{OnceCell, watch};
use tokio::task::JoinSet;

use crate::ServeError;
use crate::daemon::{Daemon, blocking};
use crate::keyring::Keyring;
use crate::registry::BayHandle;
use crate::service::policy;

mod asking;
mod caller;
mod decider;
mod floods;
mod home;
mod pace;
mod port;
mod record;
mod room;
mod spans;
mod ssh;
mod upstream;

use caller::{Callers, OwnExecs};
use decider::BayDecider;
use home::NamesFile;
pub(crate) use home::dir;
use port::{PortConnections, PortDatagrams};
use record::Recorder;
pub use ssh::SshKey;
use ssh::SshLogins;
use upstream::{BayNetwork, HostNetwork, MAX_HOSTS_BYTES, parse_hosts};

/// How long a guest has to put sentinels into their places, and when it is told again if it did not.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
const TELL_AGAIN: Duration = Duration::from_secs(3);
/// How often it is seen at least whether a rule or a grant has ended.
const LOOK_AT_ENDS: Duration = Duration::from_secs(60);

/// How the way out is set up; parsed by the caller from flags and environment.
#[derive(Debug, Clone, Default)]
pub struct EgressConfig {
    /// The daemon's key, instead of the one below `/etc/workbay/keys`.
    pub key_file: Option<PathBuf>,
    /// Names that are not looked up, in the form of `/etc/hosts`.
    pub hosts: Option<PathBuf>,
    /// Certificates of authorities that origins may have beside those the host trusts.
    pub authorities: Vec<PathBuf>,
    /// Keys by which gateways log in over SSH.
    pub ssh_keys: Vec<SshKey>,
    /// The SSH servers that are known, in the form of OpenSSH's `known_hosts`.
    pub ssh_known_hosts: Option<PathBuf>,
}

/// What the gateways of all bays share.
#[derive(Debug)]
pub(crate) struct Egress {
    keys: Arc<Keyring>,
    roots: RootCertStore,
    network: Arc<HostNetwork>,
    data_dir: PathBuf,
    authorities: Mutex<HashMap<BayId, Decrypted>>,
}

/// The authority of a bay, once it was read. A start needs it several times, and a capture does.
type Decrypted = Arc<OnceCell<Arc<Authority>>>;

impl Egress {
    pub(crate) fn new(
        config: &EgressConfig,
        data_dir: &Path,
        keys: Arc<Keyring>,
    ) -> Result<Self, ServeError> {
        let ssh = SshLogins::new(&config.ssh_keys, config.ssh_known_hosts.as_deref());
        let hosts = match &config.hosts {
            None => HashMap::new(),
            Some(path) => {
                let bad = |why: String| ServeError::Gateway { path: path.clone(), why };
                let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
                if text.len() > MAX_HOSTS_BYTES {
                    return Err(bad(format!("it is longer than {MAX_HOSTS_BYTES} bytes")));
                }
                parse_hosts(&text).map_err(bad)?
            }
        };
        let roots = roots(&config.authorities)?;
        Ok(Self {
            keys,
            roots,
            network: Arc::new(HostNetwork::new(hosts, ssh)),
            data_dir: data_dir.to_owned(),
            authorities: Mutex::default(),
        })
    }

    pub(crate) fn keyring(&self) -> &Keyring {
        &self.keys
    }

    /// Whose certificates are trusted.
    pub(crate) fn roots(&self) -> &RootCertStore {
        &self.roots
    }

    /// The host's network, for what the daemon itself sends.
    pub(crate) fn network(&self) -> impl Upstream + use<> {
        BayNetwork::new(Arc::clone(&self.network))
    }

    fn authorities(&self) -> MutexGuard<'_, HashMap<BayId, Decrypted>> {
        self.authorities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn authority(&self, row: &BayRow) -> Result<Arc<Authority>, ApiError> {
        let decrypted = Arc::clone(self.authorities().entry(row.id).or_default());
        let read = async || {
            let (bay, parent) = (row.id, row.forked_from.as_ref().map(|from| from.bay));
            let (data_dir, keys) = (self.data_dir.clone(), Arc::clone(&self.keys));
            blocking(move || home::authority(&data_dir, bay, parent, &keys)).await.map(Arc::new)
        };
        decrypted.get_or_try_init(read).await.cloned()
    }

    /// Nothing of a bay that is removed is kept in memory or on the disk.
    pub(crate) fn remove(&self, bay: BayId) -> std::io::Result<()> {
        self.authorities().remove(&bay);
        home::remove(&self.data_dir, bay)
    }

    /// What everything in the bay is to trust. A daemon that cannot use its key has nothing to be trusted.
    pub(crate) async fn certificate(&self, row: &BayRow) -> Option<String> {
        match self.authority(row).await {
            Ok(authority) => Some(authority.pem()),
            Err(error) => {
                tracing::error!(bay = %row.name, message = %error.message, "a bay starts without a way out");
                None
            }
        }
    }
}

impl Egress {
    /// How a bay's SSH clients meet its gateway, if only to be told why they may not go on.
    pub(crate) async fn ssh(&self, row: &BayRow) -> Option<GatewaySsh> {
        // Without an authority there is no way out, which was told with the certificate.
        let host_key = self.authority(row).await.ok()?.ssh_host_key();
        Some(GatewaySsh { host_key, hosts: self.network.ssh_hosts() })
    }
}

/// Authorities the host trusts, and those that an operator named.
fn roots(named: &[PathBuf]) -> Result<RootCertStore, ServeError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "certificates that the host trusts could not be read");
    }
    roots.add_parsable_certificates(found.certs);
    for path in named {
        let bad = |why: String| ServeError::Gateway { path: path.clone(), why };
        let all = CertificateDer::pem_file_iter(path).map_err(|e| bad(e.to_string()))?;
        let mut any = false;
        for one in all {
            let one = one.map_err(|e| bad(e.to_string()))?;
            roots.add(one).map_err(|e| bad(e.to_string()))?;
            any = true;
        }
        if !any {
            return Err(bad("it has no certificate in it".to_owned()));
        }
    }
    Ok(roots)
}

/// The open way out of one bay. Dropping it closes the way.
pub(crate) struct BayEgress {
    gateway: Gateway,
    decider: Arc<BayDecider>,
    counters: Box<dyn EgressCounters>,
    /// All that is to end with this.
    serving: Mutex<JoinSet<()>>,
}

impl std::fmt::Debug for BayEgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BayEgress").finish_non_exhaustive()
    }
}

impl BayEgress {
    pub(crate) async fn open(daemon: &Arc<Daemon>, handle: &Arc<BayHandle>) -> Result<Arc<Self>, ApiError> {
        let (egress, row) = (&daemon.egress, &handle.row());
        // Before the policy is read: a change in between is noticed.
        let changes = (daemon.policies.subscribe(row.id), daemon.secrets.subscribe());
        let policy = policy::effective(daemon, handle).await;
        let secrets = secrets_of(daemon, row, &policy);
        let authority = egress.authority(row).await?;
        let (names_file, names) = NamesFile::open(&egress.data_dir, row.id)?;
        let recorder = Recorder::open(daemon, handle).await.map_err(|e| e.to_api())?;
        let recorder = Arc::new(recorder);
        let found = row.runtime.as_ref().map(|record| handle.backend.attribution(row.id, record));
        let attribution = match found {
            Some(Err(error)) => {
                tracing::warn!(bay = %row.name, %error, "who is behind a connection of this bay stays unknown");
                None
            }
            found => found.and_then(Result::ok),
        };
        let decider = Arc::new(BayDecider {
            recorder: Arc::clone(&recorder),
            names: names_file,
            callers: Callers::new(attribution, OwnExecs::new(handle, daemon.store.clone())),
            policy: std::sync::RwLock::new(policy),
            secrets: std::sync::RwLock::new(secrets),
            approved: Mutex::default(),
            daemon: Arc::downgrade(daemon),
            handle: Arc::downgrade(handle),
        });
        let settings =
            Settings { authority, names, roots: egress.roots.clone(), timeouts: Timeouts::default() };
        let network: Arc<dyn Upstream> = Arc::new(BayNetwork::new(Arc::clone(&egress.network)));
        let gateway = Gateway::new(settings, decider.clone(), network)
            .map_err(|error| closed(&bay_types::error::chain(&error)))?;

        let EgressPort { connections, questions, counters } =
            handle.backend.egress(row.id).await.map_err(|error| closed(&error.to_string()))?;
        let mut serving = JoinSet::new();
        let own = Own {
            addresses: vec![GATEWAY_V4.into(), GATEWAY_V6.into()],
            dns_port: DNS_PORT,
            proxy_port: PROXY_PORT,
        };
        serving.spawn(gateway.serve_any(PortConnections(connections), own));
        for datagrams in questions {
            serving.spawn(gateway.serve_dns_udp(PortDatagrams(datagrams)));
        }
        serving.spawn(async move { recorder.tell_sums().await });
        serving.spawn(decider.callers.clone().note_execs());
        let open = Arc::new(Self { gateway, decider, counters, serving: Mutex::new(serving) });
        let following = follow(Arc::clone(daemon), Arc::clone(handle), Arc::downgrade(&open), changes);
        open.serving.lock().unwrap_or_else(PoisonError::into_inner).spawn(following);
        Ok(open)
    }

    /// From now on this holds, also for what is under way.
    fn set(&self, policy: Arc<CompiledPolicy>, secrets: Arc<Secrets>) {
        self.decider.set_policy(policy);
        self.decider.set_secrets(secrets);
        self.gateway.policy_changed();
    }

    /// Whether a rule or a grant has ended since then; from now on it is looked at from now.
    fn has_ends_since(&self, then: &mut Timestamp) -> bool {
        let now = Timestamp::now();
        let since = std::mem::replace(then, now);
        self.decider.policy().next_end(since).is_some_and(|end| end <= now)
    }

    /// Packets that went nowhere since the bay started.
    pub(crate) fn dropped(&self) -> DroppedPackets {
        let Dropped { udp, icmp, other } = self.counters.dropped().unwrap_or_default();
        DroppedPackets { udp, icmp, other, dns: self.gateway.dns_dropped() }
    }

    /// Numbers of the decisions by which something was let out that is not over.
    pub(crate) fn under_way(&self) -> HashSet<u64> {
        self.decider.recorder.under_way()
    }

    /// An exec of the bay has begun: who opens connections later is known also when it is over by then.
    pub(crate) fn exec_began(&self) {
        self.decider.callers.began();
    }

    /// Has what was asked answered, as far as that takes no longer.
    pub(crate) async fn finish(&self, within: Duration) {
        self.gateway.finish(within).await;
    }

    /// Lets nothing more out, writes down what was only counted so far, and has the names on disk.
    pub(crate) async fn close(&self) {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        self.decider.recorder.turn(true).await;
        if let Err(error) = self.decider.names.sync() {
            tracing::warn!(%error, "names and their addresses could not be flushed");
        }
    }
}

/// The secrets of a bay, as its gateway is to know them. A daemon that cannot read them has none to give.
fn secrets_of(daemon: &Daemon, row: &BayRow, policy: &CompiledPolicy) -> Arc<Secrets> {
    daemon.secrets.of_bay(row, policy).unwrap_or_else(|error| {
        tracing::error!(bay = %row.name, message = %error.message, "a bay goes without its secrets");
        Arc::new(Secrets::none())
    })
}

/// Has every change of the policy and of secrets hold at once, and tells the guest of the latter.
async fn follow(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    open: Weak<BayEgress>,
    (mut policies, mut secrets): (watch::Receiver<u64>, watch::Receiver<u64>),
) {
    // A guest that an earlier daemon started may not know the newest.
    let mut untold = true;
    let mut looked_at = Timestamp::now();
    loop {
        let Some(next_end) = open.upgrade().map(|open| until_next_end(&open.decider.policy())) else {
            return;
        };
        tokio::select! {
            // What a grant let out ends with it.
            () = tokio::time::sleep(next_end) => {
                let ended = open.upgrade().is_some_and(|open| open.has_ends_since(&mut looked_at));
                if !ended {
                    continue;
                }
            }
            changed = policies.changed() => if changed.is_err() { return },
            changed = secrets.changed() => {
                if changed.is_err() {
                    return;
                }
                untold = true;
            }
            () = tokio::time::sleep(TELL_AGAIN), if untold => {
                untold = !tell_guest(&daemon, &handle).await;
                continue;
            }
        }
        let policy = policy::effective(&daemon, &handle).await;
        let secrets = secrets_of(&daemon, &handle.row(), &policy);
        let Some(open) = open.upgrade() else { return };
        open.set(policy, secrets);
        drop(open);
        if untold {
            untold = !tell_guest(&daemon, &handle).await;
        }
    }
}

/// How long it takes until a rule or a grant ends, by the wall clock; looked at again from time to time, because that is set.
fn until_next_end(policy: &CompiledPolicy) -> Duration {
    let now = Timestamp::now();
    let left =
        policy.next_end(now).map(|end| Duration::try_from(end.duration_since(now)).unwrap_or_default());
    left.map_or(LOOK_AT_ENDS, |left| left.min(LOOK_AT_ENDS))
}

/// Has sentinels be where tools look for them. One that does not take the news is told again.
async fn tell_guest(daemon: &Daemon, handle: &BayHandle) -> bool {
    let delivered = match daemon.secrets.delivered(&handle.row()) {
        Ok(delivered) => delivered,
        // Without the key there is nothing to tell, and nothing to take away.
        Err(_) => return true,
    };
    let body = serde_json::to_vec(&delivered).unwrap_or_default();
    let told = handle.guest.bytes(Method::PUT, "/v1/secrets", body.into(), TOLD_WITHIN).await;
    if let Err(error) = &told {
        tracing::debug!(bay = %handle.name, message = %error.message, "a bay was not told its sentinels");
    }
    told.is_ok()
}

fn closed(why: &str) -> ApiError {
    ApiError::new(
        ErrorCode::HostUnfit,
        format!("the way out of the bay could not be opened: {why}"),
        "nothing leaves the bay until it is; `bay doctor` tells what this host lacks",
    )
}
