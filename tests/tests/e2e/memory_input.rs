//! Input of commands while the memory of their bay is captured. Before that the daemon cuts every connection to the guest.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use bay_tests::consistency_probe::can_run;
use bay_tests::seeded_random::SeededRandom;
use bay_tests::wait::PATIENCE;
use bay_tests::{Daemon, until};

/// Captures during the load: a dozen, or a thousand in `./test --soak`.
fn captures() -> usize {
    let wanted = std::env::var("BAY_ROUNDS").ok().and_then(|text| text.parse().ok());
    wanted.unwrap_or(if std::env::var_os("BAY_SOAK").is_some() { 1000 } else { 12 })
}

/// After this time no more captures are started, however many there were.
fn time_for_captures() -> Duration {
    Duration::from_secs(if std::env::var_os("BAY_SOAK").is_some() { 3600 } else { 90 })
}

/// Fewer captures than these prove nothing.
const FEWEST_CAPTURES: usize = 4;

/// Most messages without an answer. More would only wait in pipes.
const OUTSTANDING: u64 = 200;

/// Pieces of 64 KiB: more than all buffers on the way can hold.
const ENOUGH_TO_FILL: u64 = 200;

/// Sends messages of one line to a command that repeats each line, as a client of a language server does.
struct Conversation {
    child: Child,
    answers: Receiver<String>,
    answered: Arc<AtomicU64>,
    enough: Arc<AtomicBool>,
    writer: std::thread::JoinHandle<u64>,
}

fn message(number: u64) -> String {
    let length = SeededRandom::seeded(number).below(if number.is_multiple_of(50) { 60_000 } else { 300 });
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{number},\"text\":\"{}\"}}", "x".repeat(length))
}

impl Conversation {
    fn start(daemon: &Daemon, bay: &str) -> Self {
        let mut command = daemon.command(&["exec", bay, "--", "cat"]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (answered, enough) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (sender, answers) = mpsc::channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut stdin = child.stdin.take().unwrap();
        let (so_far, stop) = (Arc::clone(&answered), Arc::clone(&enough));
        let writer = std::thread::spawn(move || {
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                if sent - so_far.load(Ordering::Relaxed) >= OUTSTANDING {
                    std::thread::yield_now();
                    continue;
                }
                if stdin.write_all(format!("{}\n", message(sent)).as_bytes()).is_err() {
                    break;
                }
                sent += 1;
            }
            sent
        });
        Self { child, answers, answered, enough, writer }
    }

    /// Asserts that the next answer belongs to the next message.
    #[track_caller]
    fn next_answer(&mut self) -> bool {
        let number = self.answered.load(Ordering::Relaxed);
        match self.answers.recv_timeout(PATIENCE) {
            Ok(line) => {
                let wanted = message(number);
                let shown = |text: &str| text.chars().take(60).collect::<String>();
                assert!(line == wanted, "{:?} was answered to {:?}", shown(&line), shown(&wanted));
                self.answered.store(number + 1, Ordering::Relaxed);
                true
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => false,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                self.enough.store(true, Ordering::Relaxed);
                let _ = self.child.kill();
                panic!("message {number} was never answered: {}", self.said());
            }
        }
    }

    fn said(&mut self) -> String {
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut said);
        }
        said
    }

    /// Ends the input. Returns the number of messages, all of which were answered.
    #[track_caller]
    fn finish(mut self) -> u64 {
        self.enough.store(true, Ordering::Relaxed);
        while self.next_answer() {}
        let status = self.child.wait().unwrap();
        let said = self.said();
        assert!(status.success() && said.is_empty(), "{status}: {said}");
        let (sent, answered) = (self.writer.join().unwrap(), self.answered.load(Ordering::Relaxed));
        assert_eq!(sent, answered, "messages sent, and answered");
        sent
    }
}

fn capture(daemon: &Daemon, bay: &str) {
    let made = daemon.bay(&["checkpoint", bay, "--memory", "--json"]).ok().json();
    assert_eq!(made["kind"], "memory", "{made}");
    let name = made["name"].as_str().unwrap().to_owned();
    let _ = daemon.bay(&["checkpoints", "rm", bay, &name]).ok();
}

#[test]
fn no_message_to_a_command_is_lost_or_doubled_while_memory_is_captured() {
    let daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    let mut conversation = Conversation::start(&daemon, "b");
    let (began, mut made) = (Instant::now(), 0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let capturing = scope.spawn(|| {
            let mut made = 0;
            while made < captures() && began.elapsed() < time_for_captures() && !over.load(Ordering::Relaxed)
            {
                capture(&daemon, "b");
                made += 1;
            }
            made
        });
        // Read the answers on this thread, because a panic fails the test only here.
        let answers = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            while !capturing.is_finished() {
                assert!(conversation.next_answer(), "the command ended");
            }
        }));
        over.store(true, Ordering::Relaxed);
        made = capturing.join().unwrap();
        if let Err(panic) = answers {
            println!("{made} captures were made");
            std::panic::resume_unwind(panic);
        }
    });
    let sent = conversation.finish();
    println!("{made} captures in {:?} under {sent} messages", began.elapsed());
    assert!(made >= FEWEST_CAPTURES, "{made} captures in {:?}", began.elapsed());
    assert!(sent > made as u64 * 10, "{sent} messages are no load");
}

#[test]
fn a_terminal_gets_every_key_and_no_note_while_memory_is_captured() {
    let daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    let typed: Vec<String> = (0..20).map(|number| format!("line {number}")).collect();
    let keys = format!("{}\n\u{4}", typed.join("\n"));
    let over = AtomicBool::new(false);
    let (ran, made) = std::thread::scope(|scope| {
        let capturing = scope.spawn(|| {
            until("the terminal to be attached", || (daemon.show("b")["execs_running"] == 1).then_some(()));
            let mut made = 0;
            while !over.load(Ordering::Relaxed) {
                capture(&daemon, "b");
                made += 1;
            }
            made
        });
        let ran = daemon.on_a_terminal("exec -t b -- cat", &keys);
        over.store(true, Ordering::Relaxed);
        (ran, capturing.join().unwrap())
    });
    assert!(made >= 2, "{made} captures while somebody typed");
    let screen = ran.ok().text();
    // Each line twice: once echoed by the terminal, once printed by the command.
    let expected: Vec<&str> = typed.iter().flat_map(|line| [line.as_str(), line.as_str()]).collect();
    let mut shown: Vec<&str> = screen.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    shown.sort_by_key(|line| line.rsplit(' ').next().and_then(|number| number.parse::<u64>().ok()));
    assert_eq!(shown, expected, "{made} captures; on the screen was {screen:?}");
}

#[test]
fn a_command_that_does_not_read_its_input_does_not_prevent_a_memory_capture() {
    let daemon = Daemon::start();
    if !can_run(&daemon) {
        return;
    }
    daemon.empty_bay("b");
    let script = "until test -e go; do sleep 0.05; done; wc -c";
    let mut command = daemon.command(&["exec", "b", "--", "sh", "-c", script]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let written = Arc::new(AtomicU64::new(0));
    let so_far = Arc::clone(&written);
    let writer = std::thread::spawn(move || {
        for _ in 0..ENOUGH_TO_FILL {
            stdin.write_all(&[b'x'; 64 << 10]).unwrap();
            so_far.fetch_add(1, Ordering::Relaxed);
        }
    });
    // It is full if no more was accepted between two checks.
    let mut last = 0;
    until("everything on the way to be full", || {
        bay_tests::wait::pause(Duration::from_millis(300));
        let now = written.load(Ordering::Relaxed);
        (now > 0 && std::mem::replace(&mut last, now) == now).then_some(())
    });
    assert!(last < ENOUGH_TO_FILL, "it was never full");
    capture(&daemon, "b");
    let _ = daemon.sh("b", "touch go").ok();
    writer.join().unwrap();
    let output = child.wait_with_output().unwrap();
    let counted = String::from_utf8(output.stdout).unwrap();
    assert_eq!(counted.trim(), (ENOUGH_TO_FILL * (64 << 10)).to_string());
}
