//! A small filesystem for one test. The disk below a pool or a data directory can be full or read-only without
//! affecting the machine's own.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::leaks;

/// Mounted while this value lives. Drop the daemon that uses it first.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// # Panics
    /// If it cannot be mounted.
    #[must_use]
    pub fn mounted_at(path: &Path, mib: u64) -> Self {
        fs::create_dir_all(path).unwrap();
        let options = std::ffi::CString::new(format!("size={mib}m")).unwrap();
        mount("none", path, "tmpfs", MountFlags::empty(), Some(options.as_c_str())).unwrap();
        Self(path.to_owned())
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Fills all free space. Delete the returned file to free it.
    ///
    /// # Panics
    /// If writing fails for another reason than a full disk.
    #[must_use]
    pub fn fill(&self) -> PathBuf {
        let path = self.0.join("fill");
        let mut file = File::create(&path).unwrap();
        for size in [1 << 20, 1 << 12, 1] {
            let block = vec![1; size];
            let full = loop {
                if let Err(error) = file.write_all(&block) {
                    break error;
                }
            };
            assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "{full}");
        }
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        leaks::close_pool(&self.0.join("pool"));
        let _ = unmount(&self.0, UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.0);
    }
}

/// Remounts a mount of the test as `ro` or `rw`.
///
/// # Panics
/// If the kernel refuses.
pub fn remount(point: &Path, how: &str) {
    let done = Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(point).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
