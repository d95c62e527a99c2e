//! What a bay uses of the host, measured by the host: numbers that a bay cannot forge.
//!
//! Values of [`BayStats`] may be absent: `null` means that this host does not measure them, not that they are zero.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// One bay at one moment, read from its control groups. Counters restart with each runtime.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct BayStats {
    /// Processor time of everything in the bay, PID 1 included.
    pub cpu_us: Option<u64>,
    pub user_us: Option<u64>,
    pub system_us: Option<u64>,
    /// Time in which the quota kept the bay from running.
    pub throttled_us: Option<u64>,
    /// Includes the page cache of its files.
    pub memory_bytes: Option<u64>,
    pub memory_peak_bytes: Option<u64>,
    /// Absent also without a limit.
    pub memory_limit_bytes: Option<u64>,
    /// Processes the kernel killed because the bay's memory was used up.
    pub oom_kills: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    pub pids_limit: Option<u64>,
    pub io: Option<IoStats>,
    pub pressure: Pressures,
}

/// How often a bay reached its limits since its runtime started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitEvents {
    /// Processes killed because memory was used up.
    pub oom_kills: u64,
    /// Processes that could not start because the limit was reached.
    pub forks_refused: u64,
}

/// Network use of a bay, without loopback.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetworkUse {
    /// Established TCP connections to other hosts.
    pub external_connections: usize,
    /// Bytes in and out, over every interface but loopback.
    pub external_bytes: u64,
}

/// The resource usage of a bay in its whole life, over all its runtimes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BayCost {
    /// Seconds of one processor.
    pub core_s: f64,
    /// Memory in use, integrated over samples every few seconds; includes the page cache.
    pub memory_gib_s: f64,
    /// Disk space of the bay's own, integrated over time.
    pub disk_gib_s: f64,
    /// Its own disk space at the last count; absent before the first one.
    pub disk_bytes: Option<u64>,
    /// When counting began. Memory and disk are not counted while no daemon runs.
    pub since: Timestamp,
}

/// Disk I/O, over all disks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoStats {
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub read_ops: Option<u64>,
    pub write_ops: Option<u64>,
    /// Whether running processes are counted. Without an I/O controller, the kernel reports only PID 1 and the
    /// processes that have ended.
    pub live: bool,
}

/// Pressure stall information by resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Pressures {
    pub cpu: Option<Pressure>,
    pub memory: Option<Pressure>,
    pub io: Option<Pressure>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Pressure {
    /// At least one process waited for the resource.
    pub some: Stall,
    /// All processes waited. Older kernels do not report it for the processor.
    pub full: Option<Stall>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Stall {
    /// Share of the last ten seconds, in percent.
    pub avg10: f64,
    pub total_us: u64,
}

impl Pressure {
    /// Parses a `*.pressure` file.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let stall = |kind: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
            let value =
                |key: &str| line.split(' ').find_map(|field| field.strip_prefix(key)?.strip_prefix('='));
            let avg10: f64 = value("avg10")?.parse().ok()?;
            Some(Stall {
                avg10: if avg10.is_finite() { avg10 } else { 0.0 },
                total_us: value("total")?.parse().ok()?,
            })
        };
        Some(Self { some: stall("some")?, full: stall("full") })
    }
}

/// The number after `key` in a file of `key number` lines.
#[must_use]
pub fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

impl IoStats {
    /// Major number of loop devices. Their I/O is counted again at the disk below.
    const LOOP_MAJOR: &'static str = "7";

    /// Parses cgroup version 2's `io.stat`.
    #[must_use]
    pub fn parse_v2(text: &str) -> Self {
        let (mut bytes, mut operations) = ([0_u64; 2], [0_u64; 2]);
        for line in text.lines() {
            let mut fields = line.split_ascii_whitespace();
            if fields.next().is_none_or(Self::is_loop) {
                continue;
            }
            for (key, value) in fields.filter_map(|field| field.split_once('=')) {
                let slot = match key {
                    "rbytes" => &mut bytes[0],
                    "wbytes" => &mut bytes[1],
                    "rios" => &mut operations[0],
                    "wios" => &mut operations[1],
                    _ => continue,
                };
                *slot = slot.saturating_add(value.parse().unwrap_or(0));
            }
        }
        Self::of_group(bytes, operations)
    }

    /// Parses cgroup version 1's `blkio.throttle.io_service_bytes_recursive` and
    /// `blkio.throttle.io_serviced_recursive`. The kernel counts there only for devices with a limit.
    #[must_use]
    pub fn parse_v1(bytes: &str, operations: &str) -> Option<Self> {
        let sum = |text: &str, kind: &str| {
            let values = text.lines().filter_map(|line| {
                let mut fields = line.split_ascii_whitespace();
                let (device, of) = (fields.next()?, fields.next()?);
                (of == kind && !Self::is_loop(device)).then(|| fields.next()?.parse::<u64>().ok())?
            });
            values.fold(None, |sum: Option<u64>, value| Some(sum.unwrap_or(0).saturating_add(value)))
        };
        let of = |kind| Some((sum(bytes, kind)?, sum(operations, kind)?));
        let (read, write) = (of("Read")?, of("Write")?);
        Some(Self::of_group([read.0, write.0], [read.1, write.1]))
    }

    /// Parses `/proc/PID/io`. For PID 1 it includes all processes that it has reaped, and those that they had
    /// reaped.
    #[must_use]
    pub fn parse_process(text: &str) -> Option<Self> {
        Some(Self {
            read_bytes: keyed(text, "read_bytes:")?,
            // Data that was deleted before it reached the disk was never written.
            write_bytes: keyed(text, "write_bytes:")?.saturating_sub(keyed(text, "cancelled_write_bytes:")?),
            ..Self::default()
        })
    }

    fn of_group(bytes: [u64; 2], operations: [u64; 2]) -> Self {
        Self {
            read_bytes: bytes[0],
            write_bytes: bytes[1],
            read_ops: Some(operations[0]),
            write_ops: Some(operations[1]),
            live: true,
        }
    }

    fn is_loop(device: &str) -> bool {
        device.split(':').next() == Some(Self::LOOP_MAJOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pressure_file_is_understood_with_and_without_its_second_line() {
        let text = "some avg10=1.50 avg60=0.20 avg300=0.00 total=12345\nfull avg10=0.50 avg60=0.0 avg300=0.00 total=67\n";
        let both = Pressure::parse(text).unwrap();
        assert_eq!(both.some, Stall { avg10: 1.5, total_us: 12345 });
        assert_eq!(both.full, Some(Stall { avg10: 0.5, total_us: 67 }));
        assert_eq!(Pressure::parse(text.lines().next().unwrap()).unwrap().full, None);
        assert_eq!(Pressure::parse(""), None);
        assert_eq!(Pressure::parse("some avg10=x total=1"), None);
    }

    #[test]
    fn keys_are_whole_words() {
        let text = "usage_usec 7\nuser_usec 3\nuser_usec_more 9\n";
        assert_eq!(keyed(text, "user_usec"), Some(3));
        assert_eq!(keyed(text, "user"), None);
    }

    #[test]
    fn what_goes_through_a_loop_device_is_counted_once() {
        let v2 = "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n7:0 rbytes=9 wbytes=9 rios=9 wios=9\n8:0\n";
        let expected = IoStats {
            read_bytes: 4096,
            write_bytes: 8192,
            read_ops: Some(1),
            write_ops: Some(2),
            live: true,
        };
        assert_eq!(IoStats::parse_v2(v2), expected);
        let bytes = "254:0 Read 4096\n254:0 Write 8192\n254:0 Sync 1\n7:0 Read 9\nTotal 12297\n";
        let operations = "254:0 Read 1\n254:0 Write 2\n7:0 Write 9\nTotal 12\n";
        assert_eq!(IoStats::parse_v1(bytes, operations), Some(expected));
    }

    #[test]
    fn a_group_that_counts_nothing_is_not_taken_for_one_that_did_nothing() {
        assert_eq!(IoStats::parse_v1("Total 0\n", "Total 0\n"), None);
    }

    #[test]
    fn what_a_process_wrote_and_took_back_is_not_counted() {
        let text = "rchar: 1\nwchar: 2\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 4096\n";
        let found = IoStats::parse_process(text).unwrap();
        assert_eq!((found.read_bytes, found.write_bytes, found.live), (4096, 4096, false));
    }
}
