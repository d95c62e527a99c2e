//! Attacks by root in a bay on the parts that read from it: the guest that reads `/proc` and `/etc`, `bay-ctl` and its
//! socket, the definitions of services, the control groups, and the reader's terminal.

use std::time::{Duration, Instant};

use bay_tests::{CliRun, Daemon, image};
use serde_json::Value;

/// Longest time in which a bay must answer while a process in it misbehaves.
const SOON: Duration = Duration::from_secs(5);

fn python(daemon: &Daemon, bay: &str, script: &str) -> CliRun {
    daemon.bay(&["exec", bay, "--", "python3", "-u", "-c", script])
}

#[track_caller]
fn answers_soon(daemon: &Daemon, what: &[&str]) -> CliRun {
    let begun = Instant::now();
    let ran = daemon.bay(what).ok();
    assert!(begun.elapsed() < SOON, "{what:?} took {:?}", begun.elapsed());
    ran
}

#[test]
fn mounts_over_proc_do_not_block_pid_1() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    // Every file that the guest could read is a pipe without a writer.
    let cover = "
import os, subprocess
os.makedirs('/dev/shm/false/net'); os.mkfifo('/dev/shm/pipe')
for name in ('tcp', 'tcp6', 'udp', 'udp6'): os.symlink('/dev/shm/pipe', '/dev/shm/false/net/' + name)
for name in ('stat', 'meminfo'): os.symlink('/dev/shm/pipe', '/dev/shm/false/' + name)
for pid in range(1, 3000):
    os.mkdir(f'/dev/shm/false/{pid}')
    for name in ('cgroup', 'comm', 'fd', 'stat'): os.symlink('/dev/shm/pipe', f'/dev/shm/false/{pid}/{name}')
httpd = subprocess.Popen(['httpd', '-f', '-p', '127.0.0.1:8080'])
WAYS
";
    for way in [
        "subprocess.run(['mount', '--bind', '/dev/shm/false', '/proc'], check=True)",
        "for name in ('cgroup', 'comm'): subprocess.run(['mount', '--bind', '/dev/shm/pipe', f'/proc/{httpd.pid}/{name}'])",
    ] {
        let _covered = python(&daemon, "b", &cover.replace("WAYS", way)).ok();
        for _ in 0..2 {
            let ports = answers_soon(&daemon, &["ports", "b", "--json"]).json();
            let found = ports.as_array().unwrap().iter().any(|port| port["port"] == 8080);
            assert!(found, "{way}: {ports}");
            let me = answers_soon(&daemon, &["exec", "b", "--", "bay-ctl", "whoami", "--json"]).json();
            assert!(me["exec"].is_string(), "{way}: {me}");
        }
        let _stopped = answers_soon(&daemon, &["stop", "b"]);
        let _started = daemon.bay(&["start", "b"]).ok();
    }
}

#[test]
fn an_environment_that_is_too_long_does_not_prevent_its_repair() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    for trap in [
        "(printf LONG=; head -c 500000 /dev/zero | tr '\\0' x; echo; echo KEPT=yes) > /etc/environment",
        "(i=0; while [ $i -lt 250 ]; do printf V$i=; head -c 4000 /dev/zero | tr '\\0' x; echo; i=$((i+1)); done; echo KEPT=yes) > /etc/environment",
        "rm /etc/environment; mkfifo /etc/environment",
        "rm /etc/environment; ln -s /dev/zero /etc/environment",
    ] {
        let _set = daemon.sh("b", trap).ok();
        let _ran = answers_soon(&daemon, &["exec", "b", "--", "true"]);
    }
    let _mended = daemon.sh("b", "rm /etc/environment; echo KEPT=yes > /etc/environment").ok();
    assert_eq!(daemon.sh("b", "echo $KEPT").ok().text(), "yes");
}

#[test]
fn json_from_a_bay_cannot_control_the_terminal() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let odd = "\u{1b}]0;title\u{7}\r\u{9b}2J\u{202e}\u{7f}";
    let add = ["services", "add", "b", "s", "--no-wait", "--env"];
    let _added = daemon.bay(&[&add[..], &[&format!("A={odd}"), "--", "sleep", "600"]].concat());
    let echo = daemon.bay(&["exec", "-d", "b", "--", "printf", "%s", odd]).ok();
    drop(echo);
    let runs = [
        daemon.bay(&["execs", "ls", "b", "--json"]),
        daemon.bay(&["execs", "show", "b", "1", "--json"]),
        daemon.bay(&["services", "show", "b", "s", "--json"]),
        daemon.bay(&["services", "ls", "b", "--json"]),
        daemon.bay(&["logs", "b", "1", "--follow", "--json"]),
        daemon.bay(&["exec", "b", "--json", "--", odd]),
        daemon.bay(&["cp", &format!("b:/{odd}"), "/nonexistent/x", "--json"]),
    ];
    for ran in runs {
        let said = format!("{}{}", String::from_utf8_lossy(&ran.stdout), ran.errors());
        let obeyed = said.chars().find(|c| c.is_control() && *c != '\n' || *c == '\u{202e}');
        assert_eq!(obeyed, None, "{ran}");
    }
    let execs = daemon.bay(&["execs", "show", "b", "1", "--json"]).ok().json();
    assert_eq!(execs["argv"][2], odd, "the meaning is kept");
}

#[test]
fn bay_ctl_trusts_a_false_socket_with_nothing_and_gives_its_tracer_nothing() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = r#"
import ctypes, os, socket, struct, subprocess, threading
l = ctypes.CDLL(None, use_errno=True)
os.unlink('/.bay/ctl.sock')
s = socket.socket(socket.AF_UNIX); s.bind('/.bay/ctl.sock'); s.listen()
# One that never answers, while it is reached into.
p = subprocess.Popen(['/.bay/bin/bay-ctl', 'whoami'], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
c, _ = s.accept()
there = ctypes.create_string_buffer(8)
here = ctypes.create_string_buffer(struct.pack('QQ', ctypes.addressof(there), 8))
far = ctypes.create_string_buffer(struct.pack('QQ', 0x400000, 8))
fd = l.syscall(434, p.pid, 0)
said = [('fd', n, l.syscall(438, fd, n, 0)) for n in range(16)]
said += [('read', 0, l.process_vm_readv(p.pid, here, 1, far, 1, 0)), ('attach', 0, l.ptrace(16, p.pid, 0, 0)), ('seize', 0, l.ptrace(0x4206, p.pid, 0, 0))]
for name in ('mem', 'exe', 'fd/3', 'map_files', 'environ', 'syscall', 'stack'):
    try:
        os.open(f'/proc/{p.pid}/{name}', os.O_RDONLY)
        said.append((name, 0, 0))
    except OSError:
        pass
print([x for x in said if x[2] != -1])
c.close(); p.wait()
# One that answers with commands for the terminal.
evil = '{"bay":"\\u001b]0;x\\u0007\u009b2J","name":"\\u202e","uid":0,"started_at":"2026-01-01T00:00:00Z","version":"","limits":{}}'
def answer():
    c, _ = s.accept(); c.recv(4096)
    body = evil.encode(); c.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n' % len(body) + body); c.close()
for flags in ([], ['--json']):
    t = threading.Thread(target=answer); t.start()
    out = subprocess.run(['/.bay/bin/bay-ctl', 'whoami'] + flags, capture_output=True); t.join()
    text = (out.stdout + out.stderr).decode()
    print([x for x in text if x in '\x1b\x07\x9b\u202e'])
"#;
    assert_eq!(python(&daemon, "b", script).ok().text(), "[]\n[]\n[]");
    // The daemon never uses that socket.
    let _ports = answers_soon(&daemon, &["ports", "b"]);
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let _started = daemon.bay(&["start", "b"]).ok();
    assert!(daemon.sh("b", "bay-ctl whoami").ok().text().contains("shared-kernel"));
}

#[test]
fn groups_mounted_again_inside_can_be_neither_written_nor_extended() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let script = "
mkdir -p /tmp/m; cd /tmp/m
try() { for f in $1/*; do case $f in
    */cgroup.procs|*/cgroup.threads|*/cgroup.subtree_control) [ $2 = cgroup2 ] && continue;; esac
    [ -f $f ] && (echo 1 > $f) 2>/dev/null && echo wrote $f; done; }
for c in $(cut -f1 /proc/cgroups | tail -n +2) name=systemd name=other; do
    mkdir -p $c
    case $c in name=*) o=none,$c;; *) o=$c;; esac
    mount -t cgroup -o $o none $c 2>/dev/null || continue
    mkdir $c/below 2>/dev/null && echo made $c/below
    [ -e $c/release_agent ] && echo agent $c
    mount -o remount,$o,release_agent=/bin/sh $c 2>/dev/null && echo agent set $c
    try $c cgroup
done
mkdir two; mount -t cgroup2 none two && try two cgroup2
echo done";
    assert_eq!(daemon.sh("b", script).ok().text(), "done");
}

#[test]
fn traps_among_the_definitions_of_services_are_reported_and_block_nothing() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let add = ["services", "add", "b", "zz", "--no-wait", "--", "sleep", "600"];
    let _added = daemon.bay(&add).ok();
    let traps = r#"
import json, os
d = '/.bay/state/services'
os.mkfifo(d + '/a-pipe.json'); os.mkdir(d + '/a-dir.json')
os.symlink('/dev/zero', d + '/a-zero.json'); os.symlink('/etc/shadow', d + '/a-link.json')
with open(d + '/a-long.json', 'w') as f: f.truncate(1 << 40)
with open(d + '/a-deep.json', 'w') as f: f.write('[' * 100000)
with open(d + '/a-words.json', 'w') as f: f.write(json.dumps({'\x1b]0;x\x07\x9b\u202e' * 1000: 1}))
good = json.load(open(d + '/zz.json'))
run = dict(good['runs'][0]) if good['runs'] else None
def put(name, **change):
    with open(f'{d}/{name}.json', 'w') as f: json.dump({**good, **change}, f)
put('b-cycle', spec={**good['spec'], 'needs': ['c-cycle']}); put('c-cycle', spec={**good['spec'], 'needs': ['b-cycle']})
put('d-self', spec={**good['spec'], 'needs': ['d-self']})
if run: put('e-offsets', wanted=False, runs=[{**run, 'log_offset': n} for n in (2**64 - 1, 5, 2**63, 0)] * 500)
"#;
    let _set = python(&daemon, "b", traps).ok();
    let _stopped = answers_soon(&daemon, &["stop", "b"]);
    let _started = answers_soon(&daemon, &["start", "b"]);
    let _alive = answers_soon(&daemon, &["exec", "b", "--", "true"]);
    let table = answers_soon(&daemon, &["services", "ls", "b"]).text();
    assert!(!table.chars().any(|c| c.is_control() && c != '\n' || c == '\u{202e}'), "{table:?}");
    let all = answers_soon(&daemon, &["services", "ls", "b", "--json"]).json();
    let state = |name: &str| {
        let all: &Vec<Value> = all.as_array().unwrap();
        all.iter().find(|view| view["name"] == name).map(|view| view["state"].clone()).unwrap_or_default()
    };
    for broken in ["a-pipe", "a-dir", "a-zero", "a-link", "a-long", "a-deep", "a-words"] {
        assert_eq!(state(broken), "failed", "{broken}: {all}");
    }
    assert_eq!(state("b-cycle"), "waiting", "{all}");
    let shown = answers_soon(&daemon, &["services", "show", "b", "a-link", "--json"]).json();
    assert!(!shown["reason"].as_str().unwrap().contains("root:"), "{shown}");
    if state("e-offsets") != Value::Null {
        let _logs = daemon.bay(&["services", "logs", "b", "e-offsets"]);
    }
    let _alive = answers_soon(&daemon, &["exec", "b", "--", "true"]);
    assert_ne!(state("zz"), "failed", "{all}");
}
