//! Leftovers of a daemon or of the whole suite on the host. Only names of the suite are considered.
//!
//! | kind        | how it is recognised                                                                  |
//! |-------------|---------------------------------------------------------------------------------------|
//! | process     | its executable or root lies below a place, it is a `bay` for a place, or by its cgroup |
//! | mount       | its mount point lies below a place (pinned network namespaces are mounts too)          |
//! | cgroup      | `workbay/<daemon id>` in any hierarchy                                                 |
//! | loop device | its backing file lies below a place                                                    |
//! | subvolume   | a bay's, in a daemon's corner of a pool; after the suite, any corner of the shared pool |

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::wait::{PATIENCE, within};

/// A leftover.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leak {
    Process {
        pid: i32,
        what: String,
    },
    Mount(PathBuf),
    Cgroup(PathBuf),
    LoopDevice {
        device: PathBuf,
        file: PathBuf,
    },
    Subvolume(PathBuf),
    /// A file or directory at a path that is made of a process id. Those come round, and then a later test finds it.
    Path(PathBuf),
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Leak::Process { pid, what } => write!(f, "process {pid}: {what}"),
            Leak::Mount(at) => write!(f, "mount at {}", at.display()),
            Leak::Cgroup(at) => write!(f, "cgroup {}", at.display()),
            Leak::LoopDevice { device, file } => write!(f, "{} on {}", device.display(), file.display()),
            Leak::Subvolume(at) => write!(f, "subvolume {}", at.display()),
            Leak::Path(at) => write!(f, "{}", at.display()),
        }
    }
}

/// Processes that belong to a place or to one of the daemons, but not the caller and its ancestors.
#[must_use]
pub fn processes(place: &Path, daemons: &BTreeSet<String>) -> Vec<Leak> {
    let mine = ancestors();
    let mut found = Vec::new();
    for pid in all_pids() {
        if mine.contains(&pid) {
            continue;
        }
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let Some(why) = belongs(&proc, place, daemons) else { continue };
        if is_over(&proc) {
            continue;
        }
        found.push(Leak::Process { pid, what: format!("{} ({why})", command_line(&proc)) });
    }
    found
}

/// A zombie holds no resources, and disappears when its parent reaps it. A process without memory is about to become
/// one. On a busy machine, some of two thousand killed processes are still in that state after their groups are gone.
fn is_over(proc: &Path) -> bool {
    let status = fs::read_to_string(proc.join("status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    let zombie = state.is_none_or(|state| state.trim_start().starts_with(['Z', 'X']));
    zombie || !status.lines().any(|line| line.starts_with("VmSize:"))
}

fn belongs(proc: &Path, place: &Path, daemons: &BTreeSet<String>) -> Option<String> {
    let groups = fs::read_to_string(proc.join("cgroup")).unwrap_or_default();
    if let Some(id) = daemons.iter().find(|id| groups.contains(&format!("workbay/{id}"))) {
        return Some(format!("in a cgroup of daemon {id}"));
    }
    for link in ["exe", "root"] {
        if fs::read_link(proc.join(link)).is_ok_and(|to| to.starts_with(place)) {
            return Some(format!("its {link} lies below {}", place.display()));
        }
    }
    let first = first_argument(proc);
    let ours = ["bay", "bay-copy"].iter().any(|name| first.ends_with(&format!("/{name}")));
    (ours && (command_line(proc).contains(&*place.to_string_lossy()) || environment_names(proc, place)))
        .then(|| "a bay command of ours".to_owned())
}

fn environment_names(proc: &Path, place: &Path) -> bool {
    let environment = fs::read(proc.join("environ")).unwrap_or_default();
    let wanted = format!("BAY_DATA_DIR={}", place.display());
    String::from_utf8_lossy(&environment)
        .split('\0')
        .any(|pair| pair.strip_prefix(&wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

fn first_argument(proc: &Path) -> String {
    let bytes = fs::read(proc.join("cmdline")).unwrap_or_default();
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

fn command_line(proc: &Path) -> String {
    let bytes = fs::read(proc.join("cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim_end().to_owned()
}

fn all_pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn ancestors() -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let mut pid = i32::try_from(std::process::id()).unwrap_or(0);
    while pid > 0 && found.insert(pid) {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        pid = parent.unwrap_or(0);
    }
    found
}

/// Mount points below a place, innermost last.
#[must_use]
pub fn mounts(place: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    points.filter(|point| point.starts_with(place)).collect()
}

/// Decodes a path of the mount table, which has blanks and other characters as three octal digits.
fn unescape(text: &str) -> PathBuf {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        match rest.get(at + 1..at + 4).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(char::from(byte));
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    PathBuf::from(out)
}

/// Roots of every cgroup hierarchy of this host.
fn cgroup_roots() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let of_cgroups = |line: &&str| {
        line.split_once(" - ")
            .is_some_and(|(_, rest)| rest.starts_with("cgroup ") || rest.starts_with("cgroup2 "))
    };
    table.lines().filter(of_cgroups).filter_map(|line| line.split(' ').nth(4)).map(unescape).collect()
}

/// Groups of bays of these daemons, in any hierarchy. The daemons' own empty groups do not count.
#[must_use]
pub fn bay_cgroups(daemons: &BTreeSet<String>) -> Vec<PathBuf> {
    daemon_cgroups(daemons).iter().flat_map(|group| subdirectories(group)).collect()
}

/// Groups of these daemons, in any hierarchy.
#[must_use]
pub fn daemon_cgroups(daemons: &BTreeSet<String>) -> Vec<PathBuf> {
    let roots = cgroup_roots();
    let all = roots.iter().flat_map(|root| daemons.iter().map(move |id| root.join("workbay").join(id)));
    all.filter(|group| group.is_dir()).collect()
}

fn subdirectories(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Loop devices whose backing file lies below a place.
#[must_use]
pub fn loop_devices(place: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").into_iter().flatten().filter_map(Result::ok) {
        let file = entry.path().join("loop/backing_file");
        let Ok(file) = fs::read_to_string(file) else { continue };
        let file = PathBuf::from(file.trim_end().trim_end_matches(" (deleted)"));
        if file.starts_with(place) {
            found.push((Path::new("/dev").join(entry.file_name()), file));
        }
    }
    found
}

/// The root of a pool's filesystem.
#[must_use]
pub fn pool_root(pool: &Path) -> PathBuf {
    let mounted = pool.join("mnt");
    if mounted.is_dir() { mounted } else { pool.to_owned() }
}

/// The corner of a daemon in a pool.
#[must_use]
pub fn corner(pool: &Path, daemon: &str) -> PathBuf {
    pool_root(pool).join("corners").join(daemon)
}

/// Subvolumes of bays that remain in a daemon's corner.
#[must_use]
pub fn bay_subvolumes(pool: &Path, daemon: &str) -> Vec<PathBuf> {
    subdirectories(&corner(pool, daemon).join("bays"))
}

/// The daemon's id, read from its database file. The row `daemon_id` is written before the file is renamed to its final
/// name, so it is always in the main file, and its value follows its key.
#[must_use]
pub fn daemon_id(data_dir: &Path) -> Option<String> {
    const KEY: &[u8] = b"daemon_id";
    const LENGTH: usize = 16;
    let bytes = fs::read(data_dir.join("bay.db")).ok()?;
    let after_key = |at: usize| bytes.get(at + KEY.len()..at + KEY.len() + LENGTH);
    let keys = bytes.windows(KEY.len()).enumerate().filter(|(_, window)| *window == KEY);
    let hex = |value: &&[u8]| value.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let value = keys.filter_map(|(at, _)| after_key(at)).find(hex)?;
    String::from_utf8(value.to_vec()).ok()
}

/// Everything that a stopped daemon without bays must not leave.
#[must_use]
pub fn of_daemon(data_dir: &Path, pool: &Path, daemon: &str) -> Vec<Leak> {
    let daemons = BTreeSet::from([daemon.to_owned()]);
    let mut found = processes(data_dir, &daemons);
    found.extend(mounts(data_dir).into_iter().map(Leak::Mount));
    found.extend(bay_cgroups(&daemons).into_iter().map(Leak::Cgroup));
    found.extend(bay_subvolumes(pool, daemon).into_iter().map(Leak::Subvolume));
    found
}

/// Everything below a suite's directory that must be gone after all its tests, except the shared pool itself.
#[must_use]
pub fn of_suite(dir: &Path) -> Vec<Leak> {
    let daemons = daemons_of_suite(dir);
    let pool = dir.join("pool");
    let mut found = processes(dir, &daemons);
    let shared = pool.join("mnt");
    found.extend(mounts(dir).into_iter().filter(|point| *point != shared).map(Leak::Mount));
    found.extend(daemon_cgroups(&daemons).into_iter().map(Leak::Cgroup));
    found.extend(subdirectories(&pool_root(&pool).join("corners")).into_iter().map(Leak::Subvolume));
    let shared_file = pool.join("pool.img");
    for (device, file) in loop_devices(dir) {
        if file != shared_file {
            found.push(Leak::LoopDevice { device, file });
        }
    }
    let is_shared = |part: &PathBuf| {
        let name = part.file_name().unwrap_or_default().to_string_lossy();
        name == "pool" || name.starts_with("image")
    };
    let parts = subdirectories(dir).into_iter().filter(|part| !is_shared(part));
    let entries = parts.flat_map(|part| fs::read_dir(part).into_iter().flatten().flatten());
    found.extend(entries.map(|entry| Leak::Path(entry.path())));
    found
}

/// Ids of all daemons that ran in a suite.
#[must_use]
pub fn daemons_of_suite(dir: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(dir.join("daemons")).unwrap_or_default();
    let mut ids: BTreeSet<String> = text.lines().map(str::to_owned).collect();
    // A test that was killed may not have recorded its daemon.
    ids.extend(subdirectories(&dir.join("d")).iter().filter_map(|data_dir| daemon_id(data_dir)));
    ids.retain(|id| !id.is_empty());
    ids
}

/// Ends processes by their id and waits until they are gone.
pub fn end_processes(found: &[Leak]) {
    let pids: Vec<i32> = found
        .iter()
        .filter_map(|leak| if let Leak::Process { pid, .. } = leak { Some(*pid) } else { None })
        .collect();
    for pid in &pids {
        if let Some(pid) = Pid::from_raw(*pid) {
            // It may have ended meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    let gone = || pids.iter().all(|pid| ended(*pid)).then_some(());
    let _ = within(PATIENCE, gone);
}

/// Whether a process has ended or is a zombie. It has not while other threads of it still run: they hold its files and
/// locks.
#[must_use]
pub fn ended(pid: i32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(_) => true,
        Ok(stat) => {
            let zombie =
                stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']));
            zombie && fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count) <= 1
        }
    }
}

/// Forcibly removes everything of these daemons and below this place, after a test that failed or a run that was
/// interrupted. Never used to make a leak check pass.
pub fn clear(place: &Path, daemons: &BTreeSet<String>) {
    // Thaw frozen groups first: in version 1 a frozen process does not die.
    for group in bay_cgroups(daemons) {
        let _ = fs::write(group.join("cgroup.freeze"), "0");
        let _ = fs::write(group.join("freezer.state"), "THAWED");
        let _ = fs::write(group.join("cgroup.kill"), "1");
    }
    for _ in 0..5 {
        let left = processes(place, daemons);
        if left.is_empty() {
            break;
        }
        end_processes(&left);
    }
    for group in daemon_cgroups(daemons) {
        let _ = within(PATIENCE, || remove_group(&group).then_some(()));
    }
}

fn remove_group(group: &Path) -> bool {
    for child in subdirectories(group) {
        if !remove_group(&child) {
            return false;
        }
    }
    fs::remove_dir(group).is_ok() || !group.exists()
}

/// Unmounts everything below a place, innermost first.
pub fn unmount_below(place: &Path) {
    for point in mounts(place).into_iter().rev() {
        if unmount(&point, UnmountFlags::NOFOLLOW).is_err() {
            let _ = unmount(&point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
    }
}

/// Unmounts a pool and frees its loop device. The file stays.
pub fn close_pool(pool: &Path) {
    unmount_below(pool);
    let free = || {
        let devices = loop_devices(pool);
        for (device, _) in &devices {
            let _ = Command::new("losetup").arg("-d").arg(device).output();
        }
        devices.is_empty().then_some(())
    };
    let _ = within(PATIENCE, free);
}

/// Deletes a directory of a btrfs filesystem with all subvolumes in it.
pub fn delete_tree(dir: &Path) {
    if !dir.exists() {
        return;
    }
    // Innermost first. For a plain directory the call fails.
    for child in subdirectories(dir) {
        delete_tree(&child);
    }
    use std::os::unix::fs::MetadataExt;
    /// Inode of the root of every btrfs subvolume.
    const SUBVOLUME_INODE: u64 = 256;
    if fs::symlink_metadata(dir).is_ok_and(|meta| meta.ino() == SUBVOLUME_INODE) {
        let _ = Command::new("btrfs").args(["property", "set", "-f"]).arg(dir).args(["ro", "false"]).output();
        let _ = Command::new("btrfs").args(["subvolume", "delete"]).arg(dir).output();
    }
    let _ = fs::remove_dir_all(dir);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_in_the_mount_table_are_decoded() {
        assert_eq!(unescape("/tmp/a\\040b\\134c"), Path::new("/tmp/a b\\c"));
    }

    #[test]
    fn a_running_process_below_a_place_is_found_and_an_unrelated_one_is_not() {
        let place = tempfile::tempdir().unwrap();
        let copy = place.path().join("sleep");
        fs::copy("/bin/sleep", &copy).unwrap();
        let mut child = Command::new(&copy).arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let found = within(PATIENCE, || {
            let found = processes(place.path(), &BTreeSet::new());
            (!found.is_empty()).then_some(found)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(
            matches!(found.as_deref(), Some([Leak::Process { pid: seen, .. }]) if *seen == pid),
            "{found:?}"
        );
        assert_eq!(processes(place.path(), &BTreeSet::new()), []);
    }
}
