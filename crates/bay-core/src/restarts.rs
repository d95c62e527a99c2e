//! How often the reconciler restarts a guest that died, and after which wait.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// The most restarts within [`RESTART_WINDOW`], without a request in between.
pub(crate) const MAX_RESTARTS: usize = 3;
/// After this time, a death no longer counts.
pub(crate) const RESTART_WINDOW: Duration = Duration::from_secs(600);
/// Waits before the first, second and third restart.
const BACK_OFF: [Duration; MAX_RESTARTS] = [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(5)];

/// Recent deaths of guests.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    deaths: VecDeque<Instant>,
    not_before: Option<Instant>,
}

impl Restarts {
    /// Counts a death. Returns the wait before the restart, or `None` if there were too many.
    pub(crate) fn count(&mut self, now: Instant) -> Option<Duration> {
        self.deaths.push_back(now);
        while self.deaths.front().is_some_and(|at| now.duration_since(*at) > RESTART_WINDOW) {
            self.deaths.pop_front();
        }
        let wait = *BACK_OFF.get(self.deaths.len() - 1)?;
        self.not_before = Some(now + wait);
        Some(wait)
    }

    /// When the next restart is due, if that is in the future.
    pub(crate) fn not_before(&self) -> Option<Instant> {
        self.not_before.filter(|at| *at > Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_keeps_dying_is_started_three_times_and_no_more() {
        let mut restarts = Restarts::default();
        let now = Instant::now();
        let waits: Vec<_> = (0..4).map(|_| restarts.count(now)).collect();
        assert_eq!(waits, vec![Some(BACK_OFF[0]), Some(BACK_OFF[1]), Some(BACK_OFF[2]), None]);
        let later = now + RESTART_WINDOW + Duration::from_secs(1);
        assert_eq!(restarts.count(later), Some(Duration::ZERO));
    }
}
