//! How children end: reaping with resource usage, and sending signals without the dangerous pids.

use std::ffi::c_int;
use std::io;

/// The kernel counts I/O in blocks of this size, whatever the disk's block size is.
const USAGE_BLOCK: u64 = 512;

/// A child that has ended, as the kernel reported it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reaped {
    pub pid: i32,
    /// Set if it exited by itself.
    pub code: Option<i32>,
    /// Set if a signal ended it.
    pub signal: Option<i32>,
    pub user_us: u64,
    pub system_us: u64,
    pub max_rss_kib: u64,
    /// Read from and written to disks, by it and the children that it waited for.
    pub read_bytes: u64,
    pub write_bytes: u64,
}

/// Reaps one dead child, without waiting. None if there is none.
///
/// # Errors
/// Every error of `wait4` but "no child" and an interruption.
pub fn reap() -> io::Result<Option<Reaped>> {
    let mut status: c_int = 0;
    // SAFETY: the kernel fills in both structures; zero is a valid value of `rusage`. Needed because rustix has no wait
    // that returns the resource usage.
    let (pid, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(-1, &raw mut status, libc::WNOHANG | libc::__WALL, &raw mut usage), usage)
    };
    match pid {
        0 => Ok(None),
        pid if pid > 0 => {
            let micros = |t: libc::timeval| {
                u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(t.tv_usec).unwrap_or(0)
            };
            Ok(Some(Reaped {
                pid,
                code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
                signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
                user_us: micros(usage.ru_utime),
                system_us: micros(usage.ru_stime),
                max_rss_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0),
                read_bytes: u64::try_from(usage.ru_inblock).unwrap_or(0) * USAGE_BLOCK,
                write_bytes: u64::try_from(usage.ru_oublock).unwrap_or(0) * USAGE_BLOCK,
            }))
        }
        _ => match io::Error::last_os_error() {
            e if matches!(e.raw_os_error(), Some(libc::ECHILD | libc::EINTR)) => Ok(None),
            e => Err(e),
        },
    }
}

/// Highest signal number.
pub const MAX_SIGNAL: i32 = 64;

/// Sends a signal to one process; 0 only checks whether it exists.
///
/// # Errors
/// `EINVAL` for a number that is no process or no signal, otherwise as `kill(2)`.
pub fn signal_process(pid: i32, signal: i32) -> io::Result<()> {
    if pid <= 0 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    kill(pid, signal)
}

/// Sends a signal to every process of a process group.
///
/// # Errors
/// `EINVAL` for a number that is no group (1 would mean everything) or no signal, otherwise as `kill(2)`.
pub fn signal_group(group: i32, signal: i32) -> io::Result<()> {
    if group <= 1 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    kill(-group, signal)
}

/// Sends a signal to every process but the caller. Only for PID 1 of a PID namespace, where all processes are its own.
///
/// # Errors
/// `EPERM` if the caller is not PID 1, `ESRCH` if no other process is left.
pub fn signal_everything(signal: i32) -> io::Result<()> {
    if std::process::id() != 1 {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    kill(-1, signal)
}

fn kill(target: i32, signal: i32) -> io::Result<()> {
    if !(0..=MAX_SIGNAL).contains(&signal) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: two numbers and no memory. Needed because rustix's signal type has no real-time signals.
    match unsafe { libc::kill(target, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
