//! Attacks of a bay on the disk of a person who copies files out of it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use bay_tests::disk::SmallDisk;
use bay_tests::suite::Scratch;
use bay_tests::{Daemon, until};
use bay_types::ErrorCode;
use rustix::process::{Pid, Signal, kill_process};

const MIB: u64 = 1 << 20;
const EIB: u64 = 1 << 60;

/// A sparse file of this length with a few bytes of data at 1 MiB and, if they fit, at its end.
fn sparse(daemon: &Daemon, path: &str, length: u64) {
    let script = "set -e; truncate -s \"$2\" \"$1\"; printf middle | dd of=\"$1\" bs=1 seek=1048576 conv=notrunc 2>/dev/null";
    let _made = daemon.bay(&["exec", "b", "--", "sh", "-c", script, "sh", path, &length.to_string()]).ok();
}

#[track_caller]
fn is_the_same(path: &Path, length: u64) {
    let file = fs::File::open(path).unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!(metadata.len(), length);
    assert!(metadata.blocks() * 512 < 4 * MIB, "{} bytes on the disk", metadata.blocks() * 512);
    let mut found = [1; 8];
    file.read_exact_at(&mut found, MIB - 1).unwrap();
    assert_eq!(&found, b"\0middle\0");
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn res_hostdisk_a_sparse_file_of_any_length_fills_no_disk_and_stays_sparse() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let scratch = Scratch::new();
    let disk = SmallDisk::mounted_at(&scratch.join("disk"), 128);
    sparse(&daemon, "/workspace/huge", 4 * EIB);
    sparse(&daemon, "/workspace/large", 200 << 30);
    let _linked = daemon
        .sh("b", "mkdir d && mv large d/ && ln -s d/large link && ln -s /workspace/huge huge-link")
        .ok();
    let into = |name: &str| disk.path().join(name).to_str().unwrap().to_owned();
    // Longer than all disks of the world, and longer than this disk. Only the real data counts.
    for source in ["b:huge", "b:huge-link"] {
        let _copied = daemon.bay(&["cp", source, &into("huge")]).ok();
        is_the_same(&disk.path().join("huge"), 4 * EIB);
        fs::remove_file(disk.path().join("huge")).unwrap();
    }
    for (source, target) in [("b:d/large", "large"), ("b:link", "linked")] {
        let _copied = daemon.bay(&["cp", source, &into(target)]).ok();
        is_the_same(&disk.path().join(target), 200 << 30);
    }
    let _copied = daemon.bay(&["cp", "b:d", &into("tree")]).ok();
    is_the_same(&disk.path().join("tree/large"), 200 << 30);
    assert_eq!(names(disk.path()), ["large", "linked", "tree"]);
    // And into a bay: zeros use no space there either. Two files, one sent alone and one in an archive.
    fs::write(disk.path().join("tree/plain"), vec![0; 8 << 20]).unwrap();
    fs::remove_file(disk.path().join("tree/large")).unwrap();
    let _sent = daemon.bay(&["cp", &into("tree/plain"), "b:alone"]).ok();
    let _sent = daemon.bay(&["cp", &into("tree"), "b:back"]).ok();
    let used = daemon.sh("b", "stat -c '%s %b' alone back/plain").ok().text();
    assert_eq!(used, "8388608 0\n8388608 0");
    // A copy that would send zeros without end is refused.
    daemon.bay(&["cp", &into("large"), "b:large"]).fails_with(ErrorCode::PathRefused);
    daemon.bay(&["cp", "b:huge", "b:copy"]).fails_with(ErrorCode::PathRefused);
}

#[test]
fn res_hostdisk_a_length_beyond_the_filesystems_limit_is_refused_before_any_write() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let scratch = Scratch::new();
    let probe = fs::File::create(scratch.join("probe")).unwrap();
    let can_be = probe.set_len(4 * EIB).is_ok();
    fs::remove_file(scratch.join("probe")).unwrap();
    sparse(&daemon, "/workspace/huge", 4 * EIB);
    let into = scratch.join("huge");
    let ran = daemon.bay(&["cp", "b:huge", into.to_str().unwrap()]);
    if can_be {
        let _copied = ran.ok();
        is_the_same(&into, 4 * EIB);
        return;
    }
    ran.fails_with(ErrorCode::PathRefused);
    assert_eq!(names(scratch.path()), Vec::<String>::new());
}

#[test]
fn res_hostdisk_a_copy_that_does_not_fit_is_refused_and_the_disk_keeps_its_reserve() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let scratch = Scratch::new();
    let disk = SmallDisk::mounted_at(&scratch.join("disk"), 40);
    let _made = daemon.sh("b", "mkdir d && head -c 20000000 /dev/urandom > d/1 && for n in 2 3 4; do ln d/1 d/$n; done; head -c 60000000 /dev/urandom > big").ok();
    let into = |name: &str| disk.path().join(name).to_str().unwrap().to_owned();
    let ran = daemon.bay(&["cp", "b:big", &into("big")]);
    assert!(ran.errors().contains("57.2 MiB") && ran.errors().contains("are kept free"), "{ran}");
    ran.fails_with(ErrorCode::NotEnough);
    assert_eq!(names(disk.path()), Vec::<String>::new(), "nothing was written");
    // The size of a directory is unknown until it has arrived. The copy ends before the disk is full.
    let ran = daemon.bay(&["cp", "b:d", &into("d")]);
    assert!(ran.errors().contains("are kept free"), "{ran}");
    ran.fails_with(ErrorCode::NotEnough);
    let whole = names(&disk.path().join("d"));
    assert_eq!(whole.len(), 1, "no part of a file is left: {whole:?}");
    assert_eq!(fs::metadata(disk.path().join("d").join(&whole[0])).unwrap().len(), 20_000_000);
}

/// Forwards bytes between the CLI and the daemon, but only this many bytes of a response.
struct Slow {
    socket: PathBuf,
}

impl Slow {
    fn between(daemon: &Daemon, scratch: &Scratch, most: usize) -> Self {
        let socket = scratch.join("slow.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let behind = daemon.socket();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, daemon) = (client.unwrap(), UnixStream::connect(&behind).unwrap());
                let (mut asks, mut hears) = (client.try_clone().unwrap(), daemon.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut asks, &mut hears));
                std::thread::spawn(move || answer(daemon, client, most));
            }
        });
        Self { socket }
    }
}

fn answer(mut daemon: UnixStream, mut client: UnixStream, most: usize) {
    let mut passed = 0;
    let mut buffer = vec![0; 64 << 10];
    while let Ok(got @ 1..) = daemon.read(&mut buffer) {
        if client.write_all(&buffer[..got]).is_err() {
            return;
        }
        passed += got;
        if passed > most {
            // Neither more bytes nor an end: the connection stays open.
            loop {
                std::thread::park();
            }
        }
    }
}

/// A copy that has received a part of its file and receives nothing more.
fn stalled(daemon: &Daemon, slow: &Slow, source: &str, into: &Path, begun: impl Fn() -> bool) -> Child {
    let mut command =
        daemon.command(&["--socket", slow.socket.to_str().unwrap(), "--no-autostart", "cp", source]);
    let child =
        command.arg(into).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the copy to begin", || begun().then_some(()));
    child
}

fn end(mut child: Child, signal: Signal) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    kill_process(Pid::from_child(&child), signal).unwrap();
    let status = child.wait().unwrap();
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

#[test]
fn res_hostdisk_an_interrupted_copy_leaves_no_partial_file() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let scratch = Scratch::new();
    let _made = daemon.sh("b", "mkdir d && head -c 8000000 /dev/urandom > d/file").ok();
    let slow = Slow::between(&daemon, &scratch, 2 << 20);
    let into = scratch.join("into");
    fs::create_dir(&into).unwrap();
    let left = |directory: &Path| names(directory).iter().any(|name| name.starts_with(".bay-cp."));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let child = stalled(&daemon, &slow, "b:d/file", &into, || left(&into));
        assert_eq!(end(child, signal), 128 + signal.as_raw());
        assert_eq!(names(&into), Vec::<String>::new(), "{signal:?}");
    }
    // Of a tree, only the file in progress is deleted.
    let part = into.join("d/file");
    let child = stalled(&daemon, &slow, "b:d", &into, || part.metadata().is_ok_and(|part| part.len() > 0));
    assert_eq!(end(child, Signal::TERM), 128 + 15);
    assert_eq!(names(&into.join("d")), Vec::<String>::new());
    fs::remove_dir(into.join("d")).unwrap();
    // After a SIGKILL, only the next copy can clean up.
    let child = stalled(&daemon, &slow, "b:d/file", &into, || left(&into));
    assert_eq!(end(child, Signal::KILL), 128 + 9);
    assert!(left(&into));
    let running = stalled(&daemon, &slow, "b:d/file", &scratch.join("other"), || {
        fs::read_dir(scratch.path())
            .unwrap()
            .flatten()
            .any(|e| e.file_name().to_string_lossy().starts_with(".bay-cp."))
    });
    let _copied = daemon.bay(&["cp", "b:d/file", into.to_str().unwrap()]).ok();
    assert_eq!(names(&into), ["file"]);
    assert_eq!(fs::metadata(into.join("file")).unwrap().len(), 8_000_000);
    let _copied = daemon.bay(&["cp", "b:d/file", scratch.join("third").to_str().unwrap()]).ok();
    assert!(left(scratch.path()), "a copy that runs keeps what it has");
    end(running, Signal::TERM);
}
