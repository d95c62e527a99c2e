//! Limits: set at the start and while a bay runs, enforced against its own root, visible to its processes; the stop of
//! idle bays; and `bay top`, which shows their usage.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use bay_tests::suite::{self, Lack, Scratch};
use bay_tests::{Daemon, SMALL, image, until};
use bay_types::ErrorCode;
use bay_types::bay::State;
use serde_json::{Value, json};

/// Shorter than a person would choose, but long enough that on a loaded machine a busy bay does not count as idle.
const IDLE: &str = "3s";

fn host_processors() -> usize {
    std::thread::available_parallelism().unwrap().get()
}

#[track_caller]
fn set(daemon: &Daemon, bay: &str, flags: &[&str]) {
    let mut args = vec!["set", bay];
    args.extend(flags);
    let _set = daemon.bay(&args).ok();
}

/// The entry of one bay in `GET /v1/top`.
#[track_caller]
fn use_of(daemon: &Daemon, bay: &str) -> Value {
    let answer = daemon.rest("GET", &format!("/v1/top?bay={bay}"), &Value::Null);
    assert_eq!(answer.status, 200);
    answer.json()["bays"][0].clone()
}

fn events(daemon: &Daemon, bay: &str, kind: &str) -> usize {
    let answer = daemon.rest("GET", &format!("/v1/events?bay={bay}"), &Value::Null).json();
    answer.as_array().unwrap().iter().filter(|event| event["kind"] == kind).count()
}

#[test]
fn memory_and_pids_of_a_running_bay_are_lowered_and_lifted_immediately() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let pid = daemon.host_pid("b");
    let eat = "dd if=/dev/zero bs=1M count=200 2>/dev/null | tail -c 209715200 | wc -c";
    assert_eq!(daemon.sh("b", eat).ok().text(), "209715200");
    set(&daemon, "b", &["--memory-mib", "96", "--pids", "30"]);
    assert_eq!(daemon.show("b")["limits"], json!({ "memory_mib": 96, "pids": 30 }));
    assert_ne!(daemon.sh("b", eat).text(), "209715200", "200 MiB were held in a bay of 96");
    let forks = daemon.sh("b", "n=0; while [ $n -lt 60 ]; do sleep 2 & n=$((n+1)); done 2>&1; wait");
    assert!(forks.code != 0 || forks.text().contains("fork"), "60 processes fit into 30: {forks}");
    until("room for new processes", || (daemon.sh("b", "(true) && (true)").code == 0).then_some(()));
    assert!(use_of(&daemon, "b")["stats"]["oom_kills"].as_u64().is_none_or(|kills| kills > 0));
    set(&daemon, "b", &["--memory-mib", "none", "--pids", "none"]);
    assert_eq!(daemon.sh("b", eat).ok().text(), "209715200");
    assert_eq!(daemon.show("b")["limits"]["pids"], 8192);
    assert_eq!(daemon.host_pid("b"), pid, "the bay was started anew to change a limit");
    assert_eq!(events(&daemon, "b", "bay.set"), 2);
}

#[test]
fn a_size_is_a_number_of_mib_or_has_a_unit() {
    let daemon = Daemon::start();
    let directory = Scratch::new();
    let path = directory.path().display().to_string();
    let up = ["up", &path, "--name", "b", "--image", SMALL, "--memory", "0.5G", "--disk-mib", "1.5g"];
    let _up = daemon.bay(&up).ok();
    assert_eq!(daemon.show("b")["limits"]["memory_mib"], 512);
    assert_eq!(daemon.show("b")["limits"]["disk_mib"], 1536);
    for (size, mib) in [("300M", 300), ("301", 301), ("1GiB", 1024)] {
        set(&daemon, "b", &["--memory-mib", size]);
        assert_eq!(daemon.show("b")["limits"]["memory_mib"], mib, "{size}");
    }
    for odd in ["-4", "4X", "1.5", "G"] {
        let (what, _) = daemon.bay(&["set", "b", "--memory-mib", odd]).fails_with(ErrorCode::InvalidInput);
        assert!(what.contains("4096") && what.contains("4G"), "{odd}: {what}");
    }
    assert_eq!(daemon.show("b")["limits"]["memory_mib"], 1024);
}

#[test]
fn nproc_and_the_quota_follow_cpus() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let nproc = || daemon.sh("b", "nproc").ok().text().parse::<usize>().unwrap();
    assert_eq!(nproc(), host_processors());
    set(&daemon, "b", &["--cpus", "0.2"]);
    assert_eq!(nproc(), 1);
    let throttled = || use_of(&daemon, "b")["stats"]["throttled_us"].as_u64().unwrap_or(0);
    let before = throttled();
    let _busy = daemon.sh("b", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done").ok();
    assert!(throttled() > before, "a fifth of a processor did not hold a busy loop back");
    // The new limit also applies to running processes.
    let running = daemon.bay(&["exec", "b", "-d", "--", "sleep", "1000"]).ok().text();
    set(&daemon, "b", &["--cpus", "none"]);
    assert_eq!(nproc(), host_processors());
    set(&daemon, "b", &["--cpus", "1"]);
    let allowed = daemon.sh("b", "grep Cpus_allowed_list /proc/$(pidof sleep)/status").ok().text();
    assert!(!allowed.contains([',', '-']), "{running}: {allowed}");
    set(&daemon, "b", &["--cpu-shares", "256"]);
    let shares = daemon.sh("b", "cd /sys/fs/cgroup; cat cpu/cpu.shares || cat cpu.weight").text();
    assert!(["256", "25"].contains(&shares.as_str()), "{shares}");
}

#[test]
fn two_bays_of_one_processor_do_not_share_it() {
    if host_processors() < 2 {
        return suite::skip(Lack::Host, "this machine has one processor");
    }
    let daemon = Daemon::start();
    let mut allowed = Vec::new();
    for name in ["one", "two"] {
        daemon.empty_bay(name);
        set(&daemon, name, &["--cpus", "1"]);
        allowed.push(daemon.sh(name, "grep Cpus_allowed_list /proc/self/status").ok().text());
    }
    assert_ne!(allowed[0], allowed[1]);
}

#[test]
fn disk_of_a_running_bay_is_limited_refused_below_its_use_and_lifted() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _written = daemon.sh("b", "dd if=/dev/urandom of=/workspace/first bs=1M count=30 && sync").ok();
    let (what, next) = daemon.bay(&["set", "b", "--disk-mib", "20"]).fails_with(ErrorCode::BayState);
    assert!(what.contains("holds") && next.contains("old limits"), "{what} {next}");
    set(&daemon, "b", &["--disk-mib", "80"]);
    let fills = daemon.sh("b", "dd if=/dev/urandom of=/workspace/big bs=1M count=200 && sync");
    assert_ne!(fills.code, 0, "230 MiB fit into 80: {fills}");
    let _freed = daemon.sh("b", "rm /workspace/big && sync").ok();
    set(&daemon, "b", &["--disk-mib", "none"]);
    let _fits = daemon.sh("b", "dd if=/dev/urandom of=/workspace/big bs=1M count=120 && sync").ok();
    let own = until("the disk to be counted", || {
        use_of(&daemon, "b")["disk"]["own_bytes"].as_u64().filter(|own| *own > 140 << 20)
    });
    assert!(own < 400 << 20, "{own}");
}

#[test]
fn reading_and_writing_of_a_running_bay_are_slowed_and_freed() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let slow = daemon.bay(&["set", "b", "--io-write-mibps", "2", "--io-read-mibps", "3"]);
    if slow.code != 0 {
        slow.fails_with(ErrorCode::HostUnfit);
        return suite::skip(Lack::Host, "this machine has no controller for reading and writing");
    }
    let timed = |script: &str| {
        let begun = Instant::now();
        let _done = daemon.sh("b", script).ok();
        begun.elapsed()
    };
    let write = "dd if=/dev/zero of=/workspace/x bs=1M count=6 oflag=direct";
    let read = "dd if=/workspace/x of=/dev/null bs=1M iflag=direct";
    let (written, got) = (timed(write), timed(read));
    assert!(written > Duration::from_millis(2000), "6 MiB at 2 MiB/s took {written:?}");
    assert!(got > Duration::from_millis(1300), "6 MiB at 3 MiB/s took {got:?}");
    set(&daemon, "b", &["--io-write-mibps", "none", "--io-read-mibps", "none"]);
    let freed = timed(write);
    assert!(freed < written / 2, "without a limit it took {freed:?}, with one {written:?}");
}

#[test]
fn memory_is_not_lowered_below_what_a_bay_uses_and_nothing_is_killed() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    set(&daemon, "b", &["--memory-mib", "400", "--pids", "200"]);
    // `tail` holds its input in memory until the input ends.
    let hold = "(dd if=/dev/zero bs=1M count=200; sleep 1000) | tail -c 209715200";
    let _holder = daemon.bay(&["exec", "b", "-d", "--", "sh", "-c", hold]).ok();
    until("200 MiB to be held", || {
        use_of(&daemon, "b")["stats"]["memory_bytes"].as_u64().filter(|bytes| *bytes > 180 << 20)
    });
    let refused = daemon.bay(&["set", "b", "--memory-mib", "100", "--pids", "50"]);
    let (what, next) = refused.fails_with(ErrorCode::BayState);
    assert!(what.contains("b holds more memory"), "{what}");
    assert!(next.contains("the old limits remain"), "{next}");
    let view = daemon.show("b");
    assert_eq!(view["limits"], json!({ "memory_mib": 400, "pids": 200 }), "{view}");
    assert_eq!(view["state"], "running");
    let stats = use_of(&daemon, "b")["stats"].clone();
    assert_eq!((&stats["memory_limit_bytes"], &stats["pids_limit"]), (&json!(400 << 20), &json!(200)));
    assert_eq!(stats["oom_kills"].as_u64().unwrap_or(0), 0, "{stats}");
    assert_eq!(daemon.sh("b", "pidof tail | wc -w").ok().text(), "1");
    assert_eq!((events(&daemon, "b", "bay.set-refused"), events(&daemon, "b", "bay.set")), (1, 1));
}

#[test]
fn a_stopped_bay_has_its_new_limits_when_it_starts() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    set(&daemon, "b", &["--cpus", "1", "--memory-mib", "128", "--disk-mib", "64"]);
    assert_eq!(daemon.show("b")["state"], "stopped");
    let _started = daemon.bay(&["start", "b"]).ok();
    assert_eq!(daemon.sh("b", "nproc").ok().text(), "1");
    assert_eq!(use_of(&daemon, "b")["stats"]["memory_limit_bytes"], 128 << 20);
    let fills = daemon.sh("b", "dd if=/dev/urandom of=/workspace/big bs=1M count=200 && sync");
    assert_ne!(fills.code, 0, "200 MiB fit into 64: {fills}");
}

#[test]
fn a_paused_bay_is_limited_without_being_resumed() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _paused = daemon.bay(&["pause", "b"]).ok();
    set(&daemon, "b", &["--pids", "100"]);
    assert_eq!(daemon.show("b")["state"], "paused");
    assert_eq!(use_of(&daemon, "b")["stats"]["pids_limit"], 100);
}

#[test]
fn a_daemon_killed_before_it_set_a_limit_sets_it_after_its_restart() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    daemon.kill_9();
    daemon.set_environment(&[("BAY_FAULT", "daemon:after-intent")]);
    daemon.launch();
    let cut = daemon.bay(&["set", "b", "--memory-mib", "200", "--pids", "77"]);
    assert_ne!(cut.code, 0, "{cut}");
    daemon.kill_9();
    daemon.set_environment(&[]);
    daemon.launch();
    until("the limits to hold", || {
        let stats = use_of(&daemon, "b")["stats"].clone();
        (stats["memory_limit_bytes"] == 200 << 20 && stats["pids_limit"] == 77).then_some(())
    });
    assert_eq!(daemon.show("b")["limits"], json!({ "memory_mib": 200, "pids": 77 }));
}

#[test]
fn invalid_limits_change_nothing() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    set(&daemon, "b", &["--memory-mib", "256"]);
    let before = daemon.show("b")["limits"].clone();
    let cases: &[(&[&str], ErrorCode)] = &[
        (&[], ErrorCode::InvalidInput),
        (&["--memory-mib=1"], ErrorCode::InvalidInput),
        (&["--memory-mib=99999999"], ErrorCode::NotEnough),
        (&["--cpus=0"], ErrorCode::InvalidInput),
        (&["--cpus=nan"], ErrorCode::InvalidInput),
        (&["--cpus=100000"], ErrorCode::NotEnough),
        (&["--pids=2", "--memory-mib=300"], ErrorCode::InvalidInput),
        (&["--cpu-shares=1"], ErrorCode::InvalidInput),
        (&["--io-read-mibps=0"], ErrorCode::InvalidInput),
        (&["--idle-stop=1s"], ErrorCode::InvalidInput),
    ];
    for (flags, code) in cases {
        let mut args = vec!["set", "b"];
        args.extend(*flags);
        daemon.bay(&args).fails_with(*code);
    }
    for body in [json!({ "memory_mib": null }), json!({ "memory": 1 }), json!([]), json!({ "cpus": "much" })]
    {
        let answer = daemon.rest("PATCH", "/v1/bays/b/limits", &body);
        assert_eq!(answer.status, 400, "{body}");
    }
    assert_eq!(daemon.show("b")["limits"], before);
    daemon.bay(&["set", "absent", "--pids", "100"]).fails_with(ErrorCode::BayNotFound);
}

/// An image that contains only the host's programs, as mounts.
fn with_host_programs(daemon: &Daemon, scratch: &Scratch, flags: &[&str]) {
    let root = scratch.join("image");
    for dir in ["bin", "etc", "tmp", "usr", "var"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    symlink("usr/lib", root.join("lib")).unwrap();
    symlink("usr/lib64", root.join("lib64")).unwrap();
    std::fs::copy(image::small().join("bin/busybox"), root.join("bin/busybox")).unwrap();
    symlink("busybox", root.join("bin/sh")).unwrap();
    std::fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n").unwrap();
    let image = format!("dir:{}", root.display());
    let work = scratch.join("work");
    std::fs::create_dir_all(&work).unwrap();
    let work = work.display().to_string();
    let mut args = vec!["up", &work, "--name", "b", "--image", &image, "--mount", "/usr:/usr:ro"];
    args.extend(flags);
    let _up = daemon.bay(&args).ok();
}

#[test]
fn java_sizes_itself_by_the_bays_limits() {
    let Some(java) = std::fs::canonicalize("/usr/bin/java").ok().filter(|java| java.starts_with("/usr"))
    else {
        return suite::skip(Lack::Installable, "there is no java below /usr");
    };
    let daemon = Daemon::start();
    let scratch = Scratch::new();
    with_host_programs(&daemon, &scratch, &["--memory-mib", "600", "--cpus", "1"]);
    let flag = |name: &str| {
        let script = format!("{} -XX:+PrintFlagsFinal -version 2>/dev/null", java.display());
        let all = daemon.sh("b", &script).ok().text();
        let line = all.lines().find(|line| line.split_whitespace().nth(1) == Some(name)).map(str::to_owned);
        line.and_then(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok()).unwrap()
    };
    let heap = flag("MaxHeapSize");
    assert!((100 << 20..400 << 20).contains(&heap), "a heap of {heap} in a bay of 600 MiB");
    let settings = format!("{} -XshowSettings:system -version 2>&1", java.display());
    let seen = daemon.sh("b", &settings).ok().text();
    assert!(seen.contains("Effective CPU Count: 1\n"), "{seen}");
    assert!(seen.contains("Memory Limit: 600.00M"), "{seen}");
    set(&daemon, "b", &["--memory-mib", "1200"]);
    assert!(flag("MaxHeapSize") > heap, "a larger bay has no larger heap");
}

#[test]
fn node_sizes_itself_by_the_bays_limits() {
    if !Path::new("/usr/bin/node").exists() {
        return suite::skip(Lack::Installable, "there is no node below /usr");
    }
    let daemon = Daemon::start();
    let scratch = Scratch::new();
    with_host_programs(&daemon, &scratch, &["--memory-mib", "600", "--cpus", "1"]);
    let ask = "process.constrainedMemory?.() + ' ' + require('os').cpus().length + ' ' + (require('os').availableParallelism?.() ?? 1)";
    let seen = daemon.bay(&["exec", "b", "--", "/usr/bin/node", "-p", ask]).ok().text();
    let words: Vec<&str> = seen.split(' ').collect();
    assert!(["undefined", "629145600"].contains(&words[0]), "{seen}");
    assert_eq!(words[2], "1", "{seen}");
}

#[test]
fn root_in_a_bay_cannot_raise_its_limits_nor_see_the_hosts_groups() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    daemon.empty_bay("other");
    set(&daemon, "b", &["--memory-mib", "128", "--pids", "300", "--cpus", "1"]);
    let seen = |bay: &str| {
        let stats = use_of(&daemon, bay)["stats"].clone();
        (stats["memory_limit_bytes"].clone(), stats["pids_limit"].clone())
    };
    let before = seen("b");
    // Writes to every file of every hierarchy that could hold a limit: as mounted, remounted writable, and mounted
    // again.
    let attack = r#"
        mkdir -p /tmp/g
        for c in cpu cpuacct cpuset memory pids blkio devices freezer net_cls perf_event hugetlb; do
            mkdir -p /tmp/g/$c; mount -t cgroup -o $c none /tmp/g/$c 2>/dev/null || rmdir /tmp/g/$c
        done
        mkdir -p /tmp/g/systemd /tmp/g/v2
        mount -t cgroup -o none,name=systemd none /tmp/g/systemd 2>/dev/null || rmdir /tmp/g/systemd
        mount -t cgroup2 none /tmp/g/v2 2>/dev/null
        for m in /sys/fs/cgroup /sys/fs/cgroup/*; do mount -o remount,rw $m 2>/dev/null; mount -o remount,bind,rw $m 2>/dev/null; done
        for dir in /sys/fs/cgroup /sys/fs/cgroup/* /tmp/g/*; do
            for file in memory.max memory.high memory.swap.max memory.limit_in_bytes memory.memsw.limit_in_bytes \
                memory.soft_limit_in_bytes pids.max cpu.max cpu.weight cpu.cfs_quota_us cpu.shares cpuset.cpus cpuset.mems \
                io.max blkio.throttle.read_bps_device devices.allow freezer.state release_agent notify_on_release \
                cgroup.max.descendants cgroup.freeze tasks; do
                for value in max -1 0-1 1 'a *:* rwm' 0 10000; do
                    if [ -e $dir/$file ] && (echo "$value" > $dir/$file) 2>/dev/null; then echo "wrote $value to $dir/$file"; fi
                done
            done
            case $dir in *unified|*v2|/sys/fs/cgroup) ;; *)
                if mkdir $dir/mine 2>/dev/null; then echo "made $dir/mine"; fi;;
            esac
        done
        true
    "#;
    let text = daemon.sh("b", attack).ok().text();
    // With version 2 alone, the bay may make groups in its own top group. Nothing else may have been written.
    assert_eq!(text, "", "root in the bay changed its limits");
    assert_eq!(seen("b"), before);
    assert_eq!(daemon.sh("b", "nproc").ok().text(), "1");
    let wider = daemon.sh("b", "taskset 0xffffffff nproc 2>/dev/null || nproc").text();
    assert_eq!(wider, "1", "an affinity was widened beyond the bay's processors");
    // Any mount of a hierarchy begins at the bay's own group.
    let groups = daemon.sh("b", "find /tmp/g -type d -name 'bay_*' -o -type d -name workbay").ok().text();
    assert_eq!(groups, "", "the host's groups are seen in a bay");
    assert_eq!(daemon.sh("other", "echo alive").ok().text(), "alive");
}

/// Waits until the idle bay `control` was stopped. Every bay that had the same limit for longer was then observed for
/// at least as long.
fn until_idle_time_has_passed(daemon: &Daemon, control: &str) {
    set(daemon, control, &["--idle-stop", IDLE]);
    daemon.until_state(control, State::Stopped);
}

#[test]
fn an_idle_bay_is_stopped_with_its_reason_and_a_busy_one_is_not() {
    let daemon = Daemon::start();
    for name in ["idle", "busy", "watched", "always", "control", "second-control"] {
        daemon.empty_bay(name);
    }
    let work = daemon.bay(&["exec", "busy", "-d", "--", "sh", "-c", "while :; do :; done"]).ok().text();
    // Neither listening nor sleeping is activity.
    let _listens = daemon.bay(&["exec", "idle", "-d", "--", "nc", "-l", "-p", "5000"]).ok();
    let mut watcher = daemon.command(&["exec", "watched", "--", "sleep", "1000"]);
    let mut watcher = watcher.stdout(std::process::Stdio::null()).spawn().unwrap();
    until("the client to be attached", || (daemon.show("watched")["execs_running"] == 1).then_some(()));
    for name in ["idle", "busy", "watched"] {
        set(&daemon, name, &["--idle-stop", IDLE]);
    }
    assert!(daemon.show("always")["idle_stop_s"].is_null(), "idle stop is off unless asked for");
    let view = daemon.until_state("idle", State::Stopped);
    assert_eq!(view["reason"], "idle for 3 s", "{view}");
    assert_eq!(view["desired"], "stopped");
    assert_eq!(events(&daemon, "idle", "bay.idle-stop"), 1);
    until_idle_time_has_passed(&daemon, "control");
    for name in ["busy", "watched", "always"] {
        assert_eq!(daemon.show(name)["state"], "running", "{name}");
    }
    let _killed = daemon.bay(&["kill", "busy", &work, "--signal", "KILL"]).ok();
    watcher.kill().unwrap();
    watcher.wait().unwrap();
    daemon.until_state("busy", State::Stopped);
    daemon.until_state("watched", State::Stopped);
    // It can be started again, and `off` disables the idle stop.
    let _started = daemon.bay(&["start", "idle"]).ok();
    assert_eq!(daemon.show("idle")["state"], "running");
    set(&daemon, "idle", &["--idle-stop", "off"]);
    until_idle_time_has_passed(&daemon, "second-control");
    assert_eq!(daemon.show("idle")["state"], "running");
    let _stopped = daemon.bay(&["stop", "idle"]).ok();
    assert_eq!(daemon.show("idle")["reason"], "stopped on request");
}

#[test]
fn a_lease_taken_inside_keeps_an_idle_bay_awake() {
    let daemon = Daemon::start();
    for name in ["held", "free", "control"] {
        daemon.empty_bay(name);
    }
    let _held = daemon.sh("held", "bay-ctl hold 1h").ok();
    for name in ["held", "free"] {
        set(&daemon, name, &["--idle-stop", IDLE]);
    }
    daemon.until_state("free", State::Stopped);
    until_idle_time_has_passed(&daemon, "control");
    assert_eq!(daemon.show("held")["state"], "running");
    let _released = daemon.sh("held", "bay-ctl release").ok();
    daemon.until_state("held", State::Stopped);
}

#[test]
fn an_idle_stop_survives_a_new_daemon_and_a_pause_holds_it() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    daemon.empty_bay("paused");
    set(&daemon, "paused", &["--idle-stop", IDLE]);
    let _paused = daemon.bay(&["pause", "paused"]).ok();
    set(&daemon, "b", &["--idle-stop", IDLE]);
    daemon.restart();
    daemon.until_state("b", State::Stopped);
    assert_eq!(daemon.show("paused")["state"], "paused");
}

#[test]
fn top_shows_every_bay_in_a_table_as_json_and_on_a_terminal() {
    let daemon = Daemon::start();
    daemon.empty_bay("quiet");
    daemon.empty_bay("loud");
    let _work = daemon.bay(&["exec", "loud", "-d", "--", "sh", "-c", "while :; do :; done"]).ok();
    let table = daemon.bay(&["top", "--once"]).ok().text();
    for part in ["host:", "steal", "NAME", "CPU%", "PRESSURE", "SHARED", "quiet", "loud"] {
        assert!(table.contains(part), "{part} is not in\n{table}");
    }
    assert!(!table.contains('\u{1b}'), "{table}");
    let top = daemon.bay(&["top", "--once", "--json"]).ok().json();
    let bay =
        |name: &str| top["bays"].as_array().unwrap().iter().find(|bay| bay["name"] == name).cloned().unwrap();
    assert!(bay("loud")["cpu_percent"].as_f64().unwrap() > 10.0, "{top}");
    assert!(bay("quiet")["cpu_percent"].as_f64().unwrap() < 10.0, "{top}");
    assert_eq!(bay("loud")["execs_running"], 1);
    assert!(bay("quiet")["stats"]["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{top}");
    assert!(top["host"]["cpu_percent"].is_number() && top["host"]["steal_percent"].is_number(), "{top}");
    let shown = daemon.on_a_terminal("top --interval 0.3", "m\n\nq").ok().text();
    for part in ["\u{1b}[?1049h", "loud", "\u{1b}[?1049l", "\u{1b}[?25h"] {
        assert!(shown.contains(part), "{part:?} is not in {shown:?}");
    }
    let interrupted = daemon.on_a_terminal("top --interval 0.3", "\n\u{3}").ok().text();
    assert!(interrupted.trim_end().ends_with("\u{1b}[?1049l"), "{interrupted:?}");
    let _refused = daemon.bay(&["top", "--interval", "0"]).exits(2);
    let show = daemon.bay(&["show", "loud"]).ok().text();
    assert!(show.contains("uses now") && show.contains("cpu time"), "{show}");
}

#[test]
fn limits_at_the_start_have_the_same_flags_as_set() {
    let daemon = Daemon::start();
    let scratch = Scratch::new();
    let work = scratch.path().display().to_string();
    let flags = ["--cpus", "1", "--cpu-shares", "512", "--idle-stop", "2h", "--pids", "none"];
    let mut args = vec!["up", &work, "--name", "b", "--image", SMALL];
    args.extend(flags);
    let _up = daemon.bay(&args).ok();
    let view = daemon.show("b");
    assert_eq!(view["limits"], json!({ "cpus": 1.0, "cpu_shares": 512, "pids": 8192 }), "{view}");
    assert_eq!(view["idle_stop_s"], 7200);
    assert_eq!(daemon.sh("b", "nproc").ok().text(), "1");
}
