//! What a bay uses, from the host's side of its groups.
//!
//! Each value comes from the version that has the controller, version 2 first. The agent may make groups with the names
//! of missing files; these cannot be read as files and count as missing.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use bay_types::stats::{BayStats, IoStats, Pressure, Pressures, keyed};

use super::Hierarchies;

/// Longest file that is read: `io.stat` has a line per disk.
const MAX_FILE: u64 = 64 * 1024;
/// Version 1 writes "no limit" as the largest number of whole pages. A value beyond this is no limit.
const V1_UNLIMITED: u64 = 1 << 62;

impl Hierarchies {
    /// What the bay uses now. `pid` is its PID 1 on the host, whose own reading and writing is reported if the host
    /// counts none for the group.
    #[must_use]
    pub fn stats(&self, group: &Path, pid: Option<i32>) -> BayStats {
        let v2 = Files(Some(self.v2.join(group)));
        let v1 = |controller: &str| {
            Files(self.v1_groups(group).find(|(name, _)| *name == controller).map(|(_, path)| path))
        };
        let (cpu, memory, pids) = (v1("cpu"), v1("memory"), v1("pids"));

        let times = v2.text("cpu.stat").unwrap_or_default();
        let of_times = |key| keyed(&times, key);
        let memory_limit = v2
            .number("memory.max")
            .or_else(|| memory.number("memory.limit_in_bytes").filter(|bytes| *bytes < V1_UNLIMITED));
        BayStats {
            cpu_us: of_times("usage_usec"),
            user_us: of_times("user_usec"),
            system_us: of_times("system_usec"),
            throttled_us: of_times("throttled_usec")
                .or_else(|| Some(cpu.keyed("cpu.stat", "throttled_time")? / 1000)),
            memory_bytes: v2.number("memory.current").or_else(|| memory.number("memory.usage_in_bytes")),
            memory_peak_bytes: v2
                .number("memory.peak")
                .or_else(|| memory.number("memory.max_usage_in_bytes")),
            memory_limit_bytes: memory_limit,
            oom_kills: v2
                .keyed("memory.events", "oom_kill")
                .or_else(|| memory.keyed("memory.oom_control", "oom_kill")),
            pids: v2.number("pids.current").or_else(|| pids.number("pids.current")),
            pids_limit: v2.number("pids.max").or_else(|| pids.number("pids.max")),
            io: self.io(group, &v2, pid),
            pressure: Pressures {
                cpu: v2.pressure("cpu.pressure"),
                memory: v2.pressure("memory.pressure"),
                io: v2.pressure("io.pressure"),
            },
        }
    }

    /// The anonymous and shared memory of a bay, without caches, which are no part of a checkpoint.
    #[must_use]
    pub fn memory_held(&self, group: &Path) -> Option<u64> {
        let v1 = self.v1_groups(group).find(|(name, _)| *name == "memory").map(|(_, path)| path);
        let sum = |text: &str, keys: [&str; 2]| keys.iter().map(|key| keyed(text, key)).sum::<Option<u64>>();
        let told = |files: &Files, keys| sum(&files.text("memory.stat")?, keys);
        told(&Files(Some(self.v2.join(group))), ["anon", "shmem"])
            .or_else(|| told(&Files(v1), ["total_rss", "total_shmem"]))
    }

    fn io(&self, group: &Path, v2: &Files, pid: Option<i32>) -> Option<IoStats> {
        if let Some(text) = v2.text("io.stat") {
            return Some(IoStats::parse_v2(&text));
        }
        let v1 = Files(self.v1_groups(group).find(|(name, _)| *name == "blkio").map(|(_, path)| path));
        let counted = || {
            let bytes = v1.text("blkio.throttle.io_service_bytes_recursive")?;
            IoStats::parse_v1(&bytes, &v1.text("blkio.throttle.io_serviced_recursive")?)
        };
        counted().or_else(|| IoStats::parse_process(&read(&PathBuf::from(format!("/proc/{}/io", pid?)))?))
    }
}

/// The files of one group, which may not exist.
struct Files(Option<PathBuf>);

impl Files {
    fn text(&self, file: &str) -> Option<String> {
        read(&self.0.as_ref()?.join(file))
    }

    fn number(&self, file: &str) -> Option<u64> {
        self.text(file)?.trim().parse().ok()
    }

    fn keyed(&self, file: &str, key: &str) -> Option<u64> {
        keyed(&self.text(file)?, key)
    }

    fn pressure(&self, file: &str) -> Option<Pressure> {
        Pressure::parse(&self.text(file)?)
    }
}

fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_FILE).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn on_a_hybrid_host_each_value_comes_from_the_version_that_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        write(&at("v2/g/cpu.stat"), "usage_usec 30\nuser_usec 20\nsystem_usec 10\n");
        write(
            &at("v2/g/io.pressure"),
            "some avg10=0.10 avg60=0.0 avg300=0.0 total=5\nfull avg10=0.0 avg60=0.0 avg300=0.0 total=4\n",
        );
        // A group that the agent made with the name of a missing file.
        fs::create_dir_all(at("v2/g/memory.current")).unwrap();
        write(&at("cpu/g/cpu.stat"), "nr_periods 3\nnr_throttled 1\nthrottled_time 7000\n");
        write(&at("memory/g/memory.usage_in_bytes"), "4096\n");
        write(&at("memory/g/memory.max_usage_in_bytes"), "8192\n");
        write(&at("memory/g/memory.limit_in_bytes"), "9223372036854771712\n");
        write(&at("memory/g/memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
        write(&at("pids/g/pids.current"), "3\n");
        write(&at("pids/g/pids.max"), "max\n");
        let v1 = ["cpu", "memory", "pids"].map(|name| (name.to_owned(), at(name))).to_vec();
        let hosts = Hierarchies { v2: at("v2"), v1 };

        let stats = hosts.stats(Path::new("g"), None);
        assert_eq!((stats.cpu_us, stats.user_us, stats.system_us), (Some(30), Some(20), Some(10)));
        assert_eq!(stats.throttled_us, Some(7));
        assert_eq!((stats.memory_bytes, stats.memory_peak_bytes), (Some(4096), Some(8192)));
        assert_eq!((stats.memory_limit_bytes, stats.oom_kills), (None, Some(2)));
        assert_eq!((stats.pids, stats.pids_limit), (Some(3), None));
        assert_eq!(stats.io, None);
        assert_eq!(stats.pressure.io.unwrap().some.total_us, 5);
        assert_eq!(stats.pressure.cpu, None);
    }

    #[test]
    fn version_2_takes_precedence_if_it_has_the_controller() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        write(&at("v2/g/memory.current"), "1\n");
        write(&at("v2/g/memory.max"), "100\n");
        write(&at("v2/g/memory.events"), "low 0\noom 1\noom_kill 1\n");
        write(&at("v2/g/io.stat"), "254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n");
        write(&at("v2/g/cpu.stat"), "usage_usec 1\nthrottled_usec 9\n");
        let stats = Hierarchies { v2: at("v2"), v1: vec![] }.stats(Path::new("g"), None);
        assert_eq!(
            (stats.memory_bytes, stats.memory_limit_bytes, stats.oom_kills),
            (Some(1), Some(100), Some(1))
        );
        assert_eq!(stats.io.unwrap().write_ops, Some(4));
        assert_eq!(stats.throttled_us, Some(9));
    }

    #[test]
    fn held_memory_excludes_caches() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        let v1 = "cache 9000\nrss 1\nshmem 1\ntotal_cache 9000\ntotal_rss 300\ntotal_shmem 40\n";
        write(&at("memory/g/memory.stat"), v1);
        let mut hosts = Hierarchies { v2: at("v2"), v1: vec![("memory".to_owned(), at("memory"))] };
        assert_eq!(hosts.memory_held(Path::new("g")), Some(340));
        write(&at("v2/g/memory.stat"), "anon 100\nfile 5000\nshmem 20\n");
        assert_eq!(hosts.memory_held(Path::new("g")), Some(120));
        hosts = Hierarchies { v2: at("nowhere"), v1: vec![] };
        assert_eq!(hosts.memory_held(Path::new("g")), None);
    }

    #[test]
    fn a_missing_bay_has_no_values() {
        let hosts = Hierarchies { v2: "/nonexistent".into(), v1: vec![] };
        assert_eq!(hosts.stats(Path::new("g"), None), BayStats::default());
    }
}
