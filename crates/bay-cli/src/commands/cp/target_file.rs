//! The file on the caller's disk that a copy writes. It is a temporary file beside the target until it is complete, so
//! that a broken copy never replaces a good file.
//!
//! The temporary file is named `.bay-cp.PID.N` and is locked while its process lives. A copy that ends, even by a
//! signal, deletes it. A copy killed by SIGKILL cannot. The next copy into the directory deletes unlocked files whose
//! process is gone.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};

/// Attempts to find a free name for a temporary file.
const TEMPORARY_TRIES: u32 = 100;
/// The prefix of all temporary files.
const PREFIX: &str = ".bay-cp.";
/// Most entries of a directory that are checked for leftovers.
const MAX_ENTRIES: usize = 100_000;

/// The destination of a copy.
#[derive(Debug)]
pub(super) struct TargetFile {
    target: PathBuf,
    /// The directory of a file that is replaced. `None` for a device or a pipe, which is written to directly.
    directory: Option<PathBuf>,
}

/// A file that is being received.
#[derive(Debug)]
pub(super) struct Temporary {
    pub(super) file: File,
    path: PathBuf,
    target: PathBuf,
    kept: bool,
}

impl TargetFile {
    pub(super) fn new(target: &Path) -> io::Result<Self> {
        // Follow the caller's own link, as cp does: the caller named it.
        let target = target.canonicalize().unwrap_or_else(|_| target.to_owned());
        if target.symlink_metadata().is_ok_and(|m| !m.is_file()) {
            return Ok(Self { target, directory: None });
        }
        let directory =
            target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        let directory = Some(directory.to_owned());
        Ok(Self { target, directory })
    }

    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    /// The directory that receives the file. `None` for a device or a pipe.
    pub(super) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// Makes the temporary file, and deletes leftovers of other copies.
    pub(super) fn begin(&self, mode: u32) -> io::Result<Temporary> {
        let directory = self.directory().ok_or(io::ErrorKind::InvalidInput)?;
        remove_leftovers(directory);
        for attempt in 0..TEMPORARY_TRIES {
            let path = directory.join(format!("{PREFIX}{}.{attempt}", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).mode(mode).open(&path) {
                Ok(file) => {
                    // Without a lock, another copy could treat the file as a leftover.
                    let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
                    let made = Temporary { file, path, target: self.target.clone(), kept: false };
                    if locked && !made.is_there() {
                        continue;
                    }
                    return Ok(made);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Temporary {
    fn is_there(&self) -> bool {
        match (self.file.metadata(), self.path.symlink_metadata()) {
            (Ok(own), Ok(there)) => (own.dev(), own.ino()) == (there.dev(), there.ino()),
            _ => false,
        }
    }

    /// Renames the file to its target.
    pub(super) fn keep(mut self) -> io::Result<()> {
        fs::rename(&self.path, &self.target)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Deletes temporary files of copies that no longer run. A failure to delete one is ignored.
fn remove_leftovers(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.take(MAX_ENTRIES).flatten() {
        let process = entry.file_name().to_str().and_then(process_of);
        if process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            remove_if_unlocked(&entry.path());
        }
    }
}

/// The process id in a temporary file's name.
fn process_of(name: &str) -> Option<u32> {
    let (process, attempt) = name.strip_prefix(PREFIX)?.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(process) && digits(attempt)).then(|| process.parse().ok())?
}

fn remove_if_unlocked(path: &Path) {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let open = OpenOptions::new().write(true).custom_flags(flags.bits().cast_signed()).open(path);
    let Ok(file) = open else { return };
    let own = file.metadata().is_ok_and(|m| m.is_file() && m.uid() == rustix::process::geteuid().as_raw());
    // The process may run in another process namespace, where it cannot be found. Its lock can.
    if own && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_broken_copy_leaves_the_old_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("f");
        fs::write(&target, b"old").unwrap();
        let place = TargetFile::new(&target).unwrap();
        let mut half = place.begin(0o644).unwrap();
        half.file.write_all(b"half").unwrap();
        drop(half);
        assert_eq!(fs::read(&target).unwrap(), b"old");
        assert_eq!(names(dir.path()), ["f"]);
        let mut whole = place.begin(0o644).unwrap();
        whole.file.write_all(b"new").unwrap();
        whole.keep().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert_eq!(names(dir.path()), ["f"]);
    }

    #[test]
    fn leftovers_of_a_killed_copy_are_deleted_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        // No process has an id this high: the kernel's limit is 2^22.
        let gone = ".bay-cp.4194999.0";
        let held = ".bay-cp.4194998.0";
        let running = format!(".bay-cp.{}.7", std::process::id());
        let others =
            [held, &running, ".bay-cp.4194999.x", ".bay-cp.x", "bay-cp.4194999.0", ".bay-cp.4194997.0"];
        for name in others.iter().take(5).chain([&gone]) {
            fs::write(dir.path().join(name), b"x").unwrap();
        }
        fs::create_dir(dir.path().join(others[5])).unwrap();
        let lock = File::open(dir.path().join(held)).unwrap();
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        drop(TargetFile::new(&dir.path().join("f")).unwrap().begin(0o644).unwrap());
        let mut expected: Vec<&str> = others.to_vec();
        expected.sort_unstable();
        assert_eq!(names(dir.path()), expected);
    }
}
