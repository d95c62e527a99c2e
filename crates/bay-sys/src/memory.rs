//! Memory with something in it that must not reach a disk.

use std::io;

/// Keeps the pages of these bytes from being swapped out, for as long as the process lives.
///
/// # Errors
/// Where the system does not allow so much of it (`RLIMIT_MEMLOCK`); nothing has changed then.
pub fn keep_from_swap(bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    // SAFETY: the range is that of a live slice. Locking changes neither its content nor its mapping, only whether the
    // kernel may move it out of memory. Needed because no safe wrapper takes a slice.
    let done = unsafe { libc::mlock(bytes.as_ptr().cast(), bytes.len()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_locked_where_that_is_allowed() {
        let secret = vec![7_u8; 64];
        match keep_from_swap(&secret) {
            Ok(()) => {
                let status = std::fs::read_to_string("/proc/self/status").unwrap();
                let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
                assert!(!locked.trim().starts_with("0 "), "{locked}");
            }
            Err(error) => {
                assert!(matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EPERM)), "{error}");
            }
        }
        keep_from_swap(&[]).unwrap();
    }
}
