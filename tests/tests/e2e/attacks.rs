//! Attacks of an agent beyond the plain ones of the isolation suite: blocking PID 1, exhausting resources that the
//! kernel shares, and traps for processes that read its files from outside.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bay_tests::suite::Scratch;
use bay_tests::{CliRun, Daemon, Repository, SMALL, image, until};
use bay_types::ErrorCode;
use bay_types::bay::State;
use rustix::process::{Pid, setpriority_process};
use serde_json::{Value, json};

/// Longest time in which an uninvolved bay must answer while another one misbehaves.
const UNDISTURBED: Duration = Duration::from_secs(5);
/// Longest time in which a bay whose guest does not answer must be stopped: its grace, and some time for the daemon.
const STOPPED_WITHIN: Duration = Duration::from_secs(30);

fn python(daemon: &Daemon, bay: &str, script: &str) -> CliRun {
    daemon.bay(&["exec", bay, "--", "python3", "-u", "-c", script])
}

/// Asserts that the daemon and an uninvolved bay still work.
#[track_caller]
fn undisturbed(daemon: &Daemon, bay: &str) {
    let begun = Instant::now();
    assert_eq!(daemon.sh(bay, "echo alive").ok().text(), "alive");
    assert!(begun.elapsed() < UNDISTURBED, "{bay} took {:?}", begun.elapsed());
}

/// Stops a bay within the time limit, and starts it again.
#[track_caller]
fn stops_and_starts(daemon: &Daemon, bay: &str) {
    let begun = Instant::now();
    let _stopped = daemon.bay(&["stop", bay]).ok();
    assert!(begun.elapsed() < STOPPED_WITHIN, "the stop took {:?}", begun.elapsed());
    let _started = daemon.bay(&["start", bay]).ok();
    assert_eq!(daemon.sh(bay, "echo alive").ok().text(), "alive");
}

const MOUNT_GROUPS: &str = "mkdir -p /tmp/cg; mount -t cgroup2 none /tmp/cg";

#[test]
fn what_the_kernel_counts_per_user_is_counted_per_bay() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("greedy");
    daemon.empty_bay("other");
    let all = "import ctypes, time\nl = ctypes.CDLL(None)\nn = 0\nwhile n < 4096 and l.inotify_init1(0) >= 0:\n  n += 1\nprint('took', n)\ntime.sleep(600)";
    let _started = daemon.bay(&["exec", "greedy", "-d", "--", "python3", "-u", "-c", all]).ok();
    until("all inotify instances to be taken", || {
        daemon.bay(&["logs", "greedy", "1"]).text().contains("took").then_some(())
    });
    let one = "import ctypes; print(ctypes.CDLL(None).inotify_init1(0) >= 0)";
    assert_eq!(python(&daemon, "other", one).ok().text(), "True");
    let host = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC);
    assert!(host.is_ok(), "a bay used up the inotify instances of the host's root: {host:?}");
}

#[test]
fn very_deep_and_very_many_groups_do_not_prevent_the_removal_of_a_bay() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _mounted = daemon.sh("b", MOUNT_GROUPS).ok();
    let script = "import os\nos.chdir('/tmp/cg')\ndepth = 0\ntry:\n  while depth < 500:\n    os.mkdir('n' * 255)\n    os.chdir('n' * 255)\n    depth += 1\nexcept OSError:\n  pass\nwide = 0\nos.chdir('/tmp/cg')\ntry:\n  while wide < 20000:\n    os.mkdir('w%d' % wide)\n    wide += 1\nexcept OSError:\n  pass\nprint(depth, wide)";
    let made = python(&daemon, "b", script).ok().text();
    let counts: Vec<u32> = made.split(' ').map(|count| count.parse().unwrap()).collect();
    assert!(counts[0] > 16, "deep enough that its path is too long for the kernel: {made}");
    assert!(counts[0] < 100 && counts[1] < 10_000, "a bay makes groups without bound: {made}");
    // If there is no room for a group of its own, an exec still runs.
    assert_eq!(daemon.sh("b", "echo alive").ok().text(), "alive");
    stops_and_starts(&daemon, "b");
}

#[test]
fn a_guest_that_its_agent_froze_or_starved_can_be_stopped_and_disturbs_nobody() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    daemon.empty_bay("other");
    let freeze = format!(
        "{MOUNT_GROUPS}; mkdir /tmp/cg/z && echo 1 > /tmp/cg/z/cgroup.procs && echo 1 > /tmp/cg/z/cgroup.freeze"
    );
    let no_groups = format!(
        "{MOUNT_GROUPS}; mkdir /tmp/cg/z; echo $$ > /tmp/cg/z/cgroup.procs; rmdir /tmp/cg/execs/exec_* /tmp/cg/execs; \
         echo threaded > /tmp/cg/z/cgroup.type"
    );
    let no_files = "python3 -c 'import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))'";
    let killed = format!(
        "{MOUNT_GROUPS}; mkdir /tmp/cg/z && echo 1 > /tmp/cg/z/cgroup.procs && echo 1 > /tmp/cg/z/cgroup.kill"
    );
    for attack in [freeze.as_str(), &no_groups, no_files, &killed, "umount -l /proc; umount -l /dev"] {
        // Do not wait for the answer: a frozen guest gives none.
        let mut running = daemon.command(&["exec", "b", "--", "sh", "-c", attack]);
        let mut running = running.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("the attack to be under way", || {
            let log = daemon.bay(&["execs", "ls", "b", "--json"]).ok().json();
            log.as_array().is_some_and(|execs| !execs.is_empty()).then_some(())
        });
        undisturbed(&daemon, "other");
        let begun = Instant::now();
        let _listed = daemon.list();
        assert!(begun.elapsed() < UNDISTURBED, "`bay ls` took {:?} after: {attack}", begun.elapsed());
        stops_and_starts(&daemon, "b");
        running.wait().unwrap();
    }
    daemon.until_state("b", State::Running);
}

#[test]
fn no_process_in_the_bay_can_access_pid_1() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    // pidfd_open and pidfd_getfd have the same number on all architectures; the other calls have wrappers in the C
    // library.
    let script = r#"
import ctypes, os, struct
l = ctypes.CDLL(None, use_errno=True)
p = l.syscall(434, 1, 0)
said = [('fd', n, l.syscall(438, p, n, 0)) for n in range(16)]
there = ctypes.create_string_buffer(8)
here = ctypes.create_string_buffer(struct.pack('QQ', ctypes.addressof(there), 8))
far = ctypes.create_string_buffer(struct.pack('QQ', 0x400000, 8))
said += [('read', 0, l.process_vm_readv(1, here, 1, far, 1, 0)), ('write', 0, l.process_vm_writev(1, here, 1, far, 1, 0))]
said += [('setns', kind, l.setns(p, kind)) for kind in (0x10000000, 0x20000, 0x40000000)]
for name in ('mem', 'exe', 'root/etc', 'cwd', 'fd/3', 'ns/mnt', 'map_files', 'environ', 'syscall', 'stack'):
    try:
        os.open('/proc/1/' + name, os.O_RDONLY)
        said.append((name, 0, 0))
    except OSError:
        pass
print([s for s in said if s[2] != -1])
"#;
    assert_eq!(python(&daemon, "b", script).ok().text(), "[]");
    // Also with every capability of a nested namespace.
    let nested = format!("import ctypes; ctypes.CDLL(None).unshare(0x10000000)\n{script}");
    assert_eq!(python(&daemon, "b", &nested).ok().text(), "[]");
    assert_eq!(daemon.sh("b", "echo alive").ok().text(), "alive");
}

#[test]
fn system_calls_cannot_be_smuggled_past_the_filters() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    // With higher bits that the kernel ignores: in a socket's family, and in an ioctl (SUBVOL_CREATE of btrfs).
    let high = r#"
import ctypes, os, platform
l = ctypes.CDLL(None, use_errno=True)
socket, ioctl = {'x86_64': (41, 16)}.get(platform.machine(), (198, 29))
name = ctypes.create_string_buffer(4096)
name[8:11] = b'sub'
done = []
for high in (0, 1 << 32, 0x7fffffff << 32):
    if l.syscall(socket, ctypes.c_long(high | 40), 1, 0) >= 0:
        done.append('vsock')
    for where in ('/', '/workspace'):
        for direction in range(4):
            for size in (0, 8, 4096):
                number = high | direction << 30 | size << 16 | 0x94 << 8 | 14
                if l.syscall(ioctl, os.open(where, os.O_RDONLY), ctypes.c_long(number), name) >= 0:
                    done.append(hex(number))
for kind in (0, 4, 8):
    if l.fanotify_init(kind, 0) >= 0 and kind:
        done.append('fanotify that may hold up opens')
print(done)
"#;
    assert_eq!(python(&daemon, "b", high).ok().text(), "[]");
    if cfg!(target_arch = "x86_64") {
        // The numbers of x32 are those of x86-64 with an additional bit.
        let x32 = "import ctypes; l = ctypes.CDLL(None, use_errno=True)\nprint([n for n in (39, 41, 248, 250, 321, 425, 514, 521) if l.syscall(n | 0x40000000, 40, 1, 0, 0) >= 0])";
        assert_eq!(python(&daemon, "b", x32).ok().text(), "[]");
        // mov eax, 20 (getpid of i386); int 0x80; ret
        let i386 = r"
import ctypes, mmap
m = mmap.mmap(-1, 4096, prot=7)
m.write(b'\xb8\x14\x00\x00\x00\xcd\x80\xc3')
print('returned', ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))())
";
        let ran = python(&daemon, "b", i386);
        assert!(ran.code != 0 && !ran.text().contains("returned"), "a call of another architecture: {ran}");
    }
    assert_eq!(daemon.sh("b", "ls -d /sub /workspace/sub 2>/dev/null").text(), "");
}

#[test]
fn no_process_of_a_bay_gets_priority_over_the_hosts() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = r"
import os, resource
done = []
def attempt(name, act):
    try:
        act()
        done.append(name)
    except (OSError, ValueError):
        pass
attempt('nice', lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
attempt('fifo', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
attempt('rr', lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1)))
attempt('oom', lambda: os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-1'))
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
attempt('files', lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1)))
print(done)
";
    assert_eq!(python(&daemon, "b", script).ok().text(), "[]");
    // If the host's memory runs out, the kernel kills processes of bays first.
    let score: i32 = daemon.sh("b", "cat /proc/self/oom_score_adj").ok().text().parse().unwrap();
    assert!(score > 0, "oom_score_adj is {score}");
}

#[test]
fn a_daemon_with_a_high_priority_does_not_pass_it_on_to_its_bays() {
    let daemon = Daemon::start();
    for thread in fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap() {
        let thread: i32 = thread.unwrap().file_name().to_str().unwrap().parse().unwrap();
        setpriority_process(Pid::from_raw(thread), -5).unwrap();
    }
    daemon.empty_bay("b");
    let nice = daemon.sh("b", "cut -d ' ' -f 19 /proc/self/stat").ok().text();
    assert_eq!(nice, "0");
}

#[test]
fn mounts_made_by_the_host_can_be_neither_removed_nor_made_writable() {
    let daemon = Daemon::start();
    let scratch = Scratch::new();
    fs::write(scratch.join("f"), "the host's\n").unwrap();
    let mount = json!([{ "source": scratch.path(), "target": "/shared" }]);
    let body = json!({ "name": "b", "source": { "kind": "empty" }, "image": SMALL, "mounts": mount });
    let made = daemon.rest("POST", "/v1/bays", &body);
    assert_eq!(made.status, 200, "{}", String::from_utf8_lossy(&made.body));
    assert_eq!(daemon.sh("b", "cat /shared/f").ok().text(), "the host's");
    for attempt in [
        "mount -o remount,rw /shared",
        "mount -o remount,bind,rw /shared",
        "mount -o remount,suid /shared",
        "mount -o remount,dev /workspace",
        "mount -o remount,dev /",
        "mount -o remount,suid,dev /.bay/state",
        "umount /shared",
        "umount -l /shared",
        "umount -l /workspace",
        "umount -l /.bay/state",
        "mkdir -p /tmp/m && mount --bind /shared /tmp/m && mount -o remount,bind,rw /tmp/m",
        "mkdir -p /tmp/n && mount --bind / /tmp/n",
        "echo x > /shared/f",
        "mkdir -p /tmp/d && mount -t debugfs none /tmp/d",
        "mkdir -p /tmp/d && mount -t tracefs none /tmp/d",
        "mkdir -p /tmp/d && mount -t securityfs none /tmp/d",
        "mkdir -p /tmp/d && mount -t bpf none /tmp/d",
        "mkdir -p /tmp/d && mount -t devtmpfs none /tmp/d",
        "mkdir -p /tmp/d && mount -t pstore none /tmp/d",
    ] {
        for nested in [attempt.to_owned(), format!("unshare -U -r -m sh -c '{attempt}'")] {
            assert_ne!(daemon.sh("b", &nested).code, 0, "{nested}");
        }
    }
    assert_eq!(fs::read_to_string(scratch.join("f")).unwrap(), "the host's\n");
}

/// Replaces a mount point in the root filesystem. In its own mount namespace that is refused. In a namespace in which
/// the old root is no longer mounted, it is not.
const REPLACE: &str = r"
import ctypes, os, sys
what, how = sys.argv[1:]
l = ctypes.CDLL(None, use_errno=True)
assert l.unshare(0x20000) == 0
root = os.open('/', os.O_RDONLY)
os.makedirs('/tmp/n', exist_ok=True)
assert l.mount(b'none', b'/tmp/n', b'tmpfs', 0, None) == 0
os.makedirs('/tmp/n/old')
os.chdir('/tmp/n')
assert l.pivot_root(b'.', b'old') == 0
assert l.umount2(b'/old', 2) == 0
os.rename(what, 'was', src_dir_fd=root, dst_dir_fd=root)
if how == 'link': os.symlink('/etc', what, dir_fd=root)
if how == 'loop': os.symlink(what, what, dir_fd=root)
if how == 'fifo': os.mkfifo(what, dir_fd=root)
if how == 'file': os.close(os.open(what, os.O_CREAT | os.O_WRONLY, dir_fd=root))
";

#[test]
fn a_replaced_mount_point_is_not_followed_and_a_fresh_root_fixes_it() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let etc = || {
        let mut names: Vec<_> =
            fs::read_dir("/etc").unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = etc();
    let _written = daemon.sh("b", "echo work > /workspace/work").ok();
    for (what, how) in [
        ("workspace", "link"),
        ("workspace", "fifo"),
        ("proc", "link"),
        ("dev", "file"),
        ("sys", "loop"),
        ("run", "link"),
        (".bay", "link"),
        (".bay/state", "link"),
        (".bay/bin", "link"),
    ] {
        let _replaced = daemon.bay(&["exec", "b", "--", "python3", "-c", REPLACE, what, how]).ok();
        let _stopped = daemon.bay(&["stop", "b"]).ok();
        let (said, _) = daemon.bay(&["start", "b"]).fails_with(ErrorCode::BayFailed);
        assert!(said.contains(what) && said.contains("bay replace"), "{what} as a {how}: {said}");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|at| at.starts_with("/etc"))));
        assert_eq!(etc(), before, "{what} as a {how}: something was made in the host's /etc");
        let _mended = daemon.bay(&["replace", "b"]).ok();
        let _started = daemon.bay(&["start", "b"]).ok();
        assert_eq!(daemon.sh("b", "cat /workspace/work").ok().text(), "work");
    }
}

#[test]
fn traps_among_the_kept_output_are_not_followed() {
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    for number in 1..=7 {
        let _ran = daemon.sh("b", &format!("echo output {number}")).ok();
    }
    let execs = daemon.bay(&["execs", "ls", "b", "--json"]).ok().json();
    let ids: Vec<String> =
        execs.as_array().unwrap().iter().map(|exec| exec["id"].as_str().unwrap().to_owned()).collect();
    let trap = format!(
        "set -e; cd /.bay/state/execs; set -- {}; s=00000000000000000000
         rm -f $1/$s.out; ln -s /etc/shadow $1/$s.out
         rm -f $2/meta.json; mkfifo $2/meta.json
         truncate -s 1000G $3/$s.out; truncate -s 100G $3/$s.idx
         sed -i 's/\"output_bytes\":[0-9]*/\"output_bytes\":18446744073709551615/;s/\"output_start\":[0-9]*/\"output_start\":18446744073709551615/' $3/meta.json
         rm -rf $4; ln -s /etc $4
         rm -f $5/$s.out; mkfifo $5/$s.out
         i=1; while [ $i -le 3000 ]; do : > $6/$(printf %020d $i).out; i=$((i+1)); done
         truncate -s 100G $7/meta.json",
        ids.join(" ")
    );
    let _set = daemon.sh("b", &trap).ok();
    let look = |daemon: &Daemon, when: &str| {
        for id in &ids {
            let begun = Instant::now();
            // Read only the beginning: one file claims to have a terabyte, of which a bounded part is shown.
            let mut logs = daemon.command(&["logs", "b", id]);
            let mut logs = logs.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            let mut shown = Vec::new();
            logs.stdout.take().unwrap().take(1 << 20).read_to_end(&mut shown).unwrap();
            logs.wait().unwrap();
            assert!(begun.elapsed() < Duration::from_secs(15), "{when}: {id} took {:?}", begun.elapsed());
            assert!(!String::from_utf8_lossy(&shown).contains("root:"), "{when}: a link was followed");
        }
        let _listed = daemon.bay(&["execs", "ls", "b"]).ok();
    };
    look(&daemon, "running");
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    look(&daemon, "stopped");
    daemon.restart();
    look(&daemon, "after a restart of the daemon");
    let _started = daemon.bay(&["start", "b"]).ok();
    assert_eq!(daemon.sh("b", "echo alive").ok().text(), "alive");
}

#[test]
fn files_that_the_guest_reads_for_itself_cannot_make_it_wait() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    for trap in [
        "mkfifo /etc/passwd",
        "ln -s /dev/zero /etc/passwd",
        "ln -s /dev/ptmx /etc/passwd",
        "ln -s /proc/kmsg /etc/passwd",
        "truncate -s 100G /etc/passwd",
        "mkdir /etc/passwd",
        "ln -s passwd /etc/passwd",
    ] {
        let _set = daemon.sh("b", &format!("rm -rf /etc/passwd /etc/group; {trap}; mkfifo /etc/group")).ok();
        let begun = Instant::now();
        assert_ne!(daemon.bay(&["exec", "b", "-u", "user", "--", "true"]).code, 0, "{trap}");
        assert_eq!(daemon.sh("b", "echo alive").ok().text(), "alive", "{trap}");
        assert!(begun.elapsed() < UNDISTURBED, "{trap}: {:?}", begun.elapsed());
    }
    stops_and_starts(&daemon, "b");
}

#[test]
fn bombs_of_every_kind_go_off_in_their_own_bay_only() {
    let daemon = Daemon::start();
    daemon.empty_bay("other");
    let repository = Repository::sample();
    let limits = ["--pids", "100", "--memory-mib", "128", "--disk-mib", "64"];
    let mut up =
        vec!["up".to_owned(), repository.arg(), "--name".into(), "b".into(), "--image".into(), SMALL.into()];
    up.extend(limits.iter().map(ToString::to_string));
    let _up = daemon.bay(&up).ok();
    for bomb in [
        "f() { f | f & }; f; sleep 600",
        "dd if=/dev/zero of=/dev/shm/x bs=1M count=1000; sleep 600",
        "cat /dev/urandom > /workspace/x; cat /dev/urandom > /.bay/state/x; sleep 600",
        "mkdir -p /workspace/i; cd /workspace/i; i=0; while [ $i -lt 100000 ]; do : > f$i; i=$((i+1)); done; sleep 600",
        "yes; sleep 600",
    ] {
        let _lit = daemon.bay(&["exec", "b", "-d", "--", "sh", "-c", bomb]);
        for _ in 0..10 {
            undisturbed(&daemon, "other");
            let _written = daemon.sh("other", "head -c 1000000 /dev/urandom > /workspace/x && sync").ok();
        }
        let begun = Instant::now();
        let _stopped = daemon.bay(&["stop", "b"]).ok();
        assert!(begun.elapsed() < STOPPED_WITHIN, "{bomb}: the stop took {:?}", begun.elapsed());
        let _started = daemon.bay(&["start", "b"]).ok();
        let _swept = daemon.sh("b", "rm -rf /workspace/x /workspace/i /.bay/state/x");
    }
}

#[test]
fn names_and_texts_of_a_bay_cannot_control_the_operators_terminal() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let scratch = Scratch::new();
    let odd = "\u{1b}]0;title\u{7}\r\u{9b}2J\u{202e}";
    let _made = daemon
        .bay(&["exec", "b", "--", "sh", "-c", "mkdir -p \"/workspace/d/$1\" && mkfifo \"/workspace/d/$1/p\" && ln -s /etc \"/workspace/d/$1/l\"", "sh", odd])
        .ok();
    let to = scratch.join("copy");
    let runs = [
        daemon.bay(&["exec", "b", "--", odd]),
        daemon.bay(&["exec", "b", "-u", odd, "--", "true"]),
        daemon.bay(&["cp", "b:/workspace/d", to.to_str().unwrap()]),
        daemon.bay(&["cp", &format!("b:/workspace/d/{odd}/p"), scratch.join("p").to_str().unwrap()]),
        daemon.bay(&["cp", &format!("b:/{odd}"), scratch.join("x").to_str().unwrap()]),
        daemon.bay(&["execs", "ls", "b"]),
        daemon.bay(&["ls"]),
        daemon.bay(&["show", "b"]),
        daemon.bay(&["show", odd]),
        daemon.bay(&["logs", "b", odd]),
    ];
    for ran in runs {
        let said = format!("{}{}", String::from_utf8_lossy(&ran.stdout), ran.errors());
        let obeyed = said.chars().find(|c| c.is_control() && *c != '\n' || *c == '\u{202e}');
        assert_eq!(obeyed, None, "{ran}");
    }
}

/// A connection on which a request was sent and nothing was read.
fn half_open(daemon: &Daemon, sent: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(sent).unwrap();
    stream
}

#[test]
fn callers_that_hang_flood_or_smuggle_delay_nobody() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let idle: Vec<UnixStream> =
        (0..500).map(|n| half_open(&daemon, if n % 2 == 0 { b"" } else { b"GET /v1/hea" })).collect();
    let _unread = half_open(&daemon, "GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n".repeat(1000).as_bytes());
    undisturbed(&daemon, "b");
    drop(idle);
    for head in ["content-length: 99999999999", "transfer-encoding: chunked"] {
        let head =
            format!("POST /v1/bays HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{head}\r\n\r\n");
        let mut stream = half_open(&daemon, head.as_bytes());
        let chunk = if head.contains("chunked") {
            [b"100000\r\n".as_slice(), &[b'a'; 1 << 20], b"\r\n"].concat()
        } else {
            vec![b'a'; 1 << 20]
        };
        let taken = (0..256).take_while(|_| stream.write_all(&chunk).is_ok()).count();
        assert!(taken < 64, "the daemon took {taken} MiB of a request");
    }
    // Two lengths: whichever applies, the rest must not be parsed as another request.
    let smuggled = b"POST /v1/bays HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nDELETE /v1/bays/b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let _ = half_open(&daemon, smuggled).read(&mut [0; 4096]);
    for target in ["..%2f..%2fetc", "%2e%2e", "b%2f..%2fb", "b%00"] {
        assert_eq!(daemon.rest("GET", &format!("/v1/bays/{target}"), &Value::Null).status, 404, "{target}");
        let exec = daemon.rest("GET", &format!("/v1/bays/b/execs/{target}"), &Value::Null);
        assert_eq!(exec.status, 404, "{target}");
    }
    undisturbed(&daemon, "b");
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

#[test]
fn other_users_of_the_host_see_nothing_of_a_bay() {
    let daemon = Daemon::setup().own_pool(512).start();
    daemon.empty_bay("b");
    let _suid = daemon.sh("b", "cp /bin/busybox /workspace/suid && chmod 6755 /workspace/suid").ok();
    let nobody = |command: &str| {
        let output = Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", command])
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert!(nobody("true").0, "setpriv works here");
    let (found, suid) = find(&daemon.pool, "suid").expect("the file is in the pool");
    assert_eq!((suid.uid(), suid.permissions().mode() & 0o7777), (0, 0o6755), "root's on disk, and set-uid");
    let pid = daemon.host_pid("b");
    let data = daemon.data_dir.display();
    for attempt in [
        format!("ls {data}/run"),
        format!("ls {data}/guest"),
        format!("head -c 1 {data}/bay.db"),
        format!("ls {}/mnt", daemon.pool.display()),
        format!("{} true", found.display()),
        format!("ls /proc/{pid}/root/"),
        format!("ls /proc/{pid}/fd/"),
        format!("head -c 1 /proc/{pid}/environ"),
    ] {
        assert!(!nobody(&attempt).0, "nobody may: {attempt}");
    }
    let socket = fs::metadata(daemon.socket()).unwrap();
    assert_eq!(socket.permissions().mode() & 0o077, 0, "the daemon's socket is root's alone");
}

/// The first file of that name below a directory.
fn find(dir: &Path, name: &str) -> Option<(std::path::PathBuf, fs::Metadata)> {
    let entries: Vec<_> = fs::read_dir(dir).ok()?.flatten().collect();
    entries.iter().find_map(|entry| {
        let kind = entry.file_type().ok()?;
        if kind.is_dir() {
            return find(&entry.path(), name);
        }
        (entry.file_name() == name).then(|| Some((entry.path(), entry.metadata().ok()?)))?
    })
}

#[test]
fn malformed_git_trees_are_refused() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let hash = |kind: &str, bytes: &[u8]| {
        let mut git = Command::new("git");
        git.current_dir(repository.path()).args(["hash-object", "-w", "-t", kind, "--literally", "--stdin"]);
        let mut git = git.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        git.stdin.take().unwrap().write_all(bytes).unwrap();
        String::from_utf8(git.wait_with_output().unwrap().stdout).unwrap().trim().to_owned()
    };
    let entry = |mode: &str, name: &str, id: &str| {
        let id: Vec<u8> =
            (0..id.len() / 2).map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap()).collect();
        [format!("{mode} {name}\0").as_bytes(), &id].concat()
    };
    let hook = hash("blob", b"#!/bin/sh\n");
    let link = hash("blob", b"/etc");
    let inner = hash("tree", &entry("100755", "post-checkout", &hook));
    let hostile = [
        ("dot-git", entry("40000", ".git", &inner)),
        ("dot-git-in-capitals", entry("40000", ".GiT", &inner)),
        ("dot-git-as-windows-names-it", entry("40000", "GIT~1", &inner)),
        ("dot-dot", entry("40000", "..", &inner)),
        ("a-path-as-a-name", entry("100644", "a/../../x", &hook)),
        ("a-link-and-a-directory", [entry("120000", "a", &link), entry("40000", "a", &inner)].concat()),
        ("a-link-for-modules", entry("120000", ".gitmodules", &link)),
    ];
    for (name, tree) in hostile {
        let tree = hash("tree", &tree);
        let commit = repository.git(&["commit-tree", &tree, "-m", name]);
        repository.git(&["update-ref", "refs/heads/hostile", commit.trim()]);
        repository.git(&["symbolic-ref", "HEAD", "refs/heads/hostile"]);
        let up = ["up", &repository.arg(), "--name", "b", "--image", SMALL, "--committed-only"];
        let _refused = daemon.bay(&up).fails_with(ErrorCode::RepoFetch);
    }
    assert!(daemon.list().is_empty());
}
