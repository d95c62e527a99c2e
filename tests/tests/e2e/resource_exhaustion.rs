//! Agents that use up processes, memory, disk, descriptors or output. Only their own bay is affected, and it reports why.
//!
//! Meanwhile another bay runs commands, and each of them must succeed. (`bay bench` measures how fast they are.)
//! Afterwards the affected bay is usable again: without a restart, unless its guest itself was killed.

use std::io::Read;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bay_tests::suite::{self, Lack};
use bay_tests::wait::within;
use bay_tests::{Daemon, SMALL, image, until};
use bay_types::ErrorCode;
use bay_types::bay::State;
use serde_json::{Value, json};

/// Longest time until a bomb has its effect, on a machine with two processors that runs other tests too.
const BOMB_WITHIN: Duration = Duration::from_secs(120);
/// Most that the memory of the daemon may grow while output of a bay passes through it.
const DAEMON_GROWTH_KIB: u64 = 64 << 10;

/// Whether the image has python. If not, the test counts as skipped.
fn with_python() -> bool {
    if !image::has_python() {
        suite::skip(Lack::Installable, "the small image has no python3: the host's is not below /usr");
    }
    image::has_python()
}

/// A daemon with a bay `b` with these limits, and an uninvolved bay `other`.
fn two_bays(limits: &Value) -> Daemon {
    let daemon = Daemon::start();
    daemon.empty_bay("other");
    let body = json!({ "name": "b", "source": { "kind": "empty" }, "image": SMALL, "limits": limits });
    let made = daemon.rest("POST", "/v1/bays", &body);
    let text = String::from_utf8_lossy(&made.body).into_owned();
    assert!(text.contains("\"done\""), "{text}");
    daemon
}

/// Runs `what` while the other bay works, and asserts that everything in the other bay succeeds.
fn while_the_other_works<T>(daemon: &Daemon, what: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            loop {
                let ran =
                    daemon.sh("other", "head -c 100000 /dev/urandom > /workspace/x && sync && echo alive");
                assert_eq!((ran.code, ran.text().as_str()), (0, "alive"), "the other bay: {ran}");
                assert_eq!(daemon.rest("GET", "/v1/health", &Value::Null).status, 200);
                if over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(what));
        over.store(true, Ordering::Relaxed);
        working.join().unwrap_or_else(|why| std::panic::resume_unwind(why));
        outcome.unwrap_or_else(|why| std::panic::resume_unwind(why))
    })
}

/// Starts a command in the bay `b` without waiting for it, and returns its id.
fn lit(daemon: &Daemon, argv: &[&str]) -> String {
    let mut args = vec!["exec", "b", "-d", "--json", "--"];
    args.extend(argv);
    daemon.bay(&args).ok().json()["id"].as_str().unwrap().to_owned()
}

fn exec_view(daemon: &Daemon, exec: &str) -> Value {
    daemon.rest("GET", &format!("/v1/bays/b/execs/{exec}"), &Value::Null).json()
}

fn ended(daemon: &Daemon, exec: &str) -> Value {
    within(BOMB_WITHIN, || Some(exec_view(daemon, exec)).filter(|view| !view["exit"].is_null()))
        .unwrap_or_else(|| panic!("{exec} does not end: {}", exec_view(daemon, exec)))
}

/// Waits until an exec has printed this word.
fn says(daemon: &Daemon, exec: &str, word: &str) {
    let said = || daemon.bay(&["logs", "b", exec]).text();
    within(BOMB_WITHIN, || said().contains(word).then_some(()))
        .unwrap_or_else(|| panic!("{exec} does not say {word:?} but {:?}", said()));
}

fn usable(daemon: &Daemon) {
    until("the bay to be usable again", || (daemon.sh("b", "echo alive").text() == "alive").then_some(()));
    assert_eq!(daemon.show("b")["state"], "running");
}

/// Ends an exec and all of its processes by `bay kill`.
fn killed(daemon: &Daemon, exec: &str) -> Value {
    let _killed = daemon.bay(&["kill", "b", exec]).ok();
    let view = ended(daemon, exec);
    assert_eq!(view["exit"]["reason"], "killed", "{view}");
    view
}

/// A field of `/proc/PID/status` in KiB.
fn status_kib(pid: i64, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The present usage of the bay `b`.
fn stats(daemon: &Daemon) -> Value {
    daemon.rest("GET", "/v1/top?bay=b", &Value::Null).json()["bays"][0]["stats"].clone()
}

fn daemon_kib(daemon: &Daemon) -> u64 {
    status_kib(i64::from(daemon.pid()), "VmRSS")
}

#[test]
fn a_fork_bomb_ends_at_its_bays_limit_and_a_kill_ends_all_of_it() {
    if !with_python() {
        return;
    }
    let daemon = two_bays(&json!({ "pids": 100 }));
    let guest = daemon.host_pid("b");
    // As stubborn as possible: a failed fork is tried again.
    let bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass";
    let exec = lit(&daemon, &["python3", "-c", bomb]);
    let view = while_the_other_works(&daemon, || {
        let full = || stats(&daemon)["pids"].as_u64() >= Some(95);
        within(BOMB_WITHIN, || full().then_some(())).expect("the bay is full of processes");
        // Either there is no room for another command, and the error says so, or it ran.
        let ran = daemon.sh("b", "echo alive");
        assert!(ran.code == 0 || ran.errors().contains("processes"), "{ran}");
        killed(&daemon, &exec)
    });
    assert_eq!(view["limits_hit"], json!(["pids"]), "{view}");
    let shown = daemon.bay(&["execs", "show", "b", &exec]).ok().text();
    assert!(shown.contains("pids"), "{shown}");
    usable(&daemon);
    assert_eq!(daemon.sh("b", "pidof python3 | wc -w").ok().text(), "0");
    assert_eq!(daemon.host_pid("b"), guest, "PID 1 was lost to a fork bomb");
}

#[test]
fn memory_bombs_are_ended_by_the_limit_which_is_reported() {
    if !with_python() {
        return;
    }
    let daemon = two_bays(&json!({ "memory_mib": 128 }));
    let guest = daemon.host_pid("b");
    // The kernel kills commands before PID 1. PID 1 sets that when a command has begun, so skip the first moment.
    let scores = daemon.sh(
        "b",
        "for n in $(seq 100); do grep -qx 1000 /proc/self/oom_score_adj && break; sleep 0.1; done
        cat /proc/1/oom_score_adj /proc/self/oom_score_adj",
    );
    assert_eq!(scores.ok().text(), "500\n1000");
    let one = "x = []\nwhile True: x.append(bytearray(b'x') * (4 << 20))";
    let many = "import os, time\nfor n in range(40):\n  if os.fork() == 0:\n    x = bytearray(b'x') * (8 << 20)\n    time.sleep(600)\ntime.sleep(600)";
    let view = while_the_other_works(&daemon, || ended(&daemon, &lit(&daemon, &["python3", "-c", one])));
    assert_eq!(view["limits_hit"], json!(["memory"]), "{view}");
    usable(&daemon);
    let before = stats(&daemon)["oom_kills"].as_u64();
    let exec = lit(&daemon, &["python3", "-c", many]);
    while_the_other_works(&daemon, || {
        let more = || stats(&daemon)["oom_kills"].as_u64() > before;
        within(BOMB_WITHIN, || more().then_some(())).expect("the kernel ends what is too much");
    });
    // Whichever process the kernel killed, the others end with the exec.
    let _killed = daemon.bay(&["kill", "b", &exec]).ok();
    assert_eq!(ended(&daemon, &exec)["limits_hit"], json!(["memory"]));
    until("all of them to be gone", || (daemon.sh("b", "pidof python3 | wc -w").text() == "0").then_some(()));
    usable(&daemon);
    assert_eq!(daemon.host_pid("b"), guest, "PID 1 was lost to a memory bomb");
}

#[test]
fn memory_that_no_process_holds_ends_the_guest_too_and_the_bay_restarts_with_the_reason() {
    let daemon = two_bays(&json!({ "memory_mib": 64 }));
    // The end of its writer does not free what is in /dev/shm.
    let shared = "i=0; while :; do head -c 4194304 /dev/zero > /dev/shm/x$i; i=$((i+1)); done";
    let exec = lit(&daemon, &["sh", "-c", shared]);
    let view = while_the_other_works(&daemon, || ended(&daemon, &exec));
    assert_eq!(view["limits_hit"], json!(["memory"]), "{view}");
    let shown = daemon.bay(&["execs", "show", "b", &exec]).ok().text();
    assert!(shown.contains("memory limit"), "{shown}");
    if view["exit"]["reason"] == "lost" {
        let bay = daemon.until_state("b", State::Running);
        assert!(bay["reason"].as_str().unwrap().contains("used up its memory; started again"), "{bay}");
    } else {
        let _emptied = until("room for a small command", || {
            Some(daemon.sh("b", "rm -f /dev/shm/x*")).filter(|ran| ran.code == 0)
        });
    }
    usable(&daemon);
}

#[test]
fn a_bay_that_filled_its_disk_with_bytes_or_names_can_empty_it() {
    if !with_python() {
        return;
    }
    let daemon = two_bays(&json!({ "disk_mib": 48 }));
    let bytes = "cat /dev/urandom > fill";
    let names = "import os\nos.mkdir('names')\nfor n in range(100000): os.close(os.open('names/a-rather-long-name-for-an-empty-file-%d' % n, os.O_CREAT))";
    let big_names = "import os\nos.makedirs('links', exist_ok=True)\nfor n in range(100000): os.symlink('x' * 3000, 'links/%d' % n)";
    for (bomb, left) in [
        (&["sh", "-c", bytes][..], "fill"),
        (&["python3", "-c", names], "names"),
        (&["python3", "-c", big_names], "links"),
    ] {
        let exec = lit(&daemon, bomb);
        let view = while_the_other_works(&daemon, || ended(&daemon, &exec));
        assert_eq!(view["exit"]["reason"], "exited", "{view}");
        if view["exit"]["code"] != 0 {
            let said = daemon.bay(&["logs", "b", &exec]).ok().text();
            assert!(said.contains("uota exceeded"), "{left}: {said}");
        } else {
            // A filesystem with room for so many names within the limit may accept them all.
            assert_eq!(left, "names", "more fits into the bay than it may hold: {view}");
        }
        // A full disk can be emptied from inside.
        until("room again", || (daemon.sh("b", &format!("rm -rf {left} && sync")).code == 0).then_some(()));
        until("a file to fit again", || {
            (daemon.sh("b", "head -c 100000 /dev/urandom > f && sync").code == 0).then_some(())
        });
        usable(&daemon);
    }
}

#[test]
fn exhausted_descriptors_affect_only_their_own_bay() {
    if !with_python() {
        return;
    }
    let daemon = two_bays(&json!({ "memory_mib": 256 }));
    let open = "import os, resource, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
many = PROCESSES
for n in range(many - 1):
  if os.fork() == 0: break
kept = 0
try:
  while kept < MOST:
    os.open('/etc/passwd', os.O_RDONLY)
    kept += 1
except OSError as why:
  os.write(1, ('%s ' % why).encode())
os.write(1, b'holding\\n')
time.sleep(600)";
    for (processes, most) in [("1", "10**9"), ("100", "1500")] {
        let script = open.replace("PROCESSES", processes).replace("MOST", most);
        let exec = lit(&daemon, &["python3", "-c", &script]);
        while_the_other_works(&daemon, || {
            let count: usize = processes.parse().unwrap();
            let holding = || daemon.bay(&["logs", "b", &exec]).text().matches("holding").count();
            within(BOMB_WITHIN, || {
                (holding() == count || !exec_view(&daemon, &exec)["exit"].is_null()).then_some(())
            })
            .expect("the descriptors to be taken");
            // Other processes of the bay have theirs, too.
            usable(&daemon);
            let _host = std::fs::File::open("/dev/null").unwrap();
        });
        if exec_view(&daemon, &exec)["exit"].is_null() {
            let said = daemon.bay(&["logs", "b", &exec]).ok().text();
            assert!(processes != "1" || said.contains("Too many open files"), "{said}");
            killed(&daemon, &exec);
        } else {
            // The kernel counts open files as memory.
            assert_eq!(ended(&daemon, &exec)["limits_hit"], json!(["memory"]));
        }
        usable(&daemon);
    }
}

#[test]
fn a_gigabyte_of_output_costs_the_daemon_no_memory_whether_it_is_read_or_not() {
    let daemon = two_bays(&json!({}));
    let flood = "dd if=/dev/zero bs=1M count=1000 2>/dev/null; echo; echo THE END";
    let before = daemon_kib(&daemon);
    let exec = lit(&daemon, &["sh", "-c", flood]);
    let view = while_the_other_works(&daemon, || ended(&daemon, &exec));
    assert_eq!(view["output_bytes"], (1000 << 20) + 1 + 8, "{view}");
    let grown = daemon_kib(&daemon).saturating_sub(before);
    assert!(grown < DAEMON_GROWTH_KIB, "unread output: the daemon grew by {grown} KiB");
    // A reader that reads a little, then nothing while the command runs, then the rest.
    let mut reader =
        daemon.command(&["exec", "b", "--", "sh", "-c", &format!("{flood}; touch /tmp/finished")]);
    let mut reader = reader.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut from = reader.stdout.take().unwrap();
    let mut piece = vec![0; 1 << 20];
    from.read_exact(&mut piece).unwrap();
    while_the_other_works(&daemon, || {
        within(BOMB_WITHIN, || (daemon.sh("b", "ls /tmp/finished").code == 0).then_some(()))
            .expect("a command is not held up by its reader");
        let grown = daemon_kib(&daemon).saturating_sub(before);
        assert!(grown < DAEMON_GROWTH_KIB, "a slow reader: the daemon grew by {grown} KiB");
    });
    let mut tail = Vec::new();
    loop {
        let got = from.read(&mut piece).unwrap();
        if got == 0 {
            break;
        }
        tail.extend_from_slice(&piece[..got]);
        tail.drain(..tail.len().saturating_sub(16));
    }
    assert!(tail.ends_with(b"THE END\n"), "the end of the output is kept");
    let mut said = String::new();
    reader.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(reader.wait().unwrap().success(), "{said}");
    assert!(said.contains("bytes"), "nothing says that output is missing: {said:?}");
    let grown = daemon_kib(&daemon).saturating_sub(before);
    assert!(grown < DAEMON_GROWTH_KIB, "after all: the daemon grew by {grown} KiB");
    usable(&daemon);
}

#[test]
fn ten_thousand_zombies_are_reaped_when_their_parent_ends() {
    if !with_python() {
        return;
    }
    let daemon = two_bays(&json!({ "pids": 12_000 }));
    let guest = i64::from(daemon.host_pid("b"));
    let script = "import os, time\nfor n in range(10000):\n  if os.fork() == 0: os._exit(0)\nos.write(1, b'all dead\\n')\ntime.sleep(600)";
    let exec = lit(&daemon, &["python3", "-c", script]);
    let before = status_kib(guest, "RssAnon");
    while_the_other_works(&daemon, || says(&daemon, &exec, "all dead"));
    let dead = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l";
    usable(&daemon);
    assert_eq!(daemon.sh("b", dead).ok().text(), "10000", "nobody but their parent may bury them");
    while_the_other_works(&daemon, || killed(&daemon, &exec));
    until("the dead to be buried", || (daemon.sh("b", dead).text() == "0").then_some(()));
    usable(&daemon);
    let grown = status_kib(guest, "RssAnon").saturating_sub(before);
    assert!(grown < 8192, "the guest grew by {grown} KiB over 10,000 dead");
}

#[test]
fn zombies_beyond_the_default_limit_are_reported_as_that_limit() {
    if !with_python() {
        return;
    }
    let daemon = two_bays(&json!({ "pids": 300 }));
    let script = "import os\nfor n in range(10000):\n  if os.fork() == 0: os._exit(0)";
    let ran = while_the_other_works(&daemon, || daemon.bay(&["exec", "b", "--", "python3", "-c", script]));
    assert_ne!(ran.code, 0, "{ran}");
    assert!(ran.errors().contains("as many processes as it may have"), "{ran}");
    usable(&daemon);
}

#[test]
fn a_process_that_ignores_or_blocks_every_signal_is_still_ended() {
    if !with_python() {
        return;
    }
    let daemon = two_bays(&json!({}));
    let ignore = "import os, signal, time
for n in range(1, 65):
  try: signal.signal(n, signal.SIG_IGN)
  except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
os.fork()
os.setsid() if os.getpid() != os.getpgid(0) else None
os.write(1, b'deaf ')
while True: time.sleep(600)";
    let deaf = |daemon: &Daemon| {
        let exec = lit(daemon, &["python3", "-c", ignore]);
        until("both to be deaf", || {
            (daemon.bay(&["logs", "b", &exec]).text().matches("deaf").count() == 2).then_some(())
        });
        exec
    };
    let exec = deaf(&daemon);
    for signal in ["TERM", "INT", "HUP", "QUIT", "USR1"] {
        let _sent = daemon.bay(&["kill", "b", &exec, "--signal", signal]).ok();
    }
    assert!(exec_view(&daemon, &exec)["exit"].is_null(), "it is said to have ended, and has not");
    assert_eq!(daemon.sh("b", "pidof python3 | wc -w").ok().text(), "2");
    killed(&daemon, &exec);
    until("both to be gone", || (daemon.sh("b", "pidof python3 | wc -w").text() == "0").then_some(()));
    // Also a process that stopped itself; by its timeout, and by a stop of its bay.
    let stopped =
        ["exec", "b", "--timeout", "1", "--", "python3", "-c", "import os; os.kill(os.getpid(), 19)"];
    assert_eq!(daemon.bay(&stopped).code, 124);
    let timed = ["exec", "b", "--timeout", "1", "--", "python3", "-c", ignore];
    assert_eq!(daemon.bay(&timed).code, 124);
    let exec = deaf(&daemon);
    while_the_other_works(&daemon, || {
        let _stopped = daemon.bay(&["stop", "b"]).ok();
    });
    daemon.until_state("b", State::Stopped);
    assert_eq!(exec_view(&daemon, &exec)["exit"]["reason"], "stopped");
    let _started = daemon.bay(&["start", "b"]).ok();
    usable(&daemon);
}

#[test]
fn hundreds_of_concurrent_commands_and_thousands_in_all_keep_their_own_ends() {
    const AT_ONCE: usize = 300;
    const IN_ALL: usize = 2000;
    let daemon = two_bays(&json!({}));
    let start = |script: &str| {
        let spec = json!({ "id": bay_types::ExecId::generate(), "argv": ["sh", "-c", script] });
        let made = daemon.rest("POST", "/v1/bays/b/execs", &spec);
        assert_eq!(made.status, 201, "{}", String::from_utf8_lossy(&made.body));
        made.json()["id"].as_str().unwrap().to_owned()
    };
    while_the_other_works(&daemon, || {
        let waiting =
            |n: usize| format!("until [ -e /tmp/go ]; do sleep 1; done; echo {n}; exit {}", n % 100);
        let execs: Vec<String> = (0..AT_ONCE).map(|n| start(&waiting(n))).collect();
        assert_eq!(daemon.show("b")["execs_running"], AT_ONCE);
        let _go = daemon.sh("b", "touch /tmp/go").ok();
        let mut kept = 0;
        for (n, exec) in execs.iter().enumerate() {
            assert_eq!(ended(&daemon, exec)["exit"]["code"], n % 100, "{exec}");
            // Of so many execs the oldest output is dropped, which is reported. No exec has another's output.
            let logs = daemon.bay(&["logs", "b", exec]);
            if logs.code == 0 {
                assert_eq!(logs.text(), n.to_string());
                kept += 1;
            } else {
                logs.fails_with(ErrorCode::PathNotFound);
            }
        }
        assert!(kept >= 100, "the output of {kept} of {AT_ONCE} commands is kept");
        let rounds = |from: usize| {
            // Only the last is checked, but each is started.
            let all: Vec<_> =
                (from..IN_ALL).step_by(4).map(|n| (n, start(&format!("exit {}", n % 100)))).collect();
            all.into_iter().next_back()
        };
        let last: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|from| scope.spawn(move || rounds(from))).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        for (n, exec) in last {
            assert_eq!(ended(&daemon, &exec)["exit"]["code"], n % 100, "{exec}");
        }
    });
    // Thousands of ends are recorded one after another, which takes time on a busy machine.
    within(BOMB_WITHIN, || (daemon.show("b")["execs_running"] == 0).then_some(())).expect("no exec is open");
    // Old ones are deleted as the guest reports ends, which may be later than a caller learned of them.
    let listed = || daemon.bay(&["execs", "ls", "b", "--json"]).ok().json().as_array().unwrap().len();
    within(BOMB_WITHIN, || (500..=1200).contains(&listed()).then_some(()))
        .unwrap_or_else(|| panic!("{} execs are remembered", listed()));
    usable(&daemon);
}
