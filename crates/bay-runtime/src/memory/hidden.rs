//! What CRIU does not see of the host while it makes a bay's mounts.
//!
//! Paths that it follows meanwhile may have been chosen by the bay, and lead where CRIU looks from. So everything of the
//! host but the programs and filesystems of the kernel that it needs is covered, in the mount namespace that it runs in.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use super::view::tmpfs;
use crate::failure::{Failure, Try};

const STEP: &str = "hide";
/// Where the kernel's filesystems are, `tar` with what it loads, and what is made for CRIU alone.
const OPEN: [&str; 11] =
    ["bin", "dev", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "tmp", "usr"];
/// Open where CRIU has one of its own.
const RUN: &str = "run";
/// Places below those in which everybody may write.
const SHARED: [&str; 2] = ["/dev/shm", "/dev/mqueue"];

/// Called in the mount namespace that CRIU will run in, which must be the caller's own. What is `needed` stays where it
/// is; `own_run` says that `/run` is CRIU's own already.
pub(super) fn hide_host(needed: &[&Path], own_run: bool) -> Result<(), Failure> {
    let what = || "could not hide the host from CRIU".to_owned();
    let is_open = |name: &str| OPEN.contains(&name) || (own_run && name == RUN);
    let mut covered: Vec<PathBuf> = SHARED.iter().map(PathBuf::from).filter(|dir| dir.is_dir()).collect();
    for entry in fs::read_dir("/").at(STEP, what)? {
        let entry = entry.at(STEP, what)?;
        let is_dir = entry.file_type().at(STEP, what)?.is_dir();
        if is_dir && !entry.file_name().to_str().is_some_and(is_open) {
            covered.push(entry.path());
        }
    }
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mut kept: Vec<(&Path, OwnedFd)> = Vec::new();
    for path in needed.iter().copied().filter(|path| covered.iter().any(|dir| path.starts_with(dir))) {
        kept.push((path, open_tree(CWD, path, clone).at(STEP, what)?));
    }
    for dir in &covered {
        let cover = tmpfs().at(STEP, what)?;
        move_mount(cover, "", CWD, dir, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).at(STEP, what)?;
    }
    for (path, tree) in kept {
        fs::create_dir_all(path).at(STEP, what)?;
        move_mount(tree, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).at(STEP, what)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bay_sys::namespace::{flags, leave_namespaces};
    use rustix::mount::{MountPropagationFlags, mount_change};

    use super::*;

    #[test]
    fn nothing_of_the_host_is_left_but_what_is_needed() {
        if !bay_tests::suite::has_root("leaving the mounts of the host") {
            return;
        }
        let needed = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::write(needed.path().join("program"), "here").unwrap();
        let seen = std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                leave_namespaces(flags::MOUNT).unwrap();
                mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
                hide_host(&[needed.path(), Path::new("/usr")], false).unwrap();
                let count = |dir: &str| fs::read_dir(dir).unwrap().count();
                assert_eq!((count("/etc"), count("/root"), count("/run"), count("/var")), (0, 0, 0, 1));
                assert_eq!(count("/var/tmp"), 1);
                assert!(count("/usr/bin") > 0 && count("/proc") > 0);
                fs::read_to_string(needed.path().join("program")).unwrap()
            });
            looking.join().unwrap()
        });
        assert_eq!(seen, "here");
        assert!(fs::read_dir("/etc").unwrap().count() > 0, "the host itself sees everything");
    }
}
