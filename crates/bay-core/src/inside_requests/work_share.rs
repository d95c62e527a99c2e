//! How much the daemon works for a bay on request of the bay's own processes.
//!
//! The daemon makes comparisons, snapshots and lists outside of the bay's control group, so the bay's `--cpus` does
//! not bound them. So each bay has a share of one processor for them. Work is charged after it is done, because its
//! cost is not known before. If a bay has used up its share, the answer says when to ask again.

use std::time::Duration;

use tokio::time::Instant;

/// In the long run, the daemon works for one bay for at most one part in so many of the time of one processor.
const PART: u32 = 10;
/// How much work a bay may request at once after it requested nothing for a while.
const SAVED_UP: Duration = Duration::from_secs(10);

/// What answers are charged for processor time of the daemon and of the kernel's own threads. These are estimates,
/// not measurements. For some answers the measured time is added.
pub(crate) mod cost {
    use std::time::Duration;

    /// A list, or a refusal.
    pub(crate) const LOOK: Duration = Duration::from_millis(20);
    /// A snapshot of the bay's subvolumes, and the removal of one that is thinned.
    pub(crate) const SNAPSHOT: Duration = Duration::from_millis(200);
    /// A snapshot, the end of all processes, fresh subvolumes and a start.
    pub(crate) const RESTORE: Duration = Duration::from_millis(400);
}

/// The share of one bay.
#[derive(Debug, Default)]
pub(crate) struct WorkShare {
    /// When all work for the bay is paid back.
    paid: Option<Instant>,
}

impl WorkShare {
    /// How long the bay must wait before the daemon works for it again; zero if it need not wait.
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
    fn a_loop_gets_the_saved_time_and_then_its_share_of_a_processor() {
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
    fn after_the_wait_that_it_was_given_a_bay_may_ask() {
        let (mut share, now) = (WorkShare::default(), Instant::now());
        share.charge(now, 60 * SECOND);
        let wait = share.wait(now);
        assert_eq!(wait, (60 * SECOND - SAVED_UP) * PART);
        assert_eq!(share.wait(now + wait), Duration::ZERO);
    }
}
