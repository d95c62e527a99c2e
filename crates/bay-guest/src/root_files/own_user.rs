//! The user that a bay was given: its entries in `/etc/passwd` and `/etc/group`, its home directory, its right to use
//! sudo, and the workspace. Also directories below `/run` for packages, in every bay.
//!
//! Each start makes what is missing, because a replaced root filesystem has none of it. A user of that name that the
//! image has is used as it is.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use bay_sys::paths::open_below;
use bay_types::bay::BayUser;
use bay_types::guest::WORKSPACE;
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;

use super::{DIRECTORY, write_with_mode};
use crate::log::Log;
use crate::users::{self, User};

/// The id that a new user gets, or the first free one above it.
const FIRST_ID: u32 = 1000;
const LAST_ID: u32 = 59_999;
/// How long giving the workspace to the user may delay a start. If it takes longer, the next start begins anew.
const GIVE_WITHIN: Duration = Duration::from_secs(6);
/// What lies deeper keeps its owner.
const MAX_DEPTH: u32 = 1024;
/// How the file that allows sudo is named, before the user's name.
pub(super) const SUDOERS_PREFIX: &str = "workbay-";
/// sudo refuses files that others may write.
const SUDOERS_MODE: u32 = 0o440;

/// Directories below `/run` that packages expect, each if the image has the user. `/run` is empty at each start.
const RUN_DIRECTORIES: [(&str, &str, u32); 4] = [
    ("postgresql", "postgres", 0o2775),
    ("mysqld", "mysql", 0o755),
    ("redis", "redis", 0o755),
    ("memcached", "memcache", 0o755),
];

/// Makes the user, its home and the file for sudo, and gives it the workspace. The log names each error.
pub(super) fn provide(root: BorrowedFd<'_>, etc: BorrowedFd<'_>, wanted: &BayUser, log: &Log) {
    let attempt = |what: &str, outcome: io::Result<()>| {
        if let Err(error) = outcome {
            log.line("boot.skipped", format_args!("file={what} error={error}"));
        }
    };
    attempt("/etc/passwd", add(root, etc, &wanted.name));
    let Ok(user) = users::find(root, Some(&wanted.name)) else { return };
    attempt(&user.home, make_home(root, &user));
    if wanted.sudo {
        attempt("/etc/sudoers.d", allow_sudo(etc, &wanted.name));
    }
    attempt(WORKSPACE, give_workspace(root, &user));
}

/// Makes the directories of packages below `/run`, and the link `/var/run` by which their clients find them.
pub(super) fn make_run_directories(root: BorrowedFd<'_>, log: &Log) {
    let made = || -> io::Result<()> {
        let run = open_below(root, "run", DIRECTORY, ResolveFlags::IN_ROOT)?;
        for (name, owner, mode) in RUN_DIRECTORIES {
            let Ok(user) = users::find(root, Some(owner)) else { continue };
            if make_directory(run.as_fd(), name, mode)? {
                own(run.as_fd(), name, &user)?;
                // A change of the owner removes the bit that hands the group on.
                rustix::fs::chmodat(&run, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
            }
            // Clients look below /var/run. If that exists, it is as the image wants it.
            if let Ok(var) = open_below(root, "var", DIRECTORY, ResolveFlags::IN_ROOT) {
                let _ = rustix::fs::symlinkat("../run", &var, "run");
            }
        }
        Ok(())
    };
    if let Err(error) = made() {
        log.line("boot.skipped", format_args!("file=/run error={error}"));
    }
}

/// Adds the user and a group of the same name to the files of users and groups, unless the user exists.
fn add(root: BorrowedFd<'_>, etc: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let (passwd, group) = (users::read(root, "etc/passwd"), users::read(root, "etc/group"));
    let shell = if exists(root, "bin/bash") { "/bin/bash" } else { "/bin/sh" };
    let Some((passwd, group)) = with_user(&passwd, &group, name, shell) else { return Ok(()) };
    // The group first: a user without a group in the file is still a user, a group alone is harmless.
    write_with_mode(etc, "group", &group, 0o644, |_| false)?;
    write_with_mode(etc, "passwd", &passwd, 0o644, |_| false)
}

fn exists(root: BorrowedFd<'_>, path: &str) -> bool {
    open_below(root, path, OFlags::PATH, ResolveFlags::IN_ROOT).is_ok()
}

/// The files of users and groups with this user added. `None` if it is there already, or can get no id.
fn with_user(passwd: &str, group: &str, name: &str, shell: &str) -> Option<(String, String)> {
    let field = |line: &str, at: usize| line.split(':').nth(at).map(str::to_owned);
    let has = |file: &str, at: usize, value: &str| {
        file.lines().any(|line| field(line, at).is_some_and(|found| found == value))
    };
    if has(passwd, 0, name) {
        return None;
    }
    let named_group = group.lines().find(|line| field(line, 0).is_some_and(|found| found == name));
    let free = |id: u32| {
        let id = id.to_string();
        !has(passwd, 2, &id) && (named_group.is_some() || !has(group, 2, &id))
    };
    let uid = (FIRST_ID..=LAST_ID).find(|id| free(*id))?;
    let gid = match named_group {
        Some(line) => field(line, 2)?.parse().ok()?,
        None => uid,
    };
    let ended = |file: &str| {
        let gap = if file.is_empty() || file.ends_with('\n') { "" } else { "\n" };
        format!("{file}{gap}")
    };
    // Without a root in the file, programs would not know root by name.
    let root = if has(passwd, 2, "0") { "" } else { "root:x:0:0:root:/root:/bin/sh\n" };
    let root_group = if has(group, 2, "0") { "" } else { "root:x:0:\n" };
    // No password opens it. With a reference to /etc/shadow, sudo would need an entry there.
    let new = format!("{}{root}{name}:*:{uid}:{gid}::/home/{name}:{shell}\n", ended(passwd));
    let new_group = match named_group {
        Some(_) => ended(group),
        None => format!("{}{root_group}{name}:x:{gid}:\n", ended(group)),
    };
    Some((new, new_group))
}

/// Makes a directory. False if something of this name exists.
fn make_directory(parent: BorrowedFd<'_>, name: &str, mode: u32) -> io::Result<bool> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode)) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn own(parent: BorrowedFd<'_>, name: &str, user: &User) -> io::Result<()> {
    let (uid, gid) = ids(user);
    Ok(rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn ids(user: &User) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(user.identity.uid)), Some(Gid::from_raw(user.identity.gid)))
}

/// Makes the home directory, if its parent exists or is `/home`.
fn make_home(root: BorrowedFd<'_>, user: &User) -> io::Result<()> {
    let Some((parent, name)) = user.home.trim_start_matches('/').rsplit_once('/') else { return Ok(()) };
    if parent == "home" {
        make_directory(root, "home", 0o755)?;
    }
    let parent = open_below(root, parent, DIRECTORY, ResolveFlags::IN_ROOT)?;
    if make_directory(parent.as_fd(), name, 0o755)? {
        own(parent.as_fd(), name, user)?;
    }
    Ok(())
}

fn allow_sudo(etc: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    make_directory(etc, "sudoers.d", 0o755)?;
    let strict = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let directory = open_below(etc, "sudoers.d", DIRECTORY, strict)?;
    let text = format!("{name} ALL=(ALL:ALL) NOPASSWD: ALL\n");
    write_with_mode(directory.as_fd(), &format!("{SUDOERS_PREFIX}{name}"), &text, SUDOERS_MODE, |old| {
        old == text
    })
}

/// Gives the workspace to the user, if it is root's. The directory itself comes last: if the time is up before, the next
/// start begins anew.
fn give_workspace(root: BorrowedFd<'_>, user: &User) -> io::Result<()> {
    let strict = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let top = match open_below(root, WORKSPACE.trim_start_matches('/'), DIRECTORY, strict) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let stat = rustix::fs::fstat(&top)?;
    if stat.st_uid != 0 || user.identity.uid == 0 {
        return Ok(());
    }
    let (uid, gid) = ids(user);
    give_below(&top, stat.st_dev, user, Instant::now() + GIVE_WITHIN, 0)?;
    Ok(rustix::fs::fchown(&top, uid, gid)?)
}

/// Gives everything below a directory to the user. Links are not followed, and what is mounted there is left alone.
fn give_below(directory: &OwnedFd, device: u64, user: &User, until: Instant, depth: u32) -> io::Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if Instant::now() > until {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "it has too many files to give all of them to the user in one start",
            ));
        }
        let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if stat.st_dev != device {
            continue;
        }
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory && depth < MAX_DEPTH {
            let flags = DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let below = rustix::fs::openat(directory, name, flags, Mode::empty())?;
            give_below(&below, device, user, until, depth + 1)?;
        }
        let (uid, gid) = ids(user);
        rustix::fs::chownat(directory, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nwww:x:33:33::/var/www:/bin/false\n";
    const GROUP: &str = "root:x:0:\nwww:x:33:\n";

    #[test]
    fn a_user_is_added_once_with_a_free_id_and_a_group_of_its_own() {
        let (passwd, group) = with_user(PASSWD, GROUP, "agent", "/bin/bash").unwrap();
        assert_eq!(passwd, format!("{PASSWD}agent:*:1000:1000::/home/agent:/bin/bash\n"));
        assert_eq!(group, format!("{GROUP}agent:x:1000:\n"));
        assert_eq!(with_user(&passwd, &group, "agent", "/bin/sh"), None);
        // Another name has the id.
        let taken = format!("{PASSWD}node:x:1000:1000::/home/node:/bin/bash");
        let (passwd, group) =
            with_user(&taken, &format!("{GROUP}extra:x:1001:\n"), "agent", "/bin/sh").unwrap();
        assert!(passwd.ends_with("/bin/bash\nagent:*:1002:1002::/home/agent:/bin/sh\n"), "{passwd}");
        assert!(group.ends_with("agent:x:1002:\n"), "{group}");
        // A group of that name is used.
        let (passwd, group) = with_user(PASSWD, "agent:x:50:www\n", "agent", "/bin/sh").unwrap();
        assert!(passwd.contains("agent:*:1000:50:") && group == "agent:x:50:www\n", "{passwd}{group}");
    }

    #[test]
    fn an_image_without_users_gets_root_too() {
        let (passwd, group) = with_user("", "", "agent", "/bin/sh").unwrap();
        assert_eq!(passwd, "root:x:0:0:root:/root:/bin/sh\nagent:*:1000:1000::/home/agent:/bin/sh\n");
        assert_eq!(group, "root:x:0:\nagent:x:1000:\n");
    }

    #[test]
    fn the_user_gets_a_home_and_the_workspace_and_no_link_leads_out() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give files away");
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("theirs"), "").unwrap();
        let root = temp.path();
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::create_dir_all(root.join("workspace/src/deep")).unwrap();
        fs::write(root.join("workspace/src/deep/file"), "").unwrap();
        symlink(outside.path(), root.join("workspace/link")).unwrap();
        let log = Log::open(root);
        let open = |path: &std::path::Path| OwnedFd::from(File::open(path).unwrap());
        let (top, etc) = (open(root), open(&root.join("etc")));
        let wanted = BayUser { name: "agent".to_owned(), sudo: true };
        provide(top.as_fd(), etc.as_fd(), &wanted, &log);
        provide(top.as_fd(), etc.as_fd(), &wanted, &log);
        let owner = |path: &str| fs::symlink_metadata(root.join(path)).unwrap().uid();
        for path in ["home/agent", "workspace", "workspace/src/deep/file", "workspace/link"] {
            assert_eq!(owner(path), 1000, "{path}");
        }
        assert_eq!((owner("home"), owner("etc/passwd")), (0, 0));
        assert_eq!(fs::metadata(outside.path().join("theirs")).unwrap().uid(), 0);
        assert_eq!(fs::metadata(outside.path()).unwrap().uid(), 0);
        let sudoers = root.join("etc/sudoers.d/workbay-agent");
        assert_eq!(fs::metadata(&sudoers).unwrap().permissions().mode() & 0o777, SUDOERS_MODE);
        assert_eq!(fs::read_to_string(root.join("etc/passwd")).unwrap().matches("agent").count(), 2);
        // What root makes later stays root's: the workspace was given away once.
        fs::write(root.join("workspace/later"), "").unwrap();
        provide(top.as_fd(), etc.as_fd(), &wanted, &log);
        assert_eq!(owner("workspace/later"), 0);
    }

    #[test]
    fn packages_find_their_directory_below_run() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give files away");
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        for dir in ["etc", "run", "var"] {
            fs::create_dir(root.join(dir)).unwrap();
        }
        fs::write(root.join("etc/passwd"), "postgres:x:101:103::/var/lib/postgresql:/bin/bash\n").unwrap();
        make_run_directories(OwnedFd::from(File::open(root).unwrap()).as_fd(), &Log::open(root));
        let made = fs::metadata(root.join("var/run/postgresql")).unwrap();
        assert_eq!((made.uid(), made.gid(), made.permissions().mode() & 0o7777), (101, 103, 0o2775));
        assert!(!root.join("run/mysqld").exists());
    }
}
