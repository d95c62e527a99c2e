//! A flood of refusals is slowed down: its cost would otherwise slow down the other bays.

use std::time::{Duration, Instant};

/// At how many refusals of one bay per second their waits begin. An agent that tries what it may do causes tens.
const PER_SECOND: u32 = 1000;
/// After a pause, the refusals of this time at [`PER_SECOND`] do not wait at all.
const SAVED_UP: Duration = Duration::from_secs(1);
/// The longest wait of a refusal. A flood that reaches it is answered faster than [`PER_SECOND`].
const LONGEST: Duration = Duration::from_secs(5);

/// When the next refusal of a bay is due.
#[derive(Debug)]
pub(super) struct Pace {
    due: Instant,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self { due: now }
    }

    /// How long this refusal must wait.
    pub(super) fn wait(&mut self, now: Instant) -> Duration {
        let saved = now.checked_sub(SAVED_UP).unwrap_or(now);
        let due = self.due.max(saved) + Duration::from_secs(1) / PER_SECOND;
        self.due = due.min(now + LONGEST);
        self.due.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_refusals_never_wait() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        for second in 1..100 {
            let now = start + Duration::from_secs(second);
            assert!((0..500).all(|_| pace.wait(now).is_zero()));
        }
    }

    #[test]
    fn a_flood_is_answered_at_its_pace_and_nobody_waits_for_ever() {
        let start = Instant::now() + Duration::from_secs(10);
        let mut pace = Pace::new(start);
        let waits: Vec<Duration> = (0..100_000).map(|_| pace.wait(start)).collect();
        let within = |limit| waits.iter().filter(|wait| **wait <= Duration::from_secs(limit)).count();
        assert_eq!(within(0), 0);
        assert_eq!(within(1), PER_SECOND as usize);
        assert_eq!(within(2), 2 * PER_SECOND as usize);
        assert_eq!(waits.last(), Some(&LONGEST));
        // After a while without refusals, none has to wait.
        assert!(pace.wait(start + LONGEST + SAVED_UP).is_zero());
    }
}
