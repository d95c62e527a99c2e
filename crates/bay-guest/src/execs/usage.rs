//! What an exec used: from its cgroup leaf if that has it, otherwise from what the kernel counted for the leader.
//!
//! The end of every command waits for this, so each file costs one open and one read.

use bay_sys::spawn::Reaped;
use bay_types::stats::{IoStats, Pressure, keyed};
use bay_types::usage::{Source, Sources, StallTime, Stalls, Usage};

use super::process_tree::CgroupLeaf;

/// Most bytes of a file that are read. The longest is `io.stat`, with a line per disk.
const BUFFER: usize = 8 << 10;

/// The usage of an exec whose leader was reaped. Must be called before the leaf is removed. `seen` is the highest
/// number of processes that was seen at once.
pub(super) fn of_ended(reaped: &Reaped, leaf: Option<&CgroupLeaf>, seen: Option<u64>) -> Usage {
    let account = Usage {
        user_us: Some(reaped.user_us),
        system_us: Some(reaped.system_us),
        max_rss_kib: Some(reaped.max_rss_kib),
        read_bytes: Some(reaped.read_bytes),
        write_bytes: Some(reaped.write_bytes),
        processes_peak: seen,
        sources: Sources {
            cpu: Some(Source::WaitedFor),
            memory: Some(Source::LargestProcess),
            io: Some(Source::WaitedFor),
            processes: seen.map(|_| Source::Sampled),
            pressure: None,
        },
        ..Usage::default()
    };
    leaf.map_or(account, |leaf| with_leaf(account, leaf))
}

/// What a running exec has used so far. Without a leaf nothing is known.
pub(super) fn of_running(leaf: Option<&CgroupLeaf>) -> Usage {
    let Some(leaf) = leaf else { return Usage::default() };
    let mut usage = Usage { processes_peak: Some(leaf.pids().len() as u64), ..Usage::default() };
    usage.sources.processes = Some(Source::Sampled);
    with_leaf(usage, leaf)
}

fn with_leaf(mut usage: Usage, leaf: &CgroupLeaf) -> Usage {
    let mut buffer = [0; BUFFER];
    if let Some(text) = leaf.read("cpu.stat", &mut buffer)
        && let (Some(user), Some(system)) = (keyed(text, "user_usec"), keyed(text, "system_usec"))
    {
        (usage.user_us, usage.system_us) = (Some(user), Some(system));
        usage.sources.cpu = Some(Source::Cgroup);
    }
    let mut stall = |file| leaf.read(file, &mut buffer).and_then(Pressure::parse).map(StallTime::from);
    usage.stalls =
        Stalls { cpu: stall("cpu.pressure"), memory: stall("memory.pressure"), io: stall("io.pressure") };
    usage.sources.pressure = usage.stalls.cpu.map(|_| Source::Cgroup);
    // If cgroup v2 does not have the memory controller, it usually has no controller at all. Then the other two files
    // are not tried.
    if let Some(peak) = number(leaf, "memory.peak", &mut buffer) {
        usage.memory_peak_bytes = Some(peak);
        usage.sources.memory = Some(Source::Cgroup);
    } else if leaf.read("memory.current", &mut buffer).is_none() {
        return usage;
    }
    if let Some(peak) = number(leaf, "pids.peak", &mut buffer) {
        usage.processes_peak = Some(peak);
        usage.sources.processes = Some(Source::Cgroup);
    }
    if let Some(text) = leaf.read("io.stat", &mut buffer) {
        let io = IoStats::parse_v2(text);
        (usage.read_bytes, usage.write_bytes) = (Some(io.read_bytes), Some(io.write_bytes));
        usage.sources.io = Some(Source::Cgroup);
    }
    usage
}

fn number(leaf: &CgroupLeaf, file: &str, buffer: &mut [u8]) -> Option<u64> {
    leaf.read(file, buffer)?.trim().parse().ok()
}

/// Counts the processes of an exec from time to time, to find the highest number at once: soon after the start, when a
/// build has started its jobs, and then less and less often. A command that ends at once is never counted.
#[derive(Debug)]
pub(super) struct PeakProcesses {
    seen: Option<u64>,
    wait: std::time::Duration,
    pub(super) next: tokio::time::Instant,
}

impl PeakProcesses {
    const FIRST: std::time::Duration = std::time::Duration::from_millis(20);
    const LONGEST: std::time::Duration = std::time::Duration::from_secs(30);

    pub(super) fn new() -> Self {
        Self { seen: None, wait: Self::FIRST, next: tokio::time::Instant::now() + Self::FIRST }
    }

    pub(super) fn count(&mut self, leaf: Option<&CgroupLeaf>) {
        if let Some(leaf) = leaf {
            self.seen = self.seen.max(Some(leaf.pids().len() as u64));
        }
        self.wait = (self.wait * 3).min(Self::LONGEST);
        self.next = tokio::time::Instant::now() + self.wait;
    }

    /// The highest number; at least one, because of the leader.
    pub(super) fn seen(&self) -> Option<u64> {
        Some(self.seen.unwrap_or(1).max(1))
    }
}
