//! Tests who is behind a connection, on the real kernel with real bays.
#![forbid(unsafe_code)]

#[expect(dead_code, reason = "the rig is for memory too")]
#[path = "../memory/rig.rs"]
mod rig;

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use bay_backend::{Attribution, Backend};
use bay_tests::wait::until;
use bay_types::ExecId;
use bay_types::egress::{Process, Transport, Who};
use bay_types::exec::ExecSpec;
use bay_types::guest::{GATEWAY_V4, GATEWAY_V6};
use rig::{Bay, Rig};

const PORT: u16 = 7000;

/// The beginning of every exec of these tests: how to reach the gateway, and to send it a name.
const PRELUDE: &str = r#"
import os, socket, time
GATEWAY4, GATEWAY6 = ("10.0.2.1", 7000), ("fd00:ba::1", 7000)
def tell(client, word):
    client.send(("%s %d %s\n" % (os.environ["BAY_EXEC_ID"], os.getpid(), word)).encode())
def wait_for(name):
    while not os.path.exists("/workspace/" + name):
        time.sleep(0.01)
"#;

struct Scene {
    rig: Rig,
    bay: Bay,
    attribution: Arc<dyn Attribution>,
    v4: TcpListener,
    v6: TcpListener,
    datagrams: [UdpSocket; 2],
}

/// One connection, with the name that was sent on it.
struct Called {
    stream: TcpStream,
    exec: ExecId,
    pid: i32,
    word: String,
}

impl Called {
    fn by(listener: &TcpListener) -> Self {
        let stream = listener.accept().unwrap().0;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let [exec, pid, word] = words[..] else { panic!("{line:?}") };
        Self { exec: exec.parse().unwrap(), pid: pid.parse().unwrap(), word: word.to_owned(), stream }
    }

    fn ends(&self) -> (SocketAddr, SocketAddr) {
        (self.stream.peer_addr().unwrap(), self.stream.local_addr().unwrap())
    }
}

impl Scene {
    fn new() -> Option<Self> {
        let rig = Rig::without_memory()?;
        let bay = rig.start("caller", &[], |_| {});
        let attribution = rig.backend.attribution(bay.spec.bay, &bay.runtime).unwrap();
        let (v4, v6, datagrams) = rig.in_gateway(&bay, || {
            let (any, six) = (IpAddr::from([0, 0, 0, 0]), IpAddr::from(GATEWAY_V6));
            let listen = |address: IpAddr| TcpListener::bind((address, PORT)).unwrap();
            let receive = |address: IpAddr| UdpSocket::bind((address, PORT)).unwrap();
            (listen(any), listen(six), [receive(any), receive(six)])
        });
        Some(Self { rig, bay, attribution, v4, v6, datagrams })
    }

    fn begin(&self, script: &str) -> ExecId {
        begin(&self.bay, script)
    }

    fn who(&self, called: &Called) -> Who {
        let (bay_end, gateway_end) = called.ends();
        self.attribution.who(bay_end, gateway_end, Transport::Tcp)
    }

    /// Who opened it, found at last. A search may take little time, so on a busy machine one may find nothing.
    fn found(&self, called: &Called) -> Who {
        until("the sender to be found", || {
            Some(self.who(called)).filter(|who| who.exec.is_some() || who.nested.is_some())
        })
    }

    fn exec(&self, called: &Called) -> Option<ExecId> {
        self.found(called).exec
    }

    /// The process that has it open. It has as little time.
    fn process(&self, called: &Called) -> Process {
        let (bay_end, gateway_end) = called.ends();
        until("the process to be found", || self.attribution.process(bay_end, gateway_end, Transport::Tcp))
    }

    fn let_go(&self, name: &str) {
        std::fs::write(self.bay.disk.workspace.join(name), "").unwrap();
    }

    fn leaf(&self, exec: ExecId) -> std::path::PathBuf {
        self.rig.group(&self.bay).join("execs").join(exec.to_string())
    }
}

fn begin(bay: &Bay, script: &str) -> ExecId {
    bay.begin(&ExecSpec::new(["python3", "-c", &format!("{PRELUDE}\n{script}")]))
}

#[test]
fn every_connection_is_attributed_to_the_exec_and_process_that_opened_it() {
    let Some(scene) = Scene::new() else { return };
    let script = r#"
four = socket.create_connection(GATEWAY4); tell(four, "four")
dual = socket.socket(socket.AF_INET6); dual.connect(("::ffff:198.18.0.9", 7000)); tell(dual, "dual")
bound = socket.socket(); bound.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0\0")
bound.connect(GATEWAY4); tell(bound, "bound")
six = socket.create_connection(GATEWAY6); tell(six, "six")
time.sleep(600)
"#;
    let execs = [scene.begin(script), scene.begin(script)];
    let mut seen = Vec::new();
    let called = (0..6).map(|_| Called::by(&scene.v4)).chain((0..2).map(|_| Called::by(&scene.v6)));
    for called in called {
        let who = scene.found(&called);
        assert_eq!(who, Who { exec: Some(called.exec), uid: Some(0), ..Who::default() }, "{}", called.word);
        let process = scene.process(&called);
        assert_eq!(process.pid, called.pid, "{}", called.word);
        assert!(process.exe.contains("python3"), "{}", process.exe);
        assert_eq!(process.argv[..2], ["python3", "-c"]);
        assert!(std::path::Path::new("/proc").join(process.host_pid.to_string()).exists());
        seen.push((called.exec, called.word));
    }
    seen.sort();
    let mut wanted: Vec<_> = execs
        .iter()
        .flat_map(|exec| ["four", "dual", "bound", "six"].map(|w| (*exec, w.to_owned())))
        .collect();
    wanted.sort();
    assert_eq!(seen, wanted);
}

#[test]
fn a_dns_query_is_attributed_to_the_exec_that_sent_it() {
    let Some(scene) = Scene::new() else { return };
    let script = r#"
for family, gateway, word in ((socket.AF_INET, GATEWAY4, "four"), (socket.AF_INET6, GATEWAY6, "six"),
                              (socket.AF_INET6, ("::ffff:10.0.2.1", 7000), "dual")):
    asks = socket.socket(family, socket.SOCK_DGRAM)
    asks.sendto(("%s %s" % (os.environ["BAY_EXEC_ID"], word)).encode(), gateway)
    knows = socket.socket(family, socket.SOCK_DGRAM)
    knows.connect(gateway)
    knows.send(("%s connected-%s" % (os.environ["BAY_EXEC_ID"], word)).encode())
    globals()["kept" + word] = (asks, knows)
time.sleep(600)
"#;
    let execs = [scene.begin(script), scene.begin(script)];
    let mut seen = Vec::new();
    let [four, six] = &scene.datagrams;
    for (socket, gateway, count) in [(four, IpAddr::from(GATEWAY_V4), 8), (six, GATEWAY_V6.into(), 4)] {
        for _ in 0..count {
            let mut buffer = [0; 128];
            let (length, peer) = socket.recv_from(&mut buffer).unwrap();
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            let (exec, word) = text.split_once(' ').unwrap();
            let end = SocketAddr::new(gateway, PORT);
            let found =
                until("the exec to be found", || scene.attribution.who(peer, end, Transport::Udp).exec);
            assert_eq!(found, exec.parse().unwrap(), "{word}");
            let process =
                until("the process to be found", || scene.attribution.process(peer, end, Transport::Udp));
            assert_eq!(process.argv[0], "python3");
            seen.push(found);
        }
    }
    assert!(execs.iter().all(|exec| seen.iter().filter(|seen| *seen == exec).count() == 6));
}

/// ATTR-EXIT, and double forks as daemons do them.
#[test]
fn a_connection_keeps_its_exec_if_the_process_ended_or_changed() {
    let Some(scene) = Scene::new() else { return };
    // Sends and ends before anybody looks for it.
    let gone = scene.begin("wait_for('go'); tell(socket.create_connection(GATEWAY4), 'gone')");
    scene.attribution.note();
    scene.let_go("go");
    until("the exec to end", || scene.bay.status(gone).exit);
    until("its group to go", || (!scene.leaf(gone).exists()).then_some(()));
    // The other end has seen the end of the connection and acknowledged it.
    let table = || std::fs::read_to_string(format!("/proc/{}/net/tcp", scene.bay.record.pid)).unwrap();
    until("the end to be acknowledged", || (!table().contains(" 04 0000")).then_some(()));
    let called = Called::by(&scene.v4);
    assert_eq!(called.exec, gone);
    assert_eq!(scene.exec(&called), Some(gone));
    let (bay_end, gateway_end) = called.ends();
    assert_eq!(scene.attribution.process(bay_end, gateway_end, Transport::Tcp), None);

    // Forks twice, leaves its session, and continues after the exec has ended.
    let twice = scene.begin(
        r#"
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
client = socket.create_connection(GATEWAY4); tell(client, "twice")
time.sleep(600)
"#,
    );
    until("the exec to end", || scene.bay.status(twice).exit);
    let called = Called::by(&scene.v4);
    assert_eq!((scene.exec(&called), called.exec), (Some(twice), twice));
    assert_eq!(scene.process(&called).pid, called.pid);

    // ATTR-DAEMON: one exec opens the connection and another uses it. The record names the one that opened it.
    let taker = scene.begin(
        r#"
door = socket.socket(socket.AF_UNIX); door.bind("/workspace/closed"); door.listen()
os.rename("/workspace/closed", "/workspace/door")
visitor, _ = door.accept()
_, passed, _, _ = socket.recv_fds(visitor, 1, 1)
tell(socket.socket(fileno=passed[0]), "passed")
time.sleep(600)
"#,
    );
    let opener = scene.begin(
        r#"
wait_for("door")
client = socket.create_connection(GATEWAY4)
door = socket.socket(socket.AF_UNIX); door.connect("/workspace/door")
socket.send_fds(door, [b"x"], [client.fileno()])
time.sleep(600)
"#,
    );
    let called = Called::by(&scene.v4);
    assert_eq!(called.exec, taker);
    assert_eq!(scene.exec(&called), Some(opener));
}

/// ATTR-CGMOVE: whatever root in the bay does to its groups never leads to another bay.
#[test]
fn a_process_that_moves_to_another_group_stays_with_the_exec_that_opened_the_socket() {
    let Some(scene) = Scene::new() else { return };
    let victim = scene.begin("time.sleep(600)");
    let mover = scene.begin(
        r#"
import glob
early = socket.create_connection(GATEWAY4)
groups = next(line.split()[1] for line in open("/proc/mounts") if line.split()[2] == "cgroup2")
own = next(line.strip()[3:] for line in open("/proc/self/cgroup") if line.startswith("0::"))
def move(to):
    os.makedirs(groups + to, exist_ok=True)
    with open(groups + to + "/cgroup.procs", "w") as procs:
        procs.write("0")
move(own + "/below/deeper")
below = socket.create_connection(GATEWAY4)
move("/mine/inner")
beside = socket.create_connection(GATEWAY4)
for client, word in ((early, "early"), (below, "below"), (beside, "beside")):
    tell(client, word)
time.sleep(600)
"#,
    );
    for _ in 0..3 {
        let called = Called::by(&scene.v4);
        let who = scene.found(&called);
        assert_ne!(who.exec, Some(victim));
        if called.word == "beside" {
            assert_eq!((who.exec, who.nested.as_deref()), (None, Some("mine/inner")));
        } else {
            assert_eq!(who.exec, Some(mover), "{}", called.word);
        }
    }
}

#[test]
fn traffic_is_never_attributed_to_another_bay() {
    let Some(scene) = Scene::new() else { return };
    let other = scene.rig.start("other", &[], |_| {});
    let attribution = scene.rig.backend.attribution(other.spec.bay, &other.runtime).unwrap();
    let listener = scene.rig.in_gateway(&other, || TcpListener::bind(("0.0.0.0", PORT)).unwrap());
    // The same two addresses in both bays.
    let script = r#"
client = socket.socket(); client.bind(("10.0.2.2", 4000)); client.connect(GATEWAY4); tell(client, "same")
time.sleep(600)
"#;
    let own = scene.begin(script);
    let called = Called::by(&scene.v4);
    let (bay_end, gateway_end) = called.ends();
    // Only one of the bays has the connection so far.
    assert!(attribution.who(bay_end, gateway_end, Transport::Tcp).is_unknown());
    assert_eq!(attribution.process(bay_end, gateway_end, Transport::Tcp), None);
    let others = begin(&other, script);
    let again = Called::by(&listener);
    assert_eq!((called.ends(), called.exec, again.exec), (again.ends(), own, others));
    assert_eq!(scene.exec(&called), Some(own));
    assert_eq!(attribution.who(bay_end, gateway_end, Transport::Tcp).exec, Some(others));

    // Root in the bay may use netlink sockets of its namespace, but may not answer in the kernel's place.
    let forged = scene.bay.run(&format!(
        r#"python3 - <<'PY'
import os, socket, struct
netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4)
netlink.bind((0, 0))
forged = struct.pack("IHHII", 100, 20, 0, 1, 0) + bytes(84)
ports = [int(line.split()[2]) for line in open("/proc/net/netlink").readlines()[1:]] + [{}]
reached = 0
for port in ports:
    if port not in (0, netlink.getsockname()[0]):
        try:
            netlink.sendto(forged, (port, 0)); reached += 1
        except OSError:
            pass
print(len(ports) > 1, reached)
PY"#,
        std::process::id()
    ));
    assert_eq!(forged, "True 0");
    assert_eq!(scene.exec(&called), Some(own));

    scene.rig.clear(&other.spec);
    assert!(attribution.who(bay_end, gateway_end, Transport::Tcp).exec.is_none_or(|exec| exec == others));
    assert!(scene.rig.backend.attribution(other.spec.bay, &other.runtime).is_err(), "it does not run");
}

/// A bay has thousands of groups, and connections from groups that nobody has seen. It can only hide itself from the
/// record. It costs other bays no time.
#[test]
fn a_bay_that_makes_groups_without_end_delays_nobody() {
    let Some(scene) = Scene::new() else { return };
    let flood = scene.begin(
        r#"
groups = next(line.split()[1] for line in open("/proc/mounts") if line.split()[2] == "cgroup2")
own = next(line.strip()[3:] for line in open("/proc/self/cgroup") if line.startswith("0::"))
for number in range(1500):
    os.makedirs("%s%s/wide%d/deep" % (groups, own, number))
kept = []
for number in range(200):
    # Made, used and left again: by the time somebody looks it is gone.
    group = "%s/gone%d" % (groups, number)
    os.mkdir(group)
    with open(group + "/cgroup.procs", "w") as procs: procs.write("0")
    client = socket.create_connection(GATEWAY4)
    with open(groups + own + "/cgroup.procs", "w") as procs: procs.write("0")
    os.rmdir(group)
    tell(client, "gone")
    kept.append(client)
tell(socket.create_connection(GATEWAY4), "last")
time.sleep(600)
"#,
    );
    let mut slowest = std::time::Duration::ZERO;
    let mut all = std::time::Duration::ZERO;
    for _ in 0..200 {
        let called = Called::by(&scene.v4);
        assert_eq!(called.word, "gone");
        let begin = Instant::now();
        let who = scene.who(&called);
        slowest = slowest.max(begin.elapsed());
        all += begin.elapsed();
        // Found by chance while another group was searched, or not found at all.
        let is_group = |name: &str| name.strip_prefix("gone").is_some_and(|rest| rest.parse::<u32>().is_ok());
        assert!(who.exec.is_none() && who.nested.as_deref().is_none_or(is_group), "{who:?}");
    }
    println!("slowest {slowest:?}, all {all:?}");
    assert!(slowest < std::time::Duration::from_millis(200), "{slowest:?}");
    let called = Called::by(&scene.v4);
    assert_eq!((called.word.as_str(), called.exec), ("last", flood));
    // The search passed its own group. What it did to hide others does not hide it.
    assert_eq!(scene.exec(&called), Some(flood));
}

/// ATTR-DOCKER: what containers in a bay send has the bay's own address.
#[test]
fn traffic_of_nested_containers_is_attributed_with_their_inner_address() {
    let Some(scene) = Scene::new() else { return };
    let pid = scene.bay.record.pid.to_string();
    let inside = |line: &str| {
        let ran = Command::new("nsenter").args(["-t", &pid, "-n", "sh", "-ec", line]).output().unwrap();
        assert!(ran.status.success(), "{line}: {ran:?}");
    };
    // A namespace within the bay's, such as a container has.
    let mut container = Command::new("nsenter")
        .args(["-t", &pid, "-n", "unshare", "-n", "sh", "-c"])
        .arg("until ip address show veth1 2>/dev/null | grep -q 172.17; do :; done; ip route add default via 172.17.0.1; exec busybox nc 10.0.2.1 7000")
        .stdin(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let inner = container.id().to_string();
    until("it to be in its namespace", || {
        let at = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        (at(&inner) != at(&pid) && at(&inner) != at("self")).then_some(())
    });
    inside(&format!(
        "ip link add veth0 type veth peer name veth1 netns /proc/{inner}/ns/net
         ip address add 172.17.0.1/16 dev veth0; ip link set veth0 up
         nsenter -t {inner} -n sh -ec 'ip link set veth1 up; ip address add 172.17.0.2/16 dev veth1'
         echo 1 > /proc/sys/net/ipv4/ip_forward
         nft 'add table ip nat; add chain ip nat post {{ type nat hook postrouting priority 100; }}; add rule ip nat post ip saddr 172.17.0.0/16 oifname eth0 masquerade'"
    ));
    let (stream, peer) = scene.v4.accept().unwrap();
    let who = scene.attribution.who(peer, stream.local_addr().unwrap(), Transport::Tcp);
    assert_eq!(who, Who { nested: Some("172.17.0.2".to_owned()), ..Who::default() });
    drop(stream);
    container.wait().unwrap();
}

/// The limit of the gateway: 50 µs to determine the exec behind a connection.
#[test]
fn the_exec_behind_a_connection_is_found_in_microseconds() {
    const ROUNDS: usize = 2_000;
    let Some(scene) = Scene::new() else { return };
    scene.begin("client = socket.create_connection(GATEWAY4); tell(client, 'x'); time.sleep(600)");
    let called = Called::by(&scene.v4);
    let (bay_end, gateway_end) = called.ends();
    let measured = |what: &str, ask: &dyn Fn() -> bool| {
        let mut micros: Vec<u128> = (0..ROUNDS)
            .map(|_| {
                let begin = Instant::now();
                assert!(ask());
                begin.elapsed().as_micros()
            })
            .collect();
        micros.sort_unstable();
        println!("{what}: p50 {} µs, p99 {} µs", micros[ROUNDS / 2], micros[ROUNDS * 99 / 100]);
        micros[ROUNDS / 2]
    };
    let exec =
        measured("exec", &|| scene.attribution.who(bay_end, gateway_end, Transport::Tcp).exec.is_some());
    measured("process", &|| scene.process(&called).pid == called.pid);
    assert!(exec <= 50, "{exec} µs");
}
