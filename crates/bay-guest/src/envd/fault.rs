//! Errors, in the two forms of the interface: Connect's for calls, plain JSON for `/files`.

use bay_types::{ApiError, ErrorCode};
use http::{Response, StatusCode};
use serde::Serialize;

use crate::files::FileError;
use crate::http::{Body, json};

/// Kinds of failure that clients of the interface distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Invalid,
    NotFound,
    AlreadyExists,
    Unauthenticated,
    /// The request is valid, but not for this process or this path.
    Precondition,
    TooMany,
    NoSpace,
    Canceled,
    DeadlineExceeded,
    DataLoss,
    Unimplemented,
    UnsupportedMedia,
    NotAcceptable,
    BadRange,
    Internal,
}

impl Kind {
    /// Connect's name of the kind.
    fn code(self) -> &'static str {
        match self {
            Kind::Invalid | Kind::UnsupportedMedia | Kind::NotAcceptable => "invalid_argument",
            Kind::NotFound => "not_found",
            Kind::AlreadyExists => "already_exists",
            Kind::Unauthenticated => "unauthenticated",
            Kind::Precondition => "failed_precondition",
            Kind::TooMany => "resource_exhausted",
            Kind::Canceled => "canceled",
            Kind::DeadlineExceeded => "deadline_exceeded",
            Kind::DataLoss => "data_loss",
            Kind::Unimplemented => "unimplemented",
            Kind::BadRange => "out_of_range",
            // Clients treat `resource_exhausted` as a rate limit, which a full disk is not.
            Kind::NoSpace | Kind::Internal => "internal",
        }
    }

    /// The status of an answer to a single call, as Connect defines it for each code.
    fn call_status(self) -> u16 {
        match self {
            Kind::Invalid | Kind::Precondition | Kind::NotAcceptable | Kind::BadRange => 400,
            Kind::NotFound => 404,
            Kind::AlreadyExists => 409,
            Kind::Unauthenticated => 401,
            Kind::TooMany => 429,
            Kind::Canceled => 499,
            Kind::DeadlineExceeded => 504,
            Kind::Unimplemented => 501,
            Kind::UnsupportedMedia => 415,
            Kind::NoSpace | Kind::DataLoss | Kind::Internal => 500,
        }
    }

    fn http_status(self) -> u16 {
        match self {
            Kind::NoSpace => 507,
            Kind::NotAcceptable => 406,
            Kind::BadRange => 416,
            other => other.call_status(),
        }
    }
}

/// A failure, with the message for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct Fault {
    pub(super) kind: Kind,
    pub(super) message: String,
}

pub(super) type Result<T> = std::result::Result<T, Fault>;

#[derive(Serialize)]
pub(super) struct ConnectError<'a> {
    code: &'static str,
    message: &'a str,
}

#[derive(Serialize)]
struct PlainError<'a> {
    code: u16,
    message: &'a str,
}

impl Fault {
    pub(super) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    pub(super) fn internal(error: &dyn std::error::Error) -> Self {
        Self::new(Kind::Internal, bay_types::error::chain(error))
    }

    pub(super) fn as_connect(&self) -> ConnectError<'_> {
        ConnectError { code: self.kind.code(), message: &self.message }
    }

    /// As the answer to a single call.
    pub(super) fn to_call(&self) -> Response<Body> {
        json(status(self.kind.call_status()), &self.as_connect())
    }

    /// As the answer of a plain route.
    pub(super) fn to_http(&self) -> Response<Body> {
        let code = self.kind.http_status();
        json(status(code), &PlainError { code, message: &self.message })
    }
}

fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl From<FileError> for Fault {
    fn from(error: FileError) -> Self {
        let kind = match &error {
            FileError::Absent(_) | FileError::NoParent(_) => Kind::NotFound,
            FileError::Refused { .. } | FileError::Archive(_) => Kind::Invalid,
            FileError::Full(_) | FileError::Quota(_) => Kind::NoSpace,
            FileError::User(_) => Kind::Unauthenticated,
            FileError::BrokeOff => Kind::Canceled,
            FileError::Io { .. } => Kind::Internal,
        };
        Self::new(kind, bay_types::error::chain(&error))
    }
}

impl From<ApiError> for Fault {
    fn from(error: ApiError) -> Self {
        let kind = match error.code {
            ErrorCode::InvalidInput
            | ErrorCode::ExecStart
            | ErrorCode::CommandNotFound
            | ErrorCode::PathRefused => Kind::Invalid,
            ErrorCode::ExecNotFound | ErrorCode::PathNotFound => Kind::NotFound,
            ErrorCode::PoolFull | ErrorCode::DiskLimit => Kind::NoSpace,
            ErrorCode::NotEnough => Kind::TooMany,
            ErrorCode::Interrupted => Kind::Canceled,
            _ => Kind::Internal,
        };
        Self::new(kind, error.message)
    }
}
