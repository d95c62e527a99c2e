//! The version 2 hierarchy on hosts that have not mounted it: those with version 1 alone, or with nothing.
//!
//! The kernel has exactly one version 2 hierarchy, mounted or not, and every mount of it shows the same groups. So where
//! the host shows none the helper mounts it at a place of ours, once, and leaves it there until the host reboots:
//!
//! * bays, helpers and daemons that come later find it in the mount table like any other, whoever mounted it;
//! * several daemons share it, as they would share the host's own; nothing of one bay or data directory is in its name;
//! * a host that mounts its own later loses nothing: the groups are the same ones;
//! * without bays it holds no group and costs nothing. Unmounting it by hand is harmless too: it is mounted again.
//!
//! On version 1 hosts it comes without controllers, which stay with version 1: it is for killing, freezing and leaves.

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

/// Where it is mounted. `/run` begins empty at every boot, and so do the groups.
pub const OWN_V2: &str = "/run/workbay/cgroup2";

/// A mount of the version 2 hierarchy that no directory shows: gone when the descriptor is closed.
///
/// # Errors
/// Without the right to mount, or on a kernel without version 2.
pub fn detached_v2() -> io::Result<OwnedFd> {
    let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // What the mount table shows as its source: who mounted it.
    fsconfig_set_string(context.as_fd(), "source", "workbay")?;
    // As systemd mounts it: a bay's cgroup namespace is then a border that its processes cannot be moved across.
    fsconfig_set_flag(context.as_fd(), "nsdelegate")?;
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Mounts it, unless `mounted` says that somebody did so meanwhile.
pub(crate) fn mount_unless(mounted: impl Fn() -> Result<bool, Failure>) -> Result<(), Failure> {
    let point = Path::new(OWN_V2);
    DirBuilder::new()
        .recursive(true)
        // Whoever can open the directory could hold the lock below for ever.
        .mode(0o700)
        .create(point)
        .at(STEP, || format!("could not make {OWN_V2}"))?;
    // Two helpers at once would stack two mounts: harmless, but nobody would understand the mount table.
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
                "this host has no cgroup version 2 hierarchy mounted, and it could not be mounted at {OWN_V2}"
            )
        })
}
