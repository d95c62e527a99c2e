//! Disk and memory.

use std::path::Path;

use tokio::process::Command;

use super::proc::read;
use super::{Check, Subject};
use crate::daemon_start::DaemonLocation;
use crate::output::size;

/// Below this size a pool cannot hold the host's tools and a few bays.
const ENOUGH_DISK: u64 = 8 << 30;
/// Below this size no pool can be made.
const LEAST_DISK: u64 = 2 << 30;
const ENOUGH_MEMORY: u64 = 1 << 30;

pub(super) fn btrfs() -> Check {
    let subject = Subject {
        id: "btrfs",
        title: "btrfs in the kernel",
        required: true,
        cost: "the pool, which contains images, workspaces and roots, cannot be mounted",
        fix: "load it with `modprobe btrfs`, or install the kernel package that has it (linux-modules-extra)",
    };
    let known = read("/proc/filesystems").unwrap_or_default();
    if known.lines().any(|line| line.ends_with("\tbtrfs")) {
        return subject.ok("available");
    }
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let modules = read(&format!("/lib/modules/{release}/modules.dep")).unwrap_or_default();
    if modules.contains("/btrfs.ko") {
        subject.ok("as a module")
    } else {
        subject.missing("not in this kernel")
    }
}

pub(super) async fn mkfs() -> Check {
    let subject = Subject {
        id: "mkfs-btrfs",
        title: "mkfs.btrfs",
        required: true,
        cost: "a new pool cannot be made (one on a btrfs disk of yours still can be used)",
        fix: "apt install btrfs-progs",
    };
    let paths = ["/usr/sbin/mkfs.btrfs", "/sbin/mkfs.btrfs", "/usr/bin/mkfs.btrfs"];
    if let Some(path) = paths.iter().find(|path| Path::new(path).exists()) {
        return subject.ok(*path);
    }
    match Command::new("mkfs.btrfs").arg("--version").output().await {
        Ok(_) => subject.ok("found"),
        Err(_) => subject.missing("not installed"),
    }
}

pub(super) fn loop_devices(root: bool) -> Check {
    let subject = Subject {
        id: "loop-devices",
        title: "loop devices",
        required: false,
        cost: "the pool cannot be a file: it needs a btrfs filesystem of its own (--pool)",
        fix: "load them with `modprobe loop`; in a container, give it /dev/loop-control",
    };
    match std::fs::OpenOptions::new().read(true).write(true).open("/dev/loop-control") {
        Ok(_) => subject.ok("available"),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied && !root => {
            subject.unknown("there, but only root may use them")
        }
        Err(error) => subject.missing(error.to_string()),
    }
}

pub(super) fn space(location: &DaemonLocation) -> Check {
    let subject = Subject {
        id: "disk-space",
        title: "disk space",
        required: true,
        cost: "the pool holds the host's tools once and every bay's changes; with less it fills up soon",
        fix: "free some, or put the pool on another disk with --pool",
    };
    let existing = location.pool.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let Ok(stat) = rustix::fs::statvfs(existing) else {
        return subject.unknown(format!("{} could not be read", existing.display()));
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let found = format!("{} free at {}", size(free), existing.display());
    // An existing pool has its space already.
    let has_pool = location.pool.join("pool.img").exists();
    match free {
        free if free >= ENOUGH_DISK => subject.ok(found),
        free if free >= LEAST_DISK || has_pool => subject.limited(found),
        _ => subject.missing(found),
    }
}

pub(super) fn memory() -> Check {
    let subject = Subject {
        id: "memory",
        title: "memory",
        required: false,
        cost: "builds and tests inside bays may be killed for lack of memory",
        fix: "stop what else runs, or give the machine more",
    };
    let kib = read("/proc/meminfo").and_then(|text| {
        let value = super::proc::field(&text, "MemAvailable")?;
        value.split(' ').next()?.parse::<u64>().ok()
    });
    match kib.map(|kib| kib.saturating_mul(1024)) {
        Some(bytes) if bytes >= ENOUGH_MEMORY => subject.ok(format!("{} available", size(bytes))),
        Some(bytes) => subject.limited(format!("{} available", size(bytes))),
        None => subject.unknown("could not be read"),
    }
}
