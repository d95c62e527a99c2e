//! The error types: a stable code, what happened and why, and what to do next. [`CoreError`] is an error below the fronts,
//! whose hint has no front's words yet; [`ApiError`] is the error as the API and the CLI show it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::hint::{Action, Hint};
use crate::id::BayName;

macro_rules! error_codes {
    ($( $(#[$doc:meta])* $variant:ident = $text:literal, $status:literal, $exit:literal; )*) => {
        /// Error codes. A released code never changes; `docs/errors.md` lists them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum ErrorCode {
            $( $(#[$doc])* #[serde(rename = $text)] $variant, )*
        }

        impl ErrorCode {
            /// Every code, for the test that compares them with `docs/errors.md`.
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

            /// Exit code of the CLI. `bay exec` exits with the command's own code, or with 125 for an error of
            /// Workbay.
            #[must_use]
            pub fn exit_code(self) -> u8 {
                match self { $( ErrorCode::$variant => $exit, )* }
            }
        }
    };
}

error_codes! {
    /// An invalid name, flag, path or body.
    InvalidInput = "invalid-input", 400, 2;
    InvalidName = "invalid-name", 400, 2;
    BayNotFound = "bay-not-found", 404, 3;
    BayExists = "bay-exists", 409, 4;
    /// The bay's state does not allow the verb.
    BayState = "bay-state", 409, 4;
    /// The bay could not reach the desired state.
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
    /// It was defined, but did not become ready.
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
    /// The bay has no new work.
    NothingToTake = "nothing-to-take", 409, 4;
    /// The work of a bay is not well-formed git history.
    WorkRefused = "work-refused", 422, 5;
    /// The branch has commits that the work does not build on.
    BranchDiverged = "branch-diverged", 409, 4;
    PushFailed = "push-failed", 422, 5;
    /// The work that would leave the bay contains a secret.
    SecretFound = "secret-found", 409, 4;
    /// No kept workspace has this name, or more than one matches.
    WorkspaceNotFound = "workspace-not-found", 404, 3;
    CheckpointNotFound = "checkpoint-not-found", 404, 3;
    /// The bay's memory cannot be captured or restored. Its files can.
    MemoryUnavailable = "memory-unavailable", 422, 5;
    /// An invalid policy or grant; none of it takes effect.
    PolicyInvalid = "policy-invalid", 422, 2;
    SecretNotFound = "secret-not-found", 404, 3;
    /// An invalid secret: its value, its uses, or its places in the bay.
    SecretInvalid = "secret-invalid", 422, 2;
    /// The command that supplies a secret's value did not give one.
    SecretSource = "secret-source", 422, 5;
    GrantNotFound = "grant-not-found", 404, 3;
    ApprovalNotFound = "approval-not-found", 404, 3;
    /// The approval was already answered, or has expired.
    ApprovalAnswered = "approval-answered", 409, 4;
    /// A person must decide. Repeating the request later gets the decision.
    ApprovalPending = "approval-pending", 503, 5;
    /// A person denied it, or nobody answered in time.
    Denied = "denied", 403, 5;
    WebhookNotFound = "webhook-not-found", 404, 3;
    /// Nothing in the bay listens on the port, or nothing accepts connections there.
    PortClosed = "port-closed", 502, 5;
    PathNotFound = "path-not-found", 404, 3;
    /// A path leads out of its allowed directory, or cannot be copied.
    PathRefused = "path-refused", 422, 2;
    /// The host has less memory, disk or processors than the request needs.
    NotEnough = "not-enough", 422, 5;
    PoolFull = "pool-full", 507, 5;
    /// The bay has used up its disk limit; the pool still has space.
    DiskLimit = "disk-limit", 507, 5;
    PoolDamaged = "pool-damaged", 500, 6;
    PoolReadOnly = "pool-read-only", 500, 6;
    StoreDamaged = "store-damaged", 500, 6;
    EventNotFound = "event-not-found", 404, 3;
    /// The record does not match its signed head: edited, cut, reordered, forked, or signed by another key.
    LedgerBroken = "ledger-broken", 500, 6;
    /// The daemon's key, or a file encrypted with it, is missing or wrong.
    KeyUnusable = "key-unusable", 500, 6;
    /// Another daemon owns this data directory.
    DataDirBusy = "data-dir-busy", 409, 6;
    /// The host lacks something that bays need; `bay doctor` names it.
    HostUnfit = "host-unfit", 500, 6;
    DaemonUnreachable = "daemon-unreachable", 503, 6;
    GuestUnreachable = "guest-unreachable", 503, 5;
    NotRoot = "not-root", 403, 6;
    /// The verb is not for principals of this kind.
    NotPermitted = "not-permitted", 403, 6;
    /// A TCP request without the token, under a foreign host name, or from a web page.
    Unauthorized = "unauthorized", 401, 6;
    /// The operation was interrupted and can be repeated.
    Interrupted = "interrupted", 503, 5;
    /// A defect of Workbay.
    Internal = "internal", 500, 70;
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error answer of the API. The CLI prints it in two lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub code: ErrorCode,
    /// What was tried, on what, and why it failed.
    pub message: String,
    /// What to do next, if possible as a command.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub next: String,
}

impl ApiError {
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>, next: impl Into<String>) -> Self {
        Self { code, message: message.into(), next: next.into() }
    }

    /// A defect of Workbay, with the chain of causes on one line.
    #[must_use]
    pub fn internal(error: &dyn std::error::Error) -> Self {
        Self::new(ErrorCode::Internal, chain(error), DEFECT)
    }
}

/// What to do about a defect of Workbay.
const DEFECT: &str = "this is a defect of Workbay; the daemon's log has the details";

/// An error below the fronts. It cannot be serialized: a front puts its hint into words first.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CoreError {
    pub code: ErrorCode,
    /// What was tried, on what, and why it failed.
    pub message: String,
    /// What to do next.
    pub hint: Hint,
}

impl CoreError {
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>, hint: impl Into<Hint>) -> Self {
        Self { code, message: message.into(), hint: hint.into() }
    }

    /// A defect of Workbay, with the chain of causes on one line.
    #[must_use]
    pub fn internal(error: &dyn std::error::Error) -> Self {
        Self::new(ErrorCode::Internal, chain(error), DEFECT)
    }

    /// The error with the bay's name in its hint, for use outside of the request that it was made for.
    #[must_use]
    pub fn about(self, bay: &BayName) -> Self {
        Self { hint: self.hint.about(bay), ..self }
    }

    /// The error as a front shows it. `words` is the front's table of actions.
    #[must_use]
    pub fn worded(self, words: impl Fn(&Action) -> Option<String>) -> ApiError {
        ApiError { code: self.code, message: self.message, next: self.hint.worded(words) }
    }
}

/// An error that has its text already, from a part that has no actions to point at.
impl From<ApiError> for CoreError {
    fn from(error: ApiError) -> Self {
        Self::new(error.code, error.message, error.next)
    }
}

/// An error and its sources, joined by ": ".
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
