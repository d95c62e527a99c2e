//! What PID 1 does between its clone and becoming the guest: it sets up the bay's own namespaces.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use bay_sys::namespace::{become_program, report_failure};
use bay_sys::seccomp;
use bay_types::inside;
use bay_types::runtime::RuntimeSpec;
use rustix::fs::{CWD, Gid, Mode, OFlags, Uid, mkdirat, openat, symlinkat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::BpfProgram;

use crate::cgroup::Hierarchies;
use crate::mounts::{look_up, relative};
use crate::network;
use crate::run_directory;

/// Device files that every program expects. They are bound from the host, because nobody in a user namespace can make
/// them.
pub(crate) const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Size of the tmpfs for /dev itself. /dev/shm is limited only by the bay's memory.
const DEV_SIZE: &str = "1m";
/// Terminals that a bay may have at once. The kernel has a few thousand for all bays together, and a program that leaks
/// them must not use them up. (An agent can mount another instance on purpose; the kernel has no limit for that.)
const MAX_TERMINALS: &str = "1024";
/// Open files that a process of the bay may have, if the host allows raising the limit.
const OPEN_FILES: u64 = 1 << 20;

/// Where programs look for groups.
const GROUPS: &str = "sys/fs/cgroup";
/// On hosts with version 1, the mount point of version 2 below [`GROUPS`].
const UNIFIED: &str = "unified";

/// The capabilities that the bay's root may have, all of them only inside its own namespaces. The others have no effect
/// in a user namespace, or would only expose more of the kernel (modules, raw I/O, clock, audit, BPF, perf, reboot).
const CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::IPC_OWNER)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::LEASE)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::SETFCAP);

/// Descriptors and filters that the helper prepares while it has the host's rights.
pub(crate) struct Prepared {
    pub(crate) guest: OwnedFd,
    pub(crate) config: OwnedFd,
    /// A byte here means: continue. End-of-file means that the helper is gone.
    pub(crate) go: OwnedFd,
    pub(crate) report: OwnedFd,
    pub(crate) filters: Vec<BpfProgram>,
}

/// Never returns: becomes the guest, or reports the error and exits.
pub(crate) fn become_guest(spec: &RuntimeSpec, groups: &Hierarchies, prepared: Prepared) -> ! {
    let mut byte = [0];
    let go = rustix::io::read(&prepared.go, &mut byte);
    if !matches!(go, Ok(1)) {
        exit_clone();
    }
    let made = match set_up(spec, groups) {
        Ok(made) => made,
        Err((what, error)) => {
            let _ = rustix::io::write(&prepared.report, format!("{what}: {error}").as_bytes());
            exit_clone();
        }
    };
    let name = CString::new("bay-guest").unwrap_or_default();
    let mode = CString::new("__guest").unwrap_or_default();
    for filter in &prepared.filters {
        if let Err(error) = seccomp::install(filter) {
            let text = format!("could not install a system call filter: {error}");
            let _ = rustix::io::write(&prepared.report, text.as_bytes());
            exit_clone();
        }
    }
    let guest = made.guest.as_ref().unwrap_or(&prepared.guest);
    let passed = [made.listener, made.exec_cgroup, prepared.config];
    let (error, report) = become_program(guest, &[name, mode], &[], &made.null, &passed, &prepared.report);
    report_failure(report, &format!("could not execute the guest: {error}"));
    exit_clone();
}

/// Ends this clone without running the destructors that it shares with the helper.
#[allow(clippy::disallowed_methods, reason = "a clone must not run its parent's destructors")]
fn exit_clone() -> ! {
    std::process::exit(1)
}

type Step<T> = Result<T, (String, io::Error)>;

fn step<T, E: Into<io::Error>>(what: &str, done: Result<T, E>) -> Step<T> {
    done.map_err(|error| (format!("could not {what}"), error.into()))
}

/// What the guest gets from its own namespaces.
struct GuestDescriptors {
    /// The guest's executable on a mount of the bay. CRIU can capture only open files that are on such a mount.
    guest: Option<OwnedFd>,
    listener: OwnedFd,
    exec_cgroup: OwnedFd,
    null: OwnedFd,
}

fn set_up(spec: &RuntimeSpec, groups: &Hierarchies) -> Step<GuestDescriptors> {
    // This process still has the file system id of the host's root, which it needs: the run directory is closed to the
    // bay.
    let staging = run_directory::staging_dir(&spec.place.run_dir);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let staging = step("open the bay's tree", openat(CWD, &staging, flags, Mode::empty()))?;

    let listener = step("listen for the daemon", run_directory::listen(&spec.place.run_dir))?;

    step("drop the host's groups", rustix::thread::set_thread_groups(&[]))?;
    step("become the bay's root group", rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT))?;
    step("become the bay's root", rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT))?;
    rustix::process::umask(Mode::from(0o022));
    step("begin a session", rustix::process::setsid())?;

    // The copied mount is locked in its place. A copy of the copy is not, and can become the root.
    let copy =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = step("copy the bay's tree", open_tree(&staging, "", copy | OpenTreeFlags::AT_RECURSIVE))?;
    step("place the bay's tree", attach(&tree, &staging))?;
    let root = tree;

    mount_kernel_filesystems(&root)?;
    let guest = spec.ctl.as_ref().map(|_| look_up(&root, Path::new(relative(inside::CTL)))).transpose();
    let guest = guest.map_err(|failure| (failure.what, failure.source))?;
    let unified = mount_groups(&root, groups)?;
    // On a mount that begins at the bay's own group, so `..` does not lead further up.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let exec_cgroup = step("open the group of the execs", openat(&unified, "execs", flags, Mode::empty()))?;

    step("enter the bay's tree", rustix::process::fchdir(&root))?;
    step("make it the root", rustix::process::pivot_root(".", "."))?;
    step("let go of the host's tree", unmount(".", UnmountFlags::DETACH))?;
    step("stand in the root", rustix::process::chdir("/"))?;

    step("set the hostname", rustix::system::sethostname(spec.name.as_str().as_bytes()))?;
    step("configure the network", network::configure_bay())?;
    raise_open_files();
    limit_cores();
    step("limit the capabilities", limit_capabilities())?;
    let null = openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    Ok(GuestDescriptors { guest, listener, exec_cgroup, null: step("open /dev/null", null)? })
}

fn attach(mount: impl AsFd, target: impl AsFd) -> rustix::io::Result<()> {
    let by_descriptor = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", by_descriptor)
}

fn mount_kernel_filesystems(root: &OwnedFd) -> Step<()> {
    let plain = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let inert = plain | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    mount_new(root, "proc", "proc", &[], inert)?;
    mount_new(root, "sys", "sysfs", &[], inert)?;
    mount_new(root, "run", "tmpfs", &[("mode", "755")], plain)?;

    let dev_options = [("mode", "755"), ("size", DEV_SIZE)];
    let dev = mount_new(root, "dev", "tmpfs", &dev_options, MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    for device in DEVICES {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        step("make a device file", openat(&dev, device, flags, Mode::from(0o666)))?;
        let source = format!("/dev/{device}");
        let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let node = step("take a device of the host", open_tree(CWD, &source, clone))?;
        let target = openat(&dev, device, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        step("bind a device", attach(node, step("open a device file", target)?))?;
    }
    for dir in ["pts", "shm", "mqueue"] {
        step("make a directory in /dev", mkdirat(&dev, dir, Mode::from(0o755)))?;
    }
    let pts_options =
        [("newinstance", ""), ("ptmxmode", "0666"), ("mode", "620"), ("gid", "5"), ("max", MAX_TERMINALS)];
    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    mount_new(&dev, "pts", "devpts", &pts_options, quiet)?;
    mount_new(&dev, "shm", "tmpfs", &[("mode", "1777")], plain)?;
    mount_new(&dev, "mqueue", "mqueue", &[], inert)?;
    for (name, to) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        step("make a link in /dev", symlinkat(to, &dev, name))?;
    }
    Ok(())
}

/// Mounts the bay's own groups where programs look for them, so that programs that adapt to their limits (Java, Go,
/// Node, …) find the bay's. The cgroup namespace makes the bay's group the root of each hierarchy. The limit files
/// belong to the host's root, for whom the bay has no id, so the bay cannot write them however they are mounted.
///
/// Returns the mount of version 2.
fn mount_groups(root: &OwnedFd, groups: &Hierarchies) -> Step<OwnedFd> {
    let inert = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let hierarchies = groups.v1_for_bays();
    if hierarchies.is_empty() {
        return mount_new(root, GROUPS, "cgroup2", &[], inert);
    }
    let top = mount_new(root, GROUPS, "tmpfs", &[("mode", "755"), ("size", DEV_SIZE)], inert)?;
    for controllers in hierarchies {
        let name = controllers.join(",");
        step("make a directory for a group", mkdirat(&top, &name, Mode::from(0o755)))?;
        let options: Vec<(&str, &str)> = controllers.iter().map(|controller| (*controller, "")).collect();
        mount_new(&top, &name, "cgroup", &options, inert | MountAttrFlags::MOUNT_ATTR_RDONLY)?;
        if controllers.len() > 1 {
            for controller in controllers {
                step("make a link to a group", symlinkat(&name, &top, controller))?;
            }
        }
    }
    step("make a directory for a group", mkdirat(&top, UNIFIED, Mode::from(0o755)))?;
    mount_new(&top, UNIFIED, "cgroup2", &[], inert)
}

/// Mounts a new filesystem of the bay's own at `point` below `root`.
fn mount_new(
    root: &OwnedFd,
    point: &str,
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Step<OwnedFd> {
    let what = format!("mount {kind} on {point}");
    let config = step(&what, fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC))?;
    for &(key, value) in options {
        let set = if value.is_empty() {
            fsconfig_set_flag(&config, key)
        } else {
            fsconfig_set_string(&config, key, value)
        };
        step(&what, set)?;
    }
    step(&what, fsconfig_create(&config))?;
    let mount = step(&what, fsmount(&config, FsMountFlags::FSMOUNT_CLOEXEC, attributes))?;
    let target = look_up(root, Path::new(point)).map_err(|failure| (failure.what, failure.source))?;
    step(&what, attach(&mount, target))?;
    Ok(mount)
}

fn limit_capabilities() -> rustix::io::Result<()> {
    for bit in 0..64 {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        if CAPABILITIES.contains(one) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(one) {
            // Past the last capability of this kernel.
            Err(rustix::io::Errno::INVAL) => break,
            other => other?,
        }
    }
    let sets = CapabilitySets {
        effective: CAPABILITIES,
        permitted: CAPABILITIES,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets)
}

/// Raises the limit of open files, because servers expect many. Some hosts do not allow raising the hard limit; then it
/// stays.
fn raise_open_files() {
    let wanted = Rlimit { current: Some(OPEN_FILES), maximum: Some(OPEN_FILES) };
    if setrlimit(Resource::Nofile, wanted).is_err() {
        let have = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: have.maximum, maximum: have.maximum });
    }
}

/// Disables core files unless somebody in the bay asks for them. If the host passes cores to a program, that program
/// would run as the host's root on data of a hostile process. Then there must be no core at all: a limit of one byte
/// says so to the kernel, which ignores zero for such programs.
fn limit_cores() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let limit = if hands_cores_to_the_host(&pattern) {
        Rlimit { current: Some(1), maximum: Some(1) }
    } else {
        Rlimit { current: Some(0), maximum: getrlimit(Resource::Core).maximum }
    };
    let _ = setrlimit(Resource::Core, limit);
}

/// Whether a `core_pattern` names a program or a socket of the host, and not a file of the bay.
fn hands_cores_to_the_host(pattern: &str) -> bool {
    pattern.starts_with(['|', '@'])
}

/// Reads what PID 1 reported. An empty report means that it became the guest.
pub(crate) fn read_report(report: OwnedFd) -> io::Result<String> {
    const LONGEST: u64 = 4096;
    let mut text = String::new();
    File::from(report).take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cores_that_stay_in_the_bay_are_allowed() {
        for pattern in ["|/usr/lib/systemd/systemd-coredump %P", "@/run/coredump.socket", "@@/run/x"] {
            assert!(hands_cores_to_the_host(pattern));
        }
        for pattern in ["core", "/var/crash/core.%p", ""] {
            assert!(!hands_cores_to_the_host(pattern));
        }
    }
}
