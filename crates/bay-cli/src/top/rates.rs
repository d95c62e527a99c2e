//! Rates, from two samples of the counters.

use bay_types::bay::{Limits, State};
use bay_types::stats::{BayStats, Pressures, Stall};
use bay_types::top::{BayUse, DiskUse, HostUse, Top};
use jiff::Timestamp;
use serde::Serialize;

/// The rates that are shown, and printed with `--json`. A rate is absent if the host does not measure it, or if the bay
/// did not exist or was restarted between the two samples.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Rates {
    pub(super) at: Timestamp,
    pub(super) host: HostRates,
    pub(super) bays: Vec<BayRates>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct HostRates {
    pub(super) cpus: u64,
    /// Percent of all processors together. All percentages of the host are.
    pub(super) cpu_percent: Option<f64>,
    pub(super) iowait_percent: Option<f64>,
    pub(super) steal_percent: Option<f64>,
    pub(super) memory_total_bytes: u64,
    pub(super) memory_available_bytes: u64,
    pub(super) pressure: Pressures,
    pub(super) pool_total_bytes: Option<u64>,
    pub(super) pool_free_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct BayRates {
    pub(super) name: String,
    pub(super) state: State,
    /// Percent of one processor: two fully used ones are 200.
    pub(super) cpu_percent: Option<f64>,
    pub(super) read_bytes_per_s: Option<f64>,
    pub(super) write_bytes_per_s: Option<f64>,
    /// Share of the time in which a process in the bay waited for a disk.
    pub(super) iowait_percent: Option<f64>,
    pub(super) stats: BayStats,
    pub(super) limits: Limits,
    pub(super) disk: Option<DiskUse>,
    pub(super) execs_running: u64,
}

pub(super) fn between(before: &Top, now: &Top) -> Rates {
    let elapsed_us = now.monotonic_us.saturating_sub(before.monotonic_us);
    let bays = now.bays.iter().map(|bay| {
        let earlier = before.bays.iter().find(|other| other.id == bay.id);
        bay_rates(earlier.map(|other| &other.stats), bay, elapsed_us)
    });
    Rates { at: now.at, host: host_rates(&before.host, &now.host), bays: bays.collect() }
}

fn host_rates(before: &HostUse, now: &HostUse) -> HostRates {
    let (old, new) = (before.processors, now.processors);
    let total = new.total().saturating_sub(old.total());
    let share = |old: u64, new: u64| (total > 0).then(|| percent(new.saturating_sub(old), total));
    HostRates {
        cpus: now.cpus,
        cpu_percent: share(old.busy, new.busy),
        iowait_percent: share(old.iowait, new.iowait),
        steal_percent: share(old.steal, new.steal),
        memory_total_bytes: now.memory_total_bytes,
        memory_available_bytes: now.memory_available_bytes,
        pressure: now.pressure,
        pool_total_bytes: now.pool_total_bytes,
        pool_free_bytes: now.pool_free_bytes,
    }
}

fn bay_rates(earlier: Option<&BayStats>, bay: &BayUse, elapsed_us: u64) -> BayRates {
    let stats = &bay.stats;
    // A counter that decreased belongs to a bay that was restarted.
    let grown = |of: fn(&BayStats) -> Option<u64>| of(stats)?.checked_sub(of(earlier?)?);
    let per_elapsed = |grown: u64| (elapsed_us > 0).then(|| percent(grown, elapsed_us));
    BayRates {
        name: bay.name.to_string(),
        state: bay.state,
        cpu_percent: grown(|stats| stats.cpu_us).and_then(per_elapsed),
        // A value of one byte per microsecond is 1,000,000 bytes per second, and `per_elapsed` returns percent: hence
        // 10,000.
        read_bytes_per_s: grown(|stats| Some(stats.io?.read_bytes)).and_then(per_elapsed).map(|p| p * 1e4),
        write_bytes_per_s: grown(|stats| Some(stats.io?.write_bytes)).and_then(per_elapsed).map(|p| p * 1e4),
        iowait_percent: grown(|stats| Some(some(stats.pressure.io.as_ref()?).total_us)).and_then(per_elapsed),
        stats: bay.stats,
        limits: bay.limits.clone(),
        disk: bay.disk,
        execs_running: bay.execs_running,
    }
}

fn some(pressure: &bay_types::stats::Pressure) -> Stall {
    pressure.some
}

#[expect(clippy::cast_precision_loss, reason = "only for showing")]
fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole as f64
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::top) fn look(monotonic_us: u64, cpu_us: u64, busy: u64) -> Top {
        let value = serde_json::json!({
            "at": "2026-01-01T00:00:00Z", "monotonic_us": monotonic_us,
            "host": {
                "cpus": 2, "processors": {"busy": busy, "idle": 1000, "iowait": 0, "steal": busy / 10},
                "memory_total_bytes": 8_u64 << 30, "memory_available_bytes": 6_u64 << 30,
                "pressure": {"cpu": null, "memory": null, "io": null},
                "pool_total_bytes": 100_u64 << 30, "pool_free_bytes": 60_u64 << 30
            },
            "bays": [{
                "id": "bay_0190000000007000800000000000abcd", "name": "web", "state": "running",
                "limits": {"memory_mib": 512}, "execs_running": 3,
                "stats": {
                    "cpu_us": cpu_us, "user_us": null, "system_us": null, "throttled_us": null,
                    "memory_bytes": 100 << 20, "memory_peak_bytes": null, "memory_limit_bytes": 512 << 20,
                    "oom_kills": null, "pids": 12, "pids_limit": 8192,
                    "io": {"read_bytes": cpu_us, "write_bytes": 0, "read_ops": null, "write_ops": null, "live": true},
                    "pressure": {
                        "cpu": {"some": {"avg10": 1.5, "total_us": 5}, "full": null}, "memory": null,
                        "io": {"some": {"avg10": 20.0, "total_us": cpu_us / 2}, "full": null}
                    }
                },
                "disk": {"own_bytes": 5 << 20, "shared_bytes": 1 << 30}
            }]
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn rates_are_the_growth_between_two_samples() {
        let rates = between(&look(1_000_000, 0, 0), &look(3_000_000, 3_000_000, 1000));
        let bay = &rates.bays[0];
        assert_eq!(bay.cpu_percent, Some(150.0));
        assert_eq!(bay.read_bytes_per_s, Some(1.5e6));
        assert_eq!(bay.iowait_percent, Some(75.0));
        assert!((rates.host.cpu_percent.unwrap() - 90.9).abs() < 0.1);
        assert!((rates.host.steal_percent.unwrap() - 9.09).abs() < 0.1);
    }

    #[test]
    fn without_elapsed_time_or_after_a_restart_a_bay_has_no_rate() {
        assert_eq!(between(&look(1, 500, 0), &look(2, 100, 0)).bays[0].cpu_percent, None);
        assert_eq!(between(&look(1, 0, 0), &look(1, 5, 0)).bays[0].cpu_percent, None);
        let mut before = look(1, 0, 0);
        before.bays.clear();
        assert_eq!(between(&before, &look(2, 5, 0)).bays[0].cpu_percent, None);
    }
}
