//! Commands that failed.

use std::collections::{HashMap, HashSet};

use bay_types::event::exec::ExecEnd;
use bay_types::exec::{EndReason, Exit};
use bay_types::story::{FailedCommand, Few};

use super::{KNOWN, few};

#[derive(Debug, Default)]
pub(super) struct Failures {
    /// By command line and exit.
    known: HashMap<(String, String), FailedCommand>,
    /// The command lines in `known`, to look up quickly whether one failed.
    commands: HashSet<String>,
    /// Failures that are only counted, because `known` is full.
    more: u64,
}

impl Failures {
    pub(super) fn add(&mut self, command: String, how: String, number: u64, limits: Vec<String>) {
        let key = (command, how);
        if self.known.len() >= KNOWN && !self.known.contains_key(&key) {
            self.more += 1;
            return;
        }
        let (command, how) = key.clone();
        self.commands.insert(command.clone());
        let failed = self.known.entry(key).or_insert_with(|| FailedCommand {
            command,
            how,
            times: 0,
            last_exec: 0,
            passed_later: None,
            limits: Vec::new(),
        });
        failed.times += 1;
        failed.last_exec = number;
        failed.passed_later = None;
        if !limits.is_empty() {
            failed.limits = limits;
        }
    }

    pub(super) fn passed(&mut self, command: &str, number: u64) {
        // Most commands never failed.
        if !self.commands.contains(command) {
            return;
        }
        for failed in self.known.values_mut().filter(|failed| failed.command == command) {
            failed.passed_later.get_or_insert(number);
        }
    }

    /// What still fails comes first, and of that the newest.
    pub(super) fn few(self) -> Few<FailedCommand> {
        let mut all: Vec<FailedCommand> = self.known.into_values().collect();
        all.sort_by_key(|failed| (failed.passed_later.is_some(), std::cmp::Reverse(failed.last_exec)));
        let mut few = few(all);
        few.more = few.more.saturating_add(self.more);
        few
    }
}

/// Whether a command failed. A bay that is stopped on request ends its commands, and that is no failure.
pub(super) fn is_failure(end: &ExecEnd) -> bool {
    end.exit.get().is_none_or(|exit| exit.reason != EndReason::Stopped && exit.shell_code() != 0)
}

pub(super) fn how(exit: Exit) -> String {
    match exit.reason {
        EndReason::Exited => format!("exit {}", exit.code.unwrap_or_default()),
        EndReason::Signaled => format!("signal {}", exit.signal.unwrap_or_default()),
        EndReason::TimedOut => "timed out".to_owned(),
        EndReason::Killed => "killed".to_owned(),
        EndReason::Stopped => "stopped with its bay".to_owned(),
        EndReason::Lost => "lost with its guest".to_owned(),
    }
}
