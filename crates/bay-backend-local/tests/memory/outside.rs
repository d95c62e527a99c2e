//! Connections from a bay to the outside during captures and restores.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use bay_backend::Backend;
use bay_tests::wait::until;
use bay_types::egress::Transport;
use bay_types::exec::ExecSpec;
use bay_types::service::ServiceSpec;

use crate::rig::{Bay, Rig};

const TCP_PORT: u16 = 7000;
const UDP_PORT: u16 = 7001;

/// Holds four connections to the gateway and three inside the bay. Records what the four receive and how they end, and
/// counts round trips on the three.
const HOLDS: &str = r#"
import os, socket, threading, time
GATEWAY4, GATEWAY6, OWN = "10.0.2.1", "fd00:ba::1", "10.0.2.2"
def note(name, text):
    with open("/workspace/" + name, "a") as out:
        out.write(text + "\n")
def reads(name, client):
    while True:
        try:
            data = client.recv(64)
        except OSError as error:
            return note(name, "error %s" % os.strerror(error.errno))
        if not data:
            return note(name, "end")
        note(name, "got " + data.decode())
        client.sendall(data)
def holds(name, client):
    threading.Thread(target=reads, args=(name, client)).start()
holds("v4", socket.create_connection((GATEWAY4, 7000)))
holds("v6", socket.create_connection((GATEWAY6, 7000)))
dual = socket.socket(socket.AF_INET6)
dual.connect(("::ffff:198.18.0.9", 7000))
holds("dual", dual)
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.connect((GATEWAY4, 7001))
datagrams.send(b"udp")
holds("udp", datagrams)
def goes_round(name, address):
    server = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    near = socket.create_connection(server.getsockname()[:2])
    far, _ = server.accept()
    number = 0
    while True:
        number += 1
        near.sendall(b"x"); assert far.recv(1) == b"x"
        far.sendall(b"y"); assert near.recv(1) == b"y"
        note(name, str(number))
        time.sleep(0.02)
for name, address in (("loop4", "127.0.0.1"), ("loop6", "::1"), ("own", OWN)):
    threading.Thread(target=goes_round, args=(name, address)).start()
"#;

/// Connections in the middle of a transfer: a large upload that nobody reads, an answer that nobody has read yet, and
/// one that is closed in one direction.
const IN_THE_MIDDLE: &str = r#"
import os, socket, threading, time
def note(name, text):
    with open("/workspace/" + name, "a") as out:
        out.write(text + "\n")
def uploads(client):
    try:
        client.sendall(b"x" * UPLOAD)
        client.shutdown(socket.SHUT_WR)
        note("upload", "sent")
        client.recv(1)
        note("upload", "end")
    except OSError as error:
        note("upload", "error %s" % os.strerror(error.errno))
def reads_later(client):
    while not os.path.exists("/workspace/go"):
        time.sleep(0.01)
    count = 0
    try:
        while data := client.recv(65536):
            count += len(data)
        note("answer", "end %d" % count)
    except OSError as error:
        note("answer", "error %s" % os.strerror(error.errno))
def half(client):
    client.shutdown(socket.SHUT_WR)
    note("half", "waits")
    try:
        note("half", "end " + client.recv(64).decode())
    except OSError as error:
        note("half", "error %s" % os.strerror(error.errno))
for act in (uploads, reads_later, half):
    client = socket.create_connection(("10.0.2.1", 7000))
    threading.Thread(target=act, args=(client,)).start()
"#;
const UPLOAD: usize = 16 << 20;

/// Connects again and again.
const CALLS: &str = r#"
import socket, time
while True:
    try:
        client = socket.create_connection(("10.0.2.1", 7000))
        client.recv(1)
    except OSError:
        pass
    time.sleep(0.05)
"#;

const OUTSIDE: [&str; 4] = ["v4", "v6", "dual", "udp"];
const INSIDE: [&str; 3] = ["loop4", "loop6", "own"];

fn says(mut stream: &TcpStream, word: &str) {
    stream.write_all(word.as_bytes()).unwrap();
    let mut heard = vec![0; word.len()];
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(heard, word.as_bytes());
}

fn all_outside_ended(bay: &Bay) {
    for name in OUTSIDE {
        let told = until(&format!("{name} of {} to end", bay.spec.name), || {
            let text = bay.file(name);
            let last = text.lines().last().unwrap_or_default().to_owned();
            (last.starts_with("error") || last == "end").then_some(last)
        });
        println!("{} {name}: {told}", bay.spec.name);
        assert!(
            ["end", "error Software caused connection abort", "error Connection reset by peer"]
                .contains(&told.as_str()),
            "{name}: {told}"
        );
    }
    for name in INSIDE {
        bay.grows(name);
    }
}

#[test]
fn connections_to_the_outside_end_with_a_restore_and_outlive_a_checkpoint() {
    let Some(rig) = Rig::new() else { return };
    let bay =
        rig.start("talker", &[], |disk| std::fs::write(disk.workspace.join("holds.py"), HOLDS).unwrap());
    let (v4, v6, datagrams) = rig.in_gateway(&bay, || {
        let listen = |address: &str| TcpListener::bind((address, TCP_PORT)).unwrap();
        (listen("0.0.0.0"), listen("fd00:ba::1"), UdpSocket::bind(("0.0.0.0", UDP_PORT)).unwrap())
    });
    let holder = bay.begin(&ExecSpec::new(["python3", "/workspace/holds.py"]));
    let first = v4.accept().unwrap().0;
    let (sixth, second) = (v6.accept().unwrap().0, v4.accept().unwrap().0);
    let streams = [&first, &sixth, &second];
    streams.iter().for_each(|stream| says(stream, "before"));
    let mut word = [0; 16];
    let (_, peer) = datagrams.recv_from(&mut word).unwrap();
    for name in INSIDE {
        bay.grows(name);
    }

    assert_eq!(rig.examine(&bay), []);
    let moment = rig.capture(&bay, 1);
    println!("paused for {:?}", moment.captured.pause);
    // The bay that was captured does not notice.
    streams.iter().for_each(|stream| says(stream, "after"));
    datagrams.send_to(b"after", peer).unwrap();
    until("the datagram to come", || bay.file("udp").contains("after").then_some(()));
    assert_eq!(bay.status(holder).exit, None);

    let (fork, _) = rig.fork(&bay, &moment, "talker-fork", 1);
    all_outside_ended(&fork);
    // The captured bay does not notice a restore of its memory into another bay either.
    streams.iter().for_each(|stream| says(stream, "still"));
    assert!(OUTSIDE.iter().all(|name| !bay.file(name).contains("error")));

    let again = rig.restore_in_place(&bay, &moment);
    all_outside_ended(&again);
    // And the restored bay can make new connections.
    let fresh = rig.in_gateway(&again, || TcpListener::bind(("0.0.0.0", TCP_PORT)).unwrap());
    let asked = again.begin(&ExecSpec::new(["sh", "-c", "echo hello | nc 10.0.2.1 7000"]));
    let mut heard = [0; 6];
    fresh.accept().unwrap().0.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"hello\n");
    until("it to end", || again.status(asked).exit);
    // The dead sockets that it still holds are captured as dead.
    let second = rig.capture(&again, 2);
    let last = rig.restore_in_place(&again, &second);
    for name in INSIDE {
        last.grows(name);
    }
}

#[test]
fn a_service_is_attributed_by_name_before_and_after_a_restore() {
    let Some(rig) = Rig::new() else { return };
    let bay = rig.start("served", &[], |_| {});
    let listen = |bay: &Bay| rig.in_gateway(bay, || TcpListener::bind(("0.0.0.0", TCP_PORT)).unwrap());
    let listener = listen(&bay);
    bay.keep_running("caller", &ServiceSpec::new(["python3", "-c", CALLS]));
    let who = |bay: &Bay, listener: &TcpListener| {
        let attribution = rig.backend.attribution(bay.spec.bay, &bay.runtime).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        let end = stream.local_addr().unwrap();
        let who = attribution.who(peer, end, Transport::Tcp);
        assert_eq!(attribution.process(peer, end, Transport::Tcp).unwrap().argv[0], "python3");
        who
    };
    let before = who(&bay, &listener);
    assert_eq!(before.service.as_deref(), Some("caller"));
    // A variable does not make an exec a service.
    let mut posing = ExecSpec::new(["python3", "-c", CALLS]);
    posing.env.push(("BAY_SERVICE".to_owned(), "caller".to_owned()));
    let exec = bay.begin(&posing);
    until("the other to call", || {
        let who = who(&bay, &listener);
        (who.exec == Some(exec)).then(|| assert_eq!(who.service, None))
    });

    let moment = rig.capture(&bay, 1);
    drop(listener);
    let again = rig.restore_in_place(&bay, &moment);
    let listener = listen(&again);
    until("the service to call", || (who(&again, &listener) == before).then_some(()));
    // After a restore, as after a start, the kernel keeps a closed socket's owner for 3 s (`FIN_TIMEOUT` minus 60).
    assert_eq!(again.run("cat /proc/sys/net/ipv4/tcp_fin_timeout"), "63");
}

#[test]
fn transfers_survive_a_capture_and_end_with_a_restore() {
    let Some(rig) = Rig::new() else { return };
    let script = IN_THE_MIDDLE.replace("UPLOAD", &UPLOAD.to_string());
    let bay = rig.start("middle", &[], |_| {});
    let listener = rig.in_gateway(&bay, || TcpListener::bind(("0.0.0.0", TCP_PORT)).unwrap());
    bay.begin(&ExecSpec::new(["python3", "-c", &script]));
    let [mut upload, mut answer, mut half] = [(); 3].map(|()| listener.accept().unwrap().0);
    answer.write_all(&[b'y'; 100_000]).unwrap();
    until("the half of it to be over", || (bay.file("half") == "waits\n").then_some(()));
    assert_eq!(half.read(&mut [0]).unwrap(), 0);
    // As much of the upload as fits is in transit, and the rest waits.
    until("the upload to get stuck", || {
        let queued = || rustix::io::ioctl_fionread(&upload).unwrap();
        let before = queued();
        bay_tests::wait::pause(Duration::from_millis(200));
        (before > 0 && queued() == before).then_some(())
    });

    let moment = rig.capture(&bay, 1);
    // In the bay that was captured each connection ends in its own way.
    half.write_all(b"bye").unwrap();
    drop((half, answer.shutdown(std::net::Shutdown::Write)));
    std::fs::write(bay.disk.workspace.join("go"), "").unwrap();
    let mut taken = Vec::new();
    upload.read_to_end(&mut taken).unwrap();
    assert!(taken.len() == UPLOAD && taken.iter().all(|byte| *byte == b'x'));
    drop(upload);
    for (name, wanted) in
        [("upload", "sent\nend\n"), ("answer", "end 100000\n"), ("half", "waits\nend bye\n")]
    {
        until(&format!("{name} to end"), || (bay.file(name) == wanted).then_some(()));
    }

    let again = rig.restore_in_place(&bay, &moment);
    std::fs::write(again.disk.workspace.join("go"), "").unwrap();
    for name in ["upload", "answer", "half"] {
        let told = until(&format!("{name} to be told"), || {
            again.file(name).lines().last().filter(|line| line.contains(' ')).map(ToOwned::to_owned)
        });
        println!("{name}: {told}");
        assert!(told.starts_with("error "), "{name}: {told}");
    }
}
