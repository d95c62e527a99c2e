//! Refusals beyond any use wait for their turn: what a flood of them costs is taken from the other bays otherwise.

use std::time::{Duration, Instant};

/// Refusals of one bay that are answered at once in a second, after as many that were saved up. Agents that try doors make
/// tens.
const PER_SECOND: u32 = 1000;
const SAVED_UP: Duration = Duration::from_secs(1);
/// Nobody waits longer for a refusal.
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

    /// How long the refusal that comes now has to wait.
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
    fn few_refusals_never_wait() {
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
        // Everything that was waited for is forgotten after a while of quiet.
        assert!(pace.wait(start + LONGEST + SAVED_UP).is_zero());
    }
}
