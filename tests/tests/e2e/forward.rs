//! `bay forward`: ports of a bay, reached from the host.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bay_tests::consistency_probe::can_run;
use bay_tests::suite::Scratch;
use bay_tests::wait::PATIENCE;
use bay_tests::{CliRun, Daemon, image, until};
use bay_types::ErrorCode;
use bay_types::bay::State;
use bay_types::forward::MAX_CONNECTIONS;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Serves the port that is its argument. The first byte of a connection says how.
const SERVER: &str = r#"
import socket, sys, threading
def serve(c):
    how = c.recv(1)
    if how == b"e":                      # echo
        while True:
            d = c.recv(65536)
            if not d: break
            c.sendall(d)
    elif how == b"c":                    # count to the end, then answer
        n = 0
        while True:
            d = c.recv(65536)
            if not d: break
            n += len(d)
        c.sendall(str(n).encode())
    elif how == b"g":                    # garbage, and never read again
        try:
            while True: c.sendall(b"\0\0\0\0\xff\xff\xff\xff" * 8192)
        except OSError:
            return
    c.close()
s = socket.socket(socket.AF_INET6 if len(sys.argv) > 2 else socket.AF_INET)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1", int(sys.argv[1])))
s.listen(512)
print("listens", flush=True)
while True:
    c, _ = s.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
"#;

/// Starts the server in a bay, and returns the number of its exec.
fn serve(daemon: &Daemon, bay: &str, port: u16) -> String {
    serve_at(daemon, bay, &[&port.to_string()])
}

fn serve_at(daemon: &Daemon, bay: &str, arguments: &[&str]) -> String {
    let line = [&["exec", bay, "-d", "--", "python3", "-c", SERVER], arguments].concat();
    let number = daemon.bay(&line).ok().text();
    until("the server to listen", || {
        let log = daemon.bay(&["logs", bay, &number]).ok().text();
        log.contains("listens").then_some(())
    });
    number
}

/// A port of this host that nothing listens on and that no other test gets meanwhile: the kernel never gives a port below
/// its own range to a socket that asks for any, and tests that run at once have different process ids.
fn free_port() -> u16 {
    /// Below the kernel's range, which begins at 32768.
    const PORTS: std::ops::Range<u32> = 10_000..32_000;
    /// Ports for each process.
    const EACH: u32 = 4;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    loop {
        let port = (std::process::id() * EACH + TAKEN.fetch_add(1, Ordering::Relaxed)) % PORTS.len() as u32;
        let port = u16::try_from(PORTS.start + port).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A running `bay forward` that has printed its first line.
struct Forward {
    child: Child,
    lines: BufReader<ChildStdout>,
    scratch: Scratch,
}

impl Forward {
    fn start(daemon: &Daemon, args: &[&str]) -> Self {
        let mut forward = Self::unread(daemon, args);
        let first = forward.next();
        assert!(first["event"] == "open", "{first}: {}", forward.notes());
        forward
    }

    fn unread(daemon: &Daemon, args: &[&str]) -> Self {
        let scratch = Scratch::new();
        let all: Vec<&str> = ["forward", "--json"].iter().chain(args).copied().collect();
        let mut command = daemon.command(&all);
        command.stdout(Stdio::piped()).stderr(File::create(scratch.join("notes")).unwrap());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines, scratch }
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?} {}", self.notes()))
    }

    fn notes(&self) -> String {
        std::fs::read_to_string(self.scratch.join("notes")).unwrap()
    }

    fn until_notes(&self, part: &str) {
        until(part, || self.notes().contains(part).then_some(()));
    }

    /// Ctrl-C.
    fn interrupt(mut self) -> CliRun {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::INT).unwrap();
        self.ended()
    }

    fn ended(&mut self) -> CliRun {
        let status = self.child.wait().unwrap();
        let stderr = std::fs::read(self.scratch.join("notes")).unwrap();
        CliRun::new("forward".to_owned(), std::process::Output { status, stdout: Vec::new(), stderr })
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(port: u16) -> TcpStream {
    let tcp = TcpStream::connect(("127.0.0.1", port)).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    tcp.set_write_timeout(Some(PATIENCE)).unwrap();
    tcp
}

/// Sends a text to an echoing server, and returns what comes back.
fn echo(port: u16, text: &str) -> io::Result<String> {
    let mut tcp = connect(port);
    tcp.write_all(b"e")?;
    tcp.write_all(text.as_bytes())?;
    tcp.shutdown(Shutdown::Write)?;
    let mut back = String::new();
    tcp.read_to_string(&mut back)?;
    Ok(back)
}

#[track_caller]
fn is_cut(result: &io::Result<impl std::fmt::Debug>) {
    let kinds = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe, io::ErrorKind::NotConnected];
    assert!(result.as_ref().is_err_and(|error| kinds.contains(&error.kind())), "{result:?}");
}

#[test]
fn a_server_in_a_bay_is_reached_from_the_host_and_the_forward_is_recorded_once() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    let view = daemon.empty_bay("b");
    let id = view["id"].as_str().unwrap();
    let _server = serve(&daemon, "b", 7000);
    let (port, same) = (free_port(), free_port());
    let _six = serve_at(&daemon, "b", &[&same.to_string(), "::1"]);
    let mut forward = Forward::start(&daemon, &["b", &format!("7000:{port}"), &format!("{same}:{same}")]);
    assert_eq!(forward.next()["address"], format!("127.0.0.1:{same}"));
    let large = "0123456789abcdef".repeat(200_000);
    let sent = large.clone();
    let echoed = std::thread::spawn(move || {
        let mut tcp = connect(port);
        let mut writer = tcp.try_clone().unwrap();
        let writing = std::thread::spawn(move || {
            writer.write_all(b"e").unwrap();
            writer.write_all(sent.as_bytes()).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut back = String::new();
        tcp.read_to_string(&mut back).unwrap();
        writing.join().unwrap();
        back
    });
    assert!(echoed.join().unwrap() == large);
    assert_eq!(echo(same, "over IPv6").unwrap(), "over IPv6");
    let ended = forward.interrupt();
    assert_eq!(ended.code, 130, "{ended}");
    let opened = daemon.events(id, "forward.open");
    let [open] = &opened[..] else { panic!("{opened:?}") };
    assert_eq!((&open["ports"], &open["listen"]), (&json!([7000, same]), &json!("127.0.0.1")));
    let end = until("the end of the forward on record", || daemon.events(id, "forward.end").pop());
    assert_eq!((&end["forward"], &end["connections"]), (&open["forward"], &json!(2)));
    let length = large.len() as u64;
    assert!(end["bytes_in"].as_u64() > Some(length) && end["bytes_out"].as_u64() > Some(length), "{end}");
    // Connections are no commands.
    assert_eq!(daemon.bay(&["execs", "ls", "b", "--json"]).ok().json().as_array().unwrap().len(), 2);
    let timeline = daemon.bay(&["timeline", "b"]).ok().text();
    assert!(timeline.contains(&format!("forward of 7000, {same} opened to 127.0.0.1")), "{timeline}");
}

#[test]
fn two_hundred_connections_are_open_at_once() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _server = serve(&daemon, "b", 7000);
    let port = free_port();
    let _forward = Forward::start(&daemon, &["b", &format!("7000:{port}")]);
    let mut all: Vec<TcpStream> = (0..200).map(|_| connect(port)).collect();
    for (number, tcp) in all.iter_mut().enumerate() {
        tcp.write_all(format!("e{number:04}").as_bytes()).unwrap();
    }
    for (number, tcp) in all.iter_mut().enumerate() {
        let mut back = [0; 4];
        tcp.read_exact(&mut back).unwrap();
        assert_eq!(back, *format!("{number:04}").as_bytes());
    }
}

/// One byte to an echoing server and back, on each connection.
fn echoes(all: &mut [TcpStream]) -> Vec<io::Result<()>> {
    for tcp in all.iter_mut() {
        let _ = tcp.write_all(b"ex");
    }
    all.iter_mut().map(|tcp| tcp.read_exact(&mut [0])).collect()
}

#[test]
fn ten_thousand_connections_are_carried_and_those_over_the_limit_are_cut_with_one_note() {
    const TOGETHER: usize = 500;
    const OVER: usize = 50;
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    let view = daemon.empty_bay("b");
    let id = view["id"].as_str().unwrap();
    let _server = serve(&daemon, "b", 7000);
    let port = free_port();
    let forward = Forward::start(&daemon, &["b", &format!("7000:{port}")]);
    let all_ended = || until("all to end in the bay", || (connections(&daemon, 7000) == 0).then_some(()));
    for _ in 0..10_000 / TOGETHER {
        let mut all: Vec<TcpStream> = (0..TOGETHER).map(|_| connect(port)).collect();
        for echoed in echoes(&mut all) {
            echoed.unwrap_or_else(|error| panic!("{error}: {}", forward.notes()));
        }
        drop(all);
        // Otherwise those that are about to end count against the limit too.
        all_ended();
    }
    assert_eq!(forward.notes(), "");

    let carried = |_| {
        let mut tcp = connect(port);
        tcp.write_all(b"ex").and_then(|()| tcp.read_exact(&mut [0])).map(|()| tcp)
    };
    let all: io::Result<Vec<TcpStream>> = (0..MAX_CONNECTIONS).map(carried).collect();
    let all = all.unwrap_or_else(|error| panic!("{error}: {}", forward.notes()));
    let mut over: Vec<TcpStream> = (0..OVER).map(|_| connect(port)).collect();
    // The reset is seen by the write or by the read.
    assert!(echoes(&mut over).iter().all(Result::is_err));
    forward.until_notes("1000 forwarded connections, the most allowed");
    assert_eq!(forward.notes().matches("the most allowed").count(), 1, "{}", forward.notes());
    drop(all);
    all_ended();
    assert_eq!(echo(port, "again").unwrap(), "again");
    let _ended = forward.interrupt();
    let end = until("the end of the forward on record", || daemon.events(id, "forward.end").pop());
    assert_eq!(end["connections"], json!(10_000 + MAX_CONNECTIONS + 1));
}

#[test]
fn a_forward_survives_the_death_of_its_bay() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _server = serve(&daemon, "b", 7000);
    let port = free_port();
    let _forward = Forward::start(&daemon, &["b", &format!("7000:{port}")]);
    let mut open = connect(port);
    open.write_all(b"ex").unwrap();
    open.read_exact(&mut [0]).unwrap();
    let first = daemon.host_pid("b");
    kill_process(Pid::from_raw(first).unwrap(), Signal::KILL).unwrap();
    is_cut(&open.read(&mut [0]));
    until("the bay to run again", || {
        let view = daemon.show("b");
        (view["state"] == "running" && view["host_pid"] != json!(first)).then_some(())
    });
    let _server = serve(&daemon, "b", 7000);
    assert_eq!(echo(port, "again").unwrap(), "again");
}

#[test]
fn a_forward_survives_restarts_of_the_listener_with_one_note_for_each_outage() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let port = free_port();
    let forward = Forward::start(&daemon, &["b", &format!("7000:{port}")]);
    let refused = "nothing in the bay listens on port 7000";
    for outage in 1..=2 {
        for _ in 0..3 {
            is_cut(&echo(port, "nobody"));
        }
        until("the note", || (forward.notes().matches(refused).count() == outage).then_some(()));
        let server = serve(&daemon, "b", 7000);
        assert_eq!(echo(port, "somebody").unwrap(), "somebody");
        let mut open = connect(port);
        open.write_all(b"ex").unwrap();
        open.read_exact(&mut [0]).unwrap();
        let _killed = daemon.bay(&["kill", "b", &server, "--signal", "KILL"]).ok();
        // The killed server's connection ends too.
        assert!(!matches!(open.read(&mut [0]), Ok(1)));
        until("the port to be closed", || echo(port, "x").is_err().then_some(()));
    }
    until("the third note", || {
        is_cut(&echo(port, "nobody"));
        (forward.notes().matches(refused).count() == 3).then_some(())
    });
    assert!(forward.notes().contains("`bay ports b` lists"), "{}", forward.notes());
}

#[test]
fn a_half_close_reaches_the_server_and_its_answer_the_client() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _server = serve(&daemon, "b", 7000);
    let port = free_port();
    let _forward = Forward::start(&daemon, &["b", &format!("7000:{port}")]);
    let mut tcp = connect(port);
    tcp.write_all(b"c").unwrap();
    tcp.write_all(&[7; 1_000_000]).unwrap();
    tcp.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    tcp.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "1000000");
}

#[test]
fn a_forward_waits_while_its_bay_is_stopped_and_ends_when_it_is_removed() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _server = serve(&daemon, "b", 7000);
    let port = free_port();
    let mut forward = Forward::start(&daemon, &["b", &format!("7000:{port}")]);
    let mut open = connect(port);
    open.write_all(b"ex").unwrap();
    open.read_exact(&mut [0]).unwrap();
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    // The server is asked to end. If it does, its kernel closes the connection in order; otherwise it is cut.
    let end = open.read(&mut [0]);
    assert!(
        matches!(end, Ok(0)) || end.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::ConnectionReset),
        "{end:?}"
    );
    forward.until_notes("the bay b is stopped");
    is_cut(&echo(port, "nobody"));
    let _started = daemon.bay(&["start", "b"]).ok();
    forward.until_notes("the bay b runs again");
    let _server = serve(&daemon, "b", 7000);
    assert_eq!(echo(port, "again").unwrap(), "again");
    let _replaced = daemon.bay(&["replace", "b"]).ok();
    let _server = serve(&daemon, "b", 7000);
    assert_eq!(echo(port, "with a new root").unwrap(), "with a new root");
    let _removed = daemon.bay(&["rm", "--yes", "b"]).ok();
    let ended = forward.ended();
    assert_eq!(ended.code, i32::from(ErrorCode::BayNotFound.exit_code()), "{ended}");
    assert!(ended.errors().contains("the bay b was removed"), "{ended}");
}

#[test]
fn a_forward_survives_a_restart_of_the_daemon() {
    if !image::with_python() {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.empty_bay("b");
    let _server = serve(&daemon, "b", 7000);
    let port = free_port();
    let _forward = Forward::start(&daemon, &["b", &format!("7000:{port}")]);
    let mut open = connect(port);
    open.write_all(b"ex").unwrap();
    open.read_exact(&mut [0]).unwrap();
    daemon.kill_9();
    is_cut(&open.read(&mut [0]));
    daemon.launch();
    until("the forward to continue", || echo(port, "again").is_ok_and(|back| back == "again").then_some(()));
}

#[test]
fn a_forward_survives_a_capture_a_restore_and_a_fork_which_has_none() {
    let daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    let _server = serve(&daemon, "b", 7000);
    let port = free_port();
    let forward = Forward::start(&daemon, &["b", &format!("7000:{port}")]);
    let open = || {
        let mut open = connect(port);
        open.write_all(b"ex").unwrap();
        open.read_exact(&mut [0]).unwrap();
        open
    };
    let mut before = open();
    let _made = daemon.bay(&["checkpoint", "b", "--memory"]).ok();
    is_cut(&before.read(&mut [0]));
    assert_eq!(echo(port, "captured").unwrap(), "captured");
    let mut before = open();
    let _restored = daemon.bay(&["restore", "b", "v1"]).ok();
    is_cut(&before.read(&mut [0]));
    until("the forward to continue", || echo(port, "back").is_ok_and(|back| back == "back").then_some(()));
    let mut before = open();
    let _forked = daemon.bay(&["fork", "b"]).ok();
    is_cut(&before.read(&mut [0]));
    assert_eq!(echo(port, "forked").unwrap(), "forked");
    let child = daemon.show("b-fork-1")["id"].as_str().unwrap().to_owned();
    assert_eq!(daemon.events(&child, "forward.open"), Vec::<Value>::new());
    drop(forward);
}

#[test]
fn a_policy_that_closes_ingress_ends_connections_and_refuses_new_ones() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _server = serve(&daemon, "b", 7000);
    let port = free_port();
    let forward = Forward::start(&daemon, &["b", &format!("7000:{port}")]);
    let mut open = connect(port);
    open.write_all(b"ex").unwrap();
    open.read_exact(&mut [0]).unwrap();
    let closed = Scratch::new();
    let file = closed.join("closed.toml");
    std::fs::write(&file, "ingress = \"deny\"\n").unwrap();
    let _set = daemon.bay(&["policy", "set", "b", file.to_str().unwrap()]).ok();
    is_cut(&open.read(&mut [0]));
    is_cut(&echo(port, "nobody"));
    forward.until_notes("closes its ports to the outside");
    let (_, next) = daemon.bay(&["forward", "b", "7001"]).fails_with(ErrorCode::Denied);
    assert!(next.contains("bay policy show b"), "{next}");
}

/// Attack: a listener sends garbage that looks like the framing, and never reads.
#[test]
fn a_hostile_listener_holds_nothing_after_its_client_left() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let _server = serve(&daemon, "b", 7000);
    let port = free_port();
    let forward = Forward::start(&daemon, &["b", &format!("7000:{port}")]);
    let mut tcp = connect(port);
    tcp.write_all(b"g").unwrap();
    let mut garbage = [0; 8 * 8192];
    tcp.read_exact(&mut garbage).unwrap();
    assert!(garbage.chunks(8).all(|piece| piece == b"\0\0\0\0\xff\xff\xff\xff"));
    // Until nothing fits between client and listener any more.
    tcp.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    while tcp.write(&[1; 65536]).is_ok() {}
    assert_eq!(connections(&daemon, 7000), 2);
    assert_eq!(echo(port, "beside it").unwrap(), "beside it");
    drop(tcp);
    until("the connection to end in the bay", || (connections(&daemon, 7000) == 0).then_some(()));
    assert_eq!(forward.notes(), "");
}

/// Ends of established connections to a port, as the bay's kernel lists them.
fn connections(daemon: &Daemon, port: u16) -> usize {
    let table = daemon.sh("b", "cat /proc/net/tcp").ok().text();
    let end = format!(":{port:04X}");
    let established = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[3] == "01" && (fields[1].ends_with(&end) || fields[2].ends_with(&end))
    };
    table.lines().skip(1).filter(established).count()
}

#[test]
fn all_ports_are_followed_as_they_appear_and_disappear() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let port = free_port();
    let (first, second) = (serve(&daemon, "b", port), free_port());
    let mut forward = Forward::start(&daemon, &["b", "--all"]);
    assert_eq!(echo(port, "first").unwrap(), "first");
    // A bay cannot take a well-known port of this host.
    let _low = serve(&daemon, "b", 81);
    let _second = serve(&daemon, "b", second);
    let opened = forward.next();
    assert_eq!((&opened["event"], &opened["port"]), (&json!("open"), &json!(second)));
    assert_eq!(echo(second, "second").unwrap(), "second");
    let _killed = daemon.bay(&["kill", "b", &first]).ok();
    let closed = forward.next();
    assert_eq!((&closed["event"], &closed["port"]), (&json!("closed"), &json!(port)));
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    assert_eq!(echo(second, "still").unwrap(), "still");
}

#[test]
fn a_command_has_its_ports_forwarded_while_it_runs() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let port = free_port();
    let pair = format!("7000:{port}");
    let args = ["exec", "b", "--forward", &pair, "--", "python3", "-c", SERVER, "7000"];
    let mut child = daemon.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "listens");
    assert_eq!(echo(port, "meanwhile").unwrap(), "meanwhile");
    let _killed = daemon.bay(&["kill", "b", "1"]).ok();
    child.wait().unwrap();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn an_open_connection_keeps_an_idle_bay_running() {
    if !image::with_python() {
        return;
    }
    let daemon = Daemon::start();
    for name in ["b", "control"] {
        daemon.empty_bay(name);
    }
    let _server = serve(&daemon, "b", 7000);
    let port = free_port();
    let forward = Forward::start(&daemon, &["b", &format!("7000:{port}")]);
    let mut open = connect(port);
    open.write_all(b"ex").unwrap();
    open.read_exact(&mut [0]).unwrap();
    // The control gets its limit later, so the bay was observed for at least as long.
    for name in ["b", "control"] {
        let _set = daemon.bay(&["set", name, "--idle-stop", "3s"]).ok();
    }
    daemon.until_state("control", State::Stopped);
    assert_eq!(daemon.show("b")["state"], "running");
    drop(open);
    daemon.until_state("b", State::Stopped);
    forward.until_notes("the bay b is stopped");
}

#[test]
fn a_listener_for_other_machines_is_warned_of() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    let port = free_port();
    let forward = Forward::start(&daemon, &["b", &format!("7000:{port}"), "--listen", "0.0.0.0"]);
    let notes = forward.notes();
    assert!(notes.starts_with("warning: ") && notes.lines().count() == 1, "{notes}");
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
}

#[test]
fn ports_that_are_none_or_taken_and_bays_that_do_not_run_are_refused() {
    let daemon = Daemon::start();
    daemon.empty_bay("b");
    for bad in ["0", "70000", "http", "80:0", "80:99999", "80:80:80", "-5", ""] {
        let refused = daemon.bay(&["forward", "b", "--", bad]).exits(2);
        assert!(refused.errors().contains("each from 1 to 65535"), "{refused}");
    }
    let none = daemon.bay(&["forward", "b"]).exits(2);
    assert!(none.errors().contains("PORT[:HOST_PORT]"), "{none}");
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap().port();
    let pair = format!("7000:{taken}");
    for line in [vec!["forward", "b", &pair], vec!["exec", "b", "--forward", &pair, "--", "true"]] {
        let refused = daemon.bay(&line);
        assert!(refused.errors().contains("in use on this host"), "{refused}");
        assert!(refused.errors().contains("bay forward b 7000:"), "{refused}");
    }
    drop(holder);
    daemon.bay(&["forward", "nope", "7000"]).fails_with(ErrorCode::BayNotFound);
    let _stopped = daemon.bay(&["stop", "b"]).ok();
    let (_, next) = daemon.bay(&["forward", "b", "7000"]).fails_with(ErrorCode::BayState);
    assert!(next.contains("bay start b"), "{next}");
    // Nothing of all this was a forward.
    let id = daemon.show("b")["id"].as_str().unwrap().to_owned();
    assert_eq!(daemon.events(&id, "forward.open"), Vec::<Value>::new());
    let spec = json!({ "ports": [0] });
    assert_eq!(daemon.rest("POST", "/v1/bays/b/forwards", &spec).status, 400);
}
