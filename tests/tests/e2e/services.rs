//! Services of a bay: their order, their health, their ends, and that they outlive daemons, stops and roots.

use std::io::Read;
use std::process::Stdio;

use bay_tests::{CliRun, Daemon, until};
use bay_types::ErrorCode;
use bay_types::bay::State;
use serde_json::Value;

/// `bay services add BAY NAME FLAGS -- sh -c SCRIPT`
fn add(daemon: &Daemon, name: &str, flags: &[&str], script: &str) -> CliRun {
    let mut line = vec!["services", "add", "b", name];
    line.extend(flags);
    line.extend(["--", "sh", "-c", script]);
    daemon.bay(&line)
}

fn service(daemon: &Daemon, name: &str) -> Value {
    daemon.bay(&["services", "show", "b", name, "--json"]).ok().json()
}

#[track_caller]
fn becomes(daemon: &Daemon, name: &str, state: &str) -> Value {
    until(&format!("{name} to be {state}"), || {
        let answer = daemon.rest("GET", &format!("/v1/bays/b/services/{name}"), &Value::Null);
        (answer.status == 200).then(|| answer.json()).filter(|view| view["state"] == state)
    })
}

fn logs(daemon: &Daemon, name: &str) -> String {
    daemon.bay(&["services", "logs", "b", name]).ok().text()
}

fn counted(daemon: &Daemon, process: &str) -> String {
    daemon.sh("b", &format!("ps -o args | grep -cx '{process}'")).text()
}

#[test]
fn services_are_ready_by_each_kind_of_health_check_in_the_order_of_their_needs() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _ports = daemon.sh("b", "mkdir -p /srv/www && echo fine > /srv/www/up").ok();
    // A server that listens only after a while: ready means that it answers.
    let tcp = add(
        &daemon,
        "db",
        &["--health", "tcp:5432", "--interval", "0.2"],
        "usleep 700000; exec nc -ll -p 5432 -e cat",
    );
    assert!(tcp.ok().text().starts_with("db is ready"));
    let needs = ["--needs", "db", "--restart", "never"];
    let migrate = add(&daemon, "migrate", &needs, "echo hello | nc -w 1 127.0.0.1 5432 > /tmp/migrated");
    assert!(migrate.ok().text().starts_with("migrate is done"));
    assert_eq!(daemon.sh("b", "cat /tmp/migrated").ok().text(), "hello");
    let health = ["--needs", "migrate", "--health", "http://localhost:8000/up", "--interval", "0.2"];
    let web = add(&daemon, "web", &health, "exec httpd -f -p 8000 -h /srv/www").ok().text();
    assert!(web.starts_with("web is ready: its health check passes"), "{web}");
    let worker = ["--needs", "web", "--health", "cmd:test -e /tmp/worker", "--user", "user", "--cwd", "/tmp"];
    let script = "id -u; pwd; echo $GREETING $BAY_SERVICE; touch worker; exec sleep 1010";
    let _worker = add(&daemon, "worker", &[&worker[..], &["--env", "GREETING=hushed"]].concat(), script).ok();
    assert_eq!(logs(&daemon, "worker"), "1000\n/tmp\nhushed worker");
    let table = daemon.bay(&["services", "ls", "b"]).ok().text();
    assert_eq!(table.lines().count(), 5, "{table}");
    assert!(table.lines().skip(1).all(|line| line.contains("ready") || line.contains("done")), "{table}");
    // A missing page makes it unhealthy, not dead. When the page is back, the same process is ready.
    let before = service(&daemon, "web");
    let _gone = daemon.sh("b", "mv /srv/www/up /srv/www/down").ok();
    let sick = becomes(&daemon, "web", "unhealthy");
    assert!(sick["reason"].as_str().unwrap().contains("404"), "{sick}");
    let _back = daemon.sh("b", "mv /srv/www/down /srv/www/up").ok();
    assert_eq!(becomes(&daemon, "web", "ready")["pid"], before["pid"]);
    // Neither services nor their checks are listed as execs of the bay.
    let execs = daemon.bay(&["execs", "ls", "b", "--json"]).ok().text();
    assert!(!execs.contains("httpd") && !execs.contains("worker"), "{execs}");
    let events = daemon.rest("GET", "/v1/events?bay=b", &Value::Null).json().to_string();
    assert!(events.contains("service.define") && !events.contains("hushed"), "{events}");
    let ports = daemon.bay(&["ports", "b", "--json"]).ok().json();
    let listening = ports.as_array().unwrap().iter().find(|port| port["port"] == 5432).unwrap();
    assert_eq!(listening["service"], "db", "{ports}");
    let inside = daemon.sh("b", "bay-ctl ports --json").ok().json();
    let seen = inside.as_array().unwrap().iter().find(|port| port["port"] == 5432).unwrap();
    assert_eq!(seen["service"], "db", "the same from inside: {inside}");
    assert!(daemon.sh("b", "bay-ctl ports").ok().text().contains("service db"));
}

#[test]
fn a_definition_that_cannot_work_is_refused_or_reported_as_failed() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _a = add(&daemon, "a", &[], "exec sleep 1011").ok();
    add(&daemon, "x", &["--needs", "nobody"], "true").fails_as(ErrorCode::InvalidInput, 2);
    let _b = add(&daemon, "c", &["--needs", "a"], "exec sleep 1011").ok();
    let (what, _) = add(&daemon, "a", &["--needs", "c"], "true").fails_as(ErrorCode::InvalidInput, 2);
    assert!(what.contains("a needs c needs a"), "{what}");
    daemon.bay(&["services", "rm", "b", "a"]).fails_as(ErrorCode::ServiceInUse, 4);
    daemon.bay(&["services", "show", "b", "nobody"]).fails_as(ErrorCode::ServiceNotFound, 3);
    daemon.bay(&["services", "logs", "b", "nobody"]).fails_as(ErrorCode::ServiceNotFound, 3);
    for flags in [["--health", "gopher://x"], ["--health", "http://example.org/"], ["--cwd", "relative"]] {
        add(&daemon, "x", &flags, "true").fails_as(ErrorCode::InvalidInput, 2);
    }
    add(&daemon, "Bad Name", &[], "true").fails_as(ErrorCode::InvalidInput, 2);
    let (what, _) =
        add(&daemon, "x", &["--restart", "never"], "exit 3").fails_as(ErrorCode::ServiceFailed, 5);
    assert!(what.contains("code 3"), "{what}");
    let (what, _) = add(&daemon, "y", &["--needs", "x"], "true").fails_as(ErrorCode::ServiceFailed, 5);
    assert!(what.contains("waits for x (failed)"), "{what}");
    let health = ["--health", "tcp:9", "--interval", "0.2", "--start-period", "0.5"];
    let (what, _) = add(&daemon, "z", &health, "exec sleep 1011").fails_as(ErrorCode::ServiceFailed, 5);
    assert!(what.contains("unhealthy") && what.contains("port 9"), "{what}");
    for name in ["z", "y", "x", "c", "a"] {
        let _gone = daemon.bay(&["services", "rm", "b", name]).ok();
    }
    assert_eq!(daemon.bay(&["services", "ls", "b", "--json"]).ok().json(), Value::Array(vec![]));
    assert_eq!(counted(&daemon, "sleep 1011"), "0");
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    daemon.bay(&["services", "logs", "b", "web"]).fails_as(ErrorCode::ServiceNotFound, 3);
    daemon.bay(&["services", "logs", "b", "web", "--follow"]).fails_as(ErrorCode::BayState, 4);
}

#[test]
fn the_logs_of_services_are_readable_while_their_bay_is_paused_or_stopped() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let run =
        "echo begun $(cat n); echo more >> n; head -c 300000 /dev/zero | tr '\\0' x; echo; exec sleep 1017";
    let _web = add(&daemon, "web", &["--cwd", "/tmp"], &format!("touch n; {run}")).ok();
    let printed = |runs: usize| {
        until("the runs to have printed", || {
            Some(logs(&daemon, "web")).filter(|log| log.matches('x').count() == runs * 300_000)
        })
    };
    printed(1);
    let _restarted = daemon.bay(&["services", "restart", "b", "web"]).ok();
    let whole = printed(2);
    assert!(whole.starts_with("begun\nx") && whole.contains("x\nbegun more\nx"), "{}", whole.len());
    let later = ["services", "logs", "b", "web", "--since-offset", "300007"];
    let rest = daemon.bay(&later).ok().text();
    assert!(rest.starts_with("begun more"), "{}", &rest[..40]);
    let as_before = || {
        let last = ["services", "logs", "b", "web", "--tail", "2", "--timestamps"];
        let last = daemon.bay(&last).ok().text();
        let times: Vec<&str> =
            last.lines().filter_map(|line| line.split_once(' ')).map(|(at, _)| at).collect();
        assert_eq!(last.lines().map(|line| line.contains("begun more")).collect::<Vec<_>>(), [true, false]);
        assert!(
            times.len() == 2 && times.iter().all(|at| at.starts_with("20") && at.ends_with('Z')),
            "{times:?}"
        );
        assert!(logs(&daemon, "web") == whole, "the log of a bay that does not run is another");
        assert!(daemon.bay(&later).ok().text() == rest);
        daemon.bay(&["services", "logs", "b", "nobody"]).fails_as(ErrorCode::ServiceNotFound, 3);
        let beyond = ["services", "logs", "b", "web", "--since-offset", "99999999"];
        daemon.bay(&beyond).fails_as(ErrorCode::InvalidInput, 2);
        daemon.bay(&["services", "logs", "b", "web", "--follow"]).fails_as(ErrorCode::BayState, 4);
    };
    let _paused = daemon.bay(&["pause", "b"]).ok();
    as_before();
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    as_before();
}

#[test]
fn a_service_that_ends_is_started_again_and_one_that_keeps_ending_is_in_a_crash_loop() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _up = add(&daemon, "web", &[], "echo run; exec sleep 1012").ok();
    let first = service(&daemon, "web");
    let _killed = daemon.sh("b", &format!("kill -9 {}", first["pid"])).ok();
    let second = until("another run", || {
        Some(service(&daemon, "web"))
            .filter(|view| view["state"] == "ready" && view["pid"].is_u64() && view["pid"] != first["pid"])
    });
    assert_eq!(second["restarts"], 1);
    assert_eq!(second["runs"][0]["exit"]["signal"], 9);
    assert_eq!(logs(&daemon, "web"), "run\nrun");
    let bad = add(&daemon, "bad", &["--json"], "echo trying; exit 9");
    assert_eq!((bad.code, bad.api_error().code), (5, ErrorCode::ServiceFailed));
    let view = service(&daemon, "bad");
    assert_eq!((&view["state"], &view["attempt"]), (&"crash-loop".into(), &5.into()));
    assert!(view["retry_at"].is_string() && view["reason"].as_str().unwrap().contains("code 9"), "{view}");
    assert_eq!(logs(&daemon, "bad"), ["trying"; 5].join("\n"));
    // A corrected definition fixes it.
    let _mended = add(&daemon, "bad", &[], "echo better; exec sleep 1012").ok();
    assert_eq!(service(&daemon, "bad")["state"], "ready");
    // The record has each state that a service stayed in, as the guest reported it.
    let reached = |name: &str| -> Vec<String> {
        let text = daemon.bay(&["timeline", "b", "--json"]).ok().text();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of_it = lines
            .iter()
            .filter(|line| line["kind"] == "service.reached" && line["details"]["service"] == name);
        of_it.map(|line| line["details"]["state"].as_str().unwrap().to_owned()).collect()
    };
    until("the last state is on record", || (reached("bad").last()? == "ready").then_some(()));
    assert_eq!(reached("web"), ["ready", "backing-off", "ready"]);
    let ends = ["backing-off", "backing-off", "backing-off", "backing-off", "crash-loop"];
    assert_eq!(reached("bad")[..5], ends);
    // A stop of the bay is none of its services, which start with it again.
    let (_stopped, _started) = (daemon.bay(&["stop", "b"]).ok(), daemon.bay(&["start", "b"]).ok());
    until("web runs again", || (reached("web").len() == 4).then_some(()));
    assert_eq!(reached("web")[3..], ["ready"]);
    let timeline = daemon.bay(&["timeline", "b"]).ok().text();
    assert!(timeline.contains("service bad is crash-loop: ") && timeline.contains("code 9"), "{timeline}");
}

#[test]
fn a_service_that_forks_away_is_reported_and_stopped_with_all_its_processes() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let added = add(&daemon, "away", &[], "setsid sleep 1013 & setsid sleep 1013 & exit 0").ok().text();
    assert!(added.contains("2 processes") && added.contains("foreground"), "{added}");
    assert_eq!(counted(&daemon, "sleep 1013"), "2");
    let _stopped = daemon.bay(&["services", "stop", "b", "away"]).ok();
    assert_eq!(service(&daemon, "away")["state"], "stopped");
    assert_eq!(counted(&daemon, "sleep 1013"), "0");
    // A service that ignores TERM is killed after its grace.
    let _stubborn =
        add(&daemon, "stubborn", &["--stop-grace", "0.3"], "trap '' TERM; while :; do sleep 1014; done").ok();
    let said = daemon.bay(&["services", "stop", "b", "stubborn"]).ok().text();
    assert!(said.contains("stopped"), "{said}");
    assert_eq!(service(&daemon, "stubborn")["runs"][0]["exit"]["signal"], 9);
    assert_eq!(counted(&daemon, "sleep 1014"), "0");
}

#[test]
fn services_continue_without_a_daemon_and_start_with_their_bay() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let order = "echo $BAY_SERVICE >> /workspace/order; exec sleep 1015";
    let _db = add(&daemon, "db", &[], order).ok();
    let _web = add(&daemon, "web", &["--needs", "db"], order).ok();
    let _off = add(&daemon, "off", &[], "exec sleep 1016").ok();
    let _stopped = daemon.bay(&["services", "stop", "b", "off"]).ok();
    let before = (service(&daemon, "db"), service(&daemon, "web"));
    daemon.restart();
    assert_eq!((service(&daemon, "db"), service(&daemon, "web")), before, "a daemon's death touches nothing");
    assert_eq!(counted(&daemon, "sleep 1015"), "2");

    let both_ready = |daemon: &Daemon| {
        becomes(daemon, "web", "ready");
        assert_eq!(becomes(daemon, "off", "stopped")["wanted"], false);
        assert_eq!(counted(daemon, "sleep 1015"), "2");
    };
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let _started = daemon.bay(&["start", "b"]).ok();
    both_ready(&daemon);
    let _replaced = daemon.bay(&["replace", "b"]).ok();
    both_ready(&daemon);
    // A guest that is killed is replaced, and the new one starts them again.
    let pid = rustix::process::Pid::from_raw(daemon.host_pid("b")).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    until("another guest", || {
        let view = daemon.show("b");
        (view["state"] == State::Running.as_str() && view["host_pid"] != pid.as_raw_nonzero().get())
            .then_some(())
    });
    both_ready(&daemon);
    let order = daemon.sh("b", "cat /workspace/order").ok().text();
    assert_eq!(order.lines().collect::<Vec<_>>(), ["db", "web"].repeat(4));
    assert_eq!(service(&daemon, "web")["runs"].as_array().unwrap().len(), 4, "logs of earlier runs are kept");
}

#[test]
fn a_stop_of_the_bay_ends_services_in_reverse_and_within_its_grace() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let polite = "trap 'echo $BAY_SERVICE >> /workspace/downs; exit 0' TERM; while :; do usleep 20000; done";
    let _db = add(&daemon, "db", &[], polite).ok();
    let _cache = add(&daemon, "cache", &["--needs", "db"], polite).ok();
    let _web = add(&daemon, "web", &["--needs", "cache"], polite).ok();
    let _stopped = daemon.bay(&["stop", "b", "--grace", "20"]).ok();
    let _started = daemon.bay(&["start", "b"]).ok();
    assert_eq!(daemon.sh("b", "cat /workspace/downs").ok().text(), "web\ncache\ndb");
    // A service that ignores TERM for longer than the whole grace does not delay the stop.
    let flags = ["--needs", "web", "--stop-grace", "600"];
    let _stubborn = add(&daemon, "stubborn", &flags, "trap '' TERM; while :; do sleep 1017; done").ok();
    let began = std::time::Instant::now();
    let _stopped = daemon.bay(&["stop", "b", "--grace", "2"]).ok();
    assert!(began.elapsed() < std::time::Duration::from_secs(15), "{:?}", began.elapsed());
}

#[test]
fn logs_are_followed_over_restarts_of_the_service_and_of_the_daemon() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let _up = add(&daemon, "web", &[], "echo first; exec sleep 1018").ok();
    let mut follow = daemon.command(&["services", "logs", "b", "web", "--follow"]);
    let mut follow = follow.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = follow.stdout.take().unwrap();
    let mut expect = |text: &str| {
        let mut seen = vec![0; text.len()];
        out.read_exact(&mut seen).unwrap();
        assert_eq!(String::from_utf8_lossy(&seen), text);
    };
    expect("first\n");
    let _restarted = daemon.bay(&["services", "restart", "b", "web"]).ok();
    expect("first\n");
    daemon.restart();
    let _other = add(&daemon, "web", &[], "echo second; exec sleep 1018").ok();
    expect("second\n");
    follow.kill().unwrap();
    follow.wait().unwrap();
    assert_eq!(logs(&daemon, "web"), "first\nfirst\nsecond");
    let last = daemon.bay(&["services", "logs", "b", "web", "--since-offset", "12"]).ok().text();
    assert_eq!(last, "second");
}

#[test]
fn a_service_that_loops_or_floods_fills_neither_disk_nor_memory() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let guest_kib = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.host_pid("b"))).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap().to_owned();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    // 200 MB in a few runs; a part of it is kept.
    let flood = "dd if=/dev/zero bs=1M count=50 2>/dev/null; exit 1";
    let _loop = add(&daemon, "flood", &["--no-wait"], flood).ok();
    becomes(&daemon, "flood", "crash-loop");
    let kept = daemon.sh("b", "du -sm /.bay/state/services | cut -f1").ok().text();
    assert!(kept.parse::<u64>().unwrap() <= 100, "{kept} MB are kept");
    let _start = add(&daemon, "loop", &[], "exec sleep 1019").ok();
    let before = guest_kib();
    for _ in 0..100 {
        let _again = daemon.bay(&["services", "restart", "b", "loop", "--no-wait"]).ok();
        becomes(&daemon, "loop", "starting");
    }
    becomes(&daemon, "loop", "ready");
    let grown = guest_kib().saturating_sub(before);
    assert!(grown < 4096, "the guest grew by {grown} KiB over 100 restarts");
    assert_eq!(service(&daemon, "loop")["runs"].as_array().unwrap().len(), 10);
}

#[test]
fn the_services_of_a_stopped_bay_are_listed_and_traps_among_them_are_not_followed() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _added = daemon.bay(&["services", "add", "b", "web", "--", "sleep", "1000"]).ok();
    let _trap = daemon.sh("b", "ln -s /etc/passwd /.bay/state/services/trap.json").ok();
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let all = daemon.bay(&["services", "ls", "b", "--json"]).ok().json();
    assert_eq!((&all[0]["name"], &all[0]["state"]), (&"trap".into(), &"failed".into()), "{all}");
    assert_eq!((&all[1]["name"], &all[1]["state"]), (&"web".into(), &"stopped".into()), "{all}");
    assert_eq!((&all[1]["wanted"], &all[1]["spec"]["argv"][0]), (&true.into(), &"sleep".into()), "{all}");
    assert!(!all.to_string().contains("root:"), "{all}");
    let web = daemon.bay(&["services", "show", "b", "web", "--json"]).ok().json();
    assert_eq!(web["runs"].as_array().map(Vec::len), Some(1), "{web}");
    let _absent = daemon.bay(&["services", "show", "b", "none"]).fails_with(ErrorCode::ServiceNotFound);
    let _refused = daemon.bay(&["services", "stop", "b", "web"]).fails_with(ErrorCode::BayState);
}
