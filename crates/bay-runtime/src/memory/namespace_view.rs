//! Replaces `/proc/PID/ns` in CRIU's view.
//!
//! CRIU reads the namespaces of PID 1 once more from inside the bay's user namespace, to verify that they belong to it.
//! From there it cannot read the guest's files below `/proc`, as no process of the bay can. So in CRIU's own mount
//! namespace, that directory is covered by one in which every name leads to a descriptor that CRIU already has open.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat, symlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen, move_mount,
};

use crate::failure::{Failure, Try};

/// Called in the mount namespace in which CRIU will run. CRIU must have the descriptors under the same numbers.
pub(super) fn cover_namespaces(pid: i32, step: &'static str) -> Result<Vec<OwnedFd>, Failure> {
    let what = || format!("could not show the namespaces of process {pid} to CRIU");
    let dir = format!("/proc/{pid}/ns");
    let cover = tmpfs().at(step, what)?;
    let names = std::fs::read_dir(&dir).at(step, what)?;
    let mut held = Vec::new();
    for name in names {
        let name = name.at(step, what)?.file_name();
        let link = Path::new(&dir).join(&name);
        let target = readlinkat(CWD, &link, Vec::new()).at(step, what)?;
        let namespace = openat(CWD, &link, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).at(step, what)?;
        symlinkat(&target, &cover, &name).at(step, what)?;
        // Relative, because CRIU also looks from other roots.
        let through = format!("../../self/fd/{}", namespace.as_raw_fd());
        match symlinkat(through, &cover, &target) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(Failure::new(step, what(), error)),
        }
        held.push(namespace);
    }
    move_mount(&cover, "", CWD, &dir, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).at(step, what)?;
    Ok(held)
}

/// A detached tmpfs.
pub(super) fn tmpfs() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "mode", "755")?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}
