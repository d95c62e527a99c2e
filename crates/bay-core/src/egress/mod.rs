//! The egress of each bay: a gateway on the sockets of its gateway namespace, while the bay has a runtime.
//!
//! ```text
//!   bay ──► sockets in its gateway namespace (bay-backend) ──► bay_gateway::Gateway ──► host's network
//!                                                                  │ asks
//!                                     policy ◄── BayDecider ◄──────┘
//!                          record (floods added up) ◄──┘
//! ```
//! The daemon opens it when a bay starts or is adopted, and closes it when the bay's runtime ends. While no daemon
//! runs, nothing listens on the sockets, and the kernel refuses what the bay sends.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bay_backend::{Dropped, EgressCounters, EgressPort};
use bay_gateway::secrets::Secrets;
use bay_gateway::{Gateway, Own, Settings, Timeouts, Upstream};
use bay_policy::CompiledPolicy;
use bay_store::BayRow;
use bay_types::guest::{DNS_PORT, GATEWAY_V4, GATEWAY_V6, PROXY_PORT};
use bay_types::traffic::DroppedPackets;
use bay_types::{Action, CoreError, ErrorCode, Hint};
use http::Method;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::daemon::Daemon;
use crate::gateway_files::NamesFile;
use crate::registry::{BayHandle, OpenEgress};
use crate::verbs::policy;

mod asking;
mod caller;
mod decider;
mod floods;
mod pace;
mod port;
mod record;
mod record_quota;
mod spans;

use caller::{Callers, OwnExecs};
use decider::BayDecider;
use port::{PortConnections, PortDatagrams};
use record::Recorder;

/// How long a guest may take to put sentinels into their places.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
/// Pause before the next attempt.
const TELL_AGAIN: Duration = Duration::from_millis(500);
/// The longest interval between two checks whether a rule or a grant has ended.
const LOOK_AT_ENDS: Duration = Duration::from_secs(60);

/// The open egress of one bay. Dropping it closes the egress.
pub(crate) struct BayEgress {
    gateway: Gateway,
    decider: Arc<BayDecider>,
    counters: Box<dyn EgressCounters>,
    /// The last change of secrets that the gateway and the guest have.
    secrets_delivered: watch::Sender<u64>,
    /// Tasks that end with the egress.
    serving: Mutex<JoinSet<()>>,
}

impl std::fmt::Debug for BayEgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BayEgress").finish_non_exhaustive()
    }
}

impl BayEgress {
    pub(crate) async fn open(daemon: &Arc<Daemon>, handle: &Arc<BayHandle>) -> Result<Arc<Self>, CoreError> {
        let (egress, row) = (&daemon.egress, &handle.row());
        // Before the policy is read, so that a change in between is noticed.
        let changes = (daemon.policies.subscribe(row.id), daemon.secrets.subscribe());
        let policy = policy::effective(daemon, handle).await;
        let secrets = secrets_of(daemon, row, &policy);
        let authority = egress.authority(row).await?;
        let (names_file, names) = NamesFile::open(egress.data_dir(), row.id)?;
        let recorder =
            Recorder::open(daemon.store.clone(), &daemon.telemetry, handle).await.map_err(|e| e.to_api())?;
        let recorder = Arc::new(recorder);
        let found = row.runtime.as_ref().map(|record| handle.backend.attribution(row.id, record));
        let attribution = match found {
            Some(Err(error)) => {
                tracing::warn!(bay = %row.name, %error, "the execs behind this bay's connections cannot be determined");
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
            Settings { authority, names, roots: egress.roots().clone(), timeouts: Timeouts::default() };
        let network: Arc<dyn Upstream> = Arc::new(egress.network());
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
        serving.spawn(async move { recorder.record_sums().await });
        serving.spawn(decider.callers.clone().note_execs());
        let open = Arc::new(Self {
            gateway,
            decider,
            counters,
            secrets_delivered: watch::Sender::new(0),
            serving: Mutex::new(serving),
        });
        let following = follow(Arc::clone(daemon), Arc::clone(handle), Arc::downgrade(&open), changes);
        open.serving.lock().unwrap_or_else(PoisonError::into_inner).spawn(following);
        Ok(open)
    }

    /// Applies a policy and secrets, also to requests that are under way.
    fn set(&self, policy: Arc<CompiledPolicy>, secrets: Arc<Secrets>) {
        self.decider.set_policy(policy);
        self.decider.set_secrets(secrets);
        self.gateway.policy_changed();
    }

    /// Whether a rule or a grant has ended since `then`. Sets `then` to now.
    fn has_ends_since(&self, then: &mut Timestamp) -> bool {
        let now = Timestamp::now();
        let since = std::mem::replace(then, now);
        self.decider.policy().next_end(since).is_some_and(|end| end <= now)
    }
}

#[async_trait]
impl OpenEgress for BayEgress {
    fn dropped(&self) -> DroppedPackets {
        let Dropped { udp, icmp, other } = self.counters.dropped().unwrap_or_default();
        DroppedPackets { udp, icmp, other, dns: self.gateway.dns_dropped() }
    }

    fn under_way(&self) -> HashSet<u64> {
        self.decider.recorder.under_way()
    }

    fn exec_began(&self) {
        self.decider.callers.began();
    }

    async fn secrets_delivered(&self, change: u64) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self.secrets_delivered.subscribe().wait_for(|delivered| *delivered >= change).await;
    }

    async fn finish(&self, within: Duration) {
        self.gateway.finish(within).await;
    }

    async fn close(&self) {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        // Nobody is to wait for a bay that ended.
        self.secrets_delivered.send_replace(u64::MAX);
        self.decider.recorder.turn(true).await;
        if let Err(error) = self.decider.names.sync() {
            tracing::warn!(%error, "names and their addresses could not be flushed");
        }
    }
}

/// The secrets of a bay for its gateway. If the daemon cannot read them, the gateway gets none.
fn secrets_of(daemon: &Daemon, row: &BayRow, policy: &CompiledPolicy) -> Arc<Secrets> {
    daemon.secrets.of_bay(row, policy).unwrap_or_else(|error| {
        tracing::error!(bay = %row.name, message = %error.message, "a bay runs without its secrets");
        Arc::new(Secrets::none())
    })
}

/// Applies every change of the policy and of the secrets at once, and tells the guest about sentinels.
async fn follow(
    daemon: Arc<Daemon>,
    handle: Arc<BayHandle>,
    open: Weak<BayEgress>,
    (mut policies, mut secrets): (watch::Receiver<u64>, watch::Receiver<u64>),
) {
    // A guest that an earlier daemon started may not have the newest sentinels.
    let mut unsent = true;
    let mut looked_at = Timestamp::now();
    loop {
        let Some(next_end) = open.upgrade().map(|open| until_next_end(&open.decider.policy())) else {
            return;
        };
        tokio::select! {
            // Requests that a grant let out end with the grant.
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
                unsent = true;
            }
            () = tokio::time::sleep(TELL_AGAIN), if unsent => {}
        }
        let change = *secrets.borrow();
        let policy = policy::effective(&daemon, &handle).await;
        let usable = secrets_of(&daemon, &handle.row(), &policy);
        match open.upgrade() {
            Some(open) => open.set(policy, usable),
            None => return,
        }
        if unsent {
            unsent = !send_sentinels(&daemon, &handle, &open, change).await;
        }
    }
}

/// The time until a rule or a grant ends, by the wall clock. It is at most [`LOOK_AT_ENDS`], because that clock can
/// be set.
fn until_next_end(policy: &CompiledPolicy) -> Duration {
    let now = Timestamp::now();
    let left =
        policy.next_end(now).map(|end| Duration::try_from(end.duration_since(now)).unwrap_or_default());
    left.map_or(LOOK_AT_ENDS, |left| left.min(LOOK_AT_ENDS))
}

/// Makes the guest put sentinels where tools look for them: those of this change, or newer ones. Returns false if
/// it must be tried again. If the secrets cannot be read, there is nothing to send.
async fn send_sentinels(daemon: &Daemon, handle: &BayHandle, open: &Weak<BayEgress>, change: u64) -> bool {
    let delivered = match daemon.secrets.delivered(&handle.row()) {
        Ok(delivered) => delivered,
        // Without the key, the guest keeps the sentinels that it has.
        Err(_) => {
            publish(open, change);
            return true;
        }
    };
    let body = serde_json::to_vec(&delivered).unwrap_or_default();
    let told = handle.guest.bytes(Method::PUT, "/v1/secrets", body.into(), TOLD_WITHIN).await;
    if let Err(error) = &told {
        tracing::debug!(bay = %handle.name, message = %error.message, "a bay was not told its sentinels");
        return false;
    }
    publish(open, change);
    true
}

fn publish(open: &Weak<BayEgress>, change: u64) {
    if let Some(open) = open.upgrade() {
        open.secrets_delivered.send_replace(change);
    }
}

fn closed(why: &str) -> CoreError {
    CoreError::new(
        ErrorCode::HostUnfit,
        format!("the gateway of the bay could not be opened: {why}"),
        Hint::new(
            "until it is open, nothing leaves the bay; {} shows what this host lacks",
            [Action::Doctor],
        ),
    )
}
