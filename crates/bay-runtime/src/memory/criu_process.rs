//! One CRIU process, which serves one request and reports its progress.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bay_sys::namespace::{Cloned, clone_process};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::statvfs;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};

use super::PROGRAM;
use super::protobuf::{Message, Value, fields};
use crate::failure::{Failure, Try};
use crate::run_directory;

/// Longest message that CRIU sends.
const MAX_MESSAGE: usize = 64 << 10;
/// Lines of CRIU's log that are reported when it fails.
const REPORTED_LINES: usize = 4;
/// Most characters of each reported line.
const REPORTED_LENGTH: usize = 300;
/// How often the helper checks whether the bay still exists and how much was written.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Name of the log in the work directory.
const LOG: &str = "criu.log";
/// Messages without consequence, on every host that does not allow raising limits.
const HARMLESS: [&str; 2] = ["rlimit: Can't setup RLIMIT_NOFILE", "cgroupd: recv req error"];

/// The size limit of deleted files that are still open: for CRIU, which copies them, of each; for this crate, of all
/// together. Files may share blocks, which count once for the bay but are copied for each.
pub(super) const MAX_GHOST_BYTES: u64 = 1 << 30;
/// The message when a capture is given up.
pub(super) const TOO_LARGE: &str = "there is more to be kept than the bay has memory, and no room for it: memory that processes share after a fork, \
     and files that were removed and are still open, are kept for each";
/// A capture also writes mappings, open files, and the content of pipes and sockets: this fraction of the memory.
const BESIDE_MEMORY: u64 = 8;
/// This fraction of the filesystem stays free for others.
const RESERVED_PART: u64 = 10;

/// What CRIU is asked to do. The numbers are those of its protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    Dump = 1,
    Restore = 2,
}

/// A set flag.
const YES: u64 = 1;
/// The type of a progress message, and of the answer to it.
const NOTIFY: u64 = 6;

/// Fields of `criu_req`, `criu_resp` and their parts (CRIU's `rpc.proto`).
mod rpc {
    pub(super) const TYPE: u64 = 1;
    // Of a request.
    pub(super) const OPTIONS: u64 = 2;
    pub(super) const NOTIFY_SUCCESS: u64 = 3;
    // Of an answer.
    pub(super) const SUCCESS: u64 = 2;
    pub(super) const RESTORED: u64 = 4;
    pub(super) const NOTIFICATION: u64 = 5;
    // Of the result of a restore, and of a notification.
    pub(super) const RESTORED_PID: u64 = 1;
    pub(super) const NOTIFICATION_SCRIPT: u64 = 1;
    pub(super) const NOTIFICATION_PID: u64 = 2;
}

/// Fields of CRIU's options.
pub(super) mod option {
    pub(in crate::memory) const IMAGES: u64 = 1;
    pub(in crate::memory) const PID: u64 = 2;
    pub(in crate::memory) const LEAVE_RUNNING: u64 = 3;
    pub(in crate::memory) const TCP_ESTABLISHED: u64 = 5;
    pub(in crate::memory) const FILE_LOCKS: u64 = 8;
    pub(in crate::memory) const LOG_LEVEL: u64 = 9;
    pub(in crate::memory) const LOG_FILE: u64 = 10;
    pub(in crate::memory) const NOTIFY: u64 = 12;
    pub(in crate::memory) const ROOT: u64 = 13;
    pub(in crate::memory) const WORK_DIR: u64 = 17;
    pub(in crate::memory) const LINK_REMAP: u64 = 18;
    pub(in crate::memory) const MANAGE_CGROUPS: u64 = 24;
    pub(in crate::memory) const CGROUP_ROOT: u64 = 25;
    pub(in crate::memory) const INHERIT: u64 = 27;
    pub(in crate::memory) const CGROUP_MODE: u64 = 34;
    pub(in crate::memory) const GHOST_LIMIT: u64 = 35;
    pub(in crate::memory) const EXTERNAL: u64 = 37;
    pub(in crate::memory) const EMPTY_NAMESPACES: u64 = 38;
    pub(in crate::memory) const CGROUP_YARD: u64 = 60;
    pub(in crate::memory) const NETWORK_LOCK: u64 = 64;
    pub(in crate::memory) const ANY_FILE_MODE: u64 = 66;
}

/// The options that dump and restore share.
pub(super) fn common_options(images: BorrowedFd<'_>, work_dir: BorrowedFd<'_>) -> Message {
    /// Warnings and errors.
    const LOG_LEVEL: u64 = 2;
    /// Existing groups are used as they are; missing ones are made.
    const SOFT: u64 = 3;
    /// Does not need a program of the host.
    const NFTABLES: u64 = 2;
    let mut options = Message::default();
    options
        .number(option::IMAGES, descriptor(images))
        .number(option::WORK_DIR, descriptor(work_dir))
        .flag(option::TCP_ESTABLISHED)
        .flag(option::FILE_LOCKS)
        .number(option::LOG_LEVEL, LOG_LEVEL)
        .bytes(option::LOG_FILE, LOG.as_bytes())
        .flag(option::NOTIFY)
        .flag(option::LINK_REMAP)
        .flag(option::MANAGE_CGROUPS)
        .number(option::CGROUP_MODE, SOFT)
        .number(option::GHOST_LIMIT, MAX_GHOST_BYTES)
        // CRIU makes a new network namespace, and the helper configures it.
        .number(option::EMPTY_NAMESPACES, bay_sys::namespace::flags::NET)
        .number(option::NETWORK_LOCK, NFTABLES);
    options
}

pub(super) fn descriptor(fd: BorrowedFd<'_>) -> u64 {
    u64::try_from(fd.as_raw_fd()).unwrap_or_default()
}

/// A CRIU process. Dropping this kills it and waits for its end.
pub(super) struct Worker {
    pub(super) pid: i32,
    socket: OwnedFd,
    handle: OwnedFd,
    step: &'static str,
    /// PID 1 of the bay that is stopped. If PID 1 is killed, it waits for the end of the other processes, which wait
    /// for CRIU, which waits for PID 1. The helper watches for that.
    watched: Option<i32>,
    bound: Option<Bound>,
}

/// How much may be written to a directory: the expected amount, and more as long as there is space.
struct Bound {
    dir: PathBuf,
    /// The free space at the beginning. The filesystem counts new data only after some time.
    room: u64,
    foreseen: Box<dyn Fn() -> u64>,
}

impl Bound {
    fn is_passed(&self) -> bool {
        // The copy of the guest's executable shares its blocks with the original.
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let images = files.filter(|file| file.file_name() != PROGRAM);
        let written: u64 = images.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum();
        let foreseen = (self.foreseen)();
        written > self.room && written > foreseen.saturating_add(foreseen / BESIDE_MEMORY)
    }
}

impl Worker {
    /// Starts CRIU, in a cgroup if one is given. The descriptors in `passed` keep their numbers.
    pub(super) fn start(
        criu: &Path,
        step: &'static str,
        group: Option<BorrowedFd<'_>>,
        passed: &[BorrowedFd<'_>],
    ) -> Result<Self, Failure> {
        let what = || format!("could not start {}", criu.display());
        let flags = SocketFlags::CLOEXEC;
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).at(step, what)?;
        match clone_process(0, group).at(step, what)? {
            Cloned::Parent { pid } => {
                let own = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound).at(step, what)?;
                let handle = pidfd_open(own, PidfdFlags::empty()).at(step, what)?;
                Ok(Self { pid, socket, handle, step, watched: None, bound: None })
            }
            Cloned::Child => {
                for fd in passed.iter().chain([&theirs.as_fd()]) {
                    let _ = fcntl_setfd(fd, FdFlags::empty());
                }
                let number = theirs.as_raw_fd().to_string();
                // CRIU inherits no output of the helper: CRIU's children may outlive the helper, and the daemon waits
                // for the end of the helper's output. This returns only if the program cannot be run; the closed socket
                // shows that.
                let _ = Command::new(criu)
                    .arg("swrk")
                    .arg(number)
                    .current_dir("/")
                    .env_clear()
                    .env("PATH", TOOLS)
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .exec();
                leave()
            }
        }
    }

    pub(super) fn watching(mut self, first_process: i32) -> Self {
        self.watched = Some(first_process);
        self
    }

    /// Ends CRIU if it writes more than expected to its images, and nearly fills the filesystem.
    pub(super) fn bound(&mut self, images: &Path, foreseen: impl Fn() -> u64 + 'static) {
        let room = statvfs(images).map_or(u64::MAX, |room| {
            room.f_bavail.saturating_sub(room.f_blocks / RESERVED_PART).saturating_mul(room.f_frsize)
        });
        self.bound = Some(Bound { dir: images.to_owned(), room, foreseen: Box::new(foreseen) });
    }

    /// Sends one request and passes each of CRIU's notifications to `on`, until CRIU is done. If `on` fails, the
    /// request fails. After a restore, returns PID 1 of the bay.
    pub(super) fn run(
        &self,
        request: Request,
        options: &Message,
        mut on: impl FnMut(&str, i32) -> Result<(), Failure>,
    ) -> Result<Option<i32>, Failure> {
        let mut message = Message::default();
        message.number(rpc::TYPE, request as u64).message(rpc::OPTIONS, options);
        self.send(&message)?;
        let mut refused = None;
        loop {
            let answer = self.receive()?;
            let answer = fields(&answer);
            let number = |field| {
                answer.iter().find_map(|&(f, v)| match v {
                    Value::Number(number) if f == field => Some(number),
                    _ => None,
                })
            };
            let nested = |field| {
                answer.iter().find_map(|&(f, v)| match v {
                    Value::Bytes(bytes) if f == field => Some(fields(bytes)),
                    _ => None,
                })
            };
            if number(rpc::TYPE) == Some(NOTIFY) {
                let (mut stage, mut pid) = (String::new(), 0);
                for (field, value) in nested(rpc::NOTIFICATION).unwrap_or_default() {
                    match (field, value) {
                        (rpc::NOTIFICATION_SCRIPT, Value::Bytes(name)) => {
                            stage = String::from_utf8_lossy(name).into_owned();
                        }
                        (rpc::NOTIFICATION_PID, Value::Number(number)) => {
                            pid = i32::try_from(number).unwrap_or_default();
                        }
                        _ => {}
                    }
                }
                let went = on(&stage, pid);
                let mut reply = Message::default();
                reply.number(rpc::TYPE, NOTIFY).number(rpc::NOTIFY_SUCCESS, u64::from(went.is_ok()));
                refused = refused.or(went.err());
                self.send(&reply)?;
                continue;
            }
            return match (refused, number(rpc::SUCCESS)) {
                (Some(failure), _) => Err(failure),
                (None, Some(YES)) => Ok(nested(rpc::RESTORED).and_then(|restored| match restored.first() {
                    Some(&(rpc::RESTORED_PID, Value::Number(pid))) => i32::try_from(pid).ok(),
                    _ => None,
                })),
                _ => Err(Failure::new(self.step, "CRIU could not do it", io::Error::other("see its log"))),
            };
        }
    }

    fn send(&self, message: &Message) -> Result<(), Failure> {
        send(&self.socket, message.as_bytes(), SendFlags::NOSIGNAL)
            .map(drop)
            .at(self.step, || "CRIU is gone".to_owned())
    }

    fn receive(&self) -> Result<Vec<u8>, Failure> {
        // CRIU's children share the socket, so only the handle shows that CRIU itself has ended.
        let mut events = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&self.handle, PollFlags::IN)];
        while poll(&mut events, Some(&LOOK_EVERY)).at(self.step, || "CRIU does not answer".to_owned())? == 0 {
            if self.watched.is_some_and(run_directory::is_ending) {
                let ended = io::Error::from(io::ErrorKind::NotFound);
                return Err(Failure::new(self.step, "the bay ended meanwhile", ended));
            }
            if self.bound.as_ref().is_some_and(Bound::is_passed) {
                let larger = io::Error::from(io::ErrorKind::FileTooLarge);
                return Err(Failure::new(self.step, TOO_LARGE, larger));
            }
        }
        if !events[0].revents().contains(PollFlags::IN) {
            let ended = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(Failure::new(self.step, "CRIU ended without an answer", ended));
        }
        let mut bytes = vec![0; MAX_MESSAGE];
        let (_, length) = recv(&self.socket, &mut bytes[..], RecvFlags::empty())
            .at(self.step, || "CRIU does not answer".to_owned())?;
        if length == 0 {
            let ended = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(Failure::new(self.step, "CRIU ended without an answer", ended));
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    /// CRIU itself and those of its processes that still have the host's rights.
    pub(super) fn privileged(&self) -> io::Result<Vec<i32>> {
        let own = fs::read_link("/proc/self/ns/user")?;
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid))?;
        let mut all = vec![self.pid];
        all.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        all.retain(|pid| fs::read_link(format!("/proc/{pid}/ns/user")).is_ok_and(|ns| ns == own));
        Ok(all)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Including the processes in which it tests the kernel, which it would have ended itself.
        let others = self.privileged().unwrap_or_default();
        for pid in [self.pid].into_iter().chain(others).filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

/// Where CRIU finds `tar`, with which it saves the content of a tmpfs.
const TOOLS: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[allow(clippy::disallowed_methods, reason = "a clone must not run its parent's destructors")]
fn leave() -> ! {
    std::process::exit(1)
}

/// CRIU's own messages about a failure.
pub(super) struct Complaints {
    /// Pid on the host of the process at which it failed.
    pub(super) pid: Option<i32>,
    pub(super) said: String,
}

pub(super) fn complaints(work_dir: &Path) -> Complaints {
    let log = fs::read(work_dir.join(LOG)).unwrap_or_default();
    read_complaints(&String::from_utf8_lossy(&log))
}

fn read_complaints(log: &str) -> Complaints {
    let errors = log.lines().filter_map(|line| line.split_once("Error (")).map(|(_, rest)| {
        let said = rest.split_once("): ").map_or(rest, |(_, said)| said);
        said.chars().take(REPORTED_LENGTH).collect::<String>()
    });
    let (mut pid, mut told) = (None, Vec::new());
    for said in errors.filter(|said| !HARMLESS.iter().any(|harmless| said.contains(harmless))) {
        // CRIU's summary lines name the place, but not the reason.
        match said.split_once("(pid: ").and_then(|(_, rest)| rest.split_once(')')?.0.parse().ok()) {
            Some(at) => pid = pid.or(Some(at)),
            None if said.starts_with("Dumping FAILED") => {}
            None if told.len() < REPORTED_LINES => told.push(said),
            None => {}
        }
    }
    let said = if told.is_empty() { "it does not say why".to_owned() } else { told.join("; ") };
    Complaints { pid, said }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_criu_are_reported_with_their_process() {
        let log = "(00.01) Error (criu/rlimit.c:20): rlimit: Can't setup RLIMIT_NOFILE for self\n\
                   (00.05) Error (criu/files-reg.c:1): Can't link remap to /x/y: Operation not permitted\n\
                   (00.06) Error (criu/cr-dump.c:1): Dump files (pid: 6380) failed with -1\n\
                   (00.07) Error (criu/cr-dump.c:2): Dumping FAILED.\n";
        let read = read_complaints(log);
        assert_eq!(read.pid, Some(6380));
        assert_eq!(read.said, "Can't link remap to /x/y: Operation not permitted");
        let nothing = read_complaints("(00.01) Warn  (criu/x.c:1): hm\n");
        assert_eq!((nothing.pid, nothing.said.as_str()), (None, "it does not say why"));
    }
}
