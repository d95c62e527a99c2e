//! Runs a program of the host on data that may be hostile, with as little of the host in reach as possible.
//!
//! A separate thread drops the rights that the program must not have, and then starts it. The Landlock domain, the
//! dropped privileges and the empty capability bounding set apply to the thread only, and its children inherit them.
//! The thread lives until the work is done, because the child dies with its parent thread. If the host allows it, the
//! child is the first process of a PID namespace, so everything that it started dies with it: a killed daemon leaves
//! no program behind. On a kernel without Landlock the rest still applies; a warning reports that once.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Once;
use std::sync::mpsc;

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    path_beneath_rules,
};
use rustix::process::{Pid, Resource, Rlimit};
use rustix::thread::CapabilitySet;

/// The search path for programs of the host, independent of the caller's environment.
pub const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Paths that programs need to start and to find their libraries, certificates and name servers.
const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/nix/store",
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager/resolv.conf",
    "/run/nscd",
    "/dev/urandom",
    "/dev/random",
    "/dev/zero",
];
/// Devices that may be written to.
const SINKS: &[&str] = &["/dev/null"];

/// Limit on the data of each process of a program: a hostile repository can describe endless trees in a few bytes.
const MAX_MEMORY: u64 = 4 * 1024 * 1024 * 1024;

/// The newest Landlock version that is requested. An older kernel enforces what it supports.
const LANDLOCK: ABI = ABI::V6;

/// What a program may access.
#[derive(Debug, Default)]
pub struct Confinement {
    /// Paths that it may read besides the system's.
    pub read: Vec<PathBuf>,
    /// Directories that it may change. Besides them it may write only to `/dev/null`.
    pub write: Vec<PathBuf>,
}

impl Confinement {
    /// Starts the program and runs `drive` with it. The program does not outlive the call.
    pub fn run<T>(&self, command: &mut Command, drive: impl FnOnce(&mut Child) -> T) -> io::Result<T> {
        bay_sys::identity::die_with_parent(command);
        std::thread::scope(|scope| {
            let (started, start) = mpsc::channel();
            let (finish, finished) = mpsc::channel::<()>();
            scope.spawn(move || {
                let child = self.give_up().and_then(|()| command.spawn());
                let _ = started.send(child);
                // Ends when the other side is dropped, also by a panic.
                let _ = finished.recv();
            });
            let mut child = start.recv().map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))??;
            bound_memory(&child);
            let result = drive(&mut child);
            if !matches!(child.try_wait(), Ok(Some(_))) {
                let _ = child.kill();
                let _ = child.wait();
            }
            drop(finish);
            Ok(result)
        })
    }

    fn give_up(&self) -> io::Result<()> {
        // Without it (on a host that forbids namespaces) a child of the program may outlive it by a moment.
        if let Err(error) = bay_sys::identity::next_child_starts_pid_namespace() {
            tracing::debug!(%error, "no PID namespace for a confined program");
        }
        for capability in CapabilitySet::all().iter() {
            match rustix::thread::remove_capability_from_bounding_set(capability) {
                // The kernel does not know this capability, or the process lacks it. Then the program cannot have it
                // either.
                Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::PERM) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let status = self.landlock().map_err(io::Error::other)?;
        if status == RulesetStatus::NotEnforced {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                tracing::warn!("this kernel has no Landlock: git and unpackers run without it");
            });
        }
        Ok(())
    }

    fn landlock(&self) -> Result<RulesetStatus, landlock::RulesetError> {
        let all = AccessFs::from_all(LANDLOCK);
        let read = AccessFs::from_read(LANDLOCK);
        let sink = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
        let status = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(all)?
            .create()?
            .add_rules(path_beneath_rules(SYSTEM, read))?
            .add_rules(path_beneath_rules(&self.read, read))?
            .add_rules(path_beneath_rules(SINKS, sink))?
            .add_rules(path_beneath_rules(&self.write, all))?
            .restrict_self()?;
        Ok(status.ruleset)
    }
}

/// Processes that the program starts later inherit the limit.
fn bound_memory(child: &Child) {
    let bound = Rlimit { current: Some(MAX_MEMORY), maximum: Some(MAX_MEMORY) };
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Err(error) = rustix::process::prlimit(pid, Resource::Data, bound) {
        tracing::debug!(%error, "a confined program has no bound on its memory");
    }
}
