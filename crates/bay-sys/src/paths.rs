//! Opening paths below a directory whose contents are somebody else's.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

mod walk;

/// How often an open is tried while renames elsewhere keep racing with it.
const TRIES: usize = 16;

/// Opens `path` below `directory`, resolved by the kernel under the caller's rules in `resolve`. Links of `/proc`, which
/// lead anywhere, are never followed, and the descriptor is close-on-exec.
///
/// # Errors
/// What the kernel says; `EAGAIN` only when renames raced with every try. A kernel without `openat2` does the same in steps.
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

/// Gives the calling thread a working directory of its own, and makes it `directory`. Relative paths of this thread then
/// go on working wherever the directory is moved. The thread keeps it for its life, so it should be one that ends with
/// the work.
///
/// # Errors
/// What the kernel says.
pub fn stand_in(directory: impl AsFd) -> Result<()> {
    // SAFETY: `CLONE_FS` alone separates working directory, root and umask of this thread from the others', no memory
    // and no descriptors. Needed because rustix offers unshare as an unsafe function only.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }?;
    rustix::process::fchdir(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leads_out_and_links_of_proc_lead_nowhere() {
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
    fn a_directory_of_its_own_is_the_threads_alone() {
        let before = std::env::current_dir().unwrap();
        std::thread::spawn(|| {
            stand_in(std::fs::File::open("/usr").unwrap()).unwrap();
            assert_eq!(std::env::current_dir().unwrap(), std::path::Path::new("/usr"));
        })
        .join()
        .unwrap();
        assert_eq!(std::env::current_dir().unwrap(), before);
    }

    /// Another thread renames a directory on the path as fast as it can; the opens through `..` still succeed.
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
