//! Starts a child in a cgroup, with a terminal or pipes, and reaps children.
//!
//! Between the clone and the `execve`, the child runs in a copy of a process that may have had other threads. So it
//! must not allocate, lock or unwind: everything that it needs is prepared before, and it makes raw system calls only.
//! Errors are reported through a close-on-exec pipe as a [`Failure`]; an empty report means that the program runs.

use std::ffi::{CStr, CString, c_char, c_int, c_long};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;

use rustix::pipe::PipeFlags;
use seccompiler::sock_filter;

use crate::clone::CloneArgs;
use crate::seccomp;

mod children;

pub use children::{MAX_SIGNAL, Reaped, reap, signal_everything, signal_group, signal_process};

/// The user as which the child runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// What to run. The descriptors in `stdio` may be the same.
#[derive(Debug)]
pub struct Command<'a> {
    /// Tried one after the other, until one is a program.
    pub programs: &'a [CString],
    pub argv: &'a [CString],
    pub env: &'a [CString],
    pub directory: &'a CStr,
    pub stdio: [BorrowedFd<'a>; 3],
    /// Standard input becomes the controlling terminal of the child's new session.
    pub terminal: bool,
    /// Without it, the child keeps the parent's identity.
    pub identity: Option<&'a Identity>,
    /// Directory of the cgroup v2 group for the child.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// Soft and hard limit of open files, if they must differ from the parent's.
    pub open_files: Option<(u64, u64)>,
    /// A seccomp filter for the child, besides those of the parent.
    pub filter: Option<&'a [sock_filter]>,
}

/// A child that was cloned and has not become its program yet.
#[derive(Debug)]
pub struct Spawned {
    pub pid: i32,
    /// Non-blocking. Read it to the end: empty means that the program runs, otherwise use [`Failure::decode`].
    pub report: OwnedFd,
}

/// The step at which a child failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Session,
    Cgroup,
    Stdio,
    Terminal,
    Directory,
    Filter,
    Groups,
    Gid,
    Uid,
    /// The program itself: not found, or not executable.
    Exec,
    /// The program exists, but its interpreter does not.
    Interpreter,
}

const STAGES: [Stage; 11] = [
    Stage::Session,
    Stage::Cgroup,
    Stage::Stdio,
    Stage::Terminal,
    Stage::Directory,
    Stage::Filter,
    Stage::Groups,
    Stage::Gid,
    Stage::Uid,
    Stage::Exec,
    Stage::Interpreter,
];

/// Why a child did not become its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    pub stage: Stage,
    pub errno: i32,
}

impl Failure {
    /// Length of a report.
    pub const LEN: usize = 8;

    /// Decodes what was read from [`Spawned::report`]. None if the program runs.
    #[must_use]
    pub fn decode(report: &[u8]) -> Option<Self> {
        let (head, rest) = report.split_first_chunk::<4>()?;
        let errno = i32::from_ne_bytes(*rest.first_chunk::<4>()?);
        let stage = usize::try_from(u32::from_ne_bytes(*head)).ok().and_then(|at| STAGES.get(at).copied())?;
        Some(Self { stage, errno })
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}: {}", self.stage, io::Error::from_raw_os_error(self.errno))
    }
}

/// Why there is no child.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("the file descriptors for a new process could not be made")]
    Descriptors(#[source] io::Error),
    #[error("a new process could not be made")]
    Clone(#[source] io::Error),
}

const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;

/// Everything that the child uses, as plain numbers and pointers into memory that the parent keeps until after the
/// clone.
struct Plan {
    programs: *const *const c_char,
    argv: *const *const c_char,
    /// `/bin/sh`, a free slot for the script, then the arguments: for a text file without `#!`.
    shell_argv: *mut *const c_char,
    env: *const *const c_char,
    directory: *const c_char,
    stdio: [RawFd; 3],
    report: RawFd,
    terminal: bool,
    identity: bool,
    uid: u32,
    gid: u32,
    groups: *const u32,
    group_count: usize,
    cgroup: RawFd,
    open_files: Option<libc::rlimit64>,
    filter: Option<libc::sock_fprog>,
}

/// The highest value that the kernel accepts: it should always kill a command before the guest.
const OOM_SCORE_ADJ: &CStr = c"1000";
/// The child keeps its report pipe here until `execve`. Everything above is closed.
const REPORT_FD: RawFd = 3;
const NO_FD: RawFd = -1;
/// The child's exit code if it could not become its program. Only the reaper sees it.
const EXIT_NOT_STARTED: c_int = 127;

/// Clones a child and returns at once. [`Spawned::report`] tells whether its program runs.
///
/// The child starts in its cgroup if the kernel supports that (`CLONE_INTO_CGROUP`). Otherwise it first moves itself there.
///
/// # Errors
/// If no child could be made. A child that fails later reports that itself.
pub fn spawn(command: &Command<'_>) -> Result<Spawned, SpawnError> {
    let (report, child_report) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
        .map_err(|e| SpawnError::Descriptors(e.into()))?;
    // The child copies these onto 0..=3, so none of them may be one of these numbers itself.
    let child_report = move_above_stdio(child_report)?;
    let mut lifted = Vec::with_capacity(3);
    for fd in command.stdio {
        lifted.push(
            rustix::io::fcntl_dupfd_cloexec(fd, REPORT_FD + 1)
                .map_err(|e| SpawnError::Descriptors(e.into()))?,
        );
    }
    let [stdin, stdout, stderr] = [0, 1, 2].map(|at: usize| lifted[at].as_raw_fd());

    let programs = pointers(command.programs);
    let argv = pointers(command.argv);
    let env = pointers(command.env);
    let mut shell_argv = vec![c"/bin/sh".as_ptr(), ptr::null()];
    shell_argv.extend_from_slice(argv.get(1..).unwrap_or(&[ptr::null()]));
    let groups: &[u32] = command.identity.map_or(&[], |i| &i.groups);
    let mut plan = Plan {
        programs: programs.as_ptr(),
        argv: argv.as_ptr(),
        shell_argv: shell_argv.as_mut_ptr(),
        env: env.as_ptr(),
        directory: command.directory.as_ptr(),
        stdio: [stdin, stdout, stderr],
        report: child_report.as_raw_fd(),
        terminal: command.terminal,
        identity: command.identity.is_some(),
        uid: command.identity.map_or(0, |i| i.uid),
        gid: command.identity.map_or(0, |i| i.gid),
        groups: groups.as_ptr(),
        group_count: groups.len(),
        cgroup: NO_FD,
        open_files: command.open_files.map(|(soft, hard)| libc::rlimit64 { rlim_cur: soft, rlim_max: hard }),
        filter: command.filter.and_then(seccomp::fprog),
    };

    let pid = match command.cgroup {
        Some(group) => match clone_child(&mut plan, Some(group.as_raw_fd()), true) {
            Err(refused) if !is_exhaustion(&refused) => {
                clone_child(&mut plan, Some(group.as_raw_fd()), false)
            }
            other => other,
        },
        None => clone_child(&mut plan, None, false),
    }
    .map_err(SpawnError::Clone)?;
    Ok(Spawned { pid, report })
}

/// Errors that another way of cloning would have too.
fn is_exhaustion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM))
}

fn move_above_stdio(fd: OwnedFd) -> Result<OwnedFd, SpawnError> {
    if fd.as_raw_fd() > REPORT_FD {
        return Ok(fd);
    }
    rustix::io::fcntl_dupfd_cloexec(&fd, REPORT_FD + 1).map_err(|e| SpawnError::Descriptors(e.into()))
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

fn clone_child(plan: &mut Plan, group: Option<RawFd>, born_there: bool) -> io::Result<i32> {
    plan.cgroup = if born_there { NO_FD } else { group.unwrap_or(NO_FD) };
    let args = CloneArgs::new(CLONE_CLEAR_SIGHAND, group.filter(|_| born_there));
    let old_mask = block_signals()?;
    // SAFETY: a fork-like clone (no CLONE_VM, no new stack): the child has its own copy of all memory, including `plan`
    // and everything it points to. In the child only `run_child` runs, which makes only raw system calls and never
    // returns. Needed because no library offers CLONE_INTO_CGROUP.
    let outcome = unsafe {
        let mut pid = libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>());
        let refused = *libc::__errno_location();
        if pid < 0 && !born_there && matches!(refused, libc::ENOSYS | libc::EPERM | libc::EINVAL) {
            // A seccomp filter may allow only `clone`, and gVisor's kernel refuses CLONE_CLEAR_SIGHAND. The child
            // resets every handler anyway.
            pid = libc::syscall(libc::SYS_clone, libc::SIGCHLD as c_long, 0, 0, 0, 0);
        }
        if pid == 0 {
            run_child(plan)
        }
        if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) }
    };
    restore_signals(&old_mask);
    outcome.map(|pid| i32::try_from(pid).unwrap_or(i32::MAX))
}

/// A handler of the parent must never run in the child: it would write to descriptors that both share.
fn block_signals() -> io::Result<libc::sigset_t> {
    // SAFETY: both sets are plain memory that the calls fill in; zero is a valid value for them.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        match libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old) {
            0 => Ok(old),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

fn restore_signals(mask: &libc::sigset_t) {
    // SAFETY: `mask` came from `block_signals`.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, ptr::null_mut());
    }
}

/// Size of the kernel's signal set.
const KERNEL_SIGSET: usize = 8;

/// What the child does before its program.
///
/// # Safety
/// Only in a freshly cloned child with its own memory, with `plan`'s pointers valid and its arrays null-terminated.
unsafe fn run_child(plan: &Plan) -> ! {
    // SAFETY: raw system calls with pointers into `plan`, which the caller guarantees; no allocation, no lock, no
    // unwinding. The wrappers of the C library for set*id must not be used: they signal threads that do not exist in
    // this process.
    unsafe {
        let check = |stage: Stage, result: c_long| {
            if result < 0 {
                report_and_exit(plan.report, stage);
            }
        };
        // SIG_DFL, no flags, no mask: all zero, and larger than the kernel's structure on any architecture.
        let default_action = [0_u64; 8];
        let mut signal = 1;
        while signal <= MAX_SIGNAL {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default_action.as_ptr(),
                ptr::null::<u64>(),
                KERNEL_SIGSET,
            );
            signal += 1;
        }
        check(Stage::Session, libc::syscall(libc::SYS_setsid));
        if plan.cgroup != NO_FD {
            let procs = libc::syscall(
                libc::SYS_openat,
                plan.cgroup,
                c"cgroup.procs".as_ptr(),
                libc::O_WRONLY | libc::O_CLOEXEC,
            );
            check(Stage::Cgroup, procs);
            check(Stage::Cgroup, libc::syscall(libc::SYS_write, procs, c"0".as_ptr(), 1_usize));
        }
        check(Stage::Stdio, libc::syscall(libc::SYS_dup3, plan.stdio[0], 0, 0));
        check(Stage::Stdio, libc::syscall(libc::SYS_dup3, plan.stdio[1], 1, 0));
        check(Stage::Stdio, libc::syscall(libc::SYS_dup3, plan.stdio[2], 2, 0));
        check(Stage::Stdio, libc::syscall(libc::SYS_dup3, plan.report, REPORT_FD, libc::O_CLOEXEC));
        let report = REPORT_FD;
        let check = |stage: Stage, result: c_long| {
            if result < 0 {
                report_and_exit(report, stage);
            }
        };
        // Not u32::MAX, which gVisor's kernel takes for -1.
        check(Stage::Stdio, libc::syscall(libc::SYS_close_range, REPORT_FD + 1, RawFd::MAX, 0));
        if plan.terminal {
            check(Stage::Terminal, libc::syscall(libc::SYS_ioctl, 0, libc::TIOCSCTTY, 0));
        }
        // If the bay runs out of memory, the kernel should kill a command and not PID 1. If /proc is missing, the
        // kernel chooses freely.
        let score = libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            c"/proc/self/oom_score_adj".as_ptr(),
            libc::O_WRONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW,
        );
        if score >= 0 {
            libc::syscall(libc::SYS_write, score, OOM_SCORE_ADJ.as_ptr(), OOM_SCORE_ADJ.count_bytes());
            libc::syscall(libc::SYS_close, score);
        }
        if let Some(limit) = &plan.open_files {
            // The parent's own limit is between these two, so this only ever lowers it.
            libc::syscall(
                libc::SYS_prlimit64,
                0,
                libc::RLIMIT_NOFILE,
                ptr::from_ref(limit),
                ptr::null::<u64>(),
            );
        }
        check(Stage::Directory, libc::syscall(libc::SYS_chdir, plan.directory));
        // While the child is root: a filter without `no_new_privs` needs that.
        if let Some(filter) = &plan.filter {
            let set =
                libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, ptr::from_ref(filter));
            check(Stage::Filter, set);
        }
        if plan.identity {
            check(Stage::Groups, libc::syscall(libc::SYS_setgroups, plan.group_count, plan.groups));
            check(Stage::Gid, libc::syscall(libc::SYS_setresgid, plan.gid, plan.gid, plan.gid));
            check(Stage::Uid, libc::syscall(libc::SYS_setresuid, plan.uid, plan.uid, plan.uid));
        }
        libc::syscall(libc::SYS_umask, 0o022);
        let empty = 0_u64;
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const empty,
            ptr::null::<u64>(),
            KERNEL_SIGSET,
        );
        exec_first(plan, report)
    }
}

/// Tries the candidates as a shell does: skips a missing one, remembers one that may not be executed, and passes a text
/// file without `#!` to `/bin/sh`.
///
/// # Safety
/// As [`run_child`].
unsafe fn exec_first(plan: &Plan, report: RawFd) -> ! {
    // SAFETY: as in `run_child`; `programs` is null-terminated and `shell_argv` has a slot at 1.
    unsafe {
        let mut best = (Stage::Exec, libc::ENOENT);
        let mut at = plan.programs;
        while !(*at).is_null() {
            let program = *at;
            libc::syscall(libc::SYS_execve, program, plan.argv, plan.env);
            match *libc::__errno_location() {
                libc::ENOENT | libc::ENOTDIR => {
                    if libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, program, libc::F_OK) == 0 {
                        best = (Stage::Interpreter, libc::ENOENT);
                        break;
                    }
                }
                libc::EACCES => best = (Stage::Exec, libc::EACCES),
                libc::ENOEXEC => {
                    *plan.shell_argv.add(1) = program;
                    libc::syscall(libc::SYS_execve, c"/bin/sh".as_ptr(), plan.shell_argv, plan.env);
                    best = (Stage::Exec, libc::ENOEXEC);
                    break;
                }
                other => {
                    best = (Stage::Exec, other);
                    break;
                }
            }
            at = at.add(1);
        }
        *libc::__errno_location() = best.1;
        report_and_exit(report, best.0)
    }
}

/// # Safety
/// As [`run_child`].
unsafe fn report_and_exit(report: RawFd, stage: Stage) -> ! {
    // SAFETY: as in `run_child`. Both halves are written at once, and a pipe does not split them.
    unsafe {
        let words = [stage as u32, (*libc::__errno_location()).cast_unsigned()];
        libc::syscall(libc::SYS_write, report, words.as_ptr(), Failure::LEN);
        loop {
            libc::syscall(libc::SYS_exit_group, EXIT_NOT_STARTED);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    use super::*;

    fn words(texts: &[&str]) -> Vec<CString> {
        texts.iter().map(|t| CString::new(*t).unwrap()).collect()
    }

    /// Runs it to its end. Returns the failure of the start, the output and the wait status.
    fn run(programs: &[&str], argv: &[&str], directory: &CStr) -> (Option<Failure>, String, i32) {
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let (out, child_out) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        let spawned = spawn(&Command {
            programs: &words(programs),
            argv: &words(argv),
            env: &words(&["A=1"]),
            directory,
            stdio: [null.as_fd(), child_out.as_fd(), null.as_fd()],
            terminal: false,
            identity: None,
            cgroup: None,
            open_files: None,
            filter: None,
        })
        .unwrap();
        drop(child_out);
        let flags = rustix::fs::fcntl_getfl(&spawned.report).unwrap();
        rustix::fs::fcntl_setfl(&spawned.report, flags - rustix::fs::OFlags::NONBLOCK).unwrap();
        let mut report = Vec::new();
        File::from(spawned.report).read_to_end(&mut report).unwrap();
        let mut text = String::new();
        File::from(out).read_to_string(&mut text).unwrap();
        let mut status = 0;
        // SAFETY: waits for a child of this test; the status is a local.
        unsafe { libc::waitpid(spawned.pid, &raw mut status, 0) };
        (Failure::decode(&report), text, status)
    }

    #[test]
    fn a_program_runs_with_only_what_it_was_given() {
        let script =
            "echo $A; for n in 0 1 2 3 4 5 6 7; do [ -e /proc/$$/fd/$n ] && echo $n; done; umask; exit 3";
        let (failure, text, status) = run(&["/nowhere/sh", "/bin/sh"], &["sh", "-c", script], c"/usr");
        assert_eq!(failure, None);
        assert_eq!(text, "1\n0\n1\n2\n0022\n");
        assert_eq!(libc::WEXITSTATUS(status), 3);
    }

    #[test]
    fn each_failure_to_start_has_its_own_stage() {
        let fail = |programs: &[&str], directory| run(programs, &["x"], directory).0.unwrap();
        assert_eq!(fail(&["/nowhere/x"], c"/"), Failure { stage: Stage::Exec, errno: libc::ENOENT });
        assert_eq!(
            fail(&["/etc/passwd", "/nowhere/x"], c"/"),
            Failure { stage: Stage::Exec, errno: libc::EACCES }
        );
        assert_eq!(fail(&["/bin/sh"], c"/nowhere"), Failure { stage: Stage::Directory, errno: libc::ENOENT });
    }

    #[test]
    fn a_report_of_any_bytes_is_understood_or_refused() {
        assert_eq!(Failure::decode(&[]), None);
        assert_eq!(Failure::decode(&[0xff; 8]), None);
        assert_eq!(
            Failure::decode(&[9, 0, 0, 0, 2, 0, 0, 0]),
            Some(Failure { stage: Stage::Exec, errno: 2 })
        );
    }

    #[test]
    fn everything_can_only_be_signalled_by_pid_one() {
        assert_eq!(signal_everything(0).unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert_eq!(signal_group(1, 0).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(signal_process(-1, 0).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
