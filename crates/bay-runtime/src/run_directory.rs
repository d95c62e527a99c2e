//! The run directory of a runtime: its lock, its socket, its handles, and the record by which its PID 1 is recognised.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bay_types::runtime::{RuntimePlace, RuntimeRecord};
use rustix::event::{Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::failure::{Failure, Try};

/// Name of the socket in the run directory.
pub const GUEST_SOCKET: &str = "guest.sock";

/// The guest's socket on the host.
#[must_use]
pub fn guest_socket(run_dir: &Path) -> PathBuf {
    run_dir.join(GUEST_SOCKET)
}

/// File in the run directory that names the process that took the lock last.
const HOLDER: &str = "holder";
/// How often the holder of a lock is checked.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long a CRIU without its helper may take to undo what it did.
const UNDONE_WITHIN: Duration = Duration::from_secs(20);
/// How often taking a lock is tried while another process has it.
const LOCK_ROUND: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Connections that may wait for the guest to accept them: as many as a bay may have forwarded at once.
const BACKLOG: i32 = 1024;

/// Makes the guest's socket, in a directory that no bay sees, so nothing inside can replace it. The socket belongs to
/// the network namespace of the calling process. Only a socket of the bay's namespace can be in a memory checkpoint.
pub(crate) fn listen(run_dir: &Path) -> io::Result<OwnedFd> {
    // A socket's path may have at most 107 bytes. The path of a data directory may be longer.
    let dir = File::open(run_dir)?;
    let path = format!("/proc/self/fd/{}/{GUEST_SOCKET}", dir.as_raw_fd());
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener.into())
}

/// Where the helper builds the bay's tree, in its private mount namespace.
pub(crate) fn staging_dir(run_dir: &Path) -> PathBuf {
    run_dir.join("root")
}

/// The handle that keeps the gateway namespace alive while the bay runs.
pub(crate) fn gateway_handle(run_dir: &Path) -> PathBuf {
    run_dir.join("gateway.netns")
}

/// Makes the run directory and takes its lock: one helper per bay at a time. The lock ends
/// when no process has the descriptor any more.
pub(crate) fn lock(place: &RuntimePlace) -> Result<File, Failure> {
    const STEP: &str = "clear";
    let dir = &place.run_dir;
    loop {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .at(STEP, || format!("could not make {}", dir.display()))?;
        let file = match File::open(dir) {
            Ok(file) => file,
            // Another helper has just removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Failure::new(STEP, format!("could not open {}", dir.display()), error)),
        };
        let mut orphans = Orphans::of(dir);
        while let Err(error) = flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK {
                return Err(Failure::new(STEP, format!("could not lock {}", dir.display()), error));
            }
            orphans.end_stuck();
            let _ = poll(&mut [], Some(&LOCK_ROUND));
        }
        // The helper that had the lock before may have removed this directory.
        let held = file.metadata().map(|m| m.ino()).ok();
        if held.is_some() && held == std::fs::metadata(dir).map(|m| m.ino()).ok() {
            // For helpers that wait for the lock: they can tell whether this process holds it, or only a process that
            // it left behind.
            let own = process_id().and_then(|pid| Ok(format!("{pid} {}", process_start_ticks(pid)?)));
            own.and_then(|own| std::fs::write(dir.join(HOLDER), own))
                .at(STEP, || format!("could not say in {} who locked it", dir.display()))?;
            return Ok(file);
        }
    }
}

fn process_id() -> io::Result<i32> {
    i32::try_from(std::process::id()).map_err(io::Error::other)
}

/// Processes that keep the lock of a run directory after the process that took it has ended. A capture passes the lock
/// to CRIU, so that no other helper starts while CRIU undoes its work. CRIU shares the lock with processes in which it
/// tests the kernel. If CRIU is killed, those stay for ever, stopped or asleep; and a CRIU may wait for something that
/// never comes.
struct Orphans<'a> {
    dir: &'a Path,
    /// When the process that took the lock last was seen alive.
    since: Instant,
    looked: Option<Instant>,
}

impl<'a> Orphans<'a> {
    fn of(dir: &'a Path) -> Self {
        Self { dir, since: Instant::now(), looked: None }
    }

    /// Ends those processes that can achieve nothing any more.
    fn end_stuck(&mut self) {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return;
        }
        self.looked = Some(Instant::now());
        let taken_by = std::fs::read_to_string(self.dir.join(HOLDER)).unwrap_or_default();
        if taken_by.split_once(' ').is_some_and(|(pid, ticks)| lives(pid, ticks)) {
            // The time of a CRIU begins when its helper has ended.
            self.since = Instant::now();
            return;
        }
        let all = self.since.elapsed() > UNDONE_WITHIN;
        for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let path = process.path();
            if let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok())
                && (all || is_stopped(&path))
                && self.is_held_by(&path)
                && !is_helper(&path)
                && let Some(pid) = Pid::from_raw(pid)
            {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    fn is_held_by(&self, process: &Path) -> bool {
        let open = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        open.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|target| target == self.dir)
    }
}

fn lives(pid: &str, ticks: &str) -> bool {
    let began = pid.parse().ok().and_then(|pid| process_start_ticks(pid).ok());
    began.is_some() && began == ticks.parse().ok()
}

fn is_stopped(process: &Path) -> bool {
    let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
    fields(&stat).first().is_some_and(|state| matches!(*state, "T" | "t"))
}

/// Whether this is another helper that waits for the lock.
fn is_helper(process: &Path) -> bool {
    let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(b"__runtime")
}

/// Whether a process is ending or has ended.
pub(crate) fn is_ending(pid: i32) -> bool {
    /// The kernel's flag for a process that is ending.
    const PF_EXITING: u64 = 4;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    fields(&stat).get(6).and_then(|flags| flags.parse().ok()).is_none_or(|flags: u64| flags & PF_EXITING != 0)
}

/// The fields after the name in `/proc/PID/stat`. The name is in parentheses and may contain anything, even
/// parentheses.
fn fields(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default().split_ascii_whitespace().collect()
}

/// The record of a running process.
pub(crate) fn record_of(pid: i32) -> io::Result<RuntimeRecord> {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    Ok(RuntimeRecord { pid, start_ticks: process_start_ticks(pid)?, boot_id })
}

/// When a process started, in clock ticks since boot. Together with the pid, this is unique until the next boot.
///
/// # Errors
/// If the process does not exist, or is a zombie.
pub fn process_start_ticks(pid: i32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = fields(&stat);
    match (fields.first(), fields.get(19).and_then(|ticks| ticks.parse().ok())) {
        (Some(&("Z" | "X")), _) => Err(io::Error::new(io::ErrorKind::NotFound, "the process has ended")),
        (_, Some(ticks)) => Ok(ticks),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat is not understood"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_start_time_and_a_missing_one_has_not() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(process_start_ticks(own).unwrap() > 0);
        assert!(process_start_ticks(i32::MAX).is_err());
    }
}
