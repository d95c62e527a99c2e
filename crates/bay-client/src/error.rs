//! Errors on the caller's side.

use std::io;

use bay_types::{ApiError, ErrorCode};

/// An input or output error on the caller's side; `doing` states what was tried, on what.
#[must_use]
pub fn local(doing: &str, error: &io::Error) -> ApiError {
    let (code, next) = match error.kind() {
        io::ErrorKind::NotFound => (ErrorCode::PathNotFound, "check the path"),
        io::ErrorKind::PermissionDenied => {
            (ErrorCode::PathRefused, "check the permissions, or run as another user")
        }
        io::ErrorKind::StorageFull => (ErrorCode::NotEnough, "free some disk space and try again"),
        io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => {
            (ErrorCode::PathRefused, "check the path")
        }
        _ => (ErrorCode::Interrupted, "try again"),
    };
    ApiError::new(code, format!("{doing}: {error}"), next)
}

/// An error for a request of the caller that is invalid.
#[must_use]
pub fn invalid(message: impl Into<String>, next: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::InvalidInput, message, next)
}

/// An error for a connection to the daemon that ended, or carried what no daemon sends.
#[must_use]
pub fn broken(why: &str) -> ApiError {
    ApiError::new(
        ErrorCode::DaemonUnreachable,
        format!("talking to the daemon: {why}"),
        "run the command again; what was acknowledged is kept",
    )
}

pub(crate) fn unreachable(error: &(dyn std::error::Error + 'static)) -> ApiError {
    broken(&format!("the connection broke: {}", bay_types::error::chain(error)))
}
