//! Finds what CRIU could not capture of a running bay, by examining it from outside while it runs.
//!
//! Not everything can be found. The kernel shows Landlock rules nowhere, and a restore loses them. What changes between
//! this examination and the dump makes the dump fail with CRIU's own message.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bay_types::runtime::{CaptureSpec, Obstacle};
use rustix::event::{Timespec, poll};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, makedev, statx};

use super::capture::device_points;
use super::criu_process::MAX_GHOST_BYTES;
use crate::cgroup::Hierarchies;
use crate::failure::{Failure, Try};
use crate::{mounts, run_directory};

const STEP: &str = "examine";
/// Obstacles that are reported. A bay may have thousands of processes; each cause is reported once.
const MAX_REPORTED: usize = 20;
/// How long a process may be in uninterruptible sleep before it counts as stuck.
const STUCK_AFTER: Duration = Duration::from_millis(200);
/// The unit of the kernel's file sizes.
const BLOCK: u64 = 512;
const STUCK_ROUND: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Namespaces that processes of a bay must share with its PID 1. (Mount namespaces of their own can be captured.)
const SHARED: [(&str, &str); 8] = [
    ("user", "a user namespace of its own"),
    ("pid", "a process namespace of its own"),
    ("pid_for_children", "a process namespace for its children"),
    ("net", "a network namespace of its own"),
    ("ipc", "an IPC namespace of its own"),
    ("uts", "a host name of its own"),
    ("time", "a clock of its own"),
    ("time_for_children", "a clock for its children"),
];

/// How a link below `/proc/PID/fd` begins, for files that cannot be captured.
const DESCRIPTORS: [(&str, &str); 7] = [
    ("anon_inode:[io_uring]", "an io_uring"),
    ("anon_inode:[userfaultfd]", "a userfaultfd"),
    ("anon_inode:[perf_event]", "a perf event"),
    ("anon_inode:bpf", "a BPF object"),
    ("anon_inode:[fanotify]", "a fanotify group"),
    ("anon_inode:[landlock-ruleset]", "a Landlock ruleset"),
    ("/dev/fuse", "the serving end of a FUSE filesystem"),
];

const NOT_KEPT: &str = "CRIU cannot keep it";

/// The first [`MAX_REPORTED`] obstacles that are found. Empty if none is found.
pub(crate) fn examine(spec: &CaptureSpec) -> Result<Vec<Obstacle>, Failure> {
    let first = spec.record.pid;
    let level = namespace_level(first);
    let groups = Hierarchies::ready()?;
    let table = fs::read_to_string(format!("/proc/{first}/mountinfo"))
        .at(STEP, || "could not read the bay's mounts".to_owned())?;
    let mut found = in_mounts(&table, spec)?;
    let problem_files = ProblemFiles {
        queues: devices_of(&table, |kind| kind == "mqueue"),
        groups: devices_of(&table, |kind| kind == "cgroup2" || kind == "cgroup"),
        removed: RefCell::default(),
    };
    let processes = processes_in(&groups.v2.join(&spec.runtime.place.cgroup));
    let parents: HashMap<i32, i32> = processes.iter().filter_map(|&pid| Some((pid, parent(pid)?))).collect();
    let own = namespaces(first);
    let points = our_points(spec)?;
    let ours = our_devices(&table, &points);
    found.extend(filesystem_obstacles(&table, &ours, &points));
    let mount_namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let mut looked_at: HashSet<PathBuf> = mount_namespace(first).into_iter().collect();
    for &pid in &processes {
        if found.len() >= MAX_REPORTED {
            break;
        }
        // A process that has ended meanwhile is no obstacle.
        let Some(process) = Process::read(pid, level) else { continue };
        if mount_namespace(pid).is_some_and(|namespace| looked_at.insert(namespace)) {
            let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
            found.extend(filesystem_obstacles(&table, &ours, &points));
        }
        for obstacle in process.obstacles(first, &own, &parents, &problem_files) {
            add(&mut found, obstacle);
        }
    }
    let removed =
        problem_files.removed.borrow().values().fold(0_u64, |all, bytes| all.saturating_add(*bytes));
    if removed > MAX_GHOST_BYTES {
        let resource = format!("{} MiB of files that were removed and are still open", removed >> 20);
        let reason = format!("they are copied with the memory, up to {} MiB", MAX_GHOST_BYTES >> 20);
        found.push(Obstacle { pid: None, program: String::new(), resource, reason, others: 0 });
    }
    found.truncate(MAX_REPORTED);
    Ok(found)
}

/// Adds an obstacle, or counts its process beside the one that has the same.
fn add(found: &mut Vec<Obstacle>, obstacle: Obstacle) {
    let is_same =
        |other: &&mut Obstacle| other.resource == obstacle.resource && other.reason == obstacle.reason;
    match found.iter_mut().filter(|other| other.pid.is_some()).find(is_same) {
        Some(known) => known.others += 1,
        None => found.push(obstacle),
    }
}

/// How many process namespaces are around the bay's own: the place of a process's number in the bay among its numbers.
fn namespace_level(first: i32) -> usize {
    Process::read(first, 0).map_or(0, |first| first.numbers().count().saturating_sub(1))
}

/// Devices of filesystems on which not everything can be captured, and the sizes of files that were deleted but are
/// still open, each once.
struct ProblemFiles {
    queues: HashSet<u64>,
    groups: HashSet<u64>,
    removed: RefCell<HashMap<(u64, u64), u64>>,
}

struct Process {
    pid: i32,
    status: String,
    /// See [`namespace_level`].
    level: usize,
}

/// The number and name of a process inside the bay, such as `12 (python3)`, for CRIU's messages, which have its pid on
/// the host.
pub(super) fn name_inside(pid: i32, first: i32) -> Option<String> {
    let about = Process::read(pid, namespace_level(first))?.obstacle("", "");
    Some(format!("{} ({})", about.pid?, about.program))
}

impl Process {
    fn read(pid: i32, level: usize) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        Some(Self { pid, status, level })
    }

    /// Its number in each process namespace that it is in, the outermost first.
    fn numbers(&self) -> impl Iterator<Item = &str> {
        self.field("NSpid").split_ascii_whitespace()
    }

    fn field(&self, name: &str) -> &str {
        let of = |line: &&str| line.split_once(':').is_some_and(|(key, _)| key == name);
        self.status
            .lines()
            .find(of)
            .and_then(|line| line.split_once(':'))
            .map_or("", |(_, value)| value.trim())
    }

    fn obstacle(&self, resource: &str, reason: &str) -> Obstacle {
        // A process in a namespace of its own has further numbers, which nobody else in the bay sees.
        let inside = self.numbers().nth(self.level).and_then(|pid| pid.parse().ok());
        Obstacle {
            pid: inside,
            program: self.field("Name").to_owned(),
            resource: resource.to_owned(),
            reason: reason.to_owned(),
            others: 0,
        }
    }

    fn obstacles(
        &self,
        first: i32,
        own: &HashMap<&'static str, PathBuf>,
        parents: &HashMap<i32, i32>,
        problem_files: &ProblemFiles,
    ) -> Vec<Obstacle> {
        let mut found = Vec::new();
        let tracer = self.field("TracerPid");
        if !matches!(tracer, "" | "0") {
            found.push(self.obstacle("a debugger", "a process that is being traced cannot be captured"));
        }
        let mine = namespaces(self.pid);
        let nested = SHARED.iter().find(|(name, _)| {
            mine.get(name).is_some_and(|mine| own.get(name).is_some_and(|own| own != mine))
        });
        if let Some((_, what)) = nested {
            found.push(self.obstacle(what, NOT_KEPT));
        } else if self.pid != first && !descends(self.pid, first, parents) {
            found.push(self.obstacle("a parent outside the bay", "it would be left out"));
        }
        let mut told = HashSet::new();
        let open = fs::read_dir(format!("/proc/{}/fd", self.pid)).into_iter().flatten().flatten();
        for path in open.map(|entry| entry.path()) {
            let what = descriptor(&path, problem_files);
            if let Some(what) = what.filter(|what| told.insert(*what)) {
                found.push(self.obstacle(what, NOT_KEPT));
            }
        }
        if self.is_stuck() {
            found.push(self.obstacle(
                "uninterruptible sleep",
                "it cannot be stopped while the kernel waits for a device",
            ));
        }
        found
    }

    /// Whether it stays in uninterruptible sleep. Every process that reads a disk is in it for a moment.
    fn is_stuck(&self) -> bool {
        let sleeps = |status: &Self| status.field("State").starts_with('D');
        if !sleeps(self) {
            return false;
        }
        let until = std::time::Instant::now() + STUCK_AFTER;
        while std::time::Instant::now() < until {
            let _ = poll(&mut [], Some(&STUCK_ROUND));
            if !Self::read(self.pid, self.level).is_some_and(|now| sleeps(&now)) {
                return false;
            }
        }
        true
    }
}

/// What a descriptor refers to, if it cannot be captured. Does not access its filesystem, which might never answer.
fn descriptor(path: &Path, problem_files: &ProblemFiles) -> Option<&'static str> {
    let link = fs::read_link(path).ok()?;
    let link = link.to_str()?;
    if let Some((_, what)) = DESCRIPTORS.iter().find(|(begins, _)| link.starts_with(begins)) {
        return Some(what);
    }
    let removed = link.ends_with(" (deleted)");
    if (problem_files.queues.is_empty() && !removed) || !link.starts_with('/') {
        return None;
    }
    let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::NLINK | StatxFlags::BLOCKS;
    let about = statx(CWD, path, AtFlags::STATX_DONT_SYNC, wanted).ok()?;
    let device = makedev(about.stx_dev_major, about.stx_dev_minor);
    let is_file = FileType::from_raw_mode(about.stx_mode.into()) == FileType::RegularFile;
    // A file in memory is captured as memory.
    if removed && is_file && about.stx_nlink == 0 && !link.starts_with("/memfd:") {
        problem_files
            .removed
            .borrow_mut()
            .insert((device, about.stx_ino), about.stx_blocks.saturating_mul(BLOCK));
    }
    if removed && problem_files.groups.contains(&device) {
        return Some("a control group that was removed, still open");
    }
    problem_files.queues.contains(&device).then_some("a POSIX message queue")
}

/// Filesystems that a bay can mount by itself and that can be restored.
const KEPT_KINDS: [&str; 7] = ["proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2"];
/// A filesystem whose options name paths. Where CRIU mounts it, these paths are others.
const OVERLAY: &str = "overlay";

/// Mounts of one mount namespace that would not be restored as they were. They are checked again in the images
/// ([`super::image_check`]).
fn filesystem_obstacles(table: &str, ours: &HashSet<u64>, points: &HashSet<PathBuf>) -> Vec<Obstacle> {
    let about = |resource: String| Obstacle {
        pid: None,
        program: String::new(),
        resource,
        reason: NOT_KEPT.to_owned(),
        others: 0,
    };
    let unkept = |(point, kind, root, device): (PathBuf, &str, &str, u64)| {
        let part_of_ours = ours.contains(&device) && kind != OVERLAY;
        if kind.starts_with("fuse") {
            None
        } else if !KEPT_KINDS.contains(&kind) && !part_of_ours {
            Some(about(format!("a filesystem of the kind {kind} at {}", point.display())))
        } else if root.ends_with("//deleted") && !points.contains(&point) {
            Some(about(format!("a mount at {} of something that was removed", point.display())))
        } else {
            None
        }
    };
    parsed(table).filter_map(unkept).take(MAX_REPORTED).collect()
}

/// Devices of the filesystems from which the helper's mounts come.
fn our_devices(table: &str, points: &HashSet<PathBuf>) -> HashSet<u64> {
    let root = Path::new("/");
    let of_ours = parsed(table).filter(|(point, ..)| point == root || points.contains(point));
    of_ours.map(|(_, _, _, device)| device).collect()
}

fn our_points(spec: &CaptureSpec) -> Result<HashSet<PathBuf>, Failure> {
    let points =
        mounts::host_mounts(&spec.runtime)?.into_iter().map(|mount| mount.point).chain(device_points());
    Ok(points.map(|point| Path::new("/").join(point)).collect())
}

fn in_mounts(table: &str, spec: &CaptureSpec) -> Result<Vec<Obstacle>, Failure> {
    let ours = our_points(spec)?;
    let about = |resource: String, reason: &str| Obstacle {
        pid: None,
        program: String::new(),
        resource,
        reason: reason.to_owned(),
        others: 0,
    };
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    for (point, kind, root, _) in parsed(table) {
        if kind == "fuse" || kind.starts_with("fuse.") || kind == "fuseblk" {
            found.push(about(format!("a FUSE filesystem at {}", point.display()), NOT_KEPT));
        }
        if ours.contains(&point) {
            if !seen.insert(point.clone()) {
                found.push(about(
                    format!("a mount over {}", point.display()),
                    "the bay's own mount there would come back in its place",
                ));
            }
            if root.ends_with("//deleted") {
                found.push(about(
                    format!("the mount at {}", point.display()),
                    "what is mounted there was removed from the host (stopping and starting the bay mounts the present one)",
                ));
            }
        }
    }
    Ok(found)
}

/// Mount point, kind of filesystem, mounted part of it, and device of each mount.
fn parsed(table: &str) -> impl Iterator<Item = (PathBuf, &str, &str, u64)> {
    table.lines().filter_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let parts: Vec<&str> = mount.split(' ').collect();
        let (major, minor) = parts.get(2)?.split_once(':')?;
        let device = makedev(major.parse().ok()?, minor.parse().ok()?);
        Some((PathBuf::from(parts.get(4)?), filesystem.split(' ').next()?, *parts.get(3)?, device))
    })
}

fn devices_of(table: &str, kind: impl Fn(&str) -> bool) -> HashSet<u64> {
    parsed(table).filter(|(_, is, _, _)| kind(is)).map(|(_, _, _, device)| device).collect()
}

fn namespaces(pid: i32) -> HashMap<&'static str, PathBuf> {
    let read = |name| fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
    SHARED.iter().filter_map(|&(name, _)| Some((name, read(name)?))).collect()
}

fn parent(pid: i32) -> Option<i32> {
    Process::read(pid, 0)?.field("PPid").parse().ok()
}

fn descends(pid: i32, first: i32, parents: &HashMap<i32, i32>) -> bool {
    let mut at = pid;
    // No line of ancestors is longer than the number of processes.
    for _ in 0..=parents.len() {
        match parents.get(&at) {
            Some(&above) if above == first => return true,
            Some(&above) => at = above,
            None => return false,
        }
    }
    false
}

/// Every process in a group or below it, by its pid on the host.
pub(super) fn processes_in(group: &Path) -> Vec<i32> {
    let mut found = Vec::new();
    let mut next = vec![group.to_owned()];
    while let Some(at) = next.pop() {
        let listed = fs::read_to_string(at.join("cgroup.procs")).unwrap_or_default();
        found.extend(listed.lines().filter_map(|pid| pid.parse::<i32>().ok()).filter(|pid| *pid > 0));
        let below = fs::read_dir(&at).into_iter().flatten().flatten();
        next.extend(below.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()));
    }
    found.retain(|pid| run_directory::process_start_ticks(*pid).is_ok());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found_at_every_depth() {
        let parents = HashMap::from([(10, 1), (11, 10), (12, 11), (20, 2), (30, 31), (31, 30)]);
        assert!(descends(12, 10, &parents));
        assert!(!descends(20, 10, &parents));
        assert!(!descends(30, 10, &parents));
    }

    #[test]
    fn mounts_that_would_be_restored_differently_are_reported() {
        let table = "\
1 0 0:47 /root / rw - btrfs /dev/loop0 rw
2 1 0:47 /workspace/q /q rw - btrfs /dev/loop0 rw
3 1 0:50 / /m rw - tmpfs none rw
4 1 0:50 /d/s//deleted /t rw - tmpfs none rw
5 1 0:60 / /o rw - overlay overlay ro,lowerdir=/etc:/home
6 1 0:61 / /r rw - ramfs none rw";
        let found = filesystem_obstacles(table, &HashSet::from([makedev(0, 47)]), &HashSet::new());
        let resources: Vec<&str> = found.iter().map(|obstacle| obstacle.resource.as_str()).collect();
        assert_eq!(
            resources,
            [
                "a mount at /t of something that was removed",
                "a filesystem of the kind overlay at /o",
                "a filesystem of the kind ramfs at /r"
            ]
        );
    }

    #[test]
    fn mounts_are_read_with_their_kind() {
        let table = "155 146 0:66 / /dev/mqueue rw,nosuid - mqueue none rw\n288 280 0:100 / /mnt rw - fuse.sshfs x rw";
        assert_eq!(devices_of(table, |kind| kind == "mqueue"), HashSet::from([makedev(0, 66)]));
        assert_eq!(parsed(table).map(|(_, kind, _, _)| kind).collect::<Vec<_>>(), ["mqueue", "fuse.sshfs"]);
    }
}
