//! The daemon or the guest dies during a long request. Repeating the request works.

use std::fs;
use std::time::Duration;

use bay_tests::daemon::listed;
use bay_tests::seeded_random::{SeededRandom, rounds};
use bay_tests::suite::Scratch;
use bay_tests::wait::pause;
use bay_tests::{Daemon, Repository, SMALL, until};
use bay_types::ErrorCode;
use rustix::process::{Pid, Signal, kill_process};

/// Longest time before the daemon dies: about the duration of an undisturbed round.
const LONGEST: Duration = Duration::from_millis(250);

#[test]
fn a_long_request_that_a_dying_daemon_cut_can_be_repeated() {
    let mut chance = SeededRandom::announced("kill -9 of the daemon during long work");
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let scratch = Scratch::new();
    let tree = scratch.join("tree");
    fs::create_dir_all(tree.join("bin")).unwrap();
    fs::copy(bay_tests::image::small().join("bin/busybox"), tree.join("bin/sh")).unwrap();
    let big = scratch.join("big");
    fs::write(&big, vec![b'x'; 3_000_000]).unwrap();
    let repository = Repository::sample();
    let mut cut = 0;
    for round in 0..rounds() {
        let (name, image) = (format!("r{round}"), format!("image-{round}"));
        // New content every time, so that no result of an earlier round is reused.
        fs::write(tree.join("content"), format!("{round}\n").repeat(20_000)).unwrap();
        repository.write("counter", &format!("{round}\n"));
        let _commit = repository.commit(&format!("round {round}"));
        repository.write("dirty", &format!("{round}\n"));
        let (source, path, file) =
            (format!("dir:{}", tree.display()), repository.arg(), big.display().to_string());
        let import = ["images", "import", &source, "--name", &image];
        let up = ["up", &path, "--image", SMALL, "--name", &name];
        let copy = ["cp", &file, "b:/workspace/big"];
        let verbs = [&import[..], &up[..], &copy[..]];
        let verb = verbs[chance.below(verbs.len())];
        let moment = chance.moment(LONGEST);

        let mut running = daemon.command(verb).spawn().unwrap();
        pause(moment);
        daemon.kill_9();
        let first = running.wait().unwrap();
        cut += usize::from(!first.success());
        daemon.launch();
        println!("round {round}: {verb:?} after {moment:?} -> {first}");

        // If the bay was acknowledged or has its row, it exists and is whole; then the name is taken.
        if verb[0] == "up" && daemon.list().iter().any(|bay| bay["name"] == name.as_str()) {
            let _settled = until("the bay to settle", || {
                Some(daemon.show(&name)).filter(|b| b["state"] == b["desired"])
            });
            assert_eq!(daemon.sh(&name, "cat counter").ok().text(), round.to_string());
            let _removed = daemon.bay(&["rm", "--yes", &name]).ok();
        }
        let _again = daemon.bay(verb).ok();
        match verb[0] {
            "up" => {
                assert_eq!(daemon.sh(&name, "cat counter dirty").ok().text(), format!("{round}\n{round}"));
                let _removed = daemon.bay(&["rm", "--yes", &name]).ok();
            }
            "images" => {
                let _made = daemon
                    .bay(&[
                        "up",
                        "--image",
                        &image,
                        "--name",
                        &name,
                        &scratch.join("tree").display().to_string(),
                    ])
                    .ok();
                let _removed = daemon.bay(&["rm", "--yes", &name]).ok();
                let _gone = daemon.bay(&["images", "rm", &image]).ok();
            }
            _ => assert_eq!(daemon.sh("b", "wc -c < big; ls | wc -l").ok().text(), "3000000\n1"),
        }
        let orphans = daemon.orphans();
        assert!(orphans.is_empty(), "left over:\n{}", listed(&orphans));
    }
    println!("{cut} verbs were cut in {} rounds", rounds());
}

#[test]
fn a_guest_that_dies_during_a_verb_does_not_block_it() {
    let mut chance = SeededRandom::announced("kill -9 of the guest during verbs");
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo kept > note; sync").ok();
    for round in 0..rounds() {
        let _running = daemon.bay(&["start", "b"]).ok();
        let pid = Pid::from_raw(daemon.host_pid("b")).unwrap();
        let verb = *chance.choose(&["stop", "pause", "replace"]);
        let moment = chance.moment(Duration::from_millis(60));
        let mut running = daemon.command(&[verb, "b"]).spawn().unwrap();
        pause(moment);
        // It may have ended already, if the verb was faster.
        let _ = kill_process(pid, Signal::KILL);
        let status = running.wait().unwrap();
        println!("round {round}: {verb} after {moment:?} -> {status}");
        let view = until("the bay to settle", || {
            Some(daemon.show("b")).filter(|bay| bay["state"] == bay["desired"] || bay["state"] == "failed")
        });
        assert!(view["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{view}");
        if view["state"] == "paused" {
            // If it was killed while frozen, it is made again, or was recorded as lost before the request.
            let resumed = daemon.bay(&["resume", "b"]);
            if resumed.code != 0 {
                let (what, _) = resumed.fails_with(ErrorCode::BayState);
                assert!(what.contains("the paused guest died"), "{what}");
            }
        }
        let _running = daemon.bay(&["start", "b"]).ok();
        assert_eq!(daemon.sh("b", "cat note").ok().text(), "kept");
    }
}
