//! Does what `openat2` does, step by step, for kernels without it, such as gVisor's.
//!
//! Each directory on the path is held by a descriptor, and `..` returns to the descriptor before. So no rename
//! meanwhile leads out. A link is read and its text is resolved by the same rules, so the magic links of `/proc` have
//! no special effect.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat, readlinkat};
use rustix::io::{Errno, Result, dup};

/// As many links as the kernel follows.
const MAX_LINKS: usize = 40;

/// The flags of `resolve` that this supports. A call with another one is refused.
const KEPT: ResolveFlags = ResolveFlags::IN_ROOT
    .union(ResolveFlags::BENEATH)
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_XDEV)
    .union(ResolveFlags::NO_MAGICLINKS);

pub(super) fn open(
    directory: impl AsFd,
    path: &[u8],
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd> {
    if !KEPT.contains(resolve) {
        return Err(Errno::NOSYS);
    }
    let in_root = resolve.contains(ResolveFlags::IN_ROOT);
    let confined = in_root || resolve.contains(ResolveFlags::BENEATH);
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    let device = fstat(&directory)?.st_dev;
    let mut stack = vec![dup(&directory)?];
    let mut rest: VecDeque<Vec<u8>> = parts(path);
    let mut links = 0;
    if path.starts_with(b"/") && !confined {
        stack = vec![openat(rustix::fs::CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?];
    } else if path.starts_with(b"/") && !in_root {
        return Err(Errno::XDEV);
    }
    while let Some(part) = rest.pop_front() {
        let at = stack.last().ok_or(Errno::NOENT)?;
        let last = rest.is_empty();
        match part.as_slice() {
            b"." => continue,
            b".." => {
                if stack.len() > 1 {
                    stack.pop();
                } else if !confined {
                    let parent = openat(at, "..", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
                    stack = vec![parent];
                } else if !in_root {
                    return Err(Errno::XDEV);
                }
                continue;
            }
            _ => {}
        }
        let looked = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = match openat(at, part.as_slice(), looked, Mode::empty()) {
            // The open itself makes it.
            Err(Errno::NOENT) if last && flags.contains(OFlags::CREATE) => {
                return openat(at, part.as_slice(), flags | OFlags::NOFOLLOW, Mode::empty());
            }
            other => other?,
        };
        let stat = fstat(&found)?;
        if resolve.contains(ResolveFlags::NO_XDEV) && stat.st_dev != device {
            return Err(Errno::XDEV);
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink if last && flags.contains(OFlags::NOFOLLOW) && flags.contains(OFlags::PATH) => {
                return Ok(found);
            }
            FileType::Symlink if last && flags.contains(OFlags::NOFOLLOW) => return Err(Errno::LOOP),
            FileType::Symlink => {
                links += 1;
                if links > MAX_LINKS || resolve.contains(ResolveFlags::NO_SYMLINKS) {
                    return Err(Errno::LOOP);
                }
                let target = readlinkat(at, part.as_slice(), Vec::new())?.into_bytes();
                if target.starts_with(b"/") {
                    match (in_root, confined) {
                        (true, _) => stack.truncate(1),
                        (false, true) => return Err(Errno::XDEV),
                        (false, false) => {
                            let top = OFlags::PATH | OFlags::CLOEXEC;
                            stack = vec![openat(rustix::fs::CWD, "/", top, Mode::empty())?];
                        }
                    }
                }
                for part in parts(&target).into_iter().rev() {
                    rest.push_front(part);
                }
            }
            FileType::Directory => stack.push(found),
            _ if !last => return Err(Errno::NOTDIR),
            // By name and not by descriptor, which was opened with O_PATH. If a link has replaced it, the open fails.
            _ => return openat(at, part.as_slice(), flags | OFlags::NOFOLLOW, Mode::empty()),
        }
    }
    let at = stack.last().ok_or(Errno::NOENT)?;
    openat(at, ".", flags, Mode::empty())
}

/// A slash at the end means that the path must be a directory.
fn parts(path: &[u8]) -> VecDeque<Vec<u8>> {
    let mut parts: VecDeque<_> =
        path.split(|b| *b == b'/').filter(|part| !part.is_empty()).map(<[u8]>::to_vec).collect();
    if path.ends_with(b"/") {
        parts.push_back(b".".to_vec());
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// This opens whatever the kernel's `openat2` opens, and refuses what that refuses.
    #[test]
    fn paths_resolve_as_in_the_kernel() {
        let top = std::env::temp_dir().join(format!("walk-{}", std::process::id()));
        let _ = fs::remove_dir_all(&top);
        fs::create_dir_all(top.join("in/a/b")).unwrap();
        fs::write(top.join("in/a/file"), "x").unwrap();
        fs::write(top.join("secret"), "x").unwrap();
        symlink("a/file", top.join("in/link")).unwrap();
        symlink("/a", top.join("in/absolute")).unwrap();
        symlink("../secret", top.join("in/out")).unwrap();
        symlink("loop", top.join("in/loop")).unwrap();
        symlink("nothing", top.join("in/dangling")).unwrap();
        let directory = fs::File::open(top.join("in")).unwrap();
        let paths = [
            "",
            ".",
            "/",
            "..",
            "../secret",
            "a",
            "a/",
            "a/b/../file",
            "a/file",
            "a/file/",
            "a/file/x",
            "link",
            "absolute",
            "absolute/b",
            "absolute/file",
            "out",
            "loop",
            "dangling",
            "a/../../in/a",
            "/a/file",
            "none",
            "none/x",
            "//a//b",
            "a/./b",
            "link/",
            "absolute/../link",
            "../in/a",
        ];
        let rules = [
            ResolveFlags::IN_ROOT,
            ResolveFlags::BENEATH,
            ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS,
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV,
        ];
        let kinds = [
            OFlags::PATH,
            OFlags::PATH | OFlags::NOFOLLOW,
            OFlags::RDONLY,
            OFlags::RDONLY | OFlags::NOFOLLOW,
            OFlags::RDONLY | OFlags::DIRECTORY,
        ];
        let mut opened = 0;
        for path in paths {
            for rule in rules {
                let rule = rule | ResolveFlags::NO_MAGICLINKS;
                for flags in kinds {
                    let flags = flags | OFlags::CLOEXEC;
                    let inode = |fd: OwnedFd| fstat(&fd).map(|stat| (stat.st_dev, stat.st_ino));
                    let kernel = in_the_kernel(&directory, path, flags, rule).and_then(inode);
                    let walked = open(&directory, path.as_bytes(), flags, rule).and_then(inode);
                    assert_eq!(walked, kernel, "{path:?} by {rule:?} with {flags:?}");
                    opened += usize::from(kernel.is_ok());
                }
            }
        }
        assert!(opened > 100, "{opened}");
        fs::remove_dir_all(&top).unwrap();
    }

    /// The kernel gives up on `..` with `EAGAIN` if anything on the whole host was renamed or mounted meanwhile.
    fn in_the_kernel(
        directory: &impl AsFd,
        path: &str,
        flags: OFlags,
        rule: ResolveFlags,
    ) -> Result<OwnedFd> {
        const TRIES: usize = 10_000;
        let again = |found: &Result<OwnedFd>| !matches!(found, Err(Errno::AGAIN));
        let mut tries = (0..TRIES).map(|_| rustix::fs::openat2(directory, path, flags, Mode::empty(), rule));
        tries.find(again).unwrap_or(Err(Errno::AGAIN))
    }
}
