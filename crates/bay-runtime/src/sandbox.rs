//! Starts a runtime inside gVisor: the bay's own network namespace, and in it `runsc` with the guest as PID 1.
//!
//! ```text
//!  helper (root of the host)                       what exists afterwards
//!  clear, cgroups, gateway                         as for every other runtime
//!  mounts    bundle for runsc, mount points        a directory in the run directory
//!  clone     launcher, in the bay's groups         a process in a network namespace of its own, waiting
//!  network   veth pair, then the launcher's end    a bay that reaches its gateway namespace
//!  release   the launcher becomes `runsc run`      the sandbox; the guest listens
//! ```
//! runsc takes over the interface of the namespace: packets leave its own network stack as frames on that veth pair. So
//! for the gateway namespace, the bay is like any other. Sandbox and file server stay in the bay's groups, so limits,
//! freezing, measuring and clearing work as without gVisor.
//!
//! The guest makes its socket in a directory that it shares with the host, before any other process runs in the bay.
//! The helper then moves the socket into the run directory, which no bay sees, so nothing inside can replace it.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bay_sys::namespace::{Cloned, clone_process, flags};
use bay_types::guest::{STATE_DIR, WORKSPACE, boot};
use bay_types::runtime::{RuntimeRecord, SandboxSpec};
use bay_types::{checkpoint, inside};
use rustix::event::{Timespec, poll};
use rustix::fs::FileType;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::json;

use crate::cgroup::Hierarchies;
use crate::clear::clear_locked;
use crate::failure::{Failure, Try};
use crate::{mounts, network, run_directory, start};

/// The container's name in runsc, whose state is in the bay's own run directory.
const CONTAINER: &str = "bay";
/// How long the guest may take until it listens.
const LISTENS_WITHIN: Duration = Duration::from_secs(20);
/// How often the helper checks whether the guest listens. There is no notification.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// Characters of runsc's output that are reported.
const MAX_SAID: usize = 600;

/// What root in the bay may do, inside the sandbox's own kernel. Without `CAP_SYS_PTRACE` it cannot trace the guest,
/// which is not dumpable.
const CAPABILITIES: [&str; 17] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_SYS_CHROOT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_NICE",
    "CAP_MKNOD",
    "CAP_SETFCAP",
];

pub(crate) fn start(spec: &SandboxSpec) -> Result<RuntimeRecord, Failure> {
    let place = &spec.runtime.place;
    let lock = run_directory::lock(place)?;
    let started = start_locked(spec);
    if started.is_err()
        && let Ok(Some(groups)) = Hierarchies::mounted()
    {
        let _ = groups.kill(&place.cgroup);
    }
    drop(lock);
    started
}

fn start_locked(spec: &SandboxSpec) -> Result<RuntimeRecord, Failure> {
    let at = |step: &'static str| {
        if spec.runtime.die_before.as_deref() == Some(step) {
            let _ = kill_process(rustix::process::getpid(), Signal::KILL);
        }
    };
    let (run_dir, group) = (&spec.runtime.place.run_dir, &spec.runtime.place.cgroup);

    at("clear");
    clear_locked(&spec.runtime.place)?;

    at("cgroups");
    let groups = Hierarchies::ready()?;
    groups.make(group, &spec.runtime.limits, start::placing(&spec.runtime), spec.runtime.id_base)?;

    at("gateway");
    start::gateway(run_dir)?;

    at("mounts");
    let bundle = Bundle::make(spec)?;

    at("clone");
    let guest_group = groups.open(group, "guest")?;
    let (go_reader, go_writer) =
        pipe_with(PipeFlags::CLOEXEC).at("clone", || "could not make a pipe".to_owned())?;
    let cloned = clone_process(flags::NET | flags::MOUNT, Some(guest_group.as_fd()))
        .at("clone", || "could not clone into the bay's group".to_owned())?;
    let launcher = match cloned {
        Cloned::Parent { pid, .. } => pid,
        Cloned::Child => {
            drop(go_writer);
            launch(spec, &groups, &bundle, &go_reader)
        }
    };

    at("network");
    network::join(launcher.unsigned_abs())
        .at("network", || "could not join the bay to its gateway namespace".to_owned())?;

    at("release");
    rustix::io::write(&go_writer, b"g").at("release", || "the launcher is gone".to_owned())?;
    let ended = waitpid(Pid::from_raw(launcher), WaitOptions::empty());
    let well = matches!(&ended, Ok(Some((_, status))) if status.exit_status() == Some(0));
    if !well {
        let why = io::Error::other(bundle.output_end());
        return Err(Failure::new("release", "runsc did not start the sandbox", why));
    }
    let record = bundle.record()?;
    bundle.take_socket(run_dir, &record)?;
    Ok(record)
}

/// The files for runsc, in the bay's run directory.
struct Bundle {
    dir: PathBuf,
    /// The directory that the guest sees at [`boot::SHARED`].
    shared: PathBuf,
}

impl Bundle {
    fn make(spec: &SandboxSpec) -> Result<Self, Failure> {
        const STEP: &str = "mounts";
        let run_dir = &spec.runtime.place.run_dir;
        let bundle = Self { dir: run_dir.join("sandbox"), shared: run_dir.join("shared") };
        for dir in [&bundle.dir, &bundle.shared] {
            fs::DirBuilder::new()
                .mode(0o700)
                .create(dir)
                .at(STEP, || format!("could not make {}", dir.display()))?;
        }
        let config = serde_json::to_vec(&start::guest_config(&spec.runtime))
            .map_err(io::Error::from)
            .at(STEP, || "could not write the guest's configuration".to_owned())?;
        write_new(&bundle.shared.join(boot::CONFIG), &config)
            .at(STEP, || "could not write the guest's configuration".to_owned())?;
        let oci = bundle.oci(spec)?;
        write_new(&bundle.dir.join("config.json"), oci.to_string().as_bytes())
            .at(STEP, || "could not write the bundle's configuration".to_owned())?;
        Ok(bundle)
    }

    /// The bundle's `config.json`. Also makes every mount point in the root. The agent controls the root, so any name
    /// in it may be a link.
    fn oci(&self, spec: &SandboxSpec) -> Result<serde_json::Value, Failure> {
        const STEP: &str = "mounts";
        let runtime = &spec.runtime;
        let root = mounts::open_dir(&runtime.root)?;
        let mut all = vec![
            json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
            json!({ "destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"] }),
            json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] }),
            json!({ "destination": "/run", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=755"] }),
        ];
        for point in mounts::INNER_MOUNT_POINTS {
            mounts::make_mount_point(&root, Path::new(point), FileType::Directory)?;
        }
        let mut bind = |source: &Path, target: &Path, options: &[&str]| -> Result<(), Failure> {
            let point = target.strip_prefix("/").unwrap_or(target);
            mounts::make_mount_point(&root, point, mounts::source_kind(source)?)?;
            let mut options: Vec<&str> = options.to_vec();
            options.push("bind");
            all.push(json!({ "destination": target, "type": "bind", "source": source, "options": options }));
            Ok(())
        };
        let program = runtime.ctl.as_deref().ok_or_else(|| {
            Failure::new(
                STEP,
                "the guest's executable is not on the pool",
                io::Error::from(io::ErrorKind::NotFound),
            )
        })?;
        bind(&runtime.workspace, Path::new(WORKSPACE), &["rw"])?;
        bind(&runtime.state, Path::new(STATE_DIR), &["rw", "nosuid", "nodev"])?;
        bind(&runtime.checkpoints, Path::new(checkpoint::INSIDE), &["ro", "nosuid", "nodev"])?;
        bind(&self.shared, Path::new(boot::SHARED), &["rw", "nosuid", "nodev", "noexec"])?;
        bind(program, Path::new(inside::CTL), &["ro", "nosuid", "nodev"])?;
        bind(program, Path::new(boot::PROGRAM), &["ro", "nosuid", "nodev"])?;
        for mount in &runtime.mounts {
            let target = Path::new("/").join(mounts::target_below_root(mount)?);
            bind(&mount.source, &target, &["ro", "nosuid", "nodev"])?;
        }
        let sets = ["bounding", "effective", "permitted"].map(|set| (set.to_owned(), json!(CAPABILITIES)));
        Ok(json!({
            "ociVersion": "1.0.2",
            "hostname": runtime.name,
            "process": {
                "terminal": false,
                "user": { "uid": 0, "gid": 0 },
                "args": [boot::PROGRAM, "__guest", boot::SANDBOXED],
                "env": [],
                "cwd": "/",
                "capabilities": serde_json::Map::from_iter(sets),
            },
            "root": { "path": runtime.root, "readonly": false },
            "mounts": all,
            "linux": {
                "namespaces": [
                    { "type": "pid" }, { "type": "ipc" }, { "type": "uts" }, { "type": "mount" },
                    // The launcher's namespace.
                    { "type": "network", "path": "/proc/self/ns/net" },
                ],
            },
        }))
    }

    fn command(&self, spec: &SandboxSpec) -> io::Result<Command> {
        let said =
            fs::OpenOptions::new().create(true).append(true).mode(0o600).open(self.dir.join("said"))?;
        let mut command = Command::new(&spec.runsc);
        command
            .arg(format!("--root={}", self.dir.join("state").display()))
            .args(["--platform=systrap", "--network=sandbox", "--overlay2=none", "--ignore-cgroups"])
            // So that all writes are on the pool at once: a snapshot cannot ask the sandbox's kernel to flush.
            .args(["--file-access=shared", "--file-access-mounts=shared"])
            // The guest may make its socket in the shared directory. Connecting to sockets of the host is not allowed.
            .args(["--host-uds=create", "--net-raw"])
            .args(["run", "--detach"])
            .arg(format!("--bundle={}", self.dir.display()))
            .arg(format!("--pid-file={}", self.dir.join("pid").display()))
            .arg(CONTAINER)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said);
        Ok(command)
    }

    /// The end of runsc's output.
    fn output_end(&self) -> String {
        let text = fs::read(self.dir.join("said")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let text: Vec<char> = text.trim().chars().collect();
        text.iter().skip(text.len().saturating_sub(MAX_SAID)).collect()
    }

    fn record(&self) -> Result<RuntimeRecord, Failure> {
        let read = || {
            let text = fs::read_to_string(self.dir.join("pid"))?;
            run_directory::record_of(text.trim().parse().map_err(io::Error::other)?)
        };
        read().at("release", || format!("the sandbox is gone: {}", self.output_end()))
    }

    /// Waits until the guest listens, and moves its socket to where the bay cannot see it.
    fn take_socket(&self, run_dir: &Path, record: &RuntimeRecord) -> Result<(), Failure> {
        const STEP: &str = "release";
        let began = Instant::now();
        while !self.shared.join(boot::LISTENS).exists() {
            let lives =
                run_directory::process_start_ticks(record.pid).is_ok_and(|ticks| ticks == record.start_ticks);
            if !lives || began.elapsed() > LISTENS_WITHIN {
                let why = io::Error::other(self.output_end());
                return Err(Failure::new(STEP, "the guest does not listen", why));
            }
            let _ = poll(&mut [], Some(&LOOK_EVERY));
        }
        let socket = run_directory::guest_socket(run_dir);
        let taken = || -> io::Result<()> {
            fs::rename(self.shared.join(boot::SOCKET), &socket)?;
            fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))?;
            // The marker stays. It is visible here before the guest's own call that makes it has returned. If the file
            // were gone by then, the sandbox would fail that call, and the guest would end.
            fs::remove_file(self.shared.join(boot::CONFIG))
        };
        taken().at(STEP, || "could not take the guest's socket".to_owned())
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(bytes)
}

/// Never returns: becomes runsc, which ends when the sandbox runs.
fn launch(spec: &SandboxSpec, groups: &Hierarchies, bundle: &Bundle, go: &OwnedFd) -> ! {
    let error = prepare(spec, groups, go)
        .and_then(|()| bundle.command(spec))
        .map_or_else(|error| error, |mut command| command.exec());
    let _ = fs::write(bundle.dir.join("said"), error.to_string());
    exit_clone()
}

fn prepare(spec: &SandboxSpec, groups: &Hierarchies, go: &OwnedFd) -> io::Result<()> {
    let runtime = &spec.runtime;
    groups.join_v1(&runtime.place.cgroup)?;
    groups.take_affinity(&runtime.place.cgroup, runtime.limits.cpus, start::placing(runtime).turn)?;
    // A byte means: continue. End-of-file means that the helper is gone.
    if rustix::io::read(go, &mut [0])? != 1 {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    network::configure_bay()?;
    // No mount from here on may appear on the host.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    // If this directory has `rmem_default`, versions of runsc up to 2024 take the namespace for the host's own and
    // refuse to use its network. Since Linux 6.10 every namespace has that file.
    mount("none", "/proc/sys/net/core", "tmpfs", MountFlags::RDONLY, None::<&std::ffi::CStr>)?;
    rustix::process::setsid()?;
    Ok(())
}

/// Ends the clone without running the destructors that it shares with the helper.
#[allow(clippy::disallowed_methods, reason = "a clone must not run its parent's destructors")]
fn exit_clone() -> ! {
    std::process::exit(1)
}
