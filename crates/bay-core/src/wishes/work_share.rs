//! How much the daemon works for a bay because the bay's own processes ask for it.
//!
//! Comparisons, snapshots and lists are made by the daemon, outside of the bay's control group: the bay's `--cpus` does
//! not bound them. So each bay has a share of one processor for them. Work is charged after it is done, because nobody
//! knows beforehand what it costs; a bay that has used up its share is told when to ask again.

use std::time::Duration;

use tokio::time::Instant;

/// The daemon works for one bay one part in so many of the time of one processor, in the long run.
const PART: u32 = 10;
/// Work that a bay may have done at once after it asked for nothing for a while.
const SAVED_UP: Duration = Duration::from_secs(10);

/// What is charged for each answer beside what it is measured to cost, in processor time of the daemon and of the kernel's
/// own threads. Estimates, not measurements.
pub(crate) mod cost {
    use std::time::Duration;

    /// A list, or a refusal.
    pub(crate) const LOOK: Duration = Duration::from_millis(20);
    /// A snapshot of the bay's subvolumes, and the removal of one that is thinned.
    pub(crate) const SNAPSHOT: Duration = Duration::from_millis(200);
    /// A snapshot, the end of everything that runs, fresh subvolumes and a start.
    pub(crate) const RESTORE: Duration = Duration::from_millis(400);
}

/// The share of one bay.
#[derive(Debug, Default)]
pub(crate) struct WorkShare {
    /// When all work that was done for the bay is paid back.
    paid: Option<Instant>,
}

impl WorkShare {
    /// How long the bay has to wait before the daemon works for it again; zero where it may ask now.
    pub(crate) fn wait(&self, now: Instant) -> Duration {
        let owed = self.paid.map_or(Duration::ZERO, |paid| paid.saturating_duration_since(now));
        owed.saturating_sub(SAVED_UP * PART)
    }

    /// Charges for work that is done.
    pub(crate) fn charge(&mut self, now: Instant, took: Duration) {
        self.paid = Some(self.paid.map_or(now, |paid| paid.max(now)) + took * PART);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_bay_that_asks_now_and_then_never_waits() {
        let (mut share, start) = (WorkShare::default(), Instant::now());
        for minute in 0..100 {
            let now = start + minute * 60 * SECOND;
            assert_eq!(share.wait(now), Duration::ZERO);
            share.charge(now, 5 * SECOND);
        }
    }

    #[test]
    fn a_loop_gets_what_was_saved_up_and_then_its_part_of_a_processor() {
        let (mut share, start) = (WorkShare::default(), Instant::now());
        let (mut now, mut worked) = (start, Duration::ZERO);
        let end = start + 3600 * SECOND;
        while now < end {
            let wait = share.wait(now);
            if wait.is_zero() {
                share.charge(now + SECOND, SECOND);
                worked += SECOND;
                now += SECOND;
            } else {
                now += wait;
            }
        }
        assert!(worked <= SAVED_UP + 3600 * SECOND / PART + SECOND, "{worked:?}");
        assert!(worked >= 3600 * SECOND / PART, "{worked:?}");
    }

    #[test]
    fn whoever_waits_as_long_as_it_was_told_may_ask() {
        let (mut share, now) = (WorkShare::default(), Instant::now());
        share.charge(now, 60 * SECOND);
        let wait = share.wait(now);
        assert_eq!(wait, (60 * SECOND - SAVED_UP) * PART);
        assert_eq!(share.wait(now + wait), Duration::ZERO);
    }
}
