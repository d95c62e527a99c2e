//! The user that a bay was given: tools that refuse root work, and the user outlives roots, restores and forks.

use bay_tests::{Daemon, Repository, SMALL, image};
use bay_types::ErrorCode;

/// Who runs a command, where it is at home, and whether it may write into the workspace.
const WHO: &str = "id -un; id -u; echo $HOME; touch /workspace/mine $HOME/mine && echo writes";

fn who(daemon: &Daemon, bay: &str) -> String {
    daemon.sh(bay, WHO).ok().text()
}

#[test]
fn commands_run_as_the_user_that_the_bay_was_given_over_replace_restore_and_fork() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    // A change without a commit is copied in after the bay has started.
    repository.write("notes/uncommitted.txt", "draft\n");
    let place = repository.arg();
    let up = ["up", &place, "--name", "b", "--image", SMALL, "--user", "agent"];
    let _up = daemon.bay(&up).ok();
    let as_agent = who(&daemon, "b");
    let lines: Vec<&str> = as_agent.lines().collect();
    assert_eq!((lines[0], lines[2], lines[3]), ("agent", "/home/agent", "writes"), "{as_agent}");
    assert!(lines[1].parse::<u32>().is_ok_and(|uid| uid >= 1000), "{as_agent}");
    let strangers = "find /workspace ! -user agent | head -n 3";
    assert_eq!(daemon.sh("b", strangers).ok().text(), "", "files of the workspace are root's");
    assert_eq!(daemon.sh("b", "cat notes/uncommitted.txt").ok().text(), "draft");
    assert_eq!(daemon.bay(&["exec", "b", "--user", "root", "--", "id", "-u"]).ok().text(), "0");
    if daemon.sh("b", "command -v git").code == 0 {
        for user in ["agent", "root"] {
            let status = daemon.bay(&["exec", "b", "--user", user, "--", "git", "status", "--short"]).ok();
            assert!(status.text().contains("notes/"), "{user}: {status}");
        }
        // Work leaves a workspace that is not root's.
        let commit = "git -c user.name=a -c user.email=a@example.invalid commit -qm more notes";
        let _committed = daemon.sh("b", &format!("git add notes && {commit}")).ok();
        let differs = daemon.bay(&["diff", "b", "--from", "base", "--stat"]).ok().text();
        assert!(differs.contains("uncommitted.txt") && !differs.contains("main.txt"), "{differs}");
        let bundle = daemon.bay(&["bundle", "b"]).ok();
        assert!(bundle.stdout.starts_with(b"# v"), "{bundle}");
    }
    assert_eq!(daemon.show("b")["user"]["name"], "agent");
    let shown = daemon.bay(&["execs", "show", "b", "1"]).ok().text();
    assert!(shown.lines().any(|line| line.contains("user") && line.contains("agent")), "{shown}");
    // Files that are copied in belong to the user where it works, and to root elsewhere.
    for (target, owner) in [("/workspace/in", "agent"), ("/home/agent/in", "agent"), ("/etc/in", "root")] {
        let _copied = daemon.bay(&["cp", &format!("{place}/README.md"), &format!("b:{target}")]).ok();
        assert_eq!(daemon.sh("b", &format!("stat -c %U {target}")).ok().text(), owner, "{target}");
    }

    let _made = daemon.bay(&["checkpoint", "b", "--files-only"]).ok();
    let _replaced = daemon.bay(&["replace", "b"]).ok();
    assert_eq!(who(&daemon, "b"), as_agent, "after a replace");
    let _restored = daemon.bay(&["restore", "b", "v1", "--files-only"]).ok();
    assert_eq!(who(&daemon, "b"), as_agent, "after a restore");
    let _forked = daemon.bay(&["fork", "b", "--count", "1", "--name", "child", "--files-only"]).ok();
    let child = daemon.bay(&["ls", "--json"]).ok().json();
    let child = child.as_array().unwrap().iter().find(|bay| !bay["forked_from"].is_null()).unwrap();
    assert_eq!(who(&daemon, child["name"].as_str().unwrap()), as_agent, "in a fork");
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let _started = daemon.bay(&["start", "b"]).ok();
    assert_eq!(who(&daemon, "b"), as_agent, "after a stop");

    for odd in ["root", "Agent", "a b", "../x"] {
        let up = ["up", &place, "--name", "odd", "--image", SMALL, "--user", odd];
        daemon.bay(&up).fails_as(ErrorCode::InvalidInput, 2);
    }
    // Without the option nothing changes.
    let _up = daemon.bay(&["up", &place, "--name", "plain", "--image", SMALL]).ok();
    assert_eq!(daemon.sh("plain", "id -u; stat -c %u /workspace").ok().text(), "0\n0");
}

#[test]
fn a_database_that_refuses_root_is_made_by_the_bays_user() {
    let daemon = Daemon::start();
    let (Some(directory), Some(home)) = (image::postgres(), image::postgres_home()) else { return };
    daemon.import(&directory, image::POSTGRES);
    let repository = Repository::sample();
    let place = repository.arg();
    let _up = daemon.bay(&["up", &place, "--name", "b", "--image", image::POSTGRES, "--user", "agent"]).ok();
    let bin = home.join("bin").display().to_string();
    let initdb = format!("{bin}/initdb -D /workspace/data --no-sync --no-locale -E UTF8 -A trust 2>&1");
    let refused = daemon.bay(&["exec", "b", "--user", "root", "--", "sh", "-c", &initdb]);
    assert!(refused.code != 0 && refused.text().contains("root"), "{refused}");
    let made = daemon.sh("b", &initdb);
    assert_eq!(made.code, 0, "{made}");
    assert_eq!(daemon.sh("b", "stat -c %U /workspace/data/PG_VERSION").ok().text(), "agent");
}
