//! Decides what a service does next: a pure function of events, tested without processes.
//!
//! The [`Machine`] takes events, each with its time, and returns actions. A service never has more than one run:
//! [`Action::Spawn`] is returned only when the run before is over. A run is over when its first process has ended and no
//! process that it started is left, or when a killed process hangs in the kernel and the machine has given it up.
//!
//! ```text
//!  phase         event                      next phase     action
//!  Waiting       needs are met              Starting       Spawn
//!  Starting      program runs                              (health checks begin, or the settling time)
//!                healthy, or settled        Ready
//!                check failed, start period over   Unhealthy
//!  Ready         third failed check         Unhealthy
//!  Unhealthy     healthy                    Ready
//!  these three   ended with 0, others live  the same phase: the service forked, and runs while its processes live
//!                ended badly, others live   Stopping       Kill: what is left of a failed run is killed
//!                ended, nothing left        Done · Failed · BackingOff · CrashLoop, by policy and history
//!                stop, restart, replaced    Stopping       Terminate
//!  Stopping      grace is over                             Kill
//!                nothing left               Stopped, or the phase that was asked for
//!  BackingOff,   time is up                 Starting or Waiting
//!  CrashLoop
//! ```

use std::time::Duration;

use bay_types::exec::Exit;
use bay_types::service::{Restart, ServiceState};

/// Time since a fixed start; it never decreases.
pub(super) type Moment = Duration;

/// Wait after the first end. It doubles after each further end.
pub(super) const BACK_OFF_FIRST: Duration = Duration::from_millis(500);
/// Longest wait before another start.
pub(super) const BACK_OFF_MOST: Duration = Duration::from_secs(30);
/// If a service is ready for this long, its next back-off begins with the shortest wait.
pub(super) const FAILURES_RESET_AFTER: Duration = Duration::from_secs(60);
/// A run that ends within this time of its start ended quickly.
pub(super) const QUICK: Duration = Duration::from_secs(10);
/// Quick ends in a row that make a crash loop.
pub(super) const CRASH_LOOP_AFTER: u32 = 5;
/// Wait between the runs of a crash loop: long enough to cost nothing, short enough that the service returns soon after
/// its cause is fixed.
pub(super) const CRASH_LOOP_RETRY: Duration = Duration::from_secs(300);
/// How long a service without a health check must run to count as ready.
pub(super) const SETTLE: Duration = Duration::from_millis(500);
/// Failed checks in a row that make a ready service unhealthy.
pub(super) const UNHEALTHY_AFTER: u32 = 3;
/// How long processes may take to end after KILL. Then a process hangs in the kernel, and the machine gives the run up.
pub(super) const KILL_GRACE: Duration = Duration::from_secs(5);

/// The parts of a definition that the machine uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) restart: Restart,
    /// With a health check: for how long after the start failures do not count.
    pub(super) start_period: Option<Duration>,
    pub(super) stop_grace: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// Whether all services that this one needs are ready. Used only before a start.
    Needs(bool),
    /// The program of the run is running.
    Started,
    /// The program could not be started.
    StartFailed(String),
    Healthy,
    CheckFailed(String),
    /// The first process of the run ended; this many other processes still run.
    Ended {
        exit: Exit,
        others: usize,
    },
    /// No process of the run is left. Follows an [`Event::Ended`] with other processes.
    Emptied,
    /// The time of [`Machine::deadline`] has come.
    Timer,
    // Requests of people.
    Start,
    Stop,
    Restart,
    /// The definition was replaced.
    Replaced(Rules),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Spawn,
    /// Send TERM to all processes of the run.
    Terminate,
    /// Send KILL to all processes of the run.
    Kill,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Waiting,
    Starting,
    Ready { since: Moment },
    Unhealthy,
    Stopping { killed: bool, until: Moment, then: Then },
    BackingOff { until: Moment },
    CrashLoop { until: Moment },
    Stopped,
    Done,
    Failed,
}

/// What follows when no process of a run is left.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Then {
    Rest,
    StartAnew,
    /// The run had ended by itself, in this way. The policy decides.
    AfterEnd(Exit),
}

/// The state of one service.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    rules: Rules,
    phase: Phase,
    reason: String,
    needs_met: bool,
    /// When the present run began, and when its program started to run.
    begun: Moment,
    running_since: Option<Moment>,
    /// The first process ended with 0 and left this many other processes.
    forked: Option<usize>,
    /// Failed checks in a row.
    failed_checks: u32,
    /// Ends in a row without the service being ready for [`FAILURES_RESET_AFTER`].
    attempt: u32,
    quick: u32,
    restarts: u64,
}

impl Machine {
    /// A service that was just defined or loaded. `wanted` says whether it should run.
    pub(super) fn new(rules: Rules, wanted: bool) -> Self {
        let (phase, reason) = if wanted {
            (Phase::Waiting, "it is about to be started")
        } else {
            (Phase::Stopped, "it was stopped on request and stays so until it is started")
        };
        Self {
            rules,
            phase,
            reason: reason.to_owned(),
            needs_met: false,
            begun: Moment::ZERO,
            running_since: None,
            forked: None,
            failed_checks: 0,
            attempt: 0,
            quick: 0,
            restarts: 0,
        }
    }

    pub(super) fn state(&self) -> ServiceState {
        match self.phase {
            Phase::Waiting => ServiceState::Waiting,
            Phase::Starting => ServiceState::Starting,
            Phase::Ready { .. } => ServiceState::Ready,
            Phase::Unhealthy => ServiceState::Unhealthy,
            Phase::Stopping { .. } => ServiceState::Stopping,
            Phase::BackingOff { .. } => ServiceState::BackingOff,
            Phase::CrashLoop { .. } => ServiceState::CrashLoop,
            Phase::Stopped => ServiceState::Stopped,
            Phase::Done => ServiceState::Done,
            Phase::Failed => ServiceState::Failed,
        }
    }

    pub(super) fn reason(&self) -> &str {
        &self.reason
    }

    pub(super) fn restarts(&self) -> u64 {
        self.restarts
    }

    pub(super) fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether processes of a run may be alive.
    pub(super) fn has_run(&self) -> bool {
        matches!(
            self.phase,
            Phase::Starting | Phase::Ready { .. } | Phase::Unhealthy | Phase::Stopping { .. }
        )
    }

    /// When [`Event::Timer`] is due.
    pub(super) fn deadline(&self) -> Option<Moment> {
        match self.phase {
            Phase::Starting if self.rules.start_period.is_none() => {
                self.running_since.map(|since| since + SETTLE)
            }
            Phase::Stopping { until, .. } | Phase::BackingOff { until } | Phase::CrashLoop { until } => {
                Some(until)
            }
            _ => None,
        }
    }

    /// When the machine starts it again by itself.
    pub(super) fn retry_at(&self) -> Option<Moment> {
        match self.phase {
            Phase::BackingOff { until } | Phase::CrashLoop { until } => Some(until),
            _ => None,
        }
    }

    /// Takes one event, and returns at most one action.
    pub(super) fn step(&mut self, now: Moment, event: Event) -> Option<Action> {
        match event {
            Event::Needs(met) => self.needs(now, met),
            Event::Started => self.started(now),
            Event::StartFailed(why) => self.start_failed(now, &why),
            Event::Healthy => self.healthy(now),
            Event::CheckFailed(why) => self.failed_checks(now, &why),
            Event::Ended { exit, others } => self.ended(now, exit, others),
            Event::Emptied => self.emptied(now),
            Event::Timer => self.timer(now),
            Event::Start => self.start(now),
            Event::Stop => self.stop(now),
            Event::Restart => self.restart(now, "it is restarted on request"),
            Event::Replaced(rules) => {
                self.rules = rules;
                self.restart(now, "its definition was replaced")
            }
        }
    }

    fn enter(&mut self, phase: Phase, reason: impl Into<String>) {
        self.phase = phase;
        self.reason = reason.into();
    }

    /// Starts a run, or waits for the services that it needs.
    fn begin(&mut self, now: Moment) -> Option<Action> {
        if !self.needs_met {
            self.enter(Phase::Waiting, "a service that it needs is not ready");
            return None;
        }
        self.begun = now;
        self.running_since = None;
        self.forked = None;
        self.failed_checks = 0;
        self.enter(Phase::Starting, "its program is being started");
        Some(Action::Spawn)
    }

    /// A person asked for a start or restart, so earlier failures do not count any more.
    fn reset_failures(&mut self) {
        self.attempt = 0;
        self.quick = 0;
    }

    fn needs(&mut self, now: Moment, met: bool) -> Option<Action> {
        self.needs_met = met;
        if met && self.phase == Phase::Waiting { self.begin(now) } else { None }
    }

    fn started(&mut self, now: Moment) -> Option<Action> {
        match &self.phase {
            Phase::Starting => {
                self.running_since = Some(now);
                self.reason = match self.rules.start_period {
                    Some(_) => "its program runs; its health check has not passed yet".to_owned(),
                    None => "its program runs".to_owned(),
                };
                None
            }
            // The request to end came while there was no process to signal.
            Phase::Stopping { killed: false, .. } => Some(Action::Terminate),
            Phase::Stopping { killed: true, .. } => Some(Action::Kill),
            _ => None,
        }
    }

    fn start_failed(&mut self, now: Moment, why: &str) -> Option<Action> {
        match &self.phase {
            Phase::Starting => {
                if self.rules.restart == Restart::Never {
                    self.enter(Phase::Failed, format!("{why}; its restart policy is never"));
                    return None;
                }
                self.retry(now, why);
                None
            }
            Phase::Stopping { then: Then::StartAnew, .. } => self.begin(now),
            Phase::Stopping { .. } => {
                self.rest();
                None
            }
            _ => None,
        }
    }

    fn healthy(&mut self, now: Moment) -> Option<Action> {
        self.failed_checks = 0;
        match self.phase {
            Phase::Starting | Phase::Unhealthy => {
                let reason = self.with_fork("its health check passes");
                self.enter(Phase::Ready { since: now }, reason);
            }
            // The reason may still quote failed checks.
            Phase::Ready { .. } => self.reason = self.with_fork("its health check passes"),
            _ => {}
        }
        None
    }

    fn failed_checks(&mut self, now: Moment, why: &str) -> Option<Action> {
        self.failed_checks = self.failed_checks.saturating_add(1);
        match self.phase {
            Phase::Starting => {
                let over = self.begun + self.rules.start_period.unwrap_or_default();
                if now >= over {
                    let reason = format!("its health check has not passed since its start: {why}");
                    self.enter(Phase::Unhealthy, self.with_fork(&reason));
                } else {
                    self.reason = self.with_fork(&format!("its health check has not passed yet: {why}"));
                }
            }
            Phase::Ready { .. } if self.failed_checks >= UNHEALTHY_AFTER => {
                self.leave_ready(now);
                let reason = format!("its health check fails: {why}");
                self.enter(Phase::Unhealthy, self.with_fork(&reason));
            }
            Phase::Ready { .. } => {
                let reason = format!(
                    "its health check failed {} of {UNHEALTHY_AFTER} times: {why}",
                    self.failed_checks
                );
                self.reason = self.with_fork(&reason);
            }
            Phase::Unhealthy => self.reason = self.with_fork(&format!("its health check fails: {why}")),
            _ => {}
        }
        None
    }

    fn ended(&mut self, now: Moment, exit: Exit, others: usize) -> Option<Action> {
        match self.phase {
            Phase::Starting | Phase::Ready { .. } | Phase::Unhealthy => {
                if others == 0 {
                    return self.after_end(now, exit);
                }
                if is_success(exit) {
                    self.forked = Some(others);
                    self.reason = self.with_fork("it runs");
                    return None;
                }
                self.leave_ready(now);
                let reason = format!("{}; the {} it left are killed", describe_exit(exit), processes(others));
                let phase =
                    Phase::Stopping { killed: true, until: now + KILL_GRACE, then: Then::AfterEnd(exit) };
                self.enter(phase, reason);
                Some(Action::Kill)
            }
            Phase::Stopping { .. } if others == 0 => self.cleared(now),
            _ => None,
        }
    }

    fn emptied(&mut self, now: Moment) -> Option<Action> {
        match self.phase {
            Phase::Starting | Phase::Ready { .. } | Phase::Unhealthy if self.forked.is_some() => self
                .after_end(
                    now,
                    Exit { reason: bay_types::exec::EndReason::Exited, code: Some(0), signal: None },
                ),
            Phase::Stopping { .. } => self.cleared(now),
            _ => None,
        }
    }

    fn timer(&mut self, now: Moment) -> Option<Action> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        match self.phase.clone() {
            Phase::Starting => {
                let reason = self.with_fork("its program runs; it has no health check");
                self.enter(Phase::Ready { since: now }, reason);
                None
            }
            Phase::Stopping { killed: false, then, .. } => {
                let reason = format!("{}; it did not end by TERM and is killed", self.reason);
                self.enter(Phase::Stopping { killed: true, until: now + KILL_GRACE, then }, reason);
                Some(Action::Kill)
            }
            // A process hangs in the kernel and ends only with the bay. Waiting for it helps nobody.
            Phase::Stopping { killed: true, .. } => self.cleared(now),
            Phase::BackingOff { .. } | Phase::CrashLoop { .. } => {
                self.restarts += 1;
                self.begin(now)
            }
            _ => None,
        }
    }

    fn start(&mut self, now: Moment) -> Option<Action> {
        match &mut self.phase {
            Phase::Stopped
            | Phase::Failed
            | Phase::Done
            | Phase::BackingOff { .. }
            | Phase::CrashLoop { .. } => {
                self.reset_failures();
                self.begin(now)
            }
            Phase::Stopping { then, .. } => {
                *then = Then::StartAnew;
                self.attempt = 0;
                self.quick = 0;
                "it is ending, to be started again".clone_into(&mut self.reason);
                None
            }
            Phase::Waiting | Phase::Starting | Phase::Ready { .. } | Phase::Unhealthy => None,
        }
    }

    fn stop(&mut self, now: Moment) -> Option<Action> {
        match &mut self.phase {
            Phase::Starting | Phase::Ready { .. } | Phase::Unhealthy => {
                self.terminate(now, Then::Rest, "it was asked to stop")
            }
            Phase::Stopping { then, .. } => {
                *then = Then::Rest;
                "it was asked to stop".clone_into(&mut self.reason);
                None
            }
            _ => {
                self.rest();
                None
            }
        }
    }

    fn restart(&mut self, now: Moment, why: &str) -> Option<Action> {
        match self.phase {
            Phase::Starting | Phase::Ready { .. } | Phase::Unhealthy => {
                self.reset_failures();
                self.terminate(now, Then::StartAnew, why)
            }
            Phase::Waiting => None,
            _ => self.start(now),
        }
    }

    fn terminate(&mut self, now: Moment, then: Then, why: &str) -> Option<Action> {
        self.leave_ready(now);
        self.enter(Phase::Stopping { killed: false, until: now + self.rules.stop_grace, then }, why);
        Some(Action::Terminate)
    }

    /// No process of the run is left.
    fn cleared(&mut self, now: Moment) -> Option<Action> {
        let Phase::Stopping { then, .. } = self.phase.clone() else { return None };
        match then {
            Then::Rest => {
                self.rest();
                None
            }
            Then::StartAnew => self.begin(now),
            Then::AfterEnd(exit) => self.after_end(now, exit),
        }
    }

    fn rest(&mut self) {
        self.reset_failures();
        self.enter(Phase::Stopped, "it was stopped on request and stays so until it is started");
    }

    /// The run is over by itself.
    fn after_end(&mut self, now: Moment, exit: Exit) -> Option<Action> {
        self.leave_ready(now);
        let how = if self.forked.is_some() {
            "the processes it had forked away have all ended".to_owned()
        } else {
            describe_exit(exit)
        };
        match (self.rules.restart, is_success(exit)) {
            (Restart::Never | Restart::OnFailure, true) => self.enter(Phase::Done, how),
            (Restart::Never, false) => {
                self.enter(Phase::Failed, format!("{how}; its restart policy is never"));
            }
            (Restart::Always, _) | (Restart::OnFailure, false) => self.retry(now, &how),
        }
        None
    }

    fn retry(&mut self, now: Moment, how: &str) {
        self.attempt = self.attempt.saturating_add(1);
        let quickly = now.saturating_sub(self.begun) < QUICK;
        self.quick = if quickly { self.quick.saturating_add(1) } else { 0 };
        if self.quick >= CRASH_LOOP_AFTER {
            let reason = format!(
                "it ended {} times in a row within {} s of its start, the last time so: {how}; it is tried again every {} min",
                self.quick,
                QUICK.as_secs(),
                CRASH_LOOP_RETRY.as_secs() / 60
            );
            self.enter(Phase::CrashLoop { until: now + CRASH_LOOP_RETRY }, reason);
            return;
        }
        let wait = back_off(self.attempt);
        let reason = format!("{how}; it is started again after {} s", wait.as_secs_f32());
        self.enter(Phase::BackingOff { until: now + wait }, reason);
    }

    fn leave_ready(&mut self, now: Moment) {
        if let Phase::Ready { since } = self.phase
            && now.saturating_sub(since) >= FAILURES_RESET_AFTER
        {
            self.reset_failures();
        }
    }

    /// The reason, for a service whose first process forked and ended, as Unix daemons do.
    fn with_fork(&self, reason: &str) -> String {
        match self.forked {
            None => reason.to_owned(),
            Some(others) => format!(
                "{reason}; its first process ended, but {} it started live on: run it in the foreground \
                 (`postgres` instead of `pg_ctl start`), so that its end can be told",
                processes(others)
            ),
        }
    }
}

/// The wait after so many ends in a row.
pub(super) fn back_off(attempt: u32) -> Duration {
    let doublings = attempt.saturating_sub(1).min(16);
    (BACK_OFF_FIRST * (1 << doublings)).min(BACK_OFF_MOST)
}

fn is_success(exit: Exit) -> bool {
    exit.code == Some(0) && exit.signal.is_none()
}

fn describe_exit(exit: Exit) -> String {
    match (exit.code, exit.signal) {
        (Some(code), _) => format!("it exited with code {code}"),
        (None, Some(signal)) => format!("it was ended by signal {signal}"),
        (None, None) => "its end could not be seen".to_owned(),
    }
}

fn processes(n: usize) -> String {
    if n == 1 { "1 process".to_owned() } else { format!("{n} processes") }
}

#[cfg(test)]
#[path = "state_machine_tests.rs"]
mod tests;
