//! The bays that the daemon knows, in memory. The store is the truth of a bay's row. Every change of a row is
//! committed there first and shown here afterwards, so that reads and waits need no query.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use bay_backend::{Backend, BayFiles, LimitEvents};
use bay_store::{BayRow, CheckpointNew, CheckpointRow, Draft, Store};
use bay_types::bay::STOP_GRACE_S;
use bay_types::traffic::DroppedPackets;
use bay_types::{Action, BayId, BayName, CheckpointName, CoreError, ErrorCode, ExecId, Hint};
use tokio::sync::{Notify, watch};

use crate::backends::{Backends, BayBackend, without_driver};
use crate::background::blocking;
use crate::channel::GuestChannel;
use crate::inside_requests::InsideRequests;
use crate::open_forwards::OpenForwards;

pub(crate) const STOP_GRACE: Duration = Duration::from_secs(STOP_GRACE_S);
/// The longest grace that a caller may request.
pub(crate) const MAX_STOP_GRACE: Duration = Duration::from_secs(600);

/// The result of the newest request for a desired state.
#[derive(Debug, Clone, Default)]
pub struct Settled {
    /// The request up to which this is the result.
    pub asked: u64,
    pub error: Option<CoreError>,
    pub deleted: bool,
    pub kept_workspace: Option<PathBuf>,
}

/// The open egress of one bay, for users other than its gateway.
#[async_trait]
pub(crate) trait OpenEgress: fmt::Debug + Send + Sync {
    /// Packets that the kernel dropped since the bay started, and name look-ups that the gateway dropped since it
    /// was opened.
    fn dropped(&self) -> DroppedPackets;

    /// Numbers of the decisions that let something out which has not ended.
    fn under_way(&self) -> HashSet<u64>;

    /// Learns the execs of the bay again after one began, so that later connections are attributed to it, also after
    /// it ended.
    fn exec_began(&self);

    /// Waits until gateway and guest have the secrets of this change, or a later one. Ends too when the egress
    /// closes.
    async fn secrets_delivered(&self, change: u64);

    /// Waits until open requests are answered, for at most this time.
    async fn finish(&self, within: Duration);

    /// Lets nothing more out, records what was only counted so far, and flushes names to the disk.
    async fn close(&self);
}

/// One bay: its row, its guest, and the signals between verbs and its reconciler.
#[derive(Debug)]
pub struct BayHandle {
    pub id: BayId,
    pub name: BayName,
    /// The driver that runs it, or a placeholder.
    pub backend: Arc<dyn Backend>,
    /// Why `backend` can do nothing: this daemon lacks the driver.
    pub(crate) driver_missing: Option<String>,
    pub(crate) guest: GuestChannel,
    /// Wakes the reconciler.
    pub(crate) wake: Notify,
    /// Held while the bay's parts change or must not change: during one pass of the reconciler, and while a
    /// checkpoint is made or deleted.
    pub at_work: tokio::sync::Mutex<()>,
    /// Requests of the bay's own processes.
    pub(crate) inside: InsideRequests,
    pub(crate) forwards: OpenForwards,
    /// The bay's egress, while it is open.
    egress: Mutex<Option<Arc<dyn OpenEgress>>>,
    row: watch::Sender<BayRow>,
    /// Keeps commits and the rows shown here in the same order.
    edit: tokio::sync::Mutex<()>,
    asked: AtomicU64,
    settled: watch::Sender<Settled>,
    grace_ms: AtomicU64,
    execs: Mutex<Execs>,
    /// Connections of callers to execs and ports of the bay.
    clients: AtomicU64,
    /// How many execs and attachments there were since the daemon started.
    uses: AtomicU64,
    /// Ends of execs that were recorded since old ones were last deleted.
    ends: AtomicU64,
    /// Notified whenever an exec is known to be over.
    exec_over: Notify,
}

/// Execs that have not ended, as far as the daemon knows.
#[derive(Debug, Default)]
struct Execs {
    open: HashSet<ExecId>,
    /// Stored execs whose start the guest has not answered yet. That the guest does not know them means nothing. The
    /// number counts concurrent starts of the same exec.
    starting: HashMap<ExecId, usize>,
    /// How often the bay had hit its limits when the exec began.
    began: HashMap<ExecId, LimitEvents>,
    /// How often the bay had hit its limits when its control groups were removed while the exec was open.
    last: HashMap<ExecId, LimitEvents>,
}

/// A caller that is connected to an exec or a port of the bay, until dropped.
#[derive(Debug)]
pub(crate) struct Attached(Arc<BayHandle>);

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Marks an exec as being started, until dropped.
#[derive(Debug)]
pub struct Starting {
    handle: Arc<BayHandle>,
    pub id: ExecId,
}

impl Drop for Starting {
    fn drop(&mut self) {
        let mut execs = self.handle.execs();
        if let Some(count) = execs.starting.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                execs.starting.remove(&self.id);
            }
        }
    }
}

impl BayHandle {
    pub(crate) fn of(row: BayRow, backends: &Backends) -> Self {
        let BayBackend { driver, missing } = backends.of(&row.backend);
        Self {
            id: row.id,
            name: row.name.clone(),
            guest: GuestChannel::new(Arc::clone(&driver), row.id),
            backend: driver,
            driver_missing: missing,
            wake: Notify::new(),
            at_work: tokio::sync::Mutex::default(),
            inside: InsideRequests::default(),
            forwards: OpenForwards::default(),
            egress: Mutex::default(),
            row: watch::Sender::new(row),
            edit: tokio::sync::Mutex::default(),
            asked: AtomicU64::new(0),
            settled: watch::Sender::new(Settled::default()),
            grace_ms: AtomicU64::new(millis(STOP_GRACE)),
            execs: Mutex::default(),
            clients: AtomicU64::new(0),
            uses: AtomicU64::new(0),
            ends: AtomicU64::new(0),
            exec_over: Notify::new(),
        }
    }

    /// An error if this daemon lacks the bay's driver.
    pub(crate) fn require_driver(&self) -> Result<(), CoreError> {
        self.driver_missing.as_ref().map_or(Ok(()), |why| Err(without_driver(&self.name, why)))
    }

    /// Runs blocking work on the bay's files off the async threads.
    pub(crate) async fn with_files<T, F>(&self, work: F) -> Result<T, CoreError>
    where
        T: Send + 'static,
        F: FnOnce(&dyn BayFiles) -> Result<T, CoreError> + Send + 'static,
    {
        let files = self.backend.files();
        blocking(move || work(&*files)).await
    }

    pub(crate) fn egress(&self) -> Option<Arc<dyn OpenEgress>> {
        self.egress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reports to the egress that the guest started an exec.
    pub(crate) fn exec_runs(&self) {
        if let Some(open) = self.egress() {
            open.exec_began();
        }
    }

    pub(crate) fn set_egress(&self, open: Arc<dyn OpenEgress>) {
        *self.egress.lock().unwrap_or_else(PoisonError::into_inner) = Some(open);
    }

    /// Closes the egress, and records what was only counted so far.
    pub(crate) async fn close_egress(&self) {
        let open = self.egress.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(open) = open {
            open.close().await;
        }
    }

    pub fn row(&self) -> BayRow {
        self.row.borrow().clone()
    }

    /// The row as it changes.
    pub(crate) fn row_changes(&self) -> watch::Receiver<BayRow> {
        self.row.subscribe()
    }

    /// Changes the bay in the store, then here.
    pub(crate) async fn update(
        &self,
        store: &Store,
        event: Option<Draft>,
        change: impl FnOnce(&mut BayRow),
    ) -> Result<BayRow, CoreError> {
        let _order = self.edit.lock().await;
        let row = store.bay_update(self.id, event, change).await.map_err(|e| e.to_api())?;
        self.row.send_replace(row.clone());
        Ok(row)
    }

    /// Adds a checkpoint whose files are complete.
    pub(crate) async fn checkpoint_add(
        &self,
        store: &Store,
        new: CheckpointNew,
        event: impl FnOnce(&CheckpointRow) -> Draft,
    ) -> Result<CheckpointRow, CoreError> {
        let _order = self.edit.lock().await;
        let (made, row) = store.checkpoint_add(new, event).await.map_err(|e| e.to_api())?;
        self.row.send_replace(row);
        Ok(made)
    }

    /// Removes a checkpoint from the store, before its files are removed.
    pub(crate) async fn checkpoint_remove(
        &self,
        store: &Store,
        gone: CheckpointName,
        event: &Draft,
    ) -> Result<(), CoreError> {
        let _order = self.edit.lock().await;
        let row = store.checkpoint_remove(self.id, gone, event).await.map_err(|e| e.to_api())?;
        self.row.send_replace(row);
        Ok(())
    }

    /// Stores a desired state if `fits` allows it in the bay's present state, and wakes the reconciler. Returns the
    /// request's number for [`Self::outcome`].
    pub(crate) async fn ask(
        &self,
        store: &Store,
        fits: impl FnOnce(&BayRow) -> Result<(), CoreError>,
        event: Draft,
        change: impl FnOnce(&mut BayRow),
    ) -> Result<u64, CoreError> {
        self.require_driver()?;
        let _order = self.edit.lock().await;
        fits(&self.row.borrow())?;
        let row = store.bay_update(self.id, Some(event), change).await.map_err(|e| e.to_api())?;
        self.row.send_replace(row);
        // After the row: a reader of this number reads a row that is at least as new.
        let asked = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        self.wake.notify_one();
        Ok(asked)
    }

    /// The number of the request that created the bay.
    pub fn first_ask(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }

    /// Publishes the result of a request. A failure is not overwritten for the same request: another pass may follow
    /// at once and find nothing to do, before the caller has read the failure.
    pub(crate) fn settle(&self, settled: Settled) {
        // The errors of drivers and files name a bay by its id. A person knows it by its name.
        let settled = Settled { error: settled.error.map(|error| error.about(&self.name)), ..settled };
        self.settled.send_if_modified(|last| {
            let failed_before = last.asked == settled.asked && last.error.is_some() && !settled.deleted;
            if !failed_before {
                *last = settled;
            }
            !failed_before
        });
    }

    /// Waits for the result of a request, or of a later one.
    pub async fn outcome(&self, asked: u64, within: Duration) -> Result<Settled, CoreError> {
        let mut settled = self.settled.subscribe();
        let outcome = tokio::time::timeout(within, settled.wait_for(|s| s.asked >= asked || s.deleted)).await;
        match outcome {
            Ok(Ok(settled)) => Ok(settled.clone()),
            Ok(Err(_)) | Err(_) => Err(CoreError::new(
                ErrorCode::Interrupted,
                format!("the bay {} is not as requested after {} s", self.name, within.as_secs()),
                Hint::new("the daemon continues; {} shows the state", [Action::ShowBay((&self.name).into())]),
            )),
        }
    }

    pub(crate) fn set_grace(&self, grace: Duration) {
        self.grace_ms.store(millis(grace), Ordering::Relaxed);
    }

    /// The grace of the present stop. The next stop has the default again.
    pub(crate) fn take_grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms.swap(millis(STOP_GRACE), Ordering::Relaxed))
    }

    fn execs(&self) -> std::sync::MutexGuard<'_, Execs> {
        self.execs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn client_attached(self: &Arc<Self>) -> Attached {
        self.clients.fetch_add(1, Ordering::Relaxed);
        self.uses.fetch_add(1, Ordering::Relaxed);
        Attached(Arc::clone(self))
    }

    pub(crate) fn clients_attached(&self) -> u64 {
        self.clients.load(Ordering::Relaxed)
    }

    pub fn exec_starting(self: &Arc<Self>, id: ExecId) -> Starting {
        *self.execs().starting.entry(id).or_default() += 1;
        Starting { handle: Arc::clone(self), id }
    }

    pub fn execs_starting(&self) -> HashSet<ExecId> {
        self.execs().starting.keys().copied().collect()
    }

    /// A number that grows whenever a command begins or a client attaches.
    pub(crate) fn uses(&self) -> u64 {
        self.uses.load(Ordering::Relaxed)
    }

    pub fn exec_opened(&self, id: ExecId) {
        self.uses.fetch_add(1, Ordering::Relaxed);
        self.execs().open.insert(id);
    }

    /// Notes how often the bay had hit its limits when an open exec began.
    pub fn exec_began(&self, id: ExecId, events: LimitEvents) {
        let mut execs = self.execs();
        if execs.open.contains(&id) {
            execs.began.entry(id).or_insert(events);
        }
    }

    /// What [`Self::exec_began`] noted.
    pub(crate) fn exec_beginning(&self, id: ExecId) -> Option<LimitEvents> {
        self.execs().began.get(&id).copied()
    }

    /// Notes how often the bay had hit its limits, for all open execs, before its control groups are removed.
    pub(crate) fn note_last_limits(&self, events: LimitEvents) {
        let execs = &mut *self.execs();
        execs.last.extend(execs.open.iter().map(|id| (*id, events)));
    }

    /// What [`Self::note_last_limits`] noted for an exec that was open.
    pub(crate) fn exec_last(&self, id: ExecId) -> Option<LimitEvents> {
        self.execs().last.get(&id).copied()
    }

    pub(crate) fn exec_ended(&self, id: ExecId) {
        let mut execs = self.execs();
        execs.open.remove(&id);
        execs.began.remove(&id);
        execs.last.remove(&id);
        drop(execs);
        self.ends.fetch_add(1, Ordering::Relaxed);
        self.exec_over.notify_waiters();
    }

    /// Whether so many ends were recorded that old execs are to be deleted. The next answer counts from here.
    pub(crate) fn has_ends(&self, enough: u64) -> bool {
        let counted = |ends: u64| (ends >= enough).then_some(0);
        self.ends.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted).is_ok()
    }

    /// Waits until an exec is known to be over, for at most this time.
    pub(crate) async fn exec_is_over(&self, id: ExecId, within: Duration) {
        let over = async {
            loop {
                let told = self.exec_over.notified();
                tokio::pin!(told);
                // Before the check, so that an end in between is not missed.
                told.as_mut().enable();
                if !self.exec_is_open(id) {
                    return;
                }
                told.await;
            }
        };
        let _ = tokio::time::timeout(within, over).await;
    }

    pub fn exec_is_open(&self, id: ExecId) -> bool {
        self.execs().open.contains(&id)
    }

    pub fn execs_open(&self) -> usize {
        self.execs().open.len()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// All bays, by id.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    bays: RwLock<HashMap<BayId, Arc<BayHandle>>>,
}

impl Registry {
    pub(crate) fn insert(&self, handle: Arc<BayHandle>) {
        self.bays.write().unwrap_or_else(PoisonError::into_inner).insert(handle.id, handle);
    }

    pub(crate) fn remove(&self, id: BayId) {
        self.bays.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// All bays, oldest first.
    pub(crate) fn list(&self) -> Vec<Arc<BayHandle>> {
        let mut all: Vec<_> =
            self.bays.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        all.sort_by_key(|handle| handle.id);
        all
    }

    /// A bay by its name or id.
    pub(crate) fn find(&self, given: &str) -> Result<Arc<BayHandle>, CoreError> {
        let bays = self.bays.read().unwrap_or_else(PoisonError::into_inner);
        let found = match given.parse::<BayId>() {
            Ok(id) => bays.get(&id),
            Err(_) => bays.values().find(|handle| handle.name.as_str() == given),
        };
        found.cloned().ok_or_else(|| {
            let shown: String = given.chars().take(BayName::MAX_LEN * 2).collect();
            let names = bays.values().map(|handle| handle.name.as_str());
            let list = Hint::new("{} lists the bays", [Action::ListBays]);
            let hint = match closest(&shown, names) {
                Some(name) => Hint::from(format!("did you mean {name}? ")).then(list),
                None => list.and(Hint::new("{} makes one", [Action::MakeNamedBay])),
            };
            CoreError::new(ErrorCode::BayNotFound, format!("there is no bay {shown:?}"), hint)
        })
    }
}

/// The name that the caller probably meant. It differs by at most two typing errors, and by at most one for each
/// three characters given (rounded up).
fn closest<'a>(given: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const SLIPS: usize = 2;
    let bound = SLIPS.min(given.chars().count().div_ceil(3));
    let near = names.map(|name| (strsim::damerau_levenshtein(given, name), name));
    near.filter(|(slips, _)| *slips <= bound).min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::closest;

    #[test]
    fn a_typing_error_finds_the_intended_name() {
        let all = ["web", "web-2", "api", "billing"];
        let meant = |given: &str| closest(given, all.into_iter());
        assert_eq!(meant("wbe"), Some("web"));
        assert_eq!(meant("biling"), Some("billing"));
        assert_eq!(meant("web2"), Some("web"));
        assert_eq!(meant("apl"), Some("api"));
        for far in ["", "x", "nope", "bay_0190000000007000800000000000abcd", "weblog"] {
            assert_eq!(meant(far), None, "{far}");
        }
    }
}
