//! The kernel's version and features.

use landlock::{ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, Scope};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::FsOpenFlags;

use super::proc::{field, kernel_version, read};
use super::{Check, Subject};

/// The first version with id-mapped mounts on btrfs.
const FLOOR: (u32, u32) = (5, 15);

pub(super) fn version() -> Check {
    let subject = Subject {
        id: "kernel",
        title: "kernel",
        required: true,
        cost: "bays need id-mapped mounts on btrfs and cgroup.kill, which came with Linux 5.15",
        fix: "upgrade the kernel: Debian 12 and Ubuntu 22.04 have a newer one",
    };
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    match kernel_version() {
        Some(version) if version >= FLOOR => subject.ok(release),
        Some(_) => subject.missing(format!("{release}, older than 5.15")),
        None => subject.unknown("its version could not be read"),
    }
}

pub(super) fn openat2() -> Check {
    let subject = Subject {
        id: "openat2",
        title: "safe path resolution (openat2)",
        required: true,
        cost: "paths in an agent's tree could not be opened safely",
        fix: "upgrade the kernel to 5.15 or newer; in a container, allow openat2 in its seccomp profile",
    };
    let opened =
        rustix::fs::openat2(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::IN_ROOT);
    match opened {
        Ok(_) => subject.ok("works"),
        Err(error) => subject.missing(error.to_string()),
    }
}

pub(super) fn mount_api(root: bool) -> Check {
    let subject = Subject {
        id: "mount-api",
        title: "new mount API (fsopen, open_tree)",
        required: true,
        cost: "a bay's filesystems could not be put together",
        fix: "upgrade the kernel to 5.15 or newer; in a container, give it CAP_SYS_ADMIN",
    };
    match rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC) {
        Ok(_) => subject.ok("works"),
        Err(Errno::PERM) if !root => subject.unknown("there, but only root may try it"),
        Err(error) => subject.missing(error.to_string()),
    }
}

pub(super) fn pressure() -> Check {
    let subject = Subject {
        id: "pressure",
        title: "pressure stall information",
        required: false,
        cost: "nothing shows whether a slow bay waits for processor, memory or disk",
        fix: "boot with psi=1",
    };
    let averages = ["cpu", "memory", "io"].map(|what| {
        let text = read(&format!("/proc/pressure/{what}"))?;
        let value = text.lines().next()?.split(' ').find_map(|word| word.strip_prefix("avg10="))?.to_owned();
        Some(format!("{what} {value} %"))
    });
    let shown: Vec<String> = averages.into_iter().flatten().collect();
    if shown.is_empty() { subject.missing("not in this kernel") } else { subject.ok(shown.join(", ")) }
}

pub(super) fn abort_connections(root: bool) -> Check {
    let subject = Subject {
        id: "abort-connections",
        title: "ending connections of others",
        required: false,
        cost: "connections to the outside end with their first packet after a restore from memory, not before it; one that \
               only waits, over UDP, waits on",
        fix: "use a kernel with CONFIG_INET_DIAG_DESTROY",
    };
    match bay_runtime::sockets::can_destroy() {
        Ok(true) => subject.ok("works"),
        Ok(false) => subject.missing("not in this kernel"),
        Err(_) if !root => subject.unknown("only root may try it"),
        Err(error) => subject.missing(error.to_string()),
    }
}

pub(super) fn seccomp() -> Check {
    let subject = Subject {
        id: "seccomp",
        title: "seccomp filters",
        required: true,
        cost: "system calls that a bay must not make could not be refused",
        fix: "use a kernel with CONFIG_SECCOMP_FILTER",
    };
    match read("/proc/sys/kernel/seccomp/actions_avail") {
        Some(actions) if actions.split(' ').any(|action| action == "errno") => subject.ok("available"),
        Some(actions) => subject.missing(format!("only {actions}")),
        None => match read("/proc/self/status").and_then(|status| field(&status, "Seccomp")) {
            Some(_) => subject.ok("available"),
            None => subject.missing("not in this kernel"),
        },
    }
}

pub(super) fn landlock() -> Check {
    let subject = Subject {
        id: "landlock",
        title: "Landlock",
        required: false,
        cost: "git and the programs that unpack archives for the daemon are not confined a second time",
        fix: "boot with landlock in the lsm= list",
    };
    const INTERFACES: [(ABI, u32); 6] =
        [(ABI::V6, 6), (ABI::V5, 5), (ABI::V4, 4), (ABI::V3, 3), (ABI::V2, 2), (ABI::V1, 1)];
    match INTERFACES.into_iter().find(|(interface, _)| supports(*interface)) {
        Some((_, 6)) => subject.ok("on (ABI 6 or newer)"),
        Some((_, number)) => subject.ok(format!("on (ABI {number})")),
        None => subject.missing("not in this kernel, or not switched on"),
    }
}

/// Creates a ruleset that no process is ever restricted by.
fn supports(interface: ABI) -> bool {
    let (files, net, scopes) =
        (AccessFs::from_all(interface), AccessNet::from_all(interface), Scope::from_all(interface));
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(files);
    // Older interfaces lack the other two, and refuse an empty request.
    let rules = if net.is_empty() { rules } else { rules.and_then(|rules| rules.handle_access(net)) };
    let rules = if scopes.is_empty() { rules } else { rules.and_then(|rules| rules.scope(scopes)) };
    rules.and_then(Ruleset::create).is_ok()
}

pub(super) fn security_modules() -> Check {
    let subject = Subject {
        id: "security-modules",
        title: "AppArmor, SELinux",
        required: false,
        cost: "SELinux in enforcing mode may refuse mounts and files of a bay that are not labelled for it",
        fix: "if bays fail to start, look for denials with `ausearch -m avc` and allow them for the daemon",
    };
    if read("/sys/fs/selinux/enforce").as_deref() == Some("1") {
        return subject.limited("SELinux is enforcing");
    }
    let apparmor = read("/sys/module/apparmor/parameters/enabled").as_deref() == Some("Y");
    let profile = read("/proc/self/attr/apparmor/current").or_else(|| read("/proc/self/attr/current"));
    match (apparmor, profile.filter(|p| !p.is_empty())) {
        (true, Some(profile)) if profile != "unconfined" => {
            subject.limited(format!("this process is confined by the AppArmor profile {profile}"))
        }
        (true, _) => subject.ok("AppArmor is on, and does not confine this process"),
        (false, _) => subject.ok("neither is in force"),
    }
}
