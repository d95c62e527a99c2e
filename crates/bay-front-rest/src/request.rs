//! Extractors: the caller, the JSON body, the absence of a query, the trace context. Anything invalid is refused with a
//! [`CoreError`], except the trace context, which then counts as absent.

use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, Request, State};
use bay_core::{Daemon, plain_text};
use bay_types::principal::Principal;
use bay_types::trace::{TRACEPARENT, Traceparent};
use bay_types::{CoreError, ErrorCode};
use http::request::Parts;
use serde::de::DeserializeOwned;

use crate::response::Failure;

/// Longest JSON body. A command line of the longest kind fits with every byte escaped.
pub(crate) const MAX_JSON: usize = 8 << 20;

/// The daemon, as handlers receive it.
pub(crate) type Shared = State<Arc<Daemon>>;

/// A JSON body. If it cannot be parsed, the error names the position of the mistake.
#[derive(Debug)]
pub(crate) struct Input<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Input<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let bytes = bytes::Bytes::from_request(request, state).await.map_err(|e| {
            Failure(CoreError::new(
                ErrorCode::InvalidInput,
                format!("the request's body could not be read: {}", e.body_text()),
                format!("a body is JSON of at most {MAX_JSON} bytes"),
            ))
        })?;
        serde_json::from_slice(&bytes).map(Self).map_err(|e| {
            Failure(CoreError::new(
                ErrorCode::InvalidInput,
                format!("the request's body is not valid: {}", plain_text(&e.to_string())),
                "the CLI and the daemon may be of different releases; compare `bay --version` on both",
            ))
        })
    }
}

/// For handlers that take no query. It refuses one, so that nothing that a client asks for is silently ignored.
#[derive(Debug)]
pub(crate) struct NoQuery;

impl<S: Send + Sync> FromRequestParts<S> for NoQuery {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Failure> {
        match parts.uri.query() {
            None | Some("") => Ok(Self),
            Some(query) => Err(Failure(CoreError::new(
                ErrorCode::InvalidInput,
                format!(
                    "{} takes no query, and {:?} was given",
                    plain_text(parts.uri.path()),
                    plain_text(query)
                ),
                "the CLI and the daemon may be of different releases; compare `bay --version` on both",
            ))),
        }
    }
}

/// The principal that sent the request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller(pub(crate) Principal);

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Failure> {
        // The listener sets it for every connection. Without it no caller is trusted.
        parts.extensions.get::<Principal>().copied().map(Self).ok_or_else(|| {
            Failure(CoreError::new(
                ErrorCode::NotRoot,
                "the caller is not known",
                "connect through the daemon's socket",
            ))
        })
    }
}

/// The caller's trace context. An invalid one counts as absent: the standard then requires a new trace.
#[derive(Debug)]
pub(crate) struct Parent(pub(crate) Option<Traceparent>);

impl<S: Send + Sync> FromRequestParts<S> for Parent {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Failure> {
        let given = parts.headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
        Ok(Self(given.and_then(|text| text.trim().parse().ok())))
    }
}
