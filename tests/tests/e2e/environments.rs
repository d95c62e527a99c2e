//! `bay up --from`: the environment of one bay with the repository of another.

use bay_tests::{Daemon, Repository, SMALL};
use bay_types::ErrorCode;
use serde_json::json;

fn read(daemon: &Daemon, bay: &str, script: &str) -> String {
    daemon.sh(bay, script).ok().text()
}

/// A bay `tools` in which something is installed, with everything that must not be copied.
fn tools(daemon: &Daemon) {
    let repository = Repository::sample();
    let place = repository.arg();
    let policy = ["--policy", "closed"];
    let user = ["--user", "agent", "--user-sudo"];
    let up = ["up", &place, "--name", "tools", "--image", SMALL];
    let _up = daemon.bay(&[&up[..], &policy, &user].concat()).ok();
    let installed = "mkdir -p /opt/tool /etc/ssh && echo one > /opt/tool/version
        echo key > /etc/ssh/ssh_host_ed25519_key; echo kept > /etc/ssh/sshd_config
        echo secret work > /workspace/own.txt";
    let _installed = daemon.bay(&["exec", "tools", "--user", "root", "--", "sh", "-c", installed]).ok();
    let service = ["services", "add", "tools", "waits", "--", "sh", "-c", "sleep 1000"];
    let _service = daemon.bay(&service).ok();
}

#[test]
fn a_new_bay_has_the_tools_of_one_bay_and_the_repository_of_another() {
    let daemon = Daemon::start();
    tools(&daemon);
    let other = Repository::empty();
    other.write("other.txt", "other\n");
    other.commit("other");
    let place = other.arg();
    let made = daemon.bay(&["up", &place, "--name", "next", "--from", "tools"]).ok();
    assert!(made.text().contains("environment: of tools at v1"), "{made}");

    assert_eq!(read(&daemon, "next", "cat /opt/tool/version other.txt"), "one\nother");
    // Nothing of the other bay's work, and nothing that made it that machine.
    for gone in ["/workspace/own.txt", "/etc/ssh/ssh_host_ed25519_key", "/etc/sudoers.d/workbay-agent"] {
        assert_ne!(daemon.sh("next", &format!("test -e {gone}")).code, 0, "{gone}");
    }
    assert_eq!(read(&daemon, "next", "cat /etc/ssh/sshd_config; hostname; id -un"), "kept\nnext\nroot");
    let identity = |bay: &str| read(&daemon, bay, "cat /etc/machine-id /.bay/ca.crt");
    assert_ne!(identity("tools"), identity("next"));
    let certificate = read(&daemon, "tools", "sed -n 2p /.bay/ca.crt");
    let trusted =
        format!("grep -rlF '{certificate}' /.bay/*.crt /etc /usr/local/share 2>/dev/null | head -n 3");
    assert_eq!(read(&daemon, "next", &trusted), "", "the other gateway's certificate is trusted");
    let services = daemon.bay(&["services", "ls", "next", "--json"]).ok().json();
    assert_eq!(services.as_array().map(Vec::len), Some(0), "{services}");
    let policy = daemon.bay(&["policy", "show", "next", "--json"]).ok().json();
    let set = policy["layers"].as_array().unwrap().iter().any(|layer| !layer["set_at"].is_null());
    assert!(!set, "{policy}");

    // The record, the story and `show` say where it began.
    let view = daemon.show("next");
    assert_eq!(view["environment"]["name"], "tools");
    assert_eq!(view["environment"]["checkpoint"], "v1");
    assert_eq!((&view["image"], &view["image_id"]), (&json!(SMALL), &daemon.show("tools")["image_id"]));
    assert!(view["forked_from"].is_null() && view["user"].is_null(), "{view}");
    let created = daemon.events("next", "bay.create");
    assert_eq!(created[0]["environment"], view["environment"]);
    let shown = daemon.bay(&["show", "next"]).ok().text();
    assert!(shown.contains("of tools at v1"), "{shown}");
    let timeline = daemon.bay(&["timeline", "next"]).ok().text();
    assert!(timeline.contains("with the environment of tools at v1"), "{timeline}");
    let story = daemon.bay(&["story", "next"]).ok().text();
    assert!(story.contains("the environment of tools at its checkpoint v1"), "{story}");
    // What the new bay's agent did to its root is told apart from what it began with.
    let _changed = daemon.sh("next", "echo two > /opt/tool/version").ok();
    let differs = daemon.bay(&["diff", "next", "--root", "--from", "base", "--stat"]).ok().text();
    assert!(differs.contains("opt/tool/version"), "{differs}");
    assert!(!differs.contains("sshd_config"), "{differs}");

    // Neither affects the other, also when the other is gone.
    assert_eq!(read(&daemon, "tools", "cat /opt/tool/version"), "one");
    let _removed = daemon.bay(&["rm", "tools", "--yes"]).ok();
    let _made_later = daemon.sh("next", "echo own > /etc/ssh/ssh_host_ed25519_key").ok();
    let _stopped = daemon.bay(&["stop", "next"]).ok();
    let _started = daemon.bay(&["start", "next"]).ok();
    let after = read(&daemon, "next", "cat /opt/tool/version other.txt /etc/ssh/ssh_host_ed25519_key");
    assert_eq!(after, "two\nother\nown", "after a stop");
}

#[test]
fn a_checkpoint_gives_the_environment_of_its_moment_and_the_user_is_made_again() {
    let daemon = Daemon::start();
    tools(&daemon);
    let _made = daemon.bay(&["checkpoint", "tools", "--files-only"]).ok();
    let later = "echo two > /opt/tool/version; echo mine > /home/agent/note";
    let _later = daemon.bay(&["exec", "tools", "--user", "root", "--", "sh", "-c", later]).ok();
    let repository = Repository::sample();
    let place = repository.arg();
    let up = ["up", &place, "--name", "early", "--from", "tools:v1", "--user", "agent"];
    let _up = daemon.bay(&up).ok();
    assert_eq!(read(&daemon, "early", "cat /opt/tool/version; id -un; touch mine"), "one\nagent");
    assert_ne!(daemon.sh("early", "test -e /home/agent/note").code, 0);
    assert_eq!(daemon.show("early")["environment"]["checkpoint"], "v1");
    // A stopped bay has an environment too, and a fork of the new bay is a fork.
    let _stopped = daemon.bay(&["stop", "tools"]).ok();
    let _up = daemon.bay(&["up", &place, "--name", "late", "--from", "tools"]).ok();
    assert_eq!(read(&daemon, "late", "cat /opt/tool/version /home/agent/note"), "two\nmine");
    assert_eq!(daemon.show("tools")["state"], "stopped");
    let _forked = daemon.bay(&["fork", "late", "--name", "child", "--files-only"]).ok();
    let child = daemon.show("child-1");
    assert!(child["environment"].is_null() && child["forked_from"]["name"] == "late", "{child}");
    assert_eq!(read(&daemon, "child-1", "cat /opt/tool/version"), "two");
}

#[test]
fn an_environment_that_does_not_exist_or_does_not_fit_is_refused_before_any_work() {
    let daemon = Daemon::start();
    daemon.empty_bay("tools");
    let repository = Repository::sample();
    let place = repository.arg();
    let up = |more: &[&str]| daemon.bay(&[&["up", &place, "--name", "next"][..], more].concat());
    let (what, next) = up(&["--from", "nobody"]).fails_with(ErrorCode::BayNotFound);
    assert!(what.contains("nobody") && next.contains("bay ls"), "{what} {next}");
    let (what, next) = up(&["--from", "tools:v7"]).fails_with(ErrorCode::CheckpointNotFound);
    assert!(what.contains("v7") && next.contains("bay checkpoints ls tools"), "{what} {next}");
    up(&["--from", "tools:latest"]).fails_as(ErrorCode::InvalidName, 2);
    assert_eq!(up(&["--from", "tools", "--image", SMALL]).code, 2);
    let backends = daemon.bay(&["backends", "--json"]).ok().json();
    let others = backends.as_array().unwrap().iter().filter_map(|backend| backend["name"].as_str());
    if let Some(other) = others.into_iter().find(|name| *name != "local") {
        let (what, next) = up(&["--from", "tools", "--backend", other]).fails_with(ErrorCode::InvalidInput);
        assert!(what.contains(other) && what.contains("tools") && next.contains("local"), "{what} {next}");
    }
    assert_eq!(daemon.list().len(), 1, "nothing was made");
    let checkpoints = daemon.bay(&["checkpoints", "ls", "tools", "--json"]).ok().json();
    assert_eq!(checkpoints.as_array().map(Vec::len), Some(0), "{checkpoints}");
}
