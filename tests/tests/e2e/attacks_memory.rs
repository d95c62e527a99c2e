//! Preparations of a bay by which its restored memory could gain more rights than before, and attacks on PID 1 during
//! captures.

use bay_tests::consistency_probe::can_run;
use bay_tests::{CliRun, Daemon, until};
use bay_types::ErrorCode;

fn captured(daemon: &Daemon, bay: &str) -> CliRun {
    daemon.bay(&["checkpoint", bay, "--memory"])
}

/// Asserts that the capture is refused for this reason, and that the bay still works.
#[track_caller]
fn refused(daemon: &Daemon, bay: &str, reason: &str) {
    let (said, _) = captured(daemon, bay).fails_with(ErrorCode::MemoryUnavailable);
    assert!(said.contains(reason), "{said}");
    let _lives = daemon.sh(bay, "true").ok();
}

/// Starts a process in the bay that keeps running, and waits for its first word.
fn stays(daemon: &Daemon, bay: &str, argv: &[&str]) -> String {
    let exec = daemon.bay(&[&["exec", bay, "-d", "--json", "--"], argv].concat()).ok().json();
    let exec = exec["id"].as_str().unwrap().to_owned();
    let said = || daemon.bay(&["logs", bay, &exec]).text();
    until("it to be ready", || said().contains("ready").then_some(()));
    exec
}

#[test]
fn restored_mounts_lead_nowhere_on_the_host() {
    let daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    // A process that mounts it again finds the layers in its own root.
    let overlay = "mount -t overlay overlay -o lowerdir=/etc:/home,userxattr /o";
    let _made = daemon.sh("b", &format!("mkdir -p /o && {overlay}")).ok();
    refused(&daemon, "b", "overlay at /o");
    let _gone = daemon.sh("b", "umount /o").ok();
    // In a mount namespace that PID 1 cannot see.
    let hidden = format!("{overlay} && echo ready && exec sleep 1000");
    let exec = stays(&daemon, "b", &["unshare", "-m", "sh", "-c", &hidden]);
    refused(&daemon, "b", "overlay at /o");
    let _ended = daemon.bay(&["kill", "b", &exec]).ok();
    // The mounted directory is removed, and its path leads elsewhere.
    let removed = "
        mkdir -p /m /t && mount -t tmpfs none /m
        mkdir /m/d && echo here > /m/d/f && touch /t/f && mount --bind /m/d/f /t/f
        rm -r /m/d && ln -s /var/tmp /m/d";
    let _made = daemon.sh("b", removed).ok();
    refused(&daemon, "b", "/t/f of something that was removed");
    let _gone = daemon.sh("b", "umount /t/f").ok();
    let _made = captured(&daemon, "b").ok();
    let _back = daemon.bay(&["restore", "b", "v1"]).ok();
    assert_eq!(daemon.sh("b", "readlink /m/d").ok().text(), "/var/tmp");
}

/// Opens a file with the name that the guest's socket has among the images.
const IMPOSTOR: &str = r#"
import time
listening = "00010000"
lines = [line.split() for line in open("/proc/net/unix") if "guest.sock" in line]
inode = [line[6] for line in lines if line[3] == listening][0]
file = open("/socket:[%s]" % inode, "w")
print("ready", flush=True)
time.sleep(1000)
"#;

#[test]
fn no_file_is_mistaken_for_the_guests_socket() {
    let daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    let exec = stays(&daemon, "b", &["python3", "-c", IMPOSTOR]);
    refused(&daemon, "b", "like the guest's socket");
    let (said, _) = daemon.bay(&["pause", "b", "--to-disk"]).fails_with(ErrorCode::MemoryUnavailable);
    assert!(said.contains("like the guest's socket"), "{said}");
    assert_eq!(daemon.show("b")["state"], "running");
    let _ended = daemon.bay(&["kill", "b", &exec]).ok();
    let _made = captured(&daemon, "b").ok();
    let _back = daemon.bay(&["restore", "b", "v1"]).ok();
}

/// Processes that send PID 1 the signal of a breakpoint as fast as they can.
const FLOOD: &str = r#"
import os, signal
if os.fork() and os.fork():
    print("ready", flush=True)
while True:
    os.kill(1, signal.SIGTRAP)
"#;

#[test]
fn a_flood_of_traps_does_not_fill_the_stack_of_pid_1() {
    let daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    let first = daemon.host_pid("b");
    let stack = || {
        let status = std::fs::read_to_string(format!("/proc/{first}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmStk:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let before = stack();
    let exec = stays(&daemon, "b", &["python3", "-c", FLOOD]);
    // Often enough that one arrives while another is handled.
    for _ in 0..20 {
        let _lives = daemon.sh("b", "true").ok();
    }
    let after = stack();
    let _ended = daemon.bay(&["kill", "b", &exec]).ok();
    assert!(after <= before + 64, "its stack was {before} kB and is {after} kB");
    assert_eq!(daemon.host_pid("b"), first);
}

/// Holds many removed files open that share their blocks: cheap for the bay, and expensive if each is copied.
const SHARED_FILES: &str = r#"
import fcntl, os, time
FICLONE = 0x40049409
def removed(path):
    file = open(path, "wb+")
    os.unlink(path)
    return file
first = removed("/workspace/first")
for _ in range(64):
    first.write(os.urandom(1 << 20))
first.flush()
os.fsync(first.fileno())
others = [removed("/workspace/other") for _ in range(20)]
for other in others:
    fcntl.ioctl(other.fileno(), FICLONE, first.fileno())
    os.fsync(other.fileno())
print("ready", flush=True)
time.sleep(1000)
"#;

/// Many processes with the same memory, which is captured for each.
const SHARED_MEMORY: &str = r#"
import os, time
kept = bytearray(os.urandom(1 << 20) * 40)
for _ in range(40):
    if os.fork() == 0:
        break
else:
    print("ready", flush=True)
time.sleep(1000)
"#;

#[test]
fn data_that_a_capture_would_multiply_does_not_fill_the_pool() {
    let daemon = Daemon::setup().own_pool(900).start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    let exec = stays(&daemon, "b", &["python3", "-c", SHARED_FILES]);
    refused(&daemon, "b", "files that were removed and are still open");
    let _ended = daemon.bay(&["kill", "b", &exec]).ok();
    let exec = stays(&daemon, "b", &["python3", "-c", SHARED_MEMORY]);
    refused(&daemon, "b", "and no room for it");
    // No process was lost, and the written data is gone.
    assert_eq!(daemon.sh("b", "pidof python3 | wc -w").ok().text(), "41");
    let _room = daemon.sh("b", "dd if=/dev/zero of=/workspace/f bs=1M count=100 conv=fsync").ok();
    let _ended = daemon.bay(&["kill", "b", &exec]).ok();
}
