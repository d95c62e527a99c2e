//! The one error shape that reaches a person or a program: a stable code, what happened and why, what to do next.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! error_codes {
    ($( $(#[$doc:meta])* $variant:ident = $text:literal, $status:literal, $exit:literal; )*) => {
        /// A stable name for each way of failing. The text never changes once released; `docs/errors.md` indexes it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum ErrorCode {
            $( $(#[$doc])* #[serde(rename = $text)] $variant, )*
        }

        impl ErrorCode {
            /// Every code, for the drift test over `docs/errors.md`.
            pub const ALL: &'static [ErrorCode] = &[ $( ErrorCode::$variant, )* ];

            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $( ErrorCode::$variant => $text, )* }
            }

            /// HTTP status this code is sent with.
            #[must_use]
            pub fn http_status(self) -> u16 {
                match self { $( ErrorCode::$variant => $status, )* }
            }

            /// Exit code of the CLI. Codes of `exec` pass the command's own through and use 125 for our failures.
            #[must_use]
            pub fn exit_code(self) -> u8 {
                match self { $( ErrorCode::$variant => $exit, )* }
            }
        }
    };
}

error_codes! {
    /// A name, flag, path or body that cannot mean anything.
    InvalidInput = "invalid-input", 400, 2;
    InvalidName = "invalid-name", 400, 2;
    BayNotFound = "bay-not-found", 404, 3;
    BayExists = "bay-exists", 409, 4;
    /// The verb does not fit the state the bay is in.
    BayState = "bay-state", 409, 4;
    /// The bay could not be brought to the wanted state.
    BayFailed = "bay-failed", 500, 5;
    ExecNotFound = "exec-not-found", 404, 3;
    /// An exec with this id exists with another command.
    ExecConflict = "exec-conflict", 409, 4;
    /// The command is not executable, or its directory or user does not exist.
    ExecStart = "exec-start", 422, 126;
    /// The bay has no such command.
    CommandNotFound = "command-not-found", 422, 127;
    ServiceNotFound = "service-not-found", 404, 3;
    /// Other services need it.
    ServiceInUse = "service-in-use", 409, 4;
    /// It was defined, and did not become ready.
    ServiceFailed = "service-failed", 500, 5;
    ImageNotFound = "image-not-found", 404, 3;
    ImageInUse = "image-in-use", 409, 4;
    ImageImport = "image-import", 422, 5;
    RepoNotFound = "repo-not-found", 404, 3;
    RepoInUse = "repo-in-use", 409, 4;
    RepoFetch = "repo-fetch", 422, 5;
    RepoAuth = "repo-auth", 422, 5;
    RepoEmpty = "repo-empty", 422, 5;
    RefNotFound = "ref-not-found", 404, 3;
    /// The bay has no work that was not there when it began.
    NothingToTake = "nothing-to-take", 409, 4;
    /// What came out of a bay is not a well-formed piece of git history.
    WorkRefused = "work-refused", 422, 5;
    /// The branch has commits that the work does not build on.
    BranchDiverged = "branch-diverged", 409, 4;
    PushFailed = "push-failed", 422, 5;
    /// What would leave a bay holds a secret.
    SecretFound = "secret-found", 409, 4;
    /// No workspace is kept under this name, or more than one could be meant.
    WorkspaceNotFound = "workspace-not-found", 404, 3;
    CheckpointNotFound = "checkpoint-not-found", 404, 3;
    /// What runs in the bay cannot be captured or brought back; its files can.
    MemoryUnavailable = "memory-unavailable", 422, 5;
    /// A policy or a grant with a mistake; nothing of it has any effect.
    PolicyInvalid = "policy-invalid", 422, 2;
    SecretNotFound = "secret-not-found", 404, 3;
    /// A secret with a mistake: its value, what it is for, or where the bay is to find it.
    SecretInvalid = "secret-invalid", 422, 2;
    /// The command that has a secret's values gave none.
    SecretSource = "secret-source", 422, 5;
    GrantNotFound = "grant-not-found", 404, 3;
    ApprovalNotFound = "approval-not-found", 404, 3;
    /// Somebody, or time, was faster.
    ApprovalAnswered = "approval-answered", 409, 4;
    /// A person is asked about it. The same request finds the answer later.
    ApprovalPending = "approval-pending", 503, 5;
    /// A person, or nobody in time, said no.
    Denied = "denied", 403, 5;
    WebhookNotFound = "webhook-not-found", 404, 3;
    PathNotFound = "path-not-found", 404, 3;
    /// A path leaves the place it must stay in, or is of a kind that cannot be copied.
    PathRefused = "path-refused", 422, 2;
    /// The host has less memory, disk or processors than was asked for.
    NotEnough = "not-enough", 422, 5;
    PoolFull = "pool-full", 507, 5;
    /// A bay has used the disk that it was given; the pool has room for others.
    DiskLimit = "disk-limit", 507, 5;
    PoolDamaged = "pool-damaged", 500, 6;
    PoolReadOnly = "pool-read-only", 500, 6;
    StoreDamaged = "store-damaged", 500, 6;
    EventNotFound = "event-not-found", 404, 3;
    /// The record is not what was signed: edited, cut, reordered, forked, or signed by another key.
    LedgerBroken = "ledger-broken", 500, 6;
    /// The daemon's key, or something that was encrypted with it, is not there or not the right one.
    KeyUnusable = "key-unusable", 500, 6;
    /// Another daemon owns this data directory.
    DataDirBusy = "data-dir-busy", 409, 6;
    /// The host lacks something that bays cannot do without; `bay doctor` tells what.
    HostUnfit = "host-unfit", 500, 6;
    DaemonUnreachable = "daemon-unreachable", 503, 6;
    GuestUnreachable = "guest-unreachable", 503, 5;
    NotRoot = "not-root", 403, 6;
    /// The verb is not for principals of this kind.
    NotPermitted = "not-permitted", 403, 6;
    /// A caller over TCP without the token, under a foreign name, or from a web page.
    Unauthorized = "unauthorized", 401, 6;
    /// The operation was cut short and can be repeated as it is.
    Interrupted = "interrupted", 503, 5;
    /// A defect of ours.
    Internal = "internal", 500, 70;
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What the API answers with when it cannot do what was asked, and what the CLI prints in two lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub code: ErrorCode,
    /// What was tried, on what, and why it failed.
    pub message: String,
    /// What the reader can do now; a command where there is one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub next: String,
}

impl ApiError {
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>, next: impl Into<String>) -> Self {
        Self { code, message: message.into(), next: next.into() }
    }

    /// A defect of ours, with the chain of causes in one line.
    #[must_use]
    pub fn internal(error: &dyn std::error::Error) -> Self {
        Self::new(
            ErrorCode::Internal,
            chain(error),
            "this is a defect of Workbay; the daemon's log has the details",
        )
    }
}

/// An error and its sources joined by ": ", for the one place where a chain is printed.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_round_trip() {
        let mut seen = std::collections::HashSet::new();
        for code in ErrorCode::ALL {
            assert!(seen.insert(code.as_str()), "{code} twice");
            let json = serde_json::to_string(code).unwrap();
            assert_eq!(json, format!("\"{code}\""));
            assert_eq!(serde_json::from_str::<ErrorCode>(&json).unwrap(), *code);
            assert!(code.http_status() >= 400 && code.exit_code() != 0);
        }
    }
}
