//! Control groups: which version, where, and what they offer.

use std::fs;
use std::path::{Path, PathBuf};

use super::proc::{kernel_version, mounts, read};
use super::{Check, Subject};

/// Named as on version 2 and on version 1.
const WANTED: [(&str, &str); 5] =
    [("cpu", "cpu"), ("memory", "memory"), ("pids", "pids"), ("io", "blkio"), ("cpuset", "cpuset")];

fn version_two() -> Option<PathBuf> {
    mounts().into_iter().find(|mount| mount.kind == "cgroup2").map(|mount| mount.point)
}

/// Controllers of version 1 and where they are mounted.
fn version_one() -> Vec<(String, PathBuf)> {
    let v1 = mounts().into_iter().filter(|mount| mount.kind == "cgroup");
    v1.flat_map(|mount| {
        let names: Vec<String> = mount.options.split(',').map(str::to_owned).collect();
        names.into_iter().map(move |name| (name, mount.point.clone()))
    })
    .collect()
}

pub(super) fn layout() -> Check {
    let subject = Subject {
        id: "cgroups",
        title: "control groups",
        required: true,
        cost: "commands could not be told apart, ended as a whole or limited",
        mend: "mount cgroup2: `mount -t cgroup2 none /sys/fs/cgroup`, or boot with systemd.unified_cgroup_hierarchy=1",
    };
    match (version_two(), version_one().is_empty()) {
        (Some(point), true) => subject.ok(format!("version 2 at {}", point.display())),
        (Some(point), false) => {
            subject.ok(format!("hybrid: version 1, and version 2 at {}", point.display()))
        }
        (None, false) => subject.missing("version 1 only"),
        (None, true) => subject.missing("none is mounted"),
    }
}

pub(super) fn controllers() -> Check {
    let subject = Subject {
        id: "cgroup-controllers",
        title: "controllers for limits",
        required: false,
        cost: "limits of the missing kind (--cpus, --memory-mib, --pids, --io-…) cannot be kept; without cpuset root in a bay can undo what nproc says",
        mend: "enable them on the kernel's command line (cgroup_enable=memory), or write them to cgroup.subtree_control",
    };
    let v1 = version_one();
    let v2 = version_two().and_then(|point| read(&point.join("cgroup.controllers").display().to_string()));
    let v2 = v2.unwrap_or_default();
    let has = |(new, old): (&str, &str)| {
        if v2.split(' ').any(|known| known == new) {
            Some(format!("{new} (v2)"))
        } else {
            v1.iter().any(|(known, _)| known == old).then(|| format!("{new} (v1)"))
        }
    };
    let (found, lacking): (Vec<_>, Vec<_>) =
        WANTED.iter().map(|names| has(*names).ok_or(names.0)).partition(Result::is_ok);
    let found: Vec<String> = found.into_iter().flatten().collect();
    let lacking: Vec<&str> = lacking.into_iter().filter_map(Result::err).collect();
    if lacking.is_empty() {
        subject.ok(found.join(", "))
    } else {
        subject.limited(format!("without {}", lacking.join(", ")))
    }
}

/// An empty group made to look into, taken away again.
struct Probe(PathBuf);

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

pub(super) fn kill_and_freeze(root: bool) -> Check {
    let subject = Subject {
        id: "cgroup-kill",
        title: "ending and freezing groups",
        required: true,
        cost: "a bay could not be ended or paused as a whole",
        mend: "use Linux 5.15 or newer with cgroup version 2 mounted writable",
    };
    let Some(point) = version_two() else {
        return subject.missing("cgroup version 2 is not mounted");
    };
    let offers = |group: &Path| ["cgroup.kill", "cgroup.freeze"].iter().all(|file| group.join(file).exists());
    let probe = Probe(point.join(format!("workbay-doctor-{}", std::process::id())));
    match fs::create_dir(&probe.0) {
        Ok(()) if offers(&probe.0) => subject.ok("cgroup.kill and cgroup.freeze"),
        Ok(()) => subject.missing("this kernel has no cgroup.kill or no cgroup.freeze"),
        Err(error) if root => {
            subject.missing(format!("no group can be made below {}: {error}", point.display()))
        }
        Err(_) => {
            let some = fs::read_dir(&point).into_iter().flatten().flatten().find(|e| e.path().is_dir());
            match some {
                Some(group) if offers(&group.path()) => subject.ok("cgroup.kill and cgroup.freeze"),
                Some(_) => subject.missing("this kernel has no cgroup.kill or no cgroup.freeze"),
                None => subject.unknown("only root may make a group to look into"),
            }
        }
    }
}

pub(super) fn clone_into() -> Check {
    let subject = Subject {
        id: "clone-into-cgroup",
        title: "starting commands in their group",
        required: true,
        cost: "every command would cost about 11 ms more, or could not be told apart",
        mend: "use Linux 5.15 or newer with cgroup version 2 mounted",
    };
    match (kernel_version(), version_two()) {
        (Some(version), Some(_)) if version >= (5, 7) => subject.ok("clone3 with CLONE_INTO_CGROUP"),
        (_, None) => subject.missing("cgroup version 2 is not mounted"),
        (_, Some(_)) => subject.missing("this kernel is too old"),
    }
}
