//! What root inside a bay can do to the host and to other bays. The attacks run as the bay's root, with busybox and,
//! for raw system calls, Python.

use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use bay_tests::suite::{self, Lack, Scratch};
use bay_tests::{CliRun, Daemon, Repository, SMALL, image, until};

/// Numbers of system calls that differ between architectures.
#[cfg(target_arch = "x86_64")]
mod call {
    pub(crate) const KEXEC_LOAD: i32 = 246;
    pub(crate) const INIT_MODULE: i32 = 175;
    pub(crate) const BPF: i32 = 321;
    pub(crate) const PERF_EVENT_OPEN: i32 = 298;
    pub(crate) const OPEN_BY_HANDLE_AT: i32 = 304;
    pub(crate) const USERFAULTFD: i32 = 323;
    pub(crate) const ADD_KEY: i32 = 248;
    pub(crate) const KEYCTL: i32 = 250;
    pub(crate) const SWAPON: i32 = 167;
    pub(crate) const REBOOT: i32 = 169;
    pub(crate) const SETTIMEOFDAY: i32 = 164;
}
#[cfg(not(target_arch = "x86_64"))]
mod call {
    pub(crate) const KEXEC_LOAD: i32 = 104;
    pub(crate) const INIT_MODULE: i32 = 105;
    pub(crate) const BPF: i32 = 280;
    pub(crate) const PERF_EVENT_OPEN: i32 = 241;
    pub(crate) const OPEN_BY_HANDLE_AT: i32 = 265;
    pub(crate) const USERFAULTFD: i32 = 282;
    pub(crate) const ADD_KEY: i32 = 217;
    pub(crate) const KEYCTL: i32 = 219;
    pub(crate) const SWAPON: i32 = 224;
    pub(crate) const REBOOT: i32 = 142;
    pub(crate) const SETTIMEOFDAY: i32 = 170;
}
const IO_URING_SETUP: i32 = 425;

/// Runs a Python script in the bay. If the image has no Python, returns `None` and the test counts as skipped.
fn python(daemon: &Daemon, bay: &str, script: &str) -> Option<CliRun> {
    if !image::has_python() {
        suite::skip(Lack::Installable, "the small image has no python3: the host's is not below /usr");
        return None;
    }
    Some(daemon.bay(&["exec", bay, "--", "python3", "-c", script]))
}

#[test]
fn every_namespace_is_the_bays_own() {
    let daemon = Daemon::start();
    daemon.empty_bay("one");
    daemon.empty_bay("two");
    for kind in ["user", "pid", "net", "mnt", "uts", "ipc", "cgroup", "time"] {
        let host = fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        let one = daemon.sh("one", &format!("readlink /proc/self/ns/{kind}")).ok().text();
        let two = daemon.sh("two", &format!("readlink /proc/self/ns/{kind}")).ok().text();
        let all = BTreeSet::from([host.to_str().unwrap(), &one, &two]);
        assert_eq!(all.len(), 3, "the {kind} namespace is shared: {all:?}");
    }
}

#[test]
fn root_in_the_bay_is_nobody_on_the_host_and_each_bay_has_ids_of_its_own() {
    let daemon = Daemon::start();
    daemon.empty_bay("one");
    daemon.empty_bay("two");
    let range = |bay: &str| {
        let map = daemon.sh(bay, "cat /proc/self/uid_map").ok().text();
        let fields: Vec<u32> = map.split_whitespace().map(|field| field.parse().unwrap()).collect();
        let [inside, outside, count] = fields[..] else { panic!("{map}") };
        assert_eq!(inside, 0);
        assert!(outside >= 65536, "root inside is {outside} outside");
        (outside, outside + count)
    };
    let (one, two) = (range("one"), range("two"));
    assert!(one.1 <= two.0 || two.1 <= one.0, "the ids overlap: {one:?} {two:?}");
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.host_pid("one"))).unwrap();
    let uid = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
    assert!(uid.split_whitespace().skip(1).all(|id| id == one.0.to_string()), "{uid}");
}

#[test]
fn a_command_has_no_descriptor_but_its_three() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    // The fourth is the directory that `ls` itself reads.
    assert_eq!(daemon.sh("b", "ls /proc/self/fd").ok().text(), "0\n1\n2\n3");
    assert_eq!(
        daemon.bay_with_input(&["exec", "b", "--", "ls", "/proc/self/fd"], b"x").ok().text(),
        "0\n1\n2\n3"
    );
    for path in [
        "/proc/1/fd",
        "/proc/1/root",
        "/proc/1/cwd",
        "/proc/1/environ",
        "/proc/1/mem",
        "/proc/1/maps",
        "/proc/1/exe",
    ] {
        let read = daemon.sh("b", &format!("ls {path}/ 2>/dev/null || head -c 1 {path} 2>/dev/null"));
        assert!(read.stdout.is_empty(), "{path} of PID 1 is readable: {read}");
    }
}

#[test]
fn pid_1_can_be_neither_traced_nor_killed() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let pid = daemon.host_pid("b");
    for signal in ["KILL", "STOP", "TERM", "INT", "SEGV", "HUP", "USR1"] {
        let _ = daemon.sh("b", &format!("kill -{signal} 1"));
    }
    // While PID 1 starts a process, it blocks signals for a moment. They must not be fatal then either.
    let flood = "for round in 1 2 3 4 5 6 7 8; do for s in HUP INT TERM USR1 USR2 ALRM PWR 40; do kill -$s 1; done; done";
    std::thread::scope(|scope| {
        let floods: Vec<_> = (0..4).map(|_| scope.spawn(|| daemon.sh("b", flood))).collect();
        for ran in floods {
            let _sent = ran.join().unwrap().ok();
        }
    });
    let _ = daemon.sh("b", "kill -9 -1");
    assert_eq!(daemon.sh("b", "echo alive").ok().text(), "alive");
    assert_eq!(daemon.host_pid("b"), pid);
    let attach = "import ctypes; l=ctypes.CDLL(None, use_errno=True); r=l.ptrace(16,1,0,0); print(r, ctypes.get_errno()); \
                  r=l.ptrace(0x4206,1,0,0); print(r, ctypes.get_errno())";
    let Some(ran) = python(&daemon, "b", attach) else { return };
    assert_eq!(ran.ok().text(), "-1 1\n-1 1", "PTRACE_ATTACH and PTRACE_SEIZE answer EPERM");
}

#[test]
fn debuggers_work_on_the_bays_own_processes() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = "import ctypes, os, time\nl=ctypes.CDLL(None, use_errno=True)\np=os.fork()\nif p==0:\n  time.sleep(60)\n  os._exit(0)\nprint(l.ptrace(16,p,0,0)); os.waitpid(p,0); l.ptrace(17,p,0,0); os.kill(p,9)";
    let Some(ran) = python(&daemon, "b", script) else { return };
    assert_eq!(ran.ok().text(), "0");
}

#[test]
fn system_calls_that_reach_the_kernel_itself_are_refused() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let calls = [
        ("kexec_load", call::KEXEC_LOAD),
        ("init_module", call::INIT_MODULE),
        ("bpf", call::BPF),
        ("perf_event_open", call::PERF_EVENT_OPEN),
        ("open_by_handle_at", call::OPEN_BY_HANDLE_AT),
        ("userfaultfd", call::USERFAULTFD),
        ("add_key", call::ADD_KEY),
        ("keyctl", call::KEYCTL),
        ("io_uring_setup", IO_URING_SETUP),
        ("swapon", call::SWAPON),
        ("settimeofday", call::SETTIMEOFDAY),
    ];
    let list: Vec<String> = calls.iter().map(|(name, number)| format!("({name:?},{number})")).collect();
    let script = format!(
        "import ctypes\nl=ctypes.CDLL(None, use_errno=True)\nfor name, number in [{}]:\n  ctypes.set_errno(0)\n  r=l.syscall(number,0,0,0,0,0,0)\n  print(name, r, ctypes.get_errno())",
        list.join(",")
    );
    let Some(ran) = python(&daemon, "b", &script) else { return };
    for line in ran.ok().text().lines() {
        // EPERM or ENOSYS: refused before the arguments, which are all zero, were checked.
        assert!(line.ends_with("-1 1") || line.ends_with("-1 38"), "{line}");
    }
    // reboot(2) with its magic numbers ends a pid namespace, but not the bay's.
    let reboot = format!(
        "import ctypes; l=ctypes.CDLL(None, use_errno=True); print(l.syscall({},0xfee1dead,672274793,0x01234567,0))",
        call::REBOOT
    );
    let Some(ran) = python(&daemon, "b", &reboot) else { return };
    assert_eq!(ran.ok().text(), "-1");
}

#[test]
fn socket_families_that_ignore_network_namespaces_are_refused() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    // vsock, alg, bluetooth, can, tipc, smc, xdp, qipcrtr, rds
    let script = "import socket\nfor family in [40, 38, 31, 29, 30, 43, 44, 42, 21]:\n  try:\n    socket.socket(family, socket.SOCK_STREAM)\n    print(family, 'opened')\n  except OSError as e:\n    print(family, e.errno)";
    let Some(ran) = python(&daemon, "b", script) else { return };
    for line in ran.ok().text().lines() {
        assert!(!line.ends_with("opened"), "a socket of family {line}");
    }
}

#[test]
fn nothing_can_be_typed_into_a_terminal_of_the_host() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = "import fcntl, os, pty\nm, s = pty.openpty()\nfor fd in (0, s):\n  for code in (0x5412, 0x541c):\n    try:\n      fcntl.ioctl(fd, code, b'x')\n      print('typed')\n    except OSError as e:\n      print(e.errno)";
    let Some(ran) = python(&daemon, "b", script) else { return };
    assert!(!ran.ok().text().contains("typed"));
}

#[test]
fn subvolumes_cannot_be_made_inside_a_bay() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    // SUBVOL_CREATE, SNAP_CREATE, SUBVOL_CREATE_V2, SNAP_CREATE_V2, SNAP_DESTROY, SEND, with a 4096-byte argument.
    let script = "import fcntl, os\nfor where in ('/workspace', '/'):\n  fd = os.open(where, os.O_RDONLY)\n  for number in (14, 1, 24, 23, 15, 38):\n    arg = bytearray(4096)\n    arg[0:8] = (fd).to_bytes(8, 'little')\n    arg[8:11] = b'sub'\n    try:\n      fcntl.ioctl(fd, (1 << 30) | (4096 << 16) | (0x94 << 8) | number, arg)\n      print(where, number, 'done')\n    except OSError as e:\n      print(where, number, e.errno)";
    let Some(ran) = python(&daemon, "b", script) else { return };
    for line in ran.ok().text().lines() {
        assert!(line.ends_with(" 1"), "not EPERM: {line}");
    }
}

/// Sends btrfs requests about the pool, and clones files as programs do. Prints each request and its result.
const ASKS_BTRFS: &str = r#"
import array, fcntl, os, struct
def request(direction, number, size):
    return direction << 30 | size << 16 | 0x94 << 8 | number
W, R = 1, 2
asks = {
    "SPACE_INFO": request(W | R, 20, 16), "WAIT_SYNC": request(W, 22, 8), "START_SYNC": request(R, 24, 8),
    "SYNC": request(0, 8, 0), "INO_LOOKUP": request(W | R, 18, 4096), "INO_LOOKUP_USER": request(W | R, 62, 4096),
    "GET_SUBVOL_INFO": request(R, 60, 504), "GET_SUBVOL_ROOTREF": request(W | R, 61, 4096),
    "SUBVOL_SYNC_WAIT": request(W, 65, 16), "TREE_SEARCH": request(W | R, 17, 4096),
    "TREE_SEARCH_V2": request(W | R, 17, 112), "FS_INFO": request(R, 31, 1024), "DEV_INFO": request(W | R, 30, 4096),
    "GET_DEV_STATS": request(W | R, 52, 1032), "INO_PATHS": request(W | R, 35, 56),
    "LOGICAL_INO": request(W | R, 36, 56), "LOGICAL_INO_V2": request(W | R, 59, 56),
    "QUOTA_CTL": request(W | R, 40, 16), "QGROUP_LIMIT": request(R, 43, 48), "QUOTA_RESCAN_STATUS": request(R, 45, 64),
    "QUOTA_RESCAN_WAIT": request(0, 46, 0), "SUBVOL_GETFLAGS": request(R, 25, 8), "GET_FEATURES": request(R, 57, 24),
}
for where in ("/", "/workspace", "/.bay/checkpoints"):
    fd = os.open(where, os.O_RDONLY)
    for name, number in asks.items():
        # The id of a device, and a slot for one kind of space: both harmless to the others.
        argument = bytearray(struct.pack("<QQ", 1, 0) + bytes(4080))
        try:
            fcntl.ioctl(fd, number, argument)
            print(where, name, "answered")
        except OSError as error:
            print(where, name, error.errno)
os.chdir("/workspace")
open("a", "wb").write(b"x" * 65536)
source = os.open("a", os.O_RDWR)
clone = lambda name: os.open(name, os.O_RDWR | os.O_CREAT)
one, two = clone("one"), clone("two")
fcntl.ioctl(one, request(W, 9, 4), source)
fcntl.ioctl(two, request(W, 13, 32), struct.pack("<qQQQ", source, 0, 65536, 0))
dedupe = bytearray(struct.pack("<QQHHI", 0, 65536, 1, 0, 0) + struct.pack("<qQQiI", one, 0, 0, 0, 0))
fcntl.ioctl(source, request(W | R, 54, 24), dedupe)
fcntl.ioctl(source, request(R, 49, 256), bytearray(256))
print("cloned", os.read(one, 65536) == os.read(two, 65536) == b"x" * 65536)
"#;

/// Attack: the ioctls by which any user could list the pool's subvolumes, and see how much all bays write.
#[test]
fn btrfs_ioctl_no_request_shows_the_pool_and_clones_work() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _one = daemon.bay(&["checkpoint", "b", "--files-only"]).ok();
    let Some(ran) = python(&daemon, "b", ASKS_BTRFS) else { return };
    let text = ran.ok().text();
    let (cloned, asked): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("cloned"));
    assert_eq!(cloned, ["cloned True"]);
    assert_eq!(asked.len(), 3 * 23, "{text}");
    let answered: Vec<&str> = asked.into_iter().filter(|line| !line.ends_with(" 1")).collect();
    assert!(answered.is_empty(), "not EPERM: {answered:#?}");
}

/// Attack: sysfs shows the disk use of all bays to every user, wherever it is mounted.
#[test]
fn btrfs_sysfs_the_disk_use_of_other_bays_is_invisible() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    for name in ["one", "two"] {
        let place = repository.arg();
        let _up = daemon.bay(&["up", &place, "--name", name, "--image", SMALL, "--disk-mib", "64"]).ok();
    }
    // The kernel shows it to root on the host; otherwise the test would prove nothing.
    let pool = fs::File::open(suite::shared_pool().join("mnt")).unwrap();
    let id = bay_sys::btrfs::filesystem_id(pool).unwrap();
    let mut id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    [20, 16, 12, 8].into_iter().for_each(|at| id.insert(at, '-'));
    let shown =
        |top: &str| format!("cat {top}/fs/btrfs/{id}/qgroups/*/referenced {top}/fs/btrfs/{id}/generation");
    let host = std::process::Command::new("sh").args(["-c", &shown("/sys")]).output().unwrap();
    assert!(host.stdout.split(|byte| *byte == b'\n').count() > 4, "{host:?}");
    let anew =
        "mkdir -p /tmp/s; umount /sys/fs/cgroup/* /sys/fs/cgroup /sys 2>/dev/null; mount -t sysfs s /tmp/s";
    for script in [
        shown("/sys"),
        format!("{anew}; {}", shown("/tmp/s")),
        format!("{anew}; chmod 755 /tmp/s/fs/btrfs/*; chown 0:0 /tmp/s/fs/btrfs/*; {}", shown("/tmp/s")),
        format!("unshare -m -n sh -c '{anew}; {}'", shown("/tmp/s")),
        format!("unshare -U -r -m -n sh -c '{anew}; {}'", shown("/tmp/s")),
    ] {
        let ran = daemon.sh("two", &format!("({script}) 2>/dev/null | grep -c ."));
        assert_eq!(ran.text(), "0", "{script}: {ran}");
    }
    // Programs in a bay can still mount sysfs for their own namespace.
    let _mounted = daemon
        .sh("one", "mkdir -p /tmp/s; unshare -m -n sh -c 'mount -t sysfs s /tmp/s && ls /tmp/s/fs/btrfs'")
        .ok();
}

#[test]
fn devices_of_the_host_cannot_be_used() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let attempts = [
        "mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem",
        "mknod /tmp/kmsg c 1 11 && head -c 1 /tmp/kmsg",
        "mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk",
        "mknod /dev/disk b 254 0 && head -c 1 /dev/disk",
        "mknod /workspace/loop b 7 0 && head -c 1 /workspace/loop",
        "mknod /dev/kvm c 10 232 && head -c 1 /dev/kvm",
        "mkdir /tmp/t && mount -t tmpfs none /tmp/t && mknod /tmp/t/mem c 1 1 && head -c 1 /tmp/t/mem",
        "ls /dev/loop-control",
        "ls /dev/mem",
        "ls /dev/kmsg",
        "ls /dev/vda",
        "ls /dev/btrfs-control",
    ];
    for attempt in attempts {
        assert_ne!(daemon.sh("b", attempt).code, 0, "{attempt}");
    }
    for device in ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin"] {
        assert_eq!(daemon.sh("b", &format!("ls -d /dev/{device}")).code, 0, "/dev/{device} is missing");
    }
    assert_eq!(
        daemon
            .sh("b", "echo x > /dev/null; head -c 4 /dev/zero | wc -c; echo x > /dev/shm/x && cat /dev/shm/x")
            .ok()
            .text(),
        "4\nx"
    );
}

#[test]
fn settings_of_the_hosts_kernel_cannot_be_changed() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let before = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    for attempt in [
        "echo '|/tmp/x' > /proc/sys/kernel/core_pattern",
        "echo x > /proc/sys/kernel/modprobe",
        "echo 1 > /proc/sys/kernel/sysrq",
        "echo h > /proc/sysrq-trigger",
        "echo 1 > /proc/sys/vm/drop_caches",
        "echo 1 > /proc/sys/vm/overcommit_memory",
        "echo x > /sys/kernel/uevent_helper",
        "echo 1 > /proc/sys/fs/suid_dumpable",
        "head -c 1 /proc/kcore",
        "head -c 1 /proc/kmsg",
        "mount -t proc proc /tmp && echo '|/tmp/x' > /tmp/sys/kernel/core_pattern",
    ] {
        assert_ne!(daemon.sh("b", attempt).code, 0, "{attempt}");
    }
    assert_eq!(fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap(), before);
    // This `date` reports a refusal as success.
    assert_ne!(daemon.sh("b", "date -s 2001-01-01 2>/dev/null; date +%Y").text(), "2001");
    // Its own hostname, which harms nobody.
    assert_eq!(daemon.sh("b", "hostname other && hostname && hostname b").ok().text(), "other");
}

#[test]
fn cgroups_permit_no_escape_and_limits_cannot_be_raised() {
    let daemon = Daemon::start();
    let repository = Repository::sample();
    let _up = daemon
        .bay(&[
            "up",
            &repository.arg(),
            "--name",
            "b",
            "--image",
            SMALL,
            "--pids",
            "60",
            "--memory-mib",
            "128",
        ])
        .ok();
    let scratch = Scratch::new();
    let ran_on_host = scratch.join("ran");
    let script = format!(
        "mkdir -p /tmp/c; for kind in memory pids cpu devices freezer rdma; do umount /tmp/c 2>/dev/null; \
         mount -t cgroup -o $kind cgroup /tmp/c 2>/dev/null || continue; \
         echo 'touch {ran}' > /tmp/x; chmod +x /tmp/x; echo /tmp/x > /tmp/c/release_agent && echo agent set; \
         mkdir -p /tmp/c/x && echo 1 > /tmp/c/x/notify_on_release; \
         for f in memory.limit_in_bytes pids.max cpu.cfs_quota_us; do [ -e /tmp/c/$f ] && echo 99999999999 > /tmp/c/$f 2>/dev/null && echo raised $f; done; \
         done; mount -t cgroup2 none /tmp/c 2>/dev/null; for f in $(find / -xdev -name memory.max -o -xdev -name pids.max 2>/dev/null) $(find /tmp/c -maxdepth 1 -name '*.max' 2>/dev/null); do \
         echo max > $f 2>/dev/null && echo raised $f; done; true",
        ran = ran_on_host.display()
    );
    let ran = daemon.sh("b", &script);
    assert!(!ran.text().contains("agent set") && !ran.text().contains("raised"), "{ran}");
    assert!(!ran_on_host.exists());
    // The limit still applies after all that.
    let many = daemon.sh("b", "n=0; while [ $n -lt 100 ]; do sleep 5 & n=$((n+1)); done; wait");
    assert_ne!(many.code, 0, "a hundred processes fit into a limit of sixty: {many}");
    until("the bay to have room again", || (daemon.sh("b", "true").code == 0).then_some(()));
}

#[test]
fn groups_outside_of_the_bay_are_invisible() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let groups = daemon.sh("b", "cat /proc/self/cgroup /proc/1/cgroup").ok().text();
    assert!(
        !groups.contains("workbay") && !groups.contains("bay_"),
        "the host's groups are visible:\n{groups}"
    );
}

#[test]
fn nothing_of_the_hosts_files_or_processes_is_visible() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let mounts = daemon.sh("b", "cat /proc/self/mountinfo /proc/mounts").ok().text();
    for word in [suite::dir().to_str().unwrap(), "/dev/vda", "/root/", "/home/"] {
        let shown: Vec<&str> = mounts.lines().filter(|line| line.contains(word)).collect();
        assert!(shown.is_empty(), "{word} is in the mount table: {shown:?}");
    }
    let processes = daemon.sh("b", "ps -o args").ok().text();
    assert!(!processes.contains("serve") && !processes.contains("nextest"), "{processes}");
    assert!(processes.lines().count() < 8, "{processes}");
    let pids = daemon.sh("b", "ls -d /proc/[0-9]* | wc -l").ok().text();
    assert!(pids.parse::<u32>().unwrap() < 8, "{pids} processes");
    for path in [
        "/var/run/docker.sock",
        "/run/containerd",
        "/run/dbus",
        "/run/systemd/private",
        "/.bay/state/../../../etc/shadow",
    ] {
        assert_ne!(daemon.sh("b", &format!("ls {path}")).code, 0, "{path}");
    }
    // A second mount of the root reveals nothing either.
    for attempt in [
        "mount --bind / /tmp && ls /tmp/.bay/state/../../host",
        "cd /proc/1/root/.. && ls workspace/../../etc/hostname.host",
    ] {
        assert_ne!(daemon.sh("b", attempt).code, 0, "{attempt}");
    }
}

#[test]
fn a_mount_made_in_a_bay_does_not_appear_on_the_host_or_in_another_bay() {
    let daemon = Daemon::start();
    daemon.empty_bay("one");
    daemon.empty_bay("two");
    let before = fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
    let _mounted = daemon.sh("one", "mkdir -p /workspace/m && mount -t tmpfs none /workspace/m && echo secret > /workspace/m/f && cat /workspace/m/f").ok();
    let after = fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
    // Other tests mount too, but only our mount is named after the workspace.
    assert!(
        !fs::read_to_string("/proc/self/mountinfo").unwrap().contains("/workspace/m"),
        "{before} {after}"
    );
    assert_eq!(daemon.sh("two", "ls /workspace/m 2>/dev/null").text(), "");
}

#[test]
fn unix_sockets_of_the_host_are_out_of_reach() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let name = format!("workbay-test-{}", std::process::id());
    use std::os::linux::net::SocketAddrExt;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _abstract_listener = UnixListener::bind_addr(&address).unwrap();
    let listing = daemon.sh("b", "cat /proc/net/unix").ok().text();
    assert!(!listing.contains(&name), "abstract sockets of the host are listed");
    let script = format!(
        "import socket\ns=socket.socket(socket.AF_UNIX)\ntry:\n  s.connect('\\0{name}')\n  print('connected')\nexcept OSError as e:\n  print(e.errno)"
    );
    let Some(ran) = python(&daemon, "b", &script) else { return };
    assert_eq!(ran.ok().text(), "111");
}

/// Longest time of a refusal, which must be an answer and not a timeout.
const AT_ONCE: Duration = Duration::from_secs(3);

#[test]
fn connections_to_addresses_outside_are_refused_immediately() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    // A real listener on every address of the host that the bay might guess.
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    let mut targets: Vec<String> = [
        "192.0.2.1",
        "198.51.100.7",
        "203.0.113.9",
        "10.0.0.1",
        "10.0.2.1",
        "172.17.0.1",
        "192.168.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "2001:db8::1",
        "fd00:ec2::254",
        "::ffff:192.0.2.1",
        "64:ff9b::192.0.2.1",
    ]
    .iter()
    .map(ToString::to_string)
    .collect();
    targets.extend(host_addresses());
    for target in &targets {
        for port in [port, 443, 80, 22, 53] {
            let begun = Instant::now();
            let ran = daemon.sh("b", &format!("nc -w 10 {target} {port} < /dev/null"));
            assert_eq!(ran.text(), "", "{target} port {port} answered: {ran}");
            assert!(begun.elapsed() < AT_ONCE, "{target} port {port} took {:?}: {ran}", begun.elapsed());
            assert!(!ran.errors().contains("timed out"), "{target} port {port}: {ran}");
        }
    }
    assert!(listener.accept().is_err(), "a bay reached a listener of the host");
    // The bay's loopback belongs to it.
    let own = daemon.sh("b", "nc -l -p 7777 -e echo hello & n=0; until nc 127.0.0.1 7777 2>/dev/null; do n=$((n+1)); [ $n -lt 500 ] || exit 1; usleep 10000; done");
    assert_eq!(own.ok().text(), "hello");
}

fn host_addresses() -> Vec<String> {
    let output =
        std::process::Command::new("ip").args(["-o", "addr", "show", "scope", "global"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let fields = text.lines().filter_map(|line| line.split_whitespace().nth(3));
    fields.filter_map(|address| address.split('/').next()).map(str::to_owned).collect()
}

#[test]
fn names_resolve_to_the_gateway_only_and_pings_are_not_answered() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let watch = UdpSocket::bind("0.0.0.0:0").unwrap();
    watch.set_nonblocking(true).unwrap();
    let begun = Instant::now();
    // The gateway assigns an address to each name. No lookup leaves, so none can carry data out.
    let answer = daemon.sh("b", "nslookup never-looked-up.example").ok().text();
    assert!(answer.contains("Address: 198.18."), "{answer}");
    assert_ne!(daemon.sh("b", "nslookup example.com 192.0.2.53").code, 0);
    assert_ne!(daemon.sh("b", "wget -T 5 -q -O - http://example.com/").code, 0);
    for target in ["192.0.2.1", "10.0.2.1"] {
        assert_ne!(daemon.sh("b", &format!("ping -c 1 -W 1 {target}")).code, 0, "{target} answers pings");
    }
    assert_ne!(daemon.sh("b", "ping6 -c 1 -W 1 2001:db8::1").code, 0);
    assert!(begun.elapsed() < Duration::from_secs(40), "lookups take {:?}", begun.elapsed());
    assert!(watch.recv(&mut [0; 16]).is_err());
}

#[test]
fn rewriting_its_network_rules_gives_a_bay_no_connection_to_the_outside() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    let links = daemon.sh("b", "ls /sys/class/net").ok().text();
    let link = links.lines().find(|name| *name != "lo").unwrap_or("eth0").to_owned();
    let targets: Vec<String> = host_addresses().into_iter().chain(["192.0.2.1".to_owned()]).collect();
    for change in [
        "true".to_owned(),
        format!("ip route flush table main; ip route add default dev {link}"),
        format!(
            "ip addr flush dev {link}; ip addr add 10.9.9.9/8 dev {link}; ip route add default via 10.0.2.1 dev {link} onlink"
        ),
        format!(
            "ip link add link {link} name m0 type macvlan mode bridge; ip link set m0 up; ip addr add 192.0.2.7/24 dev m0"
        ),
        format!("ip link add v0 type veth peer name v1; ip link set v1 netns 1; ip link set {link} netns 1"),
        "echo 1 > /proc/sys/net/ipv4/ip_forward".to_owned(),
    ] {
        let _ = daemon.sh("b", &change);
        for target in &targets {
            let ran = daemon.sh("b", &format!("nc -w 2 {target} {port} < /dev/null"));
            assert_eq!(ran.text(), "", "after `{change}` the bay reached {target}: {ran}");
        }
    }
    assert!(listener.accept().is_err(), "a bay reached a listener of the host");
    // However it ruined its network, the guest's connection does not use it.
    assert_eq!(daemon.sh("b", "echo alive").ok().text(), "alive");
}

#[test]
fn two_bays_do_not_see_each_other() {
    let daemon = Daemon::start();
    daemon.empty_bay("one");
    daemon.empty_bay("two");
    let _listening = daemon
        .bay(&[
            "exec",
            "one",
            "-d",
            "--",
            "sh",
            "-c",
            "echo from one > /dev/shm/x; echo x > /tmp/x; while :; do nc -l -p 8000 -e echo here; done",
        ])
        .ok();
    until("the listener", || (daemon.sh("one", "nc 127.0.0.1 8000").text() == "here").then_some(()));
    let address =
        daemon.sh("one", "ip -4 -o addr show scope global | awk '{print $4}' | cut -d/ -f1").ok().text();
    for target in address.lines().chain(["127.0.0.1", "one", "10.0.2.1"]) {
        let ran = daemon.sh("two", &format!("nc -w 2 {target} 8000 < /dev/null"));
        assert_ne!(ran.text(), "here", "bay two reached bay one at {target}");
    }
    assert_eq!(daemon.sh("two", "ls /dev/shm /tmp | grep -x x").text(), "");
    assert_eq!(daemon.sh("two", "ps -o args | grep -c '[n]c -l'").text(), "0");
    let queue = daemon.sh("one", "ipcs -q | wc -l").text();
    assert_eq!(daemon.sh("two", "ipcs -q | wc -l").text(), queue);
}

#[test]
fn ordinary_work_of_root_is_allowed() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    for work in [
        "chown 1000:1000 /workspace && chown 0:0 /workspace",
        "mkdir /tmp/m && mount -t tmpfs none /tmp/m && umount /tmp/m",
        "unshare -m true",
        "unshare -U true",
        "unshare -n ip link",
        "chroot / true",
        "ln /etc/passwd /etc/passwd2 && rm /etc/passwd2",
        "ip link set lo up",
        "su user -c 'id -u' | grep -x 1000",
        "touch /usr/bin/x && chmod 4755 /usr/bin/x",
        "mkfifo /tmp/fifo",
    ] {
        let ran = daemon.sh("b", work);
        assert_eq!(ran.code, 0, "{work}: {ran}");
    }
}
