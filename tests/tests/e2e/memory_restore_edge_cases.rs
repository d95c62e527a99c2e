//! Rare cases of memory checkpoints: another machine, concurrent requests, another clock, a bay on disk that is
//! stopped.

use std::fs;
use std::path::PathBuf;

use bay_tests::checkpoint_invariants::{
    checkpoint_files, checkpoints, checkpoints_are_whole, nothing_is_left_over,
};
use bay_tests::{Daemon, consistency_probe, until};
use bay_types::ErrorCode;
use serde_json::{Value, json};

/// A daemon with a bay `b` whose probe holds the word `now`. At the memory checkpoint v1 it held `then`.
fn with_a_past() -> Option<Daemon> {
    let daemon = Daemon::start();
    if !consistency_probe::can_run(&daemon) {
        return None;
    }
    daemon.empty_bay("b");
    consistency_probe::start(&daemon, "b");
    consistency_probe::set_word(&daemon, "b", "then");
    let _made = daemon.bay(&["checkpoint", "b", "--memory"]).ok();
    consistency_probe::set_word(&daemon, "b", "now");
    Some(daemon)
}

/// Changes what a checkpoint records about the machine that made it.
fn made_elsewhere(facts: &PathBuf, change: impl FnOnce(&mut Value)) {
    let mut all: Value = serde_json::from_slice(&fs::read(facts).unwrap()).unwrap();
    change(&mut all["machine"]);
    fs::write(facts, serde_json::to_vec(&all).unwrap()).unwrap();
}

#[test]
fn memory_from_another_kernel_or_processor_is_refused_and_its_files_can_be_restored() {
    let Some(daemon) = with_a_past() else { return };
    let facts = checkpoint_files(&daemon, "b").join("inner/v1/memory/memory.json");
    let as_it_was = fs::read(&facts).unwrap();
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 3] = [
        ("kernel 6.1.0-other", |machine| machine["kernel"] = json!("6.1.0-other #1 SMP")),
        ("this one", |machine| {
            machine["cpu"] = json!("another");
            machine["cpu_flags"].as_array_mut().unwrap().push(json!("avx1024"));
        }),
        ("CRIU 9.1", |machine| machine["criu"] = json!("9.1")),
    ];
    for (named, change) in cases {
        fs::write(&facts, &as_it_was).unwrap();
        made_elsewhere(&facts, change);
        let guest = daemon.host_pid("b");
        let (what, next) = daemon.bay(&["restore", "b", "v1"]).fails_with(ErrorCode::MemoryUnavailable);
        assert!(what.contains(named), "{what}");
        assert!(next.contains("--files-only"), "{next}");
        assert_eq!(daemon.host_pid("b"), guest, "the bay was not stopped for it");
        assert_eq!(consistency_probe::word(&daemon, "b").as_deref(), Some("now"));

        let (what, next) =
            daemon.bay(&["fork", "b", "--from", "v1"]).fails_with(ErrorCode::MemoryUnavailable);
        assert!(what.contains(named), "{what}");
        assert!(next.contains("--files-only"), "{next}");
        assert_eq!(daemon.list().len(), 1, "nothing was made");
    }
    let _forked = daemon.bay(&["fork", "b", "--from", "v1", "--files-only"]).ok();
    assert_eq!(consistency_probe::word_in_files(&daemon, "b-fork-1"), "then");
    let _restored = daemon.bay(&["restore", "b", "v1", "--files-only"]).ok();
    assert_eq!(consistency_probe::word_in_files(&daemon, "b"), "then");
    assert_eq!(consistency_probe::word(&daemon, "b"), None, "it was started anew");
}

#[test]
fn a_bay_on_disk_from_another_machine_is_refused_and_can_start_from_its_files() {
    let Some(daemon) = with_a_past() else { return };
    let _paused = daemon.bay(&["pause", "b", "--to-disk"]).ok();
    let facts = checkpoint_files(&daemon, "b").join("inner/v2/memory/memory.json");
    made_elsewhere(&facts, |machine| machine["kernel"] = json!("6.1.0-other #1 SMP"));
    let (what, next) = daemon.bay(&["resume", "b"]).fails_with(ErrorCode::MemoryUnavailable);
    assert!(what.contains("6.1.0-other"), "{what}");
    assert!(next.contains("bay start b"), "{next}");
    let _started = daemon.bay(&["start", "b"]).ok();
    assert_eq!(consistency_probe::word_in_files(&daemon, "b"), "now");
}

#[test]
fn two_restores_at_once_end_in_one_whole_state() {
    let Some(daemon) = with_a_past() else { return };
    let _made = daemon.bay(&["checkpoint", "b", "--memory"]).ok();
    for _ in 0..3 {
        consistency_probe::set_word(&daemon, "b", "later");
        let ran: Vec<_> = std::thread::scope(|scope| {
            let asked = ["v1", "v2"].map(|name| scope.spawn(|| daemon.bay(&["restore", "b", name])));
            asked.into_iter().map(|asked| asked.join().unwrap()).collect()
        });
        assert!(ran.iter().any(|ran| ran.code == 0), "{} {}", ran[0], ran[1]);
        for refused in ran.iter().filter(|ran| ran.code != 0) {
            // The second request must be repeated, or the error says that the first was faster.
            let (what, _) = refused.fails_with(ErrorCode::BayState);
            assert!(what.contains("is being restored to v") || what.contains("cannot be"), "{what}");
        }
        let word = consistency_probe::word(&daemon, "b");
        assert!(matches!(word.as_deref(), Some("then" | "now")), "{word:?}");
    }
    let _names = checkpoints_are_whole(&daemon, "b");
    nothing_is_left_over(&daemon);
}

#[test]
fn a_restore_during_a_checkpoint_waits_for_it_and_both_are_whole() {
    let Some(daemon) = with_a_past() else { return };
    for _ in 0..3 {
        let known = checkpoints(&daemon, "b").len();
        let (made, restored) = std::thread::scope(|scope| {
            let made = scope.spawn(|| daemon.bay(&["checkpoint", "b", "--memory", "--json"]));
            let restored = scope.spawn(|| daemon.bay(&["restore", "b", "v1"]));
            (made.join().unwrap(), restored.join().unwrap())
        });
        let _restored = restored.ok();
        // If it comes during the restore, it is refused and leaves nothing.
        let more = if made.code == 0 { 2 } else { 1 };
        assert_eq!(checkpoints(&daemon, "b").len(), known + more, "{made}");
        assert_eq!(consistency_probe::word(&daemon, "b").as_deref(), Some("then"));
        let _names = checkpoints_are_whole(&daemon, "b");
    }
    nothing_is_left_over(&daemon);
}

/// Runs in its own time namespace.
const OWN_CLOCK: &str = r#"
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x80) == 0, os.strerror(ctypes.get_errno())
if os.fork() == 0:
    open("/workspace/shifted", "w").close()
time.sleep(100000)
"#;

#[test]
fn a_bay_is_restored_with_the_hosts_clock() {
    let Some(daemon) = with_a_past() else { return };
    let tried = daemon.sh("b", "date -s 2001-01-01");
    assert!(tried.errors().contains("not permitted"), "{tried}");
    let _made = daemon.bay(&["checkpoint", "b", "--memory"]).ok();
    let uptime = || daemon.sh("b", "cut -d. -f1 /proc/uptime").ok().text().parse::<u64>().unwrap();
    let before = uptime();
    let _restored = daemon.bay(&["restore", "b", "v2"]).ok();
    assert_eq!(consistency_probe::word(&daemon, "b").as_deref(), Some("now"));
    let inside: i64 = daemon.sh("b", "date +%s").ok().text().parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!((inside - now.cast_signed()).abs() <= 2, "{inside}, and it is {now}");
    assert!(uptime() >= before, "time that only goes forward goes forward");
    // A process with its own clock is in a namespace, and cannot be captured.
    let _begun = daemon.bay(&["exec", "b", "-d", "--", "python3", "-c", OWN_CLOCK]).ok();
    until("it to run", || (daemon.sh("b", "cat shifted").code == 0).then_some(()));
    let (what, _) = daemon.bay(&["checkpoint", "b", "--memory"]).fails_with(ErrorCode::MemoryUnavailable);
    assert!(what.contains("python3") && what.contains("a clock"), "{what}");
    let _files = daemon.bay(&["checkpoint", "b", "--files-only"]).ok();
    assert_eq!(consistency_probe::word(&daemon, "b").as_deref(), Some("now"));
}

#[test]
fn a_bay_on_disk_that_is_stopped_or_gets_a_fresh_root_starts_from_its_files() {
    let Some(daemon) = with_a_past() else { return };
    let _paused = daemon.bay(&["pause", "b", "--to-disk"]).ok();
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    assert_eq!(daemon.show("b")["state"], "stopped");
    let _started = daemon.bay(&["start", "b"]).ok();
    assert_eq!(consistency_probe::word_in_files(&daemon, "b"), "now");
    assert_eq!(consistency_probe::word(&daemon, "b"), None);

    consistency_probe::start(&daemon, "b");
    let _paused = daemon.bay(&["pause", "b", "--to-disk"]).ok();
    let _replaced = daemon.bay(&["replace", "b"]).ok();
    assert_eq!(
        daemon.sh("b", "cat /workspace/word; test -e /etc/word || echo fresh").ok().text(),
        "first\nfresh"
    );
}
