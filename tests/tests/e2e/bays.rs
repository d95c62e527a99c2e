//! The life of a bay: made, listed, stopped, started, paused, replaced, removed. Its workspace outlives everything but
//! the last, and that too if it is kept.

use std::process::Stdio;

use bay_tests::leaks;
use bay_tests::suite::Scratch;
use bay_tests::{CliRun, Daemon, Repository, SMALL, until};
use bay_types::ErrorCode;
use bay_types::bay::State;
use serde_json::json;

#[test]
fn up_makes_a_running_bay_with_the_repository_in_its_workspace() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let _up = daemon.bay(&["up", &repository.arg(), "--name", "one", "--image", SMALL]).ok();
    let view = daemon.show("one");
    assert_eq!(view["state"], "running", "{view}");
    assert_eq!(view["desired"], "running");
    assert_eq!(view["workspace"], "/workspace");
    assert_eq!(view["image"], SMALL);
    assert_eq!(view["origin"]["commit"], repository.head());
    assert_eq!((&view["isolation"]["backend"], &view["backend"]), (&"local".into(), &"local".into()));
    assert_eq!(view["isolation"]["grade"], "shared-kernel");
    assert_eq!(view["capabilities"]["isolation"], "shared-kernel");
    assert_eq!(view["capabilities"]["attribution"], "exec");
    for field in ["reason", "since", "created_at", "id"] {
        assert!(view[field].as_str().is_some_and(|text| !text.is_empty()), "{field} is empty in {view}");
    }
    assert_eq!(daemon.sh("one", "pwd; cat src/main.txt; ./run").ok().text(), "/workspace\none\nit runs");
    assert_eq!(daemon.sh("one", "hostname").ok().text(), "one");
}

#[test]
fn a_missing_backend_is_refused_with_the_available_ones() {
    let daemon = Daemon::start();
    let refused = daemon.bay(&["up", "--image", SMALL, "--name", "one", "--backend", "moon"]);
    let (what, next) = refused.fails_with(ErrorCode::InvalidInput);
    assert!(what.contains("moon") && next.contains("local"), "{what}: {next}");
    assert_eq!(daemon.list().len(), 0);
}

#[test]
fn a_bay_is_named_after_its_directory_and_a_second_one_gets_a_name_of_its_own_or_a_clear_refusal() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let _up = daemon.bay(&["up", &repository.arg(), "--image", SMALL]).ok();
    assert_eq!(daemon.list()[0]["name"], "repo");
    let again = daemon.bay(&["up", &repository.arg(), "--image", SMALL, "--name", "repo"]);
    let (what, _) = again.fails_with(ErrorCode::BayExists);
    assert!(what.contains("repo"), "{what}");
    assert_eq!(daemon.list().len(), 1);
}

#[test]
fn ls_shows_name_state_reason_and_since_as_json_and_as_a_table() {
    let daemon = Daemon::start();
    assert_eq!(daemon.list(), Vec::<serde_json::Value>::new());
    daemon.empty_bay("first");
    daemon.empty_bay("second");
    let _stopped = daemon.bay(&["stop", "second"]).ok();
    let bays = daemon.list();
    let mut states: Vec<(&str, &str)> =
        bays.iter().map(|bay| (bay["name"].as_str().unwrap(), bay["state"].as_str().unwrap())).collect();
    states.sort_unstable();
    assert_eq!(states, [("first", "running"), ("second", "stopped")]);
    for bay in &bays {
        assert!(bay["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{bay}");
        assert!(bay["since"].as_str().is_some_and(|since| since.ends_with('Z')), "{bay}");
    }
    let table = daemon.bay(&["ls"]).ok().text();
    for word in ["first", "second", "running", "stopped"] {
        assert!(table.contains(word), "{word} is not in:\n{table}");
    }
    assert!(!table.contains('\u{1b}'), "colours go to terminals only:\n{table}");
}

#[test]
fn the_workspace_survives_stop_and_start_and_the_processes_do_not() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo kept > note; mkdir d; echo root > /root/note").ok();
    let _left_running = daemon.bay(&["exec", "b", "-d", "--", "sleep", "1000"]).ok();
    let pid = daemon.host_pid("b");
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let view = daemon.show("b");
    assert_eq!((&view["state"], &view["desired"]), (&"stopped".into(), &"stopped".into()));
    assert!(view["host_pid"].is_null(), "{view}");
    assert!(leaks::ended(pid), "PID 1 of a stopped bay is alive");
    let _again = daemon.bay(&["stop", "b"]).ok();
    let _started = daemon.bay(&["start", "b"]).ok();
    assert_eq!(daemon.show("b")["state"], "running");
    // The root filesystem is the bay's own too; only `replace` discards it.
    assert_eq!(daemon.sh("b", "cat note /root/note; ls").ok().text(), "kept\nroot\nd\nnote");
    assert_eq!(daemon.sh("b", "ps -o args | grep -cx 'sleep 1000'").text(), "0");
}

#[test]
fn the_machine_id_is_the_bays_own_and_stays() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let before = daemon.sh("b", "cat /etc/machine-id").ok().text();
    assert_eq!(before.len(), 32, "{before}");
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let _started = daemon.bay(&["start", "b"]).ok();
    assert_eq!(daemon.sh("b", "cat /etc/machine-id").ok().text(), before);
    daemon.empty_bay("c");
    assert_ne!(daemon.sh("c", "cat /etc/machine-id").ok().text(), before);
}

#[test]
fn replace_gives_a_fresh_root_and_keeps_the_workspace() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo kept > note; rm /bin/wget; echo junk > /etc/junk").ok();
    let before = daemon.show("b");
    let _replaced = daemon.bay(&["replace", "b"]).ok();
    let after = daemon.show("b");
    assert_eq!(after["state"], "running", "{after}");
    assert_eq!(after["id"], before["id"]);
    assert_ne!(after["host_pid"], before["host_pid"]);
    assert_eq!(
        daemon.sh("b", "cat note; ls /bin/wget; ls /etc/junk 2>&1 | grep -c No").ok().text(),
        "kept\n/bin/wget\n1"
    );
}

#[test]
fn replace_repairs_a_bay_whose_root_was_destroyed_from_inside() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo kept > note").ok();
    let _destroyed = daemon.sh("b", "rm -rf /bin /etc /usr /lib /lib64 2>/dev/null; true");
    assert_ne!(daemon.sh("b", "true").code, 0, "there is no shell any more");
    let _replaced = daemon.bay(&["replace", "b"]).ok();
    assert_eq!(daemon.sh("b", "cat note").ok().text(), "kept");
}

#[test]
fn pause_freezes_and_resume_continues() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ticking = daemon
        .bay(&["exec", "b", "-d", "--", "sh", "-c", "while :; do date +%s%N > /tmp/tick; usleep 2000; done"])
        .ok();
    until("the first tick", || (daemon.sh("b", "cat /tmp/tick").code == 0).then_some(()));
    let pid = daemon.host_pid("b");
    let _paused = daemon.bay(&["pause", "b"]).ok();
    let view = daemon.show("b");
    assert_eq!(view["state"], "paused", "{view}");
    assert_eq!(daemon.host_pid("b"), pid);
    let refused = daemon.sh("b", "true");
    refused.fails_as(ErrorCode::BayState, 125);
    let _resumed = daemon.bay(&["resume", "b"]).ok();
    assert_eq!(daemon.show("b")["state"], "running");
    assert_eq!(daemon.host_pid("b"), pid);
    let tick = daemon.sh("b", "cat /tmp/tick").ok().text();
    until("the ticks to go on", || (daemon.sh("b", "cat /tmp/tick").ok().text() != tick).then_some(()));
}

#[test]
fn a_paused_bay_can_be_stopped_and_removed() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _paused = daemon.bay(&["pause", "b"]).ok();
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    assert_eq!(daemon.show("b")["state"], "stopped");
    daemon.empty_bay("c");
    let _paused = daemon.bay(&["pause", "c"]).ok();
    let _removed = daemon.bay(&["rm", "c", "--yes"]).ok();
    assert_eq!(daemon.list().len(), 1);
}

#[test]
fn rm_deletes_everything_and_the_name_can_be_used_again() {
    let daemon = Daemon::start();
    let old = daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo secret > note").ok();
    let pid = daemon.host_pid("b");
    let _removed = daemon.bay(&["rm", "b", "--yes"]).ok();
    assert!(leaks::ended(pid));
    assert_eq!(daemon.orphans(), [], "something of the bay is left");
    daemon.bay(&["show", "b"]).fails_with(ErrorCode::BayNotFound);
    let new = daemon.empty_bay("b");
    assert_ne!(new["id"], old["id"]);
    assert_eq!(daemon.sh("b", "ls -A | wc -l").ok().text(), "0");
}

#[test]
fn rm_asks_a_person_and_takes_no_for_an_answer() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo precious > note").ok();
    let asked = daemon.on_a_terminal("rm b", "n\n");
    assert_ne!(asked.code, 0, "{asked}");
    assert_eq!(daemon.sh("b", "cat note").ok().text(), "precious");
    let asked = daemon.on_a_terminal("rm b", "y\n");
    assert_eq!(asked.code, 0, "{asked}");
    assert_eq!(daemon.list().len(), 0);
}

#[test]
fn verbs_take_several_names_and_do_nothing_when_one_is_unknown() {
    let daemon = Daemon::start();
    for name in ["web", "api"] {
        daemon.empty_bay(name);
    }
    for verb in ["stop", "pause", "replace", "rm"] {
        let (what, next) = daemon.bay(&[verb, "web", "api", "wbe"]).fails_with(ErrorCode::BayNotFound);
        assert!(what.contains("wbe") && next.contains("did you mean web?"), "{what} {next}");
        for name in ["web", "api"] {
            assert_eq!(daemon.show(name)["state"], "running", "{verb} {name}");
        }
    }
    let states = || daemon.list().iter().map(|bay| bay["state"].clone()).collect::<Vec<_>>();
    for (verb, state) in [
        ("pause", "paused"),
        ("resume", "running"),
        ("replace", "running"),
        ("stop", "stopped"),
        ("start", "running"),
    ] {
        // The same bay named twice counts once.
        let said = daemon.bay(&[verb, "web", "api", "web"]).ok().text();
        assert_eq!(said.lines().count(), 2, "{said}");
        assert_eq!(states(), [state, state], "{verb}");
    }
    let _gone = daemon.bay(&["rm", "web", "api"]).ok();
    assert_eq!(daemon.list().len(), 0);
}

#[test]
fn rm_can_keep_the_workspace_and_says_where_it_is() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo precious > note").ok();
    let gone = daemon.bay(&["rm", "b", "--yes", "--keep-workspace", "--json"]).ok().json();
    let kept = std::path::PathBuf::from(gone["kept_workspace"].as_str().expect("a path"));
    assert_eq!(std::fs::read_to_string(kept.join("note")).unwrap(), "precious\n");
    assert_eq!(daemon.list().len(), 0);
    let listed = daemon.bay(&["workspaces", "ls", "--json"]).ok().json();
    assert_eq!(listed[0]["bay"], "b");
    let name = listed[0]["name"].as_str().unwrap().to_owned();
    assert!(daemon.bay(&["workspaces", "ls"]).ok().text().contains(&name));
    // A new bay gets a copy, by the workspace's name or its bay's; the kept one stays.
    let _again = daemon.bay(&["up", "--workspace", &name, "--image", SMALL]).ok();
    assert_eq!(daemon.sh("b", "cat note; echo changed > note").ok().text(), "precious");
    let _other = daemon.bay(&["up", "--workspace", "b", "--name", "c", "--image", SMALL]).ok();
    assert_eq!(daemon.sh("c", "cat note").ok().text(), "precious");
    let nobody = ["up", "--workspace", "nope", "--image", SMALL];
    daemon.bay(&nobody).fails_with(ErrorCode::WorkspaceNotFound);
    daemon.bay(&["workspaces", "rm", "b", "nope"]).fails_with(ErrorCode::WorkspaceNotFound);
    assert_eq!(std::fs::read_to_string(kept.join("note")).unwrap(), "precious\n");
    let asked = daemon.on_a_terminal("workspaces rm b", "n\n");
    assert_eq!(asked.code, 1, "{asked}");
    assert!(kept.exists());
    let _removed = daemon.bay(&["workspaces", "rm", "b"]).ok();
    assert!(!kept.exists());
    assert_eq!(daemon.sh("b", "cat note").ok().text(), "changed");
}

#[test]
fn a_bay_can_be_named_by_its_id() {
    let daemon = Daemon::start();
    let id = daemon.empty_bay("b")["id"].as_str().unwrap().to_owned();
    assert_eq!(daemon.show(&id)["name"], "b");
    assert_eq!(daemon.bay(&["exec", &id, "--", "hostname"]).ok().text(), "b");
}

#[test]
fn a_verb_that_does_not_fit_the_state_says_so() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    daemon.bay(&["pause", "b"]).fails_with(ErrorCode::BayState);
    daemon.bay(&["exec", "b", "--", "true"]).fails_as(ErrorCode::BayState, 125);
    let _removed = daemon.bay(&["rm", "b", "--yes"]).ok();
    for verb in ["show", "stop", "start", "pause", "resume", "replace"] {
        let (what, _) = daemon.bay(&[verb, "b"]).fails_with(ErrorCode::BayNotFound);
        assert!(what.contains('b'), "{what}");
    }
}

#[test]
fn limits_are_what_the_kernel_enforces() {
    let daemon = Daemon::start();
    let scratch = Scratch::new();
    let limits = ["--cpus", "0.5", "--memory-mib", "96", "--pids", "40", "--disk-mib", "64"];
    let repository = Repository::sample();
    let path = repository.arg();
    let mut up = vec!["up", &path, "--name", "b", "--image", SMALL];
    up.extend(limits);
    let _up = daemon.bay(&up).ok();
    let view = daemon.show("b");
    assert_eq!(view["limits"]["memory_mib"], 96, "{view}");
    assert_eq!(view["limits"]["pids"], 40);
    assert_eq!(view["limits"]["cpus"], 0.5);
    assert_eq!(view["limits"]["disk_mib"], 64);

    // More processes than allowed: the shell cannot fork, but the bay and its guest continue.
    let forks = daemon.sh("b", "n=0; while [ $n -lt 60 ]; do sleep 2 & n=$((n+1)); done 2>&1; wait");
    assert!(forks.code != 0 || forks.text().contains("fork"), "60 processes fit into a limit of 40: {forks}");
    until("room for new processes", || (daemon.sh("b", "(true) && (true)").code == 0).then_some(()));

    // More memory than allowed: that command dies, the bay does not.
    let eats = daemon.sh("b", "tail -c 314572800 /dev/zero").exits(137);
    assert!(eats.errors().contains("`bay set b --memory-mib N`"), "{eats}");
    let execs = daemon.bay(&["execs", "ls", "b", "--json"]).ok().json();
    let hit =
        execs.as_array().unwrap().iter().any(|exec| exec["limits_hit"] == serde_json::json!(["memory"]));
    assert!(hit, "no exec ran out of memory: {execs}");
    assert_eq!(daemon.sh("b", "echo alive").ok().text(), "alive");

    // More disk than allowed.
    let fills = daemon.sh("b", "dd if=/dev/urandom of=/workspace/big bs=1M count=200 && sync");
    assert_ne!(fills.code, 0, "200 MiB fit into 64: {fills}");
    let _freed = daemon.sh("b", "rm -f /workspace/big && sync").ok();
    drop(scratch);
}

#[test]
fn invalid_limits_are_refused_and_nothing_is_made() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let cases: &[(&[&str], ErrorCode)] = &[
        (&["--memory-mib", "1"], ErrorCode::InvalidInput),
        (&["--memory-mib", "99999999"], ErrorCode::NotEnough),
        (&["--pids", "1"], ErrorCode::InvalidInput),
        (&["--cpus", "0"], ErrorCode::InvalidInput),
        (&["--cpus", "-1"], ErrorCode::InvalidInput),
        (&["--cpus", "nan"], ErrorCode::InvalidInput),
        (&["--cpus", "100000"], ErrorCode::NotEnough),
        (&["--disk-mib", "1"], ErrorCode::InvalidInput),
        (&["--disk-mib", "999999999"], ErrorCode::NotEnough),
    ];
    for (flags, code) in cases {
        let path = repository.arg();
        let joined: Vec<String> = flags.chunks(2).map(|pair| pair.join("=")).collect();
        let mut args = vec!["up", &path, "--name", "b", "--image", SMALL];
        args.extend(joined.iter().map(String::as_str));
        daemon.bay(&args).fails_with(*code);
    }
    // The pool is far smaller than its disk, and so is the part of the disk that it may still use.
    let line = ["up", &repository.arg(), "--name", "b", "--image", SMALL, "--disk-mib", "999999999"];
    let (what, next) = daemon.bay(&line).fails_with(ErrorCode::NotEnough);
    assert!(what.contains("than the pool can hold") && next.contains("at most "), "{what} {next}");
    assert_eq!(daemon.list().len(), 0);
    assert_eq!(daemon.orphans(), []);
}

#[test]
fn a_mount_shows_a_host_directory_read_only() {
    let daemon = Daemon::start();
    let scratch = Scratch::new();
    std::fs::write(scratch.join("data"), "from the host\n").unwrap();
    let repository = Repository::sample();
    let mount = format!("{}:/data:ro", scratch.path().display());
    let _up = daemon.bay(&["up", &repository.arg(), "--name", "b", "--image", SMALL, "--mount", &mount]).ok();
    assert_eq!(daemon.sh("b", "cat /data/data").ok().text(), "from the host");
    for attempt in [
        "echo x > /data/new",
        "rm /data/data",
        "chmod 777 /data/data",
        "mount -o remount,rw /data && echo x > /data/new",
        "mount -o remount,bind,rw /data && echo x > /data/new",
        "umount /data && ls /data/data",
    ] {
        assert_ne!(daemon.sh("b", attempt).code, 0, "{attempt}");
    }
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1);
    let _replaced = daemon.bay(&["replace", "b"]).ok();
    assert_eq!(daemon.sh("b", "cat /data/data").ok().text(), "from the host");
}

#[test]
fn an_impossible_mount_is_refused() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let path = repository.arg();
    let cases: &[(&str, ErrorCode)] = &[
        ("/nonexistent/source:/data:ro", ErrorCode::PathNotFound),
        ("relative:/data:ro", ErrorCode::PathNotFound),
        ("/etc:relative:ro", ErrorCode::InvalidInput),
        ("/etc:/data:rw", ErrorCode::InvalidInput),
        ("/etc", ErrorCode::InvalidInput),
        ("/etc:/data/../../x:ro", ErrorCode::InvalidInput),
        ("/etc:/proc:ro", ErrorCode::InvalidInput),
        ("/etc:/:ro", ErrorCode::InvalidInput),
        ("/etc:/workspace:ro", ErrorCode::InvalidInput),
        ("/etc:/.bay/run:ro", ErrorCode::InvalidInput),
    ];
    for (mount, code) in cases {
        let ran = daemon.bay(&["up", &path, "--name", "b", "--image", SMALL, "--mount", mount]);
        assert!(ran.errors().contains(code.as_str()), "{mount}: {ran}");
        ran.fails_with(*code);
    }
    assert_eq!(daemon.list().len(), 0);
}

#[test]
fn a_bay_whose_guest_dies_is_shown_as_stopped_with_the_reason_and_starts_again() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "echo kept > note").ok();
    let pid = daemon.host_pid("b");
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    until("the process to be gone", || leaks::ended(pid).then_some(()));
    // As soon as the process is gone, no view may report the bay as running with it.
    let view = daemon.show("b");
    assert!(view["state"] != "running" || view["host_pid"] != pid, "{view}");
    let view = until("the bay to be stopped or running again", || {
        let view = daemon.show("b");
        (view["state"] == "stopped" || view["state"] == "running" && view["host_pid"] != pid).then_some(view)
    });
    assert!(view["reason"].as_str().is_some_and(|reason| reason.len() > 3), "{view}");
    let _started = daemon.bay(&["start", "b"]).ok();
    assert_eq!(daemon.sh("b", "cat note").ok().text(), "kept");
}

#[test]
fn the_cli_starts_a_daemon_by_itself_when_none_runs() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    daemon.kill_9();
    daemon.bay(&["ls"]).fails_with(ErrorCode::DaemonUnreachable);
    let output = daemon.command(&["ls", "--json"]).env_remove("BAY_NO_AUTOSTART").output().unwrap();
    let bays = CliRun::new("ls --json".to_owned(), output).ok().json();
    assert_eq!(bays[0]["name"], "b", "the daemon that was started by itself knows the bay");
    daemon.until_state("b", State::Running);
    assert_eq!(daemon.sh("b", "echo hello").ok().text(), "hello");
    daemon.stop_started_by_cli();
    daemon.launch();
}

#[test]
fn a_directory_whose_recipes_a_bay_does_not_use_is_told_so_in_one_line() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let plain = daemon.bay(&["up", &repository.arg(), "--name", "plain", "--image", SMALL]).ok();
    assert!(!plain.errors().contains("not used"), "{plain}");
    repository.write("Dockerfile", "FROM scratch\n");
    repository.write("compose.yaml", "services: {}\n");
    repository.write(".devcontainer/devcontainer.json", "{}\n");
    let told = daemon.bay(&["up", &repository.arg(), "--name", "told", "--image", SMALL]).ok();
    let errors = told.errors();
    let lines: Vec<&str> = errors.lines().filter(|line| line.contains("not used")).collect();
    let [line] = lines[..] else { panic!("{told}") };
    for name in ["Dockerfile", "compose.yaml", ".devcontainer/devcontainer.json"] {
        assert!(line.contains(name), "{name}: {line}");
    }
    let json = daemon.bay(&["up", &repository.arg(), "--name", "json", "--image", SMALL, "--json"]).ok();
    assert!(!json.errors().contains("not used"), "{json}");
    assert_eq!(json.json()["name"], "json");
}

#[test]
fn a_daemon_that_is_started_while_the_old_one_still_ends_is_waited_for() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    daemon.kill_9();
    // A daemon that has closed its socket and still holds its directory.
    let ending = std::fs::File::open(daemon.data_dir.join("daemon.lock")).unwrap();
    rustix::fs::flock(&ending, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let mut asking = daemon.command(&["ls", "--json"]);
    asking.env_remove("BAY_NO_AUTOSTART").stdout(Stdio::piped()).stderr(Stdio::piped());
    let asking = asking.spawn().unwrap();
    until("the new daemon to meet the old one", || daemon.log().contains("data-dir-busy").then_some(()));
    drop(ending);
    let bays = CliRun::new("ls --json".to_owned(), asking.wait_with_output().unwrap()).ok().json();
    assert_eq!(bays[0]["name"], "b", "{bays}");
    daemon.stop_started_by_cli();
    daemon.launch();
}

#[test]
fn a_removed_bay_is_listed_and_read_by_its_last_name_until_another_bay_has_it() {
    let daemon = Daemon::start();
    let none = daemon.bay(&["ls", "--removed"]).ok();
    assert!(none.text().is_empty() && none.errors().contains("no bay was removed"), "{none}");
    let first = daemon.empty_bay("b")["id"].as_str().unwrap().to_owned();
    let _ran = daemon.sh("b", "echo first").ok();
    let _removed = daemon.bay(&["rm", "b"]).ok();
    let second = daemon.empty_bay("b")["id"].as_str().unwrap().to_owned();
    assert_eq!(daemon.sh("b", "echo second; exit 7").code, 7);
    let _removed = daemon.bay(&["rm", "b"]).ok();
    daemon.empty_bay("other");

    let listed = daemon.bay(&["ls", "--removed", "--json"]).ok().json();
    let ids: Vec<&str> = listed.as_array().unwrap().iter().map(|bay| bay["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [second.as_str(), first.as_str()], "the newest is first: {listed}");
    assert_eq!(listed[0]["name"], "b");
    assert!(!listed[0]["by"].as_str().unwrap().is_empty() && listed[0]["removed_at"].is_string(), "{listed}");
    let shown = daemon.bay(&["ls", "--removed"]).ok().text();
    assert!(shown.contains(&second) && shown.contains("ago") && !shown.contains("other"), "{shown}");

    for verb in [&["timeline", "b"][..], &["story", "b"], &["execs", "ls", "b"], &["execs", "show", "b", "1"]]
    {
        let ran = daemon.bay(verb).ok();
        assert!(ran.text().contains("echo second") && !ran.text().contains("echo first"), "{ran}");
        let said = ran.errors();
        assert_eq!(said.matches("no bay is called b now").count(), 1, "{said}");
        assert!(said.contains(&second) && said.contains("removed"), "{said}");
    }
    let _egress = daemon.bay(&["egress", "b"]).ok();
    let exec = daemon.bay(&["execs", "show", "b", "1", "--json"]).ok().json();
    assert_eq!((&exec["exit"]["code"], &exec["bay"]), (&json!(7), &json!(second)), "{exec}");
    let missing = daemon.bay(&["execs", "show", "b", "99"]).exits(3).errors();
    assert!(
        missing.contains("exec-not-found") && missing.contains(&format!("bay execs ls {second}")),
        "{missing}"
    );
    let older = daemon.bay(&["execs", "ls", &first]).ok();
    assert!(older.text().contains("echo first") && older.errors().is_empty(), "{older}");
    let (what, next) = daemon.bay(&["show", "b"]).fails_with(ErrorCode::BayNotFound);
    assert!(what.contains("removed") && next.contains(&second), "{what} {next}");
    let (what, next) = daemon.bay(&["logs", "b", "1"]).fails_with(ErrorCode::BayNotFound);
    assert!(
        what.contains("removed") && what.contains("output") && next.contains("bay timeline b"),
        "{what} {next}"
    );

    // Verbs that change a bay never mean a removed one, and a living bay has its name to itself.
    daemon.bay(&["stop", "b"]).fails_with(ErrorCode::BayNotFound);
    daemon.bay(&["timeline", "never"]).fails_with(ErrorCode::BayNotFound);
    daemon.empty_bay("b");
    let living = daemon.bay(&["execs", "ls", "b"]).ok();
    assert!(!living.text().contains("second") && !living.errors().contains("removed"), "{living}");
}
