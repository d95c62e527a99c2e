//! Commands run in a bay.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bay::text_enum;
use crate::id::{BayId, ExecId};

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
    /// Total size of arguments and environment. Linux allows about 2 MiB; this leaves room for what we add.
    pub const MAX_ARGUMENT_BYTES: usize = 1 << 20;
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
    /// The bay stopped or its guest died under it.
    Lost,
}

text_enum!(EndReason {
    Exited = "exited",
    Signaled = "signaled",
    TimedOut = "timed-out",
    Killed = "killed",
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
    /// The exit code a shell would report: the command's own, 128 + signal, 124 for a timeout, 137 when lost.
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

/// What an exec used, as the kernel reported at its end (the leader and the children it waited for).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub user_us: u64,
    pub system_us: u64,
    pub max_rss_kib: u64,
}

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
    /// First byte still kept; greater than zero when the bound on kept output dropped the beginning.
    pub output_start: u64,
}

/// An exec as the API shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
