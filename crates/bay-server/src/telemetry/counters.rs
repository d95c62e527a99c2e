//! What is counted while the daemon lives. Nothing here waits or allocates: it is on the way of every exec.

use std::sync::atomic::{AtomicU64, Ordering};

use bay_store::ExecRow;
use bay_types::exec::EndReason;

/// Every way an exec can end, in the order of the counters.
pub(crate) const REASONS: [EndReason; 5] =
    [EndReason::Exited, EndReason::Signaled, EndReason::TimedOut, EndReason::Killed, EndReason::Lost];

/// Upper bounds of the histogram of durations, in seconds.
pub(crate) const BOUNDS: [f64; 12] =
    [0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0, 7200.0];

/// A number that only grows, and stays where it is at the end of its range: parts of some sums are claims of guests.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        let sum = |now: u64| Some(now.saturating_add(more));
        // The closure always gives a value, so this cannot fail.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) execs_started: Counter,
    pub(crate) execs_ended: [Counter; REASONS.len()],
    /// By bound; the last one is for all that lasted longer.
    pub(crate) durations: [Counter; BOUNDS.len() + 1],
    pub(crate) duration_us: Counter,
    pub(crate) exec_cpu_us: Counter,
    pub(crate) output_bytes: Counter,
    pub(crate) reconcile_errors: Counter,
    pub(crate) spans_sent: Counter,
    pub(crate) spans_dropped: Counter,
    /// Attempts to reach the collector that failed.
    pub(crate) export_failures: Counter,
}

impl Counters {
    pub(crate) fn exec_ended(&self, row: &ExecRow) {
        let reason = row.exit.map_or(EndReason::Lost, |exit| exit.reason);
        for (counter, of) in self.execs_ended.iter().zip(REASONS) {
            if of == reason {
                counter.add(1);
            }
        }
        let duration = row.duration_s().unwrap_or(0.0);
        let bucket = BOUNDS.iter().position(|bound| duration <= *bound).unwrap_or(BOUNDS.len());
        self.durations[bucket].add(1);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        // Saturates, and is never negative.
        self.duration_us.add((duration * 1e6) as u64);
        self.exec_cpu_us.add(row.usage.cpu_us().unwrap_or(0));
        self.output_bytes.add(row.output_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_stays_at_the_end_of_its_range() {
        let counter = Counter::default();
        counter.add(u64::MAX - 1);
        counter.add(5);
        assert_eq!(counter.get(), u64::MAX);
    }

    #[test]
    fn bounds_of_the_histogram_grow() {
        assert!(BOUNDS.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
