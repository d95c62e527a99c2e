//! What `bay-ctl` answers inside a bay, and `bay ports` outside.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use bay_tests::suite::{self, Lack};
use bay_tests::{Daemon, image, until};
use serde_json::{Value, json};

fn ctl(daemon: &Daemon, bay: &str, verb: &[&str]) -> Value {
    let all: Vec<&str> = ["exec", bay, "--", "bay-ctl", "--json"].iter().chain(verb).copied().collect();
    daemon.bay(&all).ok().json()
}

#[test]
fn a_bay_can_query_its_identity_and_permissions() {
    let daemon = Daemon::start();
    let view = daemon.empty_bay("b");
    let me = ctl(&daemon, "b", &["whoami"]);
    assert_eq!((&me["bay"], &me["name"]), (&view["id"], &json!("b")));
    let execs = daemon.bay(&["execs", "ls", "b", "--json"]).ok().json();
    assert_eq!(me["exec"], execs[0]["id"], "{execs}");
    assert_eq!(me["isolation"]["grade"], "shared-kernel");
    let can = ctl(&daemon, "b", &["can"]);
    assert_eq!(can["network"]["outbound"], "policy");
    assert_eq!(can["workspace"], "/workspace");
    let text = daemon.sh("b", "bay-ctl whoami && bay-ctl can && bay-ctl ports").ok().text();
    assert!(text.contains("8192 processes") && text.contains("nothing listens"), "{text}");
}

#[test]
fn every_user_of_the_bay_may_use_bay_ctl_and_the_readme_says_how() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let me = daemon.bay(&["exec", "--user", "1000", "b", "--", "/.bay/bin/bay-ctl", "whoami", "--json"]).ok();
    assert_eq!(me.json()["uid"], 1000);
    let readme = daemon.sh("b", "cat /.bay/README.md").ok().text();
    for word in ["`b`", "/workspace", "bay-ctl hold", "refused", "8192"] {
        assert!(readme.contains(word), "{word} is not in:\n{readme}");
    }
}

#[test]
fn a_changed_limit_is_visible_inside_the_running_bay() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let told = |daemon: &Daemon, memory: u64, pids: u64| {
        for verb in ["whoami", "can"] {
            let limits = ctl(daemon, "b", &[verb])["limits"].clone();
            assert_eq!(limits, json!({ "memory_mib": memory, "pids": pids }), "{verb}");
        }
        let readme = daemon.sh("b", "cat /.bay/README.md").ok().text();
        assert!(readme.contains(&format!("memory {memory} MiB")), "{readme}");
        assert!(readme.contains(&format!("processes {pids}")), "{readme}");
    };
    let _set = daemon.bay(&["set", "b", "--memory-mib", "256"]).ok();
    told(&daemon, 256, 8192);
    let _set = daemon.bay(&["set", "b", "--pids", "300"]).ok();
    told(&daemon, 256, 300);
    // A paused guest is informed when it runs again.
    let _paused = daemon.bay(&["pause", "b"]).ok();
    let _set = daemon.bay(&["set", "b", "--memory-mib", "512"]).ok();
    let _resumed = daemon.bay(&["resume", "b"]).ok();
    told(&daemon, 512, 300);
    // The next daemon does not know what the bay was told, and tells it again.
    let _removed = daemon.sh("b", "rm /.bay/README.md").ok();
    daemon.restart();
    until("the README", || (daemon.sh("b", "test -s /.bay/README.md").code == 0).then_some(()));
    told(&daemon, 512, 300);
}

#[test]
fn bay_ctl_can_be_executed_and_neither_read_nor_replaced() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    for script in [
        "cat /.bay/bin/bay-ctl",
        "echo x > /.bay/bin/bay-ctl",
        "rm -f /.bay/bin/bay-ctl",
        "umount /.bay/bin/bay-ctl",
        "mount -o remount,rw,bind /.bay/bin/bay-ctl",
        "chmod 777 /.bay/bin/bay-ctl",
    ] {
        assert_ne!(daemon.sh("b", script).code, 0, "{script}");
    }
    ctl(&daemon, "b", &["whoami"]);
}

#[test]
fn listening_ports_are_listed_with_their_process_and_exec() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let mut command = daemon.command(&["exec", "b", "--", "httpd", "-f", "-p", "127.0.0.1:8080"]);
    let mut running = command.spawn().unwrap();
    let port = until("the listener", || {
        let ports = daemon.bay(&["ports", "b", "--json"]).ok().json();
        ports.as_array().unwrap().iter().find(|port| port["port"] == 8080).cloned()
    });
    assert_eq!(
        (&port["protocol"], &port["address"], &port["loopback"]),
        (&json!("tcp"), &json!("127.0.0.1"), &json!(true))
    );
    assert_eq!((&port["process"], &port["exec_number"]), (&json!("httpd"), &json!(1)), "{port}");
    let table = daemon.bay(&["ports", "b"]).ok().text();
    assert!(table.contains("loopback") && table.contains("8080"), "{table}");
    // Another user of the bay sees the socket, as in the kernel's table, but not the process.
    let other = daemon.bay(&["exec", "--user", "1000", "b", "--", "bay-ctl", "ports", "--json"]).ok().json();
    let seen = other.as_array().unwrap().iter().find(|port| port["port"] == 8080).cloned().unwrap();
    assert_eq!(seen.get("pid"), None, "{seen}");
    let _ended = daemon.bay(&["kill", "b", "1"]).ok();
    running.wait().unwrap();
}

/// Attack: each bay has its own socket, and no name in one leads to another's.
#[test]
fn a_bay_reaches_no_other_bays_socket() {
    let daemon = Daemon::start();
    daemon.empty_bay("one");
    daemon.empty_bay("two");
    let held = ctl(&daemon, "one", &["hold", "10m"]);
    assert!(held["hold_until"].is_string());
    assert_eq!(ctl(&daemon, "two", &["can"])["hold_until"], Value::Null);
    assert_eq!(ctl(&daemon, "two", &["whoami"])["name"], "two");
    let names =
        daemon.sh("two", "cat /proc/net/unix; find / -xdev -name '*.sock' 2>/dev/null; ls /.bay").ok().text();
    let sockets: Vec<&str> =
        names.lines().filter(|line| line.ends_with(".sock") && line.starts_with('/')).collect();
    assert_eq!(sockets, ["/.bay/ctl.sock"], "{names}");
    assert_eq!(ctl(&daemon, "one", &["release"])["hold_until"], Value::Null);
}

/// Attack: whatever an agent puts in the socket's place is replaced at the next start, and does not mislead the guest.
#[test]
fn a_trap_in_the_place_of_the_socket_is_replaced() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    for trap in ["mkdir -p /.bay/ctl.sock/full", "ln -s /etc/passwd /.bay/ctl.sock", "mkfifo /.bay/ctl.sock"]
    {
        let _set = daemon
            .sh(
                "b",
                &format!("rm -rf /.bay/ctl.sock /.bay/README.md; {trap}; ln -s /etc/passwd /.bay/README.md"),
            )
            .ok();
        let _stopped = daemon.bay(&["stop", "b"]).ok();
        let _started = daemon.bay(&["start", "b"]).ok();
        assert_eq!(ctl(&daemon, "b", &["whoami"])["name"], "b", "{trap}");
        assert!(daemon.sh("b", "head -1 /etc/passwd").ok().text().starts_with("root:"), "{trap}");
    }
}

#[test]
fn root_of_a_bay_manages_its_services_and_other_users_may_only_read() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = "echo serving; exec sleep 1000";
    let added = ctl(
        &daemon,
        "b",
        &["services", "add", "web", "--env", "TOKEN=hush", "--stop-grace", "1", "--", "sh", "-c", script],
    );
    assert_eq!((&added["name"], &added["state"]), (&json!("web"), &json!("ready")), "{added}");
    let outside = daemon.bay(&["services", "show", "b", "web", "--json"]).ok().json();
    assert_eq!(outside["spec"]["env"], json!([["TOKEN", "hush"]]), "{outside}");
    let text = daemon.sh("b", "bay-ctl services ls && bay-ctl services show web").ok().text();
    assert!(text.contains("ready") && text.contains("definition"), "{text}");
    assert_eq!(daemon.sh("b", "bay-ctl services logs web").ok().text(), "serving");
    assert_eq!(daemon.sh("b", "bay-ctl services logs web --tail 0").ok().text(), "");
    let timed = daemon.sh("b", "bay-ctl services logs web --since 1h --timestamps").ok().text();
    assert!(timed.starts_with("20") && timed.ends_with("Z serving"), "{timed}");
    // Followed over a restart, after which it prints again.
    let mut follower = daemon.command(&["exec", "b", "--", "bay-ctl", "services", "logs", "web", "--follow"]);
    let mut follower = follower.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "serving");
    assert_eq!(ctl(&daemon, "b", &["services", "restart", "web"])["state"], "ready");
    assert_eq!(lines.next().unwrap().unwrap(), "serving");
    let execs = daemon.bay(&["execs", "ls", "b", "--json"]).ok().json();
    let running = execs.as_array().unwrap().iter().find(|exec| exec["exit"].is_null()).unwrap();
    let _killed = daemon.bay(&["kill", "b", &running["number"].to_string(), "--signal", "KILL"]).ok();
    follower.wait().unwrap();

    let as_user = |words: &[&str]| {
        let all = ["exec", "--user", "1000", "b", "--", "bay-ctl", "--json", "services"];
        daemon.bay(&all.iter().chain(words).copied().collect::<Vec<_>>())
    };
    for words in [&["ls"][..], &["show", "web"]] {
        let seen = as_user(words).ok();
        assert!(seen.text().contains("web") && !seen.text().contains("hush"), "{}", seen.text());
    }
    assert!(as_user(&["logs", "web"]).ok().text().contains("serving"));
    for words in [
        &["stop", "web"][..],
        &["start", "web"],
        &["restart", "web"],
        &["rm", "web"],
        &["add", "web", "--", "true"],
        &["add", "mine", "--", "true"],
    ] {
        let refused = as_user(words).exits(6).errors();
        assert!(refused.contains("not-root") && refused.contains("only root of the bay"), "{refused}");
    }

    assert_eq!(ctl(&daemon, "b", &["services", "stop", "web"])["state"], "stopped");
    assert_eq!(ctl(&daemon, "b", &["services", "start", "web"])["state"], "ready");
    assert_eq!(ctl(&daemon, "b", &["services", "rm", "web"]), json!({ "removed": "web" }));
    // A stopped service is removed immediately too, and its name is free again.
    for _ in 0..2 {
        let _added = ctl(&daemon, "b", &["services", "add", "web", "--", "sleep", "1000"]);
        let _stopped = ctl(&daemon, "b", &["services", "stop", "web"]);
        assert_eq!(ctl(&daemon, "b", &["services", "rm", "web"]), json!({ "removed": "web" }));
        assert_eq!(ctl(&daemon, "b", &["services", "ls"]), json!([]));
    }
    let gone = daemon.sh("b", "bay-ctl services stop web").exits(3).errors();
    assert!(gone.contains("`bay-ctl services ls` lists them"), "{gone}");
}

const FLOOD: &str = r#"
import os, socket, sys, time
held = []
for n in range(200):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(0.2)
    try:
        s.connect("/.bay/ctl.sock")
    except OSError:
        continue
    if n % 2:
        try:
            s.send(os.urandom(512) + b"\r\n\r\n")
        except OSError:
            pass
    held.append(s)
print("flooded", flush=True)
time.sleep(600)
"#;

/// Attack: garbage and idle connections from inside neither end PID 1 nor delay the daemon.
#[test]
fn a_flood_of_the_bays_own_socket_does_not_delay_the_daemon() {
    if !image::has_python() {
        return suite::skip(
            Lack::Installable,
            "the small image has no python3: the host's is not below /usr",
        );
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let pid = daemon.host_pid("b");
    let mut flood = daemon.command(&["exec", "b", "--", "python3", "-c", FLOOD]);
    let mut flood = flood.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(flood.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "flooded\n");
    for n in 0..20 {
        assert_eq!(daemon.sh("b", &format!("echo {n}")).ok().text(), n.to_string());
        let _ports = daemon.bay(&["ports", "b"]).ok();
    }
    assert_eq!(daemon.host_pid("b"), pid);
    let _killed = daemon.bay(&["kill", "b", "1"]).ok();
    flood.wait().unwrap();
    until("the bay's own socket", || {
        let ran = daemon.bay(&["exec", "b", "--", "bay-ctl", "whoami"]);
        (ran.code == 0).then_some(())
    });
}

#[test]
fn bay_ctl_diff_shows_what_bay_diff_shows_and_only_to_root() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ = daemon.sh("b", "printf 'one\\n' > f; bay-ctl checkpoint").ok();
    let _ = daemon.sh("b", "printf 'two\\n' >> f; ln -s f l; mkdir empty").ok();
    for flags in
        [&[][..], &["--stat"], &["--from", "base"], &["--from", "v1", "--to", "now"], &["--root", "--stat"]]
    {
        let outside = daemon.bay(&[&["diff", "b"], flags].concat()).ok();
        let inside = daemon.bay(&[&["exec", "b", "--", "bay-ctl", "diff"], flags].concat()).ok();
        assert_eq!(inside.text(), outside.text(), "{flags:?}");
        assert_eq!(inside.errors(), outside.errors(), "{flags:?}");
    }
    let lines = daemon.bay(&["exec", "b", "--", "bay-ctl", "diff", "--json"]).ok().text();
    assert!(lines.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{lines}");
    let other = daemon.bay(&["exec", "b", "--user", "65534", "--", "bay-ctl", "diff"]);
    assert!(other.code != 0 && other.errors().contains("only root"), "{other}");
    let wrong = daemon.sh("b", "bay-ctl diff --from v9");
    assert!(wrong.code != 0 && wrong.errors().contains("v9"), "{wrong}");
    // Output beyond the limit is cut, which is reported.
    let many = "i=0; while [ $i -lt 12 ]; do seq 1 80000 > big$i; i=$((i+1)); done";
    let _ = daemon.sh("b", many).ok();
    let cut = daemon.sh("b", "bay-ctl diff").ok();
    assert!(cut.errors().contains("too long to show") && cut.stdout.len() < 5 << 20, "{}", cut.errors());
}

/// Attack: comparisons in a loop. The daemon makes each of them outside of the bay's own limits.
#[test]
fn res_daemon_work_comparisons_in_a_loop_use_up_the_bays_share_and_nobody_elses() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    daemon.empty_bay("other");
    let many = "i=0; while [ $i -lt 30 ]; do seq 1 80000 > big$i; i=$((i+1)); done";
    let _ = daemon.sh("b", many).ok();
    // More than enough to use up the bay's saved share. All verbs that cost the daemon work are limited together, so
    // the one right after the refusal is refused too. A moment later the share is large enough again.
    let ask = "n=0; while bay-ctl diff >/dev/null 2>refused; do n=$((n+1)); [ $n -lt 100 ] || exit 99; done; \
               bay-ctl checkpoints 2>listed; code=$?; cat refused listed; exit $code";
    let refused = daemon.sh("b", ask);
    assert!(refused.code != 0 && refused.code != 99, "a bay is never told to wait: {refused}");
    // Each answer says when to try again.
    assert_eq!(refused.text().matches("try again in ").count(), 2, "{refused}");
    // The guest's own answers are not limited.
    let _ = daemon.bay(&["exec", "b", "--", "bay-ctl", "whoami"]).ok();
    let _ = daemon.bay(&["exec", "other", "--", "bay-ctl", "diff"]).ok();
    let _ = daemon.bay(&["diff", "b", "--stat"]).ok();
}

#[test]
fn changes_from_inside_are_recorded() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = "bay-ctl services add web --no-wait -- sleep 1000; bay-ctl services restart web --no-wait; \
                  bay-ctl services rm web; bay-ctl hold 30m; bay-ctl release";
    let _ = daemon.sh("b", script).ok();
    let wanted = ["service.define", "service.restart", "service.remove", "hold.taken", "hold.released"];
    let lines = until("all of it to be told", || {
        let told = daemon.bay(&["timeline", "b", "--json"]).ok().text();
        let lines: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of_inside: Vec<Value> =
            lines.into_iter().filter(|line| line["details"]["by"] == "inside").collect();
        (of_inside.len() >= wanted.len()).then_some(of_inside)
    });
    let kinds: Vec<&str> = lines.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, wanted);
    assert_eq!(lines[0]["what"], "service web defined: sleep 1000, by inside");
    // A flood of them does not flood the record.
    let _ = daemon.sh("b", "for n in $(seq 100); do bay-ctl hold 1m >/dev/null; done").ok();
    let told = daemon.bay(&["timeline", "b", "--limit", "0", "--json"]).ok().text();
    assert!(told.lines().filter(|line| line.contains("hold.taken")).count() <= 60, "{told}");
    // Events report how many others were left out.
    until("those that were left out to be counted", || {
        let told = daemon.bay(&["timeline", "b", "--limit", "0", "--json"]).ok().text();
        let lines = told.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let sums = lines.filter(|line| line["kind"] == "inside.left-out");
        let counted: u64 = sums.filter_map(|line| line["details"]["count"].as_u64()).sum();
        (counted >= 40).then_some(())
    });
}

#[test]
fn bay_ctl_is_found_in_paths_that_login_shells_and_su_make() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let has_bash = daemon.sh("b", "test -x /bin/bash").code == 0;
    let bash = ["env -i bash -lc 'bay-ctl whoami --json'", "bash -lc 'bay-ctl whoami --json'"];
    let any = [
        "env -i sh -lc 'bay-ctl whoami --json'",
        "su - user -c 'bay-ctl whoami --json'",
        "su - -c 'bay-ctl can'",
    ];
    for line in bash.iter().filter(|_| has_bash).chain(&any) {
        let ran = daemon.sh("b", line).ok();
        assert!(!ran.text().is_empty(), "{line}: {ran}");
    }
    let told = daemon.bay(&["diff", "b", "--root", "--json"]).ok().text();
    assert!(told.contains("\"line\":\"done\"") && !told.contains("usr/bin/bay-ctl"), "{told}");
    // What the agent puts in its place is the agent's.
    let _own = daemon.sh("b", "rm /usr/bin/bay-ctl; echo mine > /usr/bin/bay-ctl").ok();
    let _restarted = daemon.bay(&["stop", "b"]).ok();
    let _restarted = daemon.bay(&["start", "b"]).ok();
    assert_eq!(daemon.sh("b", "cat /usr/bin/bay-ctl").ok().text(), "mine");
    assert!(daemon.bay(&["diff", "b", "--root", "--json"]).ok().text().contains("usr/bin/bay-ctl"));
}
