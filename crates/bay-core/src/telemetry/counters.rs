//! Counters of the daemon. Nothing here waits or allocates, because every exec passes here.

use std::sync::atomic::{AtomicU64, Ordering};

use bay_store::ExecRow;
use bay_types::exec::EndReason;

use super::exposition::number;

/// Every way an exec can end, in the order of the counters.
pub(crate) const REASONS: [EndReason; 6] = [
    EndReason::Exited,
    EndReason::Signaled,
    EndReason::TimedOut,
    EndReason::Killed,
    EndReason::Stopped,
    EndReason::Lost,
];

/// Upper bounds of the histogram of durations, in seconds.
pub(crate) const BOUNDS: [f64; 12] =
    [0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0, 7200.0];

/// If a guest claims more output per second, the claim is cut to this.
const MAX_OUTPUT_PER_S: u64 = 16 << 30;
/// By how much a claim may exceed an exec's duration: a guest's clock stops a moment after the exec's.
const SLACK_S: f64 = 1.0;

/// A number that only grows and stays at the end of its range. Parts of some sums are claims of guests.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        let sum = |now: u64| Some(now.saturating_add(more));
        // The closure always returns a value, so this cannot fail.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The possible decisions on a request.
pub(crate) const DECISIONS: [&str; 3] = ["allow", "ask", "deny"];
/// Why something was refused before it became a request.
pub(crate) const REFUSALS: [&str; 7] =
    ["connection", "nameless", "form", "protocol", "secret", "too-many", "upgrade"];

/// What left all bays, and what was refused.
#[derive(Debug, Default)]
pub(crate) struct EgressCounters {
    pub(crate) decided: [Counter; DECISIONS.len()],
    pub(crate) refused: [Counter; REFUSALS.len()],
    pub(crate) sent: Counter,
    pub(crate) received: Counter,
    /// Requests that were let out and whose origin could not be used.
    pub(crate) failed: Counter,
}

impl EgressCounters {
    pub(crate) fn decided(&self, outcome: &str) {
        count(&DECISIONS, &self.decided, outcome);
    }

    pub(crate) fn refused(&self, what: &str) {
        count(&REFUSALS, &self.refused, what);
    }

    pub(crate) fn ended(&self, sent: u64, received: u64, failed: bool) {
        self.sent.add(sent);
        self.received.add(received);
        self.failed.add(u64::from(failed));
    }
}

fn count(words: &[&str], counters: &[Counter], word: &str) {
    if let Some(place) = words.iter().position(|one| *one == word) {
        counters[place].add(1);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) egress: EgressCounters,
    pub(crate) execs_started: Counter,
    pub(crate) execs_ended: [Counter; REASONS.len()],
    /// By upper bound; the last one is for everything longer.
    pub(crate) durations: [Counter; BOUNDS.len() + 1],
    pub(crate) duration_us: Counter,
    pub(crate) exec_cpu_us: Counter,
    pub(crate) output_bytes: Counter,
    pub(crate) reconcile_errors: Counter,
    pub(crate) spans_sent: Counter,
    pub(crate) spans_dropped: Counter,
    /// Failed attempts to reach the collector.
    pub(crate) export_failures: Counter,
}

impl Counters {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Saturates, and is never negative.
    /// Adds an exec that ended. Sums are over all bays, while usage and output are claims of one bay. They are cut to
    /// what was possible in the exec's time, so that no bay drowns the others.
    pub(crate) fn exec_ended(&self, row: &ExecRow, cpus: u64) {
        let reason = row.exit.map_or(EndReason::Lost, |exit| exit.reason);
        for (counter, of) in self.execs_ended.iter().zip(REASONS) {
            if of == reason {
                counter.add(1);
            }
        }
        let duration = row.duration_s().unwrap_or(0.0);
        let bucket = BOUNDS.iter().position(|bound| duration <= *bound).unwrap_or(BOUNDS.len());
        self.durations[bucket].add(1);
        self.duration_us.add((duration * 1e6) as u64);
        let possible = |per_s: u64| ((duration + SLACK_S) * number(per_s)) as u64;
        self.exec_cpu_us.add(row.usage.cpu_us().unwrap_or(0).min(possible(cpus.saturating_mul(1_000_000))));
        self.output_bytes.add(row.output_bytes.min(possible(MAX_OUTPUT_PER_S)));
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
    fn impossible_claims_of_an_exec_are_not_added_up() {
        let started_at: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let claim = Some(bay_types::usage::Usage::MAX_CLAIM);
        let mut row = ExecRow {
            id: bay_types::ExecId::generate(),
            bay: bay_types::BayId::generate(),
            number: 1,
            spec: bay_types::exec::ExecSpec::new(["true"]),
            started_at,
            ended_at: Some(started_at + jiff::SignedDuration::from_secs(9)),
            exit: None,
            usage: bay_types::usage::Usage { user_us: claim, system_us: claim, ..Default::default() },
            output_bytes: u64::MAX,
            trace: None,
            output_hashes: None,
            limits_hit: vec![],
            blame: vec![],
        };
        let counters = Counters::default();
        counters.exec_ended(&row, 4);
        assert_eq!(counters.exec_cpu_us.get(), 40_000_000);
        assert_eq!(counters.output_bytes.get(), 10 * MAX_OUTPUT_PER_S);
        (row.usage.user_us, row.usage.system_us, row.output_bytes) = (Some(5), Some(6), 7);
        counters.exec_ended(&row, 4);
        assert_eq!(counters.exec_cpu_us.get(), 40_000_011);
        assert_eq!(counters.output_bytes.get(), 10 * MAX_OUTPUT_PER_S + 7);
    }

    #[test]
    fn bounds_of_the_histogram_grow() {
        assert!(BOUNDS.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
