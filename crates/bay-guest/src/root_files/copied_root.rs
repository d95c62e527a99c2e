//! A root filesystem that was copied from another bay, with everything installed there. What made it that other machine
//! is removed before the new bay runs anything: the host keys of SSH, the author of commits, and what a user may do with
//! sudo. Name and machine id are written at every start in any case.
//!
//! The daemon marks such a bay in its state directory ([`COPIED_ROOT`]). The first start removes the mark when it has
//! written the bay's own files, so later starts remove nothing that the new bay made itself.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use bay_sys::paths::open_below;
use bay_types::guest::COPIED_ROOT;
use rustix::fs::{AtFlags, Dir, ResolveFlags};
use rustix::io::Errno;

use super::own_user::SUDOERS_PREFIX;
use super::{AUTHOR_MARK, DIRECTORY, change_gitconfig, open_etc};
use crate::log::Log;

/// Names of a directory that are looked at.
const MAX_NAMES: usize = 4096;
/// Where files are that belong to one machine, and how their names begin.
const OF_ONE_MACHINE: [(&str, &str); 2] = [("ssh", "ssh_host_"), ("sudoers.d", SUDOERS_PREFIX)];
/// Lines of the section that names the author, after its mark.
const AUTHOR_LINES: [&str; 3] = ["[user]", "\tname = ", "\temail = "];

/// Whether the bay starts for the first time, on a root that was copied.
pub(super) fn is_new(state_dir: &Path) -> bool {
    std::fs::symlink_metadata(state_dir.join(COPIED_ROOT)).is_ok()
}

/// Removes the mark, when the new bay's own files are written.
pub(super) fn done(state_dir: &Path, log: &Log) {
    if let Err(error) = std::fs::remove_file(state_dir.join(COPIED_ROOT)) {
        log.line("boot.skipped", format_args!("file={COPIED_ROOT} error={error}"));
    }
}

/// Removes what made the root another machine. The log names what cannot be removed.
pub(super) fn forget_other_bay(root: &Path, log: &Log) {
    let attempt = |what: &str, outcome: io::Result<()>| {
        if let Err(error) = outcome {
            log.line("boot.skipped", format_args!("file=/etc/{what} error={error}"));
        }
    };
    let etc = match std::fs::File::open(root).and_then(|root| open_etc(root.as_fd())) {
        Ok(etc) => etc,
        Err(error) => return attempt("", Err(error)),
    };
    for (directory, prefix) in OF_ONE_MACHINE {
        attempt(directory, remove_named(etc.as_fd(), directory, prefix));
    }
    attempt("gitconfig", change_gitconfig(etc.as_fd(), without_author));
}

/// Removes the files of a directory whose names begin like this. No link is followed, because it could lead anywhere.
fn remove_named(etc: BorrowedFd<'_>, directory: &str, prefix: &str) -> io::Result<()> {
    let strict = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let directory: OwnedFd = match open_below(etc, directory, DIRECTORY, strict) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut found = Vec::new();
    for entry in Dir::read_from(&directory)?.take(MAX_NAMES) {
        let name = entry?.file_name().to_owned();
        if name.to_bytes().starts_with(prefix.as_bytes()) {
            found.push(name);
        }
    }
    for name in found {
        rustix::fs::unlinkat(&directory, &name, AtFlags::empty())?;
    }
    Ok(())
}

/// The settings without the author that the other bay's guest wrote. An author that somebody set stays.
fn without_author(old: &str) -> Option<String> {
    let start = old.find(AUTHOR_MARK)?;
    let mut lines = old[start..].split_inclusive('\n');
    let mut length = lines.next()?.len();
    for expected in AUTHOR_LINES {
        let line = lines.next().filter(|line| line.starts_with(expected))?;
        length += line.len();
    }
    Some(format!("{}{}", &old[..start], &old[start + length..]))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_made_a_root_the_other_machine_is_removed_and_everything_else_stays() {
        let temp = tempfile::tempdir().unwrap();
        let at = |path: &str| temp.path().join(path);
        for directory in ["etc/ssh", "etc/sudoers.d"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        let gone =
            ["etc/ssh/ssh_host_rsa_key", "etc/ssh/ssh_host_rsa_key.pub", "etc/sudoers.d/workbay-agent"];
        let kept = ["etc/ssh/sshd_config", "etc/sudoers.d/own", "etc/passwd"];
        for path in gone.iter().chain(&kept) {
            fs::write(at(path), "x").unwrap();
        }
        let others = format!("{AUTHOR_MARK}\n[user]\n\tname = \"A\"\n\temail = \"a@example.invalid\"\n");
        fs::write(at("etc/gitconfig"), format!("[core]\n\tpager = cat\n{others}[pull]\n\trebase = true\n"))
            .unwrap();
        forget_other_bay(temp.path(), &Log::open(temp.path()));
        for path in gone {
            assert!(!at(path).exists(), "{path}");
        }
        for path in kept {
            assert!(at(path).exists(), "{path}");
        }
        let left = fs::read_to_string(at("etc/gitconfig")).unwrap();
        assert_eq!(left, "[core]\n\tpager = cat\n[pull]\n\trebase = true\n");
    }

    #[test]
    fn an_author_that_somebody_set_stays() {
        let changed = format!("{AUTHOR_MARK}\n[user]\n\tsigningkey = x\n\tname = A\n");
        for text in ["", "[user]\n\tname = A\n", AUTHOR_MARK, &changed] {
            assert_eq!(without_author(text), None, "{text}");
        }
    }

    #[test]
    fn links_lead_nowhere() {
        let (temp, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(temp.path().join("etc")).unwrap();
        let key = outside.path().join("ssh_host_rsa_key");
        fs::write(&key, "x").unwrap();
        symlink(outside.path(), temp.path().join("etc/ssh")).unwrap();
        forget_other_bay(temp.path(), &Log::open(temp.path()));
        assert!(key.exists());
        let log = fs::read_to_string(temp.path().join("guest.log")).unwrap();
        assert!(log.contains("file=/etc/ssh"), "{log}");
    }

    #[test]
    fn the_mark_lasts_for_one_start() {
        let state = tempfile::tempdir().unwrap();
        let log = Log::open(state.path());
        assert!(!is_new(state.path()));
        fs::write(state.path().join(COPIED_ROOT), "").unwrap();
        assert!(is_new(state.path()));
        done(state.path(), &log);
        assert!(!is_new(state.path()));
    }
}
