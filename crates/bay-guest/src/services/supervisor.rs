//! Carries out the actions of the state machines, and passes the results back to them as events.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bay_types::ExecId;
use bay_types::exec::ExecSpec;
use bay_types::guest::GuestEvent;
use bay_types::service::{KEPT_RUNS, ServiceName, ServiceRun, ServiceSpec, ServiceState};
use jiff::Timestamp;
use tokio::sync::watch;

use super::state_machine::{Action, Event};
use super::store;
use super::{All, EARLIER_RUNS_BYTES, RUN_BYTES, Service, Services, Slot, health};
use crate::execs::{Exec, Found};
use crate::spool;

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGCONT: i32 = 18;
/// The variable that gives a service its name. If the definition sets the same variable, its value is used.
const NAME_VARIABLE: &str = "BAY_SERVICE";
/// Wait before the first health check of a run. It doubles after each failed check, up to the interval.
const FIRST_CHECK: Duration = Duration::from_millis(100);
/// How often the supervisor looks for processes that a run left. It is not always notified of their end: the end of a
/// traced process is reported to its tracer.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Services {
    /// Reads what earlier guests left, and starts the services that should run.
    pub(crate) async fn load(self: Arc<Self>) {
        let execs = Arc::clone(&self.execs);
        let cleaner = Arc::clone(&execs);
        tokio::spawn(async move { cleaner.remove_empty_leaves().await });
        let read = tokio::task::spawn_blocking(move || {
            execs.adopt_from_disk();
            let dir = execs.context.state.as_fd();
            let found: Vec<_> = store::load(dir)
                .into_iter()
                .map(|(name, record)| {
                    let slot = match record {
                        Ok(record) => Slot::Kept(Box::new(from_record(dir, record))),
                        Err(why) => {
                            execs
                                .context
                                .log
                                .line("service.damaged", format_args!("service={name} why={why}"));
                            Slot::Damaged { why: health::clip(&why), since: Timestamp::now() }
                        }
                    };
                    (name, slot)
                })
                .collect();
            let of_somebody = |id: &ExecId| {
                found.iter().any(|(_, slot)| match slot {
                    Slot::Kept(service) => service.runs.iter().any(|run| run.exec == *id),
                    Slot::Damaged { .. } => false,
                })
            };
            // Deletes logs of services that no longer exist.
            for id in spool::list(dir).unwrap_or_default().iter().filter(|id| !of_somebody(id)) {
                let _ = spool::remove_exec(dir, *id);
            }
            found
        });
        // The task ends early only because of a defect. Then the bay goes on without services.
        let found = read.await.unwrap_or_default();
        {
            let mut all = self.all();
            all.slots.extend(found);
            let names: Vec<ServiceName> = all.slots.keys().cloned().collect();
            for name in names {
                self.feed(&mut all, &name, Event::Timer);
            }
        }
        self.loaded.send_replace(true);
    }

    /// Gives an event to a service's machine, carries out the action, and informs the services that need this one.
    pub(super) fn feed(self: &Arc<Self>, all: &mut All, name: &ServiceName, event: Event) {
        let mut queue = VecDeque::from([(name.clone(), event)]);
        while let Some((name, event)) = queue.pop_front() {
            let Some(met) = all.get(&name).map(|service| all.needs_met(service)) else { continue };
            let (now, closing) = (self.now(), all.closing);
            let Some(service) = all.get_mut(&name) else { continue };
            let before = service.machine.state();
            for event in [Event::Needs(met), event] {
                if let Some(action) = service.machine.step(now, event) {
                    self.act(service, &name, action);
                }
            }
            let state = service.machine.state();
            if !service.machine.has_run() {
                service.over = None;
            }
            self.set_timer(service, &name);
            // A stopped service that is being removed has no further changes.
            let leaves = service.removing && state == ServiceState::Stopped;
            if state == before && !leaves {
                continue;
            }
            service.since = Timestamp::now();
            service.retry_at = service.machine.retry_at().and_then(|at| self.at(at));
            // A stop of the whole bay, or a removal, is recorded as such.
            if state != before && state.is_recorded() && !closing && !leaves {
                // Nobody receives it while no daemon is connected.
                let _ = self.reports.send(GuestEvent::ServiceReached {
                    service: name.clone(),
                    state,
                    reason: health::clip(service.machine.reason()),
                    restarts: service.machine.restarts(),
                });
            }
            if leaves {
                let old: Vec<ExecId> = service.runs.iter().map(|run| run.exec).collect();
                all.slots.remove(&name);
                tokio::spawn(Arc::clone(self).forget(old));
            }
            let waiting = all.needed_by(&name).filter(|(_, s)| s.machine.state() == ServiceState::Waiting);
            // An event makes the machine check its needs again.
            queue.extend(waiting.map(|(other, _)| (other.clone(), Event::Timer)));
        }
        self.changed.send_modify(|count| *count += 1);
    }

    /// Gives an event of a run to the machine. Drops it and returns false if the service has a newer run.
    fn feed_run(self: &Arc<Self>, name: &ServiceName, run: u64, event: Event) -> bool {
        let mut all = self.all();
        let current = all.get(name).is_some_and(|service| service.run == run && service.machine.has_run());
        if current {
            self.feed(&mut all, name, event);
        }
        current
    }

    fn act(self: &Arc<Self>, service: &mut Service, name: &ServiceName, action: Action) {
        match action {
            Action::Spawn => {
                service.run += 1;
                let spec = named(service.spec.clone(), name);
                let exec = spec.exec(&spec.argv);
                tokio::spawn(Arc::clone(self).start_run(name.clone(), service.run, exec));
            }
            // Without an exec, the program is only being started. The machine asks again when it runs.
            Action::Terminate => {
                if let Some(exec) = current(service) {
                    exec.signal_by_caller(SIGTERM, true);
                    // A stopped process does not handle TERM.
                    exec.signal_tree(SIGCONT);
                }
            }
            Action::Kill => {
                if let Some(exec) = current(service) {
                    exec.signal_by_caller(SIGKILL, true);
                }
            }
        }
    }

    /// Sets the timer for the machine's deadline.
    fn set_timer(self: &Arc<Self>, service: &mut Service, name: &ServiceName) {
        let wanted = service.machine.deadline();
        if service.timer.as_ref().map(|(at, _)| *at) == wanted {
            return;
        }
        if let Some((_, old)) = service.timer.take() {
            old.abort();
        }
        if let Some(at) = wanted {
            let (services, name) = (Arc::clone(self), name.clone());
            let task = tokio::spawn(async move {
                tokio::time::sleep_until(services.began + at).await;
                let mut all = services.all();
                if let Some(service) = all.get_mut(&name) {
                    // The timer is this task; a new deadline makes a new one.
                    service.timer = None;
                    services.feed(&mut all, &name, Event::Timer);
                }
            });
            service.timer = Some((at, task.abort_handle()));
        }
    }

    async fn start_run(self: Arc<Self>, name: ServiceName, run: u64, spec: ExecSpec) {
        let exec = match self.execs.start(spec).await {
            Ok((Found::Live(exec), _)) => exec,
            Ok((Found::Finished(_), _)) => return,
            Err(error) => {
                self.feed_run(&name, run, Event::StartFailed(health::clip(&error.message)));
                return;
            }
        };
        let (over, run_is_over) = watch::channel(());
        let old = {
            let mut all = self.all();
            let Some(service) = all.get_mut(&name).filter(|s| s.run == run && s.machine.has_run()) else {
                exec.signal_by_caller(SIGKILL, true);
                return;
            };
            let old = begin(service, Arc::clone(&exec));
            service.over = Some(over);
            let spec = named(service.spec.clone(), &name);
            self.feed(&mut all, &name, Event::Started);
            if spec.health.is_some() {
                let services = Arc::clone(&self);
                tokio::spawn(services.check(name.clone(), run, spec, run_is_over.clone()));
            }
            old
        };
        tokio::spawn(Arc::clone(&self).watch_run(name.clone(), run, exec, run_is_over));
        self.save(&name).await;
        self.forget(old).await;
    }

    /// Waits for the end of a run: first of its first process, then of all processes that it left.
    async fn watch_run(
        self: Arc<Self>,
        name: ServiceName,
        run: u64,
        exec: Arc<Exec>,
        mut run_is_over: watch::Receiver<()>,
    ) {
        let ended =
            exec.life.subscribe().wait_for(|life| life.ended.is_some()).await.ok().and_then(|l| l.ended);
        let Some(ended) = ended else { return };
        if let Some(service) = self.all().get_mut(&name)
            && let Some(view) = service.runs.iter_mut().find(|view| view.exec == exec.id())
        {
            (view.ended_at, view.exit) = (Some(ended.at), Some(ended.exit));
        }
        let others = exec.tree_size();
        self.feed_run(&name, run, Event::Ended { exit: ended.exit, others });
        if others == 0 {
            return;
        }
        loop {
            let reaped = self.execs.reaper.reaped.notified();
            if exec.tree_size() == 0 {
                self.feed_run(&name, run, Event::Emptied);
                return;
            }
            tokio::select! {
                _ = tokio::time::timeout(LOOK_AGAIN, reaped) => {}
                // The machine has given the run up.
                _ = run_is_over.changed() => return,
            }
        }
    }

    /// Checks the health of a run repeatedly, until the run is over.
    async fn check(
        self: Arc<Self>,
        name: ServiceName,
        run: u64,
        spec: ServiceSpec,
        mut run_is_over: watch::Receiver<()>,
    ) {
        let Some(how) = &spec.health else { return };
        let interval = Duration::from_millis(how.interval_ms);
        let mut wait = FIRST_CHECK;
        loop {
            tokio::select! {
                () = tokio::time::sleep(wait.min(interval)) => {}
                _ = run_is_over.changed() => return,
            }
            let Ok(turn) = self.checks.acquire().await else { return };
            // Not cancelled if the run ends meanwhile: the supervisor must wait for a check's command.
            let outcome = health::check(&self.execs, &spec, how).await;
            drop(turn);
            wait = if outcome.is_ok() { interval } else { wait * 2 }.min(interval);
            let event = outcome.map_or_else(Event::CheckFailed, |()| Event::Healthy);
            if !self.feed_run(&name, run, event) {
                return;
            }
        }
    }

    /// Deletes the output of runs that are no longer kept.
    async fn forget(self: Arc<Self>, old: Vec<ExecId>) {
        for id in old {
            if let Err(error) = self.execs.forget(id).await {
                self.execs
                    .context
                    .log
                    .line("service.log-kept", format_args!("exec={id} why={}", error.message));
            }
        }
    }
}

/// The definition with a variable that gives the service and its checks the service's name.
fn named(mut spec: ServiceSpec, name: &ServiceName) -> ServiceSpec {
    spec.env.insert(0, (NAME_VARIABLE.to_owned(), name.to_string()));
    spec
}

/// The exec of the present run.
fn current(service: &Service) -> Option<&Arc<Exec>> {
    service.exec.as_ref().filter(|_| service.over.is_some())
}

/// Records a new run. Returns the earlier runs that exceed the bounds.
fn begin(service: &mut Service, exec: Arc<Exec>) -> Vec<ExecId> {
    service.runs.push_back(ServiceRun {
        exec: exec.id(),
        started_at: exec.started_at,
        log_offset: service.log_end(),
        ended_at: None,
        exit: None,
    });
    service.exec = Some(exec);
    let mut old = Vec::new();
    while service.runs.len() > 1
        && (service.runs.len() > KEPT_RUNS || earlier_bytes(&service.runs) > EARLIER_RUNS_BYTES)
    {
        old.extend(service.runs.pop_front().map(|run| run.exec));
    }
    old
}

/// Bytes that all runs but the last have on disk.
fn earlier_bytes(runs: &VecDeque<ServiceRun>) -> u64 {
    let lengths = runs.iter().zip(runs.iter().skip(1)).map(|(run, next)| next.log_offset - run.log_offset);
    lengths.map(|length| length.min(RUN_BYTES)).sum()
}

/// A service as an earlier guest left it, with the ends of its runs as far as they are known.
pub(super) fn from_record(dir: std::os::fd::BorrowedFd<'_>, record: store::Record) -> Service {
    let mut runs: VecDeque<ServiceRun> = VecDeque::new();
    let mut last_bytes = 0;
    for mut run in record.runs {
        let Ok(status) = spool::read_status(dir, run.exec) else { continue };
        run.exit = status.exit.or(run.exit);
        run.ended_at = status.ended_at.or(run.ended_at);
        // A person may have edited the file. Offsets must not decrease.
        run.log_offset = run.log_offset.max(runs.back().map_or(0, |before| before.log_offset));
        last_bytes = status.output_bytes;
        runs.push_back(run);
    }
    Service::new(record.spec, record.wanted, runs, last_bytes)
}
