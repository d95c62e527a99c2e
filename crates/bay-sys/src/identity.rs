//! Threads that access files with the rights of another user.
//!
//! The pool copies files for users who are not root. To avoid checking permissions itself, a thread takes the user's
//! file-system identity while it opens files. Then the kernel decides, including ACLs and security modules. Only the
//! calling thread changes, because these are the raw system calls; the C library's `setgroups` would change every
//! thread of the process.

use std::io;
use std::marker::PhantomData;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::Gid;
use rustix::thread::CapabilitySet;

/// Uid and gid of the user without rights.
pub const NOBODY: u32 = 65534;

/// Capabilities with which a process ignores file permissions. The kernel disables them when the file-system uid is no
/// longer 0; the code checks that it did.
const BYPASS: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH).union(CapabilitySet::FOWNER);

/// A thread that has given up its groups and can act as a user. It should do nothing else afterwards, because groups
/// and file-system gid do not come back.
#[derive(Debug)]
pub struct ActingThread {
    uid: u32,
    /// The identity belongs to the thread that took it.
    bound: PhantomData<*const ()>,
}

impl ActingThread {
    /// Prepares the calling thread to act as a user. For uid 0 it gives up nothing.
    pub fn begin(uid: u32, gid: u32) -> io::Result<Self> {
        let acting = Self { uid, bound: PhantomData };
        if uid == 0 {
            return Ok(acting);
        }
        rustix::thread::set_thread_groups(&[] as &[Gid])?;
        set_fs_gid(gid)?;
        acting.act(|| {
            let effective = rustix::thread::capabilities(None)?.effective;
            if effective.intersects(BYPASS) {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "the kernel keeps file capabilities in effect for another user",
                ));
            }
            Ok(())
        })??;
        Ok(acting)
    }

    /// Runs `work` with the user's rights over files, and restores root's afterwards, even after a panic.
    pub fn act<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        if self.uid == 0 {
            return Ok(work());
        }
        struct RestoreRoot;
        impl Drop for RestoreRoot {
            fn drop(&mut self) {
                // The thread's permitted capabilities always allow this. A failure would leave it with fewer rights,
                // never with more.
                let _ = set_fs_uid(0);
            }
        }
        let back = RestoreRoot;
        set_fs_uid(self.uid)?;
        let result = work();
        drop(back);
        Ok(result)
    }
}

fn set_fs_uid(uid: u32) -> io::Result<()> {
    set_fs(libc::SYS_setfsuid, uid)
}

fn set_fs_gid(gid: u32) -> io::Result<()> {
    set_fs(libc::SYS_setfsgid, gid)
}

/// These two calls return the previous id and never an error. To find out whether they worked, they are called again
/// with an id that cannot be set.
fn set_fs(number: libc::c_long, id: u32) -> io::Result<()> {
    // SAFETY: setfsuid and setfsgid take one integer and access no memory. Needed because the C library's wrappers of
    // similar calls change the whole process, and rustix has none for these two.
    let now = unsafe {
        libc::syscall(number, libc::c_long::from(id));
        libc::syscall(number, libc::c_long::from(-1_i32))
    };
    if now as u32 == id { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
}

/// Makes the child get SIGKILL when the thread that spawned it ends, so that a killed daemon leaves no children behind.
/// The child makes files with the usual modes, whatever the daemon's umask is.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    const ORDINARY_MASK: libc::mode_t = 0o022;
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; prctl with integers and umask are plain
    // system calls. Needed because neither setting can be made for a child from outside.
    unsafe {
        command.pre_exec(|| {
            libc::umask(ORDINARY_MASK);
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        })
    }
}

/// Makes the next child of the calling thread the first process of a new PID namespace: when that child ends, the
/// kernel ends everything that it started. The thread can start no threads afterwards.
pub fn next_child_starts_pid_namespace() -> io::Result<()> {
    // SAFETY: CLONE_NEWPID changes only the namespace of later children of this thread. It takes no memory and does not
    // change the thread's own namespace. Needed because rustix offers unshare only as an unsafe function.
    if unsafe { libc::unshare(libc::CLONE_NEWPID) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_kernel_refuses_what_the_user_nobody_may_not_read_and_other_threads_stay_root() {
        if !bay_tests::suite::has_root("acting as another user") {
            return;
        }
        let dir = std::env::temp_dir().join(format!("bay-identity-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).unwrap();
        let (open, shut) = (dir.join("open"), dir.join("shut"));
        for (path, mode) in [(&open, 0o644), (&shut, 0o640)] {
            std::fs::write(path, "x").unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        }
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let acting = ActingThread::begin(NOBODY, NOBODY).unwrap();
                    assert!(acting.act(|| std::fs::read(&open)).unwrap().is_ok());
                    let refused = acting.act(|| std::fs::read(&shut)).unwrap().unwrap_err();
                    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
                    assert!(std::fs::read(&shut).is_ok(), "root's rights are back afterwards");
                })
                .join()
                .unwrap();
        });
        assert!(std::fs::read(&shut).is_ok());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
