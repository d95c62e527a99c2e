//! Namespaces and id-mapped mounts, tested by making them if possible.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Stdio;

use bay_runtime::{ATTEMPT_MADE, ATTEMPT_NAMESPACES};
use rustix::fs::{CWD, StatFs};
use rustix::mount::OpenTreeFlags;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use super::proc::read;
use super::{Check, Subject};
use crate::daemon_start::DaemonLocation;

const BTRFS_MAGIC: i64 = 0x9123_683e;

pub(super) fn user() -> Check {
    let subject = Subject {
        id: "user-namespaces",
        title: "user namespaces",
        required: true,
        cost: "root in a bay would be root on the host, so no bay is started",
        fix: "sysctl user.max_user_namespaces=15000, and a kernel with CONFIG_USER_NS",
    };
    if !Path::new("/proc/self/ns/user").exists() {
        return subject.missing("not in this kernel");
    }
    match read("/proc/sys/user/max_user_namespaces").and_then(|n| n.parse::<u64>().ok()) {
        Some(0) => subject.missing("switched off: user.max_user_namespaces is 0"),
        Some(most) => subject.ok(format!("up to {most}")),
        None => subject.unknown("their number could not be read"),
    }
}

/// Makes one namespace of each kind, in a child that ends immediately.
pub(super) async fn all(root: bool) -> Check {
    let subject = Subject {
        id: "namespaces",
        title: "all namespaces together",
        required: true,
        cost: "a bay's processes, files or network would not be separate from the host's",
        fix: "see the other lines; in a container, allow unshare and clone in its seccomp profile; inside a chroot the kernel refuses them, a pivoted root is fine",
    };
    let attempt = match attempt(Stdio::null()) {
        Ok(child) => child.wait_with_output().await,
        Err(error) => Err(error),
    };
    match attempt {
        Ok(output) if output.status.success() => subject.ok("made one of each"),
        Ok(output) => {
            let said = bay_text::escape::one_line(&String::from_utf8_lossy(&output.stderr));
            if root {
                subject.missing(said)
            } else {
                subject.unknown(format!("{said}; root may be allowed to"))
            }
        }
        Err(error) => subject.unknown(format!("it could not be tested: {error}")),
    }
}

/// A child that makes one namespace of each kind, reports that, and stays in them until its standard input ends.
fn attempt(input: Stdio) -> io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(["__runtime", ATTEMPT_NAMESPACES])
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
}

/// What unprivileged users inside a bay may create.
pub(super) fn nested() -> Check {
    let subject = Subject {
        id: "nested-user-namespaces",
        title: "user namespaces inside bays",
        required: false,
        cost: "browsers' sandboxes, bubblewrap and rootless containers inside a bay fail or need a flag",
        fix: "sysctl kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0",
    };
    if read("/proc/sys/kernel/unprivileged_userns_clone").as_deref() == Some("0") {
        return subject.limited("kernel.unprivileged_userns_clone is 0");
    }
    match read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").as_deref() {
        Some("0") | None => subject.ok("not restricted"),
        Some(_) => subject.limited("AppArmor restricts them (kernel.apparmor_restrict_unprivileged_userns)"),
    }
}

pub(super) fn time() -> Check {
    let subject = Subject {
        id: "time-namespaces",
        title: "time namespaces",
        required: false,
        cost: "monotonic clocks jump when a bay is restored from a memory checkpoint on another boot",
        fix: "use a kernel with CONFIG_TIME_NS",
    };
    if Path::new("/proc/self/ns/time").exists() {
        subject.ok("available")
    } else {
        subject.missing("not in this kernel")
    }
}

/// Id-maps the filesystem of the pool, or of the root if there is no pool yet. The mount is never attached.
pub(super) async fn idmapped_mounts(root: bool, location: &DaemonLocation) -> Check {
    let subject = Subject {
        id: "idmapped-mounts",
        title: "id-mapped mounts",
        required: true,
        cost: "files of a bay could not belong to its own range of ids, so no bay is started",
        fix: "use Linux 5.15 or newer and a pool on btrfs",
    };
    if !root {
        return subject.unknown("only root may try it");
    }
    let candidates = [location.pool.join("mnt"), location.pool.clone()];
    let pool = candidates.iter().find(|path| on_btrfs(path));
    let place = pool.map_or(Path::new("/"), |path| path.as_path());
    match try_idmap(place).await {
        Ok(()) if pool.is_some() => subject.ok("work on the pool"),
        Ok(()) => subject.ok("work on / (there is no pool yet)"),
        Err(error) if pool.is_some() => subject.missing(format!("on the pool: {error}")),
        Err(error) => subject.unknown(format!("there is no pool to try them on, and / says: {error}")),
    }
}

fn on_btrfs(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|stat: StatFs| i128::from(stat.f_type) == i128::from(BTRFS_MAGIC))
}

async fn try_idmap(place: &Path) -> io::Result<()> {
    let mut child = attempt(Stdio::piped())?;
    let mut said = [0; ATTEMPT_MADE.len()];
    let stdout = child.stdout.as_mut().ok_or_else(|| io::Error::other("no output"))?;
    stdout.read_exact(&mut said).await?;
    let pid = child.id().ok_or_else(|| io::Error::other("it ended too early"))?;
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{pid}/{map}"), "0 100000 65536\n")?;
    }
    let namespace = File::open(format!("/proc/{pid}/ns/user"))?;
    let tree = rustix::mount::open_tree(
        CWD,
        place,
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )?;
    bay_sys::namespace::restrict_mount(&tree, 0, Some(namespace.as_fd()))?;
    drop(child.stdin.take());
    child.wait().await?;
    Ok(())
}
