//! `--durability relaxed`: flushes return at once, and the daemon flushes the bay instead.

use std::fs;
use std::io::{BufReader, Read};
use std::path::Path;
use std::time::Duration;

use bay_tests::consistency_probe::can_run;
use bay_tests::wait::within;
use bay_tests::{Daemon, image, until};
use bay_types::ErrorCode;
use serde_json::{Value, json};

/// Prints what a flush does. The kernel refuses to flush a pipe, so a flush that succeeds there was not made.
pub(crate) const FLUSH: &str = "python3 -c '
import os
try: os.fsync(os.pipe()[0]); print(\"skipped\")
except OSError: print(\"made\")'";

/// The kernel itself writes to the disk what is 30 seconds old.
const BEFORE_THE_KERNEL: Duration = Duration::from_secs(25);

fn relaxed(daemon: &Daemon, bay: &str) -> Value {
    let line = ["set", bay, "--durability", "relaxed", "--json"];
    daemon.bay(&line).ok().json()
}

fn flush(daemon: &Daemon, bay: &str) -> String {
    daemon.sh(bay, FLUSH).ok().text()
}

/// Whether the file of the pool, which is what a power cut leaves, has these bytes.
fn on_disk(pool: &Path, wanted: &[u8]) -> bool {
    let mut file = BufReader::with_capacity(1 << 20, fs::File::open(pool.join("pool.img")).unwrap());
    let (mut bytes, mut kept) = (vec![0; 1 << 20], Vec::new());
    loop {
        let read = file.read(&mut bytes).unwrap();
        if read == 0 {
            return false;
        }
        kept.extend_from_slice(&bytes[..read]);
        if kept.windows(wanted.len()).any(|window| window == wanted) {
            return true;
        }
        kept.drain(..kept.len().saturating_sub(wanted.len()));
    }
}

#[test]
fn flushes_return_at_once_for_every_command_that_starts_in_a_relaxed_bay_and_it_says_so() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    assert_eq!(flush(&daemon, "b"), "made");
    assert!(daemon.show("b").get("durability").is_none(), "strict is the default");
    let shown = relaxed(&daemon, "b");
    assert_eq!(shown["durability"], "relaxed");
    assert_eq!(flush(&daemon, "b"), "skipped");
    // Also for what a command starts, as another user, and in a namespace of its own.
    let nested = format!("unshare --mount --pid --fork -- {FLUSH}");
    assert_eq!(daemon.sh("b", &nested).ok().text(), "skipped");
    let other = ["exec", "b", "--user", "1234", "--", "sh", "-c", FLUSH];
    assert_eq!(daemon.bay(&other).ok().text(), "skipped");
    let all = "python3 -c '
import ctypes, mmap, os
c, r = ctypes.CDLL(None, use_errno=True), os.pipe()[0]
print(c.fdatasync(r), c.syncfs(-1), c.sync_file_range(r, 0, 0, 0), c.msync(None, 4096, 4))'";
    assert_eq!(daemon.sh("b", all).ok().text(), "0 0 0 0");
    let text = daemon.bay(&["show", "b"]).ok().text();
    assert!(text.contains("durability") && text.contains("power cut"), "{text}");
    let id = daemon.show("b")["id"].as_str().unwrap().to_owned();
    assert_eq!(daemon.events(&id, "bay.set").pop().unwrap()["durability"], "relaxed");

    let _strict = daemon.bay(&["set", "b", "--durability", "strict"]).ok();
    assert_eq!(flush(&daemon, "b"), "made");
    assert!(daemon.events(&id, "bay.set").pop().unwrap().get("durability").is_none());
}

#[test]
fn a_service_and_what_already_runs_keep_what_they_started_with() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = format!("while :; do {FLUSH} > said.new; mv said.new said; sleep 0.1; done");
    let line = ["services", "add", "b", "flushes", "--", "sh", "-c", &script];
    let _added = daemon.bay(&line).ok();
    let said = || daemon.sh("b", "cat said; rm -f said").text();
    until("the service to flush", || (said() == "made").then_some(()));
    relaxed(&daemon, "b");
    until("it to flush again", || (said() == "made").then_some(()));
    let _restarted = daemon.bay(&["services", "restart", "b", "flushes"]).ok();
    until("it to skip its flushes", || (said() == "skipped").then_some(()));
}

#[test]
fn a_relaxed_bay_stays_relaxed_over_stops_crashes_and_forks() {
    if !image::with_python() {
        return;
    }
    let mut daemon = Daemon::start();
    let request = json!({
        "name": "b", "source": { "kind": "empty" }, "image": bay_tests::SMALL, "durability": "relaxed",
    });
    let made = daemon.rest("POST", "/v1/bays", &request);
    assert!(made.status == 201 || made.status == 200, "{}", made.status);
    daemon.until_state("b", bay_types::bay::State::Running);
    assert_eq!(flush(&daemon, "b"), "skipped");
    let id = daemon.show("b")["id"].as_str().unwrap().to_owned();
    assert_eq!(daemon.events(&id, "bay.create").pop().unwrap()["durability"], "relaxed");
    daemon.kill_9();
    daemon.launch();
    assert_eq!(flush(&daemon, "b"), "skipped");
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let _started = daemon.bay(&["start", "b"]).ok();
    assert_eq!(flush(&daemon, "b"), "skipped");
    let _forked = daemon.bay(&["fork", "b", "--files-only"]).ok();
    assert_eq!(
        (daemon.show("b-fork-1")["durability"].clone(), flush(&daemon, "b-fork-1")),
        (json!("relaxed"), "skipped".to_owned())
    );
    // A stopped bay takes it at its next start.
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let _strict = daemon.bay(&["set", "b", "--durability", "strict"]).ok();
    let _started = daemon.bay(&["start", "b"]).ok();
    assert_eq!(flush(&daemon, "b"), "made");
}

/// Flushes again and again, and writes what that did.
const FLUSHER: &str = r#"
import os, time
n = 0
while True:
    n += 1
    try: os.fsync(os.pipe()[0]); did = "skipped"
    except OSError: did = "made"
    with open("/workspace/said.new", "w") as f: f.write("%d %s" % (n, did))
    os.rename("/workspace/said.new", "/workspace/said")
    time.sleep(0.05)
"#;

#[test]
fn processes_of_a_memory_checkpoint_keep_what_they_started_with_and_a_fork_says_so() {
    let daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    relaxed(&daemon, "b");
    let _running = daemon.bay(&["exec", "b", "-d", "--", "python3", "-c", FLUSHER]).ok();
    let said = |bay: &str| {
        let said = daemon.sh(bay, "cat said").text();
        said.split_once(' ').map(|(n, did)| (n.parse::<u64>().unwrap(), did.to_owned()))
    };
    let go_on = |bay: &str| {
        let (from, _) = until("it to run", || said(bay));
        until("it to go on", || said(bay).filter(|(n, _)| *n > from + 5)).1
    };
    assert_eq!(go_on("b"), "skipped");
    let made = daemon.bay(&["checkpoint", "b", "--memory", "--json"]).ok().json();
    assert_eq!(made["kind"], "memory", "{made}");
    let _strict = daemon.bay(&["set", "b", "--durability", "strict"]).ok();
    let _restored = daemon.bay(&["restore", "b", "v1"]).ok();
    assert_eq!(go_on("b"), "skipped", "its filter is part of the process");
    assert_eq!(flush(&daemon, "b"), "made", "what starts now is strict");
    let _forked = daemon.bay(&["fork", "b", "--from", "v1"]).ok();
    assert_eq!(go_on("b-fork-1"), "skipped");
    assert_eq!(daemon.show("b-fork-1")["durability"], "relaxed", "what it runs is not strict");
}

#[test]
fn what_a_relaxed_bay_wrote_is_on_the_disk_soon_and_when_it_has_stopped() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::setup().own_pool(1024).start();
    daemon.empty_bay("b");
    relaxed(&daemon, "b");
    // The marks are made in the bay, so that only the file has them: larger than what btrfs keeps beside its metadata. The
    // writer goes on, because the daemon flushes after each command to see what it changed.
    let write = |word: &str| {
        let script = format!(
            "import os, time; f = open('{word}', 'wb'); f.write(bytes(b ^ 1 for b in bytes.fromhex('{}')) * 1000); \
             f.flush(); os.fsync(f.fileno()); print('written', flush=True); time.sleep(600)",
            word.bytes().map(|byte| format!("{:02x}", byte ^ 1)).collect::<String>()
        );
        let exec = daemon.bay(&["exec", "b", "-d", "--", "python3", "-c", &script]).ok().text();
        until("it to be written", || (daemon.bay(&["logs", "b", &exec]).text() == "written").then_some(()));
        [word.as_bytes(); 3].concat()
    };
    let soon = write("zanzibar-quartz-1");
    within(BEFORE_THE_KERNEL, || on_disk(&daemon.pool, &soon).then_some(())).expect("the daemon flushes");
    let late = write("zanzibar-quartz-2");
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    assert!(on_disk(&daemon.pool, &late));
}

#[test]
fn another_word_than_strict_or_relaxed_is_refused_and_changes_nothing() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let refused = daemon.bay(&["set", "b", "--durability", "lax"]).exits(2);
    assert!(refused.errors().contains("strict") && refused.errors().contains("relaxed"), "{refused}");
    for odd in [json!("lax"), Value::Null, json!(1), json!("none")] {
        let answer = daemon.rest("PATCH", "/v1/bays/b/limits", &json!({ "durability": odd }));
        assert_eq!(answer.status, 400, "{odd}");
        assert_eq!(answer.json()["code"], ErrorCode::InvalidInput.as_str());
    }
    assert!(daemon.show("b").get("durability").is_none());
}
