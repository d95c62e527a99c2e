//! Chooses the host's processors on which a bay runs, so that `nproc` inside is correct.
//!
//! With only a quota, programs in a bay of two processors on a host of sixty-four would start sixty-four threads. With
//! a cpuset controller, the set belongs to the group, and the bay's root cannot extend it. Otherwise it is an affinity
//! that all processes of the bay inherit: programs see the same, root could extend it, and the quota still holds.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::limits::write;
use super::{Hierarchies, STEP};
use crate::failure::{Failure, Try};

/// How often the threads of a running bay are updated: a thread that starts meanwhile inherits the affinity of its
/// parent, which may have been the old one.
const ROUNDS: usize = 3;

impl Hierarchies {
    /// Sets the processors of the bay's groups. Version 1 accepts no process in a group without processors, so there
    /// this is always done.
    pub(super) fn set_processors(
        &self,
        group: &Path,
        cpus: Option<f64>,
        turn: u32,
        fresh: bool,
    ) -> Result<(), Failure> {
        if let Some(root) = self.v1_root("cpuset") {
            let available = list_in(&root.join("cpuset.effective_cpus"))
                .or_else(|| list_in(&root.join("cpuset.cpus")))
                .ok_or_else(|| unreadable(root))?;
            let memory = fs::read_to_string(root.join("cpuset.mems"))
                .at(STEP, || format!("could not read {}", root.join("cpuset.mems").display()))?;
            let mut at = root.to_owned();
            for part in group {
                at.push(part);
                let chosen =
                    if at == root.join(group) { choose(&available, cpus, turn) } else { available.clone() };
                write(&at.join("cpuset.cpus"), &text(&chosen))?;
                write(&at.join("cpuset.mems"), memory.trim())?;
            }
            return Ok(());
        }
        let own = self.v2.join(group);
        if own.join("cpuset.cpus").exists() {
            if cpus.is_none() && fresh {
                return Ok(());
            }
            let above = own.parent().unwrap_or(&own);
            let available = list_in(&above.join("cpuset.cpus.effective")).ok_or_else(|| unreadable(above))?;
            // Never an empty list, which would mean the list of the parent group; a group with processes does not
            // accept it.
            return write(&own.join("cpuset.cpus"), &text(&choose(&available, cpus, turn)));
        }
        // The first process of a fresh group sets its own affinity before it clones.
        if fresh { Ok(()) } else { self.set_affinity_of_all(group, cpus, turn) }
    }

    /// Sets the affinity of the calling process, which its children inherit, if there is no cpuset controller.
    pub(crate) fn take_affinity(&self, group: &Path, cpus: Option<f64>, turn: u32) -> io::Result<()> {
        let has_cpuset = self.v1_root("cpuset").is_some() || self.v2.join(group).join("cpuset.cpus").exists();
        if cpus.is_none() || has_cpuset {
            return Ok(());
        }
        Ok(sched_setaffinity(None, &affinity(cpus, turn)?)?)
    }

    fn set_affinity_of_all(&self, group: &Path, cpus: Option<f64>, turn: u32) -> Result<(), Failure> {
        let set = affinity(cpus, turn).at(STEP, || "could not list the host's processors".to_owned())?;
        let mut done = HashSet::new();
        for _ in 0..ROUNDS {
            let fresh: Vec<i32> =
                threads(&self.v2.join(group)).into_iter().filter(|id| done.insert(*id)).collect();
            for id in fresh {
                // The thread may have ended.
                let _ = sched_setaffinity(Pid::from_raw(id), &set);
            }
        }
        Ok(())
    }
}

fn unreadable(dir: &Path) -> Failure {
    let what = format!("could not read the processors of {}", dir.display());
    Failure::new(STEP, what, io::Error::from(io::ErrorKind::InvalidData))
}

/// The bay's processors, of those that are online on the host.
fn affinity(cpus: Option<f64>, turn: u32) -> io::Result<CpuSet> {
    let online = list_in(Path::new("/sys/devices/system/cpu/online"))
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    let mut set = CpuSet::new();
    for cpu in choose(&online, cpus, turn).into_iter().filter(|cpu| *cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    Ok(set)
}

/// As many processors as the quota can use. `turn` decides which, so that bays are spread over the host's.
fn choose(available: &[usize], cpus: Option<f64>, turn: u32) -> Vec<usize> {
    let Some(cpus) = cpus else { return available.to_vec() };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of processors, rounded up"
    )]
    let count = (cpus.ceil() as usize).clamp(1, available.len().max(1));
    let start = (turn as usize).saturating_mul(count);
    let mut chosen: Vec<usize> =
        (0..count).filter_map(|i| available.get((start + i) % available.len().max(1)).copied()).collect();
    chosen.sort_unstable();
    chosen
}

fn text(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

fn list_in(file: &Path) -> Option<Vec<usize>> {
    let list = parse_list(&fs::read_to_string(file).ok()?)?;
    (!list.is_empty()).then_some(list)
}

/// Parses `0-3,8`, as the kernel writes it.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut list = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= CpuSet::MAX_CPU {
            return None;
        }
        list.extend(first..=last);
    }
    Some(list)
}

/// Every thread in a group and the groups below it.
fn threads(group: &Path) -> Vec<i32> {
    let mut found = Vec::new();
    let mut groups: Vec<PathBuf> = vec![group.to_owned()];
    while let Some(dir) = groups.pop() {
        let processes = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        for process in processes.lines() {
            let tasks = fs::read_dir(format!("/proc/{process}/task"));
            found.extend(
                tasks
                    .into_iter()
                    .flatten()
                    .flatten()
                    .filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok()),
            );
        }
        let below = fs::read_dir(&dir).into_iter().flatten().flatten();
        groups.extend(
            below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(parse_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("5"), Some(vec![5]));
        assert_eq!(parse_list("\n"), Some(vec![]));
        assert_eq!(parse_list("a-b"), None);
        assert_eq!(parse_list("0-99999999999"), None);
    }

    #[test]
    fn a_bay_gets_as_many_processors_as_its_quota_could_fill() {
        let host = [0, 1, 2, 3];
        assert_eq!(choose(&host, None, 7), host);
        assert_eq!(choose(&host, Some(0.5), 0), [0]);
        assert_eq!(choose(&host, Some(1.0), 1), [1]);
        assert_eq!(choose(&host, Some(1.5), 0), [0, 1]);
        assert_eq!(choose(&host, Some(1.5), 1), [2, 3]);
        assert_eq!(choose(&host, Some(3.0), 1), [0, 1, 3]);
        assert_eq!(choose(&host, Some(64.0), 9), host);
        assert_eq!(choose(&host, Some(2.0), u32::MAX).len(), 2);
    }

    #[test]
    fn bays_of_one_processor_are_spread_over_the_host() {
        let host: Vec<usize> = (0..8).collect();
        let used: HashSet<usize> = (0..8).flat_map(|turn| choose(&host, Some(1.0), turn)).collect();
        assert_eq!(used.len(), 8);
    }
}
