//! Memory of bays on the real kernel with the real CRIU: captured, restored in place, and forked.
#![forbid(unsafe_code)]

mod outside;
mod rig;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use bay_backend::BackendError;
use bay_tests::wait::{self, until};
use bay_types::bay::Mount;
use bay_types::exec::{ExecSpec, TtySize};
use rig::{Bay, Rig};

const COUNTER: &str = "i=0; while :; do i=$((i+1)); echo $i >> /workspace/count; sleep 0.05; done";

/// Passes a number around a loopback connection, a unix socket and a pipe, woken by a timer; and watches a file.
const ROUND: &str = r#"
import ctypes, os, select, signal, socket, struct, threading, time
libc = ctypes.CDLL(None, use_errno=True)
server = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(server.getsockname())
far, _ = server.accept()
left, right = socket.socketpair()
reader, writer = os.pipe()
watch = libc.inotify_init1(os.O_NONBLOCK)
open("/workspace/watched", "w").close()
assert libc.inotify_add_watch(watch, b"/workspace/watched", 2) >= 0
def echo(take, give):
    while True:
        data = take()
        if not data:
            return
        give(data)
for take, give in [(lambda: far.recv(8), far.sendall), (lambda: right.recv(8), right.sendall)]:
    threading.Thread(target=echo, args=(take, give), daemon=True).start()
ticks = 0
def tick(*_):
    global ticks
    ticks += 1
signal.signal(signal.SIGALRM, tick)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
began = time.monotonic()
number, seen = 0, 0
with open("/workspace/round", "a") as out, open("/workspace/seen", "a") as told:
    while True:
        number += 1
        packet = struct.pack("q", number)
        near.sendall(packet); assert near.recv(8) == packet
        left.sendall(packet); assert left.recv(8) == packet
        os.write(writer, packet); assert os.read(reader, 8) == packet
        with open("/workspace/watched", "a") as changed:
            changed.write("x")
        if select.select([watch], [], [], 5)[0] and os.read(watch, 4096):
            seen += 1
            told.write("%d\n" % seen); told.flush()
        before = ticks
        while ticks == before:
            time.sleep(0.01)
        assert time.monotonic() > began
        out.write("%d\n" % number); out.flush()
"#;

fn busy(rig: &Rig, mounts: &[Mount]) -> Bay {
    let bay = rig.start("source", mounts, |disk| {
        let hooks = disk.root.join("etc/bay/fork.d");
        fs::create_dir_all(&hooks).unwrap();
        for (name, text) in [
            ("10-mark", "#!/bin/sh\necho \"$BAY_FORK_INDEX $BAY_NAME $(wc -l < /workspace/count)\" > /workspace/forked\nsleep 0.3\nwc -l < /workspace/count >> /workspace/forked\n"),
            ("20-fails", "#!/bin/sh\necho no such cache >&2\nexit 3\n"),
        ] {
            fs::write(hooks.join(name), text).unwrap();
            fs::set_permissions(hooks.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(disk.workspace.join("round.py"), ROUND).unwrap();
    });
    bay.begin(&ExecSpec::new(["sh", "-c", COUNTER]));
    bay.begin(&ExecSpec::new(["python3", "/workspace/round.py"]));
    for name in ["count", "round", "seen"] {
        bay.grows(name);
    }
    bay
}

/// Asserts that each number occurs once and in order: nothing ran twice, and nothing was left out.
fn in_order(bay: &Bay, name: &str) {
    let text = bay.file(name);
    let numbers: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    assert!(numbers.iter().zip(1..).all(|(have, want)| *have == want), "{name} of {}: {text}", bay.spec.name);
}

#[test]
fn a_bay_is_restored_from_its_memory_in_place() {
    let Some(rig) = Rig::new() else { return };
    let bay = busy(&rig, &[]);
    let mut session =
        ExecSpec::new(["sh", "-c", "tty; i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"]);
    session.tty = Some(TtySize { cols: 80, rows: 24 });
    let session = bay.begin(&session);
    let loud =
        bay.begin(&ExecSpec::new(["sh", "-c", "while :; do echo out; echo err >&2; sleep 0.05; done"]));
    until("the session to say something", || (bay.status(session).output_bytes > 20).then_some(()));
    assert_eq!(rig.examine(&bay), []);

    let moment = rig.capture(&bay, 1);
    println!("paused for {:?}", moment.captured.pause);
    let captured = bay.last("count");
    for name in ["count", "round", "seen"] {
        bay.grows(name);
        in_order(&bay, name);
    }
    assert!(bay.last("count") > captured, "the captured bay itself goes on");
    let said_then = bay.status(session).output_bytes;

    let again = rig.restore_in_place(&bay, &moment);
    assert!(again.last("count") <= captured + 4, "it goes on from the moment of the capture");
    for name in ["count", "round", "seen"] {
        again.grows(name);
        in_order(&again, name);
    }
    for exec in [session, loud] {
        assert_eq!(again.status(exec).exit, None, "it ran, and runs");
    }
    until("the session to say more", || (again.status(session).output_bytes > said_then + 20).then_some(()));
    until("the command to say more", || (again.status(loud).output_bytes > 200).then_some(()));
    assert_eq!(again.run("hostname; cat /etc/machine-id"), format!("source\n{}", bay.spec.machine_id));
    // And a second restore: nothing of the first one is in its way.
    let second = rig.capture(&again, 2);
    let last = rig.restore_in_place(&again, &second);
    last.grows("round");
    in_order(&last, "count");
}

#[test]
fn forks_of_one_capture_are_bays_of_their_own() {
    let Some(rig) = Rig::new() else { return };
    let parent = busy(&rig, &[]);
    let moment = rig.capture(&parent, 1);
    let at = fs::read_to_string(moment.workspace.join("count")).unwrap().lines().count();
    let (one, notes) = rig.fork(&parent, &moment, "fork-one", 1);
    let (two, _) = rig.fork(&parent, &moment, "fork-two", 2);
    assert!(
        notes.len() == 1 && notes[0].contains("20-fails") && notes[0].contains("no such cache"),
        "{notes:?}"
    );
    for (index, fork) in [(1, &one), (2, &two)] {
        let name = &fork.spec.name;
        let hook = format!("{index} {name} {at}\n{at}\n");
        assert_eq!(fork.file("forked"), hook, "the hook runs before everything else, and alone");
        for name in ["count", "round", "seen"] {
            fork.grows(name);
            in_order(fork, name);
        }
        let told = fork
            .run("hostname; cat /etc/hostname /etc/machine-id; echo $BAY_ID; id -u; cat /proc/self/uid_map");
        let expected = format!(
            "{name}\n{name}\n{}\n{}\n0\n         0 {:10} {:10}",
            fork.spec.machine_id, fork.spec.bay, fork.spec.id_base, 65536
        );
        assert_eq!(told, expected);
        let skew = fork.run("date +%s").parse::<i64>().unwrap() - seconds_now();
        assert!(skew.abs() <= 2, "the wall clock is right");
        fork.run(&format!("echo {name} > /workspace/mine; echo {name} > /root/mine"));
    }
    assert_eq!((one.file("mine"), two.file("mine")), ("fork-one\n".to_owned(), "fork-two\n".to_owned()));
    assert_eq!(parent.run("ls /workspace/mine /workspace/forked 2>&1 | grep -c 'No such'"), "2");
    parent.grows("round");

    let grandchild = rig.capture(&one, 2);
    let (third, _) = rig.fork(&one, &grandchild, "fork-three", 1);
    third.grows("round");
    in_order(&third, "count");
}

#[test]
fn a_fork_trusts_its_own_gateway_and_still_its_parents() {
    let Some(rig) = Rig::new() else { return };
    let authority = || {
        let mut wanted = rcgen::CertificateParams::new(Vec::new()).unwrap();
        wanted.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        wanted.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().replace("\r\n", "\n")
    };
    let bare = rig.start("bare", &[], |_| {});
    assert_eq!(bare.run("ls -A /.bay | grep -c crt; env | grep -c CERT"), "0\n0", "no gateway, no trust");
    let mut parent = bare;
    let (mut earlier, mut moments) = (Vec::new(), 0);
    for name in ["child", "grandchild"] {
        moments += 1;
        let moment = rig.capture(&parent, moments);
        let own = authority();
        let mut spec = rig.prepare_fork(&parent, &moment, name);
        spec.certificate = Some(own.clone());
        let fork = rig.try_restore(&spec, &moment, Some(1)).unwrap();
        assert_eq!(fork.run("cat /.bay/ca.crt"), own.trim_end());
        let bundle = fork.run("cat $SSL_CERT_FILE; echo; cat $NODE_EXTRA_CA_CERTS");
        for trusted in earlier.iter().chain([&own]) {
            let line = trusted.lines().nth(3).unwrap();
            assert!(bundle.contains(line), "{name}: {bundle}");
        }
        earlier.push(own);
        parent = fork;
    }
    // The same machine from its own checkpoint: its files are from then, its certificate is the present one.
    let moment = rig.capture(&parent, 3);
    parent.spec.certificate = Some(authority());
    let again = rig.restore_in_place(&parent, &moment);
    assert_eq!(again.run("cat /.bay/ca.crt"), again.spec.certificate.as_deref().unwrap().trim_end());
}

fn seconds_now() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs().cast_signed()
}

#[test]
fn a_restored_bay_is_as_confined_as_a_fresh_one() {
    let Some(rig) = Rig::new() else { return };
    let shown = rig.pool.bay_disk(bay_types::BayId::generate()).programs.with_file_name("shown");
    fs::create_dir_all(&shown).unwrap();
    fs::write(shown.join("file"), "of the host").unwrap();
    let mount = Mount { source: shown.clone(), target: "/mnt/shown".into() };
    let bay = rig.start("confined", &[mount], |_| {});
    let look = r#"
cat /proc/self/status | grep -E '^(Cap|Seccomp|NoNewPrivs)' | grep -v filters
cat /proc/self/cgroup | grep -v '^0:'
python3 - <<'PY'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what, *arguments):
    ctypes.set_errno(0)
    ok = getattr(libc, what)(*arguments) == 0
    print(what, arguments[1:2], 'done' if ok else os.strerror(ctypes.get_errno()))
BIND, REMOUNT, NODEV, NOSUID, RDONLY, NOATIME = 4096, 32, 4, 2, 1, 1024
for point in (b'/', b'/workspace', b'/.bay/state', b'/.bay/checkpoints', b'/mnt/shown', b'/.bay/bin/bay-ctl'):
    attempt('mount', b'none', point, None, BIND | REMOUNT | NOATIME, None)
for point in (b'/.bay/checkpoints', b'/mnt/shown', b'/.bay/bin/bay-ctl'):
    attempt('mount', b'none', point, None, BIND | REMOUNT | NOATIME | NODEV | NOSUID, None)
try:
    open('/mnt/shown/file', 'w')
except OSError as error:
    print(error)
for name in ('environ', 'mem', 'ns/net', 'fd/0', 'exe'):
    try:
        os.open('/proc/1/' + name, os.O_RDONLY)
        print(name, 'opened')
    except OSError as error:
        print(name, error.strerror)
print(os.strerror(-libc.ptrace(0x4206, 1, 0, 0) and ctypes.get_errno()))
try:
    os.open('/.bay/bin/bay-ctl', os.O_RDONLY)
except OSError as error:
    print(error.strerror)
PY
cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null
echo 1 > /sys/fs/cgroup/memory/memory.limit_in_bytes
ls /proc | grep -c '^[0-9]'
python3 -c 'import socket; print(socket.socket().connect_ex(("192.0.2.1", 80)))'
# The link's own address comes when the kernel has looked for others that have it.
ip addr show eth0 2>/dev/null | grep -o 'inet6* [^ ]*' | grep -v fe80
awk '{ $1 = $2 = $3 = $4 = ""; print }' /proc/self/mountinfo | sed 's/subvol.*//' | sort
unshare -U true && echo nested
"#;
    let fresh = bay.run(look);
    let namespaces = |bay: &Bay| -> BTreeSet<_> {
        let all = ["user", "pid", "net", "ipc", "uts", "mnt", "cgroup", "time"];
        all.map(|name| fs::read_link(format!("/proc/{}/ns/{name}", bay.record.pid)).unwrap()).into()
    };
    let own: BTreeSet<_> = namespaces(&bay);
    let moment = rig.capture(&bay, 1);
    let (fork, _) = rig.fork(&bay, &moment, "confined-too", 1);
    let shift = |text: &str, from: u32, to: u32| text.replace(&from.to_string(), &to.to_string());
    // Terminals belong to group 5 of the bay.
    let as_the_source = |seen: &str| {
        let shifted = shift(seen, fork.spec.id_base + 5, bay.spec.id_base + 5);
        shift(&shifted, fork.spec.id_base, bay.spec.id_base)
    };
    // In a bay that has just begun, some of it takes the kernel a moment. So both bays are read until they agree.
    let (mut fresh, mut seen) = (fresh, String::new());
    let alike = wait::within(wait::PATIENCE, || {
        fresh = bay.run(look);
        seen = as_the_source(&fork.run(look));
        (seen == fresh).then_some(())
    });
    let differ: Vec<_> = seen.lines().zip(fresh.lines()).filter(|(seen, fresh)| seen != fresh).collect();
    assert!(alike.is_some(), "{differ:?}\n{seen}");
    assert!(!fresh.contains("done\n"), "{fresh}");
    assert!(namespaces(&fork).is_disjoint(&own));
    let host: BTreeSet<_> = ["user", "pid", "net", "ipc", "uts", "mnt", "cgroup", "time"]
        .map(|name| fs::read_link(format!("/proc/self/ns/{name}")).unwrap())
        .into();
    assert!(namespaces(&fork).is_disjoint(&host));
    assert_eq!(fs::read_to_string(shown.join("file")).unwrap(), "of the host");
    // The kernel accounts resources of a bay's user namespace to the bay's own first id.
    let owner = std::process::Command::new("python3")
        .args(["-c", OWNER, &fork.record.pid.to_string()])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&owner.stdout).trim(), fork.spec.id_base.to_string());
    let mark = format!("/proc/{}/oom_score_adj", fork.record.pid);
    assert_eq!(fs::read_to_string(mark).unwrap().trim(), "500");
    assert!(rig.group(&fork).join("guest/cgroup.procs").exists());
}

/// Prints the owner of a process's user namespace.
const OWNER: &str = r#"
import fcntl, os, struct, sys
answer = fcntl.ioctl(os.open('/proc/%s/ns/user' % sys.argv[1], os.O_RDONLY), 0xb704, struct.pack('I', 0))
print(struct.unpack('I', answer)[0])
"#;

#[test]
fn obstacles_to_a_capture_are_named_and_nothing_is_stopped() {
    let Some(rig) = Rig::new() else { return };
    let bay = rig.start("odd", &[], |_| {});
    bay.begin(&ExecSpec::new(["sh", "-c", COUNTER]));
    bay.begin(&ExecSpec::new(["unshare", "-U", "sleep", "600"]));
    bay.begin(&ExecSpec::new(["python3", "-c", QUEUE]));
    let found = until("both to be seen", || {
        let found = rig.examine(&bay);
        (found.len() >= 2).then_some(found)
    });
    let told: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(told.iter().any(|line| line.contains("(sleep): a user namespace of its own")), "{told:?}");
    assert!(told.iter().any(|line| line.contains("(python3): a POSIX message queue")), "{told:?}");
    // In a process namespace of its own a process has one more number, which nobody else in the bay sees.
    let numbers = "import ctypes, os, subprocess, time\nctypes.CDLL(None).unshare(0x10000000 | 0x20000000)\n\
                   for _ in range(3): subprocess.Popen(['sleep', '601'])\ntime.sleep(601)";
    bay.begin(&ExecSpec::new(["python3", "-c", numbers]));
    let line = until("the namespaces to be seen", || {
        let found = rig.examine(&bay);
        let mut user = found.into_iter().filter(|one| one.resource == "a user namespace of its own");
        let one = user.next().filter(|one| one.others >= 4)?;
        assert!(user.next().is_none(), "a cause is named once");
        Some(one)
    });
    assert!(line.pid.is_some_and(|pid| pid > 1) && line.to_string().contains("others: a user"), "{line}");
    let refused = rig.try_capture(&bay, 1);
    assert!(matches!(refused, Err(BackendError::Obstacles(_))), "{:?}", refused.err());
    bay.grows("count");
}

const QUEUE: &str = "import ctypes, time\nl = ctypes.CDLL(None, use_errno=True)\nassert l.mq_open(b'/queue', 0o102, 0o600, None) >= 0\ntime.sleep(600)";

/// A capture during which processes are killed, a while after it began.
fn interrupted_capture(rig: &Rig, bay: &Bay, round: u64, victims: &[&str]) {
    let number = u32::try_from(round).unwrap() + 1;
    let after = Duration::from_millis(5 + 17 * round);
    let captured = std::thread::scope(|scope| {
        let capture = scope.spawn(|| rig.try_capture(bay, number));
        until("the capture to begin or end", || {
            (capture.is_finished() || !rig.processes("__runtime").is_empty()).then_some(())
        });
        wait::pause(after);
        rig.kill(victims);
        capture.join().unwrap()
    });
    let how = captured.as_ref().map(|_| "it was faster").map_err(ToString::to_string);
    println!("round {round}, {victims:?} after {after:?}: {how:?}");
    if captured.is_err() {
        assert!(!rig.has_unnamed_images(bay), "images of a failed capture are removed");
    }
}

#[test]
fn a_capture_whose_helper_is_killed_leaves_everything_running_and_nothing_behind() {
    let Some(rig) = Rig::new() else { return };
    let bay = busy(&rig, &[]);
    for round in 0..ROUNDS {
        interrupted_capture(&rig, &bay, round, &["__runtime"]);
        for name in ["count", "round", "seen"] {
            bay.grows(name);
            in_order(&bay, name);
        }
    }
    let moment = rig.capture(&bay, LAST);
    let again = rig.restore_in_place(&bay, &moment);
    again.grows("round");
}

/// The process whose registers CRIU was using when it was killed is lost. The bay is not, and can be captured again.
#[test]
fn a_capture_whose_criu_is_killed_leaves_a_bay_that_can_be_captured() {
    let Some(rig) = Rig::new() else { return };
    let bay = rig.start("source", &[], |_| {});
    for round in 0..ROUNDS {
        let counter =
            format!("i=0; while :; do i=$((i+1)); echo $i >> /workspace/count-{round}; sleep 0.05; done");
        bay.begin(&ExecSpec::new(["sh", "-c", &counter]));
        bay.grows(&format!("count-{round}"));
        let victims: &[&str] = if round % 2 == 0 { &["criu"] } else { &["__runtime", "criu"] };
        interrupted_capture(&rig, &bay, round, victims);
        assert_eq!(bay.run("echo alive"), "alive");
    }
    let moment = rig.capture(&bay, LAST);
    assert_eq!(rig.restore_in_place(&bay, &moment).run("echo alive"), "alive");
}

const ROUNDS: u64 = 15;
/// The number of a checkpoint after all rounds.
const LAST: u32 = 100;

#[test]
fn a_killed_restore_leaves_nothing_and_can_be_repeated() {
    let Some(rig) = Rig::new() else { return };
    let bay = busy(&rig, &[]);
    let moment = rig.capture(&bay, 1);
    for round in 0..ROUNDS {
        let victims: &[&str] = if round % 2 == 0 { &["criu"] } else { &["__runtime", "criu"] };
        let after = Duration::from_millis(5 + 23 * round);
        let prepared = rig.prepare_fork(&bay, &moment, &format!("fork-{round}"));
        let restored = std::thread::scope(|scope| {
            let restore = scope.spawn(|| rig.try_restore(&prepared, &moment, Some(1)));
            until("the restore to begin or end", || {
                (restore.is_finished() || !rig.processes("__runtime").is_empty()).then_some(())
            });
            wait::pause(after);
            rig.kill(victims);
            restore.join().unwrap()
        });
        println!(
            "round {round}, {victims:?} after {after:?}: {:?}",
            restored.as_ref().map(|_| ()).map_err(ToString::to_string)
        );
        match restored {
            Ok(fork) => fork.grows("count"),
            Err(_) => assert!(!rig.holds(&prepared), "a failed restore leaves nothing"),
        }
        rig.clear(&prepared);
    }
    bay.grows("round");
    let (fork, _) = rig.fork(&bay, &moment, "fork-last", 1);
    fork.grows("round");
}
