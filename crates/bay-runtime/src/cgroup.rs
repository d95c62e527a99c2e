//! Control groups on hosts with version 2, version 1, or both (hybrid).
//!
//! Version 2 is always needed: it kills and freezes a tree as a whole and gives every exec its own leaf. If the host has
//! not mounted it, the helper does ([`crate::cgroup2_mount`]). The bay's group in it has two children, because a group
//! below which controllers are enabled may contain no processes itself:
//!
//! ```text
//! <v2>/workbay/<daemon>/<bay>           limits (owned by the host's root) · root of the bay's cgroup namespace
//!                       ├── guest       PID 1
//!                       └── execs/<id>  one per exec, made by the guest
//! <v1>/<controller>/workbay/<daemon>/<bay>   limits, if the controllers are still in version 1
//! ```
//!
//! The bay may make groups below its group and move its processes to them. The limit files of its own group belong to
//! the host.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bay_types::bay::Limits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Uid, chownat, openat, unlinkat};
use rustix::io::Errno;

use crate::cgroup2_mount::{self, CGROUP2_MOUNT};
use crate::failure::{Failure, Try};

mod first_process;
mod limits;
mod processors;
mod stats;
mod stuck_processes;

pub use limits::LimitContext;

const STEP: &str = "cgroups";
/// Version 1 controllers. A bay joins a group of its own in every mounted hierarchy, even in those without a limit: if
/// the bay mounts the hierarchy, it begins at that group and shows nothing of the host.
const V1_CONTROLLERS: [&str; 14] = [
    "cpu",
    "cpuacct",
    "cpuset",
    "memory",
    "pids",
    "blkio",
    "devices",
    "freezer",
    "net_cls",
    "net_prio",
    "perf_event",
    "hugetlb",
    "rdma",
    "misc",
];
/// The controllers that programs read to adapt to their limits.
const V1_SHOWN: [&str; 6] = ["cpu", "cpuacct", "cpuset", "memory", "pids", "blkio"];
/// How the name of a hierarchy without a controller begins.
const V1_NAMED: &str = "name=";
/// Version 2 controllers that are enabled for bays if the host offers them.
const V2_CONTROLLERS: [&str; 5] = ["cpu", "memory", "pids", "io", "cpuset"];
/// Groups that a bay may have below its own: enough for nested containers. Each group costs the host memory that no
/// limit of the bay counts.
pub(crate) const MAX_GROUPS: u32 = 4096;
/// How deep these groups may be nested.
pub(crate) const MAX_GROUP_DEPTH: u32 = 32;
/// How long killed processes may take to end, and an emptied group to be removed. Only uninterruptible sleep on a slow
/// disk takes long.
const KILL_DEADLINE: Duration = Duration::from_secs(20);
/// How long freezing or thawing may take.
const FREEZE_DEADLINE: Duration = Duration::from_secs(10);

/// Where the hierarchies of this host are mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchies {
    pub v2: PathBuf,
    /// Controller (or `name=…`) and mount point. Several controllers may share a mount point.
    pub v1: Vec<(String, PathBuf)>,
}

impl Hierarchies {
    /// Reads the mount table. None if version 2 is not mounted. Changes nothing, so the daemon may call it too.
    ///
    /// # Errors
    /// If the mount table cannot be read.
    pub fn mounted() -> Result<Option<Self>, Failure> {
        let table = fs::read_to_string("/proc/self/mountinfo")
            .at(STEP, || "could not read the mount table".to_owned())?;
        Ok(Self::from_mountinfo(&table))
    }

    /// The hierarchies of this host. Mounts version 2 if nobody has.
    pub(crate) fn ready() -> Result<Self, Failure> {
        if let Some(mounted) = Self::mounted()? {
            return Ok(mounted);
        }
        cgroup2_mount::mount_unless(|| Ok(Self::mounted()?.is_some()))?;
        Self::mounted()?.ok_or_else(|| {
            Failure::new(
                STEP,
                format!(
                    "the cgroup version 2 hierarchy mounted at {CGROUP2_MOUNT} is not in the mount table"
                ),
                io::Error::from(io::ErrorKind::NotFound),
            )
        })
    }

    fn from_mountinfo(table: &str) -> Option<Self> {
        let mut v2 = None;
        let mut v1 = Vec::new();
        for line in table.lines() {
            let Some((mount, filesystem)) = line.split_once(" - ") else { continue };
            let mut kinds = filesystem.split(' ');
            let kind = kinds.next().unwrap_or_default();
            let options = kinds.nth(1).unwrap_or_default();
            let Some(point) = mount.split(' ').nth(4).map(PathBuf::from) else { continue };
            match kind {
                "cgroup2" if v2.is_none() => v2 = Some(point),
                "cgroup" => {
                    for option in options.split(',') {
                        let joined = V1_CONTROLLERS.contains(&option) || option.starts_with(V1_NAMED);
                        if joined && !v1.iter().any(|(name, _)| name == option) {
                            v1.push((option.to_owned(), point.clone()));
                        }
                    }
                }
                _ => {}
            }
        }
        Some(Self { v2: v2?, v1 })
    }

    /// Makes the bay's groups and sets its limits. In version 2 the groups get an owner, so that the bay may make
    /// groups below them.
    pub(crate) fn make(
        &self,
        group: &Path,
        limits: &Limits,
        placing: LimitContext<'_>,
        owner: u32,
    ) -> Result<(), Failure> {
        let v2 = self.v2.join(group);
        make_path(&v2).at(STEP, || format!("could not make {}", v2.display()))?;
        self.enable_controllers_down_to(group);
        for v1 in self.v1_roots().map(|root| root.join(group)) {
            make_path(&v1).at(STEP, || format!("could not make {}", v1.display()))?;
        }
        self.set_limits(group, limits, placing, true)?;
        for (file, most) in [("cgroup.max.descendants", MAX_GROUPS), ("cgroup.max.depth", MAX_GROUP_DEPTH)] {
            let path = v2.join(file);
            fs::write(&path, most.to_string())
                .at(STEP, || format!("could not set {} to {most}", path.display()))?;
        }
        for part in ["guest", "execs"] {
            let path = v2.join(part);
            match fs::create_dir(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(Failure::new(STEP, format!("could not make {}", path.display()), error));
                }
                _ => delegate(&path, owner)?,
            }
        }
        delegate(&v2, owner)
    }

    /// Makes a group for the bay below the bay's own. The parent must exist; the group may.
    pub(crate) fn make_leaf(&self, group: &Path, leaf: &Path, owner: u32) -> Result<(), Failure> {
        let path = self.v2.join(group).join(leaf);
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(Failure::new(STEP, format!("could not make {}", path.display()), error))
            }
            _ => delegate(&path, owner),
        }
    }

    /// Freezes every group below `execs` and every other group beside the guest's, each one by itself, so that groups
    /// that are made later run. Returns the frozen groups. A process that is not stopped yet stops as soon as it
    /// would run.
    pub(crate) fn freeze_leaves(&self, group: &Path) -> Result<Vec<PathBuf>, Failure> {
        let bay = self.v2.join(group);
        let below = |dir: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()).collect()
        };
        let (guest, execs) = (bay.join("guest"), bay.join("execs"));
        let mut leaves = below(&execs);
        leaves.extend(below(&bay).into_iter().filter(|dir| *dir != guest && *dir != execs));
        for leaf in &leaves {
            fs::write(leaf.join("cgroup.freeze"), "1")
                .at(STEP, || format!("could not freeze {}", leaf.display()))?;
        }
        Ok(leaves)
    }

    pub(crate) fn thaw_leaves(&self, leaves: &[PathBuf]) -> Result<(), Failure> {
        for leaf in leaves {
            match fs::write(leaf.join("cgroup.freeze"), "0") {
                // The guest removes empty groups.
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Failure::new(STEP, format!("could not thaw {}", leaf.display()), error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The roots of the version 1 hierarchies, each once.
    fn v1_roots(&self) -> impl Iterator<Item = &PathBuf> {
        let first =
            |(i, (_, root)): &(usize, &(String, PathBuf))| !self.v1[..*i].iter().any(|(_, r)| r == root);
        self.v1.iter().enumerate().filter(first).map(|(_, (_, root))| root)
    }

    fn v1_groups(&self, group: &Path) -> impl Iterator<Item = (&str, PathBuf)> {
        self.v1.iter().map(move |(controller, root)| (controller.as_str(), root.join(group)))
    }

    /// The version 1 hierarchies that programs in a bay read, each with all of its controllers, because these can only
    /// be mounted together.
    pub(crate) fn v1_for_bays(&self) -> Vec<Vec<&str>> {
        let of = |root: &PathBuf| -> Vec<&str> {
            self.v1.iter().filter(|(_, at)| at == root).map(|(name, _)| name.as_str()).collect()
        };
        self.v1_roots().map(of).filter(|names| names.iter().any(|name| V1_SHOWN.contains(name))).collect()
    }

    fn v1_root(&self, controller: &str) -> Option<&Path> {
        self.v1.iter().find(|(name, _)| name == controller).map(|(_, root)| root.as_path())
    }

    /// Best effort: a controller that the host does not offer stays off, and a limit that needs it is refused later.
    fn enable_controllers_down_to(&self, group: &Path) {
        let mut at = self.v2.clone();
        for part in group {
            enable_controllers(&at);
            at.push(part);
        }
    }

    /// Enables the controllers for each exec's leaf. Possible only when no process is in the bay's own group.
    pub(crate) fn enable_for_leaves(&self, group: &Path) {
        let bay = self.v2.join(group);
        enable_controllers(&bay);
        enable_controllers(&bay.join("execs"));
    }

    /// A descriptor of the bay's version 2 group, or of a group below it, to clone a process into it.
    pub(crate) fn open(&self, group: &Path, part: &str) -> Result<OwnedFd, Failure> {
        let path = self.v2.join(group).join(part);
        openat(CWD, &path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .at(STEP, || format!("could not open {}", path.display()))
    }

    /// Moves the calling process into the bay's version 1 groups.
    pub(crate) fn join_v1(&self, group: &Path) -> io::Result<()> {
        for root in self.v1_roots() {
            fs::write(root.join(group).join("tasks"), "0")?;
        }
        Ok(())
    }

    /// Kills everything in the bay's group and waits until it has ended.
    pub(crate) fn kill(&self, group: &Path) -> Result<(), Failure> {
        let dir = self.v2.join(group);
        match fs::write(dir.join("cgroup.kill"), "1") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.at(STEP, || format!("could not kill {}", dir.display()))?,
        }
        wait_for_event(&dir, "populated 0", KILL_DEADLINE)
            .at(STEP, || format!("the bay's processes do not end: {}", stuck_processes::describe(&dir)))
    }

    /// Freezes or thaws the whole bay, and waits until that is done. If freezing fails, thaws it again.
    pub(crate) fn freeze(&self, group: &Path, frozen: bool) -> Result<(), Failure> {
        let step = if frozen { "freeze" } else { "thaw" };
        let dir = self.v2.join(group);
        let value = if frozen { "1" } else { "0" };
        fs::write(dir.join("cgroup.freeze"), value)
            .at(step, || format!("could not {step} {}", dir.display()))?;
        let event = if frozen { "frozen 1" } else { "frozen 0" };
        let outcome = wait_for_event(&dir, event, FREEZE_DEADLINE)
            .at(step, || format!("the bay does not {step}: {}", stuck_processes::describe(&dir)));
        if frozen && outcome.is_err() {
            // Some processes are frozen, possibly including the guest, so the bay is neither paused nor usable. Thaw
            // it.
            let _ = fs::write(dir.join("cgroup.freeze"), "0");
        }
        outcome
    }

    /// Whether the bay's group is frozen now.
    #[must_use]
    pub fn is_frozen(&self, group: &Path) -> bool {
        fs::read_to_string(self.v2.join(group).join("cgroup.events"))
            .is_ok_and(|events| events.lines().any(|line| line == "frozen 1"))
    }

    /// Removes the bay's groups in every hierarchy, and Workbay's groups above them that are now empty. The processes
    /// in them must have ended.
    pub(crate) fn remove(&self, group: &Path) -> Result<(), Failure> {
        for root in self.v1_roots().chain([&self.v2]) {
            let path = root.join(group);
            remove_tree(&path).at(STEP, || format!("could not remove {}", path.display()))?;
            for above in group.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
                // Another bay or another daemon still uses it and will remove it.
                if fs::remove_dir(root.join(above)).is_err() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Names of the groups directly below `parent` in any hierarchy.
    #[must_use]
    pub fn children(&self, parent: &Path) -> Vec<String> {
        let mut names: Vec<String> = self
            .v1_roots()
            .chain([&self.v2])
            .filter_map(|root| fs::read_dir(root.join(parent)).ok())
            .flatten()
            .filter_map(Result::ok)
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Makes a directory and its parents. Unlike `create_dir_all`, this works while another helper removes the same empty
/// parents.
fn make_path(path: &Path) -> io::Result<()> {
    const TRIES: usize = 100;
    for _ in 1..TRIES {
        match fs::create_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
    }
    fs::create_dir_all(path)
}

fn enable_controllers(dir: &Path) {
    let offered = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
    for controller in V2_CONTROLLERS {
        if offered.split_ascii_whitespace().any(|name| name == controller) {
            let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
        }
    }
}

/// Lets the bay's root make groups below `dir`, move its processes between them, and enable controllers for them. Every
/// other file of `dir` stays the host's.
fn delegate(dir: &Path, owner: u32) -> Result<(), Failure> {
    let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
    for file in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
        let path = dir.join(file);
        chownat(CWD, &path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            .at(STEP, || format!("could not give {} to the bay", path.display()))?;
    }
    Ok(())
}

/// Waits until `cgroup.events` of `dir` has the line. The kernel notifies about each change of that file.
fn wait_for_event(dir: &Path, line: &str, within: Duration) -> io::Result<()> {
    let file = fs::File::open(dir.join("cgroup.events"))?;
    let until = Instant::now() + within;
    loop {
        let mut text = [0; 256];
        let read = rustix::io::pread(file.as_fd(), &mut text, 0)?;
        if String::from_utf8_lossy(&text[..read]).lines().any(|have| have == line) {
            return Ok(());
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("{line:?} did not come within {within:?}"),
            ));
        }
        // The kernel loses no change between the read and the poll; the short timeout is only a precaution.
        let round = Timespec::try_from(left.min(Duration::from_millis(50)))
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let _ = poll(&mut [PollFd::new(&file, PollFlags::PRI)], Some(&round));
    }
}

/// Removes a group and everything below it. The agent made the groups below, possibly deeper than a path can be long.
/// So this walks by descriptor, with one open at a time.
fn remove_tree(dir: &Path) -> io::Result<()> {
    let (Some(above), Some(name)) = (dir.parent(), dir.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let mut at = match open_group(CWD, above) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    // The groups from `above` down to the next one to remove; `at` is the parent of the last.
    let mut way = vec![name.to_owned()];
    while let Some(name) = way.last() {
        let group = match open_group(at.as_fd(), Path::new(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            other => Some(other?),
        };
        if let Some(group) = group {
            if let Some(child) = first_child(&group)? {
                at = group;
                way.push(child);
                continue;
            }
            drop(group);
            remove_group(at.as_fd(), name)?;
        }
        way.pop();
        if !way.is_empty() {
            at = open_group(at.as_fd(), Path::new(".."))?;
        }
    }
    Ok(())
}

fn open_group(at: impl AsFd, name: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at, name, flags, Mode::empty())?)
}

fn first_child(group: &OwnedFd) -> io::Result<Option<OsString>> {
    for entry in Dir::read_from(group)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if entry.file_type() == FileType::Directory && name != b"." && name != b".." {
            return Ok(Some(OsStr::from_bytes(name).to_owned()));
        }
    }
    Ok(None)
}

/// Removes one empty group. The group may be busy for a moment after its last process was reaped.
fn remove_group(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let until = Instant::now() + KILL_DEADLINE;
    loop {
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::BUSY) if Instant::now() < until => {
                let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hybrid_host_is_understood() {
        let table = "\
30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
34 30 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd";
        let found = Hierarchies::from_mountinfo(table).unwrap();
        assert_eq!(found.v2, Path::new("/sys/fs/cgroup/unified"));
        let names: Vec<&str> = found.v1.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["cpu", "cpuacct", "memory", "name=systemd"]);
        assert_eq!(found.v1_roots().count(), 3);
    }

    #[test]
    fn a_pure_version_2_host_is_understood() {
        let table = "24 1 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        let found = Hierarchies::from_mountinfo(table).unwrap();
        assert_eq!(found, Hierarchies { v2: "/sys/fs/cgroup".into(), v1: vec![] });
    }

    #[test]
    fn a_version_1_host_with_the_helpers_mount_is_understood() {
        let table = "\
31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
40 25 0:35 / /run/workbay/cgroup2 rw,nosuid - cgroup2 workbay rw,nsdelegate";
        let found = Hierarchies::from_mountinfo(table).unwrap();
        assert_eq!(found.v2, Path::new(CGROUP2_MOUNT));
        assert_eq!(found.v1, [("cpu".to_owned(), "/sys/fs/cgroup/cpu".into())]);
    }

    #[test]
    fn a_host_without_version_2_is_detected() {
        assert_eq!(Hierarchies::from_mountinfo("31 30 0:27 / /c rw - cgroup cgroup rw,cpu"), None);
    }
}
