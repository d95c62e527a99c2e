//! Large captures: thousands of processes and gigabytes are captured, forked and restored.

use std::time::{Duration, Instant};

use bay_tests::checkpoint_invariants::checkpoint_files;
use bay_tests::wait::within;
use bay_tests::{Daemon, consistency_probe, leaks, until};

/// Longest time of such a start.
const LARGE: Duration = Duration::from_secs(120);

const PROCESSES: usize = 2000;

/// Forks many processes that only wait. Small ones, because each is captured separately, with the memory that it
/// shares.
const MANY: &str =
    "n=0; while [ $n -lt $0 ]; do sleep 100000 & n=$((n+1)); done; echo $0 > /workspace/made; wait";

#[test]
fn two_thousand_processes_are_captured_and_all_continue_in_a_fork() {
    let daemon = Daemon::start();
    if !consistency_probe::can_run(&daemon) {
        return;
    }
    daemon.empty_bay("many");
    let count = PROCESSES.to_string();
    let _begun = daemon.bay(&["exec", "many", "-d", "--", "sh", "-c", MANY, &count]).ok();
    let made = within(LARGE, || (daemon.sh("many", "cat made").text() == count).then_some(()));
    assert!(made.is_some(), "the processes were not made");
    let alive = |bay: &str| daemon.sh(bay, "pidof sleep | wc -w").ok().text();
    let all = PROCESSES.to_string();
    assert_eq!(alive("many"), all);

    let began = Instant::now();
    let made = daemon.bay(&["fork", "many", "--name", "copy", "--json"]).ok().json();
    println!("forked in {:?}, paused for {} ms", began.elapsed(), made["checkpoint"]["pause_ms"]);
    assert_eq!(made["checkpoint"]["kind"], "memory", "{made}");
    assert_eq!((alive("many"), alive("copy-1")), (all.clone(), all.clone()));
    // The ids are the same: no process is missing or was replaced.
    let ids = |bay: &str| daemon.sh(bay, "pidof sleep | tr ' ' '\\n' | sort -n | md5sum").ok().text();
    assert_eq!(ids("many"), ids("copy-1"));

    let _ended = daemon.sh("copy-1", "kill -9 $(pidof sleep | tr ' ' '\\n' | head -1000)").ok();
    assert_eq!(alive("many"), all, "what ends in one is not missed in the other");
}

const GIBIBYTES: u64 = 3;

/// Fills memory with random data, and prints a checksum of it on request.
const LARGE_PROCESS: &str = r#"
import os, sys, time, zlib
block = os.urandom(1 << 20)
held = []
for n in range(int(sys.argv[1])):
    held.append(bytearray(block))
    held[-1][:8] = n.to_bytes(8, "little")
def tell():
    total = 0
    for block in held:
        total = zlib.crc32(block, total)
    return str(total)
with open("/workspace/first", "w") as f: f.write(tell())
turn = 0
while True:
    if os.path.exists("/workspace/ask"):
        os.unlink("/workspace/ask")
        with open("/workspace/told.new", "w") as f: f.write(tell())
        os.rename("/workspace/told.new", "/workspace/told")
    time.sleep(0.05)
"#;

#[test]
fn a_process_of_three_gigabytes_is_captured_and_restored() {
    let gib = 1_u64 << 30;
    // Space for the images of one capture, and the overhead of btrfs.
    let daemon = Daemon::setup().own_pool((GIBIBYTES + 1) << 10).start();
    if !consistency_probe::can_run(&daemon) {
        return;
    }
    daemon.empty_bay("large");
    let mib = (GIBIBYTES << 10).to_string();
    let _begun = daemon.bay(&["exec", "large", "-d", "--", "python3", "-c", LARGE_PROCESS, &mib]).ok();
    let first = within(LARGE, || Some(daemon.sh("large", "cat first").text()).filter(|sum| !sum.is_empty()));
    let first = first.expect("the process fills its memory");
    let free = || {
        let _flushed = daemon.sh("large", "sync").ok();
        let pool = rustix::fs::statvfs(leaks::corner(&daemon.pool, daemon.id())).unwrap();
        pool.f_bavail * pool.f_frsize
    };
    let before = free();

    let began = Instant::now();
    let made = daemon.bay(&["checkpoint", "large", "--memory", "--json"]).ok().json();
    println!("captured in {:?}, paused for {} ms", began.elapsed(), made["pause_ms"]);
    assert_eq!(made["kind"], "memory", "{made}");
    let images = checkpoint_files(&daemon, "large").join("inner/v1/memory");
    let size: u64 =
        std::fs::read_dir(images).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!((GIBIBYTES * gib..GIBIBYTES * gib + gib / 2).contains(&size), "{size}");
    let after = free();
    println!("free in the pool: {before}, then {after}");
    assert!(before - after > (GIBIBYTES * gib).saturating_sub(gib / 4), "the pool knows what it holds");

    let began = Instant::now();
    let restored = daemon.bay(&["restore", "large", "v1", "--json"]).ok().json();
    println!("restored in {:?}", began.elapsed());
    assert_eq!(restored["bay"]["state"], "running", "{restored}");
    let _asked = daemon.sh("large", "touch ask").ok();
    let told = within(LARGE, || Some(daemon.sh("large", "cat told").text()).filter(|sum| !sum.is_empty()));
    assert_eq!(told, Some(first), "its memory is what it was");
    let _removed = daemon.bay(&["checkpoints", "rm", "large", "v1"]).ok();
    until("the pool to have its room again", || (free() + gib / 4 > before).then_some(()));
}
