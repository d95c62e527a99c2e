//! Hides the host from CRIU while it makes a bay's mounts.
//!
//! The bay may have chosen paths that CRIU then follows, and they are resolved in CRIU's view of the filesystem. So
//! the directories of the host's root are covered in CRIU's mount namespace, except those of programs and of the
//! kernel's filesystems, and what CRIU needs.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use super::namespace_view::tmpfs;
use crate::failure::{Failure, Try};

const STEP: &str = "hide";
/// The kernel's filesystems, the directories with `tar` and its libraries, and what is made for CRIU alone.
const OPEN: [&str; 11] =
    ["bin", "dev", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "tmp", "usr"];
/// Not covered if CRIU has a `/run` of its own.
const RUN: &str = "run";
/// Directories below the above to which everybody may write.
const SHARED: [&str; 2] = ["/dev/shm", "/dev/mqueue"];

/// Called in the mount namespace in which CRIU will run, which must be the caller's own. The directories in `needed`
/// stay visible; `own_run` says that `/run` is CRIU's own already.
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
    fn only_needed_directories_of_the_host_are_visible() {
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
