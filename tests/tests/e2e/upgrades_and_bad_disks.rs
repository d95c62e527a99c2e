//! Bays survive upgrades, reboots and second daemons. Disks and databases in bad states cause clear errors, and nothing
//! is lost.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::process::Command;

use bay_tests::disk::{SmallDisk, remount};
use bay_tests::wait::within;
use bay_tests::{CliRun, Daemon, leaks, until};
use bay_types::ErrorCode;
use bay_types::bay::State;
use serde_json::{Value, json};

/// Runs `bay serve` on this daemon's directory, and asserts that it refuses to start.
fn serve_refuses(daemon: &Daemon, code: ErrorCode) -> (String, String) {
    let mut child = daemon
        .serve()
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let ended = within(bay_tests::wait::PATIENCE, || child.try_wait().unwrap());
    if ended.is_none() {
        child.kill().unwrap();
    }
    let ran = CliRun::new("serve".to_owned(), child.wait_with_output().unwrap());
    assert!(ended.is_some(), "`bay serve` went on where it should refuse with {code}: {ran}");
    assert_eq!(ran.code, i32::from(code.exit_code()), "{ran}");
    // Log lines may come first; the last two lines are the error.
    let text = ran.errors();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let [.., what, next] = lines[..] else { panic!("{ran}") };
    assert!(what.contains(code.as_str()), "{ran}");
    assert!(next.starts_with("next: ") && next.len() > 14, "{ran}");
    (what.to_owned(), next.to_owned())
}

#[test]
fn running_bays_survive_a_daemon_restart() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    daemon.empty_bay("p");
    daemon.empty_bay("s");
    let _ticking = daemon.bay(&["exec", "b", "-d", "--", "sleep", "1003"]).ok();
    let _paused = daemon.bay(&["pause", "p"]).ok();
    let _stopped = daemon.bay(&["stop", "s"]).ok();
    let (b, p) = (daemon.host_pid("b"), daemon.host_pid("p"));
    let since = daemon.show("b")["since"].clone();
    daemon.restart();
    assert_eq!((daemon.host_pid("b"), daemon.host_pid("p")), (b, p));
    let states: Vec<Value> = ["b", "p", "s"].iter().map(|bay| daemon.show(bay)["state"].clone()).collect();
    assert_eq!(states, ["running", "paused", "stopped"]);
    assert_eq!(daemon.sh("b", "ps -o args | grep -cx 'sleep 1003'").text(), "1");
    assert_eq!(daemon.show("b")["since"], since, "nothing changed for the bay");
    let _resumed = daemon.bay(&["resume", "p"]).ok();
    assert_eq!(daemon.sh("p", "echo alive").ok().text(), "alive");
}

#[test]
fn bays_survive_an_upgrade_of_the_binary() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let exec = daemon
        .bay(&[
            "exec",
            "b",
            "-d",
            "--json",
            "--",
            "sh",
            "-c",
            "echo before; while [ ! -e /tmp/go ]; do usleep 1000; done; echo after; exit 3",
        ])
        .ok()
        .json();
    let exec = exec["id"].as_str().unwrap().to_owned();
    let pid = daemon.host_pid("b");
    daemon.upgrade();
    assert_eq!(daemon.host_pid("b"), pid, "an upgrade restarts no bay");
    let _go = daemon.sh("b", "touch /tmp/go").ok();
    let view = until("the old exec to end", || {
        let view = daemon.rest("GET", &format!("/v1/bays/b/execs/{exec}"), &Value::Null).json();
        (!view["exit"].is_null()).then_some(view)
    });
    assert_eq!(view["exit"]["code"], 3);
    assert_eq!(daemon.bay(&["logs", "b", &exec]).ok().text(), "before\nafter");
    // New and restarted bays have the new guest.
    daemon.empty_bay("c");
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let _started = daemon.bay(&["start", "b"]).ok();
    assert_eq!(daemon.sh("b", "echo alive").ok().text(), "alive");
    let guests = fs::read_dir(daemon.data_dir.join("guest")).unwrap().count();
    assert!(guests >= 1, "no guest executable is kept");
}

#[test]
fn everything_is_there_after_a_reboot() {
    let mut daemon = Daemon::setup().own_pool(1024).start();
    for (bay, verb) in [("running", ""), ("paused", "pause"), ("stopped", "stop")] {
        daemon.empty_bay(bay);
        let _written = daemon.sh(bay, &format!("echo {bay} > note; sync")).ok();
        if !verb.is_empty() {
            let _done = daemon.bay(&[verb, bay]).ok();
        }
    }
    let exec = daemon
        .bay(&["exec", "running", "-d", "--json", "--", "sh", "-c", "echo begun; sleep 1000"])
        .ok()
        .json();
    let exec = exec["id"].as_str().unwrap().to_owned();
    until("output", || (daemon.bay(&["logs", "running", &exec]).text() == "begun").then_some(()));
    daemon.pull_the_plug();
    assert_eq!(leaks::mounts(&daemon.pool), Vec::<std::path::PathBuf>::new(), "the pool is unmounted");
    assert_eq!(leaks::loop_devices(&daemon.pool), []);
    daemon.launch();
    let view = daemon.until_state("running", State::Running);
    assert!(view["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{view}");
    // Memory does not survive a reboot, and the view says so.
    let paused = daemon.show("paused");
    assert_eq!(paused["state"], "stopped", "{paused}");
    assert_eq!(daemon.show("stopped")["state"], "stopped");
    let _started = daemon.bay(&["start", "paused"]).ok();
    let _started = daemon.bay(&["start", "stopped"]).ok();
    for bay in ["running", "paused", "stopped"] {
        assert_eq!(daemon.sh(bay, "cat note").ok().text(), bay);
    }
    let lost = daemon.rest("GET", &format!("/v1/bays/running/execs/{exec}"), &Value::Null).json();
    assert_eq!(lost["exit"]["reason"], "lost", "{lost}");
    assert_eq!(daemon.bay(&["logs", "running", &exec]).ok().text(), "begun");
    assert_eq!(daemon.orphans(), []);
}

#[test]
fn a_second_daemon_on_one_data_directory_is_refused_and_the_first_continues() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let (what, _) = serve_refuses(&daemon, ErrorCode::DataDirBusy);
    assert!(what.contains(&*daemon.data_dir.to_string_lossy()), "{what}");
    assert_eq!(daemon.sh("b", "echo alive").ok().text(), "alive");
    assert_eq!(daemon.show("b")["state"], "running");
}

#[test]
fn two_daemons_side_by_side_share_images_and_nothing_else() {
    let one = Daemon::start();
    let two = Daemon::start();
    one.empty_bay("b");
    two.empty_bay("b");
    let _written = one.sh("b", "echo one > note").ok();
    assert_eq!(two.sh("b", "ls -A | wc -l").ok().text(), "0");
    let _removed = one.bay(&["rm", "b", "--yes"]).ok();
    assert_eq!(two.sh("b", "echo alive").ok().text(), "alive");
    assert_eq!(one.list().len(), 0);
    // The other daemon's bay uses the image.
    one.bay(&["images", "rm", bay_tests::SMALL]).fails_with(ErrorCode::ImageInUse);
}

#[test]
fn a_damaged_database_is_refused_and_stays_unchanged() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo kept > note").ok();
    let pid = daemon.host_pid("b");
    daemon.kill_9();
    let database = daemon.data_dir.join("bay.db");
    let copies: Vec<(std::path::PathBuf, Vec<u8>)> = fs::read_dir(&daemon.data_dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("bay.db")))
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    for damage in ["header", "middle", "empty", "not a database"] {
        for (path, bytes) in &copies {
            fs::write(path, bytes).unwrap();
        }
        for (path, _) in copies.iter().filter(|(path, _)| *path != database) {
            fs::remove_file(path).unwrap();
        }
        match damage {
            "header" => overwrite(&database, 0, &[0xff; 100]),
            "middle" => {
                let length = fs::metadata(&database).unwrap().len();
                overwrite(
                    &database,
                    4096,
                    &vec![0xa5; usize::try_from(length.saturating_sub(4096)).unwrap().max(4096)],
                );
            }
            "empty" => fs::write(&database, b"").unwrap(),
            _ => fs::write(&database, b"this is a letter, not a database\n".repeat(300)).unwrap(),
        }
        let damaged = fs::read(&database).unwrap();
        let (what, _) = serve_refuses(&daemon, ErrorCode::StoreDamaged);
        assert!(what.contains("bay.db"), "{damage}: {what}");
        assert_eq!(fs::read(&database).unwrap(), damaged, "{damage}: the damaged file was changed");
        assert!(!leaks::ended(pid), "{damage}: the bay was ended");
    }
    for (path, bytes) in &copies {
        fs::write(path, bytes).unwrap();
    }
    daemon.launch();
    assert_eq!(daemon.host_pid("b"), pid);
    assert_eq!(daemon.sh("b", "cat note").ok().text(), "kept");
}

fn overwrite(path: &std::path::Path, at: u64, bytes: &[u8]) {
    let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(bytes).unwrap();
}

#[test]
fn a_truncated_pool_file_is_refused_and_stays_unchanged() {
    let mut daemon = Daemon::setup().own_pool(768).start();
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo kept > note; sync").ok();
    daemon.pull_the_plug();
    let file = daemon.pool.join("pool.img");
    let length = fs::metadata(&file).unwrap().len();
    let whole = daemon.pool.join("whole.img");
    let copied = Command::new("cp").args(["--sparse=always"]).arg(&file).arg(&whole).status().unwrap();
    assert!(copied.success());
    for kept in [length / 2, 1 << 20, 0] {
        fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(kept).unwrap();
        let (what, _) = serve_refuses(&daemon, ErrorCode::PoolDamaged);
        assert!(what.contains("pool"), "{what}");
        assert_eq!(fs::metadata(&file).unwrap().len(), kept, "the damaged file was changed");
        assert_eq!(leaks::loop_devices(&daemon.pool), [], "a loop device was left");
    }
    fs::rename(&whole, &file).unwrap();
    daemon.launch();
    let _started = daemon.bay(&["start", "b"]).ok();
    assert_eq!(daemon.sh("b", "cat note").ok().text(), "kept");
}

#[test]
fn a_missing_pool_file_is_not_replaced_by_an_empty_one() {
    let mut daemon = Daemon::setup().own_pool(768).start();
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo kept > note; sync").ok();
    daemon.pull_the_plug();
    let (file, away) = (daemon.pool.join("pool.img"), daemon.pool.join("away.img"));
    fs::rename(&file, &away).unwrap();
    // If there are bays on record but no pool, a new pool would make every workspace appear deleted.
    serve_refuses(&daemon, ErrorCode::PoolDamaged);
    if file.exists() {
        leaks::close_pool(&daemon.pool);
    }
    fs::rename(&away, &file).unwrap();
    daemon.launch();
    let _started = daemon.bay(&["start", "b"]).ok();
    assert_eq!(daemon.sh("b", "cat note").ok().text(), "kept");
}

#[test]
fn a_read_only_pool_is_reported_and_nothing_is_lost() {
    let mut daemon = Daemon::setup().own_pool(768).start();
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo kept > note; sync").ok();
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let point = daemon.pool.join("mnt");
    remount(&point, "ro");
    let body = json!({ "name": "c", "source": { "kind": "empty" }, "image": bay_tests::SMALL });
    let text = String::from_utf8_lossy(&daemon.rest("POST", "/v1/bays", &body).body).into_owned();
    assert!(text.contains("pool-read-only"), "{text}");
    assert_eq!(daemon.show("b")["state"], "stopped");
    daemon.kill_9();
    serve_refuses(&daemon, ErrorCode::PoolReadOnly);
    remount(&point, "rw");
    daemon.launch();
    let _started = daemon.bay(&["start", "b"]).ok();
    assert_eq!(daemon.sh("b", "cat note").ok().text(), "kept");
}

#[test]
fn a_full_pool_on_a_full_disk_is_reported_and_recovers_once_space_is_freed() {
    let disk = SmallDisk::mounted_at(&bay_tests::suite::fresh("p"), 3300);
    let daemon = Daemon::setup().pool_at(disk.path().join("pool"), 600).start();
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo kept > note; sync").ok();
    // Its output may be lost for lack of space; its exit code is not.
    let filled = daemon.sh("b", "dd if=/dev/urandom of=/workspace/fill bs=1M count=3000 2>/dev/null && sync");
    assert_ne!(filled.code, 0, "3000 MiB fit into less: {filled}");
    // The bay reports what it can, the daemon runs, and the list is true.
    assert_eq!(daemon.show("b")["state"], "running");
    let body = json!({ "name": "c", "source": { "kind": "empty" }, "image": bay_tests::SMALL });
    let text = String::from_utf8_lossy(&daemon.rest("POST", "/v1/bays", &body).body).into_owned();
    println!("{text}");
    if !text.contains("\"done\"") {
        assert!(text.contains("pool-full") || text.contains("not-enough"), "{text}");
    }
    assert_eq!(daemon.sh("b", "cat note").ok().text(), "kept");
    let _freed = daemon.sh("b", "rm fill; sync").ok();
    until("a new bay to fit again", || {
        let body = json!({ "name": "d", "source": { "kind": "empty" }, "image": bay_tests::SMALL });
        let text = String::from_utf8_lossy(&daemon.rest("POST", "/v1/bays", &body).body).into_owned();
        text.contains("\"done\"").then_some(())
    });
    assert_eq!(daemon.sh("d", "echo up").ok().text(), "up");
    drop(daemon);
    drop(disk);
}

#[test]
fn checkpoints_and_restores_on_a_full_pool_lose_nothing() {
    let disk = SmallDisk::mounted_at(&bay_tests::suite::fresh("p"), 3300);
    let mut daemon = Daemon::setup().pool_at(disk.path().join("pool"), 600).start();
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo one > note; sync").ok();
    let _v1 = daemon.bay(&["checkpoint", "b", "--files-only"]).ok();
    let _written = daemon.sh("b", "echo two > note; sync").ok();
    let filled = daemon.sh("b", "dd if=/dev/urandom of=/workspace/fill bs=1M count=3000 2>/dev/null && sync");
    assert_ne!(filled.code, 0, "3000 MiB fit into less: {filled}");
    let listed =
        || daemon.rest("GET", "/v1/bays/b/checkpoints", &Value::Null).json().as_array().unwrap().len();
    for _ in 0..3 {
        let (before, ran) = (listed(), daemon.bay(&["checkpoint", "b", "--files-only"]));
        // It is so small that it may still fit. Every listed checkpoint is whole, and a refusal leaves nothing.
        assert_eq!(listed(), before + usize::from(ran.code == 0), "{ran}");
        assert!(ran.code == 0 || ran.errors().contains("pool-full"), "{ran}");
        assert_eq!(daemon.show("b")["state"], "running");
    }
    assert_eq!(daemon.sh("b", "cat note").ok().text(), "two");
    // A restore needs almost no space, and frees some.
    let back = daemon.bay(&["restore", "b", "v1"]);
    if back.code == 0 {
        assert_eq!(daemon.sh("b", "cat note; ls").ok().text(), "one\nnote");
    } else {
        assert!(back.errors().contains("pool-full"), "{back}");
        assert_eq!(daemon.sh("b", "cat note").ok().text(), "two");
    }
    daemon.restart();
    assert_eq!(daemon.until_state("b", State::Running)["state"], "running");
    drop(daemon);
    drop(disk);
}

#[test]
fn a_disk_that_is_too_small_for_a_pool_is_reported_before_anything_is_made() {
    let disk = SmallDisk::mounted_at(&bay_tests::suite::fresh("p"), 64);
    let daemon = Daemon::setup().pool_at(disk.path().join("pool"), 4096).unstarted();
    let ran = {
        let output = daemon.serve().output().unwrap();
        CliRun::new("serve".to_owned(), output)
    };
    assert_ne!(ran.code, 0, "{ran}");
    assert!(ran.errors().contains("not-enough") || ran.errors().contains("pool-full"), "{ran}");
    assert_eq!(leaks::loop_devices(disk.path()), []);
    drop(daemon);
    drop(disk);
}

#[test]
fn events_form_a_chain_without_gaps_across_restarts() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    daemon.restart();
    let _ran = daemon.sh("b", "true").ok();
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    daemon.restart();
    let events = daemon.rest("GET", "/v1/events?since=0", &Value::Null).json();
    let events = events.as_array().unwrap();
    assert!(events.len() > 4, "{events:?}");
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["seq"], at as u64 + 1, "{event}");
        assert!(event["hash"].as_str().is_some_and(|hash| hash.len() == 64), "{event}");
    }
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["kind"].as_str()).collect();
    assert!(kinds.contains(&"bay.create") && kinds.contains(&"exec.start"), "{kinds:?}");
}

#[test]
fn serve_stop_ends_the_daemon_in_order_and_its_bays_keep_running() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let counting = "i=0; while :; do i=$((i+1)); echo $i > /workspace/n; sleep 0.05; done";
    let _ran = daemon.bay(&["exec", "b", "-d", "--", "sh", "-c", counting]).ok();
    let before = (daemon.pid(), daemon.host_pid("b"));
    let stopped = daemon.bay(&["serve", "--stop", "--json"]).ok().json();
    assert_eq!((&stopped["pid"], &stopped["bays"]), (&before.0.into(), &1.into()), "{stopped}");
    assert!(fs::metadata(format!("/proc/{}", before.1)).is_ok(), "the bay went with the daemon");
    let again = daemon.bay(&["serve", "--stop"]).ok();
    assert!(again.text().contains("no daemon runs"), "{again}");
    daemon.terminate();
    daemon.launch();
    assert_eq!(daemon.host_pid("b"), before.1);
    assert!(daemon.sh("b", "cat n").ok().text().parse::<u64>().is_ok());
    let said = daemon.bay(&["serve", "--stop"]).ok();
    assert!(said.text().contains("1 bay keeps running"), "{said}");
    daemon.terminate();
    daemon.launch();
}
