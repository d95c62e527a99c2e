//! What an exec used: from its leaf where that tells, from the kernel's account of the leader where not.
//!
//! This is on the way of every command's end, so each file is one open and one read by descriptor.

use bay_sys::spawn::Reaped;
use bay_types::stats::{IoStats, Pressure, keyed};
use bay_types::usage::{Source, Sources, StallTime, Stalls, Usage};

use super::leaf::Leaf;

/// Room for the longest of the files: `io.stat` has a line per disk.
const BUFFER: usize = 8 << 10;

/// To be called before the leaf is removed. `seen` is the most processes that were seen at once.
pub(super) fn usage(reaped: &Reaped, leaf: Option<&Leaf>, seen: Option<u64>) -> Usage {
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

/// What an exec used that still runs: only its leaf knows.
pub(super) fn so_far(leaf: Option<&Leaf>) -> Usage {
    let Some(leaf) = leaf else { return Usage::default() };
    let mut usage = Usage { processes_peak: Some(leaf.pids().len() as u64), ..Usage::default() };
    usage.sources.processes = Some(Source::Sampled);
    with_leaf(usage, leaf)
}

fn with_leaf(mut usage: Usage, leaf: &Leaf) -> Usage {
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
    // Where version 2 has not got the memory controller it has, as a rule, none of them: two files less to look for.
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

fn number(leaf: &Leaf, file: &str, buffer: &mut [u8]) -> Option<u64> {
    leaf.read(file, buffer)?.trim().parse().ok()
}

/// Most processes at once, learned by looking: soon after the start, when a build has its jobs running, and then ever
/// more rarely. A command that is over at once is never looked at.
#[derive(Debug)]
pub(super) struct Watch {
    seen: Option<u64>,
    wait: std::time::Duration,
    pub(super) next: tokio::time::Instant,
}

impl Watch {
    const FIRST: std::time::Duration = std::time::Duration::from_millis(20);
    const LONGEST: std::time::Duration = std::time::Duration::from_secs(30);

    pub(super) fn new() -> Self {
        Self { seen: None, wait: Self::FIRST, next: tokio::time::Instant::now() + Self::FIRST }
    }

    pub(super) fn look(&mut self, leaf: Option<&Leaf>) {
        if let Some(leaf) = leaf {
            self.seen = self.seen.max(Some(leaf.pids().len() as u64));
        }
        self.wait = (self.wait * 3).min(Self::LONGEST);
        self.next = tokio::time::Instant::now() + self.wait;
    }

    /// The leader itself was one, whatever else was seen.
    pub(super) fn seen(&self) -> Option<u64> {
        Some(self.seen.unwrap_or(1).max(1))
    }
}
