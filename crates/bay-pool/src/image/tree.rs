//! Copying trees of files with a user's rights, in several threads.
//!
//! Every access to the source uses the file-system identity of the user for whom the copy is made
//! ([`bay_sys::identity`]): the kernel decides what may be read. Every file is opened relative to an open directory
//! and never through a symbolic link, so that a source that changes during the copy cannot redirect it.
//!
//! A task is one directory. Its worker makes all entries (subdirectories become new tasks) and then sets the
//! directory's own times, after which nobody changes the directory.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use bay_sys::identity::ActingThread;
use bay_types::progress::{Progress, Report};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::error::{Doing, PoolError, Result};

mod entry;

use entry::finish_dir;
pub(crate) use entry::{mapped_id, open_as, open_beneath, read_small, replacing, wanted_xattr};

/// Bytes per read.
const BUFFER: usize = 512 * 1024;
/// More threads would only wait for the disk.
const MAX_WORKERS: usize = 8;
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Filesystems that hold no files of data, or whose server may never answer. A walk does not enter them from
/// another filesystem.
const NOT_DATA: &[u64] = &[
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x1cd1,      // devpts
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x1980_0202, // mqueue
    0x958458f6,  // hugetlbfs
    0x0187,      // autofs
    0x6573_5546, // fuse
    0x6165_676c, // pstore
    0xde5e_81e4, // efivarfs
    0x6165_6676, // efivarfs, older
    0x4249_4e4d, // binfmt_misc
    0x6265_6570, // configfs
    0x6e73_6673, // nsfs
];

/// The user whose rights apply to the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Whether an entry of the source is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    Take,
    /// Not part of the selection.
    Pass,
    /// Left out on purpose and counted: it identifies the host or may hold a secret.
    Withhold,
}

/// A directory to copy.
pub(crate) struct Tree<'a> {
    /// Opened with the user's rights; symbolic links in this path are followed.
    pub(crate) source: PathBuf,
    /// Destination relative to the target; it exists already.
    pub(crate) into: PathBuf,
    /// Called with the path relative to the source.
    pub(crate) choose: &'a (dyn Fn(&Path) -> Choice + Sync),
}

/// Counts of what was copied and what was not.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) files: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) denied: AtomicU64,
    pub(crate) withheld: AtomicU64,
    pub(crate) special: AtomicU64,
    pub(crate) elsewhere: AtomicU64,
    pub(crate) unreadable: AtomicU64,
    /// Sum of one hash per entry, so that the order of the walk does not matter.
    fingerprint: Mutex<u128>,
}

impl Tally {
    pub(crate) fn count(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    pub(crate) fn fingerprint(&self) -> u128 {
        *self.fingerprint.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A walk over trees with one user's rights.
pub(crate) struct Walk<'a> {
    pub(crate) rights: Rights,
    pub(crate) trees: &'a [Tree<'a>],
    /// Directories that are never entered (the pool itself), by device and inode.
    pub(crate) never: &'a [(u64, u64)],
}

struct Task {
    tree: usize,
    path: PathBuf,
    device: u64,
}

#[derive(Default)]
struct Queue {
    state: Mutex<(Vec<Task>, usize)>,
    wake: Condvar,
    stop: AtomicBool,
}

impl Queue {
    fn push(&self, task: Task) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0.push(task);
        self.wake.notify_one();
    }

    /// The next task; `None` if all are done or the walk was stopped.
    fn take(&self) -> Option<Task> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(task) = state.0.pop() {
                state.1 += 1;
                return Some(task);
            }
            if state.1 == 0 {
                return None;
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn done(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 -= 1;
        if state.1 == 0 {
            self.wake.notify_all();
        }
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        let _state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.wake.notify_all();
    }
}

/// The first copy of each file with several names, which the other names are linked to.
type Links = Mutex<HashMap<(u64, u64), PathBuf>>;

struct Work<'a> {
    walk: &'a Walk<'a>,
    roots: Vec<OwnedFd>,
    /// `None` to only measure.
    target: Option<&'a OwnedFd>,
    tally: &'a Tally,
    queue: Queue,
    links: Links,
    /// Cleared if the source cannot share blocks with the target.
    share: AtomicBool,
}

/// Counts what a copy would take, and computes its fingerprint.
pub(crate) fn measure(walk: &Walk<'_>, report: Report<'_>) -> Result<Tally> {
    let tally = Tally::default();
    run(walk, None, &tally, &mut |tally| {
        report(Progress {
            stage: "looking at what there is".to_owned(),
            done: Tally::get(&tally.files),
            total: None,
            unit: "files".to_owned(),
        });
    })?;
    Ok(tally)
}

/// Copies the trees into the open directory `target`.
pub(crate) fn copy(
    walk: &Walk<'_>,
    target: &OwnedFd,
    tally: &Tally,
    news: &mut dyn FnMut(&Tally),
) -> Result<()> {
    run(walk, Some(target), tally, news)
}

fn run(walk: &Walk<'_>, target: Option<&OwnedFd>, tally: &Tally, news: &mut dyn FnMut(&Tally)) -> Result<()> {
    let mut work = Work {
        walk,
        roots: Vec::new(),
        target,
        tally,
        queue: Queue::default(),
        links: Links::default(),
        share: AtomicBool::new(true),
    };
    // Opening the sources uses the user's identity too, which needs a thread of its own.
    work.roots = std::thread::scope(|scope| {
        scope.spawn(|| open_roots(walk)).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    for (tree, root) in work.roots.iter().enumerate() {
        let device = rustix::fs::fstat(root).doing(|| "look at a source".to_owned())?.st_dev;
        work.queue.push(Task { tree, path: PathBuf::new(), device });
    }
    let workers = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, MAX_WORKERS);
    let finished = (Mutex::new(0_usize), Condvar::new());
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..workers)
            .map(|_| {
                scope.spawn(|| {
                    // Runs even if the worker panics, so that the wait below ends.
                    let _end = Finished(&finished, &work.queue);
                    work_through(&work)
                })
            })
            .collect();
        let mut count = finished.0.lock().unwrap_or_else(PoisonError::into_inner);
        while *count < workers {
            count = finished.1.wait_timeout(count, REPORT_EVERY).unwrap_or_else(PoisonError::into_inner).0;
            news(tally);
        }
        drop(count);
        news(tally);
        let mut result = Ok(());
        for handle in handles {
            let ended = handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(ended);
        }
        result
    })
}

struct Finished<'a>(&'a (Mutex<usize>, Condvar), &'a Queue);

impl Drop for Finished<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.1.stop();
        }
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.1.notify_all();
    }
}

fn open_roots(walk: &Walk<'_>) -> Result<Vec<OwnedFd>> {
    let acting = ActingThread::begin(walk.rights.uid, walk.rights.gid)
        .doing(|| format!("act as user {}", walk.rights.uid))?;
    let mut roots = Vec::new();
    for tree in walk.trees {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = acting
            .act(|| rustix::fs::open(&tree.source, flags, Mode::empty()))
            .doing(|| format!("act as user {}", walk.rights.uid))?
            .map_err(|error| PoolError::ImageImport {
                source_name: tree.source.display().to_string(),
                why: format!("it cannot be read by user {} ({error})", walk.rights.uid),
            })?;
        roots.push(root);
    }
    Ok(roots)
}

fn work_through(work: &Work<'_>) -> Result<()> {
    let rights = work.walk.rights;
    let acting = ActingThread::begin(rights.uid, rights.gid).doing(|| format!("act as user {}", rights.uid));
    let acting = match acting {
        Ok(acting) => acting,
        Err(error) => {
            work.queue.stop();
            return Err(error);
        }
    };
    let mut buffer = vec![0_u8; BUFFER];
    while let Some(task) = work.queue.take() {
        let result = Worker { work, acting: &acting, buffer: &mut buffer }.directory(&task);
        work.queue.done();
        if let Err(error) = result {
            work.queue.stop();
            return Err(error);
        }
    }
    Ok(())
}

/// One thread's view of the work.
struct Worker<'a, 'w> {
    work: &'a Work<'w>,
    acting: &'a ActingThread,
    buffer: &'a mut [u8],
}

/// An entry of a source directory as it was listed.
struct Entry {
    name: Vec<u8>,
    stat: Stat,
}

impl Worker<'_, '_> {
    fn as_user<T>(&self, call: impl FnOnce() -> T) -> Result<T> {
        self.acting.act(call).doing(|| format!("act as user {}", self.work.walk.rights.uid))
    }

    fn directory(&mut self, task: &Task) -> Result<()> {
        let root = &self.work.roots[task.tree];
        let tally = self.work.tally;
        let Ok(source) =
            self.as_user(|| open_beneath(root, &task.path, OFlags::RDONLY | OFlags::DIRECTORY))?
        else {
            // It was accessible when it was listed, and is gone or closed now.
            Tally::count(&tally.denied, 1);
            return Ok(());
        };
        let listed = self.as_user(|| list(&source, tally))?;
        let entries = match listed {
            Ok(entries) => entries,
            Err(_) => {
                Tally::count(&tally.unreadable, 1);
                return Ok(());
            }
        };
        let tree = &self.work.walk.trees[task.tree];
        let into = tree.into.join(&task.path);
        let target = match self.work.target {
            Some(target) => Some(
                open_beneath(target, &into, OFlags::RDONLY | OFlags::DIRECTORY)
                    .doing(|| format!("open /{} in the image", into.display()))?,
            ),
            None => None,
        };
        for entry in &entries {
            let path = task.path.join(OsStr::from_bytes(&entry.name));
            match (tree.choose)(&path) {
                Choice::Take => {}
                Choice::Pass => continue,
                Choice::Withhold => {
                    Tally::count(&tally.withheld, 1);
                    continue;
                }
            }
            match &target {
                Some(target) => {
                    self.entry(task, &source, target, entry, path)
                        .doing(|| format!("copy /{}", into.join(OsStr::from_bytes(&entry.name)).display()))?;
                }
                None => self.measure(task, &source, entry, path)?,
            }
        }
        // The top directory of the image keeps its own mode; all others get the mode of their source.
        if let Some(target) = target
            && !into.as_os_str().is_empty()
        {
            finish_dir(&source, &target).doing(|| format!("finish /{}", into.display()))?;
        }
        Ok(())
    }

    fn measure(&mut self, task: &Task, source: &OwnedFd, entry: &Entry, path: PathBuf) -> Result<()> {
        let stat = &entry.stat;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let tally = self.work.tally;
        let mut hash = Sha256::new();
        hash.update(path.as_os_str().as_bytes());
        for number in [
            u64::from(stat.st_mode),
            u64::from(stat.st_uid),
            u64::from(stat.st_gid),
            if kind == FileType::Directory { 0 } else { stat.st_size as u64 },
            stat.st_mtime as u64,
            stat.st_mtime_nsec,
            stat.st_ino,
        ] {
            hash.update([0]);
            hash.update(number.to_le_bytes());
        }
        let digest = hash.finalize();
        let mut half = [0_u8; 16];
        half.copy_from_slice(&digest[..16]);
        {
            let mut sum = tally.fingerprint.lock().unwrap_or_else(PoisonError::into_inner);
            *sum = sum.wrapping_add(u128::from_le_bytes(half));
        }
        Tally::count(&tally.files, 1);
        match kind {
            FileType::RegularFile => {
                let on_disk = (stat.st_blocks as u64).saturating_mul(512);
                Tally::count(&tally.bytes, (stat.st_size as u64).min(on_disk.max(4096)));
            }
            FileType::Directory => {
                if let Some(child) = self.enter(task, source, entry)? {
                    let device = rustix::fs::fstat(&child).map_or(task.device, |stat| stat.st_dev);
                    self.work.queue.push(Task { tree: task.tree, path, device });
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Opens a subdirectory if the walk may enter it.
    fn enter(&self, task: &Task, source: &OwnedFd, entry: &Entry) -> Result<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let tally = self.work.tally;
        let Ok(child) =
            self.as_user(|| rustix::fs::openat(source, entry.name.as_slice(), flags, Mode::empty()))?
        else {
            Tally::count(&tally.denied, 1);
            return Ok(None);
        };
        let Ok(stat) = rustix::fs::fstat(&child) else { return Ok(None) };
        let foreign = stat.st_dev != task.device
            && rustix::fs::fstatfs(&child)
                .map_or(true, |found| NOT_DATA.contains(&(found.f_type as u64 & 0xffff_ffff)));
        if foreign || self.work.walk.never.contains(&(stat.st_dev, stat.st_ino)) {
            Tally::count(&tally.elsewhere, 1);
            return Ok(None);
        }
        Ok(Some(child))
    }
}

/// Lists a directory with the metadata of each entry. Runs with the user's rights.
fn list(directory: &OwnedFd, tally: &Tally) -> rustix::io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => entries.push(Entry { name: name.to_bytes().to_vec(), stat }),
            Err(Errno::NOENT) => {}
            Err(_) => Tally::count(&tally.denied, 1),
        }
    }
    Ok(entries)
}
