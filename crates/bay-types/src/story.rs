//! The story of a bay: what happened in it, on one page.
//!
//! Rules make it from the record, and no model does. Every text is on one line, clipped and safe to show. Every list is
//! bounded: [`Few::more`] says how many entries it lacks, as far as they were counted. New releases may add fields
//! and remove none.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::BayId;
use crate::text_enum::text_enum;

/// The first entries of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Few<T> {
    pub shown: Vec<T>,
    /// How many more there are.
    pub more: u64,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { shown: Vec::new(), more: 0 }
    }
}

impl<T> Few<T> {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shown.is_empty() && self.more == 0
    }

    /// How many entries there are.
    #[must_use]
    pub fn total(&self) -> u64 {
        (self.shown.len() as u64).saturating_add(self.more)
    }
}

/// `GET /v1/bays/{bay}/story`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Story {
    pub bay: String,
    pub id: BayId,
    /// When the daemon made this story.
    pub made_at: Timestamp,
    /// The times of the first and the last event that it is made from.
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    /// How many events it is made from.
    pub events: u64,
    /// Whether older events were left out, because there are too many.
    pub older_left_out: bool,
    pub asked: Asked,
    pub failed: Few<FailedCommand>,
    pub refused: Few<RefusedRequests>,
    pub approvals: Few<AnsweredApproval>,
    /// What was tried: commands of one kind together, those that took longest first.
    pub tried: Few<CommandGroup>,
    pub services: Few<ServiceStory>,
    pub checkpoints: Few<CheckpointStory>,
    pub changed: Changed,
    pub left: Few<WorkThatLeft>,
    /// Requests that sent data, by host, those with most bytes first.
    pub uploads: Few<Upload>,
    /// Where the time went, by rule: an estimate.
    pub time: Vec<TimeShare>,
    pub cost: StoryCost,
    pub now: Now,
}

/// What was asked of the bay, and by whom.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Where the workspace comes from.
    pub origin: Option<String>,
    /// How many commands were requested, without those of `bay branch` and `bay bundle`.
    pub commands: u64,
    /// Who requested commands.
    pub by: Few<Asker>,
    /// Command lines of agents, which often contain the prompt.
    pub agents: Few<AgentCommand>,
    /// The first command, if no agent was started.
    pub first: Option<String>,
    /// How many commands belong to a tool call.
    pub with_tool_call: u64,
    /// Ids of some of those calls.
    pub tool_calls: Few<String>,
    /// Ids of the traces that the commands belong to.
    pub traces: Few<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    pub by: String,
    pub commands: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentCommand {
    pub exec: u64,
    pub command: String,
}

/// What a command does, by the rules for its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// It is an agent.
    Agent,
    Testing,
    Building,
    Installing,
    /// It talks with another machine.
    Network,
    /// A terminal for a person.
    Shell,
    Other,
}

text_enum!(Work {
    Agent = "agent",
    Testing = "testing",
    Building = "building",
    Installing = "installing",
    Network = "network",
    Shell = "shell",
    Other = "other",
});

/// Commands of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommandGroup {
    /// `cargo test`, `pip install`.
    pub label: String,
    pub work: Work,
    pub count: u64,
    pub failed: u64,
    pub running: u64,
    /// Together.
    pub seconds: f64,
    /// Requests that they sent, and how many of those were refused.
    pub requests: u64,
    pub refused: u64,
    pub received_bytes: u64,
    /// Number of the newest of them.
    pub last_exec: u64,
}

/// Commands that failed with one command line and one exit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedCommand {
    pub command: String,
    /// `exit 101`, `killed`, `timed out`.
    pub how: String,
    pub times: u64,
    /// Number of the newest of them.
    pub last_exec: u64,
    /// The number of a later command with the same command line that succeeded.
    pub passed_later: Option<u64>,
    /// Limits of the bay that were reached.
    pub limits: Vec<String>,
}

/// Requests that were refused for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRequests {
    /// `POST https://api.example/` or `HOST:PORT`.
    pub request: String,
    pub requests: u64,
    /// The rule that decided; absent if no rule covers the request.
    pub rule: Option<String>,
    pub reason: String,
    /// Who sent the first of them.
    pub by: String,
    /// Number of the newest decision, for `bay policy explain`. Absent if nothing was decided on.
    pub decision: Option<u64>,
}

/// An approval, with its answer if there is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnsweredApproval {
    pub id: String,
    pub request: String,
    /// `allowed`, `denied`, `expired`, `dropped`, `revoked` or `open`.
    pub answer: String,
    pub by: Option<String>,
    pub why: Option<String>,
}

/// What became of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStory {
    pub service: String,
    /// The last state that its guest reported, and why.
    pub state: String,
    pub reason: String,
    /// How often it ended by itself, failed, or became unhealthy.
    pub deaths: u64,
    /// How often it was ready after that.
    pub came_back: u64,
    /// The reason of its last end.
    pub last_death: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointStory {
    pub name: String,
    pub at: Timestamp,
    pub message: Option<String>,
    /// Why the daemon made it by itself.
    pub automatic: Option<String>,
    /// The last command that began before it.
    pub after_exec: Option<u64>,
    /// The bay was restored to it.
    pub restored: bool,
}

/// What differs in the workspace now from where the work began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Why there is no comparison. Then the record gives the numbers and the directories: `added` and `modified`
    /// count how often files were created and changed while commands ran.
    pub not_compared: Option<String>,
    pub added: u64,
    pub modified: u64,
    pub deleted: u64,
    pub lines_added: u64,
    pub lines_removed: u64,
    /// Files that differ and are in no other count, because the repository ignores them.
    #[serde(default)]
    pub ignored: u64,
    /// Directories at the top of the workspace, those with most changes first.
    pub directories: Few<ChangedDirectory>,
    pub tests_added: Few<String>,
    pub tests_removed: Few<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedDirectory {
    /// `./` for files at the top.
    pub directory: String,
    pub files: u64,
    pub examples: Vec<String>,
}

/// Work that a client took out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkThatLeft {
    pub at: Timestamp,
    /// `branch`, `push` or `bundle`.
    pub route: String,
    pub branch: String,
    pub place: Option<String>,
    pub commit: String,
    pub commits: u64,
    pub files: u64,
    pub by: String,
}

/// Data that requests sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    pub host: String,
    pub requests: u64,
    pub bytes: u64,
}

/// What the time went into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TimeKind {
    Testing,
    Building,
    Installing,
    /// A command ran, and a request of it was under way.
    WaitingForNetwork,
    /// An agent ran, and none of the commands above.
    Agent,
    OtherCommands,
    /// The bay ran, and no command did.
    Idle,
    /// The bay did not run.
    Stopped,
}

text_enum!(TimeKind {
    Testing = "testing",
    Building = "building",
    Installing = "installing",
    WaitingForNetwork = "waiting for the network",
    Agent = "agent",
    OtherCommands = "other commands",
    Idle = "idle",
    Stopped = "stopped",
});

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TimeShare {
    pub kind: TimeKind,
    pub seconds: f64,
}

/// What it cost. Costs of the bay are the host's own measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StoryCost {
    pub core_s: Option<f64>,
    pub memory_gib_s: Option<f64>,
    pub disk_bytes: Option<u64>,
    /// Bytes of bodies and tunnels that the bay sent and received.
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub requests: u64,
}

/// How the bay is now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    pub state: String,
    pub reason: String,
    /// Running commands.
    pub running: Few<AgentCommand>,
    /// Services that are ready, by the last state that the guest reported.
    pub services_up: Few<String>,
    /// Services in any other state, each with its state.
    pub services_down: Few<String>,
    /// Approvals that wait for an answer.
    pub approvals_open: u64,
    /// Whether files changed since work was last taken out, or work never was taken out although files changed.
    pub untaken_work: bool,
    /// If such files changed: the number of the last command that changed files, as far as the record knows. It is
    /// not the first one since work was taken out, in spite of the name. Absent if a client wrote files last.
    pub untaken_since_exec: Option<u64>,
}
