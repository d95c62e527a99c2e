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

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bay_types::guest::GuestEvent;
use bay_types::service::{MAX_SERVICES, ServiceName, ServiceSpec, ServiceState, ServiceVerb, ServiceView};
use bay_types::{ApiError, ErrorCode, ExecId};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::time::Instant;

mod dependencies;
mod health;
mod log;
mod offline;
mod routes;
mod state_machine;
mod store;
mod supervisor;
mod table;

pub use offline::{stored_runs, stored_services};
pub(crate) use routes::{define, definition, parse, route};

use state_machine::{Event, Moment};
use store::Record;
use table::{All, Service, Slot, rules};

use crate::execs::{Bounds, Execs};
use crate::spool;

/// Most output kept of one run.
const RUN_BYTES: u64 = 32 << 20;
/// Size of the segments in which the beginning of a run's output is dropped.
const RUN_SEGMENT_BYTES: u64 = 8 << 20;
/// Most output kept of all earlier runs of one service together.
const EARLIER_RUNS_BYTES: u64 = 32 << 20;
/// Health checks at the same time. Further checks wait for their turn.
const MAX_CHECKS: usize = 8;

/// Every service of the bay.
#[derive(Debug)]
pub(crate) struct Services {
    execs: Arc<Execs>,
    /// What the daemon gets to know, if one is connected.
    reports: broadcast::Sender<GuestEvent>,
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

impl Services {
    /// See [`Execs::mark_services`].
    pub(crate) fn mark_runs(&self) {
        self.execs.mark_services();
    }

    /// The services of the bay that has these execs; none is loaded yet.
    pub(crate) fn open(of_bay: &Execs) -> io::Result<Self> {
        let bounds = Bounds {
            output: spool::Bounds { exec_bytes: RUN_BYTES, segment_bytes: RUN_SEGMENT_BYTES },
            // This module bounds the output of each service itself.
            finished_execs: usize::MAX,
            finished_bytes: u64::MAX,
        };
        let context = of_bay.context.for_services(store::directory(of_bay.context.state.as_fd())?, bounds)?;
        Ok(Self {
            execs: Arc::new(Execs::new(context, Arc::clone(&of_bay.reaper))),
            reports: of_bay.events.clone(),
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
                Some(Slot::Kept(service)) if service.removing => return Err(being_removed(name)),
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

/// Refuses a definition that does not fit the other services, or comes while the bay stops.
fn may_define(all: &All, name: &ServiceName, spec: &ServiceSpec) -> Result<(), ApiError> {
    if all.closing {
        return Err(ApiError::new(ErrorCode::BayState, "the bay is stopping", "start it again"));
    }
    if all.get(name).is_some_and(|service| service.removing) {
        return Err(being_removed(name));
    }
    if !all.slots.contains_key(name) && all.slots.len() >= MAX_SERVICES {
        return Err(ApiError::new(
            ErrorCode::NotEnough,
            format!("the bay has {MAX_SERVICES} services already"),
            "remove one first",
        ));
    }
    if let Some(unknown) = spec.needs.iter().find(|need| *need != name && !all.slots.contains_key(*need)) {
        return Err(ApiError::new(
            ErrorCode::InvalidInput,
            format!("the service {name} needs {unknown}, which does not exist"),
            "add that one first",
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
        "the list of the bay's services has their names",
    )
}

fn being_removed(name: &ServiceName) -> ApiError {
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
