//! Bays as the API shows them.
//!
//! A bay has a *desired* state (what somebody asked for) and an *observed* one (what is true). Verbs only change the
//! first; the reconciler moves the second towards it and writes down why and since when.
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
use crate::checkpoint::{CheckpointName, Lineage};
use crate::id::{BayId, BayName, ImageId, RepoId};
use crate::stats::BayCost;

/// What somebody asked a bay to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Desired {
    Running,
    Paused,
    Stopped,
    Deleted,
}

/// What a bay is, as last seen by the reconciler.
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

macro_rules! text_enum {
    ($ty:ident { $($variant:ident = $text:literal),* $(,)? }) => {
        impl $ty {
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $( $ty::$variant => $text, )* }
            }
        }
        impl std::str::FromStr for $ty {
            type Err = crate::id::ParseIdError;
            fn from_str(given: &str) -> Result<Self, Self::Err> {
                match given {
                    $( $text => Ok($ty::$variant), )*
                    _ => Err(crate::id::ParseIdError {
                        kind: stringify!($ty), given: given.to_owned(), why: concat!("the words are" $(, " `", $text, "`")*),
                    }),
                }
            }
        }
        impl std::fmt::Display for $ty {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(crate) use text_enum;

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

/// Seconds that processes have between TERM and KILL when a bay is stopped and nobody says otherwise.
pub const STOP_GRACE_S: u64 = 5;

/// Upper bounds on what a bay may use of the host. `None` means the host's own limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Processors, as a fraction of one: `1.5` is one and a half.
    #[serde(default, deserialize_with = "a_number", skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Disk the bay may use beyond what it shares with its image and repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// Weight among those who want the processors at the same moment; [`Limits::EQUAL_CPU_SHARES`] is everybody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_shares: Option<u64>,
    /// MiB per second that the bay may read from the pool's device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_read_mibps: Option<u64>,
    /// The same for writing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_write_mibps: Option<u64>,
}

/// JSON writes what is not a number as `null`; taken for "no limit", it would be a limit that is silently not kept.
fn a_number<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    f64::deserialize(from).map(Some)
}

impl Limits {
    /// Less memory than this and not even a shell starts reliably.
    pub const MIN_MEMORY_MIB: u64 = 16;
    /// The guest and one command need this many.
    pub const MIN_PIDS: u64 = 8;
    pub const MIN_CPUS: f64 = 0.01;
    pub const MIN_DISK_MIB: u64 = 16;
    /// Processes a bay may have when nobody says otherwise: a fork bomb must end somewhere.
    pub const DEFAULT_PIDS: u64 = 8192;
    /// The share of a bay for which nobody said otherwise.
    pub const EQUAL_CPU_SHARES: u64 = 1024;
    /// Both versions of cgroups can tell weights between these two apart.
    pub const MIN_CPU_SHARES: u64 = 16;
    pub const MAX_CPU_SHARES: u64 = 65536;
    pub const MIN_IO_MIBPS: u64 = 1;
    /// More than any device gives, and far from where the bytes would overflow.
    pub const MAX_IO_MIBPS: u64 = 1 << 20;
}

/// A directory or file of the host shown inside the bay. Only ever read-only.
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
    /// A copy of a workspace that outlived its bay, by the name `bay workspaces ls` shows.
    Kept { workspace: String },
    /// A commit of a repository that is in the cache (pushed by the CLI from a local path).
    Cached { repo: RepoId, commit: String, branch: Option<String> },
    /// A remote repository; fetched into the cache when the ref is not there yet.
    Remote {
        url: String,
        /// Branch, tag or commit; the remote's default branch when absent.
        #[serde(default)]
        reference: Option<String>,
    },
}

/// Who made the commits of a bay, where its own git settings name nobody: whoever made the bay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Author {
    pub name: String,
    pub email: String,
}

impl Author {
    /// Longest name or address.
    pub const MAX_LEN: usize = 256;

    /// Whether both can stand in a git configuration and in a commit: one line each, neither empty nor endless.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        [&self.name, &self.email].into_iter().all(|text| {
            !text.trim().is_empty() && text.len() <= Self::MAX_LEN && !text.chars().any(char::is_control)
        })
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
    /// Stop the bay by itself when nothing has happened in it for so many seconds; never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_stop_s: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<Author>,
    /// The backend that runs it; the daemon's default when absent. Kept beside the bay, not as a part of how it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// What may leave it; nothing when absent. Kept beside the bay, not as a part of how it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<crate::policy::PolicySet>,
}

fn default_image() -> String {
    "host".to_owned()
}

/// What keeps a bay from its host, said plainly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    /// The backend's name: `local`.
    pub backend: String,
    /// One word for comparison: `shared-kernel`, `user-kernel`, `virtual-machine`.
    pub grade: String,
    /// One line a person can weigh.
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

/// A bay as `bay show --json` prints it. `bay ls --json` is an array of the same.
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
    /// The checkpoint that what the bay is now descends from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointName>,
    /// The bay and checkpoint it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<Lineage>,
    pub limits: Limits,
    /// Seconds without any activity after which it is stopped by itself; never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_stop_s: Option<u64>,
    pub mounts: Vec<Mount>,
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
    /// PID 1 of the bay as the host sees it, while there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_pid: Option<i32>,
    /// What it cost so far, as the host measured it.
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

/// Where a workspace went that outlived its bay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BayDeleted {
    pub id: BayId,
    pub name: BayName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_workspace: Option<PathBuf>,
}

/// A workspace that outlived its bay: `bay workspaces ls --json` is an array of these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceView {
    pub name: String,
    /// What the bay was called.
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
    fn a_limit_that_is_not_a_number_is_not_taken_for_none() {
        let odd = Limits { cpus: Some(f64::NAN), ..Limits::default() };
        let json = serde_json::to_string(&odd).unwrap();
        assert!(serde_json::from_str::<Limits>(&json).is_err(), "{json}");
        for fine in [Limits::default(), Limits { cpus: Some(1.5), ..Limits::default() }] {
            let json = serde_json::to_string(&fine).unwrap();
            assert_eq!(serde_json::from_str::<Limits>(&json).unwrap(), fine);
        }
    }
}
