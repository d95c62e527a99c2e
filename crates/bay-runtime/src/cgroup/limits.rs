//! Sets a bay's limits, when it starts and while it runs, in the version of cgroups that has the controller.
//!
//! A limit that was asked for and cannot be set is an error, so that nobody relies on a missing limit. A memory limit
//! below what the bay holds and the kernel cannot reclaim is refused, because the kernel would kill processes for it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bay_types::bay::Limits;

use super::{Hierarchies, STEP};
use crate::failure::{Failure, Try};

/// Period of the CPU quota in microseconds; the kernel's default.
const CPU_PERIOD_US: f64 = 100_000.0;
/// The shortest quota that the kernel accepts.
const SHORTEST_QUOTA_US: f64 = 1000.0;
/// The default weight of a group on version 2, which equals [`Limits::EQUAL_CPU_SHARES`] on version 1.
const EQUAL_WEIGHT: u64 = 100;
const WEIGHTS: std::ops::RangeInclusive<u64> = 1..=10_000;
/// Memory of a group that the kernel cannot reclaim without killing: lines of `memory.stat` on version 2.
const HELD: [&str; 5] = ["anon", "shmem", "slab_unreclaimable", "kernel_stack", "pagetables"];

/// What else is needed to set limits.
#[derive(Debug, Clone, Copy)]
pub struct LimitContext<'a> {
    /// The number of this bay among all. Bays with few processors are spread over the host's by it.
    pub turn: u32,
    /// The disks of the pool, each as `major:minor`.
    pub devices: &'a [String],
}

impl Hierarchies {
    /// Whether this host has the controllers for these limits of processors, memory and disk.
    ///
    /// # Errors
    /// Names the first missing controller.
    pub fn can_keep(&self, limits: &Limits) -> Result<(), Failure> {
        let io = limits.io_read_mibps.is_some() || limits.io_write_mibps.is_some();
        let offered = fs::read_to_string(self.v2.join("cgroup.controllers")).unwrap_or_default();
        for (asked, v2, v1) in [
            (limits.cpus.is_some() || limits.cpu_shares.is_some(), "cpu", "cpu"),
            (limits.memory_mib.is_some(), "memory", "memory"),
            (io, "io", "blkio"),
        ] {
            let has = offered.split_ascii_whitespace().any(|name| name == v2) || self.v1_root(v1).is_some();
            if asked && !has {
                return Err(missing(v2));
            }
        }
        Ok(())
    }

    /// Sets the limits of a bay whose groups exist. What is not limited is left alone in a `fresh` group, and otherwise
    /// reset to the default. The number of processes always gets a limit, if the host has the controller.
    ///
    /// # Errors
    /// `ResourceBusy` if the bay holds more memory than the new limit; `Unsupported` if the host lacks a controller.
    /// Limits that were set before the error stay set; the daemon restores the old ones.
    pub fn set_limits(
        &self,
        group: &Path,
        limits: &Limits,
        placing: LimitContext<'_>,
        fresh: bool,
    ) -> Result<(), Failure> {
        // First, because it may be refused.
        self.set_memory(group, limits.memory_mib, fresh)?;
        let pids = limits.pids.unwrap_or(Limits::DEFAULT_PIDS).to_string();
        self.set(
            group,
            ("pids", "pids"),
            &[("pids.max", &pids)],
            &[("pids.max", &pids)],
            limits.pids.is_some(),
        )?;
        if limits.cpus.is_some() || !fresh {
            let quota =
                limits.cpus.map(|cpus| format!("{:.0}", (cpus * CPU_PERIOD_US).max(SHORTEST_QUOTA_US)));
            let v2 = format!("{} {CPU_PERIOD_US:.0}", quota.as_deref().unwrap_or("max"));
            let v1 = quota.as_deref().unwrap_or("-1");
            self.set(
                group,
                ("cpu", "cpu"),
                &[("cpu.max", &v2)],
                &[("cpu.cfs_quota_us", v1)],
                limits.cpus.is_some(),
            )?;
        }
        if limits.cpu_shares.is_some() || !fresh {
            let shares = limits.cpu_shares.unwrap_or(Limits::EQUAL_CPU_SHARES);
            let (weight, shares) = (weight(shares).to_string(), shares.to_string());
            let asked = limits.cpu_shares.is_some();
            self.set(group, ("cpu", "cpu"), &[("cpu.weight", &weight)], &[("cpu.shares", &shares)], asked)?;
        }
        self.set_io(group, limits, placing.devices, fresh)?;
        self.set_processors(group, limits.cpus, placing.turn, fresh)
    }

    fn set_memory(&self, group: &Path, mib: Option<u64>, fresh: bool) -> Result<(), Failure> {
        if mib.is_none() && fresh {
            return Ok(());
        }
        let bytes = mib.map(|mib| mib << 20);
        let text = bytes.map(|bytes| bytes.to_string());
        if let Some(bytes) = bytes
            && let Ok(stat) = fs::read_to_string(self.v2.join(group).join("memory.stat"))
            && let held = held_bytes(&stat)
            && held > bytes
        {
            // The kernel would accept the limit, and kill processes until it is met.
            return Err(limit_too_low(Some(held)));
        }
        // Without the second line, the bay would use swap beyond the limit.
        let swap = if mib.is_some() { "0" } else { "max" };
        let v2 = [("memory.max", text.as_deref().unwrap_or("max")), ("memory.swap.max", swap)];
        let v1_text = text.as_deref().unwrap_or("-1");
        let mut v1 = [("memory.limit_in_bytes", v1_text), ("memory.memsw.limit_in_bytes", v1_text)];
        // The limit of memory must never exceed the limit of memory and swap together.
        let now = self.v1_root("memory").and_then(|root| number(&root.join(group).join(v1[0].0)));
        if bytes.unwrap_or(u64::MAX) > now.unwrap_or(u64::MAX) {
            v1.reverse();
        }
        match self.set(group, ("memory", "memory"), &v2, &v1, mib.is_some()) {
            Err(failure) if failure.source.kind() == io::ErrorKind::ResourceBusy => Err(limit_too_low(None)),
            other => other,
        }
    }

    fn set_io(&self, group: &Path, limits: &Limits, devices: &[String], fresh: bool) -> Result<(), Failure> {
        let asked = limits.io_read_mibps.is_some() || limits.io_write_mibps.is_some();
        if !asked && fresh {
            return Ok(());
        }
        if asked && devices.is_empty() {
            let what = "the disk below the pool is not known, so its reading and writing cannot be limited";
            return Err(Failure::new(STEP, what, io::Error::from(io::ErrorKind::Unsupported)));
        }
        let (read, write) = (limits.io_read_mibps.map(|n| n << 20), limits.io_write_mibps.map(|n| n << 20));
        for device in devices {
            let or =
                |bytes: Option<u64>, none: &str| bytes.map_or_else(|| none.to_owned(), |b| b.to_string());
            let v2 = format!("{device} rbps={} wbps={}", or(read, "max"), or(write, "max"));
            let v1 = [read, write].map(|bytes| format!("{device} {}", or(bytes, "0")));
            self.set(
                group,
                ("io", "blkio"),
                &[("io.max", &v2)],
                &[("blkio.throttle.read_bps_device", &v1[0]), ("blkio.throttle.write_bps_device", &v1[1])],
                asked,
            )?;
        }
        Ok(())
    }

    /// Writes the files of one controller, each with its names on version 2 and version 1. The host has the
    /// controller in the version in which one of its files exists. A file that does not exist is skipped: the kernel
    /// lacks that feature, for example swap accounting.
    fn set(
        &self,
        group: &Path,
        controller: (&str, &str),
        v2: &[(&str, &str)],
        v1: &[(&str, &str)],
        asked_for: bool,
    ) -> Result<(), Failure> {
        let v1_group = self.v1_root(controller.1).map(|root| root.join(group));
        let places = [(Some(self.v2.join(group)), v2), (v1_group, v1)];
        let place = places.iter().find_map(|(dir, files)| {
            let dir = dir.as_ref()?;
            files.iter().any(|(file, _)| dir.join(file).exists()).then_some((dir, files))
        });
        let Some((dir, files)) = place else {
            return if asked_for { Err(missing(controller.0)) } else { Ok(()) };
        };
        for (file, value) in *files {
            let path = dir.join(file);
            if path.exists() {
                write(&path, value)?;
            }
        }
        Ok(())
    }
}

pub(super) fn write(path: &Path, value: &str) -> Result<(), Failure> {
    fs::write(path, value).at(STEP, || format!("could not set {} to {value:?}", path.display()))
}

fn missing(controller: &str) -> Failure {
    let what = format!("this host has no {controller} controller, so the requested limit cannot be enforced");
    Failure::new(STEP, what, io::Error::from(io::ErrorKind::Unsupported))
}

fn limit_too_low(held: Option<u64>) -> Failure {
    let much = held.map(|bytes| format!(" ({} MiB)", bytes >> 20)).unwrap_or_default();
    let what = format!("more memory than that{much}, and none is taken from what runs");
    Failure::new(STEP, what, io::Error::from(io::ErrorKind::ResourceBusy))
}

fn weight(shares: u64) -> u64 {
    (shares * EQUAL_WEIGHT / Limits::EQUAL_CPU_SHARES).clamp(*WEIGHTS.start(), *WEIGHTS.end())
}

/// The memory of a group that the kernel cannot reclaim, from its `memory.stat`.
fn held_bytes(stat: &str) -> u64 {
    stat.lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| HELD.contains(name))
        .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
        .fold(0, u64::saturating_add)
}

fn number(path: &PathBuf) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_equal_share_is_the_same_in_both_versions() {
        assert_eq!(weight(Limits::EQUAL_CPU_SHARES), EQUAL_WEIGHT);
        assert_eq!(weight(Limits::MIN_CPU_SHARES), 1);
        assert_eq!(weight(Limits::MAX_CPU_SHARES), 6400);
        assert_eq!(weight(2 * Limits::EQUAL_CPU_SHARES), 2 * EQUAL_WEIGHT);
    }

    #[test]
    fn reclaimable_memory_does_not_count_as_held() {
        let stat =
            "anon 1000\nfile 5000\nkernel_stack 20\nshmem 300\nslab_reclaimable 7000\nodd\nanon_thp 9\n";
        assert_eq!(held_bytes(stat), 1320);
        assert_eq!(held_bytes(""), 0);
    }
}
