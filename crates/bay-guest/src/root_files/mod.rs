//! The files of the bay's root filesystem that the guest writes when it starts: what every Linux machine has in `/etc`,
//! the bay's own user, git's settings for all users, the README for the agent, trust in the gateway's certificate, and
//! the sentinels of secrets.
//!
//! The agent controls the root filesystem, so anything may have these names. This module writes each file under another
//! name and renames it. The log names each file that cannot be written, and the bay starts without it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use bay_sys::paths::open_below;
use bay_types::bay::Author;
use bay_types::guest::{GATEWAY_V4, GIT_SETTINGS, GuestConfig, HOME, WORKSPACE};
use bay_types::inside;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::log::Log;
use crate::trust::Earlier;
use crate::{etc_environment, sentinels, spool, trust};

mod copied_root;
mod own_user;
mod readme;

/// Longest existing file that is compared with the wanted text.
const MAX_ETC: u64 = 64 << 10;
/// Directories of `PATH` that are searched for a git.
const MAX_GITS: usize = 64;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);
/// The line before the author of commits in git's settings, which this module wrote.
const AUTHOR_MARK: &str = "# the author of commits, from whoever made the bay";
/// First line of `hosts` and `resolv.conf` as the guest writes them. What the agent adds below is kept, in `hosts` as
/// long as the line with the bay's name is there.
const MARK: &str = "# written by Workbay when the bay first started; kept as it is from then on";

/// Makes `/tmp` and writes all files of this module. If the root is a copy of another bay's, what made it that bay is
/// removed first.
pub(crate) fn prepare(guest: &GuestConfig, root: &Path, state_dir: &Path, log: &Log) {
    let copied = copied_root::is_new(state_dir);
    if copied {
        copied_root::forget_other_bay(root, log);
    }
    write_files(guest, root, if copied { Earlier::Dropped } else { Earlier::Trusted }, log);
    if copied {
        // Last: if this start ends before, the next one begins anew.
        copied_root::done(state_dir, log);
    }
}

fn write_files(guest: &GuestConfig, root: &Path, earlier: Earlier, log: &Log) {
    let attempt = |what: &str, outcome: io::Result<()>| {
        if let Err(error) = outcome {
            log.line("boot.skipped", format_args!("file={what} error={error}"));
        }
    };
    let root = match File::open(root) {
        Ok(root) => OwnedFd::from(root),
        Err(error) => return attempt("/", Err(error)),
    };
    attempt("/tmp", make_tmp(root.as_fd()));
    attempt(inside::README, write_readme(root.as_fd(), guest));
    attempt("bay-ctl", link_ctl(root.as_fd()));
    let etc = match open_etc(root.as_fd()) {
        Ok(etc) => etc,
        Err(error) => return attempt("/etc", Err(error)),
    };
    let name = &guest.hostname;
    let own_line = format!("127.0.1.1\t{name}");
    let hosts =
        format!("{MARK}\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n{own_line}\n");
    let resolv = format!("{MARK}\nnameserver {GATEWAY_V4}\noptions timeout:3 attempts:2\n");
    let ours = |old: &str, line: &str| old.starts_with(MARK) && old.lines().any(|l| l == line);
    attempt("/etc/hosts", write_unless(etc.as_fd(), "hosts", &hosts, |old| ours(old, &own_line)));
    attempt("/etc/resolv.conf", write_unless(etc.as_fd(), "resolv.conf", &resolv, |old| ours(old, MARK)));
    for (file, text) in [("hostname", format!("{name}\n")), ("machine-id", format!("{}\n", guest.machine_id))]
    {
        attempt(file, write_unless(etc.as_fd(), file, &text, |old| old == text));
    }
    if let Some(user) = &guest.user {
        own_user::provide(root.as_fd(), etc.as_fd(), user, log);
    }
    own_user::make_run_directories(root.as_fd(), log);
    let by_ssh = guest.ssh.as_ref().map_or(&[][..], |ssh| &ssh.hosts);
    let changed = |old: &str| {
        let kept = trust::without_https(old, by_ssh);
        let author = guest.author.as_ref().and_then(|author| author_section(&kept, author));
        let remotes = guest.certificate.as_ref().and_then(|_| trust::over_https(root.as_fd(), &kept, by_ssh));
        let ours = guest.certificate.as_ref().and_then(|_| include_section(&kept));
        let gap = if kept.is_empty() || kept.ends_with('\n') { "" } else { "\n" };
        let safe = guest.user.as_ref().and_then(|_| safe_section(&kept));
        let added: String = [author, remotes, ours, safe].into_iter().flatten().collect();
        let new = if added.is_empty() { kept } else { format!("{kept}{gap}{added}") };
        (new != old).then_some(new)
    };
    attempt("/etc/gitconfig", change_gitconfig(etc.as_fd(), changed));
    for prefix in other_gits(root.as_fd()) {
        let told = open_etc_of(root.as_fd(), &prefix).and_then(|etc| change_gitconfig(etc.as_fd(), changed));
        attempt(&format!("{prefix}/etc/gitconfig"), told);
    }
    trust::install(guest, earlier, root.as_fd(), log);
    sentinels::install(&guest.secrets, &[], root.as_fd(), log);
}

/// The prefixes of other gits in the bay's `PATH`. A git in `/bin` or `/usr/bin` has its settings in `/etc`. Any other
/// has them in the `etc` beside its `bin`, for example a git in `/usr/local/bin`.
fn other_gits(root: BorrowedFd<'_>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for dir in etc_environment::path(root).split(':').take(MAX_GITS) {
        let Ok(bin) = open_below(root, dir.trim_start_matches('/'), DIRECTORY, ResolveFlags::IN_ROOT) else {
            continue;
        };
        if !dir.starts_with('/') || rustix::fs::statat(&bin, "git", AtFlags::SYMLINK_NOFOLLOW).is_err() {
            continue;
        }
        // If git is a link, its target says where it is installed.
        let link = rustix::fs::readlinkat(&bin, "git", Vec::new()).ok().and_then(|l| l.into_string().ok());
        let real = link.filter(|link| link.starts_with('/'));
        for place in [Some(format!("{dir}/git")), real].into_iter().flatten() {
            let prefix = place.strip_suffix("/bin/git").filter(|prefix| !matches!(*prefix, "" | "/usr"));
            found.extend(prefix.filter(|prefix| !found.iter().any(|f| f == prefix)).map(str::to_owned));
        }
    }
    found
}

fn open_etc_of(root: BorrowedFd<'_>, prefix: &str) -> io::Result<OwnedFd> {
    let prefix = open_below(root, prefix.trim_start_matches('/'), DIRECTORY, ResolveFlags::IN_ROOT)?;
    match rustix::fs::mkdirat(&prefix, "etc", Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    // No link is followed: it could lead anywhere.
    let strict = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(open_below(prefix.as_fd(), "etc", DIRECTORY, strict)?)
}

/// Replaces git's settings for all users of the bay by what `changed` returns; None changes nothing. Settings of a user
/// or a repository take precedence.
fn change_gitconfig(etc: BorrowedFd<'_>, changed: impl FnOnce(&str) -> Option<String>) -> io::Result<()> {
    let old = match rustix::fs::statat(etc, "gitconfig", AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => String::new(),
        Err(error) => return Err(error.into()),
        // The agent replaced the file by a link, a device or a very long file. It is left alone.
        Ok(stat) if stat.st_size >= MAX_ETC.cast_signed() => return Ok(()),
        Ok(_) => match read_small(etc, "gitconfig") {
            Some(old) => old,
            None => return Ok(()),
        },
    };
    let Some(new) = changed(&old) else { return Ok(()) };
    write_unless(etc, "gitconfig", &new, |_| false)
}

/// Includes the file with git's settings for credentials. They are in a file of their own because they change with the
/// bay's secrets.
fn include_section(old: &str) -> Option<String> {
    let line = format!("\tpath = {GIT_SETTINGS}");
    let there = old.lines().any(|other| other == line);
    (!there).then(|| format!("# what the bay has in the place of credentials\n[include]\n{line}\n"))
}

/// Lets git work in the workspace as root too, although it belongs to the bay's own user.
fn safe_section(old: &str) -> Option<String> {
    let line = format!("\tdirectory = {WORKSPACE}");
    let there = old.lines().any(|other| other == line);
    (!there).then(|| format!("# the workspace belongs to the bay's user\n[safe]\n{line}\n"))
}

/// The section with the author of commits, unless the settings have a section for the user already.
fn author_section(old: &str, author: &Author) -> Option<String> {
    let section = |line: &str| line.trim_start().to_ascii_lowercase().starts_with("[user]");
    if old.lines().any(section) {
        return None;
    }
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let (name, email) = (quoted(&author.name), quoted(&author.email));
    Some(format!("{AUTHOR_MARK}\n[user]\n\tname = {name}\n\temail = {email}\n"))
}

fn open_etc(root: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(root, "etc", Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    Ok(open_below(root, "etc", flags, ResolveFlags::IN_ROOT)?)
}

/// Writes the README. The runtime refuses to start a bay in which its directory is a link.
fn write_readme(root: BorrowedFd<'_>, guest: &GuestConfig) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let strict = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let home = open_below(root, HOME.trim_start_matches('/'), flags, strict)?;
    let text = readme::text(guest);
    write_unless(home.as_fd(), "README.md", &text, |old| old == text)
}

/// Makes a bay that was restored from memory trust its certificate, because its disk may be older than that.
pub(crate) fn trust_gateway(guest: &GuestConfig, root: &Path, log: &Log) {
    match File::open(root) {
        Ok(root) => trust::install(guest, Earlier::Trusted, root.as_fd(), log),
        Err(error) => log.line("trust.skipped", format_args!("what=/ error={error}")),
    }
}

/// Updates the README after a change. If it cannot be written, the log says so; `bay-ctl` has the new values in any
/// case.
pub(crate) fn rewrite_readme(root: &Path, guest: &GuestConfig, log: &Log) {
    let written = File::open(root).and_then(|root| write_readme(root.as_fd(), guest));
    if let Err(error) = written {
        log.line("readme.stale", format_args!("error={error}"));
    }
}

/// Links to `bay-ctl` from the first directory of the usual `PATH` that exists. What has the name already stays.
fn link_ctl(root: BorrowedFd<'_>) -> io::Result<()> {
    let strict = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    for (dir, name) in inside::CTL_LINKS.iter().filter_map(|link| link.rsplit_once('/')) {
        let Ok(dir) = open_below(root, dir, DIRECTORY, strict) else { continue };
        return match rustix::fs::symlinkat(inside::CTL, &dir, name) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        };
    }
    Ok(())
}

fn make_tmp(root: BorrowedFd<'_>) -> io::Result<()> {
    let everybody = Mode::from_raw_mode(0o1777);
    match rustix::fs::mkdirat(root, "tmp", everybody) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let tmp = open_below(root, "tmp", flags, ResolveFlags::IN_ROOT)?;
    if rustix::fs::fstat(&tmp)?.st_mode & 0o7777 != 0o1777 {
        rustix::fs::fchmod(&tmp, everybody)?;
    }
    Ok(())
}

/// Replaces a file that everybody may read, unless `satisfies` accepts its present text.
fn write_unless(
    etc: BorrowedFd<'_>,
    name: &str,
    text: &str,
    satisfies: impl FnOnce(&str) -> bool,
) -> io::Result<()> {
    write_with_mode(etc, name, text, 0o644, satisfies)
}

/// Replaces a file by one with these permissions, unless `satisfies` accepts its present text.
fn write_with_mode(
    etc: BorrowedFd<'_>,
    name: &str,
    text: &str,
    mode: u32,
    satisfies: impl FnOnce(&str) -> bool,
) -> io::Result<()> {
    if read_small(etc, name).is_some_and(|old| satisfies(&old)) {
        return Ok(());
    }
    let fresh = format!(".{name}.workbay");
    spool::remove_tree(etc, fresh.as_bytes())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let written = rustix::fs::openat(etc, &fresh, flags, Mode::from_raw_mode(mode))
        .map_err(io::Error::from)
        .and_then(|file| File::from(file).write_all(text.as_bytes()))
        .and_then(|()| rustix::fs::renameat(etc, &fresh, etc, name).map_err(io::Error::from));
    if written.is_err() {
        let _ = rustix::fs::unlinkat(etc, &fresh, AtFlags::empty());
    }
    written
}

fn read_small(etc: BorrowedFd<'_>, name: &str) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(etc, name, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut text = String::new();
    File::from(file).take(MAX_ETC).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use bay_types::inside::About;

    use super::*;

    fn boot(root: &Path) {
        let guest = GuestConfig {
            bay_id: "bay".into(),
            hostname: "alpha".into(),
            machine_id: "0123456789abcdef0123456789abcdef".into(),
            certificate: None,
            ssh: None,
            secrets: Vec::new(),
            user: None,
            author: Some(Author { name: "Ann \"A\" \\".into(), email: "ann@example.invalid".into() }),
            fork_index: None,
            about: About::default(),
        };
        prepare(&guest, root, root, &Log::open(root));
    }

    #[test]
    fn a_bare_root_gets_its_files_and_an_agents_additions_stay() {
        let temp = tempfile::tempdir().unwrap();
        boot(temp.path());
        let read = |name: &str| fs::read_to_string(temp.path().join("etc").join(name)).unwrap();
        assert_eq!(read("hostname"), "alpha\n");
        assert!(read("hosts").contains("127.0.1.1\talpha"));
        assert!(read("resolv.conf").contains("nameserver 10.0.2.1"));
        assert_eq!(fs::metadata(temp.path().join("tmp")).unwrap().permissions().mode() & 0o7777, 0o1777);
        let added = read("hosts") + "127.0.0.1 my.test\n";
        fs::write(temp.path().join("etc/hosts"), &added).unwrap();
        boot(temp.path());
        assert_eq!(read("hosts"), added);
    }

    #[test]
    fn bay_ctl_is_linked_where_every_path_finds_it_and_replaces_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let at = |path: &str| temp.path().join(path);
        boot(temp.path());
        assert!(!at("usr").exists(), "no directory is made for it");
        fs::create_dir_all(at("usr/local/bin")).unwrap();
        boot(temp.path());
        assert_eq!(fs::read_link(at("usr/local/bin/bay-ctl")).unwrap(), Path::new(inside::CTL));
        fs::create_dir_all(at("usr/bin")).unwrap();
        fs::write(at("usr/bin/bay-ctl"), "of the image").unwrap();
        boot(temp.path());
        assert_eq!(fs::read_to_string(at("usr/bin/bay-ctl")).unwrap(), "of the image");
        // No link of the image leads it elsewhere.
        let outside = tempfile::tempdir().unwrap();
        fs::remove_dir_all(at("usr")).unwrap();
        fs::create_dir(at("usr")).unwrap();
        symlink(outside.path(), at("usr/bin")).unwrap();
        boot(temp.path());
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn git_gets_the_author_of_commits_unless_its_settings_have_one() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("etc/gitconfig");
        let ours = "# the author of commits, from whoever made the bay\n[user]\n\tname = \"Ann \\\"A\\\" \\\\\"\n\temail = \"ann@example.invalid\"\n";
        boot(temp.path());
        assert_eq!(fs::read_to_string(&file).unwrap(), ours);
        boot(temp.path());
        assert_eq!(fs::read_to_string(&file).unwrap(), ours, "once is enough");
        fs::write(&file, "[core]\n\tpager = cat").unwrap();
        boot(temp.path());
        assert_eq!(fs::read_to_string(&file).unwrap(), format!("[core]\n\tpager = cat\n{ours}"));
        fs::write(&file, " [User]\nname = Other\n").unwrap();
        boot(temp.path());
        assert_eq!(fs::read_to_string(&file).unwrap(), " [User]\nname = Other\n");
        fs::remove_file(&file).unwrap();
        symlink("elsewhere", &file).unwrap();
        boot(temp.path());
        assert!(fs::symlink_metadata(&file).unwrap().is_symlink());
    }

    #[test]
    fn a_git_outside_usr_gets_the_author_in_its_own_settings() {
        let temp = tempfile::tempdir().unwrap();
        let at = |path: &str| temp.path().join(path);
        for dir in ["usr/bin", "usr/local/bin", "opt/git/bin", "etc"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        for git in ["usr/bin/git", "usr/local/bin/git"] {
            fs::write(at(git), "").unwrap();
        }
        boot(temp.path());
        for told in ["etc/gitconfig", "usr/local/etc/gitconfig"] {
            assert!(fs::read_to_string(at(told)).unwrap().contains("ann@example.invalid"), "{told}");
        }
        assert!(!at("usr/etc").exists() && !at("opt/git/etc").exists());
        // Found through a link, or in the bay's own PATH.
        fs::remove_file(at("usr/local/bin/git")).unwrap();
        symlink("/opt/git/bin/git", at("usr/local/bin/git")).unwrap();
        fs::create_dir_all(at("srv/tools/bin/git")).unwrap();
        fs::write(at("etc/environment"), "PATH=/usr/local/bin:/srv/tools/bin\n").unwrap();
        boot(temp.path());
        assert!(at("opt/git/etc/gitconfig").exists() && at("srv/tools/etc/gitconfig").exists());
        // No link leads to a place outside.
        let outside = tempfile::tempdir().unwrap();
        fs::remove_dir_all(at("opt/git/etc")).unwrap();
        symlink(outside.path(), at("opt/git/etc")).unwrap();
        boot(temp.path());
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn other_files_with_these_names_are_replaced_or_skipped_and_never_followed() {
        let temp = tempfile::tempdir().unwrap();
        let outside = temp.path().join("outside");
        fs::write(&outside, "mine").unwrap();
        let root = temp.path().join("root");
        fs::create_dir_all(root.join("etc/machine-id/full")).unwrap();
        symlink(&outside, root.join("etc/resolv.conf")).unwrap();
        symlink(&outside, root.join("etc/.hosts.workbay")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            root.join("etc/hosts"),
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        boot(&root);
        assert_eq!(fs::read_to_string(&outside).unwrap(), "mine");
        assert!(fs::read_to_string(root.join("etc/resolv.conf")).unwrap().contains("10.0.2.1"));
        assert!(fs::read_to_string(root.join("etc/hosts")).unwrap().contains("alpha"));
        assert!(fs::read_to_string(root.join("guest.log")).unwrap().contains("machine-id"));
    }
}
