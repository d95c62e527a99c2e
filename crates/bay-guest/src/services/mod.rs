//! Services: commands that the bay keeps running.
//!
//! ```text
//!   routes ──► Services (definitions, one Machine each) ──► supervisor: carries out the machines' actions
//!                  │ on disk first (store)                      │ a run is an exec of its own kind
//!                  ▼                                            ▼
//!   STATE/services/NAME.json                    execs ──► clone, cgroup leaf, spool (STATE/services/execs)
//!                                                 ▲
//!   health (command, TCP, HTTP) ── check results ─┘ ended, emptied ── back to the machine
//! ```
//!
//! Runs of services are execs in an [`Execs`] of their own. So no list of execs has them, they send no events of execs, and
//! the bounds on their output and on the output of commands are separate.
//!
//! Failure paths:
//!
//! - A definition cannot be written: it is refused, and the earlier definition stays in force.
//! - A definition cannot be read: the service is shown as failed with the reason; the others go on.
//! - The guest dies or the bay stops: the next guest starts the services that should run, in order of their needs.
//! - A run's processes hang in the kernel: after a while the guest gives up, and the next run begins beside them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bay_types::service::{
    MAX_SERVICES, ServiceName, ServiceRun, ServiceSpec, ServiceState, ServiceVerb, ServiceView,
};
use bay_types::{ApiError, ErrorCode, ExecId};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

mod dependencies;
mod health;
mod log;
mod offline;
mod routes;
mod state_machine;
mod store;
mod supervisor;

pub use offline::{stored_runs, stored_services};
pub(crate) use routes::{define, definition, parse, route};

use state_machine::{Event, Machine, Moment, Rules};
use store::Record;

use crate::execs::{Bounds, Exec, ExecContext, Execs, Reaper};
use crate::spool;

/// Output kept of one run, and the size of the segments in which its beginning is dropped.
const RUN_BYTES: u64 = 32 << 20;
const RUN_SEGMENT_BYTES: u64 = 8 << 20;
/// Output kept of all earlier runs of one service together.
const EARLIER_RUNS_BYTES: u64 = 32 << 20;
/// Health checks at the same time. Further checks wait for their turn.
const MAX_CHECKS: usize = 8;

/// Every service of the bay.
#[derive(Debug)]
pub(crate) struct Services {
    execs: Arc<Execs>,
    all: Mutex<All>,
    /// Counts changes, for followers.
    changed: watch::Sender<u64>,
    loaded: watch::Sender<bool>,
    checks: Semaphore,
    /// Held during a verb, so that the disk has the definition of the latest request.
    asking: tokio::sync::Mutex<()>,
    saving: tokio::sync::Mutex<()>,
    began: Instant,
}

#[derive(Debug, Default)]
struct All {
    slots: BTreeMap<ServiceName, Slot>,
    /// The bay is stopping, so no run is started.
    closing: bool,
}

#[derive(Debug)]
enum Slot {
    Kept(Box<Service>),
    Damaged { why: String, since: Timestamp },
}

#[derive(Debug)]
struct Service {
    spec: ServiceSpec,
    machine: Machine,
    wanted: bool,
    since: Timestamp,
    retry_at: Option<Timestamp>,
    /// Counts runs. Events of an earlier run are recognised by their count.
    run: u64,
    /// Dropped when the run is over, which ends its health checks.
    over: Option<watch::Sender<()>>,
    /// The latest run that this guest started. Kept after its end, because it knows the extent of its output.
    exec: Option<Arc<Exec>>,
    /// Oldest first.
    runs: VecDeque<ServiceRun>,
    /// Bytes of output of the last of `runs`, if an earlier guest started it.
    earlier_bytes: u64,
    timer: Option<(Moment, AbortHandle)>,
    removing: bool,
}

impl Service {
    fn new(spec: ServiceSpec, wanted: bool, runs: VecDeque<ServiceRun>, earlier_bytes: u64) -> Self {
        Self {
            machine: Machine::new(rules(&spec), wanted),
            spec,
            wanted,
            since: Timestamp::now(),
            retry_at: None,
            run: 0,
            over: None,
            exec: None,
            runs,
            earlier_bytes,
            timer: None,
            removing: false,
        }
    }

    fn record(&self) -> Record {
        Record::new(self.spec.clone(), self.wanted, self.runs.iter().cloned().collect())
    }

    /// The offset at which the log ends now.
    fn log_end(&self) -> u64 {
        let last = self.exec.as_ref().map_or(self.earlier_bytes, |exec| exec.life.borrow().output_end);
        self.runs.back().map_or(0, |run| run.log_offset.saturating_add(last))
    }

    fn log_start(&self) -> u64 {
        let dropped = match (&self.exec, self.runs.len()) {
            (Some(exec), 1) => exec.life.borrow().output_start,
            _ => 0,
        };
        self.runs.front().map_or(0, |run| run.log_offset.saturating_add(dropped))
    }
}

fn rules(spec: &ServiceSpec) -> Rules {
    Rules {
        restart: spec.restart,
        start_period: spec.health.as_ref().map(|h| Duration::from_millis(h.start_period_ms)),
        stop_grace: Duration::from_millis(spec.stop_grace_ms),
    }
}

impl All {
    fn get(&self, name: &ServiceName) -> Option<&Service> {
        match self.slots.get(name) {
            Some(Slot::Kept(service)) => Some(service),
            _ => None,
        }
    }

    fn get_mut(&mut self, name: &ServiceName) -> Option<&mut Service> {
        match self.slots.get_mut(name) {
            Some(Slot::Kept(service)) => Some(service),
            _ => None,
        }
    }

    fn each(&self) -> impl Iterator<Item = (&ServiceName, &Service)> {
        self.slots.iter().filter_map(|(name, slot)| match slot {
            Slot::Kept(service) => Some((name, &**service)),
            Slot::Damaged { .. } => None,
        })
    }

    fn state_of(&self, name: &ServiceName) -> Option<ServiceState> {
        match self.slots.get(name)? {
            Slot::Kept(service) => Some(service.machine.state()),
            Slot::Damaged { .. } => Some(ServiceState::Failed),
        }
    }

    fn needs_met(&self, service: &Service) -> bool {
        !self.closing
            && service.spec.needs.iter().all(|need| self.state_of(need).is_some_and(ServiceState::satisfies))
    }

    fn needed_by(&self, name: &ServiceName) -> impl Iterator<Item = (&ServiceName, &Service)> {
        self.each().filter(move |(_, service)| service.spec.needs.contains(name))
    }

    fn view(&self, name: &ServiceName) -> Option<ServiceView> {
        let service = match self.slots.get(name)? {
            Slot::Kept(service) => service,
            Slot::Damaged { why, since } => {
                return Some(ServiceView {
                    name: name.clone(),
                    spec: None,
                    state: ServiceState::Failed,
                    reason: format!("its definition cannot be read: {why}; add it again, or remove it"),
                    since: *since,
                    wanted: false,
                    pid: None,
                    restarts: 0,
                    attempt: 0,
                    retry_at: None,
                    runs: vec![],
                    log_start: 0,
                    log_end: 0,
                });
            }
        };
        let state = service.machine.state();
        let reason = match state {
            ServiceState::Waiting => self.waits_for(service),
            _ => service.machine.reason().to_owned(),
        };
        let leader = service.exec.as_ref().filter(|exec| service.machine.has_run() && exec.leader.is_alive());
        Some(ServiceView {
            name: name.clone(),
            spec: Some(service.spec.clone()),
            state,
            reason,
            since: service.since,
            wanted: service.wanted,
            pid: leader.map(|exec| exec.leader.pid),
            restarts: service.machine.restarts(),
            attempt: service.machine.attempt(),
            retry_at: service.retry_at,
            runs: service.runs.iter().cloned().collect(),
            log_start: service.log_start(),
            log_end: service.log_end(),
        })
    }

    fn waits_for(&self, service: &Service) -> String {
        let unmet = service.spec.needs.iter().filter_map(|need| match self.state_of(need) {
            Some(state) if state.satisfies() => None,
            Some(state) => Some(format!("{need} ({state})")),
            None => Some(format!("{need} (which does not exist)")),
        });
        format!("it waits for {}", unmet.collect::<Vec<_>>().join(", "))
    }
}

impl Services {
    /// See [`Execs::mark_services`].
    pub(crate) fn mark_runs(&self) {
        self.execs.mark_services();
    }

    /// The services of a bay; none is loaded yet. `context` is that of the bay's execs.
    pub(crate) fn open(context: &ExecContext, reaper: &Arc<Reaper>) -> io::Result<Self> {
        let bounds = Bounds {
            output: spool::Bounds { exec_bytes: RUN_BYTES, segment_bytes: RUN_SEGMENT_BYTES },
            // This module bounds the output of each service itself.
            finished_execs: usize::MAX,
            finished_bytes: u64::MAX,
        };
        let context = context.for_services(store::directory(context.state.as_fd())?, bounds)?;
        Ok(Self {
            execs: Arc::new(Execs::new(context, Arc::clone(reaper))),
            all: Mutex::default(),
            changed: watch::Sender::new(0),
            loaded: watch::Sender::new(false),
            checks: Semaphore::new(MAX_CHECKS),
            asking: tokio::sync::Mutex::default(),
            saving: tokio::sync::Mutex::default(),
            began: Instant::now(),
        })
    }

    /// The service of which an exec is a run.
    pub(crate) fn name_of(&self, run: ExecId) -> Option<ServiceName> {
        let is_run = |slot: &Slot| match slot {
            Slot::Kept(service) => service.runs.iter().any(|one| one.exec == run),
            Slot::Damaged { .. } => false,
        };
        self.all().slots.iter().find(|(_, slot)| is_run(slot)).map(|(name, _)| name.clone())
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the definitions are read.
    async fn when_loaded(&self) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self.loaded.subscribe().wait_for(|loaded| *loaded).await;
    }

    /// All services, ordered by name.
    pub(crate) async fn list(&self) -> Vec<ServiceView> {
        self.when_loaded().await;
        let all = self.all();
        all.slots.keys().filter_map(|name| all.view(name)).collect()
    }

    pub(crate) async fn get(&self, name: &ServiceName) -> Result<ServiceView, ApiError> {
        self.when_loaded().await;
        self.all().view(name).ok_or_else(|| absent(name))
    }

    /// Defines or redefines a service, and starts it. If the definition is the same, starts the service if it was
    /// stopped or given up, and otherwise changes nothing. The flag is true for a new service.
    pub(crate) async fn put(
        self: &Arc<Self>,
        name: &ServiceName,
        spec: ServiceSpec,
    ) -> Result<(ServiceView, bool), ApiError> {
        spec.check()?;
        self.when_loaded().await;
        let _turn = self.asking.lock().await;
        let runs = {
            let all = self.all();
            may_define(&all, name, &spec)?;
            all.get(name).map(|service| service.runs.iter().cloned().collect()).unwrap_or_default()
        };
        // On disk before it takes effect.
        self.write(name, Record::new(spec.clone(), true, runs)).await.map_err(|e| not_kept(name, &e))?;
        let mut all = self.all();
        let new = !all.slots.contains_key(name);
        let event = match all.get_mut(name) {
            Some(service) => {
                service.wanted = true;
                if service.spec == spec {
                    service.machine.state().is_stuck().then_some(Event::Start)
                } else {
                    service.spec = spec;
                    Some(Event::Replaced(rules(&service.spec)))
                }
            }
            None => {
                let service = Service::new(spec, true, VecDeque::new(), 0);
                all.slots.insert(name.clone(), Slot::Kept(Box::new(service)));
                Some(Event::Start)
            }
        };
        if let Some(event) = event {
            self.feed(&mut all, name, event);
        }
        let view = all.view(name).ok_or_else(|| absent(name))?;
        Ok((view, new))
    }

    /// Applies a verb. Returns the state right afterwards.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        name: &ServiceName,
        verb: ServiceVerb,
    ) -> Result<ServiceView, ApiError> {
        self.when_loaded().await;
        let _turn = self.asking.lock().await;
        {
            let mut all = self.all();
            if all.closing {
                return Err(ApiError::new(ErrorCode::BayState, "the bay is stopping", "start it again"));
            }
            match all.slots.get_mut(name) {
                None => return Err(absent(name)),
                Some(Slot::Damaged { .. }) => {
                    return Err(ApiError::new(
                        ErrorCode::ServiceFailed,
                        format!("the definition of the service {name} cannot be read"),
                        "add it again, or remove it",
                    ));
                }
                Some(Slot::Kept(service)) if service.removing => return Err(leaving(name)),
                Some(Slot::Kept(service)) => service.wanted = verb != ServiceVerb::Stop,
            }
            let event = match verb {
                ServiceVerb::Start => Event::Start,
                ServiceVerb::Stop => Event::Stop,
                ServiceVerb::Restart => Event::Restart,
            };
            self.feed(&mut all, name, event);
        }
        // The verb has taken effect. If recording it fails, the next guest does not know it, which is the smaller harm.
        self.save(name).await;
        self.all().view(name).ok_or_else(|| absent(name))
    }

    /// Removes a service: first its definition on disk, then its processes and its log. Returns the view while
    /// processes are left.
    pub(crate) async fn remove(
        self: &Arc<Self>,
        name: &ServiceName,
    ) -> Result<Option<ServiceView>, ApiError> {
        self.when_loaded().await;
        let _turn = self.asking.lock().await;
        {
            let all = self.all();
            if !all.slots.contains_key(name) {
                return Err(absent(name));
            }
            let needed: Vec<&str> = all
                .needed_by(name)
                .map(|(other, _)| other.as_str())
                .filter(|o| *o != name.as_str())
                .collect();
            if !needed.is_empty() {
                return Err(ApiError::new(
                    ErrorCode::ServiceInUse,
                    format!("the service {name} is needed by {}", needed.join(", ")),
                    "remove those first, or add them again without needing it",
                ));
            }
        }
        {
            let _alone = self.saving.lock().await;
            let (execs, name) = (Arc::clone(&self.execs), name.clone());
            let removed =
                tokio::task::spawn_blocking(move || store::remove(execs.context.state.as_fd(), &name));
            removed
                .await
                .map_err(|e| ApiError::internal(&e))?
                .map_err(|e| ApiError::new(ErrorCode::PoolDamaged, e.to_string(), "check the bay's disk"))?;
        }
        let mut all = self.all();
        match all.get_mut(name) {
            Some(service) => {
                service.removing = true;
                self.feed(&mut all, name, Event::Stop);
            }
            None => drop(all.slots.remove(name)),
        }
        self.changed.send_modify(|count| *count += 1);
        Ok(all.view(name))
    }

    /// Stops all services, each when no running service needs it. Does not wait longer than `within`.
    pub(crate) async fn stop(self: &Arc<Self>, within: Duration) {
        let deadline = Instant::now() + within;
        self.all().closing = true;
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            if self.stop_some() {
                return;
            }
            if tokio::time::timeout_at(deadline, changed.changed()).await.is_err() {
                self.execs.context.log.line("services.stop-late", format_args!("within={within:?}"));
                return;
            }
        }
    }

    /// Stops the services that no running service needs. True if no service is left.
    fn stop_some(self: &Arc<Self>) -> bool {
        let mut all = self.all();
        let next: Vec<ServiceName> = all
            .each()
            .filter(|(name, service)| {
                let state = service.machine.state();
                !matches!(state, ServiceState::Stopping | ServiceState::Stopped)
                    && !all.needed_by(name).any(|(_, other)| other.machine.has_run())
            })
            .map(|(name, _)| name.clone())
            .collect();
        for name in next {
            self.feed(&mut all, &name, Event::Stop);
        }
        !all.each().any(|(_, service)| service.machine.has_run())
    }

    fn now(&self) -> Moment {
        self.began.elapsed()
    }

    /// The time of day at a later moment.
    fn at(&self, moment: Moment) -> Option<Timestamp> {
        let ahead = SignedDuration::try_from(moment.saturating_sub(self.now())).ok()?;
        Timestamp::now().checked_add(ahead).ok()
    }

    /// Records the present state of a service on disk. A failure is logged.
    async fn save(&self, name: &ServiceName) {
        let _alone = self.saving.lock().await;
        let Some(record) = self.all().get(name).filter(|s| !s.removing).map(Service::record) else { return };
        if let Err(error) = self.write_now(name, record).await {
            self.execs.context.log.line("service.unsaved", format_args!("service={name} error={error}"));
        }
    }

    async fn write(&self, name: &ServiceName, record: Record) -> io::Result<()> {
        let _alone = self.saving.lock().await;
        self.write_now(name, record).await
    }

    async fn write_now(&self, name: &ServiceName, record: Record) -> io::Result<()> {
        let (execs, name) = (Arc::clone(&self.execs), name.clone());
        let written =
            tokio::task::spawn_blocking(move || store::save(execs.context.state.as_fd(), &name, &record));
        written.await.map_err(io::Error::other)?
    }
}

/// Refuses a definition that does not fit the other services.
fn may_define(all: &All, name: &ServiceName, spec: &ServiceSpec) -> Result<(), ApiError> {
    if all.closing {
        return Err(ApiError::new(ErrorCode::BayState, "the bay is stopping", "start it again"));
    }
    if all.get(name).is_some_and(|service| service.removing) {
        return Err(leaving(name));
    }
    if !all.slots.contains_key(name) && all.slots.len() >= MAX_SERVICES {
        return Err(ApiError::new(
            ErrorCode::NotEnough,
            format!("the bay has {MAX_SERVICES} services already"),
            "remove one with `bay services rm`",
        ));
    }
    if let Some(unknown) = spec.needs.iter().find(|need| *need != name && !all.slots.contains_key(*need)) {
        return Err(ApiError::new(
            ErrorCode::InvalidInput,
            format!("the service {name} needs {unknown}, which does not exist"),
            "add that one first; `bay services ls` lists what there is",
        ));
    }
    let mut graph: dependencies::Needs<'_> = all.each().map(|(n, s)| (n, s.spec.needs.as_slice())).collect();
    graph.insert(name, &spec.needs);
    if let Some(way) = dependencies::cycle(&graph, name) {
        let way: Vec<&str> = way.iter().map(ServiceName::as_str).collect();
        return Err(ApiError::new(
            ErrorCode::InvalidInput,
            format!("the service {name} would wait for itself: {}", way.join(" needs ")),
            "leave one of these needs out",
        ));
    }
    Ok(())
}

fn absent(name: &ServiceName) -> ApiError {
    ApiError::new(
        ErrorCode::ServiceNotFound,
        format!("there is no service {name} in the bay"),
        "`bay services ls NAME` lists them",
    )
}

fn leaving(name: &ServiceName) -> ApiError {
    ApiError::new(
        ErrorCode::BayState,
        format!("the service {name} is being removed"),
        "repeat the command in a moment",
    )
}

fn not_kept(name: &ServiceName, error: &io::Error) -> ApiError {
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::PoolFull,
        io::ErrorKind::ReadOnlyFilesystem => ErrorCode::PoolReadOnly,
        _ => ErrorCode::PoolDamaged,
    };
    ApiError::new(
        code,
        format!("the definition of the service {name} could not be written down: {error}"),
        "free some of the bay's disk and repeat the command; nothing was changed",
    )
}
