//! What a service does next: a pure function of what happened, tested without processes.
//!
//! The [`Machine`] is told events with the time at which they came, and answers with actions. It never has more than one
//! run: [`Action::Spawn`] is only asked for when the run before is over. A run is over when its first process has ended
//! and nothing it started is left.
//!
//! ```text
//!  phase         event                      next phase     action
//!  Waiting       needs are met              Starting       Spawn
//!  Starting      program runs                              (health checks begin, or the settling time)
//!                healthy, or settled        Ready
//!                sick, start period over    Unhealthy
//!  Ready         sick for the third time    Unhealthy
//!  Unhealthy     healthy                    Ready
//!  these three   ended with 0, others live  the same; it forked away, and counts as running while they live
//!                ended badly, others live   Stopping       Kill: what is left of a failed run is cleared
//!                ended, nothing left        Done · Failed · BackingOff · CrashLoop, as policy and history say
//!                stop, restart, replaced    Stopping       Terminate
//!  Stopping      grace is over                             Kill
//!                nothing left               Stopped, or on as it was meant
//!  BackingOff,   time is up                 Starting or Waiting
//!  CrashLoop
//! ```

use std::time::Duration;

use bay_types::exec::Exit;
use bay_types::service::{Restart, ServiceState};

/// Time since some beginning; never runs backwards.
pub(super) type Moment = Duration;

/// Wait after the first end; doubled after each further one.
pub(super) const BACK_OFF_FIRST: Duration = Duration::from_millis(500);
pub(super) const BACK_OFF_MOST: Duration = Duration::from_secs(30);
/// A service that was ready for this long begins its back-off anew.
pub(super) const FORGIVEN_AFTER: Duration = Duration::from_secs(60);
/// A run that ended within this time of its start ended quickly.
pub(super) const QUICK: Duration = Duration::from_secs(10);
/// Quick ends in a row that make a crash loop.
pub(super) const CRASH_LOOP_AFTER: u32 = 5;
/// Wait between the runs of a crash loop: long enough to cost nothing, short enough to notice that its cause is gone.
pub(super) const CRASH_LOOP_RETRY: Duration = Duration::from_secs(300);
/// How long a service without a health check must run to be believed.
pub(super) const SETTLE: Duration = Duration::from_millis(500);
/// Failed checks in a row that make a ready service unhealthy.
pub(super) const SICK_AFTER: u32 = 3;
/// How long processes have to be gone after KILL. What hangs in the kernel is given up.
pub(super) const KILL_GRACE: Duration = Duration::from_secs(5);

/// What of a definition the machine goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) restart: Restart,
    /// With a health check: how long failures do not count.
    pub(super) start_period: Option<Duration>,
    pub(super) stop_grace: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// Whether everything it needs is ready. Only looked at before a start.
    Needs(bool),
    /// The program of the run runs.
    Started,
    /// It could not even be started.
    StartFailed(String),
    Healthy,
    Sick(String),
    /// The first process of the run ended; this many others live on.
    Ended {
        exit: Exit,
        others: usize,
    },
    /// Nothing of the run lives any more; comes after [`Event::Ended`] with others.
    Emptied,
    /// The time that [`Machine::deadline`] named has come.
    Timer,
    // What people ask for.
    Start,
    Stop,
    Restart,
    /// Its definition is another one now.
    Replaced(Rules),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Spawn,
    /// TERM to all of the run.
    Terminate,
    /// KILL to all of the run.
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

/// What comes after a run has been cleared away.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Then {
    Rest,
    StartAnew,
    /// It had ended by itself, so.
    Judge(Exit),
}

/// One service.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    rules: Rules,
    phase: Phase,
    reason: String,
    needs_met: bool,
    /// When the run at hand began, and when its program ran.
    begun: Moment,
    running_since: Option<Moment>,
    /// The first process ended well and left this many others.
    forked: Option<usize>,
    /// Failed checks in a row.
    sick: u32,
    /// Ends in a row without [`FORGIVEN_AFTER`] of health.
    attempt: u32,
    quick: u32,
    restarts: u64,
}

impl Machine {
    /// A service that was just defined or loaded; `wanted` when it is to run.
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
            sick: 0,
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

    /// Whether processes of a run may live.
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

    /// When it is tried again by itself.
    pub(super) fn retry_at(&self) -> Option<Moment> {
        match self.phase {
            Phase::BackingOff { until } | Phase::CrashLoop { until } => Some(until),
            _ => None,
        }
    }

    /// Takes one event. At most one action follows.
    pub(super) fn step(&mut self, now: Moment, event: Event) -> Option<Action> {
        match event {
            Event::Needs(met) => self.needs(now, met),
            Event::Started => self.started(now),
            Event::StartFailed(why) => self.start_failed(now, &why),
            Event::Healthy => self.healthy(now),
            Event::Sick(why) => self.sick(now, &why),
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

    /// Starts a run, or waits for what it needs.
    fn begin(&mut self, now: Moment) -> Option<Action> {
        if !self.needs_met {
            self.enter(Phase::Waiting, "a service that it needs is not ready");
            return None;
        }
        self.begun = now;
        self.running_since = None;
        self.forked = None;
        self.sick = 0;
        self.enter(Phase::Starting, "its program is being started");
        Some(Action::Spawn)
    }

    /// A person's word: earlier failures count no more.
    fn forgive(&mut self) {
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
            // It was asked to end while there was nothing to send a signal to.
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
        self.sick = 0;
        match self.phase {
            Phase::Starting | Phase::Unhealthy => {
                let reason = self.with_fork("its health check passes");
                self.enter(Phase::Ready { since: now }, reason);
            }
            // A failure or two may have left its words there.
            Phase::Ready { .. } => self.reason = self.with_fork("its health check passes"),
            _ => {}
        }
        None
    }

    fn sick(&mut self, now: Moment, why: &str) -> Option<Action> {
        self.sick = self.sick.saturating_add(1);
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
            Phase::Ready { .. } if self.sick >= SICK_AFTER => {
                self.leave_ready(now);
                let reason = format!("its health check fails: {why}");
                self.enter(Phase::Unhealthy, self.with_fork(&reason));
            }
            Phase::Ready { .. } => {
                let reason = format!("its health check failed {} of {SICK_AFTER} times: {why}", self.sick);
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
                    return self.judge(now, exit);
                }
                if is_success(exit) {
                    self.forked = Some(others);
                    self.reason = self.with_fork("it runs");
                    return None;
                }
                self.leave_ready(now);
                let reason = format!("{}; the {} it left are killed", said(exit), processes(others));
                let phase =
                    Phase::Stopping { killed: true, until: now + KILL_GRACE, then: Then::Judge(exit) };
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
                .judge(now, Exit { reason: bay_types::exec::EndReason::Exited, code: Some(0), signal: None }),
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
            // Something hangs in the kernel. It goes with the bay; nobody is served by waiting for it.
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
                self.forgive();
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
                self.forgive();
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

    /// Nothing of the run is left that was to be cleared away.
    fn cleared(&mut self, now: Moment) -> Option<Action> {
        let Phase::Stopping { then, .. } = self.phase.clone() else { return None };
        match then {
            Then::Rest => {
                self.rest();
                None
            }
            Then::StartAnew => self.begin(now),
            Then::Judge(exit) => self.judge(now, exit),
        }
    }

    fn rest(&mut self) {
        self.forgive();
        self.enter(Phase::Stopped, "it was stopped on request and stays so until it is started");
    }

    /// The run is over by itself.
    fn judge(&mut self, now: Moment, exit: Exit) -> Option<Action> {
        self.leave_ready(now);
        let how = if self.forked.is_some() {
            "the processes it had forked away have all ended".to_owned()
        } else {
            said(exit)
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
            && now.saturating_sub(since) >= FORGIVEN_AFTER
        {
            self.forgive();
        }
    }

    /// What is said of a service that became a daemon in the Unix sense.
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

fn said(exit: Exit) -> String {
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
#[path = "machine_tests.rs"]
mod tests;
