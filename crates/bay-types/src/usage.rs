//! The resource usage of an exec, measured in its bay and reported by its guest. Root in the bay can falsify a
//! guest's numbers; a bay cannot falsify those in [`stats`](crate::stats).
//!
//! Every value may be absent: `null` means that it was not measured, not that it is zero. [`Sources`] says how each
//! value was measured, because a host without all cgroup version 2 controllers measures some only in part.

use serde::{Deserialize, Serialize};

use crate::stats::Pressure;

/// The usage of an exec until its leader ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    pub user_us: Option<u64>,
    pub system_us: Option<u64>,
    /// Largest resident size of any one process.
    pub max_rss_kib: Option<u64>,
    /// Peak memory of all processes together, including the page cache of their files.
    pub memory_peak_bytes: Option<u64>,
    /// Disk I/O, without what the page cache absorbed.
    pub read_bytes: Option<u64>,
    pub write_bytes: Option<u64>,
    /// Most processes at once.
    pub processes_peak: Option<u64>,
    /// Processes that still ran when the leader ended. Their later usage is not included.
    pub processes_left: Option<u64>,
    pub stalls: Stalls,
    pub sources: Sources,
}

/// Time that processes waited for a resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stalls {
    pub cpu: Option<StallTime>,
    pub memory: Option<StallTime>,
    pub io: Option<StallTime>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StallTime {
    /// At least one process waited.
    pub some_us: u64,
    /// All of them waited, so nothing got done.
    pub full_us: Option<u64>,
}

impl From<Pressure> for StallTime {
    fn from(pressure: Pressure) -> Self {
        Self { some_us: pressure.some.total_us, full_us: pressure.full.map(|stall| stall.total_us) }
    }
}

/// How a value was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// From the exec's control group: every process, even those whose parent did not wait for them.
    Cgroup,
    /// From the kernel's accounting of the leader and the children that were waited for.
    WaitedFor,
    /// From the kernel's accounting of the largest process.
    LargestProcess,
    /// By sampling: a peak between samples is missed.
    Sampled,
}

/// How each part of [`Usage`] was measured; absent where it was not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sources {
    pub cpu: Option<Source>,
    pub memory: Option<Source>,
    pub io: Option<Source>,
    pub processes: Option<Source>,
    pub pressure: Option<Source>,
}

impl Usage {
    /// The largest accepted number. Above it, JSON readers lose digits and sums overflow.
    pub const MAX_CLAIM: u64 = 1 << 53;

    /// Limits every number to [`Self::MAX_CLAIM`], for numbers that a guest reports.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let stalls = [&mut self.stalls.cpu, &mut self.stalls.memory, &mut self.stalls.io];
        for stall in stalls.into_iter().flatten() {
            stall.some_us = stall.some_us.min(Self::MAX_CLAIM);
            stall.full_us = stall.full_us.map(|us| us.min(Self::MAX_CLAIM));
        }
        for value in [
            &mut self.user_us,
            &mut self.system_us,
            &mut self.max_rss_kib,
            &mut self.memory_peak_bytes,
            &mut self.read_bytes,
            &mut self.write_bytes,
            &mut self.processes_peak,
            &mut self.processes_left,
        ] {
            *value = value.map(|number| number.min(Self::MAX_CLAIM));
        }
        self
    }

    /// Processor time in the program and in the kernel together.
    #[must_use]
    pub fn cpu_us(&self) -> Option<u64> {
        Some(self.user_us?.saturating_add(self.system_us?))
    }

    /// The best known peak of its memory: of all processes, or of the largest one.
    #[must_use]
    pub fn peak_bytes(&self) -> Option<(u64, Source)> {
        let largest = || Some((self.max_rss_kib?.saturating_mul(1024), Source::LargestProcess));
        self.memory_peak_bytes.map(|bytes| (bytes, Source::Cgroup)).or_else(largest)
    }
}

/// The cost of an exec.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecCost {
    /// Seconds of one processor.
    pub core_s: Option<f64>,
    /// Peak memory times duration, in GiB · s. This is too high if the peak was short, and too low if the peak is
    /// only the largest process's; [`Self::memory_from`] says which.
    pub memory_gib_s_estimate: Option<f64>,
    pub memory_from: Option<Source>,
    /// Bytes written to disks.
    pub disk_written_bytes: Option<u64>,
}

const GIB: f64 = (1_u64 << 30) as f64;

/// Bytes times seconds, in GiB · s.
#[must_use]
#[allow(clippy::cast_precision_loss)] // Exact bytes and nanoseconds do not matter here.
pub fn gib_seconds(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / GIB * seconds.max(0.0)
}

/// Microseconds as seconds.
#[must_use]
#[allow(clippy::cast_precision_loss)]
pub fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

impl ExecCost {
    #[must_use]
    pub fn of(usage: &Usage, duration_s: Option<f64>) -> Self {
        let peak = usage.peak_bytes().zip(duration_s);
        Self {
            core_s: usage.cpu_us().map(seconds),
            memory_gib_s_estimate: peak.map(|((bytes, _), duration)| gib_seconds(bytes, duration)),
            memory_from: peak.map(|((_, from), _)| from),
            disk_written_bytes: usage.write_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_null_and_not_left_out() {
        let json = serde_json::to_value(Usage::default()).unwrap();
        for key in ["user_us", "memory_peak_bytes", "read_bytes", "processes_peak", "processes_left"] {
            assert_eq!(json.get(key), Some(&serde_json::Value::Null), "{key}");
        }
        assert!(json["sources"].get("memory").is_some_and(serde_json::Value::is_null));
        assert!(json["stalls"].get("cpu").is_some_and(serde_json::Value::is_null));
    }

    #[test]
    fn a_record_of_an_earlier_release_is_understood() {
        let old = r#"{"user_us":5,"system_us":6,"max_rss_kib":7}"#;
        let usage: Usage = serde_json::from_str(old).unwrap();
        assert_eq!((usage.user_us, usage.cpu_us(), usage.max_rss_kib), (Some(5), Some(11), Some(7)));
        assert_eq!(usage.sources, Sources::default());
    }

    #[test]
    fn a_guest_s_wild_claims_are_cut_to_what_can_be_added_up() {
        let stall = Some(StallTime { some_us: u64::MAX, full_us: Some(u64::MAX) });
        let wild = Usage {
            user_us: Some(u64::MAX),
            system_us: Some(u64::MAX),
            max_rss_kib: Some(u64::MAX),
            stalls: Stalls { cpu: stall, ..Stalls::default() },
            ..Usage::default()
        };
        let bounded = wild.bounded();
        assert_eq!(bounded.cpu_us(), Some(2 * Usage::MAX_CLAIM));
        assert_eq!(bounded.stalls.cpu.unwrap().full_us, Some(Usage::MAX_CLAIM));
        assert!(ExecCost::of(&bounded, Some(1e9)).memory_gib_s_estimate.unwrap().is_finite());
        assert_eq!(bounded.bounded(), bounded);
    }

    #[test]
    fn an_exec_costs_its_processor_time_and_its_peak_for_as_long_as_it_ran() {
        let usage = Usage {
            user_us: Some(1_500_000),
            system_us: Some(500_000),
            max_rss_kib: Some(1 << 20),
            write_bytes: Some(9),
            ..Usage::default()
        };
        let cost = ExecCost::of(&usage, Some(3.0));
        assert_eq!((cost.core_s, cost.memory_gib_s_estimate), (Some(2.0), Some(3.0)));
        assert_eq!((cost.memory_from, cost.disk_written_bytes), (Some(Source::LargestProcess), Some(9)));
        assert_eq!(ExecCost::of(&usage, None).memory_gib_s_estimate, None);
    }
}
