//! The host's own programs inside a bay of the small image: package clients and what they need.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::daemon::Daemon;
use crate::suite::{self, Lack};

/// A shell line that mounts the host's programs at their usual paths.
const AT_HOME: &str = "mount --bind /mnt/usr /usr && mount --bind /mnt/usr/lib /lib && mkdir -p /lib64 && mount --bind /mnt/usr/lib64 /lib64 && mkdir -p /etc/alternatives && export HOME=/tmp PATH=/usr/bin:/bin";

/// A shell line that runs with the host's programs at their usual paths. It contains no single quotes.
#[must_use]
pub fn at_home(line: &str) -> String {
    format!("unshare -m sh -c '{AT_HOME} && ({line})'")
}

/// Makes a bay with the host's programs, and more directories of the host below `/mnt`.
///
/// # Panics
/// If it cannot be made.
pub fn bay(daemon: &Daemon, name: &str, more: &[(&str, &Path)]) {
    let mut mounts = vec![json!({ "source": "/usr", "target": "/mnt/usr" })];
    mounts
        .extend(more.iter().map(|(name, path)| json!({ "source": path, "target": format!("/mnt/{name}") })));
    let create = json!({ "name": name, "source": { "kind": "empty" }, "image": "small", "mounts": mounts });
    let _made = daemon.make(&create);
}

/// Whether the host has a program. If not, the test counts as skipped.
#[must_use]
pub fn program(path: &str, lack: Lack) -> Option<()> {
    let there = Path::new(path).exists();
    if !there {
        suite::skip(lack, &format!("{path} is not on this host"));
    }
    there.then_some(())
}

/// The directory of the host's cargo and toolchain.
#[must_use]
pub fn toolchain() -> Option<PathBuf> {
    let found = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let path = PathBuf::from(String::from_utf8(found.stdout).ok()?.trim());
    path.join("bin/cargo").is_file().then_some(path)
}
