//! Memory is captured, forked and restored only if the host has room for it. Otherwise a fork or a restore is refused
//! before anything is stopped or made, and a checkpoint has the files alone.

use std::time::Duration;

use bay_tests::checkpoint_invariants::{checkpoints, checkpoints_are_whole};
use bay_tests::disk::SmallDisk;
use bay_tests::suite::Scratch;
use bay_tests::wait::within;
use bay_tests::{Daemon, consistency_probe, until};
use bay_types::ErrorCode;
use bay_types::checkpoint::MAX_FORKS;

/// A reserve larger than the memory of any machine: nothing is left for bays.
const EVERYTHING_MIB: &str = "1000000000";

/// A disk that is just large enough for a pool: two GiB are reserved for the host.
const DISK_MIB: u64 = 2048 + 640;
const POOL_MIB: u64 = 512;

/// Allocates this many MiB and keeps them.
const LARGE: &str = r#"
import sys, time
held = b"x" * (int(sys.argv[1]) << 20)
open("/workspace/held", "w").close()
time.sleep(100000)
"#;

#[test]
fn a_fork_storm_beyond_the_hosts_memory_is_refused_before_anything_is_captured() {
    let daemon = Daemon::start();
    if !consistency_probe::can_run(&daemon) {
        return;
    }
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    let total_mib = total.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() >> 10;
    // One fits into this machine's memory, but the largest number of forks does not.
    let each = total_mib.div_ceil(u64::from(MAX_FORKS)).to_string();
    daemon.empty_bay("large");
    let _begun = daemon.bay(&["exec", "large", "-d", "--", "python3", "-c", LARGE, &each]).ok();
    let held =
        within(Duration::from_secs(60), || (daemon.sh("large", "test -e held").code == 0).then_some(()));
    assert!(held.is_some(), "it does not hold {each} MiB");

    let refused = daemon.bay(&["fork", "large", "--count", &MAX_FORKS.to_string()]);
    let (what, next) = refused.fails_with(ErrorCode::NotEnough);
    assert!(what.contains("64 bays that continue from large"), "{what}");
    assert!(what.contains("MiB stay with the host"), "{what}");
    assert!(next.contains("--files-only"), "{next}");
    assert_eq!(daemon.list().len(), 1, "nothing was made");
    assert_eq!(checkpoints(&daemon, "large").len(), 0, "nothing was captured");
    let one = daemon.bay(&["fork", "large", "--json"]).ok().json();
    assert_eq!(one["checkpoint"]["kind"], "memory", "one of them fits: {one}");
}

#[test]
fn if_the_pool_has_no_space_for_memory_nothing_stops_and_the_files_are_captured() {
    let scratch = Scratch::new();
    let disk = SmallDisk::mounted_at(&scratch.join("disk"), DISK_MIB);
    let daemon = Daemon::setup().pool_at(disk.path().join("pool"), POOL_MIB).start();
    if !consistency_probe::can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    consistency_probe::start(&daemon, "b");
    let mib = POOL_MIB.to_string();
    let _begun = daemon.bay(&["exec", "b", "-d", "--", "python3", "-c", LARGE, &mib]).ok();
    until("it to hold more than the pool", || (daemon.sh("b", "test -e held").code == 0).then_some(()));
    let (what, next) = daemon.bay(&["checkpoint", "b", "--memory"]).fails_with(ErrorCode::MemoryUnavailable);
    assert!(what.contains("too full") && what.contains("MiB are needed"), "{what}");
    assert!(next.contains("--files-only"), "{next}");
    let made = daemon.bay(&["checkpoint", "b", "--json"]).ok().json();
    assert_eq!(made["kind"], "files", "{made}");
    assert!(made["without_memory"][0].as_str().unwrap().contains("too full"), "{made}");
    assert_eq!(consistency_probe::word(&daemon, "b").as_deref(), Some("first"));
    assert_eq!(checkpoints_are_whole(&daemon, "b").len(), 1);
    // The disk is removed after its content.
    drop(daemon);
    drop(disk);
}

#[test]
fn a_host_without_free_memory_refuses_restores_and_loses_nothing() {
    let mut daemon = Daemon::start();
    if !consistency_probe::can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    daemon.empty_bay("asleep");
    for bay in ["b", "asleep"] {
        consistency_probe::start(&daemon, bay);
        consistency_probe::set_word(&daemon, bay, "before");
    }
    let _made = daemon.bay(&["checkpoint", "b", "--memory"]).ok();
    let _paused = daemon.bay(&["pause", "asleep", "--to-disk"]).ok();
    let guest = daemon.host_pid("b");
    daemon.kill_9();
    daemon.set_environment(&[("BAY_MEMORY_RESERVE_MIB", EVERYTHING_MIB)]);
    daemon.launch();

    // Running processes continue. A verb that would have to stop them first is refused.
    let (what, next) = daemon.bay(&["restore", "b", "v1"]).fails_with(ErrorCode::NotEnough);
    assert!(what.contains("the memory of v1 of b needs") && what.contains("stay with the host"), "{what}");
    assert!(next.contains("--files-only"), "{next}");
    assert_eq!(daemon.host_pid("b"), guest);
    let (what, _) = daemon.bay(&["fork", "b", "--from", "v1"]).fails_with(ErrorCode::NotEnough);
    assert!(what.contains("a fork of the running b needs"), "{what}");
    assert_eq!((daemon.list().len(), checkpoints(&daemon, "b").len()), (2, 1));

    // A bay on disk stays there, with the reason.
    let (_, next) = daemon.bay(&["resume", "asleep"]).fails_with(ErrorCode::NotEnough);
    assert!(next.contains("bay resume asleep"), "{next}");
    let asleep = daemon.show("asleep");
    assert_eq!((&asleep["state"], &asleep["desired"]), (&"paused".into(), &"paused".into()), "{asleep}");
    assert!(asleep["reason"].as_str().unwrap().contains("MiB of memory"), "{asleep}");

    // The files need no memory.
    let _forked = daemon.bay(&["fork", "b", "--from", "v1", "--files-only"]).ok();
    assert_eq!(consistency_probe::word_in_files(&daemon, "b-fork-1"), "before");

    daemon.set_environment(&[]);
    daemon.restart();
    let _resumed = daemon.bay(&["resume", "asleep"]).ok();
    assert_eq!(consistency_probe::word(&daemon, "asleep").as_deref(), Some("before"));
    let _restored = daemon.bay(&["restore", "b", "v1"]).ok();
    assert_eq!(consistency_probe::word(&daemon, "b").as_deref(), Some("before"));
}
