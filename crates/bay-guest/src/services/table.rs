//! The table of services: definitions, their state, and how they are shown.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bay_types::service::{ServiceName, ServiceRun, ServiceSpec, ServiceState, ServiceView};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::state_machine::{Machine, Moment, Rules};
use super::store::Record;
use crate::execs::Exec;

#[derive(Debug, Default)]
pub(super) struct All {
    pub(super) slots: BTreeMap<ServiceName, Slot>,
    /// The bay is stopping, so no run is started.
    pub(super) closing: bool,
}

#[derive(Debug)]
pub(super) enum Slot {
    Kept(Box<Service>),
    Damaged { why: String, since: Timestamp },
}

#[derive(Debug)]
pub(super) struct Service {
    pub(super) spec: ServiceSpec,
    pub(super) machine: Machine,
    pub(super) wanted: bool,
    pub(super) since: Timestamp,
    pub(super) retry_at: Option<Timestamp>,
    /// Counts runs. Events of an earlier run are recognised by their count.
    pub(super) run: u64,
    /// Dropped when the run is over, which ends its health checks.
    pub(super) over: Option<watch::Sender<()>>,
    /// The latest run that this guest started. Kept after its end, because it knows the extent of its output.
    pub(super) exec: Option<Arc<Exec>>,
    /// Oldest first.
    pub(super) runs: VecDeque<ServiceRun>,
    /// Bytes of output of the last of `runs`, if an earlier guest started it.
    pub(super) earlier_bytes: u64,
    pub(super) timer: Option<(Moment, AbortHandle)>,
    pub(super) removing: bool,
}

impl Service {
    pub(super) fn new(
        spec: ServiceSpec,
        wanted: bool,
        runs: VecDeque<ServiceRun>,
        earlier_bytes: u64,
    ) -> Self {
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

    pub(super) fn record(&self) -> Record {
        Record::new(self.spec.clone(), self.wanted, self.runs.iter().cloned().collect())
    }

    /// The offset at which the log ends now.
    pub(super) fn log_end(&self) -> u64 {
        let last = self.exec.as_ref().map_or(self.earlier_bytes, |exec| exec.life.borrow().output_end);
        self.runs.back().map_or(0, |run| run.log_offset.saturating_add(last))
    }

    pub(super) fn log_start(&self) -> u64 {
        let dropped = match (&self.exec, self.runs.len()) {
            (Some(exec), 1) => exec.life.borrow().output_start,
            _ => 0,
        };
        self.runs.front().map_or(0, |run| run.log_offset.saturating_add(dropped))
    }
}

pub(super) fn rules(spec: &ServiceSpec) -> Rules {
    Rules {
        restart: spec.restart,
        start_period: spec.health.as_ref().map(|h| Duration::from_millis(h.start_period_ms)),
        stop_grace: Duration::from_millis(spec.stop_grace_ms),
    }
}

impl All {
    pub(super) fn get(&self, name: &ServiceName) -> Option<&Service> {
        match self.slots.get(name) {
            Some(Slot::Kept(service)) => Some(service),
            _ => None,
        }
    }

    pub(super) fn get_mut(&mut self, name: &ServiceName) -> Option<&mut Service> {
        match self.slots.get_mut(name) {
            Some(Slot::Kept(service)) => Some(service),
            _ => None,
        }
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (&ServiceName, &Service)> {
        self.slots.iter().filter_map(|(name, slot)| match slot {
            Slot::Kept(service) => Some((name, &**service)),
            Slot::Damaged { .. } => None,
        })
    }

    pub(super) fn state_of(&self, name: &ServiceName) -> Option<ServiceState> {
        match self.slots.get(name)? {
            Slot::Kept(service) => Some(service.machine.state()),
            Slot::Damaged { .. } => Some(ServiceState::Failed),
        }
    }

    pub(super) fn needs_met(&self, service: &Service) -> bool {
        !self.closing
            && service.spec.needs.iter().all(|need| self.state_of(need).is_some_and(ServiceState::satisfies))
    }

    pub(super) fn needed_by(&self, name: &ServiceName) -> impl Iterator<Item = (&ServiceName, &Service)> {
        self.each().filter(move |(_, service)| service.spec.needs.contains(name))
    }

    pub(super) fn view(&self, name: &ServiceName) -> Option<ServiceView> {
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

    pub(super) fn waits_for(&self, service: &Service) -> String {
        let unmet = service.spec.needs.iter().filter_map(|need| match self.state_of(need) {
            Some(state) if state.satisfies() => None,
            Some(state) => Some(format!("{need} ({state})")),
            None => Some(format!("{need} (which does not exist)")),
        });
        format!("it waits for {}", unmet.collect::<Vec<_>>().join(", "))
    }
}
