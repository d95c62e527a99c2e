//! The directory that contains everything of a test run, and what its tests share.
//!
//! ```text
//! DIR/.workbay-suite   says that this directory is ours and may be deleted
//! DIR/pool/            the pool that the daemons of the suite share
//! DIR/image/           the small image as a directory, made once
//! DIR/d/…              one data directory per daemon
//! DIR/p/…              pools of tests that need one of their own
//! DIR/r/…              scratch: repositories, files to copy
//! DIR/daemons          ids of the daemons that started, for the leak check
//! DIR/skipped          kind, test and reason, separated by tabs
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::FlockOperation;

/// Size of the shared pool: room for the small image and some dozen bays.
pub const POOL_MIB: u64 = 3072;

/// Free space that pools of the suite leave on its disk. The default, a tenth, may be more than is free on a large disk
/// that is nearly full, and no test could run there.
pub const DISK_RESERVE_MIB: u64 = 512;

const MARK: &str = ".workbay-suite";

/// The directory of this test run: `BAY_TEST_DIR`, or one in `/tmp`. Made if it is missing.
///
/// # Panics
/// If it cannot be made, or exists and is not ours.
pub fn dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = place();
        if fs::create_dir(&dir).is_ok() {
            // The mapped root of bays must be able to reach the sockets. Nobody else may change anything.
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
            fs::write(dir.join(MARK), "made by the tests of Workbay; may be deleted\n").unwrap();
        }
        until_marked(&dir);
        for part in ["d", "p", "r", "pool"] {
            fs::create_dir_all(dir.join(part)).unwrap();
        }
        dir
    })
}

fn until_marked(dir: &Path) {
    let marked = crate::wait::within(std::time::Duration::from_secs(2), || is_ours(dir).then_some(()));
    assert!(marked.is_some(), "{} exists and was not made by the tests; set BAY_TEST_DIR", dir.display());
}

/// The path of [`dir`], without making it.
#[must_use]
pub fn place() -> PathBuf {
    std::env::var_os("BAY_TEST_DIR").map_or_else(
        || PathBuf::from(format!("/tmp/workbay-test-{}", rustix::process::getuid().as_raw())),
        PathBuf::from,
    )
}

/// Whether [`dir`] made a directory: only then may it be cleaned.
#[must_use]
pub fn is_ours(dir: &Path) -> bool {
    dir.join(MARK).exists()
}

#[must_use]
pub fn shared_pool() -> PathBuf {
    dir().join("pool")
}

/// A path that no other test of this run uses. Short, because sockets lie below it.
#[must_use]
pub fn fresh(part: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    dir().join(part).join(format!("{}-{count}", std::process::id()))
}

/// A fresh scratch directory, removed on drop.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    #[expect(clippy::new_without_default, reason = "making a directory is not a default")]
    #[must_use]
    pub fn new() -> Self {
        let path = fresh("r");
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    #[must_use]
    pub fn join(&self, below: impl AsRef<Path>) -> PathBuf {
        self.0.join(below)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !keeping() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// Holds a file lock that is shared by all test processes, until dropped.
#[must_use]
pub fn lock(name: &str) -> File {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(dir().join(format!("{name}.lock")))
        .unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    file
}

/// Whether the files of a test are kept for inspection.
#[must_use]
pub fn keeping() -> bool {
    std::env::var_os("BAY_KEEP").is_some()
}

/// Why a test cannot run here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// `./test` installs it; in CI its absence is a failure.
    Installable,
    /// A property of this machine.
    Host,
}

/// Records that the calling test is skipped, and why. The caller returns right after.
pub fn skip(lack: Lack, why: &str) {
    let kind = match lack {
        Lack::Installable => "installable",
        Lack::Host => "host",
    };
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    println!("skipped: {why}");
    append("skipped", &format!("{kind}\t{name}\t{why}\n"));
}

/// Whether the calling test has root. If not, it counts as skipped.
#[must_use]
pub fn has_root(what_for: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip(Lack::Host, &format!("{what_for} needs root"));
    }
    root
}

/// Appends a line to a file of the suite. Short appends of several processes do not mix.
pub fn append(name: &str, line: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(dir().join(name)).unwrap();
    file.write_all(line.as_bytes()).unwrap();
}

/// The `bay` executable under test: `BAY_BIN`, or the one built beside this test's own executable.
///
/// # Panics
/// If there is none; the message says what to do.
#[must_use]
pub fn binary() -> PathBuf {
    if let Some(given) = std::env::var_os("BAY_BIN") {
        return PathBuf::from(given);
    }
    let me = std::env::current_exe().unwrap();
    let found = me.ancestors().skip(1).take(3).map(|dir| dir.join("bay")).find(|path| path.is_file());
    found.expect("no `bay` executable beside the tests: run `cargo build -p bay`, `./test`, or set BAY_BIN")
}
