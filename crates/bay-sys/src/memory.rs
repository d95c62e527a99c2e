//! Memory that must not be swapped out.

use std::io;

/// Keeps the pages of these bytes from being swapped out for as long as they are mapped. Nothing unlocks them.
///
/// # Errors
/// If the system does not allow so much locked memory (`RLIMIT_MEMLOCK`); then nothing has changed.
pub fn keep_from_swap(bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    // SAFETY: the range is that of a live slice. Locking changes neither its content nor its mapping, only whether the
    // kernel may swap it out. Needed because no safe wrapper takes a slice.
    let done = unsafe { libc::mlock(bytes.as_ptr().cast(), bytes.len()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_locked_if_that_is_allowed() {
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
