//! Parts that every image gets in addition to the import: the directories that a system expects and that a bay
//! mounts on, and for `host` the password file that the import must not read.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;

use super::tree::{open_beneath, replacing};

/// Directories and their modes, parents before children. Missing ones are made, existing ones not changed.
const DIRECTORIES: &[(&str, u32)] = &[
    ("root", 0o700),
    ("home", 0o755),
    ("tmp", 0o1777),
    ("proc", 0o555),
    ("sys", 0o555),
    ("dev", 0o755),
    ("run", 0o755),
    ("workspace", 0o755),
    (".bay", 0o755),
    ("mnt", 0o755),
    ("srv", 0o755),
    ("media", 0o755),
    ("etc", 0o755),
    ("var", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/spool", 0o755),
];

/// Directories that apt, dpkg and packages expect in a bay made from the host. The import takes few of them.
const HOST_DIRECTORIES: &[(&str, u32)] = &[
    ("var/mail", 0o755),
    ("var/local", 0o755),
    ("var/opt", 0o755),
    ("var/cache/apt", 0o755),
    ("var/cache/apt/archives", 0o755),
    ("var/cache/apt/archives/partial", 0o755),
    ("var/cache/debconf", 0o755),
    ("var/lib/apt", 0o755),
    ("var/lib/apt/lists", 0o755),
    ("var/lib/apt/lists/partial", 0o755),
    ("var/log/apt", 0o755),
];

const LINKS: &[(&str, &str)] = &[("var/run", "/run"), ("var/lock", "/run/lock")];

/// Longest password or group file that is read.
const MAX_ACCOUNTS: u64 = 16 * 1024 * 1024;
/// Day of the last password change, in days since 1970. Day 0 would force a change.
const SHADOW_DAY: u32 = 20_000;

pub(crate) fn lay_out(target: &OwnedFd) -> io::Result<()> {
    directories(target, DIRECTORIES)?;
    for (path, link) in LINKS {
        let Some((parent, name)) = parent_of(target, Path::new(path))? else { continue };
        match rustix::fs::symlinkat(*link, &parent, name) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

pub(crate) fn lay_out_host(target: &OwnedFd) -> io::Result<()> {
    directories(target, HOST_DIRECTORIES)
}

/// The directory of a path, and its last part. `None` if the image has a link or a file in place of a directory:
/// the maker of the image wanted it so.
fn parent_of<'a>(target: &OwnedFd, path: &'a Path) -> io::Result<Option<(OwnedFd, &'a [u8])>> {
    let name = path.file_name().map_or(&b""[..], std::ffi::OsStr::as_encoded_bytes);
    let parent = path.parent().unwrap_or(Path::new(""));
    match open_beneath(target, parent, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(parent) => Ok(Some((parent, name))),
        Err(Errno::LOOP | Errno::NOTDIR | Errno::NOENT | Errno::XDEV) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn directories(target: &OwnedFd, wanted: &[(&str, u32)]) -> io::Result<()> {
    for (path, mode) in wanted {
        let Some((parent, name)) = parent_of(target, Path::new(path))? else { continue };
        match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
            Ok(()) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
                rustix::fs::fchown(&made, Some(Uid::ROOT), Some(Gid::ROOT))?;
                rustix::fs::fchmod(&made, Mode::from_raw_mode(*mode))?;
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Gives the image a root account and locked passwords for all accounts. So `su` and `sudo` work for root without
/// the host's password file.
pub(crate) fn accounts(target: &OwnedFd) -> io::Result<()> {
    let passwd = read(target, "etc/passwd")?;
    let group = read(target, "etc/group")?;
    if !passwd.lines().any(|line| line.starts_with("root:")) {
        write(target, "passwd", &format!("root:x:0:0:root:/root:/bin/sh\n{passwd}"), 0o644, 0)?;
    }
    let shadow_group = group
        .lines()
        .find_map(|line| line.strip_prefix("shadow:")?.split(':').nth(1)?.parse().ok())
        .map_or(0, super::tree::mapped_id);
    write(target, "shadow", &shadow(&passwd), if shadow_group == 0 { 0o600 } else { 0o640 }, shadow_group)
}

fn shadow(passwd: &str) -> String {
    let names = passwd
        .lines()
        .filter_map(|line| line.split(':').next())
        .filter(|name| !name.is_empty() && !name.starts_with(['#', '+', '-']) && *name != "root");
    std::iter::once("root").chain(names).fold(String::new(), |mut text, name| {
        text.push_str(&format!("{name}:*:{SHADOW_DAY}:0:99999:7:::\n"));
        text
    })
}

fn read(target: &OwnedFd, path: &str) -> io::Result<String> {
    match open_beneath(target, Path::new(path), OFlags::RDONLY | OFlags::NONBLOCK) {
        Ok(file) => {
            let contents = super::tree::read_small(&mut file.into(), MAX_ACCOUNTS)?;
            Ok(String::from_utf8_lossy(&contents).into_owned())
        }
        Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => Ok(String::new()),
        Err(error) => Err(error.into()),
    }
}

/// Writes a file that everybody may read; makes its directory if missing. If the image has a link or a file in
/// place of the directory, nothing is written.
pub(crate) fn write_plain(target: &OwnedFd, dir: &str, name: &str, contents: &str) -> io::Result<()> {
    directories(target, &[(dir, 0o755)])?;
    match write_in(target, dir, name, contents, 0o644, 0) {
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::LOOP | Errno::NOTDIR)) => Ok(()),
        other => other,
    }
}

fn write(target: &OwnedFd, name: &str, contents: &str, mode: u32, group: u32) -> io::Result<()> {
    write_in(target, "etc", name, contents, mode, group)
}

fn write_in(
    target: &OwnedFd,
    dir: &str,
    name: &str,
    contents: &str,
    mode: u32,
    group: u32,
) -> io::Result<()> {
    let etc = open_beneath(target, Path::new(dir), OFlags::RDONLY | OFlags::DIRECTORY)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file =
        replacing(&etc, name.as_bytes(), || rustix::fs::openat(&etc, name, flags, Mode::RUSR | Mode::WUSR))?;
    let mut file = std::fs::File::from(file);
    io::Write::write_all(&mut file, contents.as_bytes())?;
    rustix::fs::fchown(&file, Some(Uid::ROOT), Some(Gid::from_raw(group)))?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    Ok(())
}

/// Whether the image has a shell. Symbolic links are resolved inside the image.
pub(crate) fn has_shell(target: &OwnedFd) -> bool {
    bay_sys::paths::open_below(target, "bin/sh", OFlags::PATH, ResolveFlags::IN_ROOT)
        .is_ok_and(|found| rustix::fs::fstat(&found).is_ok_and(|stat| stat.st_mode & 0o111 != 0))
}

/// Whether this is no root filesystem but the layers of one and their list, as `docker save` and OCI tools write them.
pub(crate) fn is_layers(target: &OwnedFd) -> bool {
    let is_file = |path: &str| {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        bay_sys::paths::open_below(target, path, flags, ResolveFlags::IN_ROOT).is_ok_and(|found| {
            rustix::fs::fstat(&found)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
        })
    };
    is_file("manifest.json") || (is_file("oci-layout") && is_file("index.json"))
}

/// Makes the parent directories of an added path, with the modes and owners of the host's.
pub(crate) fn parents_like(target: &OwnedFd, host: &Path, path: &Path) -> io::Result<()> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    let mut made = std::path::PathBuf::new();
    for part in relative.components() {
        let parent = open_beneath(target, &made, OFlags::RDONLY | OFlags::DIRECTORY)?;
        made.push(part);
        let name = part.as_os_str().as_encoded_bytes();
        match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => continue,
            Err(error) => return Err(error.into()),
        }
        let (mut mode, mut uid, mut gid) = (0o755, 0, 0);
        if let Ok(stat) = rustix::fs::stat(host.join(&made)) {
            (mode, uid, gid) = (stat.st_mode & 0o7777, stat.st_uid, stat.st_gid);
        }
        let mapped = super::tree::mapped_id;
        rustix::fs::chownat(
            &parent,
            name,
            Some(Uid::from_raw(mapped(uid))),
            Some(Gid::from_raw(mapped(gid))),
            AtFlags::SYMLINK_NOFOLLOW,
        )?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
        rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_account_gets_a_locked_password_and_root_is_always_there() {
        let text = shadow("root:x:0:0::/root:/bin/sh\n# no\n+nis\na:x:5:5::/:/bin/sh\n");
        assert_eq!(text, "root:*:20000:0:99999:7:::\na:*:20000:0:99999:7:::\n");
        assert_eq!(shadow(""), "root:*:20000:0:99999:7:::\n");
    }
}
