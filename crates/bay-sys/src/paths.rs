//! Opens paths below a directory whose content another user controls.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

mod walk;

/// How often opening is tried while renames elsewhere interfere.
const TRIES: usize = 16;

/// Opens `path` below `directory`. The kernel resolves it under the rules in `resolve`. Magic links of `/proc`, which
/// lead anywhere, are never followed, and the descriptor is close-on-exec.
///
/// # Errors
/// The error of the kernel; `EAGAIN` only if renames interfered with every try. On a kernel without `openat2`, a walk in
/// single steps does the same.
pub fn open_below(
    directory: impl AsFd,
    path: impl Arg + Copy,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd> {
    let (flags, resolve) = (flags | OFlags::CLOEXEC, resolve | ResolveFlags::NO_MAGICLINKS);
    for _ in 1..TRIES {
        match rustix::fs::openat2(&directory, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::NOSYS) => {
                let path = path.into_c_str()?;
                return walk::open(&directory, path.to_bytes(), flags, resolve);
            }
            other => return other,
        }
    }
    rustix::fs::openat2(&directory, path, flags, Mode::empty(), resolve)
}

/// Gives the calling thread a working directory of its own, `directory`. Relative paths of this thread then stay valid
/// if the directory is moved. The thread cannot undo that, so it should end with the work.
///
/// # Errors
/// The error of the kernel.
pub fn set_thread_directory(directory: impl AsFd) -> Result<()> {
    // SAFETY: `CLONE_FS` alone separates working directory, root and umask of this thread from those of the others, but
    // no memory and no descriptors. Needed because rustix offers unshare only as an unsafe function.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }?;
    rustix::process::fchdir(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_out_and_links_of_proc_are_not_followed() {
        let open = |directory: &str, path: &str, resolve| {
            let directory = std::fs::File::open(directory).unwrap();
            open_below(directory, path, OFlags::PATH, resolve).map(drop)
        };
        assert_eq!(open("/usr", "bin", ResolveFlags::BENEATH), Ok(()));
        assert_eq!(open("/usr", "../etc", ResolveFlags::BENEATH), Err(Errno::XDEV));
        assert_eq!(open("/usr", "../bin", ResolveFlags::IN_ROOT), Ok(()), "the root has no parent");
        assert_eq!(open("/proc/self", "cwd/.", ResolveFlags::empty()), Err(Errno::LOOP));
    }

    #[test]
    fn a_threads_own_working_directory_affects_no_other_thread() {
        let before = std::env::current_dir().unwrap();
        std::thread::spawn(|| {
            set_thread_directory(std::fs::File::open("/usr").unwrap()).unwrap();
            assert_eq!(std::env::current_dir().unwrap(), std::path::Path::new("/usr"));
        })
        .join()
        .unwrap();
        assert_eq!(std::env::current_dir().unwrap(), before);
    }

    /// Another thread renames a directory on the path as fast as it can. Opens through `..` must still succeed.
    #[test]
    fn a_rename_elsewhere_does_not_fail_an_open() {
        let top = std::env::temp_dir().join(format!("paths-{}", std::process::id()));
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        let directory = std::fs::File::open(&top).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::fs::rename(top.join("a/b"), top.join("a/c")).unwrap();
                    std::fs::rename(top.join("a/c"), top.join("a/b")).unwrap();
                }
            });
            let opened: Vec<_> = (0..20_000)
                .map(|_| open_below(&directory, "a/../a/..", OFlags::PATH, ResolveFlags::BENEATH).map(drop))
                .filter(Result::is_err)
                .collect();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(opened, []);
        });
        std::fs::remove_dir_all(&top).unwrap();
    }
}
