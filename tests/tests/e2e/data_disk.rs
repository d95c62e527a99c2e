//! Faults of the disk below the data directory. The pool is on another disk, so bays continue. If the daemon cannot
//! record a change, it refuses it with a clear error. Nothing that it acknowledged is lost.

use std::fs;

use bay_tests::disk::{SmallDisk, remount};
use bay_tests::{CliRun, Daemon, suite};
use bay_types::ErrorCode;
use serde_json::json;

/// Size for the daemon's copy of the binary, its database and its logs.
const DATA_MIB: u64 = 768;

fn create(daemon: &Daemon, name: &str) -> String {
    let body = json!({ "name": name, "source": { "kind": "empty" }, "image": bay_tests::SMALL });
    String::from_utf8_lossy(&daemon.rest("POST", "/v1/bays", &body).body).into_owned()
}

#[test]
fn a_full_disk_below_the_data_directory_is_reported_and_nothing_acknowledged_is_lost() {
    let disk = SmallDisk::mounted_at(&suite::fresh("m"), DATA_MIB);
    let mut daemon = Daemon::setup().data_at(disk.path().join("d")).start();
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo kept > note").ok();
    let fill = disk.fill();

    // Verbs that must be recorded first are refused; reading continues.
    let mut acknowledged = Vec::new();
    let mut refused = 0;
    for round in 0..40 {
        let name = format!("n{round}");
        let answer = create(&daemon, &name);
        if answer.contains("\"done\"") {
            acknowledged.push(name);
        } else {
            assert!(answer.contains("pool-full"), "{answer}");
            assert!(answer.contains("free some space on that disk"), "{answer}");
            refused += 1;
            break;
        }
    }
    assert_eq!(refused, 1, "forty bays were written down on a full disk");
    assert_eq!(daemon.show("b")["state"], "running");
    let ran = daemon.sh("b", "cat note");
    if ran.code == 0 {
        assert_eq!(ran.text(), "kept");
    } else {
        assert!(ran.errors().contains("pool-full"), "{ran}");
    }

    // The daemon dies while the disk is full. With free space again, everything is there.
    daemon.kill_9();
    fs::remove_file(fill).unwrap();
    daemon.launch();
    assert_eq!(daemon.sh("b", "cat note").ok().text(), "kept");
    let names: Vec<String> =
        daemon.list().iter().map(|bay| bay["name"].as_str().unwrap_or_default().to_owned()).collect();
    for name in acknowledged {
        assert!(names.contains(&name), "{name} was acknowledged and is not in {names:?}");
    }
    assert!(create(&daemon, "after").contains("\"done\""));
    drop(daemon);
    drop(disk);
}

#[test]
fn a_daemon_reports_a_full_disk_at_its_start_and_starts_once_there_is_space() {
    let disk = SmallDisk::mounted_at(&suite::fresh("m"), DATA_MIB);
    let mut daemon = Daemon::setup().data_at(disk.path().join("d")).start();
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo kept > note").ok();
    daemon.kill_9();
    let fill = disk.fill();
    // It may start and refuse what it cannot record, or report that the disk is full; nothing else is acceptable.
    let mut child = daemon
        .serve()
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let outcome = bay_tests::wait::within(bay_tests::wait::PATIENCE, || {
        child.try_wait().unwrap().map(|_| "ended").or_else(|| {
            let health = bay_tests::rest::request(&daemon.socket(), "GET", "/v1/health", b"");
            health.is_ok_and(|answer| answer.status == 200).then_some("serves")
        })
    });
    let _ = child.kill();
    let ran = CliRun::new("serve".to_owned(), child.wait_with_output().unwrap());
    match outcome {
        Some("ended") => assert!(ran.errors().contains("pool-full"), "{ran}"),
        Some(_) => {}
        None => panic!("`bay serve` neither served nor ended: {ran}"),
    }
    fs::remove_file(fill).unwrap();
    daemon.launch();
    assert_eq!(daemon.sh("b", "cat note").ok().text(), "kept");
    drop(daemon);
    drop(disk);
}

#[test]
fn a_read_only_disk_below_the_data_directory_is_reported_and_nothing_is_lost() {
    let disk = SmallDisk::mounted_at(&suite::fresh("m"), DATA_MIB);
    let mut daemon = Daemon::setup().data_at(disk.path().join("d")).start();
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo kept > note").ok();
    // Usually a daemon starts on a disk that is already read-only. So it is killed first: a disk with open files cannot
    // be remounted.
    daemon.kill_9();
    remount(disk.path(), "ro");
    let output = daemon.serve().output().unwrap();
    let ran = CliRun::new("serve".to_owned(), output);
    assert_eq!(ran.code, i32::from(ErrorCode::PoolReadOnly.exit_code()), "{ran}");
    assert!(ran.errors().contains("pool-read-only"), "{ran}");
    assert!(ran.errors().contains("next: "), "{ran}");
    remount(disk.path(), "rw");
    daemon.launch();
    assert_eq!(daemon.sh("b", "cat note").ok().text(), "kept");
    drop(daemon);
    drop(disk);
}
