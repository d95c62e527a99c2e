//! The task of one exec, from its clone until its last byte of output.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bay_sys::spawn::{Failure, Reaped};
use bay_types::exec::Usage;
use bay_types::guest::GuestEvent;
use bay_types::output::OutputHash;
use bay_types::{ApiError, ErrorCode};
use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::exec::{Exec, Start};
use super::usage::{self, PeakProcesses};
use super::{Execs, KILL_GRACE, start};
use crate::spool::{self, Writer};

/// The highest value that the kernel accepts.
const MOST_OOM_SCORE_ADJ: &[u8] = b"1000";
/// Most bytes per read.
const CHUNK: usize = 256 << 10;
/// From this size on, another thread writes a chunk: the write may wait for the disk, and this thread serves readers
/// meanwhile. For smaller chunks the change of threads costs more than it saves.
const BULK: usize = 32 << 10;
/// Most bytes that are still read from a terminal when its leader has ended. A terminal holds fewer: further bytes come
/// from other processes.
const TERMINAL_DRAIN: u64 = 256 << 10;

/// The guest's end of one output of a command.
#[derive(Debug)]
pub(super) struct Source {
    /// None once it is closed.
    fd: Option<Receiver>,
    stderr: bool,
    terminal: bool,
}

impl Source {
    pub(super) fn pipe(fd: OwnedFd, stderr: bool) -> io::Result<Self> {
        Ok(Self { fd: Some(Receiver::from_owned_fd(fd)?), stderr, terminal: false })
    }

    /// `fd` must not block. A terminal can be read like a pipe here.
    pub(super) fn terminal(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd: Some(Receiver::from_owned_fd_unchecked(fd)?), stderr: false, terminal: true })
    }

    fn is_open(&self) -> bool {
        self.fd.is_some()
    }

    /// The next bytes; empty at the end. If the future is dropped before it is ready, no bytes are lost.
    async fn next(&self) -> Vec<u8> {
        let Some(fd) = &self.fd else {
            return std::future::pending().await;
        };
        loop {
            if fd.readable().await.is_err() {
                return Vec::new();
            }
            match fd.try_io(|| read_some(fd.as_fd(), CHUNK)) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // If no process has the terminal open, the read fails with EIO.
                outcome => return outcome.unwrap_or_default(),
            }
        }
    }

    /// Reads what is there now, and stops even if other processes keep writing.
    fn drain(&mut self, mut keep: impl FnMut(bool, &[u8])) {
        let Some(fd) = &self.fd else { return };
        let mut left =
            if self.terminal { TERMINAL_DRAIN } else { rustix::io::ioctl_fionread(fd).unwrap_or(0) };
        while left > 0 {
            let most = CHUNK.min(usize::try_from(left).unwrap_or(CHUNK));
            match read_some(fd.as_fd(), most) {
                Ok(bytes) if bytes.is_empty() => break,
                Ok(bytes) => {
                    keep(self.stderr, &bytes);
                    left = left.saturating_sub(bytes.len() as u64);
                }
                Err(_) => break,
            }
        }
    }
}

fn read_some(fd: BorrowedFd<'_>, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(most);
    loop {
        match rustix::io::read(fd, spare_capacity(&mut bytes)) {
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
            Ok(_) => return Ok(bytes),
        }
    }
}

/// What [`run`] gets from the clone.
pub(super) struct Attachment {
    pub(super) report: OwnedFd,
    pub(super) ended: oneshot::Receiver<Reaped>,
    pub(super) sources: Vec<Source>,
    pub(super) directory: String,
}

/// Runs until no process can write output of the exec any more.
pub(super) async fn run(execs: Arc<Execs>, exec: Arc<Exec>, attachment: Attachment) {
    let Attachment { report, mut ended, sources, directory } = attachment;
    if let Some(failure) = read_report(report).await {
        let error = start::explain(failure, &exec.spec, &directory);
        execs.start_failed(&exec);
        exec.life.send_modify(|life| life.start = Start::Failed(Arc::new(error)));
        return;
    }
    prefer_as_oom_victim(&exec);
    let mut writer = open_spool(&execs, &exec);
    exec.life.send_modify(|life| life.start = Start::Running);

    let mut sources = sources.into_iter();
    let none = || Source { fd: None, stderr: false, terminal: false };
    let mut out = sources.next().unwrap_or_else(none);
    let mut err = sources.next().unwrap_or_else(none);
    let (mut running, mut saved) = (true, false);
    let deadline = exec.spec.timeout_s.map(|s| Instant::now() + Duration::from_secs(s));
    let mut armed = deadline.is_some();
    let mut peak = PeakProcesses::new();
    // When to stop waiting for a leader that was killed and has not ended.
    let mut give_up_at = None;
    while running || out.is_open() || err.is_open() {
        tokio::select! {
            reaped = &mut ended, if running => {
                running = false;
                for source in [&mut out, &mut err] {
                    source.drain(|stderr, bytes| {
                        let kept = writer.append(stderr, bytes);
                        hold_unsaved(&execs, &exec, &writer, stderr, &bytes[kept..]);
                    });
                }
                saved = record_end(&execs, &exec, &mut writer, &End::Reaped(reaped.ok()), &peak);
            }
            () = exec.kill_sent.notified(), if running && give_up_at.is_none() => {
                give_up_at = Some(Instant::now() + KILL_GRACE);
            }
            () = tokio::time::sleep_until(give_up_at.unwrap_or_else(Instant::now)), if running && give_up_at.is_some() => {
                running = false;
                execs.context.log.line("exec.hangs", format_args!("exec={} pid={}", exec.id(), exec.leader.pid));
                saved = record_end(&execs, &exec, &mut writer, &End::Hangs, &peak);
            }
            () = tokio::time::sleep_until(peak.next), if running && exec.leaf.is_some() => {
                peak.count(exec.leaf.as_deref());
            }
            () = tokio::time::sleep_until(deadline.unwrap_or_else(Instant::now)), if armed && running => {
                armed = false;
                exec.time_out();
            }
            bytes = out.next(), if out.is_open() => {
                writer = keep(&execs, &exec, writer, &mut out, bytes).await;
            }
            bytes = err.next(), if err.is_open() => {
                writer = keep(&execs, &exec, writer, &mut err, bytes).await;
            }
        }
    }
    execs.output_closed(&exec, saved);
}

/// If the bay runs out of memory, the kernel should kill a command and not PID 1. The child often cannot set this
/// itself: until it becomes its program, it is a copy of PID 1, whose files in /proc belong to nobody. Processes that
/// it starts inherit the value. If the kernel refuses, the guest goes on without it.
fn prefer_as_oom_victim(exec: &Exec) {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    let path = format!("/proc/{}/oom_score_adj", exec.leader.pid);
    if exec.leader.is_alive()
        && let Ok(file) = rustix::fs::open(path, flags, Mode::empty())
    {
        let _ = rustix::io::write(file, MOST_OOM_SCORE_ADJ);
    }
}

pub(super) async fn read_report(report: OwnedFd) -> Option<Failure> {
    let report = Receiver::from_owned_fd(report).ok()?;
    loop {
        report.readable().await.ok()?;
        match report.try_io(|| read_some(report.as_fd(), Failure::LEN)) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            outcome => return Failure::decode(&outcome.ok()?),
        }
    }
}

/// Reads a command's output until its leader ends, and keeps its first `most` bytes.
pub(super) async fn read_until(
    ended: &mut oneshot::Receiver<Reaped>,
    mut sources: Vec<Source>,
    output: &mut Vec<u8>,
    most: usize,
) -> Result<Reaped, oneshot::error::RecvError> {
    let take = |output: &mut Vec<u8>, bytes: &[u8]| {
        let room = most.saturating_sub(output.len()).min(bytes.len());
        output.extend_from_slice(&bytes[..room]);
    };
    let (mut err, mut out) = (sources.pop(), sources.pop());
    let next = async |source: &Option<Source>| match source {
        Some(source) => source.next().await,
        None => std::future::pending().await,
    };
    loop {
        tokio::select! {
            reaped = &mut *ended => {
                for source in [&mut out, &mut err].into_iter().flatten() {
                    source.drain(|_, bytes| take(output, bytes));
                }
                return reaped;
            }
            bytes = next(&out) => {
                if bytes.is_empty() { out = None } else { take(output, &bytes) }
            }
            bytes = next(&err) => {
                if bytes.is_empty() { err = None } else { take(output, &bytes) }
            }
        }
    }
}

fn open_spool(execs: &Execs, exec: &Exec) -> Writer {
    let context = &execs.context;
    let dir = spool::create_exec(context.state.as_fd(), exec.id());
    if let Err(error) = &dir {
        context.log.line("spool.refused", format_args!("exec={} error={error}", exec.id()));
    }
    let mut writer = Writer::new(dir.ok(), context.bounds.output, Arc::clone(&exec.bounded_to));
    if let Err(error) = writer.write_status(&exec.status()) {
        context.log.line("record.refused", format_args!("exec={} error={error}", exec.id()));
    }
    writer
}

async fn keep(
    execs: &Execs,
    exec: &Arc<Exec>,
    mut writer: Writer,
    source: &mut Source,
    bytes: Vec<u8>,
) -> Writer {
    if bytes.is_empty() {
        source.fd = None;
        return writer;
    }
    if exec.forgotten.load(Ordering::Relaxed) {
        return writer;
    }
    exec.touch_terminal();
    let stderr = source.stderr;
    let (bytes, kept) = if bytes.len() < BULK {
        let kept = writer.append(stderr, &bytes);
        (bytes, kept)
    } else {
        let there = tokio::task::spawn_blocking(move || {
            let kept = writer.append(stderr, &bytes);
            (writer, bytes, kept)
        });
        match there.await {
            Ok((back, bytes, kept)) => {
                writer = back;
                (bytes, kept)
            }
            // The writer panicked, which is a defect. The command goes on, but its output is no longer kept.
            Err(_) => {
                exec.forgotten.store(true, Ordering::Relaxed);
                return Writer::new(None, spool::Bounds::default(), Arc::clone(&exec.bounded_to));
            }
        }
    };
    hold_unsaved(execs, exec, &writer, stderr, &bytes[kept..]);
    publish(exec, &writer);
    if kept < bytes.len() && exec.life.receiver_count() > 0 {
        execs.unsaved_output.let_readers_catch_up(exec.id()).await;
    }
    writer
}

/// Holds the bytes that the disk refused in memory, for present followers.
fn hold_unsaved(execs: &Execs, exec: &Exec, writer: &Writer, stderr: bool, refused: &[u8]) {
    if !refused.is_empty() {
        execs.unsaved_output.push(exec.id(), writer.end() - refused.len() as u64, stderr, refused);
    }
}

fn publish(exec: &Exec, writer: &Writer) {
    exec.life.send_modify(|life| {
        life.output_start = writer.start();
        life.output_end = writer.end();
        life.refused_bytes = writer.refused_bytes();
    });
}

/// How the leader of an exec came to its end.
enum End {
    /// None if a defect keeps the reaper from reporting; then nothing is known about what the exec used.
    Reaped(Option<Reaped>),
    /// The leader was killed, but has not ended.
    Hangs,
}

/// Records the end on disk, then publishes it. Returns false if it could not be written.
fn record_end(execs: &Execs, exec: &Exec, writer: &mut Writer, end: &End, peak: &PeakProcesses) -> bool {
    let mut usage = match end {
        End::Reaped(Some(reaped)) => usage::of_ended(reaped, exec.leaf.as_deref(), peak.seen()),
        End::Reaped(None) => Usage::default(),
        End::Hangs => usage::of_running(exec.leaf.as_deref()),
    };
    // Only after the usage was read: removing the leaf deletes its counters.
    usage.processes_left = execs.release_leaf(exec);
    let ended = match end {
        End::Reaped(reaped) => {
            let unknown = Reaped { pid: exec.leader.pid, ..Reaped::default() };
            exec.end_of(reaped.as_ref().unwrap_or(&unknown), usage, execs.is_stopping())
        }
        End::Hangs => exec.give_up(usage, execs.is_stopping()),
    };
    let mut status = exec.status();
    status.ended_at = Some(ended.at);
    status.exit = Some(ended.exit);
    status.usage = ended.usage;
    status.output_bytes = writer.end();
    status.output_start = writer.start();
    status.bounded_to = Some(exec.bounded_to.load(Ordering::Relaxed));
    status.refused_bytes = writer.refused_bytes();
    status.witnessed = true;
    let saved = writer.write_status(&status);
    if let Err(error) = &saved {
        execs.context.log.line("record.refused", format_args!("exec={} error={error}", exec.id()));
    }
    // After the record is written: writing it may have dropped old output.
    let hashes: Arc<[OutputHash]> = writer.hashes().into();
    status.output_start = writer.start();
    status.output_hashes = Some(hashes.to_vec());
    exec.life.send_modify(|life| {
        life.output_start = writer.start();
        life.output_end = writer.end();
        life.refused_bytes = writer.refused_bytes();
        life.hashes = Some(hashes);
        life.ended = Some(ended);
    });
    execs.ended();
    // An error means that nobody listens.
    let _ = execs.events.send(GuestEvent::ExecEnded {
        id: exec.id(),
        exit: ended.exit,
        end: status.end().map(Box::new),
    });
    saved.is_ok()
}

/// Waits until it is known whether the program runs.
pub(super) async fn started(exec: &Exec) -> Result<(), ApiError> {
    let mut life = exec.life.subscribe();
    let outcome = life.wait_for(|life| !matches!(life.start, Start::Pending)).await;
    match outcome.map(|life| life.start.clone()) {
        Ok(Start::Failed(error)) => Err((*error).clone()),
        Ok(_) => Ok(()),
        Err(_) => Err(ApiError::new(
            ErrorCode::Interrupted,
            "the start of the command was interrupted",
            "try again",
        )),
    }
}
