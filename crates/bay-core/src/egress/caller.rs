//! Who opened a connection: the exec at once, the process as soon as it is found.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bay_backend::Attribution;
use bay_store::Store;
use bay_types::ExecId;
use bay_types::egress::{Transport, Who};
use tokio::sync::{Notify, Semaphore, watch};

use crate::registry::BayHandle;

/// How long a decision waits until the process is found. The search runs during the handshake.
const FOUND_WITHIN: Duration = Duration::from_millis(50);
/// For how many connections of one bay the daemon searches the process at the same time. In a flood, the processes of
/// further connections stay unknown.
const LOOKING: usize = 2;
/// For how many execs the daemon remembers whether the bay has them.
const REMEMBERED: usize = 4096;
/// The interval between two readings of the execs.
const NOTE_PAUSE: Duration = Duration::from_millis(10);

/// Finds out who opened the connections of one bay.
#[derive(Debug, Clone)]
pub(super) struct Callers {
    attribution: Option<Arc<dyn Attribution>>,
    looking: Arc<Semaphore>,
    own: Arc<OwnExecs>,
    began: Arc<Notify>,
}

/// Who opened one connection. The process may still be searched for.
#[derive(Debug)]
pub(super) struct Opener {
    who: watch::Receiver<Who>,
    own: Arc<OwnExecs>,
}

impl Callers {
    pub(super) fn new(attribution: Option<Arc<dyn Attribution>>, own: OwnExecs) -> Self {
        Self {
            attribution,
            looking: Arc::new(Semaphore::new(LOOKING)),
            own: Arc::new(own),
            began: Arc::default(),
        }
    }

    /// Runs on the path of packets, so it must not wait.
    pub(super) fn opener(&self, bay_end: SocketAddr, gateway_end: SocketAddr) -> Opener {
        let Some(attribution) = &self.attribution else {
            return Opener { who: watch::channel(Who::default()).1, own: Arc::clone(&self.own) };
        };
        let (tell, who) = watch::channel(attribution.who(bay_end, gateway_end, Transport::Tcp));
        if let Ok(turn) = Arc::clone(&self.looking).try_acquire_owned() {
            let attribution = Arc::clone(attribution);
            tokio::task::spawn_blocking(move || {
                let process = attribution.process(bay_end, gateway_end, Transport::Tcp);
                tell.send_modify(|who| who.process = process);
                drop(turn);
            });
        }
        Opener { who, own: Arc::clone(&self.own) }
    }

    /// Who looked up a name. [`Callers::sure`] must check it.
    pub(super) fn asker(&self, bay_end: SocketAddr, gateway_end: SocketAddr) -> Option<Who> {
        Some(self.attribution.as_ref()?.who(bay_end, gateway_end, Transport::Udp))
    }

    /// Removes the exec from `who` if the bay does not have it; `None` if nothing is left.
    pub(super) async fn sure(&self, who: Option<Who>) -> Option<Who> {
        self.own.only(who?).await
    }

    /// Learns that an exec began.
    pub(super) fn began(&self) {
        self.began.notify_one();
    }

    /// Notes execs as they begin. If the backend has no attribution, returns at once; otherwise never returns.
    pub(super) async fn note_execs(self) {
        let Some(attribution) = self.attribution else { return };
        loop {
            self.began.notified().await;
            let attribution = Arc::clone(&attribution);
            let _ = tokio::task::spawn_blocking(move || attribution.note()).await;
            tokio::time::sleep(NOTE_PAUSE).await;
        }
    }
}

impl Opener {
    /// What is known of the opener, after a wait of at most [`FOUND_WITHIN`] for the search.
    pub(super) async fn who(&self) -> Option<Who> {
        // If the search is over or never began, nothing more will be known. That is usual for all requests of a
        // connection but the first.
        if self.who.has_changed().is_ok() {
            let mut told = self.who.clone();
            told.mark_unchanged();
            let _ = tokio::time::timeout(FOUND_WITHIN, told.changed()).await;
        }
        let who = self.who.borrow().clone();
        self.own.only(who).await
    }
}

/// The execs of a bay. The name of its control group identifies an exec, and root in the bay can give a group any
/// name. So a name that the bay does not have is ignored, above all the name of another bay's exec.
#[derive(Debug)]
pub(super) struct OwnExecs {
    handle: Weak<BayHandle>,
    store: Store,
    known: Mutex<HashMap<ExecId, bool>>,
}

impl OwnExecs {
    pub(super) fn new(handle: &Arc<BayHandle>, store: Store) -> Self {
        Self { handle: Arc::downgrade(handle), store, known: Mutex::default() }
    }

    /// Removes an exec that the bay does not have. Runs of services are execs that only the guest knows: of them the
    /// service's name stays.
    async fn only(&self, mut who: Who) -> Option<Who> {
        if let Some(exec) = who.exec
            && !self.has(exec).await
        {
            who.exec = None;
        }
        (!who.is_unknown()).then_some(who)
    }

    async fn has(&self, exec: ExecId) -> bool {
        let Some(handle) = self.handle.upgrade() else { return false };
        if handle.exec_is_open(exec) {
            self.remember(exec, true);
            return true;
        }
        let known = self.known().get(&exec).copied();
        if let Some(known) = known {
            return known;
        }
        match self.store.exec_get(handle.id, exec).await {
            Ok(row) => {
                self.remember(exec, row.is_some());
                row.is_some()
            }
            Err(error) => {
                tracing::warn!(bay = %handle.name, %error, "the execs of a bay could not be read");
                false
            }
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<ExecId, bool>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, exec: ExecId, has: bool) {
        let mut known = self.known();
        if known.len() >= REMEMBERED && !known.contains_key(&exec) {
            known.clear();
        }
        known.insert(exec, has);
    }
}
