//! Moves PID 1 of a bay back to the group in which it was started.
//!
//! The guest clones commands into groups of their own, so the bay must be allowed to move its processes between its
//! groups. The kernel has no exception for PID 1. So root in the bay can move PID 1, or one of its threads, into a
//! group that it made itself, and freeze that group. Only the host can undo that.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bay_types::runtime::Moved;

use super::Hierarchies;

/// Threads of PID 1 that are checked; it has about two dozen.
const MAX_THREADS: usize = 256;
/// Characters of the group's path that are reported.
const MAX_GROUP: usize = 200;

impl Hierarchies {
    /// If PID 1 or one of its threads is in another group than its own, thaws it and moves it back. The result says
    /// whether it could be moved.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn reclaim_first_process(&self, group: &Path, pid: i32) -> io::Result<Option<Moved>> {
        let Some(found) = group_elsewhere(group, pid)? else { return Ok(None) };
        let bay = self.v2.join(group);
        let mut frozen = false;
        for at in found.ancestors().filter(|at| !at.as_os_str().is_empty()) {
            let at = bay.join(at);
            frozen |= is(&at.join("cgroup.freeze"), "1");
            // If a parent group was removed meanwhile, it freezes nothing.
            let _ = fs::write(at.join("cgroup.freeze"), "0");
        }
        let own = bay.join("guest");
        let back = || fs::write(own.join("cgroup.procs"), pid.to_string());
        let stays = back().or_else(|_| {
            // A group that enables controllers for its children contains no process. Nobody needs that for this group.
            let shared = fs::read_to_string(own.join("cgroup.subtree_control"))?;
            for controller in shared.split_ascii_whitespace() {
                fs::write(own.join("cgroup.subtree_control"), format!("-{controller}"))?;
            }
            back()
        });
        Ok(Some(Moved {
            group: found.to_string_lossy().chars().take(MAX_GROUP).collect(),
            frozen,
            stays: stays.err().map(|error| error.to_string()),
        }))
    }
}

fn is(file: &Path, value: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.trim_end() == value)
}

/// A group of the bay, other than `guest`, in which a thread of the process is.
fn group_elsewhere(group: &Path, pid: i32) -> io::Result<Option<PathBuf>> {
    for thread in fs::read_dir(format!("/proc/{pid}/task"))?.flatten().take(MAX_THREADS) {
        // The thread may have ended.
        let Ok(groups) = fs::read_to_string(thread.path().join("cgroup")) else { continue };
        if let Some(below) = below(group, &groups).filter(|below| *below != Path::new("guest")) {
            return Ok(Some(below.to_owned()));
        }
    }
    Ok(None)
}

/// The path of a process's group below the bay's group, from its list of groups.
fn below<'a>(group: &Path, groups: &'a str) -> Option<&'a Path> {
    let at = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    Path::new(at.strip_prefix('/')?).strip_prefix(group).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_in_its_group_or_elsewhere() {
        let group = Path::new("workbay/d1/bay_1");
        let groups = |at: &str| format!("4:memory:/workbay/d1/bay_1\n0::{at}\n");
        assert_eq!(below(group, &groups("/workbay/d1/bay_1/guest")), Some(Path::new("guest")));
        assert_eq!(below(group, &groups("/workbay/d1/bay_1/execs/x y")), Some(Path::new("execs/x y")));
        // A group of another bay, or a list from a namespace in which the bay's groups have other names: the path is
        // unknown.
        assert_eq!(below(group, &groups("/workbay/d1/bay_11/guest")), None);
        assert_eq!(below(group, &groups("/../workbay/d1/bay_1/guest")), None);
        assert_eq!(below(group, "1:name=systemd:/\n"), None);
    }
}
