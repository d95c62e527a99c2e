//! Which files of a workspace changed while something ran, found from outside the bay.
//!
//! btrfs stores with every inode when it was made and last changed. Only the kernel sets these times. It can list
//! the inodes that changed since a generation without reading the others, so the cost depends on the number of
//! changes. This cannot show deleted names (only that their directory changed), or an earlier change to a file that
//! changed again later.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use bay_sys::btrfs::{self, Inode};
use bay_types::BayId;
use bay_types::timeline::FileChanges;
use jiff::Timestamp;

use crate::error::{Doing, Result};
use crate::pool::Pool;
use crate::subvolume::{info, open_dir};
use crate::sysfs::dashed;

/// Most items of the filesystem's tree that one search reads: enough for about two hundred thousand changed files.
const MAX_ITEMS: u64 = 1_000_000;
/// Most directories whose paths one search looks up, to tell git's own files from the others. A lookup takes some µs.
const MAX_DIRECTORIES: usize = 20_000;
/// Most files whose paths one search looks up, to tell those that the repository ignores. Others count as work, unless
/// their directory is ignored.
const MAX_FILES_JUDGED: usize = 20_000;
/// Most inodes per window whose paths are looked up, to choose the best names from.
const NAMES_TRIED: usize = 48;

/// A time window in which something ran.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// By [`file_clock`].
    pub from: Timestamp,
    pub to: Timestamp,
}

/// The timestamp that the kernel would give a file changed now, or a later one. The kernel's clock for files is
/// some milliseconds behind the time of day, by a varying amount. So file times can be compared only with this
/// clock.
#[must_use]
pub fn file_clock() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let nanoseconds = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    Timestamp::from_nanosecond(nanoseconds).unwrap_or_else(|_| Timestamp::now())
}

/// What to flush before a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// All written data.
    All,
    /// Names and attributes. This is cheap however much data waits to be written, but changes to existing files may
    /// be missing.
    Names,
}

/// Whether the repository ignores a path: the top of the workspace, the path from there, whether it is a directory. The
/// workspace is in use, so its files are data that may change.
pub type IsIgnored<'a> = &'a mut dyn FnMut(BorrowedFd<'_>, &[u8], bool) -> bool;

/// Whose a changed file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Work,
    Git,
    Ignored,
}

/// The result of a search for one window.
struct Found {
    from_ns: i128,
    to_ns: i128,
    changes: FileChanges,
    files: Vec<u64>,
    directories: Vec<u64>,
}

impl Found {
    fn new(window: &Window) -> Self {
        Self {
            from_ns: window.from.as_nanosecond(),
            to_ns: window.to.as_nanosecond(),
            changes: FileChanges::default(),
            files: Vec::new(),
            directories: Vec::new(),
        }
    }

    fn holds(&self, at: i128) -> bool {
        (self.from_ns..=self.to_ns).contains(&at)
    }

    /// Counts an inode. `kind_of` says whose it is.
    fn count(&mut self, inode: &Inode, kind_of: &mut dyn FnMut(&Inode) -> Kind) {
        let made = self.holds(inode.made_ns);
        if !made && !self.holds(inode.changed_ns) {
            // The file may have changed in the window and again after it. This does not apply to directories: they
            // change with every name in them.
            let twice = inode.made_ns < self.from_ns && inode.changed_ns > self.to_ns;
            self.changes.at_least |= twice && !inode.is_dir && kind_of(inode) == Kind::Work;
            return;
        }
        match kind_of(inode) {
            Kind::Work => {}
            Kind::Git => {
                self.changes.git += 1;
                return;
            }
            Kind::Ignored => {
                self.changes.ignored += 1;
                return;
            }
        }
        let (counter, numbers) = match (inode.is_dir, made) {
            (true, _) => (&mut self.changes.directories, &mut self.directories),
            (false, true) => (&mut self.changes.created, &mut self.files),
            (false, false) => (&mut self.changes.changed, &mut self.files),
        };
        *counter += 1;
        if numbers.len() < NAMES_TRIED {
            numbers.push(inode.number);
        }
    }
}

impl Pool {
    /// The generation of a workspace: [`Pool::workspace_changes`] finds changes made after it.
    pub fn workspace_generation(&self, bay: BayId) -> Result<u64> {
        Ok(info(&self.bay_disk(bay).workspace)?.generation)
    }

    /// Bytes written to files of the pool that are still only in memory.
    pub fn unwritten_bytes(&self) -> Result<u64> {
        let corner = self.corner("bays");
        let top = open_dir(&corner).doing(|| format!("open {}", corner.display()))?;
        let id = btrfs::filesystem_id(top).doing(|| "ask the pool for its id".to_owned())?;
        let path = format!("/sys/fs/btrfs/{}/allocation/data/bytes_may_use", dashed(id));
        let text = std::fs::read_to_string(&path).doing(|| format!("read {path}"))?;
        // If the text is not a number, assume the most.
        Ok(text.trim().parse().unwrap_or(u64::MAX))
    }

    /// Makes earlier changes visible to [`Pool::workspace_changes`], for all bays at once, because they share one
    /// filesystem.
    pub fn flush(&self, flush: Flush) -> Result<()> {
        let corner = self.corner("bays");
        let top = open_dir(&corner).doing(|| format!("open {}", corner.display()))?;
        match flush {
            Flush::All => btrfs::sync(top),
            Flush::Names => btrfs::commit(top),
        }
        .doing(|| "write out what bays changed".to_owned())
    }

    /// The changes in a workspace in each of the windows, found from generation `since` on.
    pub fn workspace_changes(
        &self,
        bay: BayId,
        since: u64,
        windows: &[Window],
        is_ignored: IsIgnored<'_>,
    ) -> Result<Vec<FileChanges>> {
        let path: PathBuf = self.bay_disk(bay).workspace;
        let doing = || format!("look for changes in {}", path.display());
        let top = open_dir(&path).doing(doing)?;
        // Changes older than the snapshot are its source's.
        let workspace = btrfs::subvolume_info(&top).doing(doing)?;
        let since = if workspace.parent_uuid == [0; 16] { since } else { since.max(workspace.born) };
        let mut found: Vec<Found> = windows.iter().map(Found::new).collect();
        let mut kinds =
            Kinds { top: top.as_fd(), directories: HashMap::new(), is_ignored, paths_left: MAX_FILES_JUDGED };
        let whole = btrfs::inodes_changed_since(&top, since, MAX_ITEMS, &mut |inode| {
            found.iter_mut().for_each(|window| window.count(&inode, &mut |inode| kinds.of(inode)));
        })
        .doing(doing)?;
        found
            .into_iter()
            .map(|window| {
                let mut changes = window.changes;
                changes.at_least |= !whole;
                // A directory is named only if no file changed.
                let is_dir = window.files.is_empty();
                let mut paths = Vec::new();
                for inode in if is_dir { window.directories } else { window.files } {
                    let path = btrfs::inode_path(&top, inode).doing(doing)?;
                    paths.extend(path.map(|path| shown(&path, is_dir)));
                }
                changes.names = choose(paths);
                Ok(changes)
            })
            .collect()
    }
}

/// Whose the inodes are, by their paths.
struct Kinds<'a> {
    top: BorrowedFd<'a>,
    directories: HashMap<u64, Kind>,
    is_ignored: IsIgnored<'a>,
    paths_left: usize,
}

impl Kinds<'_> {
    /// What cannot be looked up counts as work.
    fn of(&mut self, inode: &Inode) -> Kind {
        let directory = match inode.parent {
            _ if inode.is_dir => inode.number,
            Some(parent) => parent,
            None => inode.number,
        };
        let kind = self.of_directory(directory);
        if kind != Kind::Work || inode.is_dir || self.paths_left == 0 {
            return kind;
        }
        self.paths_left -= 1;
        match btrfs::inode_path(self.top, inode.number) {
            Ok(Some(path)) if (self.is_ignored)(self.top, &path, false) => Kind::Ignored,
            _ => Kind::Work,
        }
    }

    fn of_directory(&mut self, directory: u64) -> Kind {
        if let Some(known) = self.directories.get(&directory) {
            return *known;
        }
        if self.directories.len() >= MAX_DIRECTORIES {
            return Kind::Work;
        }
        let path = btrfs::inode_path(self.top, directory).ok().flatten().unwrap_or_default();
        let kind = if path.split(|byte| *byte == b'/').any(|part| part == b".git") {
            Kind::Git
        } else if !path.is_empty() && (self.is_ignored)(self.top, &path, true) {
            Kind::Ignored
        } else {
            Kind::Work
        };
        self.directories.insert(directory, kind);
        kind
    }
}

fn shown(path: &[u8], is_dir: bool) -> String {
    let mut text = String::from_utf8_lossy(path).into_owned();
    if is_dir {
        text.push_str(if text.is_empty() { "./" } else { "/" });
    }
    text
}

/// Chooses a few telling names: a person's work before files of tools, and paths near the top first.
fn choose(mut paths: Vec<String>) -> Vec<String> {
    let of_a_tool = |path: &String| {
        path.split('/').any(|part| {
            (part.len() > 1 && part.starts_with('.'))
                || matches!(part, "node_modules" | "target" | "__pycache__")
        })
    };
    paths.sort_by_cached_key(|path| (of_a_tool(path), path.matches('/').count()));
    paths.dedup();
    paths.truncate(FileChanges::NAMES);
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode(number: u64, made: i64, changed: i64) -> Inode {
        let ns = |second: i64| i128::from(second) * 1_000_000_000;
        Inode { number, is_dir: false, parent: None, made_ns: ns(made), changed_ns: ns(changed) }
    }

    #[test]
    fn changes_before_or_after_the_window_are_not_counted() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut found = Found::new(&Window { from: at(10), to: at(20) });
        found.count(&inode(300, 1, 5), &mut |_| Kind::Work);
        assert!(!found.changes.at_least);
        found.count(&inode(301, 12, 30), &mut |_| Kind::Work);
        found.count(&inode(302, 1, 15), &mut |_| Kind::Work);
        assert_eq!((found.changes.created, found.changes.changed, found.changes.at_least), (1, 1, false));
        found.count(&inode(303, 25, 30), &mut |_| Kind::Work);
        assert!(!found.changes.at_least, "a file made later cannot have changed in the window");
        found.count(&inode(304, 1, 30), &mut |_| Kind::Work);
        assert!(found.changes.at_least, "it may have changed twice");
        assert_eq!(found.files, [301, 302]);
        found.count(&inode(305, 12, 12), &mut |_| Kind::Git);
        assert_eq!((found.changes.created, found.changes.git), (1, 1), "git's own are counted apart");
        found.count(&inode(306, 12, 12), &mut |_| Kind::Ignored);
        assert_eq!((found.changes.created, found.changes.ignored), (1, 1), "ignored files are counted apart");
    }

    #[test]
    fn names_of_work_come_before_names_of_tools() {
        let all = [".git/index", "target/debug/x", "src/lib.rs", "notes", "a/b/c", ".env", "x"];
        let chosen = choose(all.iter().map(|path| (*path).to_owned()).collect());
        assert_eq!(chosen, ["notes", "x", "src/lib.rs", "a/b/c", ".env"]);
    }
}
