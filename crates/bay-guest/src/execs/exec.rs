//! One exec while anything of it lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bay_sys::spawn::{Reaped, signal_group, signal_process};
use bay_types::exec::{EndReason, ExecSpec, ExecStatus, Exit, TtySize, Usage};
use bay_types::output::OutputHash;
use bay_types::{ApiError, ExecId};
use jiff::Timestamp;
use rustix::termios::{LocalModes, SpecialCodeIndex, Winsize};
use tokio::net::unix::pipe::Sender;
use tokio::sync::{Mutex, Notify, watch};

use super::inbox::Inbox;
use super::leaf::{self, Leaf};
use super::reaper::Leader;

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
/// Control-D and Control-U, where a terminal does not tell.
const DEFAULT_EOF: u8 = 4;
const DEFAULT_KILL: u8 = 21;
/// How often a terminal whose input ended says so again. Its end-of-file character ends one read only, and is lost on a
/// program that was just about to change the terminal's mode.
const EOF_AGAIN: Duration = Duration::from_millis(250);

/// An exec that was cloned and is not finished.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) spec: ExecSpec,
    pub(crate) started_at: Timestamp,
    pub(crate) terminals: Arc<TerminalClock>,
    pub(crate) leader: Leader,
    pub(crate) leaf: Option<Arc<Leaf>>,
    pub(crate) input: Input,
    pub(crate) inbox: Inbox,
    pub(crate) life: watch::Sender<Life>,
    /// Output before this byte, the bound on kept output dropped.
    pub(crate) bounded_to: Arc<AtomicU64>,
    /// A caller asked for its end by KILL or TERM.
    pub(crate) killed: AtomicBool,
    pub(crate) timed_out: AtomicBool,
    /// Told when it was sent the signal that nothing survives, unless it hangs in the kernel.
    pub(crate) doomed: Notify,
    /// Nobody wants its output any more.
    pub(crate) forgotten: AtomicBool,
}

/// When a byte last went over any terminal, in either direction.
#[derive(Debug, Default)]
pub(crate) struct TerminalClock {
    /// Milliseconds since the epoch; zero for never.
    last: AtomicI64,
}

impl TerminalClock {
    pub(crate) fn last(&self) -> Option<Timestamp> {
        let last = self.last.load(Ordering::Relaxed);
        (last != 0).then(|| Timestamp::from_millisecond(last).ok()).flatten()
    }
}

/// What changes in the life of an exec, for everyone who follows it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Life {
    pub(crate) start: Start,
    /// First byte of output still kept.
    pub(crate) output_start: u64,
    /// Every byte before this one is on disk, or never will be.
    pub(crate) output_end: u64,
    /// How many of them the disk had no room for.
    pub(crate) refused_bytes: u64,
    pub(crate) ended: Option<Ended>,
    /// Hashes of the output that was kept at the end.
    pub(crate) hashes: Option<Arc<[OutputHash]>>,
}

#[derive(Debug, Clone, Default)]
pub(crate) enum Start {
    #[default]
    Pending,
    Running,
    Failed(Arc<ApiError>),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) at: Timestamp,
    pub(crate) exit: Exit,
    pub(crate) usage: Usage,
}

/// Where input goes.
#[derive(Debug)]
pub(crate) enum Input {
    /// Standard input is empty.
    None,
    /// Closed once somebody said that there is no more.
    Pipe(Mutex<Option<Sender>>),
    Terminal {
        master: Sender,
        /// Keeps the input of two clients from mixing within a frame.
        typed: Mutex<Typed>,
    },
}

/// What was typed into a terminal.
#[derive(Debug, Default)]
pub(crate) struct Typed {
    /// The last line was not ended: an end-of-file character would only hand it over.
    in_line: bool,
    /// Somebody said that there is no more.
    ended: bool,
}

impl Input {
    /// Hands bytes to the command, waiting while it does not read. Bytes for a command that closed its input vanish,
    /// as they would in a pipe.
    pub(crate) async fn write(&self, bytes: &[u8]) {
        match self {
            Input::None => {}
            Input::Pipe(slot) => {
                let mut slot = slot.lock().await;
                if let Some(pipe) = slot.as_ref()
                    && write_all(pipe, bytes).await.is_err()
                {
                    *slot = None;
                }
            }
            Input::Terminal { master, typed } => {
                let mut typed = typed.lock().await;
                typed.ended = false;
                if let Some(last) = bytes.last() {
                    typed.in_line = !matches!(last, b'\n' | b'\r');
                }
                // An error means that nobody has the terminal open; its end is seen by the pump.
                let _ = write_all(master, bytes).await;
            }
        }
    }

    /// No more input comes. Of a terminal this goes on until somebody types again: there the end is a character, and
    /// as long as a program reads lines each of its reads gets one, as it would from an empty file. A program that
    /// reads keys gets one in all.
    pub(crate) async fn close(&self) {
        match self {
            Input::None => {}
            Input::Pipe(slot) => *slot.lock().await = None,
            Input::Terminal { master, typed } => {
                if std::mem::replace(&mut typed.lock().await.ended, true) {
                    return;
                }
                let mut told_keys = false;
                loop {
                    let mut typed = typed.lock().await;
                    if !typed.ended {
                        return;
                    }
                    let mode = rustix::termios::tcgetattr(master);
                    let code = |index, usual| mode.as_ref().map_or(usual, |m| m.special_codes[index]);
                    let eof = code(SpecialCodeIndex::VEOF, DEFAULT_EOF);
                    let kill = code(SpecialCodeIndex::VKILL, DEFAULT_KILL);
                    let lines = mode.as_ref().is_ok_and(|mode| mode.local_modes.contains(LocalModes::ICANON));
                    let in_line = std::mem::take(&mut typed.in_line);
                    let keys: &[u8] = match (lines, in_line) {
                        (true, true) => &[eof, eof],
                        (true, false) => &[eof],
                        (false, _) if told_keys => &[],
                        // An end that was said to the mode before is a character of the line now.
                        (false, _) => &[kill, eof],
                    };
                    let _ = write_all(master, keys).await;
                    told_keys = !lines;
                    drop(typed);
                    tokio::time::sleep(EOF_AGAIN).await;
                }
            }
        }
    }
}

async fn write_all(fd: &Sender, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        fd.writable().await?;
        match fd.try_write(bytes) {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            written => bytes = &bytes[written?..],
        }
    }
    Ok(())
}

impl Exec {
    pub(crate) fn id(&self) -> ExecId {
        self.spec.id
    }

    pub(crate) fn status(&self) -> ExecStatus {
        let life = self.life.borrow();
        ExecStatus {
            spec: self.spec.clone(),
            pid: self.leader.pid,
            started_at: self.started_at,
            ended_at: life.ended.map(|e| e.at),
            exit: life.ended.map(|e| e.exit),
            usage: life.ended.map(|e| e.usage).unwrap_or_default(),
            output_bytes: life.output_end,
            output_start: life.output_start,
            bounded_to: life.ended.map(|_| self.bounded_to.load(Ordering::Relaxed)),
            refused_bytes: life.refused_bytes,
            witnessed: life.ended.is_some(),
            output_hashes: life.hashes.as_ref().map(|hashes| hashes.to_vec()),
        }
    }

    /// Notes that something went over its terminal, if it has one.
    pub(crate) fn touch_terminal(&self) {
        if self.spec.tty.is_some() {
            self.terminals.last.store(Timestamp::now().as_millisecond(), Ordering::Relaxed);
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.life.borrow().ended.is_some()
    }

    /// What it means that KILL does not end the leader.
    pub(crate) fn give_up(&self, usage: Usage, stopping: bool) -> Ended {
        let reason = match (stopping, self.timed_out.load(Ordering::Relaxed)) {
            (true, _) => EndReason::Stopped,
            (false, true) => EndReason::TimedOut,
            (false, false) => EndReason::Killed,
        };
        Ended { at: Timestamp::now(), exit: Exit { reason, code: None, signal: None }, usage }
    }

    /// What the end of the leader means.
    pub(crate) fn judge(&self, reaped: &Reaped, usage: Usage, stopping: bool) -> Ended {
        let reason = match reaped.signal {
            _ if stopping => EndReason::Stopped,
            _ if self.timed_out.load(Ordering::Relaxed) => EndReason::TimedOut,
            Some(SIGKILL | SIGTERM) if self.killed.load(Ordering::Relaxed) => EndReason::Killed,
            Some(_) => EndReason::Signaled,
            None => EndReason::Exited,
        };
        Ended { at: Timestamp::now(), exit: Exit { reason, code: reaped.code, signal: reaped.signal }, usage }
    }

    /// Signals what is in the foreground of its terminal, or its leader's process group.
    pub(crate) fn signal_front(&self, signal: i32) {
        if !self.leader.is_alive() {
            return;
        }
        let foreground = match &self.input {
            Input::Terminal { master, .. } => {
                rustix::termios::tcgetpgrp(master).ok().map(rustix::process::Pid::as_raw_pid)
            }
            _ => None,
        };
        // A leader that made itself no group of its own, or left it, is signalled alone.
        let _ = signal_group(foreground.unwrap_or(self.leader.pid), signal)
            .or_else(|_| signal_process(self.leader.pid, signal));
    }

    pub(crate) fn signal_tree(&self, signal: i32) {
        let leader = self.leader.is_alive().then_some(self.leader.pid);
        signal_tree(self.leaf.as_deref(), leader, self.id(), signal);
    }

    /// How many processes of it live, whether or not its leader does.
    pub(crate) fn tree_size(&self) -> usize {
        let leader = self.leader.is_alive().then_some(self.leader.pid);
        self.leaf.as_ref().map_or_else(|| leaf::pids_from_proc(leader, self.id()), |leaf| leaf.pids()).len()
    }

    /// What a caller's signal does, and that it was a caller's.
    pub(crate) fn signal_by_caller(&self, signal: i32, tree: bool) {
        if matches!(signal, SIGKILL | SIGTERM) {
            self.killed.store(true, Ordering::Relaxed);
        }
        if tree {
            self.signal_tree(signal);
        } else {
            self.signal_front(signal);
        }
        if signal == SIGKILL {
            self.doomed.notify_one();
        }
    }

    pub(crate) fn time_out(&self) {
        self.timed_out.store(true, Ordering::Relaxed);
        self.signal_tree(SIGKILL);
        self.doomed.notify_one();
    }

    pub(crate) fn resize(&self, size: TtySize) {
        if let Input::Terminal { master, .. } = &self.input {
            // A terminal that nobody has open any more has no size to change.
            let _ = rustix::termios::tcsetwinsize(master, winsize(size));
        }
    }
}

/// Signals every process of an exec, whether or not its leader still lives.
pub(crate) fn signal_tree(leaf: Option<&Leaf>, leader: Option<i32>, id: ExecId, signal: i32) {
    match (leaf, signal) {
        (Some(leaf), SIGKILL) if leaf.kill().is_ok() => {}
        (None, SIGKILL) => leaf::kill_from_proc(leader, id),
        (leaf, signal) => {
            let pids = leaf.map_or_else(|| leaf::pids_from_proc(leader, id), Leaf::pids);
            for pid in leaf::leader_first(pids, leader) {
                let _ = signal_process(pid, signal);
            }
        }
    }
}

pub(crate) fn winsize(size: TtySize) -> Winsize {
    Winsize { ws_col: size.cols, ws_row: size.rows, ws_xpixel: 0, ws_ypixel: 0 }
}
