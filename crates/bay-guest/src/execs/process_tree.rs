//! The processes of an exec: found by its cgroup leaf or, if there is none, in `/proc`.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use bay_sys::spawn::signal_process;
use bay_types::ExecId;
use bay_types::exec::ExecSpec;
use bay_types::guest::SERVICE_MARK;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

/// Depth of groups below a leaf that are visited. Processes in the bay can make groups there.
const MAX_DEPTH: usize = 16;
/// Most bytes that are read of `cgroup.procs`.
const MAX_FILE: u64 = 4 << 20;
/// Most bytes that are read of a process's environment. The exec's id is among the first.
const MAX_ENVIRON: u64 = 1 << 20;
/// Rounds of killing what `/proc` shows. To kill a tree that forks faster than this, a cgroup is needed.
const KILL_ROUNDS: usize = 20;
const SIGKILL: i32 = 9;

/// The cgroup v2 group of one exec.
#[derive(Debug)]
pub(crate) struct CgroupLeaf {
    parent: Arc<OwnedFd>,
    name: String,
    /// Closed when the group is removed, even if the exec is kept in memory longer: CRIU cannot capture a bay in which
    /// the directory of a removed group is open.
    dir: Mutex<Option<Arc<OwnedFd>>>,
}

impl CgroupLeaf {
    pub(crate) fn create(parent: &Arc<OwnedFd>, id: ExecId) -> io::Result<Self> {
        let name = id.to_string();
        match rustix::fs::mkdirat(parent, &name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        let dir = open_dir((**parent).as_fd(), name.as_bytes())?;
        Ok(Self { parent: Arc::clone(parent), name, dir: Mutex::new(Some(Arc::new(dir))) })
    }

    /// Writes the name of the exec's service on the group, so that the daemon can read it from outside the bay. Some
    /// kernels do not support this; then the daemon does not know the service.
    pub(crate) fn mark_service(&self, spec: &ExecSpec) {
        if let (Some(dir), Some((_, name))) = (self.dir(), spec.env.first()) {
            let _ = rustix::fs::fsetxattr(&*dir, SERVICE_MARK, name.as_bytes(), XattrFlags::empty());
        }
    }

    /// Its directory, until the group is removed.
    pub(crate) fn dir(&self) -> Option<Arc<OwnedFd>> {
        self.dir.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn open_dir(&self) -> io::Result<Arc<OwnedFd>> {
        self.dir().ok_or_else(|| Errno::NODEV.into())
    }

    pub(crate) fn is_of(&self, id: ExecId) -> bool {
        self.name == id.to_string()
    }

    /// Kills every process in the group and below, including processes that are just being forked.
    pub(crate) fn kill(&self) -> io::Result<()> {
        let dir = self.open_dir()?;
        let file = rustix::fs::openat(&dir, "cgroup.kill", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&file, b"1")?;
        Ok(())
    }

    /// Every process in the group and below, down to [`MAX_DEPTH`].
    pub(crate) fn pids(&self) -> Vec<i32> {
        let mut pids = Vec::new();
        if let Some(dir) = self.dir() {
            collect_pids((*dir).as_fd(), 0, &mut pids);
        }
        pids
    }

    /// Reads a small file of the group at once: the kernel generates such a file as a whole.
    pub(crate) fn read<'a>(&self, file: &str, buffer: &'a mut [u8]) -> Option<&'a str> {
        let dir = self.dir()?;
        let file = rustix::fs::openat(&dir, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let read = rustix::io::read(&file, &mut *buffer).ok()?;
        std::str::from_utf8(&buffer[..read]).ok()
    }

    /// Removes the group and all groups below it, if no process is left in them. Returns false if one is left.
    pub(crate) fn remove(&self) -> bool {
        let removed = remove_groups((*self.parent).as_fd(), self.name.as_bytes(), 0);
        if removed {
            *self.dir.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        removed
    }
}

fn open_dir(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

fn for_each_group(dir: BorrowedFd<'_>, mut each: impl FnMut(&[u8])) {
    let Ok(entries) = Dir::read_from(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_bytes();
        if entry.file_type() == FileType::Directory && name != b"." && name != b".." {
            each(name);
        }
    }
}

fn collect_pids(dir: BorrowedFd<'_>, depth: usize, pids: &mut Vec<i32>) {
    if let Some(text) = read_at(dir, "cgroup.procs") {
        // 0 is a process of another PID namespace, so it is not the exec's.
        pids.extend(
            String::from_utf8_lossy(&text)
                .lines()
                .filter_map(|l| l.parse().ok())
                .filter(|pid: &i32| *pid > 0),
        );
    }
    if depth < MAX_DEPTH {
        for_each_group(dir, |name| {
            if let Ok(inner) = open_dir(dir, name) {
                collect_pids(inner.as_fd(), depth + 1, pids);
            }
        });
    }
}

fn remove_groups(parent: BorrowedFd<'_>, name: &[u8], depth: usize) -> bool {
    let remove = || match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => true,
        Err(_) => false,
    };
    if remove() {
        return true;
    }
    let mut had_groups = false;
    if depth < MAX_DEPTH
        && let Ok(dir) = open_dir(parent, name)
    {
        for_each_group(dir.as_fd(), |inner| {
            had_groups = true;
            remove_groups(dir.as_fd(), inner, depth + 1);
        });
    }
    had_groups && remove()
}

fn read_at(dir: BorrowedFd<'_>, name: &str) -> Option<Vec<u8>> {
    let file = rustix::fs::openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = Vec::new();
    std::fs::File::from(file).take(MAX_FILE).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// The processes of an exec without a leaf: the processes in the leader's session, their descendants, and processes
/// whose initial environment has the exec's id.
pub(crate) fn pids_from_proc(leader: Option<i32>, id: ExecId) -> Vec<i32> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let mark = format!("{}={id}\0", super::start::EXEC_ID_VARIABLE);
    let mut parents = HashMap::new();
    let mut found: HashSet<i32> = HashSet::new();
    let Ok(proc) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    for entry in proc.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        if pid == own {
            continue;
        }
        let Some((parent, session)) =
            std::fs::read_to_string(entry.path().join("stat")).ok().as_deref().and_then(parent_and_session)
        else {
            continue;
        };
        parents.insert(pid, parent);
        let marked = || {
            let mut environ = Vec::new();
            std::fs::File::open(entry.path().join("environ"))
                .and_then(|file| file.take(MAX_ENVIRON).read_to_end(&mut environ))
                .is_ok_and(|_| environ.windows(mark.len()).any(|w| w == mark.as_bytes()))
        };
        if leader.is_some_and(|l| l == pid || l == session) || marked() {
            found.insert(pid);
        }
    }
    loop {
        let more: Vec<i32> = parents
            .iter()
            .filter(|(pid, parent)| !found.contains(pid) && found.contains(parent))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            break;
        }
        found.extend(more);
    }
    found.into_iter().collect()
}

/// Kills what [`pids_from_proc`] finds, until it finds nothing new, at most [`KILL_ROUNDS`] times.
pub(crate) fn kill_from_proc(leader: Option<i32>, id: ExecId) {
    let mut killed = HashSet::new();
    for _ in 0..KILL_ROUNDS {
        let mut fresh = false;
        for pid in leader_first(pids_from_proc(leader, id), leader) {
            fresh |= killed.insert(pid);
            // The process may have ended already.
            let _ = signal_process(pid, SIGKILL);
        }
        if !fresh {
            return;
        }
    }
}

/// The order in which a tree is signalled: the leader first. If a shell's children end first, the shell ends by itself
/// and reports success.
pub(crate) fn leader_first(mut pids: Vec<i32>, leader: Option<i32>) -> Vec<i32> {
    pids.sort_by_key(|pid| Some(*pid) != leader);
    pids
}

/// Fields 4 and 6 of `/proc/PID/stat`. The name in field 2 may contain anything, so fields are counted after it.
fn parent_and_session(stat: &str) -> Option<(i32, i32)> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some((parent, session))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_cannot_forge_its_parent() {
        assert_eq!(parent_and_session("12 (a) S 99 99 99) S 7 8 9 0"), Some((7, 9)));
        assert_eq!(parent_and_session("12 (sh"), None);
        assert_eq!(parent_and_session(""), None);
    }
}
