//! Describes the processes in a group that hang in the kernel, for an error message.

use std::fs;
use std::path::Path;

/// Processes that are named.
const NAMED: usize = 3;
/// Depth of groups and number of processes that are examined: enough for a reason, not for a complete count.
const MAX_DEPTH: usize = 8;
const MAX_PROCESSES: usize = 10_000;

/// The processes in `dir` and below that are in uninterruptible sleep, and where in the kernel they wait.
pub(super) fn describe(dir: &Path) -> String {
    // PID 1 cannot end before the others, so it hangs only because they do.
    let (_, mut hanging) = below(&dir.join("execs"));
    if hanging.is_empty() {
        let left;
        (left, hanging) = below(dir);
        if hanging.is_empty() {
            return format!("{left} of them are left, and none says why");
        }
    }
    let more = match hanging.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let verb = if hanging.len() == 1 { "hangs" } else { "hang" };
    let named = hanging.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    format!("{named}{more} {verb} in the kernel (uninterruptible sleep)")
}

/// The number of processes, and which of them hang.
fn below(dir: &Path) -> (usize, Vec<String>) {
    let mut pids = Vec::new();
    collect(dir, 0, &mut pids);
    (pids.len(), pids.iter().filter_map(|pid| hangs(pid)).collect())
}

fn collect(dir: &Path, depth: usize, pids: &mut Vec<String>) {
    let listed = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    let room = MAX_PROCESSES.saturating_sub(pids.len());
    pids.extend(listed.lines().take(room).map(str::to_owned));
    if depth == MAX_DEPTH || pids.len() == MAX_PROCESSES {
        return;
    }
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), depth + 1, pids);
        }
    }
}

/// Name, pid and kernel function of a process in uninterruptible sleep.
fn hangs(pid: &str) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (name, state) = name_and_state(&stat)?;
    if state != 'D' {
        return None;
    }
    let place = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
    let place = match place.trim() {
        "" | "0" => String::new(),
        place => format!(" in {place}"),
    };
    Some(format!("{name} (process {pid} of the host{place})"))
}

/// The agent chooses the name, so all but plain characters are left out.
fn name_and_state(stat: &str) -> Option<(String, char)> {
    let (before, after) = stat.rsplit_once(')')?;
    let name = before.split_once('(')?.1;
    let plain = name.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').collect();
    Some((plain, after.trim_start().chars().next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_forge_its_state_or_colour_the_message() {
        assert_eq!(name_and_state("7 (cat) D 1 1 1"), Some(("cat".to_owned(), 'D')));
        assert_eq!(name_and_state("7 (x) D (\u{1b}[2J) S 1 1"), Some(("x) D ([2J".to_owned(), 'S')));
        assert_eq!(name_and_state("7 cat D"), None);
        assert_eq!(name_and_state(""), None);
    }

    #[test]
    fn a_group_without_stuck_processes_has_no_reason() {
        assert!(describe(Path::new("/nowhere")).contains("none says why"));
    }
}
