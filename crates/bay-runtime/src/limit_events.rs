//! How often the kernel enforced a bay's limits, from the host's side of its groups. A bay cannot write these files.

use std::fs;
use std::path::Path;

use bay_types::stats::LimitEvents;

use crate::cgroup::Hierarchies;

/// Reads the counters of a bay's group. A counter that this host does not have is zero.
#[must_use]
pub fn limit_events(groups: &Hierarchies, group: &Path) -> LimitEvents {
    let v1 = |controller: &str| groups.v1.iter().find(|(name, _)| name == controller).map(|(_, root)| root);
    let read = |controller: &str, v1_file: &str, v2_file: &str, key: &str| {
        let in_v1 = v1(controller).map(|root| root.join(group).join(v1_file));
        let in_v2 = groups.v2.join(group).join(v2_file);
        // Which of the files exists depends on where the controller is.
        in_v1
            .into_iter()
            .chain([in_v2])
            .find_map(|path| value(&fs::read_to_string(path).ok()?, key))
            .unwrap_or(0)
    };
    LimitEvents {
        oom_kills: read("memory", "memory.oom_control", "memory.events", "oom_kill"),
        forks_refused: read("pids", "pids.events", "pids.events", "max"),
    }
}

/// The number after a key, in a file of `key number` lines.
fn value(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_from_whichever_version_has_the_controller() {
        let dir = tempfile::tempdir().unwrap();
        let (v1, v2) = (dir.path().join("v1"), dir.path().join("v2"));
        let group = Path::new("workbay/bay");
        for root in [&v1, &v2] {
            fs::create_dir_all(root.join(group)).unwrap();
        }
        let pure = Hierarchies { v2: v2.clone(), v1: vec![] };
        assert_eq!(limit_events(&pure, group), LimitEvents::default());
        fs::write(
            v2.join(group).join("memory.events"),
            "low 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 9\n",
        )
        .unwrap();
        fs::write(v2.join(group).join("pids.events"), "max 4\n").unwrap();
        assert_eq!(limit_events(&pure, group), LimitEvents { oom_kills: 3, forks_refused: 4 });
        let oom_control = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n";
        fs::write(v1.join(group).join("memory.oom_control"), oom_control).unwrap();
        let hybrid = Hierarchies { v2, v1: vec![("memory".to_owned(), v1.clone()), ("pids".to_owned(), v1)] };
        assert_eq!(limit_events(&hybrid, group), LimitEvents { oom_kills: 5, forks_refused: 4 });
    }
}
