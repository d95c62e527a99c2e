//! `GET /v1/top`: all bays at one moment, and the host they share.
//!
//! The answer has counters, not rates: a client computes rates from two answers, whatever time lies between them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bay::{Limits, State};
use crate::id::{BayId, BayName};
use crate::stats::{BayStats, Pressures};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Top {
    pub at: Timestamp,
    /// A monotonic clock, for dividing counters.
    pub monotonic_us: u64,
    pub host: HostUse,
    /// Oldest first.
    pub bays: Vec<BayUse>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostUse {
    pub cpus: u64,
    pub processors: ProcessorTime,
    pub memory_total_bytes: u64,
    /// Memory that programs can still get, including caches that can be dropped.
    pub memory_available_bytes: u64,
    pub pressure: Pressures,
    pub pool_total_bytes: Option<u64>,
    pub pool_free_bytes: Option<u64>,
}

/// What all processors of the host did since boot, in clock ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessorTime {
    pub busy: u64,
    pub idle: u64,
    /// Idle, while something waited for a disk.
    pub iowait: u64,
    /// Taken by another virtual machine on the same hardware.
    pub steal: u64,
}

impl ProcessorTime {
    /// Parses `/proc/stat`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
        let &[user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks.as_slice() else {
            return None;
        };
        // `user` and `nice` already include the time of virtual machines.
        let busy = [user, nice, system, irq, softirq].into_iter().fold(0, u64::saturating_add);
        Some(Self { busy, idle, iowait, steal })
    }

    #[must_use]
    pub fn total(&self) -> u64 {
        [self.busy, self.idle, self.iowait, self.steal].into_iter().fold(0, u64::saturating_add)
    }
}

/// One bay at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BayUse {
    pub id: BayId,
    pub name: BayName,
    pub state: State,
    pub limits: Limits,
    pub execs_running: u64,
    /// All absent if the bay does not run.
    pub stats: BayStats,
    /// Counted from time to time: it may be some seconds old, and is absent until counted once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskUse>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUse {
    /// Disk space that only this bay uses.
    pub own_bytes: u64,
    /// Disk space of its image, shared with other bays until it changes the files.
    pub shared_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_processor_time_is_read() {
        let text = "cpu  10 1 5 100 7 2 3 4 99 0\ncpu0 1 1 1 1 1 1 1 1 0 0\nintr 5\n";
        let time = ProcessorTime::parse(text).unwrap();
        assert_eq!(time, ProcessorTime { busy: 21, idle: 100, iowait: 7, steal: 4 });
        assert_eq!(time.total(), 132);
        for odd in ["", "cpu 1 2 3\n", "cpu0 1 2 3 4 5 6 7 8\n", "cpu a b c d e f g h"] {
            assert_eq!(ProcessorTime::parse(odd), None, "{odd}");
        }
    }
}
