use bay_types::exec::EndReason;
use proptest::prelude::*;

use super::*;

const GRACE: Duration = Duration::from_secs(10);
const PLAIN: Rules = Rules { restart: Restart::Always, start_period: None, stop_grace: GRACE };
const CHECKED: Rules = Rules { start_period: Some(Duration::from_secs(60)), ..PLAIN };

fn exited(code: i32) -> Exit {
    Exit { reason: EndReason::Exited, code: Some(code), signal: None }
}

fn ended(code: i32) -> Event {
    Event::Ended { exit: exited(code), others: 0 }
}

fn ms(n: u64) -> Moment {
    Duration::from_millis(n)
}

fn s(n: u64) -> Moment {
    Duration::from_secs(n)
}

/// Feeds events at their times. Returns state and action after each.
fn walk(machine: &mut Machine, events: &[(Moment, Event)]) -> Vec<(ServiceState, Option<Action>)> {
    events
        .iter()
        .map(|(at, event)| {
            let action = machine.step(*at, event.clone());
            (machine.state(), action)
        })
        .collect()
}

#[track_caller]
fn expect(rules: Rules, table: &[(Moment, Event, ServiceState, Option<Action>)]) -> Machine {
    let mut machine = Machine::new(rules, true);
    for (row, (at, event, state, action)) in table.iter().enumerate() {
        let did = machine.step(*at, event.clone());
        assert_eq!((machine.state(), did), (*state, *action), "row {row}: {event:?}; {}", machine.reason());
    }
    machine
}

use Action::{Kill, Spawn, Terminate};
use Event::{Emptied, Healthy, Needs, Started, Stop, Timer};
use ServiceState as S;

#[test]
fn a_service_waits_for_its_needs_and_settles_without_a_health_check() {
    expect(
        PLAIN,
        &[
            (s(0), Needs(false), S::Waiting, None),
            (s(1), Needs(true), S::Starting, Some(Spawn)),
            (s(1), Timer, S::Starting, None),
            (s(2), Started, S::Starting, None),
            (ms(2400), Timer, S::Starting, None),
            (ms(2500), Timer, S::Ready, None),
            // Needs do not matter once the service runs.
            (s(3), Needs(false), S::Ready, None),
        ],
    );
}

#[test]
fn health_decides_when_a_service_is_ready_and_when_it_is_not() {
    let failed_checks = || Event::CheckFailed("refused".to_owned());
    let machine = expect(
        CHECKED,
        &[
            (s(0), Needs(true), S::Starting, Some(Spawn)),
            (s(0), Started, S::Starting, None),
            (s(5), failed_checks(), S::Starting, None),
            (s(9), Healthy, S::Ready, None),
            (s(10), failed_checks(), S::Ready, None),
            (s(11), failed_checks(), S::Ready, None),
            (s(12), Healthy, S::Ready, None),
            (s(13), failed_checks(), S::Ready, None),
            (s(14), failed_checks(), S::Ready, None),
            (s(15), failed_checks(), S::Unhealthy, None),
            (s(16), Healthy, S::Ready, None),
            (s(17), Stop, S::Stopping, Some(Terminate)),
            // A check that was in progress does not count for a service that is ending.
            (s(17), Healthy, S::Stopping, None),
            (s(18), ended(0), S::Stopped, None),
            (s(19), failed_checks(), S::Stopped, None),
        ],
    );
    assert!(machine.deadline().is_none());
}

#[test]
fn a_service_that_is_not_healthy_in_its_start_period_is_unhealthy_and_goes_on() {
    let failed_checks = || Event::CheckFailed("refused".to_owned());
    let machine = expect(
        CHECKED,
        &[
            (s(0), Needs(true), S::Starting, Some(Spawn)),
            (s(0), Started, S::Starting, None),
            (s(59), failed_checks(), S::Starting, None),
            (s(60), failed_checks(), S::Unhealthy, None),
            (s(70), Healthy, S::Ready, None),
            (s(71), failed_checks(), S::Ready, None),
        ],
    );
    assert!(machine.reason().contains("refused"), "{}", machine.reason());
}

#[test]
fn the_policy_decides_what_follows_an_end() {
    for (restart, code, state) in [
        (Restart::Always, 0, S::BackingOff),
        (Restart::Always, 1, S::BackingOff),
        (Restart::OnFailure, 0, S::Done),
        (Restart::OnFailure, 1, S::BackingOff),
        (Restart::Never, 0, S::Done),
        (Restart::Never, 1, S::Failed),
    ] {
        expect(
            Rules { restart, ..PLAIN },
            &[
                (s(0), Needs(true), S::Starting, Some(Spawn)),
                (s(0), Started, S::Starting, None),
                (s(1), ended(code), state, None),
            ],
        );
    }
    let failed = || Event::StartFailed("command not found".to_owned());
    expect(PLAIN, &[(s(0), Needs(true), S::Starting, Some(Spawn)), (s(0), failed(), S::BackingOff, None)]);
    expect(
        Rules { restart: Restart::Never, ..PLAIN },
        &[(s(0), Needs(true), S::Starting, Some(Spawn)), (s(0), failed(), S::Failed, None)],
    );
}

/// Makes one run that starts at `at` and ends after `lived`. Returns when the machine tries again.
fn run_and_die(machine: &mut Machine, at: Moment, lived: Duration) -> Moment {
    machine.step(at, Started);
    machine.step(at + SETTLE.min(lived), Timer);
    machine.step(at + lived, ended(1));
    machine.retry_at().unwrap() - (at + lived)
}

#[test]
fn quick_ends_back_off_and_then_are_a_crash_loop_with_slow_retries() {
    let mut machine = Machine::new(PLAIN, true);
    machine.step(s(0), Needs(true));
    let mut now = s(0);
    let mut waits = Vec::new();
    for _ in 0..7 {
        let wait = run_and_die(&mut machine, now, ms(100));
        waits.push(wait);
        now += ms(100) + wait;
        assert_eq!(machine.step(now, Timer), Some(Spawn));
    }
    let slow = CRASH_LOOP_RETRY;
    assert_eq!(waits, [ms(500), s(1), s(2), s(4), slow, slow, slow]);
    assert_eq!(machine.restarts(), 7);
    run_and_die(&mut machine, now, ms(1));
    assert_eq!(machine.state(), S::CrashLoop);
    // A person's request ends the crash loop.
    assert_eq!(machine.step(now + s(1), Event::Start), Some(Spawn));
    assert_eq!(run_and_die(&mut machine, now + s(1), ms(1)), ms(500));
}

#[test]
fn slow_ends_back_off_to_half_a_minute_and_a_minute_of_health_resets_that() {
    let mut machine = Machine::new(PLAIN, true);
    machine.step(s(0), Needs(true));
    let mut now = s(0);
    let mut waits = Vec::new();
    for _ in 0..9 {
        let wait = run_and_die(&mut machine, now, s(20));
        waits.push(wait.as_millis());
        now += s(20) + wait;
        assert_eq!(machine.step(now, Timer), Some(Spawn));
    }
    assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]);
    assert_eq!(run_and_die(&mut machine, now, SETTLE + FAILURES_RESET_AFTER), ms(500));
}

#[test]
fn a_service_that_forks_away_runs_while_its_processes_do() {
    let away = || Event::Ended { exit: exited(0), others: 3 };
    let machine = expect(
        Rules { restart: Restart::OnFailure, ..CHECKED },
        &[
            (s(0), Needs(true), S::Starting, Some(Spawn)),
            (s(0), Started, S::Starting, None),
            (s(1), away(), S::Starting, None),
            (s(2), Healthy, S::Ready, None),
        ],
    );
    assert!(machine.reason().contains("3 processes"), "{}", machine.reason());
    assert!(machine.reason().contains("foreground"), "{}", machine.reason());
    let mut ends = machine.clone();
    assert_eq!(walk(&mut ends, &[(s(9), Emptied)]), [(S::Done, None)]);
    let mut stopped = machine;
    assert_eq!(
        walk(&mut stopped, &[(s(9), Stop), (s(19), Timer), (s(20), Emptied)]),
        [(S::Stopping, Some(Terminate)), (S::Stopping, Some(Kill)), (S::Stopped, None)]
    );
}

#[test]
fn what_a_failed_run_leaves_is_killed_before_the_next_begins() {
    expect(
        PLAIN,
        &[
            (s(0), Needs(true), S::Starting, Some(Spawn)),
            (s(0), Started, S::Starting, None),
            (s(1), Event::Ended { exit: exited(2), others: 1 }, S::Stopping, Some(Kill)),
            (s(1), Timer, S::Stopping, None),
            (s(2), Emptied, S::BackingOff, None),
        ],
    );
}

#[test]
fn a_service_that_ignores_term_is_killed_and_one_that_hangs_is_given_up() {
    expect(
        PLAIN,
        &[
            (s(0), Needs(true), S::Starting, Some(Spawn)),
            (s(0), Started, S::Starting, None),
            (s(1), Event::Restart, S::Stopping, Some(Terminate)),
            (s(10), Timer, S::Stopping, None),
            (s(11), Timer, S::Stopping, Some(Kill)),
            (s(16), Timer, S::Starting, Some(Spawn)),
        ],
    );
}

#[test]
fn a_stop_while_the_program_is_being_started_reaches_it() {
    expect(
        PLAIN,
        &[
            (s(0), Needs(true), S::Starting, Some(Spawn)),
            (s(0), Stop, S::Stopping, Some(Terminate)),
            (s(1), Started, S::Stopping, Some(Terminate)),
            (s(2), ended(143), S::Stopped, None),
        ],
    );
    expect(
        PLAIN,
        &[
            (s(0), Needs(true), S::Starting, Some(Spawn)),
            (s(0), Stop, S::Stopping, Some(Terminate)),
            (s(1), Event::StartFailed("no".to_owned()), S::Stopped, None),
        ],
    );
}

#[test]
fn a_later_request_replaces_an_earlier_one() {
    expect(
        PLAIN,
        &[
            (s(0), Needs(true), S::Starting, Some(Spawn)),
            (s(0), Started, S::Starting, None),
            (s(1), Stop, S::Stopping, Some(Terminate)),
            (s(1), Event::Start, S::Stopping, None),
            (s(2), ended(0), S::Starting, Some(Spawn)),
            (s(2), Event::Replaced(CHECKED), S::Stopping, Some(Terminate)),
            (s(2), Stop, S::Stopping, None),
            (s(3), ended(0), S::Stopped, None),
            (s(4), Event::Restart, S::Starting, Some(Spawn)),
        ],
    );
    expect(PLAIN, &[(s(0), Stop, S::Stopped, None), (s(1), Needs(true), S::Stopped, None)]);
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => any::<bool>().prop_map(Needs),
        4 => Just(Started),
        1 => Just(Event::StartFailed("no".to_owned())),
        2 => Just(Healthy),
        3 => Just(Event::CheckFailed("no".to_owned())),
        4 => (0..3_i32, 0..3_usize).prop_map(|(code, others)| Event::Ended { exit: exited(code), others }),
        3 => Just(Emptied),
        6 => Just(Timer),
        1 => Just(Event::Start),
        1 => Just(Stop),
        1 => Just(Event::Restart),
        1 => Just(Event::Replaced(CHECKED)),
        1 => Just(Event::Replaced(PLAIN)),
    ]
}

fn any_rules() -> impl Strategy<Value = Rules> {
    let restart = prop::sample::select(vec![Restart::Always, Restart::OnFailure, Restart::Never]);
    (restart, any::<bool>())
        .prop_map(|(restart, checked)| Rules { restart, ..if checked { CHECKED } else { PLAIN } })
}

/// What happens because of a machine's actions: at most one run, which ends only once.
#[derive(Default)]
struct World {
    spawned: bool,
    running: bool,
    leader: bool,
    others: usize,
}

impl World {
    /// Whether the event is possible now. Updates the state accordingly.
    fn allows(&mut self, event: &Event) -> bool {
        match event {
            Started => {
                let can = self.spawned && !self.running;
                if can {
                    (self.running, self.leader) = (true, true);
                }
                can
            }
            Event::StartFailed(_) => {
                let can = self.spawned && !self.running;
                if can {
                    self.spawned = false;
                }
                can
            }
            Healthy | Event::CheckFailed(_) => self.running,
            Event::Ended { others, .. } => {
                let can = self.leader;
                if can {
                    (self.leader, self.others) = (false, *others);
                    self.end();
                }
                can
            }
            Emptied => {
                let can = self.running && !self.leader && self.others > 0;
                if can {
                    self.others = 0;
                    self.end();
                }
                can
            }
            _ => true,
        }
    }

    fn end(&mut self) {
        if !self.leader && self.others == 0 {
            (self.spawned, self.running) = (false, false);
        }
    }
}

proptest! {
    #[test]
    fn after_any_events_there_is_one_run_at_most_and_the_machine_goes_on(
        rules in any_rules(),
        events in prop::collection::vec((any_event(), 0..20_000_u64), 1..200),
    ) {
        let mut machine = Machine::new(rules, true);
        let mut world = World::default();
        let mut now = Moment::ZERO;
        let mut wanted = true;
        for (event, later) in events {
            now += ms(later);
            if !world.allows(&event) {
                continue;
            }
            match event {
                Stop => wanted = false,
                Event::Start | Event::Restart | Event::Replaced(_) => wanted = true,
                _ => {}
            }
            // The machine gives up: a process that hung in the kernel sends no more events.
            let gives_up = matches!(machine.phase, Phase::Stopping { killed: true, until, .. } if now >= until)
                && event == Timer;
            if gives_up {
                world = World::default();
            }
            let action = machine.step(now, event);
            if action == Some(Spawn) {
                prop_assert!(!world.spawned, "a second run beside the first");
                prop_assert!(wanted, "a run that nobody wants");
                world.spawned = true;
            }
            prop_assert_eq!(world.spawned, machine.has_run(), "{:?}", machine);
            prop_assert!(!machine.reason().is_empty());
            if !wanted {
                prop_assert!(matches!(machine.state(), S::Stopping | S::Stopped));
            }
            match machine.state() {
                S::BackingOff | S::CrashLoop | S::Stopping => prop_assert!(machine.deadline().is_some()),
                S::Waiting | S::Stopped | S::Done | S::Failed => prop_assert!(machine.deadline().is_none()),
                _ => {}
            }
            if let Some(at) = machine.retry_at() {
                prop_assert!(at <= now + CRASH_LOOP_RETRY);
            }
        }
        // A stop is possible in every phase.
        machine.step(now, Stop);
        for _ in 0..3 {
            now += GRACE + KILL_GRACE;
            machine.step(now, Timer);
        }
        prop_assert_eq!(machine.state(), S::Stopped);
    }
}
