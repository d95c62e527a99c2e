//! New processes in new namespaces, and id-mapped mounts.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::clone::CloneArgs;

/// Namespaces for a clone. The values are the kernel's.
pub mod flags {
    pub const USER: u64 = libc::CLONE_NEWUSER as u64;
    pub const PID: u64 = libc::CLONE_NEWPID as u64;
    pub const NET: u64 = libc::CLONE_NEWNET as u64;
    pub const MOUNT: u64 = libc::CLONE_NEWNS as u64;
    pub const UTS: u64 = libc::CLONE_NEWUTS as u64;
    pub const IPC: u64 = libc::CLONE_NEWIPC as u64;
    pub const CGROUP: u64 = libc::CLONE_NEWCGROUP as u64;
    /// `clone` does not support this one: there the bit belongs to the exit signal. `clone3` and `unshare` do.
    pub const TIME: u64 = 0x80;
}

/// The process in which a clone returned.
#[derive(Debug)]
pub enum Cloned {
    /// The parent, with the child's pid.
    Parent {
        pid: i32,
    },
    Child,
}

/// Copies this process, like `fork`, into new namespaces and, if given, into a cgroup.
///
/// # Errors
/// The error of the kernel; `ErrorKind::Unsupported` if this process has more than one thread, because the child would have
/// copies of locks that are held by threads that it does not have.
pub fn clone_process(namespaces: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Cloned> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "a process with several threads cannot be cloned",
        ));
    }
    let args = CloneArgs::new(namespaces, cgroup.map(|fd| fd.as_raw_fd()));
    // SAFETY: `args` is a valid clone_args of the size given. Without CLONE_VM the child has its own copy of all
    // memory, and the process has one thread, so no lock is held by a thread that the child lacks. Needed because no
    // library offers clone3 with namespaces and a cgroup.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Cloned::Child),
        pid => Ok(Cloned::Parent { pid: i32::try_from(pid).unwrap_or(i32::MAX) }),
    }
}

/// Moves the calling thread into new namespaces, without a new process. New namespaces of processes and of time are
/// only for its later children.
///
/// # Errors
/// The error of the kernel: `EPERM` without the right to make them.
pub fn leave_namespaces(namespaces: u64) -> io::Result<()> {
    // SAFETY: only namespace flags are passed on (no CLONE_FILES, CLONE_VM or the like). They do not change the memory
    // and descriptors that Rust relies on. Needed because the library's wrapper is unsafe for other flags.
    let done = unsafe { libc::unshare(libc::c_int::try_from(namespaces & NAMESPACES).unwrap_or(0)) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

const NAMESPACES: u64 = flags::USER
    | flags::PID
    | flags::NET
    | flags::MOUNT
    | flags::UTS
    | flags::IPC
    | flags::CGROUP
    | flags::TIME;

/// `struct mount_attr` of the kernel.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Restrictions of a mount that [`restrict_mount`] can add.
pub mod mount_attr {
    pub const READ_ONLY: u64 = 0x1;
    pub const NO_SUID: u64 = 0x2;
    pub const NO_DEV: u64 = 0x4;
    pub const NO_EXEC: u64 = 0x8;
    pub(super) const IDMAP: u64 = 0x0010_0000;
}

/// Adds restrictions to a mount that is not attached yet. If a user namespace is given, shifts the owners of the files
/// by its id maps. Does not change submounts.
///
/// # Errors
/// The error of the kernel: `EINVAL` if the filesystem cannot be id-mapped.
pub fn restrict_mount(
    mount: impl AsFd,
    attributes: u64,
    user_namespace: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut attr = MountAttr { attr_set: attributes, ..MountAttr::default() };
    if let Some(user_namespace) = user_namespace {
        attr.attr_set |= mount_attr::IDMAP;
        attr.userns_fd = u64::try_from(user_namespace.as_raw_fd()).unwrap_or(u64::MAX);
    }
    // SAFETY: the empty path is a valid C string, `attr` is a valid mount_attr of the size given, and the kernel only
    // reads both. Needed because no library wraps mount_setattr.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            std::ptr::from_mut(&mut attr),
            size_of::<MountAttr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The first descriptor that [`become_program`] passes.
const FIRST_PASSED_FD: RawFd = 3;

/// Executes the program that is open at `program`, with `/dev/null` (given as `null`) as its standard streams, `passed`
/// as descriptors 3, 4, 5 … and no other open descriptor.
///
/// Returns only on failure. The descriptor table is then in disorder, so the caller can only report and exit. `report` is the
/// descriptor for the report; it stays open, close-on-exec, above the passed ones.
pub fn become_program(
    program: &OwnedFd,
    arguments: &[CString],
    environment: &[CString],
    null: &OwnedFd,
    passed: &[OwnedFd],
    report: &OwnedFd,
) -> (io::Error, RawFd) {
    // Above the descriptors that are being placed.
    const PARKING: RawFd = 64;
    let mut argv: Vec<*const libc::c_char> = arguments.iter().map(|a| a.as_ptr()).collect();
    argv.push(std::ptr::null());
    let mut envp: Vec<*const libc::c_char> = environment.iter().map(|e| e.as_ptr()).collect();
    envp.push(std::ptr::null());

    let park = |fd: &OwnedFd| -> io::Result<RawFd> {
        // SAFETY: F_DUPFD_CLOEXEC only makes a new descriptor.
        let parked = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, PARKING) };
        if parked < 0 { Err(io::Error::last_os_error()) } else { Ok(parked) }
    };
    let placed = || -> io::Result<(RawFd, RawFd)> {
        let parked_null = park(null)?;
        let parked_passed = passed.iter().map(park).collect::<io::Result<Vec<_>>>()?;
        let parked_program = park(program)?;
        let parked_report = park(report)?;
        let place = |from: RawFd, to: RawFd| -> io::Result<()> {
            // SAFETY: both are plain integers. What `to` referred to before is closed; its Rust owner is never used
            // again, because this function ends in execve or in the caller's exit.
            if unsafe { libc::dup2(from, to) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        };
        for stream in 0..FIRST_PASSED_FD {
            place(parked_null, stream)?;
        }
        let mut next = FIRST_PASSED_FD;
        for fd in parked_passed {
            place(fd, next)?;
            next += 1;
        }
        // All other descriptors become close-on-exec at once: a descriptor of the host must never reach a bay.
        // SAFETY: only flags of descriptors change.
        let marked =
            unsafe { libc::syscall(libc::SYS_close_range, next, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        if marked != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((parked_program, parked_report))
    };
    match placed() {
        Err(error) => (error, report.as_raw_fd()),
        Ok((program, report)) => {
            // SAFETY: both arrays are null-terminated and point to strings that live until the call replaces the
            // process or returns.
            unsafe {
                libc::syscall(
                    libc::SYS_execveat,
                    program,
                    c"".as_ptr(),
                    argv.as_ptr(),
                    envp.as_ptr(),
                    libc::AT_EMPTY_PATH,
                );
            }
            (io::Error::last_os_error(), report)
        }
    }
}

/// Writes to a descriptor that is known only by its number: the report descriptor after a failed [`become_program`].
pub fn report_failure(report: RawFd, text: &str) {
    // SAFETY: the pointer and length are those of a live string; a bad descriptor is an error, not a fault.
    unsafe {
        libc::write(report, text.as_ptr().cast(), text.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threaded_process_is_not_cloned() {
        // The test runner has several threads.
        let error = clone_process(0, None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }
}
