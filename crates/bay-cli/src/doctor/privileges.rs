//! The privileges of this process.

use super::proc::{field, read};
use super::{Check, Subject};

/// Capabilities that the daemon and its helper use, with their numbers.
const NEEDED: [(u32, &str); 12] = [
    (0, "CAP_CHOWN"),
    (1, "CAP_DAC_OVERRIDE"),
    (3, "CAP_FOWNER"),
    (5, "CAP_KILL"),
    (6, "CAP_SETGID"),
    (7, "CAP_SETUID"),
    (12, "CAP_NET_ADMIN"),
    (18, "CAP_SYS_CHROOT"),
    (19, "CAP_SYS_PTRACE"),
    (21, "CAP_SYS_ADMIN"),
    (27, "CAP_MKNOD"),
    (31, "CAP_SETFCAP"),
];
const SYS_RESOURCE: u32 = 24;

fn effective() -> Option<u64> {
    let status = read("/proc/self/status")?;
    u64::from_str_radix(&field(&status, "CapEff")?, 16).ok()
}

pub(super) fn root(root: bool) -> Check {
    let subject = Subject {
        id: "root",
        title: "root",
        required: false,
        cost: "the daemon cannot be started by this user, and some of these checks could not be made",
        fix: "run `sudo bay doctor`",
    };
    if root { subject.ok("yes") } else { subject.unknown("no") }
}

pub(super) fn capabilities(root: bool) -> Check {
    let subject = Subject {
        id: "capabilities",
        title: "capabilities",
        required: true,
        cost: "namespaces, mounts or networks of bays cannot be made",
        fix: "run the daemon as full root; in a container, give it the missing ones",
    };
    let Some(held) = effective() else {
        return subject.unknown("could not be read");
    };
    if !root {
        return subject.unknown("only root's would count");
    }
    let lacking: Vec<&str> =
        NEEDED.iter().filter(|(bit, _)| held >> bit & 1 == 0).map(|(_, name)| *name).collect();
    if lacking.is_empty() {
        subject.ok("all that are needed")
    } else {
        subject.missing(format!("without {}", lacking.join(", ")))
    }
}

pub(super) fn resource_limits(root: bool) -> Check {
    let subject = Subject {
        id: "cap-sys-resource",
        title: "raising resource limits",
        required: false,
        cost: "rlimits inside bays cannot be raised above the daemon's, and the OOM killer's choice cannot be guided",
        fix: "give the daemon CAP_SYS_RESOURCE, or raise its own limits before it starts",
    };
    match effective() {
        None => subject.unknown("could not be read"),
        Some(_) if !root => subject.unknown("only root's would count"),
        Some(held) if held >> SYS_RESOURCE & 1 == 1 => subject.ok("CAP_SYS_RESOURCE is held"),
        Some(_) => subject.limited("CAP_SYS_RESOURCE is not held"),
    }
}
