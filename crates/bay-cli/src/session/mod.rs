//! A command in a bay with the caller's streams attached to it.
//!
//! ```text
//!            start + attach                     exit frame
//!  (request) ───────────────► attached ──────────────────────► drained ──► exit code
//!                              │     ▲                            ▲
//!            connection lost   ▼     │ attached again at byte N   │
//!                           searching ────────────────────────────┤ the bay stopped: the rest is read from its record
//!                           │  │ ▲ │ deadline, or Ctrl-C
//!                           │  └─┘ the bay is paused: for as long as that
//!                           ▼
//!                     daemon-unreachable, or 130 (the command continues; `bay logs` shows the rest)
//! ```
//! The client chooses the id of an exec, so it can repeat a start whose answer was lost. It counts output bytes, so
//! nothing that was kept is lost or shown twice. It counts input bytes too, and keeps them until the command took
//! them. Only a guest or daemon of an earlier release does not count input. If a connection to one is cut, the bytes
//! in transit are lost, and the client reports that. Signals use connections of their own, because a command that
//! reads no input would delay them.

pub(crate) mod capture;
mod detach_keys;
mod input;
mod notes;
mod sink;

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::time::{Duration, Instant};

use bay_client::{Attached, Client, FrameReader, bay_path, broken, paused};
use bay_text::percent::segment;
use bay_types::exec::{EndReason, ExecSpec, Exit, SignalRequest, TtySize};
use bay_types::frame::{Frame, MAX_PAYLOAD};
use bay_types::{ApiError, ErrorCode};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Failure, Outcome};
use crate::output::streams::Streams;
use crate::terminal::{self, RawMode};
use detach_keys::DetachKeys;
use input::{Chunks, Outbox};
pub(crate) use notes::note;
use sink::{Piece, Sink};

/// How long a daemon may be unreachable before this program stops waiting for a running command, which continues.
const REATTACH_FOR: Duration = Duration::from_secs(60);
/// A service manager usually restarts a daemon that died. This program starts one only after this time.
const START_AFTER: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(5);
/// How long the caller's terminal stays in raw mode while the connection is cut: longer than a memory capture takes.
/// Outside of raw mode the terminal echoes input, and Ctrl-C ends this program.
const RAW_WHILE_CUT: Duration = Duration::from_secs(5);

const SIGKILL: i32 = 9;
const SIGPIPE: i32 = 13;

/// Runs `spec` in `bay` and returns its exit code. A command with a terminal controls the caller's terminal. For any
/// other command a terminal gets text and colours, unless `raw`. If it fails, and `explain` is set, a note says what may
/// have made it fail.
pub(crate) async fn run(client: &mut Client, bay: &str, spec: ExecSpec, raw: bool, explain: bool) -> Outcome {
    let mut session = Session::new(client, bay, spec);
    session.streams = Streams::new(raw || session.spec.tty.is_some());
    let result = session.go().await;
    let tty = session.raw.take();
    drop(tty);
    match result {
        Ok(exit) => {
            session.say_why(&exit);
            if explain {
                session.say_blame(&exit).await;
            }
            Ok(exit.shell_code())
        }
        Err(failure) => Err(failure),
    }
}

/// Attaches to a command that runs already, from a byte of its output on, and returns its exit code. If the caller
/// detaches, the code is 0. The command continues then, and also if the caller is gone.
pub(crate) async fn join(client: &mut Client, bay: &str, spec: ExecSpec, since: u64, raw: bool) -> Outcome {
    let mut session = Session::new(client, bay, spec);
    session.streams = Streams::new(raw || session.spec.tty.is_some());
    session.offset = since;
    session.joined = true;
    session.outbox.joins(session.spec.stdin);
    let typed = session.spec.tty.is_some() || terminal::stdin_is_terminal();
    session.detach_keys = (session.spec.stdin && typed).then(DetachKeys::default);
    let result = session.go().await;
    drop(session.raw.take());
    let exit = result?;
    session.say_why(&exit);
    Ok(exit.shell_code())
}

struct Session<'a> {
    client: &'a mut Client,
    bay: String,
    spec: ExecSpec,
    raw: Option<RawMode>,
    stdin: Chunks,
    outbox: Outbox,
    sink: Sink,
    streams: Streams,
    /// Output for which the sink had no room yet.
    pending: VecDeque<Piece>,
    /// Bytes of output received so far.
    offset: u64,
    /// The note that the bay's disk is full was printed.
    said_full: bool,
    interrupts: u32,
    /// Somebody else started the command, so it does not end with this client.
    joined: bool,
    /// The keys that end the attachment, if there are any.
    detach_keys: Option<DetachKeys>,
}

/// Why the loop of one connection ended.
enum End {
    Exit(Exit),
    Lost,
    ReaderGone,
    /// The caller left the command running.
    Detached,
    /// This signal asks this program to end. A note about the command was already printed.
    Interrupted(i32),
}

/// The result of the search for a lost command.
enum Found {
    Stream(Attached),
    Exit(Exit),
}

struct Signals {
    winch: Signal,
    ends: Ends,
}

/// The signals that ask a program to end.
pub(crate) struct Ends {
    int: Signal,
    term: Signal,
    hup: Signal,
    quit: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self { winch: signal(SignalKind::window_change())?, ends: Ends::listen()? })
    }
}

impl Ends {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            int: signal(SignalKind::interrupt())?,
            term: signal(SignalKind::terminate())?,
            hup: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
        })
    }

    /// Waits for one of the signals, and returns its number.
    pub(crate) async fn next(&mut self) -> i32 {
        let kind = tokio::select! {
            _ = self.int.recv() => SignalKind::interrupt(),
            _ = self.term.recv() => SignalKind::terminate(),
            _ = self.quit.recv() => SignalKind::quit(),
            _ = self.hup.recv() => SignalKind::hangup(),
        };
        kind.as_raw_value()
    }
}

impl<'a> Session<'a> {
    fn new(client: &'a mut Client, bay: &str, spec: ExecSpec) -> Self {
        let stdin = Chunks::new(spec.stdin);
        let mut outbox = Outbox::new();
        if spec.tty.is_some() && !spec.stdin {
            // A terminal has no end of its own input: a program that reads it would wait forever.
            outbox.push(None);
        }
        Self {
            client,
            bay: bay.to_owned(),
            spec,
            raw: None,
            stdin,
            outbox,
            sink: Sink::default(),
            streams: Streams::default(),
            pending: VecDeque::new(),
            offset: 0,
            said_full: false,
            interrupts: 0,
            joined: false,
            detach_keys: None,
        }
    }

    async fn go(&mut self) -> Result<Exit, Failure> {
        let attached = if self.joined { self.attach_again(true).await? } else { self.start().await? };
        let mut signals = Signals::listen().map_err(|e| bay_client::local("listening for signals", &e))?;
        if self.spec.tty.is_some() && self.spec.stdin {
            self.raw = RawMode::enter();
        }
        let mut stream = self.attached(attached);
        if let (true, Some(size)) = (self.joined && self.spec.tty.is_some(), terminal::size()) {
            self.outbox.resize(size);
            // A program draws itself again for a signal, also if the size is the one it had.
            self.outbox.redraw();
        }
        self.serve(&mut stream, &mut signals).await
    }

    /// Starts the command, attached.
    async fn start(&mut self) -> Result<Attached, Failure> {
        let path = bay_path(&self.bay, "/execs/attach");
        match self.client.attach(&path, Some(&self.spec), Some(self.outbox.id())).await {
            Ok(attached) => Ok(attached),
            Err(error) if error.code == ErrorCode::DaemonUnreachable && self.client.connected() => {
                Ok(self.attach_again(false).await?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Serves the connection, and those that follow if it is cut, until the command or this program ends.
    async fn serve(
        &mut self,
        stream: &mut FrameReader<UnixStream>,
        signals: &mut Signals,
    ) -> Result<Exit, Failure> {
        loop {
            match self.converse(stream, signals).await? {
                End::Exit(exit) => {
                    // The command has ended. Only a slow reader of the output remains to be waited for.
                    return tokio::select! {
                        drained = self.drain() => drained.map(|()| exit),
                        number = signals.ends.next() => Ok(ended_by(number)),
                    };
                }
                End::Detached => {
                    self.note(&format!(
                        "detached; the command continues: `bay attach {} {}` attaches again",
                        self.bay, self.spec.id
                    ));
                    return Ok(Exit { reason: EndReason::Exited, code: Some(0), signal: None });
                }
                End::ReaderGone if self.joined => return Err(Failure::BrokenPipe),
                End::ReaderGone => {
                    // A command that writes to a closed pipe itself would get the same signal.
                    let _ = self.signal_request(SIGPIPE, false).await;
                    return Err(Failure::BrokenPipe);
                }
                End::Interrupted(number) => return Ok(ended_by(number)),
                End::Lost => {
                    let mut raw = self.raw.take();
                    let was_raw = raw.is_some();
                    let found = {
                        let mut search = pin!(self.search(signals.ends.next()));
                        match tokio::time::timeout(RAW_WHILE_CUT, &mut search).await {
                            Ok(found) => found?,
                            Err(_) => {
                                // In raw mode, Ctrl-C would only be a byte for a command that cannot be reached.
                                raw = None;
                                search.await?
                            }
                        }
                    };
                    let attached = match found {
                        Found::Stream(attached) => attached,
                        Found::Exit(exit) => return Ok(exit),
                    };
                    if was_raw && raw.is_none() {
                        raw = RawMode::enter();
                        // The terminal echoed what was typed meanwhile.
                        self.outbox.redraw();
                    }
                    self.raw = raw;
                    *stream = self.attached(attached);
                    if let (Some(_), Some(size)) = (self.spec.tty, terminal::size()) {
                        self.outbox.resize(size);
                    }
                }
            }
        }
    }

    /// Prepares for a new connection.
    fn attached(&mut self, attached: Attached) -> FrameReader<UnixStream> {
        if self.outbox.connected(attached.received) {
            self.note("the connection was cut while input was sent; some of it may be lost");
        }
        attached.frames
    }

    /// Searches for the lost command until it is found, is known to have ended, or the caller interrupts.
    async fn search(&mut self, enough: impl Future<Output = i32>) -> Result<Found, Failure> {
        let number = tokio::select! {
            found = self.find() => return found,
            number = enough => number,
        };
        let (bay, exec) = (&self.bay, &self.spec.id);
        self.note(&format!(
            "not waiting for the command any longer; it continues, or will when its bay is resumed: \
             `bay logs {bay} {exec} --follow` shows it, `bay kill {bay} {exec}` ends it"
        ));
        Ok(Found::Exit(ended_by(number)))
    }

    async fn find(&mut self) -> Result<Found, Failure> {
        let began = Instant::now();
        loop {
            let error = match self.attach_again(true).await {
                Ok(stream) => return Ok(Found::Stream(stream)),
                Err(error) => error,
            };
            let stands_still = error.code == ErrorCode::BayState
                && paused::wait(self.client, &self.bay, |text| self.note(text)).await?.is_some();
            if stands_still {
                continue;
            }
            match self.rest_from_record(&error).await {
                Some(End::Exit(exit)) => {
                    self.drain().await?;
                    return Ok(Found::Exit(exit));
                }
                Some(End::Lost) if began.elapsed() < REATTACH_FOR => tokio::time::sleep(POLL).await,
                _ => return Err(error.into()),
            }
        }
    }

    /// Forwards frames in both directions until the exec or the connection ends.
    async fn converse(
        &mut self,
        frames: &mut FrameReader<UnixStream>,
        signals: &mut Signals,
    ) -> Result<End, Failure> {
        loop {
            while self.pending.is_empty() {
                match frames.next() {
                    Ok(Some(frame)) => {
                        if let Some(end) = self.take(frame)? {
                            return Ok(end);
                        }
                    }
                    Ok(None) => break,
                    Err(error) => return Err(broken(&error.to_string()).into()),
                }
            }
            let tty = self.spec.tty.is_some();
            let reads_stdin = !self.stdin.ended() && self.outbox.has_room();
            let (stream, buffer) = frames.split();
            let (mut reader, mut writer) = stream.split();
            tokio::select! {
                read = reader.read_buf(buffer), if self.pending.is_empty() => match read {
                    Ok(0) | Err(_) => return Ok(End::Lost),
                    Ok(_) => {}
                },
                room = self.sink.room(), if !self.pending.is_empty() => {
                    if !room {
                        return self.sink_ended().await;
                    }
                    if let Some(piece) = self.pending.pop_front() {
                        self.pending.extend(self.sink.offer(piece));
                    }
                }
                written = writer.write(self.outbox.unsent()), if !self.outbox.is_empty() => match written {
                    Ok(0) | Err(_) => return Ok(End::Lost),
                    Ok(n) => self.outbox.sent(n),
                },
                chunk = self.stdin.next(), if reads_stdin => {
                    if self.typed(chunk) {
                        return Ok(End::Detached);
                    }
                }
                _ = signals.winch.recv(), if tty => {
                    if let Some(size) = terminal::size() {
                        self.outbox.resize(size);
                    }
                }
                number = signals.ends.next() => {
                    if let Some(end) = self.forward(number).await {
                        return Ok(end);
                    }
                }
            }
        }
    }

    /// Takes input for the command. Returns whether the caller detaches.
    fn typed(&mut self, chunk: Option<Vec<u8>>) -> bool {
        let (Some(keys), Some(typed)) = (&mut self.detach_keys, &chunk) else {
            self.outbox.push(chunk);
            return false;
        };
        let (input, detach) = keys.pass(typed.clone());
        if !input.is_empty() {
            self.outbox.push(Some(input));
        }
        detach
    }

    fn take(&mut self, frame: Frame) -> Result<Option<End>, Failure> {
        match frame {
            Frame::Stdout(bytes) => self.output(false, bytes),
            Frame::Stderr(bytes) => self.output(true, bytes),
            Frame::Gap(gap) => self.gap(gap),
            Frame::Exit(exit, check) => {
                self.say_check(check);
                return Ok(Some(End::Exit(exit)));
            }
            Frame::Error(error) if passing(&error) => return Ok(Some(End::Lost)),
            Frame::Error(error) => return Err(error.into()),
            Frame::Taken(offset) => self.outbox.taken(offset),
            Frame::Time(_) => {}
            Frame::Stdin(_)
            | Frame::StdinEof
            | Frame::Resize(_)
            | Frame::Signal(_)
            | Frame::Input(..)
            | Frame::InputEnd(_) => {
                return Err(broken("it sent a frame that only clients send").into());
            }
        }
        Ok(None)
    }

    fn output(&mut self, stderr: bool, bytes: Vec<u8>) {
        debug_assert!(bytes.len() <= MAX_PAYLOAD);
        self.offset = self.offset.saturating_add(bytes.len() as u64);
        let bytes = self.streams.pass(stderr, bytes.into()).into_owned();
        self.piece(Piece { stderr, bytes });
    }

    fn piece(&mut self, piece: Piece) {
        // Keep the order: a piece never overtakes pending ones.
        if !self.pending.is_empty() {
            self.pending.push_back(piece);
        } else if let Some(refused) = self.sink.offer(piece) {
            self.pending.push_back(refused);
        }
    }

    /// Waits until all received output is written.
    async fn drain(&mut self) -> Result<(), Failure> {
        for (stderr, bytes) in self.streams.finish() {
            if !bytes.is_empty() {
                self.piece(Piece { stderr, bytes });
            }
        }
        while let Some(piece) = self.pending.pop_front() {
            if !self.sink.room().await {
                break;
            }
            // There is room, so a rejected piece only means that the writer gave up, which is reported below.
            let _ = self.sink.offer(piece);
        }
        crate::output::written(self.sink.finish().await)
    }

    async fn sink_ended(&mut self) -> Result<End, Failure> {
        match crate::output::written(self.sink.finish().await) {
            Err(Failure::BrokenPipe) => Ok(End::ReaderGone),
            Err(failure) => Err(failure),
            Ok(()) => Err(broken("the output was closed").into()),
        }
    }

    /// Forwards a signal: the first Ctrl-C to the command; the second kills everything that it started; the third ends
    /// this program. After a hangup nobody can read the output any more: it ends this program at once, and is passed on
    /// to a command that this program started.
    async fn forward(&mut self, number: i32) -> Option<End> {
        if number == SignalKind::hangup().as_raw_value() && self.joined {
            return Some(End::Interrupted(number));
        }
        if number == SignalKind::hangup().as_raw_value() {
            let _ = self.signal_request(number, false).await;
            return Some(End::Interrupted(number));
        }
        self.interrupts += 1;
        let (forwarded, tree) = match self.interrupts {
            1 => (number, false),
            2 => (SIGKILL, true),
            _ => {
                let (bay, exec) = (&self.bay, &self.spec.id);
                self.note(&format!(
                    "not waiting for the command any longer; it was sent KILL: `bay execs ls {bay}` shows \
                     whether {exec} has ended"
                ));
                return Some(End::Interrupted(number));
            }
        };
        let mut client = self.client.another_without_starting();
        let path = self.signal_path();
        tokio::spawn(async move {
            let request = SignalRequest { signal: forwarded, tree };
            let _: Result<serde_json::Value, _> = client.post(&path, &request).await;
        });
        None
    }

    async fn signal_request(&mut self, number: i32, tree: bool) -> Result<(), ApiError> {
        let mut client = self.client.another_without_starting();
        let request = SignalRequest { signal: number, tree };
        let _: serde_json::Value = client.post(&self.signal_path(), &request).await?;
        Ok(())
    }

    fn signal_path(&self) -> String {
        bay_path(&self.bay, &format!("/execs/{}/signal", segment(&self.spec.id.to_string())))
    }

    /// Connects to the daemon again. Until the exec is known to have started, the start is repeated. The client chose
    /// its id, so nothing starts twice.
    async fn attach_again(&mut self, started: bool) -> Result<Attached, ApiError> {
        let input = Some(self.outbox.id());
        let began = Instant::now();
        loop {
            let mut client = if began.elapsed() < START_AFTER {
                self.client.another_without_starting()
            } else {
                self.client.another()
            };
            let attached = if started {
                let path =
                    format!("/execs/{}/attach?since={}", segment(&self.spec.id.to_string()), self.offset);
                client.attach::<()>(&bay_path(&self.bay, &path), None, input).await
            } else {
                client.attach(&bay_path(&self.bay, "/execs/attach"), Some(&self.spec), input).await
            };
            match attached {
                Ok(stream) => return Ok(stream),
                Err(error) if passing(&error) && began.elapsed() < REATTACH_FOR => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// The rest of the output from the bay's record, if the bay has stopped. It is followed, because a bay is reported
    /// as stopped a moment before the ends of its commands are recorded.
    async fn rest_from_record(&mut self, why: &ApiError) -> Option<End> {
        if !matches!(why.code, ErrorCode::BayState | ErrorCode::GuestUnreachable | ErrorCode::BayFailed) {
            return None;
        }
        let path =
            format!("/execs/{}/output?since={}&follow=true", segment(&self.spec.id.to_string()), self.offset);
        let mut body = self.client.another().download(&bay_path(&self.bay, &path)).await.ok()?;
        let mut frames = FrameReader::new((), &[]);
        while let Some(frame) = body.frame().await {
            frames.feed(frame.ok()?.data_ref()?);
            while let Some(frame) = frames.next().ok()? {
                if let Some(end) = self.take(frame).ok()? {
                    return Some(end);
                }
            }
        }
        None
    }
}

/// The exit as a shell reports it for a program ended by a signal.
fn ended_by(number: i32) -> Exit {
    Exit { reason: EndReason::Signaled, code: None, signal: Some(number) }
}

/// The exit code of a program that ends for a signal.
pub(crate) fn code_of_signal(number: i32) -> u8 {
    ended_by(number).shell_code()
}

/// Whether an error means that a daemon or guest is only temporarily unreachable.
fn passing(error: &ApiError) -> bool {
    matches!(error.code, ErrorCode::DaemonUnreachable | ErrorCode::GuestUnreachable | ErrorCode::Interrupted)
}

/// The size for a new terminal.
pub(crate) fn tty_size() -> TtySize {
    terminal::size().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bay_client::Endpoint;

    pub(super) fn spec() -> ExecSpec {
        ExecSpec::new(["true"])
    }

    pub(super) fn client_of_nobody(dir: &std::path::Path) -> Client {
        Client::new(Endpoint::at(dir.join("bay.sock")))
    }

    #[tokio::test]
    async fn ctrl_c_ends_the_search_for_an_unreachable_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let mut client = client_of_nobody(dir.path());
        let mut session = Session::new(&mut client, "web", spec());
        let interrupt = async {
            tokio::time::sleep(POLL * 3).await;
            SignalKind::interrupt().as_raw_value()
        };
        match session.search(interrupt).await {
            Ok(Found::Exit(exit)) => assert_eq!(exit.shell_code(), 130),
            _ => panic!("it went on"),
        }
    }

    #[tokio::test]
    async fn the_third_interrupt_ends_us() {
        let dir = tempfile::tempdir().unwrap();
        let mut client = client_of_nobody(dir.path());
        let mut session = Session::new(&mut client, "web", spec());
        let number = SignalKind::interrupt().as_raw_value();
        assert!(session.forward(number).await.is_none());
        assert!(session.forward(number).await.is_none());
        assert!(matches!(session.forward(number).await, Some(End::Interrupted(2))));
    }
}
