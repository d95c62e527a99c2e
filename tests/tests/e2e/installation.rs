//! Installing, leaving, and what other daemons of the host keep when one leaves.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bay_tests::suite::{self, Scratch};
use bay_tests::{CliRun, Daemon, SMALL, leaks};
use bay_types::ErrorCode;
use bay_types::bay::State;
use serde_json::{Value, json};

/// The steps of `bay uninstall`, in their order.
const STEPS: [&str; 11] = [
    "unit",
    "daemon",
    "bays",
    "groups",
    "pool",
    "data",
    "key",
    "data-record",
    "executable",
    "group",
    "record",
];

/// A directory in place of the host's root directory, for what `bay install` makes.
struct Root(Scratch);

impl Root {
    fn new() -> Self {
        let root = Scratch::new();
        for dir in ["etc", "run/systemd/system", "usr/local/bin"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        fs::write(root.join("etc/group"), "root:x:0:\n").unwrap();
        Self(root)
    }

    fn at(&self, below: &str) -> PathBuf {
        self.0.join(below)
    }

    fn run(&self, daemon: &Daemon, line: &[&str]) -> CliRun {
        let root = self.0.path().to_str().unwrap();
        let mut all = line.to_vec();
        all.extend(["--root", root]);
        daemon.bay(&all)
    }

    fn install(&self, daemon: &Daemon) {
        let done = self.run(daemon, &["install"]).ok().text();
        assert!(done.contains("copy of this build") && done.contains("equal to root"), "{done}");
        assert!(
            self.at("usr/local/bin/bay").exists() && self.at("etc/systemd/system/workbay.service").exists()
        );
        assert!(fs::read_to_string(self.at("etc/group")).unwrap().contains("workbay:"));
    }

    fn nothing_is_left(&self) {
        for path in ["usr/local/bin/bay", "etc/systemd/system/workbay.service", "etc/workbay"] {
            assert!(!self.at(path).exists(), "{path}");
        }
        assert!(!fs::read_to_string(self.at("etc/group")).unwrap().contains("workbay:"));
    }
}

/// What is in the data directory besides what the fixture puts there.
fn data(daemon: &Daemon) -> Vec<String> {
    let mut names = names(&daemon.data_dir).unwrap();
    names.retain(|name| !["home", "serve.log", "bay-copy"].contains(&name.as_str()));
    names
}

/// The names in a directory. `None` if there is no such directory.
fn names(dir: &Path) -> Option<Vec<String>> {
    let entries = fs::read_dir(dir).ok()?.map(|entry| entry.unwrap().file_name());
    Some(entries.map(|name| name.to_string_lossy().into_owned()).collect())
}

#[test]
fn uninstall_shows_a_list_and_removes_everything_that_was_made_and_nothing_else() {
    let daemon = Daemon::setup().own_pool(1024).start();
    let root = Root::new();
    root.install(&daemon);
    for (bay, verb) in [("running", ""), ("paused", "pause"), ("stopped", "stop")] {
        daemon.empty_bay(bay);
        if !verb.is_empty() {
            let _done = daemon.bay(&[verb, bay]).ok();
        }
    }
    let _started = daemon.bay(&["exec", "running", "-d", "--", "sleep", "1000"]).ok();
    let _taken = daemon.bay(&["checkpoint", "running", "--files-only"]).ok();
    let pid = daemon.host_pid("running");
    fs::write(daemon.data_dir.join("notes"), "the operator's own\n").unwrap();
    assert!(daemon.key_file().exists());

    let listed = root.run(&daemon, &["uninstall", "--dry-run", "--json"]).ok().json();
    let what: BTreeSet<&str> =
        listed["removed"].as_array().unwrap().iter().map(|line| line["what"].as_str().unwrap()).collect();
    for expected in [
        "unit",
        "daemon",
        "running parts of bays",
        "control group",
        "pool",
        "data directory",
        "key",
        "executable",
        "group",
    ] {
        assert!(what.contains(expected), "{expected}: {listed}");
    }
    assert!(listed["stays"].to_string().contains("notes"), "{listed}");
    // A script must say that it means it.
    root.run(&daemon, &["uninstall"]).fails_with(ErrorCode::InvalidInput);
    assert_eq!(daemon.sh("running", "echo alive").ok().text(), "alive", "nothing was changed so far");

    let removed = root.run(&daemon, &["uninstall", "--yes"]).ok();
    assert!(removed.errors().contains("notes"), "{removed}");
    assert!(leaks::ended(pid));
    assert_eq!(data(&daemon), ["notes"]);
    assert!(!daemon.key_file().exists() && !daemon.pool.exists());
    root.nothing_is_left();
    let again = root.run(&daemon, &["uninstall", "--yes"]).ok();
    assert!(again.errors().contains("nothing of Workbay"), "{again}");
    daemon.uninstalled();
}

#[test]
fn uninstall_may_die_before_every_step_and_be_repeated() {
    let daemon = Daemon::setup().own_pool(1024).start();
    let root = Root::new();
    root.install(&daemon);
    daemon.empty_bay("b");
    for step in STEPS {
        let mut command = daemon.command(&["uninstall", "--yes", "--die-before", step, "--root"]);
        let output = command.arg(root.0.path()).output().unwrap();
        assert_eq!(output.status.signal(), Some(9), "{step}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let _removed = root.run(&daemon, &["uninstall", "--yes"]).ok();
    assert_eq!(data(&daemon), Vec::<String>::new());
    assert!(!daemon.key_file().exists() && !daemon.pool.exists());
    root.nothing_is_left();
    daemon.uninstalled();
}

#[test]
fn uninstall_leaves_another_daemons_corner_of_a_shared_pool_alone() {
    let (leaving, staying) = (Daemon::start(), Daemon::start());
    let root = Root::new();
    leaving.empty_bay("b");
    staying.empty_bay("b");
    let _written = staying.sh("b", "echo kept > note").ok();
    let listed = root.run(&leaving, &["uninstall", "--dry-run"]).ok().text();
    assert!(listed.contains("corner of the pool") && listed.contains("keep the rest"), "{listed}");
    let corner = leaks::corner(&leaving.pool, leaving.id());
    assert!(corner.exists());
    let _removed = root.run(&leaving, &["uninstall", "--yes"]).ok();
    assert!(!corner.exists());
    assert_eq!(data(&leaving), Vec::<String>::new());
    leaving.uninstalled();
    assert_eq!(staying.sh("b", "cat note").ok().text(), "kept");
    staying.empty_bay("c");
    let images = staying.bay(&["images", "ls", "--json"]).ok().json();
    assert!(images.to_string().contains(SMALL), "the images of the pool stay: {images}");
}

#[test]
fn uninstall_works_without_a_daemon_with_a_damaged_database_while_bays_run() {
    let mut daemon = Daemon::setup().own_pool(1024).start();
    let root = Root::new();
    daemon.empty_bay("b");
    let pid = daemon.host_pid("b");
    daemon.kill_9();
    fs::write(daemon.data_dir.join("bay.db"), "this is a letter, not a database\n".repeat(300)).unwrap();
    assert!(!leaks::ended(pid));
    let removed = root.run(&daemon, &["uninstall", "--yes"]).ok();
    assert!(leaks::ended(pid));
    assert_eq!(data(&daemon), Vec::<String>::new());
    assert!(!daemon.key_file().exists(), "{removed}");
    assert_eq!(names(&daemon.pool), None, "{removed}");
    daemon.uninstalled();
}

#[test]
fn uninstall_works_with_an_unmounted_pool_and_without_the_record_of_the_data_directory() {
    let mut daemon = Daemon::setup().own_pool(1024).start();
    let root = Root::new();
    daemon.empty_bay("b");
    daemon.pull_the_plug();
    assert_eq!(leaks::mounts(&daemon.pool), Vec::<PathBuf>::new());
    // As an earlier release left it.
    fs::remove_file(daemon.data_dir.join("installation.json")).unwrap();
    let listed = root.run(&daemon, &["uninstall", "--dry-run"]).ok().text();
    assert!(listed.contains("files of 1 bay"), "{listed}");
    assert_eq!(leaks::mounts(&daemon.pool), Vec::<PathBuf>::new(), "looking into the pool leaves no mount");
    let _removed = root.run(&daemon, &["uninstall", "--yes"]).ok();
    assert_eq!(data(&daemon), Vec::<String>::new());
    assert!(!daemon.pool.exists());
    // Only the record says that the daemon made a key at an unusual place.
    fs::remove_file(daemon.key_file()).unwrap();
    daemon.uninstalled();
}

#[test]
fn with_keep_data_a_later_installation_finds_the_bays() {
    let mut daemon = Daemon::setup().own_pool(1024).start();
    let root = Root::new();
    root.install(&daemon);
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo kept > note; sync").ok();
    let pid = daemon.host_pid("b");
    let _removed = root.run(&daemon, &["uninstall", "--keep-data", "--yes"]).ok();
    assert!(leaks::ended(pid), "what a bay runs ends with the installation");
    assert_eq!(leaks::mounts(&daemon.pool), Vec::<PathBuf>::new());
    assert!(daemon.key_file().exists());
    root.nothing_is_left();
    daemon.terminate();
    daemon.launch();
    let _view = daemon.until_state("b", State::Running);
    assert_eq!(daemon.sh("b", "cat note").ok().text(), "kept");
}

#[test]
fn a_failed_first_start_leaves_no_key_behind() {
    let mut daemon = Daemon::setup().own_pool(512).without_image().unstarted();
    let socket = daemon.data_dir.join("x".repeat(120));
    let output = daemon.serve().arg("--socket").arg(&socket).stdout(Stdio::null()).output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("its path is longer than a socket's can be"), "{said}");
    assert!(!daemon.key_file().exists());
    daemon.launch();
    assert!(daemon.key_file().exists());
    // A start that fails later leaves the key, because something may be encrypted with it.
    daemon.terminate();
    let output = daemon.serve().arg("--socket").arg(&socket).stdout(Stdio::null()).output().unwrap();
    assert!(!output.status.success() && daemon.key_file().exists());
}

#[test]
fn members_of_the_group_may_use_the_socket_and_nobody_else() {
    // A group that every host has. The group of the product is the operator's to make.
    let daemon = Daemon::setup().argument("--group").argument("daemon").start();
    let as_nobody_in = |group: &str, line: &[&str]| {
        let output = Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", group, "--clear-groups"])
            .arg(suite::binary())
            .args(line)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("BAY_DATA_DIR", &daemon.data_dir)
            .env("BAY_NO_AUTOSTART", "1")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        CliRun::new(format!("{} as nobody in {group}", line.join(" ")), output)
    };
    daemon.empty_bay("b");
    assert_eq!(as_nobody_in("daemon", &["ls", "--json"]).ok().json()[0]["name"], "b");
    as_nobody_in("nogroup", &["ls"]).fails_with(ErrorCode::NotRoot);
    // What a member of the group does is on record with its user id.
    let _stopped = as_nobody_in("daemon", &["stop", "b"]).ok();
    assert_eq!(daemon.events("b", "bay.stop-asked")[0]["by"], "uid 65534");
}

#[test]
fn pool_prune_removes_the_corner_of_a_daemon_whose_data_directory_is_gone() {
    let (mut gone, staying) = (Daemon::start(), Daemon::start());
    gone.empty_bay("b");
    staying.empty_bay("b");
    let corner = leaks::corner(&gone.pool, gone.id());
    let id = gone.id().to_owned();
    let prune = |arguments: &[&str]| {
        let mut line = vec!["pool", "prune", "--json"];
        line.extend(arguments);
        let pruned = staying.bay(&line).ok().json();
        let corners = pruned["corners"].as_array().unwrap();
        corners.iter().map(|corner| corner["daemon"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(!prune(&["--dry-run"]).contains(&id), "its data directory is there");
    gone.kill_9();
    let scratch = Scratch::new();
    let aside = scratch.join("aside");
    fs::rename(&gone.data_dir, &aside).unwrap();
    assert!(!prune(&["--dry-run"]).contains(&id), "its bay still runs");
    fs::rename(&aside, &gone.data_dir).unwrap();
    gone.pull_the_plug();
    fs::rename(&gone.data_dir, &aside).unwrap();
    assert!(prune(&["--dry-run"]).contains(&id));
    staying.bay(&["pool", "prune"]).fails_with(ErrorCode::InvalidInput);
    assert!(corner.exists());
    assert!(prune(&["--yes"]).contains(&id));
    assert!(!corner.exists());
    let events = staying.rest("GET", "/v1/events?since=0", &Value::Null).json();
    let removal = events.as_array().unwrap().iter().find(|event| event["kind"] == "pool.prune");
    let removal = removal.unwrap_or_else(|| panic!("{events}"));
    assert_eq!((&removal["body"]["daemon"], &removal["body"]["bays"]), (&json!(id), &json!(1)));
    assert_eq!(staying.sh("b", "echo alive").ok().text(), "alive");
    fs::remove_dir_all(&aside).unwrap();
    fs::create_dir_all(&gone.data_dir).unwrap();
    gone.uninstalled();
}
