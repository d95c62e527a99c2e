//! Reports what changes below a directory, from the kernel's notifications (inotify).
//!
//! ```text
//!   kernel queue ──► thread (tracker, tree) ──► Queue, bounded in bytes ──► task ──► channel ──► reader
//!        │ full             │ out of watches            │ full
//!        └──────────────────┴───────────────────────────┴──────────► Change::Dropped, in order with the others
//! ```
//!
//! One thread per watch takes notifications off the kernel's queue at once and never waits for the reader. The kernel
//! watches single directories, so the thread adds every directory that appears. A directory may be filled before its
//! watch is added, so the thread reads it and reports what it finds; if the kernel reports an entry too, it is reported
//! once. A directory that moves within the tree keeps its watch and gets its new path. What is uncertain meanwhile is
//! checked again when the kernel's queue is empty.
//!
//! Not reported: writes through memory maps (the kernel sends no notification), changes behind symbolic links (they are
//! not followed), and the kernel's own filesystems such as `/proc`.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

mod disk;
mod queue;
mod route;
#[cfg(test)]
mod tests;
mod tracker;
mod tree;

use queue::Queue;
pub(crate) use route::route;
use tracker::Tracker;

/// Watches that are open at the same time. Each costs a thread and an inotify instance.
const MAX_WATCHES: usize = 64;
/// Directories of one watch. The kernel limits them per user, and the bay's own programs need some too.
const MAX_DIRECTORIES: usize = 1 << 16;
/// Changes that wait in the channel. Further changes wait in [`Queue`].
const CHANNEL: usize = 64;
const STACK: usize = 256 << 10;

static OPEN: AtomicUsize = AtomicUsize::new(0);

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// It appeared: made, linked, or renamed to this name, possibly over another file.
    Create,
    Write,
    Remove,
    /// It no longer has this name. If the new name is in the tree, it follows as [`Kind::Create`].
    Rename,
    /// Its mode, owner, times or extended attributes changed.
    Chmod,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Event {
        kind: Kind,
        /// Relative to the watched directory; empty for that directory itself.
        path: PathBuf,
        is_dir: bool,
    },
    /// Changes are missing here: a queue was full, or a directory could not be watched.
    Dropped,
}

/// Keeps a watch open. Dropping it ends the watch.
#[derive(Debug)]
pub(crate) struct Watch {
    shared: Arc<Shared>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.end();
    }
}

/// What the thread, the task and the owner of a watch share.
#[derive(Debug)]
struct Shared {
    queue: Queue,
    /// Readable when the thread must end.
    stop: OwnedFd,
}

impl Shared {
    fn end(&self) {
        // Writing eight bytes to an event counter does not fail; once set, it stays set.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }
}

/// Watches a directory and, if `recursive`, everything below it. Changes are reported from the moment at which this
/// returns.
///
/// The channel ends when the directory itself is removed, renamed or unmounted; its last change has an empty path.
///
/// Reads the whole tree, so it must be called on a thread that may block, within the runtime.
///
/// # Errors
/// If the directory cannot be opened, or the kernel has no watches left. The message says what to do.
pub(crate) fn open(dir: &Path, recursive: bool) -> io::Result<(Watch, mpsc::Receiver<Change>)> {
    let runtime = Handle::try_current().map_err(io::Error::other)?;
    let slot = Slot::take()?;
    let shared = Arc::new(Shared { queue: Queue::default(), stop: eventfd(0, EventfdFlags::CLOEXEC)? });
    let (ready, opened) = std::sync::mpsc::sync_channel(1);
    let (of_thread, dir) = (Arc::clone(&shared), dir.to_owned());
    std::thread::Builder::new().name("watch".to_owned()).stack_size(STACK).spawn(move || {
        let _slot = slot;
        match Tracker::open(&dir, recursive, Arc::clone(&of_thread)) {
            Ok(tracker) => {
                if ready.send(Ok(())).is_ok() {
                    tracker.run();
                }
            }
            Err(error) => drop(ready.send(Err(error))),
        }
        of_thread.queue.close();
    })?;
    opened.recv().unwrap_or_else(|_| Err(io::Error::other("the watching thread died")))?;
    let (sender, receiver) = mpsc::channel(CHANNEL);
    let of_task = Arc::clone(&shared);
    runtime.spawn(async move {
        loop {
            let change = tokio::select! {
                change = of_task.queue.next() => change,
                () = sender.closed() => None,
            };
            let Some(change) = change else { break };
            if sender.send(change).await.is_err() {
                break;
            }
        }
        of_task.end();
    });
    Ok((Watch { shared }, receiver))
}

/// One of [`MAX_WATCHES`].
struct Slot;

impl Slot {
    fn take() -> io::Result<Self> {
        let taken =
            OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < MAX_WATCHES).then_some(n + 1));
        taken.map(|_| Self).map_err(|_| {
            io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!("{MAX_WATCHES} watches are open in this bay already; end some of them"),
            )
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}
