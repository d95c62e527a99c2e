//! Hostile files through every interface for files: `bay cp`, the routes of the daemon, and those of envd.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bay_tests::archive::member;
use bay_tests::rest::{self, Answer};
use bay_tests::suite::{self, Lack, Scratch};
use bay_tests::{Daemon, image};
use serde_json::Value;

/// Longest time for an answer that must not depend on the bay's behaviour.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
/// Most that the daemon's memory may grow for a file of any size.
const DAEMON_GROWTH_KIB: u64 = 64 << 10;
/// An exbibyte.
const EIB: u64 = 1 << 60;

/// A daemon with one bay, and the socket of its guest, which also serves envd.
fn bay() -> (Daemon, PathBuf) {
    let daemon = Daemon::start();
    let made = daemon.empty_bay("b");
    let guest = daemon.data_dir.join("run").join(made["id"].as_str().unwrap()).join("guest.sock");
    (daemon, guest)
}

fn usable(daemon: &Daemon) {
    assert_eq!(daemon.sh("b", "echo alive").ok().text(), "alive");
    assert_eq!(daemon.show("b")["state"], "running");
}

/// Sends a request, reads at most this much of the answer, and drops the connection.
fn beginning(socket: &Path, head: &str, most: u64) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(ANSWERS_WITHIN)).unwrap();
    stream
        .write_all(format!("{head} HTTP/1.1\r\nhost: bay\r\nconnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let mut read = Vec::new();
    stream.take(most).read_to_end(&mut read).unwrap_or_else(|error| panic!("{head}: {error}"));
    read
}

fn status(answer: &[u8]) -> u16 {
    let line = answer.split(|byte| *byte == b'\r').next().unwrap();
    String::from_utf8_lossy(line).split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap()
}

fn get(daemon: &Daemon, noun: &str, path: &str) -> Answer {
    let target = format!("/v1/bays/b/{noun}?path={}", bay_text::percent::path_value(path.as_bytes()));
    rest::request(&daemon.socket(), "GET", &target, b"").unwrap()
}

fn put(daemon: &Daemon, noun: &str, path: &str, body: &[u8]) -> Answer {
    let target = format!("/v1/bays/b/{noun}?path={}", bay_text::percent::path_value(path.as_bytes()));
    rest::request(&daemon.socket(), "PUT", &target, body).unwrap()
}

fn daemon_kib(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().to_owned();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_directory_swapped_for_a_link_redirects_neither_reads_nor_writes() {
    let (daemon, guest) = bay();
    let host = Scratch::new();
    fs::write(host.join("f"), "the host's\n").unwrap();
    // The bay has a file with the same path, so that the content shows which of the two was read.
    let place = host.path().display();
    let swap = format!(
        "mkdir -p {place} d; echo 'the bay'\"'\"'s' > {place}/f; echo plain > d/f; n=0
         while [ $n -lt 20000 ]; do mv d e; ln -s {place} d; rm d; ln -s / d; rm d; mv e d; n=$((n+1)); done"
    );
    let _swapping = daemon.bay(&["exec", "b", "-d", "--", "sh", "-c", &swap]).ok();
    let mut answers = 0;
    for n in 0..150 {
        let through = ["/workspace/d/f".to_owned(), format!("/workspace/d{place}/f")];
        for path in &through {
            for door in ["files", "archive", "stat"] {
                let read = get(&daemon, door, path);
                let text = String::from_utf8_lossy(&read.body).into_owned();
                assert!(!text.contains("the host's"), "{path} by {door}: {text}");
                answers += usize::from(read.status == 200);
            }
            let envd =
                format!("GET /files?username=root&path={}", bay_text::percent::path_value(path.as_bytes()));
            let read = beginning(&guest, &envd, 1 << 16);
            assert!(!String::from_utf8_lossy(&read).contains("the host's"), "{envd}");
        }
        put(&daemon, "files", &format!("/workspace/d/written-{n}"), b"x");
        put(
            &daemon,
            "archive",
            "/workspace/d",
            &[member(&format!("packed-{n}"), b'0', "", b"x"), vec![0; 1024]].concat(),
        );
    }
    let left: Vec<OsString> =
        fs::read_dir(host.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["f"], "something was written on the host");
    assert_eq!(fs::read_to_string(host.join("f")).unwrap(), "the host's\n");
    let astray = fs::read_dir("/").unwrap().map(|entry| entry.unwrap().file_name());
    let astray: Vec<_> = astray
        .filter(|name| name.as_bytes().starts_with(b"written-") || name.as_bytes().starts_with(b"packed-"))
        .collect();
    assert!(astray.is_empty(), "{astray:?} were written to the host's root");
    assert!(answers > 0, "nothing was ever read: the race was not run");
    usable(&daemon);
}

#[test]
fn fifos_and_devices_are_refused_immediately_by_every_interface() {
    let (daemon, guest) = bay();
    let scratch = Scratch::new();
    let _made = daemon.sh("b", "mkfifo fifo; mkdir dir; mkfifo dir/fifo; echo whole > dir/plain; ln -s fifo to-fifo; ln -s /dev/zero to-zero").ok();
    for path in [
        "/workspace/fifo",
        "/workspace/to-fifo",
        "/workspace/to-zero",
        "/dev/zero",
        "/dev/null",
        "/dev/ptmx",
        "/dev/tty",
    ] {
        // A process that opens a FIFO without a writer waits forever, so the requests have a deadline.
        let read = get(&daemon, "files", path);
        assert!((400..500).contains(&read.status), "reading {path}: {}", read.status);
        let escaped = bay_text::percent::path_value(path.as_bytes());
        let envd = beginning(&guest, &format!("GET /files?username=root&path={escaped}"), 1 << 16);
        assert!((400..500).contains(&status(&envd)), "envd reads {path}: {}", String::from_utf8_lossy(&envd));
        let copied = daemon.bay(&["cp", &format!("b:{path}"), scratch.join("out").to_str().unwrap()]);
        assert_ne!(copied.code, 0, "{copied}");
        assert!(!copied.errors().is_empty() && !scratch.join("out").exists(), "{copied}");
        let kind = get(&daemon, "stat", path);
        assert_eq!(kind.status, 200, "{path}");
        // A write replaces the name or is refused. It never opens a device or waits for a reader.
        let written = put(&daemon, "files", path, b"x");
        assert!(written.status < 500, "writing {path}: {}", written.status);
    }
    for device in ["/dev/zero", "/dev/null"] {
        let test = format!("test -c {device}");
        assert_eq!(daemon.sh("b", &test).code, 0, "{device} was replaced by an upload");
    }
    // A copied tree leaves them out.
    let _copied = daemon.bay(&["cp", "b:/workspace/dir", scratch.join("dir").to_str().unwrap()]);
    assert_eq!(fs::read_to_string(scratch.join("dir/plain")).unwrap(), "whole\n");
    assert!(!scratch.join("dir/fifo").exists());
    usable(&daemon);
}

#[test]
fn an_empty_file_of_an_exbibyte_is_described_and_its_download_can_be_aborted() {
    if !image::has_python() {
        return suite::skip(
            Lack::Installable,
            "the small image has no python3: the host's is not below /usr",
        );
    }
    let (daemon, guest) = bay();
    let script =
        format!("import os; os.close(os.open('huge', os.O_CREAT | os.O_WRONLY)); os.truncate('huge', {EIB})");
    let _made = daemon.bay(&["exec", "b", "--", "python3", "-c", &script]).ok();
    let stat = get(&daemon, "stat", "/workspace/huge").json();
    assert_eq!(stat["size"], EIB, "{stat}");
    let before = daemon_kib(&daemon);
    for target in ["files?path=/workspace/huge", "archive?path=/workspace/huge"] {
        let read = beginning(&daemon.socket(), &format!("GET /v1/bays/b/{target}"), 4 << 20);
        // A file that no tar header can describe may be refused. Any other answer is bounded, and its rest is dropped.
        assert!(status(&read) < 500, "{target}: {}", String::from_utf8_lossy(&read[..read.len().min(400)]));
        if target.starts_with("files") {
            assert_eq!((status(&read), read.len()), (200, 4 << 20), "{target}");
        }
    }
    let envd = beginning(&guest, "GET /files?username=root&path=/workspace/huge", 4 << 20);
    assert!(status(&envd) < 500, "{}", String::from_utf8_lossy(&envd[..envd.len().min(400)]));
    let grown = daemon_kib(&daemon).saturating_sub(before);
    assert!(grown < DAEMON_GROWTH_KIB, "the daemon grew by {grown} KiB");
    // All slots for copies are free again.
    let _small = daemon.sh("b", "rm huge; echo small > small").ok();
    for _ in 0..20 {
        assert_eq!(get(&daemon, "files", "/workspace/small").body, b"small\n");
    }
    usable(&daemon);
}

#[test]
fn a_tree_with_a_long_hole_is_copied_out_and_one_that_is_too_long_is_refused_with_the_file() {
    let (daemon, _) = bay();
    let scratch = Scratch::new();
    let _made = daemon.sh("b", "mkdir -p t/deep && truncate -s 65G t/deep/huge && mkdir other").ok();
    let out = scratch.join("out");
    let _copied = daemon.bay(&[OsStr::new("cp"), OsStr::new("b:/workspace/t"), out.as_os_str()]).ok();
    let copy = fs::metadata(out.join("deep/huge")).unwrap();
    assert_eq!(copy.len(), 65 << 30);
    assert!(copy.blocks() < 1024, "a hole takes no room: {} blocks", copy.blocks());
    // From one bay to another, the other bay reports it.
    daemon.empty_bay("c");
    let ran = daemon.bay(&["cp", "b:/workspace/t", "c:/workspace/t"]);
    assert!(ran.code != 0 && ran.errors().contains("deep/huge has 65 GiB in it"), "{ran}");
}

/// A tar header with these bytes in its size field.
fn header_of_size(name: &str, size: &[u8; 12]) -> Vec<u8> {
    let mut header = member(name, b'0', "", b"");
    header[124..136].copy_from_slice(size);
    header[148..156].copy_from_slice(b"        ");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}

#[test]
fn an_archive_that_announces_absurd_sizes_is_refused_and_uses_no_space() {
    let (daemon, _) = bay();
    let _old = daemon.sh("b", "mkdir t; echo old > t/huge").ok();
    let mut most = [0xff; 12];
    most[0] = 0x80;
    let mut eib = [0; 12];
    eib[0] = 0x80;
    eib[4..].copy_from_slice(&EIB.to_be_bytes());
    for (what, size) in [
        ("all of 95 bits", &most),
        ("an exbibyte", &eib),
        ("the largest in octal", b"777777777777"),
        ("less than nothing", &[0xff; 12]),
        ("no number", b"zzzzzzzzzzzz"),
    ] {
        let body = [header_of_size("huge", size), vec![b'x'; 4096], vec![0; 1024]].concat();
        let answer = put(&daemon, "archive", "/workspace/t", &body);
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!((400..500).contains(&answer.status), "{what}: {} {text}", answer.status);
        // A partial file never counts as complete, and no space is reserved for missing data.
        let size = daemon.sh("b", "du -sk t | cut -f1").ok().text();
        assert!(size.parse::<u64>().is_ok_and(|kib| kib <= 64), "{what}: {size} KiB");
        // The old file is still there, and no partial file beside it.
        assert_eq!(daemon.sh("b", "ls -A t; cat t/huge").ok().text(), "huge\nold", "{what}");
    }
    usable(&daemon);
}

#[test]
fn names_with_line_breaks_and_bytes_that_are_not_text_are_copied_both_ways() {
    let (daemon, guest) = bay();
    let scratch = Scratch::new();
    let names: [&[u8]; 6] =
        [b"line\nbreak", b"\xff\xfe", b"half\xc3", b"\x1b[2J", b"-rf", b"nul-free \x01\x7f\xf0\x9f"];
    let tree = scratch.join("tree");
    for name in names {
        let dir = tree.join(OsStr::from_bytes(name));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let _in = daemon.bay(&[OsStr::new("cp"), tree.as_os_str(), OsStr::new("b:/workspace/tree")]).ok();
    let back = scratch.join("back");
    let _out = daemon.bay(&[OsStr::new("cp"), OsStr::new("b:/workspace/tree"), back.as_os_str()]).ok();
    for name in names {
        let path = back.join(OsStr::from_bytes(name)).join(OsStr::from_bytes(name));
        assert_eq!(fs::read(&path).unwrap_or_else(|error| panic!("{path:?}: {error}")), name);
    }
    assert_eq!(fs::read_dir(&back).unwrap().count(), names.len());
    for name in names {
        // One file by its name: the kernel's names are bytes, and so are the guest's.
        let path = [b"/workspace/tree/", name, b"/", name].concat();
        let target = format!("GET /v1/files?path={}", bay_text::percent::path_value(&path));
        let read = beginning(&guest, &target, 1 << 16);
        assert!(status(&read) == 200 && read.ends_with(name), "{:?}", String::from_utf8_lossy(&read));
        // The CLI copies exactly this file or reports why it cannot; it never copies another one.
        let out = scratch.join("one");
        let from = OsString::from_vec([b"b:", path.as_slice()].concat());
        let ran = daemon.bay(&[OsStr::new("cp"), &from, out.as_os_str()]);
        match ran.code {
            0 => assert_eq!(fs::read(&out).unwrap(), name),
            _ => assert!(std::str::from_utf8(name).is_err() && !ran.errors().is_empty(), "{name:?}: {ran}"),
        }
        let _ = fs::remove_file(&out);
        let said = ran.errors();
        assert!(!said.chars().any(|c| c.is_control() && c != '\n'), "{ran}");
    }
    let health = daemon.rest("GET", "/v1/bays/b/files?path=%FF", &Value::Null);
    assert!((400..500).contains(&health.status), "{}", health.status);
    usable(&daemon);
}
