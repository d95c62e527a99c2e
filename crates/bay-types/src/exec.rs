//! Commands run in a bay.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bay::text_enum;
use crate::error::{ApiError, ErrorCode};
use crate::id::{BayId, ExecId};
use crate::output::OutputHash;
use crate::trace::ExecTrace;
pub use crate::usage::Usage;
use crate::usage::{ExecCost, seconds};

/// Size of a terminal in character cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TtySize {
    pub cols: u16,
    pub rows: u16,
}

impl Default for TtySize {
    fn default() -> Self {
        Self { cols: 80, rows: 24 }
    }
}

/// What to run. The same body goes from the CLI to the daemon and from the daemon to the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    /// Chosen by the caller. The same id with the same spec is the same exec; with another spec, an error.
    pub id: ExecId,
    pub argv: Vec<String>,
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// `/workspace` when absent, or `/` where that does not exist.
    #[serde(default)]
    pub cwd: Option<String>,
    /// A user name or numeric id of the bay; root when absent.
    #[serde(default)]
    pub user: Option<String>,
    /// A terminal instead of pipes.
    #[serde(default)]
    pub tty: Option<TtySize>,
    /// Whether a client will send input; otherwise standard input is empty.
    #[serde(default)]
    pub stdin: bool,
    /// The whole tree is killed after this long.
    #[serde(default)]
    pub timeout_s: Option<u64>,
    /// The agent's tool call this exec belongs to.
    #[serde(default)]
    pub tool_call: Option<String>,
}

impl ExecSpec {
    /// A plain command with a new id: no terminal, no input, everything else as the bay has it.
    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self {
            id: ExecId::generate(),
            argv: argv.into_iter().map(Into::into).collect(),
            env: vec![],
            cwd: None,
            user: None,
            tty: None,
            stdin: false,
            timeout_s: None,
            tool_call: None,
        }
    }

    /// Total size of arguments and environment. Linux allows about 2 MiB; this leaves room for what we add.
    pub const MAX_ARGUMENT_BYTES: usize = 1 << 20;
    /// Arguments, and variables, one command may have besides the bound on their bytes.
    pub const MAX_ARGUMENTS: usize = 65536;
    /// Longest time limit; arithmetic on times cannot overflow below it: ten years.
    pub const MAX_TIMEOUT_S: u64 = 10 * 366 * 24 * 3600;
    /// Longest path the kernel takes.
    const MAX_PATH: usize = 4095;
    /// Longest name of a user, and longest id of a tool call.
    const MAX_NAME: usize = 256;

    /// Bytes of arguments and environment as the kernel counts them: with a NUL after each and the `=` of a variable.
    #[must_use]
    pub fn argument_bytes(&self) -> usize {
        self.argv.iter().map(|argument| argument.len() + 1).sum::<usize>()
            + self.env.iter().map(|(key, value)| key.len() + value.len() + 2).sum::<usize>()
    }

    /// Refuses what can never run, whatever the bay looks like. Daemon and guest ask this same question, so that what
    /// the one writes down the other does not refuse.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidInput`] with what is wrong and what to write instead.
    pub fn check(&self) -> Result<(), ApiError> {
        let odd = |message: &str, next: &str| Err(ApiError::new(ErrorCode::InvalidInput, message, next));
        if self.argv.first().is_none_or(String::is_empty) {
            return odd("there is no command to run", "write `bay exec NAME -- COMMAND ARGUMENTS…`");
        }
        if self.argv.len() > Self::MAX_ARGUMENTS || self.env.len() > Self::MAX_ARGUMENTS {
            return odd(
                "the command has more arguments than Linux takes",
                "pass the data through stdin or a file",
            );
        }
        if self.argument_bytes() > Self::MAX_ARGUMENT_BYTES {
            return odd(
                "arguments and environment together are longer than 1 MiB",
                "pass the data through stdin or a file",
            );
        }
        let texts = self.argv.iter().chain(self.env.iter().flat_map(|(key, value)| [key, value]));
        if texts.chain(&self.cwd).chain(&self.user).any(|text| text.contains('\0')) {
            return odd(
                "a NUL byte stands in the command, its environment, directory or user",
                "leave it out",
            );
        }
        if self.env.iter().any(|(key, _)| key.is_empty() || key.contains('=')) {
            return odd("a variable's name is empty or holds '='", "write --env KEY=VALUE");
        }
        if self.cwd.as_ref().is_some_and(|cwd| !cwd.starts_with('/') || cwd.len() > Self::MAX_PATH) {
            return odd("the working directory is not an absolute path", "write --cwd /PATH");
        }
        if self.user.as_ref().is_some_and(|user| user.is_empty() || user.len() > Self::MAX_NAME) {
            return odd("the user's name is empty or too long", "write --user NAME or --user ID");
        }
        if self.timeout_s.is_some_and(|s| s == 0 || s > Self::MAX_TIMEOUT_S) {
            return odd("the timeout is zero or longer than ten years", "write --timeout SECONDS");
        }
        let odd_call = |id: &String| id.len() > Self::MAX_NAME || id.chars().any(char::is_control);
        if self.tool_call.as_ref().is_some_and(odd_call) {
            return odd(
                "the tool call's id is longer than 256 bytes or holds control characters",
                "shorten it",
            );
        }
        Ok(())
    }
}

/// Why an exec is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndReason {
    /// It exited by itself; `code` is set.
    Exited,
    /// A signal ended it; `signal` is set.
    Signaled,
    /// Its time was up and its tree was killed.
    TimedOut,
    /// `bay kill`.
    Killed,
    /// The bay was stopped, replaced or restarted on request while it ran. `code` or `signal` tell how it took that,
    /// where they are known.
    Stopped,
    /// Its guest died under it.
    Lost,
}

text_enum!(EndReason {
    Exited = "exited",
    Signaled = "signaled",
    TimedOut = "timed-out",
    Killed = "killed",
    Stopped = "stopped",
    Lost = "lost",
});

/// How an exec ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub reason: EndReason,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

impl Exit {
    /// The exit code a shell would report: the command's own, 128 + signal, 124 for a timeout, 137 when nothing more is
    /// known of one that was stopped or lost.
    #[must_use]
    pub fn shell_code(&self) -> u8 {
        match (self.reason, self.code, self.signal) {
            (EndReason::TimedOut, _, _) => 124,
            (_, Some(code), _) => u8::try_from(code & 0xff).unwrap_or(255),
            (_, None, Some(signal)) => u8::try_from((128 + signal) & 0xff).unwrap_or(255),
            (_, None, None) => 137,
        }
    }
}

/// A limit of a bay that was reached while an exec ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitHit {
    /// The kernel ended a process of the bay because its memory was used up.
    Memory,
    /// A process could not be started: the bay had as many as it may have.
    Pids,
    /// Output of this exec could not be kept: the bay's disk was full.
    Disk,
}

text_enum!(LimitHit { Memory = "memory", Pids = "pids", Disk = "disk" });

/// An exec as the guest knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStatus {
    pub spec: ExecSpec,
    /// Process id of the leader inside the bay.
    pub pid: i32,
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    #[serde(default)]
    pub usage: Usage,
    /// Bytes of output so far, both streams together.
    pub output_bytes: u64,
    /// First byte still kept; greater than zero when the bound on kept output dropped the beginning, or the disk was full.
    pub output_start: u64,
    /// The bound on kept output dropped what was before this byte. Known of an exec that is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounded_to: Option<u64>,
    /// Bytes of output that the bay's disk had no room for.
    #[serde(default)]
    pub refused_bytes: u64,
    /// The guest that answers saw the end itself. False for an end that it only read from the bay's disk, where root in
    /// the bay can write.
    #[serde(default)]
    pub witnessed: bool,
    /// Hashes of the output that was kept at the end, made in the guest's memory; absent where it did not see the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_hashes: Option<Vec<OutputHash>>,
}

impl ExecStatus {
    /// How it ended, when it has.
    #[must_use]
    pub fn end(&self) -> Option<ExecEnd> {
        Some(ExecEnd {
            at: self.ended_at?,
            usage: self.usage,
            output_bytes: self.output_bytes,
            refused_bytes: self.refused_bytes,
            output_hashes: self.output_hashes.clone(),
        })
    }
}

/// What is known of an exec when it has ended, besides its exit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEnd {
    pub at: Timestamp,
    #[serde(default)]
    pub usage: Usage,
    pub output_bytes: u64,
    /// Bytes of output that the bay's disk had no room for.
    #[serde(default)]
    pub refused_bytes: u64,
    /// Hashes of the output that was kept; absent from a guest of an earlier release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_hashes: Option<Vec<OutputHash>>,
}

/// Who reported how an exec ended. What a guest reports is the bay's own account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reporter {
    /// The bay's first process, over its connection to the daemon, while it ran.
    Guest,
    /// The daemon: no guest reported an end.
    Daemon,
}

/// Seconds from one moment to another, none when the clock was set back meanwhile.
#[must_use]
pub fn duration_s(from: Timestamp, to: Timestamp) -> f64 {
    let us = to.as_microsecond().saturating_sub(from.as_microsecond());
    seconds(u64::try_from(us).unwrap_or(0))
}

/// An exec as the API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecView {
    pub id: ExecId,
    pub bay: BayId,
    /// Counts from 1 in each bay; what people type.
    pub number: u64,
    pub argv: Vec<String>,
    pub cwd: Option<String>,
    pub user: Option<String>,
    pub tty: bool,
    pub tool_call: Option<String>,
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    pub usage: Usage,
    pub output_bytes: u64,
    /// Hashes of the output that was kept when it ended, as the guest reported them then. Absent for an exec that runs, was
    /// lost, or ended under a guest of an earlier release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_hashes: Option<Vec<OutputHash>>,
    /// Limits of the bay that were reached while it ran. Memory and processes are counted for the bay as a whole, so it
    /// may have been another command's doing; they are looked at when an exec ends with anything but success.
    #[serde(default)]
    pub limits_hit: Vec<LimitHit>,
    /// Where it is in a trace, when its caller or the daemon has one.
    #[serde(default)]
    pub trace: Option<ExecTrace>,
    #[serde(default)]
    pub cost: ExecCost,
}

impl ExecView {
    /// It was killed, and its first process is still there: it hangs in the kernel.
    #[must_use]
    pub fn hangs(&self) -> bool {
        let by_force =
            |reason| matches!(reason, EndReason::Killed | EndReason::TimedOut | EndReason::Stopped);
        self.usage.processes_left.is_some_and(|left| left > 0)
            && self
                .exit
                .is_some_and(|exit| by_force(exit.reason) && exit.code.is_none() && exit.signal.is_none())
    }
}

/// `POST …/execs/{id}/signal`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    pub signal: i32,
    /// Every process of the exec rather than its leader's process group.
    #[serde(default)]
    pub tree: bool,
}

/// The answer to a [`SignalRequest`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signalled {
    /// Processes that the signal was sent to although their exec had ended: what it left running.
    #[serde(default)]
    pub left: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(argv: &[&str]) -> ExecSpec {
        ExecSpec::new(argv.iter().copied())
    }

    #[test]
    fn commands_that_cannot_mean_anything_are_refused() {
        assert!(spec(&["true"]).check().is_ok());
        assert!(spec(&[]).check().is_err());
        assert!(spec(&[""]).check().is_err());
        assert!(spec(&["a\0b"]).check().is_err());
        for change in [
            |s: &mut ExecSpec| s.env.push(("A=B".to_owned(), String::new())),
            |s: &mut ExecSpec| s.env.push((String::new(), String::new())),
            |s: &mut ExecSpec| s.env.push(("A".to_owned(), "\0".to_owned())),
            |s: &mut ExecSpec| s.cwd = Some("tmp".to_owned()),
            |s: &mut ExecSpec| s.cwd = Some("/a\0".to_owned()),
            |s: &mut ExecSpec| s.user = Some(String::new()),
            |s: &mut ExecSpec| s.timeout_s = Some(0),
            |s: &mut ExecSpec| s.timeout_s = Some(ExecSpec::MAX_TIMEOUT_S + 1),
            |s: &mut ExecSpec| s.tool_call = Some("a\nb".to_owned()),
        ] {
            let mut given = spec(&["true"]);
            change(&mut given);
            assert!(given.check().is_err(), "{given:?}");
        }
    }

    #[test]
    fn every_reason_is_read_as_it_was_written() {
        for (reason, text) in [(EndReason::Stopped, "stopped"), (EndReason::Lost, "lost")] {
            let exit = Exit { reason, code: None, signal: None };
            let json = serde_json::to_string(&exit).unwrap();
            assert_eq!(json, format!(r#"{{"reason":"{text}"}}"#));
            assert_eq!(serde_json::from_str::<Exit>(&json).unwrap(), exit);
            assert_eq!(exit.shell_code(), 137);
        }
    }

    #[test]
    fn the_bound_on_arguments_counts_what_the_kernel_counts() {
        // "echo" and the argument, each with its NUL.
        let fits = "x".repeat(ExecSpec::MAX_ARGUMENT_BYTES - 6);
        assert!(spec(&["echo", &fits]).check().is_ok());
        assert!(spec(&["echo", &format!("{fits}x")]).check().is_err());
        let mut with_variable = spec(&["echo", &fits[..fits.len() - 3]]);
        with_variable.env.push(("A".to_owned(), String::new()));
        assert!(with_variable.check().is_ok());
        with_variable.env[0].1.push('x');
        assert!(with_variable.check().is_err());
    }
}
