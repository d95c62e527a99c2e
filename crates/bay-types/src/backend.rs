//! The capabilities of backends: where two drivers differ, a field says how.
//!
//! The daemon shows them with each bay, and records them when a bay starts to run. Verbs that need memory checkpoints
//! check that field before they begin. The other fields inform people and programs.

use serde::{Deserialize, Serialize};

/// The name of a driver, such as `local`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BackendName(String);

impl BackendName {
    /// The driver of all bays that were made before there were others, and the default for new ones.
    pub const LOCAL: &str = "local";

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for BackendName {
    fn default() -> Self {
        Self(Self::LOCAL.to_owned())
    }
}

impl From<String> for BackendName {
    fn from(name: String) -> Self {
        Self(name)
    }
}

impl From<&str> for BackendName {
    fn from(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl std::fmt::Display for BackendName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What separates the processes of a bay from the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IsolationGrade {
    /// The host's kernel serves the bay; namespaces and filters separate them.
    SharedKernel,
    /// A kernel that runs as a process of the host serves the bay.
    UserKernel,
    /// A kernel behind a processor's virtualisation serves the bay.
    VirtualMachine,
}

impl IsolationGrade {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SharedKernel => "shared-kernel",
            Self::UserKernel => "user-kernel",
            Self::VirtualMachine => "virtual-machine",
        }
    }
}

/// Whether a driver can do one thing on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "support", rename_all = "kebab-case")]
pub enum Support {
    Yes,
    No {
        /// One line for a person.
        reason: String,
    },
}

impl Support {
    pub fn no(reason: impl Into<String>) -> Self {
        Self::No { reason: reason.into() }
    }

    /// The reason why not.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Yes => None,
            Self::No { reason } => Some(reason),
        }
    }
}

/// What a checkpoint of files costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FilesCheckpoint {
    /// A copy-on-write snapshot: its cost does not depend on how much the bay holds.
    Snapshot,
    /// A copy of everything that the bay holds.
    Copy,
}

/// Who decides on egress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EgressControl {
    /// The bay's gateway: every connection arrives there, and the policy decides on each request.
    Gateway,
    /// The backend itself: the policy is only passed to it.
    Backend,
}

/// How precisely the backend can tell who opened a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttributionGrain {
    /// The exec that opened it.
    Exec,
    /// Only the bay.
    Bay,
}

/// What one driver can do on this host, as detected when the daemon started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    pub isolation: IsolationGrade,
    /// Whether checkpoints can hold running processes, which live forks need.
    pub memory_checkpoints: Support,
    pub files_checkpoint: FilesCheckpoint,
    /// Whether the limits of a running bay can change.
    pub live_limits: Support,
    pub egress: EgressControl,
    pub attribution: AttributionGrain,
    /// Whether containers can run inside the bay.
    pub nested_containers: Support,
    /// Whether the disk space of a bay can be limited.
    pub quota: Support,
}

/// One backend of a daemon, in the answer of `GET /v1/backends`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendView {
    pub name: BackendName,
    /// Whether it runs the new bays that name no backend.
    pub is_default: bool,
    /// How it separates bays from the host, in one line.
    pub detail: String,
    pub capabilities: Capabilities,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_keep_their_json_shape() {
        let capabilities = Capabilities {
            isolation: IsolationGrade::UserKernel,
            memory_checkpoints: Support::no("CRIU is missing"),
            files_checkpoint: FilesCheckpoint::Snapshot,
            live_limits: Support::Yes,
            egress: EgressControl::Gateway,
            attribution: AttributionGrain::Bay,
            nested_containers: Support::Yes,
            quota: Support::Yes,
        };
        let json = serde_json::json!({
            "isolation": "user-kernel",
            "memory_checkpoints": { "support": "no", "reason": "CRIU is missing" },
            "files_checkpoint": "snapshot",
            "live_limits": { "support": "yes" },
            "egress": "gateway",
            "attribution": "bay",
            "nested_containers": { "support": "yes" },
            "quota": { "support": "yes" },
        });
        assert_eq!(serde_json::to_value(&capabilities).unwrap(), json);
        assert_eq!(serde_json::from_value::<Capabilities>(json).unwrap(), capabilities);
        assert_eq!(capabilities.isolation.as_str(), "user-kernel");
    }
}
