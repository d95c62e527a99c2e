//! Control groups: the version, the mount point, and the controllers.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use bay_runtime::{CGROUP2_MOUNT, detached_v2};

use super::proc::{kernel_version, mounts, read};
use super::{Check, Subject};

/// The names of each controller in version 2 and in version 1.
const WANTED: [(&str, &str); 5] =
    [("cpu", "cpu"), ("memory", "memory"), ("pids", "pids"), ("io", "blkio"), ("cpuset", "cpuset")];

/// Version 2, and how the daemon can reach it.
enum VersionTwo {
    Mounted(PathBuf),
    /// Not mounted; the first bay's start will mount it. This is a detached mount for inspection.
    Mountable(OwnedFd),
    Unmountable(io::Error),
}

impl VersionTwo {
    fn find() -> Self {
        match mounts().into_iter().find(|mount| mount.kind == "cgroup2") {
            Some(mount) => Self::Mounted(mount.point),
            None => detached_v2().map_or_else(Self::Unmountable, Self::Mountable),
        }
    }

    /// Its root directory, valid while `self` lives.
    fn root(&self) -> Result<PathBuf, &io::Error> {
        match self {
            Self::Mounted(point) => Ok(point.clone()),
            Self::Mountable(mount) => Ok(format!("/proc/self/fd/{}", mount.as_raw_fd()).into()),
            Self::Unmountable(error) => Err(error),
        }
    }
}

/// The finding if version 2 is neither mounted nor mountable. Only root can know the latter.
fn without_version_two(subject: Subject, error: &io::Error, root: bool) -> Check {
    if root {
        subject.missing(format!("version 2 is not mounted, and mounting it failed: {error}"))
    } else {
        subject.unknown("version 2 is not mounted, and only root may try to mount it")
    }
}

/// Controllers of version 1 and their mount points.
fn version_one() -> Vec<(String, PathBuf)> {
    let v1 = mounts().into_iter().filter(|mount| mount.kind == "cgroup");
    v1.flat_map(|mount| {
        let names: Vec<String> = mount.options.split(',').map(str::to_owned).collect();
        names.into_iter().map(move |name| (name, mount.point.clone()))
    })
    .collect()
}

pub(super) fn layout(root: bool) -> Check {
    let subject = Subject {
        id: "cgroups",
        title: "control groups",
        required: true,
        cost: "commands could not be distinguished, ended as a whole or limited",
        fix: "mount cgroup2: `mount -t cgroup2 none /sys/fs/cgroup`, or boot with systemd.unified_cgroup_hierarchy=1",
    };
    let v1 = !version_one().is_empty();
    match VersionTwo::find() {
        VersionTwo::Mounted(point) if point == Path::new(CGROUP2_MOUNT) => subject.ok(if v1 {
            format!("version 1, and version 2 at {CGROUP2_MOUNT}, where Workbay mounted it")
        } else {
            format!("version 2 at {CGROUP2_MOUNT}, where Workbay mounted it")
        }),
        VersionTwo::Mounted(point) if v1 => {
            subject.ok(format!("hybrid: version 1, and version 2 at {}", point.display()))
        }
        VersionTwo::Mounted(point) => subject.ok(format!("version 2 at {}", point.display())),
        VersionTwo::Mountable(_) => subject.ok(format!(
            "{}; the first bay that starts has version 2 mounted at {CGROUP2_MOUNT}",
            if v1 { "version 1 alone" } else { "none is mounted" }
        )),
        VersionTwo::Unmountable(error) => without_version_two(subject, &error, root),
    }
}

pub(super) fn controllers() -> Check {
    let subject = Subject {
        id: "cgroup-controllers",
        title: "controllers for limits",
        required: false,
        cost: "limits of the missing kind (--cpus, --memory-mib, --pids, --io-…) cannot be enforced; without cpuset root in a bay can undo what nproc says",
        fix: "enable them on the kernel's command line (cgroup_enable=memory), or write them to cgroup.subtree_control",
    };
    let v1 = version_one();
    let v2 = VersionTwo::find();
    let v2 = v2.root().ok().and_then(|point| read(&point.join("cgroup.controllers").display().to_string()));
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

/// An empty group for probing, removed on drop.
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
        fix: "use Linux 5.15 or newer with cgroup version 2 mounted writable",
    };
    let v2 = VersionTwo::find();
    let point = match v2.root() {
        Ok(point) => point,
        Err(error) => return without_version_two(subject, error, root),
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
                None => subject.unknown("only root may make a group for this test"),
            }
        }
    }
}

pub(super) fn clone_into(root: bool) -> Check {
    let subject = Subject {
        id: "clone-into-cgroup",
        title: "starting commands in their group",
        required: true,
        cost: "every command would cost about 11 ms more, or could not be distinguished",
        fix: "use Linux 5.15 or newer with cgroup version 2 mounted",
    };
    match (kernel_version(), VersionTwo::find()) {
        (_, VersionTwo::Unmountable(error)) => without_version_two(subject, &error, root),
        (Some(version), _) if version >= (5, 7) => subject.ok("clone3 with CLONE_INTO_CGROUP"),
        (_, _) => subject.missing("this kernel is too old"),
    }
}
