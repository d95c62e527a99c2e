//! Bays as the API shows them.
//!
//! A bay has a *desired* state (requested by a caller) and an *observed* one (the facts). Verbs change only the
//! desired state. The reconciler moves the observed state towards it, and records the reason and the time.
//!
//! ```text
//!            up                    guest answers              stop
//!  (nothing) ──► creating ──► starting ──► running ──────► stopping ──► stopped
//!                    │            │          │  ▲ resume                  │  ▲
//!                    │            │    pause ▼  │                   start │  │ guest died, host rebooted
//!                    ▼            ▼         paused                        ▼  │
//!                  failed ◄── could not ──────────────────────────── starting
//!  any ── rm ──► deleting ──► (gone)
//! ```

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::backend::{BackendName, Capabilities};
use crate::durability::Durability;
use crate::environment::{Environment, EnvironmentFrom};
use crate::id::{BayId, BayName, CheckpointName, ImageId, RepoId};
use crate::stats::BayCost;
use crate::text_enum::text_enum;

/// The requested state of a bay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Desired {
    Running,
    Paused,
    Stopped,
    Deleted,
}

/// The state of a bay as the reconciler last saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    Creating,
    Starting,
    Running,
    Paused,
    Stopping,
    Stopped,
    Failed,
    Deleting,
}

text_enum!(Desired { Running = "running", Paused = "paused", Stopped = "stopped", Deleted = "deleted" });
text_enum!(State {
    Creating = "creating",
    Starting = "starting",
    Running = "running",
    Paused = "paused",
    Stopping = "stopping",
    Stopped = "stopped",
    Failed = "failed",
    Deleting = "deleting",
});

/// Default time in seconds between TERM and KILL when a bay is stopped.
pub const STOP_GRACE_S: u64 = 5;

/// Upper bounds on what a bay may use of the host. `None` means no bound but the host's own, except for
/// `pids` ([`Limits::DEFAULT_PIDS`]) and `cpu_shares` ([`Limits::EQUAL_CPU_SHARES`]).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Processors, as a fraction of one: `1.5` is one and a half.
    #[serde(default, deserialize_with = "a_number", skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Disk space of the bay's own, without what it shares with its image and repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// Weight among bays that compete for the processors; [`Limits::EQUAL_CPU_SHARES`] is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_shares: Option<u64>,
    /// MiB per second that the bay may read from the pool's device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_read_mibps: Option<u64>,
    /// MiB per second that the bay may write to the pool's device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_write_mibps: Option<u64>,
}

/// serde_json writes NaN and infinity as `null`. Read as `None`, that would silently remove the limit.
fn a_number<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    f64::deserialize(from).map(Some)
}

impl Limits {
    /// With less memory, not even a shell starts reliably.
    pub const MIN_MEMORY_MIB: u64 = 16;
    /// The guest and one command need this many processes.
    pub const MIN_PIDS: u64 = 8;
    pub const MIN_CPUS: f64 = 0.01;
    pub const MIN_DISK_MIB: u64 = 16;
    /// Default limit of processes, so that a fork bomb is contained.
    pub const DEFAULT_PIDS: u64 = 8192;
    /// The default weight.
    pub const EQUAL_CPU_SHARES: u64 = 1024;
    /// Both cgroup versions can represent the weights between these two.
    pub const MIN_CPU_SHARES: u64 = 16;
    pub const MAX_CPU_SHARES: u64 = 65536;
    pub const MIN_IO_MIBPS: u64 = 1;
    /// More than any device reaches, and far below an overflow in bytes.
    pub const MAX_IO_MIBPS: u64 = 1 << 20;
}

/// A directory or file of the host that is mounted in the bay, always read-only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    pub source: PathBuf,
    /// Absolute path inside the bay.
    pub target: PathBuf,
}

/// Where the workspace comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Source {
    /// An empty directory.
    Empty,
    /// A copy of a kept workspace, by its name in `bay workspaces ls`.
    Kept { workspace: String },
    /// A commit of a cached repository (the CLI sends local repositories there).
    Cached { repo: RepoId, commit: String, branch: Option<String> },
    /// A remote repository; the daemon fetches it if the ref is not cached.
    Remote {
        url: String,
        /// Branch, tag or commit; the remote's default branch when absent.
        #[serde(default)]
        reference: Option<String>,
    },
}

/// The author of commits made in a bay whose own git settings name none: the person who created the bay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Author {
    pub name: String,
    pub email: String,
}

impl Author {
    /// Longest name or address.
    pub const MAX_LEN: usize = 256;

    /// Whether both can be written into a git configuration and a commit: a single line each, not empty, not too
    /// long.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        [&self.name, &self.email].into_iter().all(|text| {
            !text.trim().is_empty() && text.len() <= Self::MAX_LEN && !text.chars().any(char::is_control)
        })
    }
}

/// The user that commands of a bay run as, unless they name another one. The bay makes it if its image has none of that
/// name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BayUser {
    pub name: String,
    /// It may run every command as root, without a password.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sudo: bool,
}

impl BayUser {
    /// Longest name that programs take.
    pub const MAX_NAME: usize = 32;

    /// Whether the name can be the name of a user: a lower-case letter or `_`, then also digits and `-`. Root is no user
    /// of this kind.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let first = |b: u8| b.is_ascii_lowercase() || b == b'_';
        let name = self.name.as_bytes();
        (1..=Self::MAX_NAME).contains(&name.len())
            && first(name[0])
            && name.iter().all(|b| first(*b) || b.is_ascii_digit() || *b == b'-')
            && self.name != "root"
    }
}

/// `POST /v1/bays`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BayCreate {
    /// Derived from the source when absent.
    #[serde(default)]
    pub name: Option<String>,
    pub source: Source,
    /// `host`, `dir:PATH`, `tar:PATH`, or the name of an imported image.
    #[serde(default = "default_image")]
    pub image: String,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// Stop the bay after this many seconds without activity; never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_stop_s: Option<u64>,
    /// Strict when absent.
    #[serde(default, skip_serializing_if = "Durability::is_strict")]
    pub durability: Durability,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<Author>,
    /// The user that commands run as; root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<BayUser>,
    /// TCP ports on the host's `127.0.0.1` that it may use as [`HOST_NAME`](crate::reach::HOST_NAME). A fork has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reach: Vec<u16>,
    /// The backend that runs it; the daemon's default when absent. Stored with the bay and not in this request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// The egress policy; when absent, nothing may leave. Stored with the bay and not in this request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<crate::policy::PolicySet>,
    /// Begin with the root filesystem of another bay. Image and backend are then those of that bay, and `image` counts
    /// for nothing. Stored with the bay and not in this request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentFrom>,
}

fn default_image() -> String {
    "host".to_owned()
}

/// How a bay is isolated from its host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    /// The backend's name: `local`.
    pub backend: String,
    /// One word for comparison: `shared-kernel`, `user-kernel`, `virtual-machine`.
    pub grade: String,
    /// One line that explains the grade.
    pub detail: String,
}

/// The repository and commit a workspace began from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub repo: RepoId,
    /// URL or local path, credentials removed.
    pub location: String,
    pub commit: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
}

/// The checkpoint of another bay that this bay was forked from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    pub bay: BayId,
    /// The parent's name at that time.
    pub name: BayName,
    pub checkpoint: CheckpointName,
    /// Its index among the children of one fork, from zero.
    pub index: u32,
    /// Whether the parent's processes continue in this bay.
    pub memory: bool,
}

/// A bay as `bay show --json` prints it. `bay ls --json` prints an array of these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BayView {
    pub id: BayId,
    pub name: BayName,
    pub state: State,
    /// Why it is in that state, for a person.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
    pub desired: Desired,
    pub created_at: Timestamp,
    pub image: String,
    pub image_id: ImageId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The checkpoint that the bay's present state descends from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointName>,
    /// The bay and checkpoint it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<Lineage>,
    /// The bay and checkpoint whose root filesystem it began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<Environment>,
    pub limits: Limits,
    /// It is stopped after this many seconds without activity; never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_stop_s: Option<u64>,
    /// Strict when absent.
    #[serde(default, skip_serializing_if = "Durability::is_strict")]
    pub durability: Durability,
    pub mounts: Vec<Mount>,
    /// The user that commands run as; root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<BayUser>,
    /// TCP ports on the host's `127.0.0.1` that it may use as [`HOST_NAME`](crate::reach::HOST_NAME).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reach: Vec<u16>,
    /// The backend that runs it.
    #[serde(default)]
    pub backend: BackendName,
    pub isolation: Isolation,
    /// What its backend can do on this host; absent when this daemon does not have the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// Where the agent's tree is, inside the bay.
    pub workspace: String,
    pub execs_running: u64,
    /// The host's process id of the bay's PID 1, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_pid: Option<i32>,
    /// Its resource usage so far, as the host measured it.
    #[serde(default)]
    pub cost: Option<BayCost>,
}

/// `DELETE /v1/bays/{name}?keep_workspace=`
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BayDelete {
    #[serde(default)]
    pub keep_workspace: bool,
}

/// The result of a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BayDeleted {
    pub id: BayId,
    pub name: BayName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_workspace: Option<PathBuf>,
}

/// A bay that was removed, as the record knows it. `bay ls --removed --json` prints an array of these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BayRemoved {
    pub id: BayId,
    /// Its last name. Another bay may have it by now.
    pub name: BayName,
    pub removed_at: Timestamp,
    /// Who asked for it, as the record names them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_workspace: Option<PathBuf>,
}

/// A kept workspace, which outlived its bay. `bay workspaces ls --json` prints an array of these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceView {
    pub name: String,
    /// The bay's name.
    pub bay: String,
    pub kept_at: Timestamp,
    /// On the host.
    pub path: PathBuf,
    /// Bytes it holds beyond what it shares with the cached repository.
    pub bytes: u64,
}

/// `GET /v1/health`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    pub version: String,
    pub pid: u32,
    pub data_dir: PathBuf,
    pub pool: PathBuf,
    pub started_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_user_is_a_plain_word_and_not_root() {
        let plain = |name: &str| BayUser { name: name.to_owned(), sudo: false }.is_plain();
        for name in ["agent", "_apt", "dev-2", &"a".repeat(32)] {
            assert!(plain(name), "{name}");
        }
        for name in ["", "root", "Agent", "1st", "-x", "a b", "a:b", "a\n", "../a", &"a".repeat(33)] {
            assert!(!plain(name), "{name}");
        }
    }

    #[test]
    fn a_limit_that_is_not_a_number_is_refused() {
        let odd = Limits { cpus: Some(f64::NAN), ..Limits::default() };
        let json = serde_json::to_string(&odd).unwrap();
        assert!(serde_json::from_str::<Limits>(&json).is_err(), "{json}");
        for fine in [Limits::default(), Limits { cpus: Some(1.5), ..Limits::default() }] {
            let json = serde_json::to_string(&fine).unwrap();
            assert_eq!(serde_json::from_str::<Limits>(&json).unwrap(), fine);
        }
    }
}
