//! The thread of a watch: reads notifications, produces changes, and watches every directory of the tree.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::disk::{entries, instance_refused, join, same_file, watch_refused};
use super::tree::{Tree, Wd};
use super::{Change, Kind, MAX_DIRECTORIES, Shared};

/// Bytes read from the kernel at once.
const BUFFER: usize = 64 << 10;
/// Notifications that are taken off the kernel's queue before they are processed.
const MAX_BACKLOG: usize = 8192;
/// How long the second half of a directory's rename may take. The kernel queues both within one system call.
const PAIR_WAIT: Duration = Duration::from_millis(10);

const WATCHED: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);
/// With MASK_ADD, because two paths may lead to one directory that is watched already.
const HOW: WatchFlags = WatchFlags::ONLYDIR.union(WatchFlags::DONT_FOLLOW).union(WatchFlags::MASK_ADD);

/// One notification.
#[derive(Debug)]
struct Raw {
    wd: Wd,
    flags: ReadFlags,
    cookie: u32,
    /// Empty if it is about the watched directory itself.
    name: Vec<u8>,
}

/// What must be checked again when the kernel's queue is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    /// Whether every directory in it is watched, under its present name.
    Directories,
    /// Whether every directory in it is watched; also, everything in it must be reported.
    Everything,
}

/// What is known about the entries of a directory that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scan {
    /// They existed before the watch, so nothing is reported.
    Silent,
    /// They are new, so they are reported.
    Report,
    /// They were reported. Only directories that are not watched yet are new.
    Verify,
}

enum Stop {
    Ended,
}

#[derive(Debug)]
pub(super) struct Tracker {
    inotify: OwnedFd,
    tree: Tree,
    shared: Arc<Shared>,
    recursive: bool,
    /// The parent directory and the watched directory's name in it. If a directory is removed while a process uses it
    /// as its working directory, only the parent's watch reports that.
    above: Option<(Wd, Vec<u8>)>,
    backlog: VecDeque<Raw>,
    buffer: Vec<MaybeUninit<u8>>,
    doubts: HashMap<Wd, Doubt>,
    /// Directories with names that were reported because they were found.
    found_in: HashSet<Wd>,
}

impl Tracker {
    /// Watches the tree, without reporting what is in it. Changes the working directory of the calling thread to `dir`.
    pub(super) fn open(dir: &Path, recursive: bool, shared: Arc<Shared>) -> io::Result<Self> {
        let named = |source: io::Error| {
            io::Error::new(source.kind(), format!("{} cannot be watched: {source}", dir.display()))
        };
        let inotify =
            inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(instance_refused)?;
        let real = dir.canonicalize().map_err(named)?;
        let above = real.parent().zip(real.file_name()).map(|(above, name)| {
            let what = WatchFlags::DELETE | WatchFlags::MOVED_FROM;
            inotify::add_watch(&inotify, above, what | HOW).map(|wd| (wd, name.as_bytes().to_vec()))
        });
        let above = above.transpose().map_err(|e| named(watch_refused(e)))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let here = rustix::fs::open(&real, flags, Mode::empty()).map_err(|e| named(e.into()))?;
        bay_sys::paths::set_thread_directory(&here).map_err(|e| named(e.into()))?;
        let root = inotify::add_watch(&inotify, ".", WATCHED | HOW).map_err(|e| named(watch_refused(e)))?;
        let mut tracker = Self {
            inotify,
            tree: Tree::new(root),
            shared,
            recursive,
            above,
            backlog: VecDeque::new(),
            buffer: vec![MaybeUninit::uninit(); BUFFER],
            doubts: HashMap::new(),
            found_in: HashSet::new(),
        };
        tracker.scan(root, Scan::Silent).map_err(|e| named(watch_refused(e)))?;
        Ok(tracker)
    }

    /// Reports changes until it must stop, or the directory is gone.
    pub(super) fn run(mut self) {
        loop {
            if self.backlog.is_empty() && self.read().is_err() {
                return;
            }
            if self.backlog.is_empty() && !self.resolve_doubts() && !self.wait(None) {
                return;
            }
            while let Some(raw) = self.backlog.pop_front() {
                if let Err(Stop::Ended) = self.handle(&raw) {
                    return;
                }
            }
            if !self.wait(Some(Duration::ZERO)) {
                return;
            }
        }
    }

    /// Waits for notifications. Returns false when the thread must stop.
    fn wait(&self, at_most: Option<Duration>) -> bool {
        let at_most = at_most.and_then(|d| Timespec::try_from(d).ok());
        let mut fds =
            [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(&self.shared.stop, PollFlags::IN)];
        // An interrupted wait counts as a short one.
        let _ = poll(&mut fds, at_most.as_ref());
        fds[1].revents().is_empty()
    }

    /// Moves the notifications of the kernel to the backlog, without waiting.
    fn read(&mut self) -> io::Result<()> {
        while self.backlog.len() < MAX_BACKLOG {
            let mut reader = Reader::new(&self.inotify, &mut self.buffer);
            loop {
                match reader.next() {
                    Ok(event) => self.backlog.push_back(Raw {
                        wd: event.wd(),
                        flags: event.events(),
                        cookie: event.cookie(),
                        name: event.file_name().map(|n| n.to_bytes().to_vec()).unwrap_or_default(),
                    }),
                    Err(Errno::AGAIN) => return Ok(()),
                    Err(Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                }
                if reader.is_buffer_empty() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn handle(&mut self, raw: &Raw) -> Result<(), Stop> {
        let has = |flag| raw.flags.contains(flag);
        if has(ReadFlags::QUEUE_OVERFLOW) {
            return self.read_tree_again();
        }
        if let Some((above, name)) = &self.above
            && raw.wd == *above
            && raw.name == *name
            && raw.flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM)
        {
            return Err(self.end(if has(ReadFlags::DELETE) { Kind::Remove } else { Kind::Rename }));
        }
        if raw.wd == self.tree.root() && raw.name.is_empty() {
            if has(ReadFlags::MOVE_SELF) {
                return Err(self.end(Kind::Rename));
            }
            if raw.flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT) {
                return Err(self.end(Kind::Remove));
            }
            if has(ReadFlags::ATTRIB) {
                self.report(Kind::Chmod, Vec::new(), true);
            }
            return Ok(());
        }
        if has(ReadFlags::IGNORED) {
            self.forget(raw.wd);
        } else if !raw.name.is_empty() {
            self.handle_named(raw);
        }
        Ok(())
    }

    fn handle_named(&mut self, raw: &Raw) {
        let Some(path) = self.path_of(raw.wd, &raw.name) else { return };
        let has = |flag| raw.flags.contains(flag);
        let is_dir = has(ReadFlags::ISDIR);
        if has(ReadFlags::MODIFY) {
            self.report(Kind::Write, path, is_dir);
        } else if has(ReadFlags::ATTRIB) {
            self.report(Kind::Chmod, path, is_dir);
        } else if has(ReadFlags::CREATE) {
            if self.tree.was_found(raw.wd, &raw.name) {
                return;
            }
            self.report(Kind::Create, path, is_dir);
            self.directory_appeared(raw, is_dir);
        } else if has(ReadFlags::MOVED_TO) {
            self.report(Kind::Create, path, is_dir);
            self.directory_appeared(raw, is_dir);
        } else if has(ReadFlags::DELETE) {
            self.tree.was_found(raw.wd, &raw.name);
            self.report(Kind::Remove, path, is_dir);
            if let Some(child) = self.tree.child(raw.wd, &raw.name).filter(|_| is_dir) {
                self.forget(child);
            }
        } else if has(ReadFlags::MOVED_FROM) {
            self.tree.was_found(raw.wd, &raw.name);
            self.report(Kind::Rename, path, is_dir);
            if let Some(child) = self.tree.child(raw.wd, &raw.name).filter(|_| is_dir) {
                self.directory_left(child, raw.cookie);
            }
        }
    }

    /// Handles a directory that appeared: watches it and reads it, because it may have been filled before the watch.
    fn directory_appeared(&mut self, raw: &Raw, is_dir: bool) {
        if !is_dir || !self.recursive {
            return;
        }
        match self.watch(raw.wd, &raw.name) {
            Ok(Some((child, _))) => self.scan_or_drop(child, Scan::Report),
            Ok(None) => {}
            Err(error) => self.could_not_watch(raw.wd, error),
        }
    }

    /// Handles a directory that lost its name. If it moved within the tree, its watches move along; otherwise they are
    /// removed.
    fn directory_left(&mut self, child: Wd, cookie: u32) {
        let target = self.renamed_to(cookie);
        match target {
            Some(to) if self.tree.knows(to.wd) => {
                if let Some(path) = self.path_of(to.wd, &to.name) {
                    self.report(Kind::Create, path, true);
                }
                if self.place(child, to.wd, &to.name) {
                    // This happens when two directories exchange names. On disk the names are final already.
                    self.scan_or_drop(to.wd, Scan::Verify);
                }
            }
            _ => self.forget(child),
        }
    }

    /// Finds the new name of a rename, if it is in the tree.
    fn renamed_to(&mut self, cookie: u32) -> Option<Raw> {
        for last in [false, true] {
            let is_it = |raw: &Raw| raw.cookie == cookie && raw.flags.contains(ReadFlags::MOVED_TO);
            if let Some(at) = self.backlog.iter().position(is_it) {
                return self.backlog.remove(at);
            }
            if last {
                break;
            }
            // If later notifications had arrived, this one would be there already. It can only be missing for a moment.
            if self.backlog.is_empty() {
                self.wait(Some(PAIR_WAIT));
            }
            self.read().ok()?;
        }
        None
    }

    /// Gives a directory a name. Returns true if another directory had that name.
    fn place(&mut self, wd: Wd, parent: Wd, name: &[u8]) -> bool {
        match self.tree.place(wd, parent, name) {
            Ok(displaced) => displaced.is_some_and(|other| other != wd),
            Err(()) => {
                self.forget(wd);
                false
            }
        }
    }

    /// Adds a watch and returns whether it is new. None if there is nothing more to do for this directory.
    fn watch(&mut self, parent: Wd, name: &[u8]) -> Result<Option<(Wd, bool)>, Errno> {
        let Some(path) = self.path_of(parent, name) else { return Ok(None) };
        if self.tree.len() >= MAX_DIRECTORIES && self.tree.child(parent, name).is_none() {
            return Err(Errno::NOSPC);
        }
        let wd = inotify::add_watch(&self.inotify, path.as_slice(), WATCHED | HOW)?;
        if self.tree.child(parent, name) == Some(wd) {
            return Ok(Some((wd, false)));
        }
        let fresh = !self.tree.knows(wd);
        if !fresh {
            // The directory is known by another name: mounted twice, or moved since.
            let elsewhere = self.tree.path(wd);
            if wd == self.tree.root() || elsewhere.as_ref().is_some_and(|other| same_file(other, &path)) {
                return Ok(None);
            }
            self.doubt(parent, Doubt::Directories);
        }
        if self.place(wd, parent, name) {
            self.doubt(parent, Doubt::Directories);
        }
        Ok(self.tree.knows(wd).then_some((wd, fresh)))
    }

    /// Reads a directory and everything below it, and watches each directory.
    fn scan(&mut self, top: Wd, how: Scan) -> Result<(), Errno> {
        let mut left = vec![(top, how)];
        while let Some((wd, how)) = left.pop() {
            let Some(path) = self.tree.path(wd) else { continue };
            let entries = match entries(&path) {
                Ok(entries) => entries,
                Err(error) if how == Scan::Silent && wd == top => return Err(error),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                    if how != Scan::Silent {
                        self.doubts.entry(wd).or_insert(Doubt::Everything);
                    }
                    continue;
                }
                Err(_) => {
                    self.shared.queue.push(Change::Dropped);
                    continue;
                }
            };
            for (name, kind) in entries {
                let is_dir = kind == FileType::Directory;
                if how == Scan::Report {
                    self.report_found(wd, &path, &name, kind);
                }
                if !is_dir || !self.recursive {
                    continue;
                }
                match self.watch(wd, &name) {
                    Ok(Some((child, fresh))) if fresh || how != Scan::Verify => {
                        left.push((child, if how == Scan::Silent { Scan::Silent } else { Scan::Report }));
                    }
                    Ok(_) => {}
                    Err(error @ (Errno::NOSPC | Errno::NOMEM)) if how == Scan::Silent => return Err(error),
                    Err(error) => self.could_not_watch(wd, error),
                }
            }
        }
        Ok(())
    }

    fn scan_or_drop(&mut self, wd: Wd, how: Scan) {
        if self.scan(wd, how).is_err() {
            self.shared.queue.push(Change::Dropped);
        }
    }

    /// Reports an entry that existed when its directory was read.
    fn report_found(&mut self, wd: Wd, dir: &[u8], name: &[u8], kind: FileType) {
        if !self.tree.report_found(wd, name) {
            return;
        }
        self.found_in.insert(wd);
        let path = join(dir, name);
        let written = kind == FileType::RegularFile
            && rustix::fs::statat(CWD, path.as_slice(), AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|s| s.st_size > 0);
        self.report(Kind::Create, path.clone(), kind == FileType::Directory);
        if written {
            self.report(Kind::Write, path, false);
        }
    }

    /// Checks what was uncertain; the kernel's queue is empty now. Returns true if there may be more to read.
    fn resolve_doubts(&mut self) -> bool {
        // The kernel has reported everything that was made before these directories were read.
        for wd in std::mem::take(&mut self.found_in) {
            self.tree.forget_found(wd);
        }
        let doubts = std::mem::take(&mut self.doubts);
        let any = !doubts.is_empty();
        for (wd, doubt) in doubts {
            let how = if doubt == Doubt::Everything { Scan::Report } else { Scan::Verify };
            self.scan_or_drop(wd, how);
        }
        // A doubt that remains can only be resolved by further notifications.
        any && self.doubts.is_empty()
    }

    fn doubt(&mut self, wd: Wd, doubt: Doubt) {
        self.doubts.entry(wd).or_insert(doubt);
    }

    fn could_not_watch(&mut self, parent: Wd, error: Errno) {
        match error {
            // The directory is gone, or its parent was moved and the notification has not been read yet.
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP => self.doubt(parent, Doubt::Directories),
            _ => self.shared.queue.push(Change::Dropped),
        }
    }

    /// The kernel dropped notifications. Directories may have come and gone unnoticed, so the whole tree is read again.
    fn read_tree_again(&mut self) -> Result<(), Stop> {
        self.shared.queue.push(Change::Dropped);
        let Ok(root) = inotify::add_watch(&self.inotify, ".", WATCHED | HOW) else {
            return Err(self.end(Kind::Remove));
        };
        let old = std::mem::replace(&mut self.tree, Tree::new(root));
        self.doubts.clear();
        self.found_in.clear();
        self.scan_or_drop(root, Scan::Silent);
        for wd in old.watches().filter(|wd| !self.tree.knows(*wd)) {
            self.unwatch(wd);
        }
        Ok(())
    }

    fn forget(&mut self, wd: Wd) {
        for wd in self.tree.forget(wd) {
            self.doubts.remove(&wd);
            self.found_in.remove(&wd);
            self.unwatch(wd);
        }
    }

    fn unwatch(&self, wd: Wd) {
        if self.above.as_ref().is_none_or(|(above, _)| *above != wd) {
            // The kernel may have removed the watch together with the directory.
            let _ = inotify::remove_watch(&self.inotify, wd);
        }
    }

    fn end(&self, kind: Kind) -> Stop {
        self.report(kind, Vec::new(), true);
        Stop::Ended
    }

    fn report(&self, kind: Kind, path: Vec<u8>, is_dir: bool) {
        let path = PathBuf::from(OsString::from_vec(path));
        self.shared.queue.push(Change::Event { kind, path, is_dir });
    }

    fn path_of(&self, parent: Wd, name: &[u8]) -> Option<Vec<u8>> {
        Some(join(&self.tree.path(parent)?, name))
    }
}
