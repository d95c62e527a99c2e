//! `GET /metrics`: what the machine of the bay has and uses, as `/proc` inside the bay and its root filesystem show it.

use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use serde::Serialize;

use crate::procfs;

/// Longest file of `/proc` that is read.
const MAX_FILE: u64 = 64 << 10;
const MIB: u64 = 1 << 20;

#[derive(Debug, Serialize)]
pub(super) struct Metrics {
    ts: i64,
    cpu_count: usize,
    cpu_used_pct: f64,
    mem_total: u64,
    mem_used: u64,
    mem_cache: u64,
    mem_total_mib: u64,
    mem_used_mib: u64,
    disk_used: u64,
    disk_total: u64,
}

/// Ticks of all processors since boot: in use, and in total.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Ticks {
    used: u64,
    total: u64,
}

/// The ticks of the last reading, because use is the difference between two readings.
#[derive(Debug, Default)]
pub(super) struct Meter(Mutex<Ticks>);

impl Meter {
    pub(super) fn read(&self, root: BorrowedFd<'_>) -> Metrics {
        let (ticks, cpu_count) = parse_stat(&procfs::read_text("stat", MAX_FILE));
        let memory = procfs::read_text("meminfo", MAX_FILE);
        let (total, free) = (field(&memory, "MemTotal"), field(&memory, "MemAvailable"));
        let disk = rustix::fs::fstatvfs(root).ok();
        let disk_total = disk.as_ref().map_or(0, |d| d.f_blocks.saturating_mul(d.f_frsize));
        let disk_free = disk.as_ref().map_or(0, |d| d.f_bfree.saturating_mul(d.f_frsize));
        let mem_used = total.saturating_sub(free);
        Metrics {
            ts: Timestamp::now().as_second(),
            cpu_count,
            cpu_used_pct: self.used_since(ticks),
            mem_total: total,
            mem_used,
            mem_cache: field(&memory, "Cached"),
            mem_total_mib: total / MIB,
            mem_used_mib: mem_used / MIB,
            disk_used: disk_total.saturating_sub(disk_free),
            disk_total,
        }
    }

    /// The percentage of all processors in use since the last reading or, for the first, since boot.
    fn used_since(&self, now: Ticks) -> f64 {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let used = now.used.saturating_sub(last.used);
        let total = now.total.saturating_sub(last.total);
        *last = now;
        let hundredths = used.saturating_mul(10_000).checked_div(total).unwrap_or(0).min(10_000);
        f64::from(u32::try_from(hundredths).unwrap_or(0)) / 100.0
    }
}

fn parse_stat(text: &str) -> (Ticks, usize) {
    let mut ticks = Ticks::default();
    if let Some(line) = text.lines().find_map(|l| l.strip_prefix("cpu ")) {
        // user nice system idle iowait irq softirq steal; the time of virtual machines is in the first two already.
        let numbers: Vec<u64> =
            line.split_ascii_whitespace().take(8).filter_map(|n| n.parse().ok()).collect();
        ticks.total = numbers.iter().fold(0, |sum, n| sum.saturating_add(*n));
        let idle = numbers.iter().skip(3).take(2).fold(0_u64, |sum, n| sum.saturating_add(*n));
        ticks.used = ticks.total.saturating_sub(idle);
    }
    let numbered =
        |l: &&str| l.strip_prefix("cpu").is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit()));
    (ticks, text.lines().filter(numbered).count().max(1))
}

/// The value of a line of `/proc/meminfo`, in bytes.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|l| l.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_the_difference_between_two_readings() {
        let (first, cpus) = parse_stat("cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1 2\ncpu1 1 2\nintr 5\n");
        assert_eq!((first, cpus), (Ticks { used: 20, total: 100 }, 2));
        let meter = Meter::default();
        assert!((meter.used_since(first) - 20.0).abs() < 0.01);
        assert!((meter.used_since(Ticks { used: 70, total: 200 }) - 50.0).abs() < 0.01);
        assert!((meter.used_since(Ticks { used: 70, total: 200 })).abs() < 0.01);
        assert_eq!(parse_stat("").1, 1);
        assert_eq!(field("MemTotal:       2 kB\nMemTotalX: 9 kB\n", "MemTotal"), 2048);
    }
}
