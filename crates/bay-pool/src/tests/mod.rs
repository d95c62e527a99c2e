//! Tests on a real, small pool: a file in a temporary directory, mounted during the test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bay_tests::suite;
use bay_types::image::{ImageImport, ImageView};

use crate::host_packages::HostTree;
use crate::{Pool, PoolError, PoolOptions};

mod bays;
mod images;
mod pools;
mod remote;
mod repos;

const POOL_MIB: u64 = 400;

/// A directory with a pool and a small tree in place of the host. Unmounts itself, even if a test fails.
struct Lab {
    dir: Option<tempfile::TempDir>,
    /// The environment that git gets.
    environment: Vec<(String, String)>,
}

impl Lab {
    /// `None`, with a message, if this machine cannot make such a pool.
    fn new() -> Option<Self> {
        if !suite::has_root("making and mounting a pool") {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let lab = Self { dir: Some(dir), environment: Vec::new() };
        lab.host_file("usr/bin/sh", "#!", 0o755);
        lab.host_file(
            "etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n",
            0o644,
        );
        lab.host_file("var/lib/dpkg/status", "Package: one\n", 0o644);
        std::os::unix::fs::symlink("usr/bin", lab.host().join("bin")).unwrap();
        Some(lab)
    }

    fn path(&self) -> &Path {
        self.dir.as_ref().unwrap().path()
    }

    fn pool_dir(&self) -> PathBuf {
        self.path().join("pool")
    }

    fn mount_point(&self) -> PathBuf {
        self.pool_dir().join("mnt")
    }

    fn host(&self) -> PathBuf {
        self.path().join("host")
    }

    fn host_file(&self, path: &str, contents: &str, mode: u32) -> PathBuf {
        write(&self.host().join(path), contents, mode)
    }

    fn try_open(&self, corner: &str) -> Result<Pool, PoolError> {
        let options = PoolOptions {
            initial_mib: Some(POOL_MIB),
            reserve_mib: Some(suite::DISK_RESERVE_MIB),
            git_environment: self.environment.clone(),
            ..PoolOptions::default()
        };
        let host = HostTree { root: self.host() };
        Pool::open_with_host(&self.pool_dir(), corner, &options, host, &mut |_| {})
    }

    fn open(&self) -> Pool {
        self.try_open("corner").unwrap()
    }

    fn unmount(&self) {
        Pool::unmount(&self.pool_dir()).unwrap();
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let unmounted = Pool::unmount(&self.pool_dir());
        if let Err(error) = unmounted {
            // Deleting the directory would delete the content of the mounted pool, so keep it and report that.
            eprintln!("{} stays: {}", self.path().display(), bay_types::error::chain(&error));
            self.dir.take().unwrap().disable_cleanup(true);
            assert!(std::thread::panicking(), "a pool was left mounted");
        }
    }
}

/// A file whose parent directories everybody may enter.
fn write(path: &Path, contents: &str, mode: u32) -> PathBuf {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    path.to_owned()
}

fn import(source: &str) -> ImageImport {
    ImageImport { source: source.to_owned(), name: None, add: Vec::new(), force: false }
}

fn import_host(pool: &Pool) -> ImageView {
    pool.image_import(&import("host"), 0, &mut |_| {}).unwrap()
}

fn image_root(pool: &Pool, image: &ImageView) -> PathBuf {
    pool.image_root(image.id).unwrap()
}
