//! One exec, from its clone until no process can write its output any more.

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

use super::input_queue::InputQueue;
use super::process_tree::{self, CgroupLeaf};
use super::reaper::Leader;

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
/// Control-D and Control-U, for a terminal whose settings cannot be read.
const DEFAULT_EOF: u8 = 4;
const DEFAULT_KILL: u8 = 21;
/// How often the guest repeats the end-of-file character to a terminal whose input ended. The character ends one read
/// only, and it is lost if the program is just about to change the terminal's mode.
const EOF_AGAIN: Duration = Duration::from_millis(250);

/// An exec that was cloned and is not finished.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) spec: ExecSpec,
    pub(crate) started_at: Timestamp,
    pub(crate) terminals: Arc<TerminalClock>,
    pub(crate) leader: Leader,
    pub(crate) leaf: Option<Arc<CgroupLeaf>>,
    pub(crate) input: Input,
    pub(crate) input_queue: InputQueue,
    pub(crate) life: watch::Sender<Life>,
    /// Offset below which output was dropped because of the bound on kept output.
    pub(crate) bounded_to: Arc<AtomicU64>,
    /// A caller sent KILL or TERM.
    pub(crate) killed: AtomicBool,
    pub(crate) timed_out: AtomicBool,
    /// Notified when the exec is sent KILL. Only a process that hangs in the kernel survives it.
    pub(crate) kill_sent: Notify,
    /// The exec was deleted; nobody reads its output any more.
    pub(crate) forgotten: AtomicBool,
}

/// When a byte last went through any terminal, in either direction.
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

/// What changes while an exec lives, for its followers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Life {
    pub(crate) start: Start,
    /// Offset of the first byte of output that is still kept.
    pub(crate) output_start: u64,
    /// Every byte before this offset is on disk or will never be.
    pub(crate) output_end: u64,
    /// Bytes before `output_end` that the disk had no room for.
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
    /// None once a client has ended the input.
    Pipe(Mutex<Option<Sender>>),
    Terminal {
        master: Sender,
        /// The lock keeps frames of two clients from mixing.
        typed: Mutex<Typed>,
    },
}

/// The state of what clients typed into a terminal.
#[derive(Debug, Default)]
pub(crate) struct Typed {
    /// The last line has no line end. An end-of-file character would then only pass the line on.
    in_line: bool,
    /// A client has ended the input.
    ended: bool,
}

impl Input {
    /// Writes bytes to the command, and waits while the command does not read. If the command has closed its input, the
    /// bytes are dropped.
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
                // An error means that no process has the terminal open. The exec's task sees its end.
                let _ = write_all(master, bytes).await;
            }
        }
    }

    /// Ends the input. In a terminal the end is a character that ends a single read. So while the program reads lines,
    /// this repeats the character, until a client types again; a program that reads keys gets it once.
    pub(crate) async fn close(&self) {
        match self {
            Input::None => {}
            Input::Pipe(slot) => *slot.lock().await = None,
            Input::Terminal { master, typed } => {
                if std::mem::replace(&mut typed.lock().await.ended, true) {
                    return;
                }
                let mut sent_in_key_mode = false;
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
                        (false, _) if sent_in_key_mode => &[],
                        // An end-of-file character that was sent in the mode before is now part of the line, so it is
                        // erased first.
                        (false, _) => &[kill, eof],
                    };
                    let _ = write_all(master, keys).await;
                    sent_in_key_mode = !lines;
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

    /// Records that data went through the terminal of this exec, if it has one.
    pub(crate) fn touch_terminal(&self) {
        if self.spec.tty.is_some() {
            self.terminals.last.store(Timestamp::now().as_millisecond(), Ordering::Relaxed);
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.life.borrow().ended.is_some()
    }

    /// How an exec ended whose leader did not end after KILL.
    pub(crate) fn give_up(&self, usage: Usage, stopping: bool) -> Ended {
        let reason = match (stopping, self.timed_out.load(Ordering::Relaxed)) {
            (true, _) => EndReason::Stopped,
            (false, true) => EndReason::TimedOut,
            (false, false) => EndReason::Killed,
        };
        Ended { at: Timestamp::now(), exit: Exit { reason, code: None, signal: None }, usage }
    }

    /// How an exec ended, from what the kernel reported about its leader.
    pub(crate) fn end_of(&self, reaped: &Reaped, usage: Usage, stopping: bool) -> Ended {
        let reason = match reaped.signal {
            _ if stopping => EndReason::Stopped,
            _ if self.timed_out.load(Ordering::Relaxed) => EndReason::TimedOut,
            Some(SIGKILL | SIGTERM) if self.killed.load(Ordering::Relaxed) => EndReason::Killed,
            Some(_) => EndReason::Signaled,
            None => EndReason::Exited,
        };
        Ended { at: Timestamp::now(), exit: Exit { reason, code: reaped.code, signal: reaped.signal }, usage }
    }

    /// Signals the foreground process group of its terminal. Without a terminal, signals the leader's process group.
    pub(crate) fn signal_foreground(&self, signal: i32) {
        if !self.leader.is_alive() {
            return;
        }
        let foreground = match &self.input {
            Input::Terminal { master, .. } => {
                rustix::termios::tcgetpgrp(master).ok().map(rustix::process::Pid::as_raw_pid)
            }
            _ => None,
        };
        // If the leader made no group of its own or left it, only the leader is signalled.
        let _ = signal_group(foreground.unwrap_or(self.leader.pid), signal)
            .or_else(|_| signal_process(self.leader.pid, signal));
    }

    pub(crate) fn signal_tree(&self, signal: i32) {
        let leader = self.leader.is_alive().then_some(self.leader.pid);
        signal_tree(self.leaf.as_deref(), leader, self.id(), signal);
    }

    /// The number of its processes that live. The leader may have ended.
    pub(crate) fn tree_size(&self) -> usize {
        let leader = self.leader.is_alive().then_some(self.leader.pid);
        self.leaf
            .as_ref()
            .map_or_else(|| process_tree::pids_from_proc(leader, self.id()), |leaf| leaf.pids())
            .len()
    }

    /// Sends a caller's signal, and records that a caller sent it.
    pub(crate) fn signal_by_caller(&self, signal: i32, tree: bool) {
        if matches!(signal, SIGKILL | SIGTERM) {
            self.killed.store(true, Ordering::Relaxed);
        }
        if tree {
            self.signal_tree(signal);
        } else {
            self.signal_foreground(signal);
        }
        if signal == SIGKILL {
            self.kill_sent.notify_one();
        }
    }

    pub(crate) fn time_out(&self) {
        self.timed_out.store(true, Ordering::Relaxed);
        self.signal_tree(SIGKILL);
        self.kill_sent.notify_one();
    }

    pub(crate) fn resize(&self, size: TtySize) {
        if let Input::Terminal { master, .. } = &self.input {
            // A terminal that no process has open has no size to change.
            let _ = rustix::termios::tcsetwinsize(master, winsize(size));
        }
    }
}

/// Signals every process of an exec. The leader may have ended.
pub(crate) fn signal_tree(leaf: Option<&CgroupLeaf>, leader: Option<i32>, id: ExecId, signal: i32) {
    match (leaf, signal) {
        (Some(leaf), SIGKILL) if leaf.kill().is_ok() => {}
        (None, SIGKILL) => process_tree::kill_from_proc(leader, id),
        (leaf, signal) => {
            let pids = leaf.map_or_else(|| process_tree::pids_from_proc(leader, id), CgroupLeaf::pids);
            for pid in process_tree::leader_first(pids, leader) {
                let _ = signal_process(pid, signal);
            }
        }
    }
}

pub(crate) fn winsize(size: TtySize) -> Winsize {
    Winsize { ws_col: size.cols, ws_row: size.rows, ws_xpixel: 0, ws_ypixel: 0 }
}
