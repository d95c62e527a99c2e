//! Checkpoints and forks: branch a machine, restore it, lose nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use bay_tests::wait::pause;
use bay_tests::{Daemon, until};
use bay_types::ErrorCode;
use bay_types::bay::State;
use serde_json::{Value, json};

fn names(daemon: &Daemon, bay: &str) -> Vec<String> {
    let all = daemon.bay(&["checkpoints", "ls", bay, "--json"]).ok().json();
    all.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

fn read(daemon: &Daemon, bay: &str, script: &str) -> String {
    daemon.sh(bay, script).ok().text()
}

#[test]
fn a_checkpoint_has_workspace_and_root_of_one_moment_and_the_bay_continues() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let pid = daemon.host_pid("b");
    // Both files are replaced in turn, each by a rename: neither is ever empty, and the second is at most one behind.
    let counting = "i=0; while :; do i=$((i+1)); \
                    echo $i > /workspace/n.new; mv /workspace/n.new /workspace/n; \
                    echo $i > /var/n.new; mv /var/n.new /var/n; done";
    let exec = daemon.bay(&["exec", "b", "-d", "--json", "--", "sh", "-c", counting]).ok().json();
    until("it to count", || {
        (daemon.sh("b", "test -s /var/n && test $(cat /workspace/n) -gt 50").code == 0).then_some(())
    });
    let mut last = 0;
    for number in 1..=3 {
        let made =
            daemon.bay(&["checkpoint", "b", "-m", "while it counts", "--files-only", "--json"]).ok().json();
        assert_eq!(made["name"], format!("v{number}"));
        assert_eq!(made["kind"], "files");
        assert_eq!(made["parent"], if number == 1 { Value::Null } else { json!(format!("v{}", number - 1)) });
        assert!(made["pause_ms"].as_f64().unwrap() > 0.0, "{made}");
        assert!(made["after_exec"].is_string(), "{made}");
        let at = |part: &str| {
            let path = format!("/.bay/checkpoints/v{number}/{part}/n");
            read(&daemon, "b", &format!("cat {path}")).trim().parse::<u64>().unwrap()
        };
        let (workspace, root) = (at("workspace"), at("root/var"));
        assert!([root, root + 1].contains(&workspace), "{workspace} and {root} are not of one moment");
        assert!(workspace > last, "{workspace} after {last}");
        last = workspace;
    }
    assert_eq!(daemon.host_pid("b"), pid);
    let going = || read(&daemon, "b", "cat /var/n").trim().parse::<u64>().unwrap();
    let now = going();
    until("it to go on counting", || (going() > now + 10).then_some(()));
    let _killed = daemon.bay(&["kill", "b", exec["id"].as_str().unwrap()]).ok();
}

#[test]
fn a_restore_makes_the_previous_state_a_checkpoint_first() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ = daemon.sh("b", "echo one > /workspace/f; echo one > /etc/f; mkdir /workspace/d").ok();
    let _v1 = daemon.bay(&["checkpoint", "b"]).ok();
    let _ =
        daemon.sh("b", "echo two > /workspace/f; rm /etc/f; rmdir /workspace/d; echo new > /srv-new").ok();
    let done = daemon.bay(&["restore", "b", "v1", "--json"]).ok().json();
    assert_eq!(done["bay"]["state"], "running");
    assert_eq!(done["bay"]["checkpoint"], "v1");
    assert_eq!(done["before"]["name"], "v2");
    assert!(done["before"]["automatic"].as_str().unwrap().contains("v1"), "{done}");
    assert_eq!(
        read(&daemon, "b", "cat /workspace/f /etc/f; ls -d /workspace/d; ls /srv-new || true"),
        "one\none\n/workspace/d"
    );
    // And back again: the tree has two branches now.
    let done = daemon.bay(&["restore", "b", "v2", "--json"]).ok().json();
    assert_eq!(done["before"]["parent"], "v1");
    assert_eq!(
        read(&daemon, "b", "cat /workspace/f /srv-new; ls /etc/f 2>/dev/null || echo none"),
        "two\nnew\nnone"
    );
    let _v4 = daemon.bay(&["checkpoint", "b", "-m", "on the second branch"]).ok();
    let all = daemon.bay(&["checkpoints", "ls", "b", "--json"]).ok().json();
    let parents: Vec<&Value> = all.as_array().unwrap().iter().map(|one| &one["parent"]).collect();
    assert_eq!(parents, [&Value::Null, &json!("v1"), &json!("v1"), &json!("v2")]);
    // A restore does not remove the output of execs.
    let execs = daemon.rest("GET", "/v1/bays/b/execs", &Value::Null).json();
    assert!(execs.as_array().unwrap().len() > 3);
}

#[test]
fn a_stopped_bay_is_captured_and_restored_and_stays_stopped() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ = daemon.sh("b", "echo one > f").ok();
    let _ = daemon.bay(&["stop", "b"]).ok();
    let made = daemon.bay(&["checkpoint", "b", "--json"]).ok().json();
    assert_eq!(made["pause_ms"], 0.0);
    let _ = daemon.bay(&["start", "b"]).ok();
    let _ = daemon.sh("b", "echo two > f").ok();
    let _ = daemon.bay(&["stop", "b"]).ok();
    let done = daemon.bay(&["restore", "b", "v1", "--json"]).ok().json();
    assert_eq!(done["bay"]["state"], "stopped");
    let _ = daemon.bay(&["start", "b"]).ok();
    assert_eq!(read(&daemon, "b", "cat f"), "one");
    // A paused bay is captured without resuming it.
    let _ = daemon.bay(&["pause", "b"]).ok();
    let made = daemon.bay(&["checkpoint", "b", "--json"]).ok().json();
    assert_eq!(made["pause_ms"], 0.0);
    assert_eq!(daemon.show("b")["state"], "paused");
}

#[test]
fn children_of_a_fork_begin_equal_and_are_independent() {
    let daemon = Daemon::start();
    daemon.empty_bay("web");
    let _ = daemon.sh("web", "echo parent > f; echo parent > /etc/f").ok();
    let made = daemon.bay(&["fork", "web", "--count", "2", "--files-only", "--json"]).ok().json();
    let children: Vec<&str> =
        made["bays"].as_array().unwrap().iter().map(|bay| bay["name"].as_str().unwrap()).collect();
    assert_eq!(children, ["web-fork-1", "web-fork-2"]);
    for (index, child) in children.iter().enumerate() {
        assert_eq!(read(&daemon, child, "cat f /etc/f; hostname"), format!("parent\nparent\n{child}"));
        let _ = daemon.sh(child, &format!("echo {child} > f; echo {child} > /etc/f")).ok();
        let bay = daemon.show(child);
        assert_eq!(bay["forked_from"]["name"], "web");
        assert_eq!(bay["forked_from"]["checkpoint"], made["checkpoint"]["name"]);
        assert_eq!(bay["forked_from"]["index"], index);
    }
    for child in ["web-fork-1", "web-fork-2"] {
        assert_eq!(read(&daemon, child, "cat f /etc/f"), format!("{child}\n{child}"));
    }
    assert_eq!(read(&daemon, "web", "cat f /etc/f"), "parent\nparent");
    let machine_ids: std::collections::HashSet<String> = ["web", "web-fork-1", "web-fork-2"]
        .iter()
        .map(|bay| read(&daemon, bay, "cat /etc/machine-id"))
        .collect();
    assert_eq!(machine_ids.len(), 3, "each is a machine of its own");

    // From an earlier checkpoint, with another name, and of a child.
    let _ = daemon.bay(&["fork", "web-fork-2", "--from", "v1"]).fails_with(ErrorCode::CheckpointNotFound);
    let _ = daemon.bay(&["fork", "web", "--from", "v1", "--name", "fix"]).ok();
    assert_eq!(read(&daemon, "fix-1", "cat f"), "parent");
    let _ = daemon.bay(&["fork", "web-fork-2", "--name", "fix"]).ok();
    assert_eq!(read(&daemon, "fix-2", "cat f"), "web-fork-2");
    // The parent's removal does not affect the children.
    let _ = daemon.bay(&["rm", "web", "--yes"]).ok();
    assert_eq!(read(&daemon, "fix-1", "cat f"), "parent");
    let _ = daemon.bay(&["stop", "fix-1"]).ok();
    let _ = daemon.bay(&["start", "fix-1"]).ok();
    assert_eq!(read(&daemon, "fix-1", "cat f"), "parent");
}

#[test]
fn hooks_run_in_each_child_before_anything_else_and_only_once() {
    let daemon = Daemon::start();
    daemon.empty_bay("web");
    let hooks = "mkdir -p /etc/bay/fork.d && cd /etc/bay/fork.d
        printf '#!/bin/sh\\necho child $BAY_FORK_INDEX of $(hostname) >> /etc/born\\n' > 10-name
        printf '#!/bin/sh\\necho no luck; exit 3\\n' > 20-fails
        printf 'not a program' > 30-notes; chmod +x 10-name 20-fails";
    let _ = daemon.sh("web", hooks).ok();
    let _ = daemon
        .bay(&[
            "services",
            "add",
            "web",
            "s",
            "--",
            "sh",
            "-c",
            "cat /etc/born > /workspace/seen; sleep 1000",
        ])
        .ok();
    let made = daemon.bay(&["fork", "web", "--count", "2", "--files-only", "--json"]).ok().json();
    for (index, child) in ["web-fork-1", "web-fork-2"].iter().enumerate() {
        let reason = made["bays"][index]["reason"].as_str().unwrap();
        assert!(reason.contains("20-fails") && reason.contains("no luck"), "{reason}");
        let born = format!("child {index} of {child}");
        assert_eq!(read(&daemon, child, "cat /etc/born"), born);
        until("the service to see it", || (daemon.sh(child, "cat seen").text() == born).then_some(()));
        let _ = daemon.bay(&["stop", child]).ok();
        let _ = daemon.bay(&["start", child]).ok();
        assert_eq!(read(&daemon, child, "cat /etc/born"), born, "not again at the next start");
    }
    let _ = daemon.sh("web", "test ! -e /etc/born").ok();
}

#[test]
fn a_promotion_replaces_the_parents_state_and_can_be_reverted() {
    let daemon = Daemon::start();
    daemon.empty_bay("web");
    let _ = daemon.sh("web", "echo parent > f").ok();
    let _ = daemon.bay(&["fork", "web"]).ok();
    let _ = daemon.sh("web-fork-1", "echo child > f; echo child > /etc/f").ok();
    let _ = daemon.sh("web", "echo later > f").ok();
    let done = daemon.bay(&["promote", "web-fork-1", "--into", "web", "--json"]).ok().json();
    assert_eq!(done["bay"]["name"], "web");
    assert_eq!(read(&daemon, "web", "cat f /etc/f; hostname"), "child\nchild\nweb");
    assert_eq!(read(&daemon, "web-fork-1", "cat f"), "child", "the child lives on");
    let before = done["before"]["name"].as_str().unwrap();
    let _ = daemon.bay(&["restore", "web", before]).ok();
    assert_eq!(read(&daemon, "web", "cat f; ls /etc/f 2>/dev/null || echo none"), "later\nnone");
    let _ = daemon.bay(&["promote", "web", "--into", "web"]).fails_with(ErrorCode::InvalidInput);
}

#[test]
fn a_replaced_root_can_be_restored() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ = daemon.sh("b", "echo mine > /etc/mine").ok();
    let _ = daemon.bay(&["replace", "b"]).ok();
    let _ = daemon.sh("b", "test ! -e /etc/mine").ok();
    let all = daemon.bay(&["checkpoints", "ls", "b", "--json"]).ok().json();
    assert!(all[0]["automatic"].as_str().unwrap().contains("replaced"), "{all}");
    let _ = daemon.bay(&["restore", "b", "v1"]).ok();
    assert_eq!(read(&daemon, "b", "cat /etc/mine"), "mine");
}

#[test]
fn removing_one_checkpoint_affects_no_other_and_no_number_is_reused() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    for number in 1..=4 {
        let _ = daemon.sh("b", &format!("echo {number} > f")).ok();
        let _ = daemon.bay(&["checkpoint", "b"]).ok();
    }
    let _ = daemon.bay(&["checkpoints", "rm", "b", "v2", "v9"]).fails_with(ErrorCode::CheckpointNotFound);
    assert_eq!(names(&daemon, "b").len(), 4, "nothing is removed when one of them does not exist");
    let _ = daemon.bay(&["checkpoints", "rm", "b", "v2", "v4"]).ok();
    let all = daemon.bay(&["checkpoints", "ls", "b", "--json"]).ok().json();
    assert_eq!(all[1]["parent"], "v1", "what descended from v2 descends from v1");
    assert_eq!(all[1]["current"], true, "and the bay from v3");
    let _ = daemon.bay(&["restore", "b", "v1"]).ok();
    assert_eq!(read(&daemon, "b", "cat f"), "1");
    let _ = daemon.bay(&["restore", "b", "v3"]).ok();
    assert_eq!(read(&daemon, "b", "cat f"), "3");
    assert_eq!(names(&daemon, "b"), ["v1", "v3", "v5", "v6"]);
    for odd in ["v0", "v2", "latest", "../v1", "v"] {
        let ran = daemon.bay(&["restore", "b", odd]);
        assert_ne!(ran.code, 0, "{odd}");
    }
}

#[test]
fn the_newest_five_are_readable_inside_and_nothing_there_can_be_changed() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    for number in 1..=7 {
        let _ = daemon.sh("b", &format!("echo {number} > f; chmod 600 f; chown 1000 f")).ok();
        let _ = daemon.bay(&["checkpoint", "b"]).ok();
    }
    assert_eq!(read(&daemon, "b", "ls /.bay/checkpoints"), "v3\nv4\nv5\nv6\nv7");
    assert_eq!(read(&daemon, "b", "cat /.bay/checkpoints/v*/workspace/f"), "3\n4\n5\n6\n7");
    assert_eq!(read(&daemon, "b", "ls /.bay/checkpoints/v3"), "root\nworkspace");
    for attack in [
        "echo x > /.bay/checkpoints/v3/workspace/f",
        "rm -f /.bay/checkpoints/v3/workspace/f",
        "mkdir /.bay/checkpoints/v9",
        "mv /.bay/checkpoints/v3 /.bay/checkpoints/v1",
        "mount -o remount,rw /.bay/checkpoints",
        "umount /.bay/checkpoints && ls /.bay/checkpoints/v3",
        "chmod 777 /.bay/checkpoints",
    ] {
        assert_ne!(daemon.sh("b", attack).code, 0, "{attack}");
    }
    // Another user of the bay can read there what its permissions allow.
    let other =
        daemon.bay(&["exec", "b", "--user", "65534", "--", "cat", "/.bay/checkpoints/v3/workspace/f"]);
    assert_ne!(other.code, 0);
    let _ = daemon.bay(&["checkpoints", "rm", "b", "v7"]).ok();
    assert_eq!(read(&daemon, "b", "ls /.bay/checkpoints"), "v2\nv3\nv4\nv5\nv6");
}

#[test]
fn services_are_restored_with_their_files() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ = daemon.bay(&["services", "add", "b", "one", "--", "sleep", "1000"]).ok();
    let _ = daemon.bay(&["checkpoint", "b"]).ok();
    let _ = daemon.bay(&["services", "rm", "b", "one"]).ok();
    let _ = daemon.bay(&["services", "add", "b", "two", "--", "sleep", "1000"]).ok();
    let list = |bay: &str| {
        let all = daemon.bay(&["services", "ls", bay, "--json"]).ok().json();
        all.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let _ = daemon.bay(&["restore", "b", "v1"]).ok();
    assert_eq!(list("b"), ["one"]);
    let _ = daemon.bay(&["fork", "b", "--name", "c"]).ok();
    assert_eq!(list("c-1"), ["one"]);
}

#[test]
fn an_agent_captures_and_restores_its_own_bay() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let made = daemon.sh("b", "echo one > f; bay-ctl checkpoint -m mine --json").ok().json();
    assert_eq!((&made["name"], &made["by"]), (&json!("v1"), &json!("inside")));
    assert_eq!(daemon.bay(&["checkpoints", "ls", "b", "--json"]).ok().json()[0]["message"], "mine");
    let _ = daemon.sh("b", "echo two > f; bay-ctl checkpoints | grep mine").ok();
    // Another user may read but not change.
    let other = |verb: &[&str]| {
        let line = [&["exec", "b", "--user", "65534", "--", "bay-ctl"], verb].concat();
        daemon.bay(&line)
    };
    assert!(other(&["checkpoints"]).ok().text().contains("mine"));
    for verb in [&["checkpoint"][..], &["restore", "v1"]] {
        let ran = other(verb);
        assert!(ran.code != 0 && ran.errors().contains("only root"), "{ran}");
    }
    let gone = daemon.sh("b", "bay-ctl restore v9");
    assert!(gone.errors().contains("v9"), "{gone}");
    // The answer comes before all processes end; the client reports why the command ended.
    let ended = daemon.sh("b", "bay-ctl restore v1; sleep 100");
    assert!(ended.text().contains("is being restored to v1; its previous state is v2"), "{ended}");
    assert!(!ended.errors().contains("repeat"), "{ended}");
    until("the bay to have gone back", || (daemon.sh("b", "cat f").text() == "one").then_some(()));
    assert_eq!(names(&daemon, "b"), ["v1", "v2"]);
    // A flood of requests delays nothing else.
    let flood = "for n in $(seq 40); do bay-ctl checkpoint >/dev/null 2>&1 & done; wait; true";
    let _ = daemon.sh("b", flood).ok();
    assert!(names(&daemon, "b").len() < 30);
    daemon.empty_bay("other");
    let _ = daemon.bay(&["checkpoint", "b", "--files-only"]).ok();
}

/// How many automatic checkpoints of one cause a bay keeps.
const KEPT_OF_A_CAUSE: usize = 20;

/// Attack: a bay restores itself in a loop until the checkpoint from before the operator's own restore is thinned.
#[test]
fn a_bay_that_restores_itself_in_a_loop_evicts_no_checkpoint_of_the_operator() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ = daemon.sh("b", "echo one > f").ok();
    let _ = daemon.bay(&["checkpoint", "b", "--files-only"]).ok();
    let _ = daemon.sh("b", "echo evidence > f").ok();
    let restored = daemon.bay(&["restore", "b", "v1", "--json"]).ok().json();
    let before = restored["before"]["name"].as_str().unwrap().to_owned();
    let listed = || daemon.bay(&["checkpoints", "ls", "b", "--json"]).ok().json().as_array().unwrap().clone();
    let of_inside = || -> BTreeSet<String> {
        let own = listed().into_iter().filter(|one| one["by"] == "inside" && one["automatic"].is_string());
        own.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut ever = BTreeSet::new();
    while ever.len() <= KEPT_OF_A_CAUSE {
        until("the bay to answer", || (daemon.sh("b", "true").code == 0).then_some(()));
        let known = ever.len();
        let asked = daemon.sh("b", "bay-ctl restore v1 && sleep 100");
        ever.extend(of_inside());
        // A bay that asks too often is told when to try again.
        let wait = asked
            .errors()
            .split("try again in ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next()?.parse().ok());
        pause(Duration::from_secs(wait.unwrap_or_default()));
        assert!(ever.len() > known || wait.is_some(), "nothing was restored: {asked}");
    }
    assert!(of_inside().len() < ever.len(), "its own ones were not thinned: {ever:?}");
    assert!(listed().iter().any(|one| one["name"] == *before), "{:#?}", listed());
    let _back = daemon.bay(&["restore", "b", &before]).ok();
    assert_eq!(read(&daemon, "b", "cat f"), "evidence");
}

#[test]
fn two_restores_at_once_leave_one_of_the_two_states() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ = daemon.sh("b", "echo one > /workspace/f; echo one > /etc/f").ok();
    let _ = daemon.bay(&["checkpoint", "b"]).ok();
    let _ = daemon.sh("b", "echo two > /workspace/f; echo two > /etc/f").ok();
    let _ = daemon.bay(&["checkpoint", "b"]).ok();
    std::thread::scope(|scope| {
        let daemon = &daemon;
        for checkpoint in ["v1", "v2", "v1", "v2"] {
            scope.spawn(move || daemon.bay(&["restore", "b", checkpoint]));
        }
    });
    let bay = daemon.until_state("b", State::Running);
    let found = until("the bay to answer", || {
        Some(daemon.sh("b", "cat /workspace/f /etc/f")).filter(|ran| ran.code == 0)
    });
    assert!(["one\none", "two\ntwo"].contains(&found.text().as_str()), "{found}");
    assert!(bay["reason"].as_str().is_some());
}

#[test]
fn checkpoints_count_towards_the_disk_limit_of_a_bay() {
    let daemon = Daemon::start();
    let body = json!({
        "name": "b", "source": { "kind": "empty" }, "image": bay_tests::SMALL, "limits": { "disk_mib": 64 },
    });
    let _ = daemon.rest("POST", "/v1/bays", &body);
    let fill = "head -c 20000000 /dev/urandom > f && sync";
    let _ = daemon.sh("b", fill).ok();
    let mut refused = false;
    for _ in 0..6 {
        let _ = daemon.bay(&["checkpoint", "b", "--files-only"]);
        if daemon.sh("b", fill).code != 0 {
            refused = true;
            break;
        }
    }
    assert!(refused, "a bay holds more in checkpoints than it was given");
    // The space of checkpoints can be freed.
    for name in names(&daemon, "b") {
        let _ = daemon.bay(&["checkpoints", "rm", "b", &name]).ok();
    }
    until("room again", || {
        (daemon.sh("b", "rm -f f; head -c 1000000 /dev/urandom > g && sync").code == 0).then_some(())
    });
}

#[test]
fn messages_are_bounded_and_cannot_control_a_terminal() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ = daemon.bay(&["checkpoint", "b", "-m", &"x".repeat(5000)]).fails_with(ErrorCode::InvalidInput);
    let _ = daemon.bay(&["checkpoint", "b", "-m", "\u{1b}]0;title\u{7}\nsecond line"]).ok();
    let shown = daemon.bay(&["checkpoints", "ls", "b"]).ok().text();
    assert!(!shown.contains('\u{1b}') && shown.lines().count() == 2, "{shown:?}");
    let _ = daemon.bay(&["checkpoint", "b", "--memory", "--files-only"]).exits(2);
    let _ = daemon.bay(&["checkpoint", "nope"]).fails_with(ErrorCode::BayNotFound);
}

#[test]
fn a_fork_that_fails_for_one_child_names_and_records_the_others() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("web");
    daemon.break_inserts("bays", "NEW.name = 'web-fork-3'");
    let fork = |count: &str| daemon.bay(&["fork", "web", "--files-only", "--count", count]);
    let ran = fork("4");
    let said = ran.errors();
    assert!(ran.code != 0 && said.contains("broken by the test"), "{ran}");
    for child in ["web-fork-1", "web-fork-2"] {
        assert!(said.contains(child), "{ran}");
        assert_eq!(daemon.show(child)["state"], "running");
    }
    let forked = daemon.events("web", "bay.forked");
    assert_eq!(forked.len(), 1, "{forked:#?}");
    assert_eq!(forked[0]["children"], json!(["web-fork-1", "web-fork-2"]));
    daemon.allow_inserts();

    // None of them can be started: each is named.
    daemon.set_environment(&[("BAY_FAULT", "runtime:mounts")]);
    daemon.restart();
    let ran = daemon.bay(&["fork", "web", "--files-only", "--count", "2", "--name", "late"]);
    let said = ran.errors();
    assert!(ran.code != 0 && said.contains("late-1") && said.contains("late-2"), "{ran}");
    daemon.set_environment(&[]);
    daemon.restart();
}

#[test]
fn the_record_shows_the_end_of_a_failed_checkpoint() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    daemon.break_inserts("checkpoints", "true");
    let ran = daemon.bay(&["checkpoint", "b", "--files-only"]);
    assert!(ran.code != 0 && ran.errors().contains("broken by the test"), "{ran}");
    daemon.allow_inserts();
    let failed = daemon.events("b", "checkpoint.failed");
    assert_eq!((failed.len(), &failed[0]["name"]), (1, &"v1".into()), "{failed:#?}");
    assert!(failed[0]["why"].to_string().contains("broken by the test"), "{failed:#?}");
    let timeline = daemon.bay(&["timeline", "b"]).ok().text();
    assert!(
        timeline.contains("checkpoint v1 begun") && timeline.contains("checkpoint v1 failed"),
        "{timeline}"
    );
    // The name is free, and no leftover on the disk is in the way.
    let made = daemon.bay(&["checkpoint", "b", "--files-only", "--json"]).ok().json();
    assert_eq!(made["name"], "v1", "{made}");
}
