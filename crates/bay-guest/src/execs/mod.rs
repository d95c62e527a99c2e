//! The execs of the bay: in memory until no process can write their output any more, afterwards on disk, within bounds.

use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bay_types::exec::{EndReason, ExecSpec, ExecStatus, Exit, SignalRequest, Signalled};
use bay_types::guest::GuestEvent;
use bay_types::{ApiError, ErrorCode, ExecId};
use jiff::Timestamp;
use tokio::sync::{Notify, broadcast, watch};

pub(crate) mod attach;
mod bounds;
mod context;
mod exec;
mod exec_task;
pub(crate) mod input_queue;
pub(crate) mod output;
mod process_tree;
mod reaper;
mod shutdown;
mod start;
mod unrecorded;
mod unsaved_output;
mod usage;

pub use bounds::Bounds;
pub(crate) use context::{BayIdentity, ExecContext, Flushes};
use exec::Ended;
pub(crate) use exec::{Exec, Input, Life, TerminalClock};
use process_tree::CgroupLeaf;
pub(crate) use reaper::Reaper;
use unsaved_output::UnsavedOutput;

use crate::http::invalid;
use crate::spool::{self, SpoolError};

/// Most execs in memory at the same time. Each costs a few descriptors and some kilobytes of PID 1.
const MAX_LIVE: usize = 1024;
/// Events that wait for a slow listener before it is cut off.
const EVENT_QUEUE: usize = 256;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
/// How long processes may take to end after KILL. A process that takes longer is in uninterruptible sleep in the
/// kernel, and nobody knows when it will end. The guest does not wait for it.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// Execs whose output is kept in one directory: those that callers start, or the runs of services.
#[derive(Debug)]
pub(crate) struct Execs {
    pub(crate) context: ExecContext,
    pub(crate) reaper: Arc<Reaper>,
    pub(crate) events: broadcast::Sender<GuestEvent>,
    /// Execs that are starting or running, and ended execs whose output some process still holds open.
    live: Mutex<HashMap<ExecId, Arc<Exec>>>,
    /// Finished execs on disk, ordered by their end; the earliest is at the front.
    finished: Mutex<VecDeque<Finished>>,
    /// Cgroup leaves of ended execs in which child processes still run.
    leftovers: Mutex<Vec<Arc<CgroupLeaf>>>,
    /// Ended execs whose final record the disk had no room for.
    unsaved: Mutex<VecDeque<Arc<Exec>>>,
    /// Output that the disk had no room for.
    unsaved_output: UnsavedOutput,
    stopping: AtomicBool,
}

#[derive(Debug)]
struct Finished {
    id: ExecId,
    bytes: u64,
    /// The status at the end, without the specification. None if an earlier guest ran the exec. Root in the bay can
    /// change every file in the bay, but not this copy.
    witnessed: Option<Box<ExecStatus>>,
}

/// An exec, found in memory or on disk.
#[derive(Debug, Clone)]
pub(crate) enum Found {
    Live(Arc<Exec>),
    Finished(Box<ExecStatus>),
}

impl Found {
    pub(crate) fn status(&self) -> ExecStatus {
        match self {
            Found::Live(exec) => exec.status(),
            Found::Finished(status) => (**status).clone(),
        }
    }

    pub(crate) fn id(&self) -> ExecId {
        match self {
            Found::Live(exec) => exec.id(),
            Found::Finished(status) => status.spec.id,
        }
    }

    /// The status. While the exec runs, it includes what the exec has used so far.
    pub(crate) fn status_now(&self) -> ExecStatus {
        let mut status = self.status();
        if let Found::Live(exec) = self
            && status.exit.is_none()
        {
            status.usage = usage::of_running(exec.leaf.as_deref());
        }
        status
    }

    fn has_spec(&self, spec: &ExecSpec) -> bool {
        match self {
            Found::Live(exec) => exec.spec == *spec,
            Found::Finished(status) => status.spec == *spec,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The status of an exec whose end this guest saw. The specification comes from the disk, if it is still there.
fn as_witnessed(mut seen: ExecStatus, on_disk: Option<ExecStatus>) -> ExecStatus {
    if let Some(on_disk) = on_disk {
        seen.spec = on_disk.spec;
    }
    seen
}

fn ended_of(status: &ExecStatus) -> Option<Ended> {
    Some(Ended { at: status.ended_at?, exit: status.exit?, usage: status.usage })
}

impl Execs {
    pub(crate) fn new(context: ExecContext, reaper: Arc<Reaper>) -> Self {
        Self {
            context,
            reaper,
            events: broadcast::channel(EVENT_QUEUE).0,
            live: Mutex::default(),
            finished: Mutex::default(),
            leftovers: Mutex::default(),
            unsaved: Mutex::default(),
            unsaved_output: UnsavedOutput::default(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Starts an exec. If the same request has started it before, returns that exec. The flag is true for a new exec.
    pub(crate) async fn start(self: &Arc<Self>, spec: ExecSpec) -> Result<(Found, bool), ApiError> {
        spec.check()?;
        if let Some(found) = self.find(spec.id)? {
            if !found.has_spec(&spec) {
                return Err(ApiError::new(
                    ErrorCode::ExecConflict,
                    format!("an exec {} with another command exists", spec.id),
                    "choose a new id",
                ));
            }
            if let Found::Live(exec) = &found {
                exec_task::started(exec).await?;
            }
            return Ok((found, false));
        }
        if self.is_stopping() {
            return Err(ApiError::new(ErrorCode::BayState, "the bay is stopping", "start it again"));
        }
        if lock(&self.live).len() >= MAX_LIVE {
            return Err(ApiError::new(
                ErrorCode::NotEnough,
                format!("{MAX_LIVE} execs are running in the bay already"),
                "wait for some to end, or kill them",
            ));
        }
        // No await between here and the spawn: see `reaper`.
        let cloned = start::clone(&self.context, &spec)?;
        let (leader, ended) = self.reaper.register(cloned.spawned.pid);
        let exec = Arc::new(Exec {
            spec,
            started_at: Timestamp::now(),
            terminals: Arc::clone(&self.context.terminals),
            leader,
            leaf: cloned.leaf,
            input: cloned.input,
            input_queue: input_queue::InputQueue::default(),
            life: watch::Sender::new(Life::default()),
            bounded_to: Arc::default(),
            killed: AtomicBool::new(false),
            timed_out: AtomicBool::new(false),
            kill_sent: Notify::new(),
            forgotten: AtomicBool::new(false),
        });
        lock(&self.live).insert(exec.id(), Arc::clone(&exec));
        let attachment = exec_task::Attachment {
            report: cloned.spawned.report,
            ended,
            sources: cloned.sources,
            directory: cloned.directory,
        };
        tokio::spawn(exec_task::run(Arc::clone(self), Arc::clone(&exec), attachment));
        exec_task::started(&exec).await?;
        Ok((Found::Live(exec), true))
    }

    /// Marks the cgroups of runs with their services' names again: a restore creates the cgroups anew.
    pub(crate) fn mark_services(&self) {
        for exec in lock(&self.live).values() {
            if let Some(leaf) = &exec.leaf {
                leaf.mark_service(&exec.spec);
            }
        }
    }

    /// Looks in memory, then on disk.
    pub(crate) fn find(&self, id: ExecId) -> Result<Option<Found>, ApiError> {
        if let Some(exec) = lock(&self.live).get(&id) {
            return Ok(Some(Found::Live(Arc::clone(exec))));
        }
        let on_disk = spool::read_status(self.context.state.as_fd(), id);
        if let Some(seen) = self.witnessed(id) {
            return Ok(Some(Found::Finished(Box::new(as_witnessed(seen, on_disk.ok())))));
        }
        match on_disk {
            Ok(status) => Ok(Some(Found::Finished(Box::new(self.as_ended(status))))),
            Err(SpoolError::Absent(_)) => Ok(None),
            Err(error @ SpoolError::Damaged(_)) => {
                // A damaged record is treated as absent.
                self.context.log.line("record.damaged", format_args!("exec={id} error={error}"));
                Ok(None)
            }
            Err(error) => Err(ApiError::internal(&error)),
        }
    }

    /// The status of an exec whose end this guest saw.
    fn witnessed(&self, id: ExecId) -> Option<ExecStatus> {
        let finished = lock(&self.finished);
        finished.iter().rev().find(|one| one.id == id)?.witnessed.as_deref().cloned()
    }

    pub(crate) fn get(&self, id: ExecId) -> Result<Found, ApiError> {
        self.find(id)?.ok_or_else(|| {
            ApiError::new(
                ErrorCode::ExecNotFound,
                format!("there is no exec {id} in the bay"),
                "the list of the bay's execs has them all",
            )
        })
    }

    /// An exec whose program runs or ran. If it is still being started, waits for that.
    pub(crate) async fn get_started(&self, id: ExecId) -> Result<Found, ApiError> {
        let found = self.get(id)?;
        if let Found::Live(exec) = &found {
            exec_task::started(exec).await?;
        }
        Ok(found)
    }

    /// An exec that is on disk but not in memory has ended, whatever its record says: an earlier guest died while it
    /// ran, or this guest is being stopped.
    fn as_ended(&self, mut status: ExecStatus) -> ExecStatus {
        if status.exit.is_none() {
            let reason = if self.is_stopping() { EndReason::Stopped } else { EndReason::Lost };
            status.exit = Some(Exit { reason, code: None, signal: None });
            status.ended_at = Some(self.context.started_at.max(status.started_at));
        }
        status
    }

    /// All execs, ordered by start time. Reads the disk, so it must not be called on the main thread.
    pub(crate) fn list(&self) -> Result<Vec<ExecStatus>, ApiError> {
        let on_disk = spool::list(self.context.state.as_fd()).map_err(|e| ApiError::internal(&e))?;
        let mut all: HashMap<ExecId, ExecStatus> = HashMap::new();
        for id in on_disk {
            if let Ok(status) = spool::read_status(self.context.state.as_fd(), id) {
                let status = match self.witnessed(id) {
                    Some(seen) => as_witnessed(seen, Some(status)),
                    None => self.as_ended(status),
                };
                all.insert(id, status);
            }
        }
        for (id, exec) in lock(&self.live).iter() {
            all.insert(*id, exec.status());
        }
        let mut all: Vec<ExecStatus> = all.into_values().collect();
        all.sort_by_key(|status| (status.started_at, status.spec.id));
        Ok(all)
    }

    /// Sends a caller's signal. Returns the status, and the number of signalled processes that outlived their exec.
    /// Only a signal to the whole tree reaches those.
    pub(crate) fn signal(
        &self,
        id: ExecId,
        request: SignalRequest,
    ) -> Result<(ExecStatus, Signalled), ApiError> {
        if !(1..=bay_sys::spawn::MAX_SIGNAL).contains(&request.signal) {
            return Err(invalid(format!("{} is not a signal", request.signal)));
        }
        let found = self.get(id)?;
        let mut left = 0;
        if let Found::Live(exec) = &found {
            if request.tree && exec.has_ended() {
                left = exec.tree_size();
            }
            exec.signal_by_caller(request.signal, request.tree);
        } else if request.tree {
            let leaf = lock(&self.leftovers).iter().find(|l| l.is_of(id)).cloned();
            if leaf.is_some() || self.context.cgroup.is_none() {
                left = leaf
                    .as_ref()
                    .map_or_else(|| process_tree::pids_from_proc(None, id), |leaf| leaf.pids())
                    .len();
                exec::signal_tree(leaf.as_deref(), None, id, request.signal);
            }
        }
        Ok((found.status(), Signalled { left: left as u64 }))
    }

    /// Removes a finished exec and its output.
    pub(crate) async fn forget(self: &Arc<Self>, id: ExecId) -> Result<(), ApiError> {
        if let Found::Live(exec) = self.get(id)? {
            if !exec.has_ended() {
                return Err(ApiError::new(
                    ErrorCode::BayState,
                    format!("exec {id} is still running"),
                    "end it first",
                ));
            }
            exec.forgotten.store(true, Ordering::Relaxed);
            lock(&self.live).remove(&id);
        }
        self.unsaved_output.forget(id);
        lock(&self.finished).retain(|f| f.id != id);
        self.remove(vec![id]).await;
        Ok(())
    }

    async fn remove(self: &Arc<Self>, ids: Vec<ExecId>) {
        let execs = Arc::clone(self);
        let task = tokio::task::spawn_blocking(move || {
            for id in ids {
                if let Err(error) = spool::remove_exec(execs.context.state.as_fd(), id) {
                    execs.context.log.line("spool.stuck", format_args!("exec={id} error={error}"));
                }
            }
        });
        // The task ends early only because of a defect. Then the next start tries again.
        let _ = task.await;
    }

    /// The exec's task calls this if the program never ran.
    fn start_failed(&self, exec: &Exec) {
        lock(&self.live).remove(&exec.id());
        self.release_leaf(exec);
    }

    /// The exec's task calls this after it has published the end of the leader.
    fn ended(&self) {
        // `all_gone` waits for this.
        self.reaper.reaped.notify_waiters();
    }

    /// Removes the cgroup leaf of an exec whose leader is gone. Returns the number of processes that still run in it,
    /// or None if the exec has no leaf.
    fn release_leaf(&self, exec: &Exec) -> Option<u64> {
        let leaf = exec.leaf.as_ref()?;
        if leaf.remove() {
            return Some(0);
        }
        let left = leaf.pids().len() as u64;
        lock(&self.leftovers).push(Arc::clone(leaf));
        Some(left)
    }

    /// The exec's task calls this when no process can write output of the exec any more. `saved` says whether the end
    /// is on disk.
    fn output_closed(self: &Arc<Self>, exec: &Arc<Exec>, saved: bool) {
        if exec.forgotten.load(Ordering::Relaxed) && !lock(&self.live).contains_key(&exec.id()) {
            return;
        }
        // The disk may have room now for records that it refused before.
        let mut waiting = std::mem::take(&mut *lock(&self.unsaved));
        let mut done = Vec::new();
        if saved {
            done.push(Arc::clone(exec));
        } else {
            waiting.push_back(Arc::clone(exec));
        }
        for exec in waiting {
            match spool::save_status(self.context.state.as_fd(), &exec.status()) {
                Ok(()) => done.push(exec),
                Err(error) => {
                    // The exec stays in memory, so that this guest can report its end.
                    self.context.log.line("record.refused", format_args!("exec={} error={error}", exec.id()));
                    lock(&self.unsaved).push_back(exec);
                }
            }
        }
        self.forget_unsaved();
        let doomed = {
            let mut finished = lock(&self.finished);
            for exec in done {
                if lock(&self.live).remove(&exec.id()).is_some() {
                    let status = exec.status();
                    let spec = ExecSpec { id: exec.id(), ..ExecSpec::new(<[String; 0]>::default()) };
                    finished.push_back(Finished {
                        id: exec.id(),
                        bytes: status.output_bytes - status.output_start,
                        witnessed: Some(Box::new(ExecStatus { spec, ..status })),
                    });
                }
            }
            self.over_bound(&mut finished)
        };
        if !doomed.is_empty() {
            let execs = Arc::clone(self);
            tokio::spawn(async move { execs.remove(doomed).await });
        }
    }

    /// Bounds the ended execs that wait for disk space: they count towards the limit of live execs. A daemon that was
    /// connected has recorded their ends.
    fn forget_unsaved(&self) {
        let mut unsaved = lock(&self.unsaved);
        while unsaved.len() > self.context.bounds.finished_execs {
            if let Some(oldest) = unsaved.pop_front() {
                lock(&self.live).remove(&oldest.id());
                self.unsaved_output.forget(oldest.id());
            }
        }
    }

    fn over_bound(&self, finished: &mut VecDeque<Finished>) -> Vec<ExecId> {
        let bounds = &self.context.bounds;
        let mut bytes: u64 = finished.iter().map(|f| f.bytes).sum();
        let mut doomed = Vec::new();
        while finished.len() > 1 && (finished.len() > bounds.finished_execs || bytes > bounds.finished_bytes)
        {
            if let Some(oldest) = finished.pop_front() {
                bytes -= oldest.bytes;
                doomed.push(oldest.id);
            }
        }
        doomed
    }

    /// Takes over what earlier guests of this bay left: their running execs become lost, and their finished execs count
    /// towards the bound. Reads and writes the disk, so it must not be called on the main thread.
    pub(crate) fn adopt_from_disk(&self) {
        let state = self.context.state.as_fd();
        let mut old = Vec::new();
        for id in spool::list(state).unwrap_or_default() {
            if lock(&self.live).contains_key(&id) {
                continue;
            }
            match spool::read_status(state, id) {
                Ok(status) => {
                    // This guest started it during the scan.
                    if status.started_at >= self.context.started_at {
                        continue;
                    }
                    let was_running = status.exit.is_none();
                    let status = self.as_ended(status);
                    if was_running && let Err(error) = spool::save_status(state, &status) {
                        self.context.log.line("record.refused", format_args!("exec={id} error={error}"));
                    }
                    old.push((
                        status.ended_at,
                        Finished { id, bytes: spool::kept_bytes(&status), witnessed: None },
                    ));
                }
                Err(SpoolError::Damaged(_)) => {
                    let _ = spool::remove_exec(state, id);
                }
                Err(_) => {}
            }
        }
        old.sort_by_key(|(ended_at, _)| *ended_at);
        let mut finished = lock(&self.finished);
        for (_, one) in old.into_iter().rev() {
            finished.push_front(one);
        }
        let doomed = self.over_bound(&mut finished);
        drop(finished);
        for id in doomed {
            let _ = spool::remove_exec(state, id);
        }
    }

    /// Removes cgroup leaves as they become empty. Tries each leaf once after every batch of reaped processes.
    pub(crate) async fn remove_empty_leaves(&self) {
        loop {
            self.reaper.reaped.notified().await;
            lock(&self.leftovers).retain(|leaf| !leaf.remove());
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}
