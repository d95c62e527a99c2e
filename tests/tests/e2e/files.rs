//! Files into and out of a bay. A hostile bay cannot misuse the copies.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use bay_tests::archive::member;
use bay_tests::suite::Scratch;
use bay_tests::{Daemon, until};
use bay_types::ErrorCode;

fn text(path: impl AsRef<std::path::Path>) -> String {
    path.as_ref().to_str().unwrap().to_owned()
}

#[test]
fn a_file_copied_in_and_out_is_unchanged() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let scratch = Scratch::new();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n * 7 % 251) as u8).collect();
    fs::write(scratch.join("in"), &bytes).unwrap();
    fs::set_permissions(scratch.join("in"), fs::Permissions::from_mode(0o750)).unwrap();
    let _in = daemon.bay(&["cp", &text(scratch.join("in")), "b:/workspace/file"]).ok();
    assert_eq!(daemon.sh("b", "stat -c '%s %a' file").ok().text(), "3000000 750");
    let _out = daemon.bay(&["cp", "b:/workspace/file", &text(scratch.join("out"))]).ok();
    assert_eq!(fs::read(scratch.join("out")).unwrap(), bytes);
    assert_eq!(fs::metadata(scratch.join("out")).unwrap().permissions().mode() & 0o777, 0o750);
    // Into a directory: the name stays.
    let _named = daemon.bay(&["cp", &text(scratch.join("in")), "b:/tmp"]).ok();
    assert_eq!(daemon.sh("b", "stat -c %s /tmp/in").ok().text(), "3000000");
    fs::create_dir(scratch.join("dir")).unwrap();
    let _back = daemon.bay(&["cp", "b:/tmp/in", &text(scratch.join("dir"))]).ok();
    assert_eq!(fs::read(scratch.join("dir/in")).unwrap(), bytes);
}

#[test]
fn a_directory_copied_in_and_out_keeps_links_modes_and_unusual_names() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let scratch = Scratch::new();
    let tree = scratch.join("tree");
    fs::create_dir_all(tree.join("sub/empty")).unwrap();
    fs::write(tree.join("sub/a b\n\"c\"'$x"), "odd\n").unwrap();
    fs::write(tree.join("run"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(tree.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("run", tree.join("link")).unwrap();
    symlink("/nonexistent", tree.join("dangling")).unwrap();
    let _in = daemon.bay(&["cp", &text(&tree), "b:/workspace/tree"]).ok();
    let _out = daemon.bay(&["cp", "b:/workspace/tree", &text(scratch.join("back"))]).ok();
    let back = scratch.join("back");
    assert_eq!(fs::read_to_string(back.join("sub/a b\n\"c\"'$x")).unwrap(), "odd\n");
    assert!(back.join("sub/empty").is_dir());
    assert_eq!(fs::metadata(back.join("run")).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::read_link(back.join("link")).unwrap().to_str(), Some("run"));
    assert_eq!(fs::read_link(back.join("dangling")).unwrap().to_str(), Some("/nonexistent"));
}

#[test]
fn missing_and_invalid_paths_are_reported() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let scratch = Scratch::new();
    let out = text(scratch.join("out"));
    fs::write(scratch.join("in"), "x").unwrap();
    let here = text(scratch.join("in"));
    daemon.bay(&["cp", "b:/nowhere", &out]).fails_with(ErrorCode::PathNotFound);
    daemon.bay(&["cp", &text(scratch.join("absent")), "b:/tmp/x"]).fails_with(ErrorCode::PathNotFound);
    daemon.bay(&["cp", "nobody:/etc/passwd", &out]).fails_with(ErrorCode::BayNotFound);
    daemon.bay(&["cp", &here, &out]).fails_with(ErrorCode::InvalidInput);
    daemon.bay(&["cp", &here, "b:/tmp/no/such/dir/x"]).fails_with(ErrorCode::PathNotFound);
    let long = format!("b:/tmp/{}", "x".repeat(4096));
    let too_long = daemon.bay(&["cp", &here, &long]);
    assert!([2, 3].contains(&too_long.code), "{too_long}");
    assert!(too_long.stderr.len() < 2000, "the message repeats four kilobytes: {too_long}");
    assert!(!scratch.join("out").exists());
}

#[test]
fn a_link_in_the_bay_never_leads_the_operators_copy_to_the_host() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let scratch = Scratch::new();
    fs::write(scratch.join("in"), "from outside\n").unwrap();
    let host_file = text(scratch.join("host-file"));
    fs::write(&host_file, "the host's own\n").unwrap();
    let _trap = daemon
        .sh("b", &format!("ln -s {host_file} /workspace/link; ln -s / /workspace/rootlink; ln -s /proc/1/root /workspace/magic"))
        .ok();
    // Reading through it: in the bay the link leads to a path without such a file.
    let read = daemon.bay(&["cp", "b:/workspace/link/.", &text(scratch.join("out"))]);
    assert_ne!(read.code, 0);
    // Writing through it never changes the host's file.
    let _ = daemon.bay(&["cp", &text(scratch.join("in")), "b:/workspace/link"]);
    let _ = daemon.bay(&["cp", &text(scratch.join("in")), &format!("b:/workspace/rootlink{host_file}")]);
    let _ = daemon.bay(&["cp", &text(scratch.join("in")), &format!("b:/workspace/magic{host_file}")]);
    let _ =
        daemon.bay(&["cp", &text(scratch.join("in")), &format!("b:/workspace/../../../../..{host_file}")]);
    assert_eq!(fs::read_to_string(&host_file).unwrap(), "the host's own\n");
    // A path through the kernel's own links is refused or stays inside.
    let shadow = daemon.bay(&["cp", "b:/proc/self/root/etc/shadow", &text(scratch.join("shadow"))]);
    assert!(shadow.code != 0 || !scratch.join("shadow").exists(), "{shadow}");
    assert!(daemon.rest("GET", "/v1/health", &serde_json::Value::Null).status == 200);
}

#[test]
fn a_link_that_is_swapped_during_copies_never_leads_to_the_host() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let scratch = Scratch::new();
    let host_dir = text(scratch.join("host-dir"));
    fs::create_dir(&host_dir).unwrap();
    fs::write(scratch.join("in"), "x").unwrap();
    let swap = format!(
        "mkdir -p /workspace/d; while :; do mv /workspace/d /workspace/e; ln -s {host_dir} /workspace/d; rm /workspace/d; mv /workspace/e /workspace/d; done"
    );
    let _swapping = daemon.bay(&["exec", "b", "-d", "--", "sh", "-c", &swap]).ok();
    for n in 0..60 {
        let _ = daemon.bay(&["cp", &text(scratch.join("in")), &format!("b:/workspace/d/f{n}")]);
    }
    assert_eq!(fs::read_dir(&host_dir).unwrap().count(), 0, "something was written on the host");
}

#[test]
fn a_hostile_tree_does_not_escape_the_directory_it_is_copied_to() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let scratch = Scratch::new();
    let victim = scratch.join("victim");
    fs::create_dir(&victim).unwrap();
    let out = scratch.join("out");
    let make = format!(
        "mkdir -p evil/sub && cd evil && ln -s {v} sub/out && ln -s ../../victim up && ln -s {v}/x x && \
         mknod fifo p && touch suid && chmod 6755 suid && echo '../../../victim/y' > list && ln suid hard",
        v = victim.display()
    );
    let _made = daemon.sh("b", &make).ok();
    let ran = daemon.bay(&["cp", "b:/workspace/evil", &text(&out)]);
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0, "{ran}");
    if let Ok(meta) = fs::symlink_metadata(out.join("suid")) {
        assert_eq!(meta.permissions().mode() & 0o6000, 0, "a set-user-id bit came to the operator");
    }
    assert!(
        fs::symlink_metadata(out.join("fifo")).map_or(true, |meta| meta.is_file()),
        "a fifo came to the operator"
    );
    // A second copy meets the links that the first one made, and does not follow them.
    let _made = daemon
        .sh("b", "cd evil && rm sub/out up x && mkdir sub/out up && touch sub/out/f up/f && echo x > x")
        .ok();
    let _again = daemon.bay(&["cp", "b:/workspace/evil", &text(&out)]);
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
}

#[test]
fn a_hostile_archive_copied_in_stays_in_its_directory() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _place =
        daemon.sh("b", "mkdir /tmp/target; ln -s /etc /tmp/target/link; echo safe > /etc/probe").ok();
    let archives: &[(&str, Vec<u8>)] = &[
        ("../escaped", member("../escaped", b'0', "", b"x")),
        ("/etc/escaped", member("/etc/escaped", b'0', "", b"x")),
        ("link/probe", member("link/probe", b'0', "", b"overwritten")),
        (
            "a link, then through it",
            [member("l", b'2', "/etc", b""), member("l/probe", b'0', "", b"overwritten")].concat(),
        ),
        ("a hard link out", member("h", b'1', "/etc/passwd", b"")),
        ("a device", member("dev", b'4', "", b"")),
        ("no archive at all", vec![b'x'; 2048]),
    ];
    for (what, bytes) in archives {
        let mut bytes = bytes.clone();
        bytes.extend([0; 1024]);
        let answer = bay_tests::rest::request(
            &daemon.socket(),
            "PUT",
            "/v1/bays/b/archive?path=%2Ftmp%2Ftarget",
            &bytes,
        );
        let answer = answer.unwrap_or_else(|error| panic!("{what}: {error}"));
        println!("{what}: {}", answer.status);
        assert_eq!(
            daemon.sh("b", "cat /etc/probe; ls /etc/escaped /tmp/escaped 2>/dev/null").text(),
            "safe",
            "{what}"
        );
    }
    assert_eq!(daemon.sh("b", "find /tmp/target -type b").ok().text(), "");
    assert_eq!(daemon.show("b")["state"], "running");
}

#[test]
fn a_file_that_grows_forever_does_not_exhaust_the_daemon() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let scratch = Scratch::new();
    let _growing =
        daemon.bay(&["exec", "b", "-d", "--", "sh", "-c", "while :; do echo more >> grow; done"]).ok();
    until("the file", || (daemon.sh("b", "ls grow").code == 0).then_some(()));
    let ran = daemon.bay(&["cp", "b:/workspace/grow", &text(scratch.join("out"))]);
    println!("{} bytes, exit {}", fs::metadata(scratch.join("out")).map_or(0, |meta| meta.len()), ran.code);
    assert_eq!(daemon.show("b")["state"], "running");
}

#[test]
fn a_full_disk_in_the_bay_fails_the_copy_and_leaves_the_old_file() {
    let daemon = Daemon::start();
    let scratch = Scratch::new();
    let repository = bay_tests::Repository::sample();
    let _up = daemon
        .bay(&["up", &repository.arg(), "--name", "b", "--image", bay_tests::SMALL, "--disk-mib", "64"])
        .ok();
    let bytes: Vec<u8> = (0..90_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(scratch.join("big"), bytes).unwrap();
    let _old = daemon.sh("b", "echo old > f").ok();
    let ran = daemon.bay(&["cp", &text(scratch.join("big")), "b:/workspace/f"]);
    // The bay's own limit, not the end of the pool: other bays continue.
    ran.fails_with(ErrorCode::DiskLimit);
    assert_eq!(daemon.sh("b", "cat f").ok().text(), "old");
    daemon.empty_bay("other");
    let _fits = daemon.bay(&["cp", &text(scratch.join("big")), "other:/workspace/f"]).ok();
    fs::rename(scratch.join("big"), repository.path().join("big")).unwrap();
    let line = ["up", &repository.arg(), "--name", "c", "--image", bay_tests::SMALL, "--disk-mib", "64"];
    let (_, next) = daemon.bay(&line).fails_with(ErrorCode::DiskLimit);
    assert!(next.contains("larger --disk-mib"), "{next}");
}
