//! Mounts the version 2 hierarchy on hosts that have not mounted it: those with only version 1, or with nothing.
//!
//! The kernel has exactly one version 2 hierarchy, mounted or not, and every mount of it shows the same groups. If the
//! host has no mount of it, the helper mounts it once, at a path of Workbay's own, and leaves it there until the host
//! reboots:
//!
//! * later bays, helpers and daemons find it in the mount table, no matter which process mounted it;
//! * several daemons share it, as they would share the host's own; its path names no bay and no data directory;
//! * if the host mounts its own later, it shows the same groups;
//! * without bays it has no groups and costs nothing. If somebody unmounts it, it is mounted again.
//!
//! On version 1 hosts it has no controllers, which stay with version 1. It is used to kill, to freeze and for leaves.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{CWD, FlockOperation, flock};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};

use crate::failure::{Failure, Try};

const STEP: &str = "cgroups";

/// Where it is mounted. `/run` is empty after every boot, and so is the hierarchy.
pub const CGROUP2_MOUNT: &str = "/run/workbay/cgroup2";

/// A mount of the version 2 hierarchy that is attached to no directory. It ends when the descriptor is closed.
///
/// # Errors
/// Without the right to mount, or on a kernel without version 2.
pub fn detached_v2() -> io::Result<OwnedFd> {
    let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // The source that the mount table shows, so that people see who mounted it.
    fsconfig_set_string(context.as_fd(), "source", "workbay")?;
    // As systemd mounts it: processes cannot be moved across the border of a bay's cgroup namespace.
    fsconfig_set_flag(context.as_fd(), "nsdelegate")?;
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Mounts it, unless `mounted` finds that another process did so meanwhile.
pub(crate) fn mount_unless(mounted: impl Fn() -> Result<bool, Failure>) -> Result<(), Failure> {
    let point = Path::new(CGROUP2_MOUNT);
    DirBuilder::new()
        .recursive(true)
        // A process that can open the directory could hold the lock below for ever.
        .mode(0o700)
        .create(point)
        .at(STEP, || format!("could not make {CGROUP2_MOUNT}"))?;
    // Two helpers at once would stack two mounts. That is harmless, but confusing in the mount table.
    let above = point.parent().unwrap_or(point);
    let lock = File::open(above).at(STEP, || format!("could not open {}", above.display()))?;
    flock(lock.as_fd(), FlockOperation::LockExclusive)
        .at(STEP, || format!("could not lock {}", above.display()))?;
    if mounted()? {
        return Ok(());
    }
    detached_v2()
        .and_then(|mount| {
            Ok(move_mount(mount.as_fd(), "", CWD, point, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
        })
        .at(STEP, || {
            format!(
                "this host has no cgroup version 2 hierarchy mounted, and it could not be mounted at {CGROUP2_MOUNT}"
            )
        })
}
