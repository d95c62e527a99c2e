//! Commands run in a bay.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::blame::Blame;
use crate::error::{ApiError, ErrorCode};
use crate::id::{BayId, ExecId};
use crate::output::OutputHash;
use crate::text_enum::text_enum;
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

/// A command to run. The CLI sends it to the daemon and the daemon to the guest, in the same form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    /// Chosen by the caller. The same id with the same spec is the same exec; with another spec it is an error.
    pub id: ExecId,
    pub argv: Vec<String>,
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// When absent: `/workspace`, or `/` if that does not exist.
    #[serde(default)]
    pub cwd: Option<String>,
    /// A user name or numeric id of the bay. When absent: the user that the bay was given, or root if there is none.
    /// The daemon fills in the bay's user before the guest gets the spec.
    #[serde(default)]
    pub user: Option<String>,
    /// A terminal instead of pipes.
    #[serde(default)]
    pub tty: Option<TtySize>,
    /// Whether a client will send input; otherwise standard input is empty.
    #[serde(default)]
    pub stdin: bool,
    /// All its processes are killed after this time.
    #[serde(default)]
    pub timeout_s: Option<u64>,
    /// The agent's tool call this exec belongs to.
    #[serde(default)]
    pub tool_call: Option<String>,
}

impl ExecSpec {
    /// A command with a new id and defaults: no terminal, no input.
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

    /// Total size of arguments and environment. Linux allows about 2 MiB; the rest is for what Workbay adds.
    pub const MAX_ARGUMENT_BYTES: usize = 1 << 20;
    /// Most arguments, and most variables, of one command.
    pub const MAX_ARGUMENTS: usize = 65536;
    /// Longest timeout: about ten years. Below it, time arithmetic cannot overflow.
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

    /// Refuses a command that breaks a rule which holds in every bay. The daemon and the guest use the same check, so
    /// that the guest does not refuse for such a reason what the daemon recorded.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidInput`] with what is wrong and what to write instead.
    pub fn check(&self) -> Result<(), ApiError> {
        let invalid = |message: &str, next: &str| Err(ApiError::new(ErrorCode::InvalidInput, message, next));
        if self.argv.first().is_none_or(String::is_empty) {
            return invalid("there is no command to run", "name the program, and its arguments after it");
        }
        if self.argv.len() > Self::MAX_ARGUMENTS || self.env.len() > Self::MAX_ARGUMENTS {
            return invalid(
                "the command has more than 65536 arguments or variables",
                "pass the data through stdin or a file",
            );
        }
        if self.argument_bytes() > Self::MAX_ARGUMENT_BYTES {
            return invalid(
                "arguments and environment together are longer than 1 MiB",
                "pass the data through stdin or a file",
            );
        }
        let texts = self.argv.iter().chain(self.env.iter().flat_map(|(key, value)| [key, value]));
        if texts.chain(&self.cwd).chain(&self.user).any(|text| text.contains('\0')) {
            return invalid(
                "the command, its environment, directory or user contains a NUL byte",
                "leave it out",
            );
        }
        if self.env.iter().any(|(key, _)| key.is_empty() || key.contains('=')) {
            return invalid("a variable's name is empty or holds '='", "write --env KEY=VALUE");
        }
        if self.cwd.as_ref().is_some_and(|cwd| !cwd.starts_with('/') || cwd.len() > Self::MAX_PATH) {
            return invalid(
                "the working directory is not an absolute path of at most 4095 bytes",
                "write --cwd /PATH",
            );
        }
        if self.user.as_ref().is_some_and(|user| user.is_empty() || user.len() > Self::MAX_NAME) {
            return invalid("the user's name is empty or too long", "write --user NAME or --user ID");
        }
        if self.timeout_s.is_some_and(|s| s == 0 || s > Self::MAX_TIMEOUT_S) {
            return invalid("the timeout is zero or longer than ten years", "write --timeout SECONDS");
        }
        let invalid_call = |id: &String| id.len() > Self::MAX_NAME || id.chars().any(char::is_control);
        if self.tool_call.as_ref().is_some_and(invalid_call) {
            return invalid(
                "the tool call's id is longer than 256 bytes or holds control characters",
                "shorten it",
            );
        }
        Ok(())
    }
}

/// Why an exec ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndReason {
    /// It exited by itself; `code` is set.
    Exited,
    /// A signal ended it; `signal` is set.
    Signaled,
    /// Its timeout passed and all its processes were killed.
    TimedOut,
    /// A caller killed it, for example with `bay kill`.
    Killed,
    /// The daemon stopped the bay: on request, because it was idle, or to replace or restore it. `code` or `signal`
    /// say how the command reacted, if known.
    Stopped,
    /// Its guest died.
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
    /// The exit code that a shell would report: 124 for a timeout, otherwise the command's own or 128 + signal, and
    /// 137 if neither is known.
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

/// A limit of the bay that was reached while an exec ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitHit {
    /// The kernel killed a process because the bay's memory was used up.
    Memory,
    /// A process could not start: the bay had its maximum of processes.
    Pids,
    /// Output of this exec was lost: the bay's disk was full.
    Disk,
}

text_enum!(LimitHit { Memory = "memory", Pids = "pids", Disk = "disk" });

/// An exec as the guest reports it.
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
    /// First byte that is still kept. It is above zero if the bound on kept output dropped the beginning, or if the
    /// disk was full.
    pub output_start: u64,
    /// The bound on kept output dropped everything before this byte. Set only for an ended exec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounded_to: Option<u64>,
    /// Bytes of output that did not fit on the bay's disk.
    #[serde(default)]
    pub refused_bytes: u64,
    /// This guest saw the end itself. False if it only read the end from the bay's disk, where root in the bay can
    /// write.
    #[serde(default)]
    pub witnessed: bool,
    /// Hashes of the kept output at the end, computed in the guest's memory; absent if the guest did not see the
    /// end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_hashes: Option<Vec<OutputHash>>,
}

impl ExecStatus {
    /// Its end, if it has ended.
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

/// The end of an exec, besides its exit status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEnd {
    pub at: Timestamp,
    #[serde(default)]
    pub usage: Usage,
    pub output_bytes: u64,
    /// Bytes of output that did not fit on the bay's disk.
    #[serde(default)]
    pub refused_bytes: u64,
    /// Hashes of the kept output; absent from a guest of an earlier release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_hashes: Option<Vec<OutputHash>>,
}

/// Who reported the end of an exec. A guest's report is a claim of the bay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reporter {
    /// The guest, over its connection to the daemon, while it ran.
    Guest,
    /// The daemon: no guest reported an end.
    Daemon,
}

/// Seconds between two moments; zero if the clock was set back.
#[must_use]
pub fn duration_s(from: Timestamp, to: Timestamp) -> f64 {
    let us = to.as_microsecond().saturating_sub(from.as_microsecond());
    seconds(u64::try_from(us).unwrap_or(0))
}

/// Whether an exec runs, or how it ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExecState {
    /// It has not ended, as far as is known.
    #[default]
    Running,
    Exited,
    Signaled,
    TimedOut,
    Killed,
    Stopped,
    Lost,
    /// It has ended; how is not on record.
    Ended,
}

text_enum!(ExecState {
    Running = "running",
    Exited = "exited",
    Signaled = "signaled",
    TimedOut = "timed-out",
    Killed = "killed",
    Stopped = "stopped",
    Lost = "lost",
    Ended = "ended",
});

impl ExecState {
    #[must_use]
    pub fn of(exit: Option<Exit>, ended_at: Option<Timestamp>) -> Self {
        match exit.map(|exit| exit.reason) {
            None if ended_at.is_none() => Self::Running,
            None => Self::Ended,
            Some(EndReason::Exited) => Self::Exited,
            Some(EndReason::Signaled) => Self::Signaled,
            Some(EndReason::TimedOut) => Self::TimedOut,
            Some(EndReason::Killed) => Self::Killed,
            Some(EndReason::Stopped) => Self::Stopped,
            Some(EndReason::Lost) => Self::Lost,
        }
    }
}

/// An exec as the API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecView {
    pub id: ExecId,
    pub bay: BayId,
    /// Counts from 1 in each bay; what people type.
    pub number: u64,
    #[serde(default)]
    pub state: ExecState,
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
    /// Hashes of the kept output, as the guest reported them at the end. Absent if the exec runs, was lost, or
    /// ended under a guest of an earlier release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_hashes: Option<Vec<OutputHash>>,
    /// Limits of the bay that were reached while it ran. Memory and processes are counted for the whole bay, so
    /// another command may have reached them. They are checked when an exec ends without success.
    #[serde(default)]
    pub limits_hit: Vec<LimitHit>,
    /// What may have made it fail, as the daemon saw it when the exec ended.
    #[serde(default)]
    pub blame: Vec<Blame>,
    /// Its place in a trace, if its caller or the daemon uses tracing.
    #[serde(default)]
    pub trace: Option<ExecTrace>,
    #[serde(default)]
    pub cost: ExecCost,
    /// The files of the workspace that changed while it ran, whoever changed them. Only in the answer for one exec, and
    /// only from a moment after its end on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<crate::timeline::FileChanges>,
}

impl ExecView {
    /// It was killed, but its first process hangs in the kernel.
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
    /// Signal every process of the exec instead of its leader's process group.
    #[serde(default)]
    pub tree: bool,
}

/// The answer to a [`SignalRequest`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signalled {
    /// How many processes got the signal although their exec had ended: processes that it left running.
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
