//! Reads the kernel's `/proc`, which is opened before any command runs in the bay.
//!
//! Root in the bay may mount anything over `/proc` or over files in it. Opening a pipe there would block PID 1 for
//! ever. So paths are looked up below a descriptor of the original filesystem, and mounts on it are not entered.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use bay_sys::paths::open_below;
use rustix::fs::{Dir, OFlags, ResolveFlags};

static PROC: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// Opens `/proc`. Must be called before the first command of the bay runs.
pub(crate) fn keep_open() {
    PROC.get_or_init(|| File::open("/proc").ok().filter(is_proc).map(OwnedFd::from));
}

fn is_proc(dir: &File) -> bool {
    const PROC_SUPER_MAGIC: i64 = 0x9fa0;
    rustix::fs::fstatfs(dir).is_ok_and(|found| found.f_type == PROC_SUPER_MAGIC)
}

fn open(path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    keep_open();
    let proc = PROC.get().and_then(Option::as_ref).ok_or(io::ErrorKind::NotFound)?;
    Ok(open_below(proc, path, flags, ResolveFlags::BENEATH | ResolveFlags::NO_XDEV)?)
}

/// The first `most` bytes of a file below `/proc`. Empty if the file cannot be opened.
pub(crate) fn read_text(path: &str, most: u64) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) {
        // After a failed read, the bytes until then are used.
        let _ = File::from(file).take(most).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The entries of a directory below `/proc`; `.` is `/proc` itself.
pub(crate) fn directory(path: &str) -> io::Result<Dir> {
    Ok(Dir::new(open(path, OFlags::RDONLY | OFlags::DIRECTORY)?)?)
}

/// The user id of the owner of a file or directory below `/proc`.
pub(crate) fn owner(path: &str) -> io::Result<u32> {
    Ok(rustix::fs::fstat(open(path, OFlags::PATH)?)?.st_uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read_and_links_out_of_proc_are_not_followed() {
        assert!(read_text("self/status", 4096).contains("Pid:"));
        assert!(read_text("net/tcp", 4096).contains("local_address"));
        assert_eq!(read_text("self/root/etc/passwd", 4096), "");
        assert_eq!(read_text("../etc/passwd", 4096), "");
        assert_eq!(owner(&std::process::id().to_string()).unwrap(), rustix::process::getuid().as_raw());
        assert!(directory("self/fd").is_ok_and(|entries| entries.count() > 2));
        assert!(directory("self/status").is_err());
    }
}
