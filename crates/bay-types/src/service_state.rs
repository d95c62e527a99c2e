//! The states of a service.

use serde::{Deserialize, Serialize};

use crate::text_enum::text_enum;

/// What a service is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceState {
    /// It waits for the services it needs.
    Waiting,
    /// Its health check has not passed yet. Without a check: it has not run long enough.
    Starting,
    Ready,
    /// It runs, but its health check fails.
    Unhealthy,
    /// It ended, and is restarted soon.
    BackingOff,
    /// It ended repeatedly right after its start. It is retried from time to time.
    CrashLoop,
    Stopping,
    /// A caller stopped it.
    Stopped,
    /// It succeeded, and its policy does not restart it.
    Done,
    /// It failed and its policy does not restart it, or its definition cannot be read.
    Failed,
}

text_enum!(ServiceState {
    Waiting = "waiting",
    Starting = "starting",
    Ready = "ready",
    Unhealthy = "unhealthy",
    BackingOff = "backing-off",
    CrashLoop = "crash-loop",
    Stopping = "stopping",
    Stopped = "stopped",
    Done = "done",
    Failed = "failed",
});

impl ServiceState {
    /// Whether services that need it may start.
    #[must_use]
    pub fn satisfies(self) -> bool {
        matches!(self, Self::Ready | Self::Done)
    }

    /// Whether the record has the moment in which it reaches this state. The other states are on the way to one of these.
    #[must_use]
    pub fn is_recorded(self) -> bool {
        !matches!(self, Self::Waiting | Self::Starting | Self::Stopping)
    }

    /// Whether waiting for the service is of no use: it stays like this until somebody acts, or fails again and
    /// again.
    #[must_use]
    pub fn is_stuck(self) -> bool {
        matches!(self, Self::CrashLoop | Self::Stopped | Self::Failed)
    }
}
