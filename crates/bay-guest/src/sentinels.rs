//! Puts sentinels where tools look for credentials: variables of commands, files, and git's settings.
//!
//! The daemon sends them when the bay starts or is restored from memory, and whenever its secrets change. A sentinel is
//! no secret: the gateway, outside the bay, puts the value in its place. The agent controls the root filesystem and may
//! undo the files until the next time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use bay_sys::paths::open_below;
use bay_types::guest::{GIT_SETTINGS, HOME};
use bay_types::secret::Delivered;
use rustix::fs::{Gid, Mode, OFlags, ResolveFlags, Uid, XattrFlags};

use crate::log::Log;
use crate::trust::{Tree, read_in, remove_in, write_in, write_private_in};

/// Extended attribute of files that this module wrote. A file without it and with another text belongs to the bay,
/// and is left as it is. The settings of git have no mark, because they are always this module's.
const MARK: &str = "user.workbay.sentinel";

/// The sentinels that the bay has now.
#[derive(Debug, Default)]
pub(crate) struct Sentinels(Mutex<Vec<Delivered>>);

impl Sentinels {
    pub(crate) fn new(all: Vec<Delivered>) -> Self {
        Self(Mutex::new(all))
    }

    fn all(&self) -> std::sync::MutexGuard<'_, Vec<Delivered>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Variables of every command that is started from now on.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let all = self.all();
        let each = all.iter().flat_map(|one| one.env.iter().map(|name| (name.clone(), one.sentinel.clone())));
        each.collect()
    }

    /// Replaces the sentinels, in files too. The log names each file that cannot be written.
    pub(crate) fn replace(&self, new: Vec<Delivered>, root: &Path, log: &Log) {
        let now = new.clone();
        let old = std::mem::replace(&mut *self.all(), new);
        match std::fs::File::open(root) {
            Ok(root) => install(&now, &old, root.as_fd(), log),
            Err(error) => log.line("sentinels.skipped", format_args!("what=/ error={error}")),
        }
    }
}

/// Writes the files with sentinels, and git's settings. Removes files of `old` that are not in `new`.
pub(crate) fn install<'a>(new: &'a [Delivered], old: &'a [Delivered], root: BorrowedFd<'_>, log: &Log) {
    let attempt = |what: &str, outcome: io::Result<()>| {
        if let Err(error) = outcome {
            log.line("sentinels.skipped", format_args!("what={what} error={error}"));
        }
    };
    let files = |all: &'a [Delivered]| all.iter().flat_map(|one| &one.files);
    let tree = Tree::new(root);
    for file in files(old).filter(|file| !files(new).any(|wanted| wanted.path == file.path)) {
        attempt(&file.path, remove(&tree, &file.path, file.text.as_bytes()));
    }
    for file in new.iter().flat_map(|one| &one.files) {
        attempt(&file.path, write(&tree, &file.path, file.text.as_bytes()));
    }
    attempt(GIT_SETTINGS, write_git(root, new));
}

fn split_path(path: &str) -> (&str, &str) {
    let path = path.trim_start_matches('/');
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Writes a file that only its owner can read, with the owner of its directory. Some tools refuse other files.
fn write(tree: &Tree<'_>, path: &str, text: &[u8]) -> io::Result<()> {
    let (parent, name) = split_path(path);
    let directory = tree.make_directory(parent)?;
    let of = rustix::fs::fstat(&directory)?;
    let owner = (Uid::from_raw(of.st_uid), Gid::from_raw(of.st_gid));
    if !is_ours(directory.as_fd(), name, text)? {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file of the bay's own"));
    }
    write_private_in(directory.as_fd(), name, text, owner)?;
    let file = rustix::fs::openat(&directory, name, READ, Mode::empty())?;
    // If the filesystem has no extended attributes, the file is recognised by its text.
    rustix::fs::fsetxattr(&file, MARK, b"1", XattrFlags::empty()).or(Ok(()))
}

const READ: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Whether this module may write or remove a file: it is marked, has exactly this text, or does not exist.
fn is_ours(directory: BorrowedFd<'_>, name: &str, text: &[u8]) -> io::Result<bool> {
    let file = match rustix::fs::openat(directory, name, READ, Mode::empty()) {
        Ok(file) => file,
        Err(rustix::io::Errno::NOENT) => return Ok(true),
        // A link of the agent's, or something else that is not a file.
        Err(_) => return Ok(false),
    };
    let marked = rustix::fs::fgetxattr(&file, MARK, &mut [0u8; 8][..]).is_ok();
    let same = || read_in(directory, name, text.len() as u64).is_some_and(|found| found == text);
    Ok(marked || same())
}

fn remove(tree: &Tree<'_>, path: &str, text: &[u8]) -> io::Result<()> {
    let (parent, name) = split_path(path);
    match tree.directory(parent) {
        Ok(directory) if !is_ours(directory.as_fd(), name, text)? => Ok(()),
        Ok(directory) => remove_in(directory.as_fd(), name),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Writes the file that git's settings for all users include.
fn write_git(root: BorrowedFd<'_>, all: &[Delivered]) -> io::Result<()> {
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let mut text = String::new();
    for one in all.iter().flat_map(|one| &one.git) {
        let (url, header) = (quoted(&one.url), quoted(&one.header));
        text.push_str(&format!("[http {url}]\n\textraHeader = {header}\n"));
    }
    // The runtime refuses to start a bay in which this directory is a link.
    let strict = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let home = open_below(root, HOME.trim_start_matches('/'), OFlags::RDONLY | OFlags::DIRECTORY, strict)?;
    let name = GIT_SETTINGS.rsplit('/').next().unwrap_or(GIT_SETTINGS);
    if text.is_empty() {
        remove_in(home.as_fd(), name)
    } else {
        write_in(home.as_fd(), name, text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use bay_types::secret::{GitHeader, SecretFile};

    use super::*;

    fn one(files: &[(&str, &str)]) -> Delivered {
        let file =
            |(path, text): &(&str, &str)| SecretFile { path: (*path).to_owned(), text: (*text).to_owned() };
        Delivered {
            name: "TOKEN".to_owned(),
            sentinel: "ghp_x".to_owned(),
            env: vec!["TOKEN".to_owned()],
            files: files.iter().map(file).collect(),
            git: vec![GitHeader {
                url: "https://git.test/".to_owned(),
                header: "Authorization: Basic eDp5".to_owned(),
            }],
        }
    }

    #[test]
    fn sentinels_are_written_and_removed_again() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join(".bay")).unwrap();
        let log = Log::open(temp.path());
        let sentinels = Sentinels::default();
        let first = one(&[("/root/.npmrc", "a=ghp_x\n"), ("/etc/token", "ghp_x\n")]);
        sentinels.replace(vec![first], temp.path(), &log);
        assert_eq!(sentinels.variables(), [("TOKEN".to_owned(), "ghp_x".to_owned())]);
        let npm = temp.path().join("root/.npmrc");
        assert_eq!(std::fs::read_to_string(&npm).unwrap(), "a=ghp_x\n");
        assert_eq!(std::fs::metadata(&npm).unwrap().mode() & 0o777, 0o600);
        let git = temp.path().join(".bay/gitconfig");
        let said = std::fs::read_to_string(&git).unwrap();
        assert_eq!(said, "[http \"https://git.test/\"]\n\textraHeader = \"Authorization: Basic eDp5\"\n");
        sentinels.replace(vec![one(&[("/root/.npmrc", "a=ghp_y\n")])], temp.path(), &log);
        assert_eq!(std::fs::read_to_string(&npm).unwrap(), "a=ghp_y\n");
        assert!(!temp.path().join("etc/token").exists());
        sentinels.replace(Vec::new(), temp.path(), &log);
        assert!(!npm.exists() && !git.exists() && sentinels.variables().is_empty());
    }

    #[test]
    fn a_link_of_the_agent_is_not_followed_out_of_the_root() {
        let (temp, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(temp.path().join(".bay")).unwrap();
        let victim = outside.path().join("victim");
        std::fs::write(&victim, "as it was").unwrap();
        std::os::unix::fs::symlink(outside.path(), temp.path().join("root")).unwrap();
        std::fs::create_dir(temp.path().join("etc")).unwrap();
        std::os::unix::fs::symlink(&victim, temp.path().join("etc/token")).unwrap();
        let log = Log::open(temp.path());
        let wanted = one(&[("/root/victim", "ghp_x\n"), ("/etc/token", "ghp_x\n")]);
        Sentinels::default().replace(vec![wanted], temp.path(), &log);
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "as it was");
        let link = std::fs::symlink_metadata(temp.path().join("etc/token")).unwrap();
        assert!(link.is_symlink(), "the link is neither followed nor replaced");
    }

    #[test]
    fn a_file_of_the_bay_is_neither_overwritten_nor_removed() {
        let temp = tempfile::tempdir().unwrap();
        for dir in [".bay", "root"] {
            std::fs::create_dir(temp.path().join(dir)).unwrap();
        }
        let log = Log::open(temp.path());
        let own = temp.path().join("root/.npmrc");
        std::fs::write(&own, "registry=https://own.test/\n").unwrap();
        let sentinels = Sentinels::default();
        sentinels.replace(vec![one(&[("/root/.npmrc", "a=ghp_x\n")])], temp.path(), &log);
        assert_eq!(std::fs::read_to_string(&own).unwrap(), "registry=https://own.test/\n");
        sentinels.replace(Vec::new(), temp.path(), &log);
        assert_eq!(std::fs::read_to_string(&own).unwrap(), "registry=https://own.test/\n");
        // The next guest has not written the file itself, but recognises it.
        std::fs::remove_file(&own).unwrap();
        sentinels.replace(vec![one(&[("/root/.npmrc", "a=ghp_x\n")])], temp.path(), &log);
        let next = Sentinels::default();
        next.replace(vec![one(&[("/root/.npmrc", "a=ghp_of_a_fork\n")])], temp.path(), &log);
        assert_eq!(std::fs::read_to_string(&own).unwrap(), "a=ghp_of_a_fork\n");
    }
}
