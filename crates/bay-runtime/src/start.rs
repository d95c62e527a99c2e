//! Starts a runtime. The order of the steps is in the crate's overview.

use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use bay_sys::namespace::{Cloned, clone_process, flags, leave_namespaces};
use bay_types::guest::GuestConfig;
use bay_types::inside::About;
use bay_types::runtime::{ID_RANGE, RuntimeRecord, RuntimeSpec};
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, Uid, memfd_create, openat};
use rustix::mount::mount_bind;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Signal, WaitOptions, getpriority_process, kill_process, setpriority_process, waitpid,
};
use rustix::thread::{
    CapabilitiesSecureBits, LinkNameSpaceType, move_into_link_name_space, set_capabilities_secure_bits,
    set_thread_res_uid,
};

use crate::cgroup::{Hierarchies, LimitContext};
use crate::clear::clear_locked;
use crate::failure::{Failure, Try};
use crate::pid1_setup::{self, Prepared};
use crate::{mounts, network, run_directory, seccomp_filter};

/// The steps of a start, in order. A test may let the helper die before any of them.
pub const STEPS: [&str; 8] =
    ["clear", "cgroups", "gateway", "user-ns", "mounts", "clone", "network", "release"];

/// The niceness of a process that nobody gave another one.
const ORDINARY_NICE: i32 = 0;
/// If the host runs out of memory, the kernel should kill processes of a bay before the daemon and the host's services.
/// Because the helper writes this value with the host's rights, processes in the bay cannot set a lower one.
const OOM_SCORE_ADJ: &str = "500";

pub(crate) fn start(spec: &RuntimeSpec) -> Result<RuntimeRecord, Failure> {
    let lock = run_directory::lock(&spec.place)?;
    let started = start_locked(spec);
    if started.is_err() {
        // The helper may already be in the gateway namespace and in a mount namespace of its own, where the host's
        // handle cannot be unmounted. A new helper clears that. This one can at least end the processes.
        if let Ok(Some(groups)) = Hierarchies::mounted() {
            let _ = groups.kill(&spec.place.cgroup);
        }
    }
    drop(lock);
    started
}

fn start_locked(spec: &RuntimeSpec) -> Result<RuntimeRecord, Failure> {
    let at = |step: &'static str| {
        if spec.die_before.as_deref() == Some(step) {
            let _ = kill_process(rustix::process::getpid(), Signal::KILL);
        }
    };
    let run_dir = &spec.place.run_dir;
    let group = &spec.place.cgroup;

    at("clear");
    clear_locked(&spec.place)?;

    at("cgroups");
    let groups = Hierarchies::ready()?;
    groups.make(group, &spec.limits, placing(spec), spec.id_base)?;

    at("gateway");
    gateway(run_dir)?;

    at("user-ns");
    let bay_group = groups.open(group, "")?;
    let user_namespace = user_namespace(spec, &bay_group)?;

    // This is the last access to the host's files: what PID 1 needs of them is opened now.
    let guest = openat(CWD, &spec.guest, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .at("clone", || format!("could not open {}", spec.guest.display()))?;
    let guest_group = groups.open(group, "guest")?;
    let config = config_file(spec)?;
    let filters =
        seccomp_filter::compile().at("clone", || "could not compile the system call filters".to_owned())?;

    at("mounts");
    mounts::build(spec, user_namespace.as_fd())?;

    at("clone");
    let pipe = || pipe_with(PipeFlags::CLOEXEC).at("clone", || "could not make a pipe".to_owned());
    let (go_reader, go_writer) = pipe()?;
    let (report_reader, report_writer) = pipe()?;
    let (pid_reader, pid_writer) = pipe()?;
    let prepared = Prepared { guest, config, go: go_reader, report: report_writer, filters };
    let between = clone_process(0, Some(bay_group.as_fd()))
        .at("clone", || "could not clone into the bay's group".to_owned())?;
    let between = match between {
        Cloned::Parent { pid, .. } => pid,
        Cloned::Child => {
            drop((go_writer, report_reader, pid_reader));
            clone_pid_1(spec, &groups, &user_namespace, &guest_group, prepared, &pid_writer)
        }
    };
    drop((prepared, pid_writer));
    let pid = read_pid(pid_reader).at("clone", || "could not clone PID 1".to_owned());
    let _ = waitpid(Pid::from_raw(between), WaitOptions::empty());
    let pid = match (pid, &report_reader) {
        (Ok(pid), _) => pid,
        (Err(failure), report) => return Err(explain(failure, report)),
    };
    groups.enable_for_leaves(group);

    at("network");
    network::join(pid.unsigned_abs())
        .at("network", || "could not join the bay to its gateway namespace".to_owned())?;

    // Before it is released: afterwards it may end, and another process may get its pid.
    let record =
        run_directory::record_of(pid).at("release", || format!("could not read /proc/{pid}/stat"))?;

    at("release");
    rustix::io::write(&go_writer, b"g").at("release", || "PID 1 is gone".to_owned())?;
    let report =
        pid1_setup::read_report(report_reader).at("release", || "PID 1 did not report".to_owned())?;
    if report.is_empty() {
        Ok(record)
    } else {
        Err(Failure::new("release", "PID 1 could not become the guest", io::Error::other(report)))
    }
}

pub(crate) fn placing(spec: &RuntimeSpec) -> LimitContext<'_> {
    LimitContext { turn: spec.id_base / ID_RANGE, devices: &spec.io_devices }
}

/// Makes a network namespace without links, which a handle in the run directory keeps alive.
pub(crate) fn gateway(run_dir: &Path) -> Result<(), Failure> {
    const STEP: &str = "gateway";
    let handle = run_directory::gateway_handle(run_dir);
    File::create(&handle).at(STEP, || format!("could not make {}", handle.display()))?;
    leave_namespaces(flags::NET).at(STEP, || "could not make the gateway namespace".to_owned())?;
    mount_bind("/proc/self/ns/net", &handle).at(STEP, || format!("could not mount {}", handle.display()))?;
    network::prepare_gateway().at(STEP, || "could not prepare the gateway namespace".to_owned())
}

/// Makes a user namespace with the bay's id maps. The process that made it has ended when this returns; the descriptor
/// keeps it alive.
///
/// Its owner is the bay's first id and not the host's root. The kernel counts resources of users (inotify instances and
/// watches, namespaces, pending signals) also for the owner of each user namespace. If that were root, one bay could use
/// up what root and all other bays share.
pub(crate) fn user_namespace(spec: &RuntimeSpec, group: &OwnedFd) -> Result<OwnedFd, Failure> {
    const STEP: &str = "user-ns";
    let pipe = || pipe_with(PipeFlags::CLOEXEC).at(STEP, || "could not make a pipe".to_owned());
    let (wait, hold) = pipe()?;
    let (made_reader, made_writer) = pipe()?;
    let cloned = clone_process(0, Some(group.as_fd()))
        .at(STEP, || "could not clone into the bay's group".to_owned())?;
    let pid = match cloned {
        Cloned::Parent { pid, .. } => pid,
        Cloned::Child => {
            drop((hold, made_reader));
            let said =
                leave_user_namespace_as(spec.id_base).map_or_else(|e| e.to_string(), |()| MADE.to_owned());
            let _ = rustix::io::write(&made_writer, said.as_bytes());
            // Ends when the helper closes its end, or dies.
            let _ = rustix::io::read(&wait, &mut [0]);
            leave()
        }
    };
    drop((wait, made_writer));
    let made = || -> io::Result<OwnedFd> {
        let mut said = [0; 256];
        let length = rustix::io::read(&made_reader, &mut said)?;
        if &said[..length] != MADE.as_bytes() {
            return Err(io::Error::other(String::from_utf8_lossy(&said[..length]).into_owned()));
        }
        let map = format!("0 {} {ID_RANGE}\n", spec.id_base);
        fs::write(format!("/proc/{pid}/uid_map"), &map)?;
        fs::write(format!("/proc/{pid}/gid_map"), &map)?;
        Ok(File::open(format!("/proc/{pid}/ns/user"))?.into())
    };
    let made = made().at(STEP, || format!("could not make a user namespace with ids from {}", spec.id_base));
    drop(hold);
    let _ = waitpid(Pid::from_raw(pid), WaitOptions::empty());
    made
}

/// What the process that makes the user namespace reports when it has.
const MADE: &str = "made";

/// The effective user becomes the owner of the new namespace. The capabilities stay, because some hosts allow only
/// privileged processes to make user namespaces.
fn leave_user_namespace_as(owner: u32) -> io::Result<()> {
    set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
    set_thread_res_uid(Uid::ROOT, Uid::from_raw(owner), Uid::ROOT)?;
    leave_namespaces(flags::USER)
}

/// The process between helper and PID 1. It enters the groups that are entered by writing, and the user namespace, so
/// that every new namespace of PID 1 belongs to the bay. Its own cgroup becomes the root of the bay's cgroup namespace.
fn clone_pid_1(
    spec: &RuntimeSpec,
    groups: &Hierarchies,
    user_namespace: &OwnedFd,
    guest_group: &OwnedFd,
    prepared: Prepared,
    pid_writer: &OwnedFd,
) -> ! {
    // Best effort: without it, the kernel chooses freely what it kills.
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
    // A daemon that runs ahead of other processes must not have its bays do so.
    if getpriority_process(None).is_ok_and(|nice| nice < ORDINARY_NICE) {
        let _ = setpriority_process(None, ORDINARY_NICE);
    }
    let cloned = groups
        .join_v1(&spec.place.cgroup)
        .and_then(|()| groups.take_affinity(&spec.place.cgroup, spec.limits.cpus, placing(spec).turn))
        .and_then(|()| Ok(move_into_link_name_space(user_namespace.as_fd(), Some(LinkNameSpaceType::User))?))
        // Not as a flag of the clone: the root of the namespace would be the guest's leaf. On hosts that delegate by
        // namespace, the guest could then not start execs in other leaves.
        .and_then(|()| leave_namespaces(flags::CGROUP))
        .and_then(|()| {
            let rest = flags::PID | flags::NET | flags::MOUNT | flags::UTS | flags::IPC | flags::TIME;
            clone_process(rest, Some(guest_group.as_fd()))
        });
    match cloned {
        Ok(Cloned::Child) => pid1_setup::become_guest(spec, groups, prepared),
        Ok(Cloned::Parent { pid, .. }) => {
            let _ = rustix::io::write(pid_writer, &pid.to_ne_bytes());
        }
        Err(error) => {
            let _ = rustix::io::write(&prepared.report, error.to_string().as_bytes());
        }
    }
    leave()
}

#[allow(clippy::disallowed_methods, reason = "a clone must not run its parent's destructors")]
fn leave() -> ! {
    std::process::exit(0)
}

fn read_pid(reader: OwnedFd) -> io::Result<i32> {
    let mut bytes = [0; 4];
    io::Read::read_exact(&mut File::from(reader), &mut bytes)?;
    Ok(i32::from_ne_bytes(bytes))
}

/// Returns the error that the clone reported, if any; the helper saw only end-of-file.
fn explain(failure: Failure, report: &OwnedFd) -> Failure {
    let mut text = [0; 512];
    match rustix::io::read(report, &mut text) {
        Ok(length) if length > 0 => {
            let said = String::from_utf8_lossy(&text[..length]).into_owned();
            Failure { source: io::Error::other(said), ..failure }
        }
        _ => failure,
    }
}

/// What the guest gets to know about itself.
pub(crate) fn guest_config(spec: &RuntimeSpec) -> GuestConfig {
    GuestConfig {
        bay_id: spec.place.bay_id.to_string(),
        hostname: spec.name.to_string(),
        machine_id: spec.machine_id.clone(),
        author: spec.author.clone(),
        user: spec.user.clone(),
        certificate: spec.certificate.clone(),
        ssh: spec.ssh.clone(),
        secrets: spec.secrets.clone(),
        about: About {
            limits: spec.limits.clone(),
            durability: spec.durability,
            mounts: spec.mounts.iter().map(|mount| mount.target.clone()).collect(),
            isolation: Some(spec.isolation.clone()),
        },
        fork_index: spec.fork_index,
    }
}

/// The guest's configuration, in a file without a name: it may be longer than what a pipe holds before it is read.
fn config_file(spec: &RuntimeSpec) -> Result<OwnedFd, Failure> {
    let config = guest_config(spec);
    let write = || -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("config", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(&config)?)?;
        file.rewind()?;
        Ok(file.into())
    };
    write().at("clone", || "could not write the guest's configuration".to_owned())
}
