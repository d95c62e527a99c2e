use super::Field;
use super::area::area;
use crate::blame::Blame;
use crate::checkpoint::Point;
use crate::exec::{Exit, LimitHit, Reporter};
use crate::id::{ApprovalId, ExecId};
use crate::output::OutputHash;
use crate::usage::Usage;

area! {
    /// Commands of a bay.
    Exec: ExecEvent;

    /// A command is about to be started.
    Start(ExecStart) = "exec.start" {
        /// The exec.
        exec: Field<ExecId>,
        /// Its number in the bay.
        #[serde(skip_serializing_if = "Option::is_none")]
        number: Option<u64>,
        /// The command, or as much of its beginning as the record keeps.
        argv: Vec<String>,
        /// How many arguments are left out of `argv`.
        arguments_left_out: usize,
        /// The user it runs as; root if nobody was named.
        user: Option<String>,
        /// Whether it has a terminal.
        tty: bool,
        /// The agent's tool call that it belongs to.
        tool_call: Option<String>,
        /// Who asked.
        by: String,
    }

    /// A command of the bay that a rule asks about is let run, by an answer that a person gave.
    Approved(ExecApproved) = "exec.approved" {
        /// The approval.
        approval: Field<ApprovalId>,
        /// The exec.
        exec: Field<ExecId>,
        /// The command, or as much of its beginning as the record keeps.
        argv: Vec<String>,
        /// How many arguments are left out of `argv`.
        arguments_left_out: usize,
        /// Who asked for the command.
        by: String,
    }

    /// A command is over.
    End(ExecEnd) = "exec.end" {
        /// The exec.
        exec: Field<ExecId>,
        /// Its number in the bay.
        #[serde(skip_serializing_if = "Option::is_none")]
        number: Option<u64>,
        /// Whether it had a terminal.
        #[serde(skip_serializing_if = "Option::is_none")]
        tty: Option<bool>,
        /// How it ended.
        exit: Field<Exit>,
        /// Who reported the end. What a guest reports is the bay's own account.
        #[serde(skip_serializing_if = "Option::is_none")]
        reported_by: Option<Reporter>,
        /// How long it ran.
        #[serde(skip_serializing_if = "Option::is_none")]
        duration_s: Option<f64>,
        /// What it used, as the guest measured it.
        usage: Option<Usage>,
        /// How many bytes it wrote to its output.
        output_bytes: Option<u64>,
        /// Hashes of its output, as the guest reported them.
        output_hashes: Option<Vec<OutputHash>>,
        /// The limits of the bay that were reached while it ran.
        limits_hit: Vec<LimitHit>,
        /// What may have made it fail, as the daemon saw it. Absent if it succeeded, or nothing was found.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        blame: Vec<Blame>,
    }

    /// Files of the workspace changed while a command ran.
    Files(ExecFiles) = "exec.files" {
        /// The exec.
        exec: Field<ExecId>,
        /// Its number in the bay.
        number: u64,
        /// How many files are new or were replaced.
        created: u64,
        /// How many files that existed before changed.
        changed: u64,
        /// How many directories are new, or have other entries.
        directories: u64,
        /// How many files and directories of git's own (below a `.git`) changed. No other count includes them. Absent in
        /// events of earlier releases, whose counts include them.
        #[serde(skip_serializing_if = "Option::is_none")]
        git: Option<u64>,
        /// How many files and directories that the repository ignores changed. No other count includes them. Absent if
        /// none did, and in events of earlier releases, whose counts include them.
        #[serde(skip_serializing_if = "Option::is_none")]
        ignored: Option<u64>,
        /// Whether there may be more.
        at_least: bool,
        /// Paths of some of them, from the top of the workspace.
        names: Vec<String>,
    }

    /// A signal is about to be sent to a command.
    Signal(ExecSignal) = "exec.signal" {
        /// The exec.
        exec: Field<ExecId>,
        /// Its number in the bay.
        number: u64,
        /// The signal's number.
        signal: i32,
        /// Whether every process of the exec gets it, rather than the process group of its leader.
        tree: bool,
        /// Who asked.
        by: String,
    }

    /// Commands that were captured run again.
    Revived(ExecRevived) = "exec.revived" {
        /// The execs.
        execs: Vec<Field<ExecId>>,
        /// The checkpoint that they were captured in.
        from: Field<Point>,
    }
}

impl ExecEvent {
    /// The exec that it is about, if it is about one.
    #[must_use]
    pub fn exec(&self) -> Option<ExecId> {
        let exec = match self {
            Self::Start(start) => &start.exec,
            Self::Approved(approved) => &approved.exec,
            Self::End(end) => &end.exec,
            Self::Files(files) => &files.exec,
            Self::Signal(signal) => &signal.exec,
            Self::Revived(_) => return None,
        };
        exec.get().copied()
    }
}
