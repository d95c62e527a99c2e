//! What handlers read from a request: the caller, its JSON, its place in a trace. A request that does not fit is refused
//! with an [`CoreError`], never ignored in part.

use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, Request, State};
use bay_core::{Daemon, plain_text};
use bay_types::principal::Principal;
use bay_types::trace::{TRACEPARENT, Traceparent};
use bay_types::{CoreError, ErrorCode};
use http::request::Parts;
use serde::de::DeserializeOwned;

use crate::response::Failure;
use crate::words::Words;

/// Longest JSON body: a command line with every byte escaped.
pub(crate) const MAX_JSON: usize = 8 << 20;

/// The daemon, as every handler gets it.
pub(crate) type Shared = State<Arc<Daemon>>;

/// A JSON body. The error says where it does not fit.
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
                format!("the request's body does not fit: {}", plain_text(&e.to_string())),
                "the CLI and the daemon may be of different releases; compare `bay --version` on both",
            ))
        })
    }
}

/// For handlers that take no query: a key that is ignored would be a wish that is.
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

/// Who sent the request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller(pub(crate) Principal);

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Failure> {
        // Put there by the listener for every connection; without it nobody is trusted.
        parts.extensions.get::<Principal>().copied().map(Self).ok_or_else(|| {
            Failure(CoreError::new(
                ErrorCode::NotRoot,
                "the caller is not known",
                "connect through the daemon's socket",
            ))
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Words {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Self::Rejection> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

/// Where in a trace the caller is. A context that is none is as good as none: the standard asks for a new trace then.
#[derive(Debug)]
pub(crate) struct Parent(pub(crate) Option<Traceparent>);

impl<S: Send + Sync> FromRequestParts<S> for Parent {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Failure> {
        let given = parts.headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
        Ok(Self(given.and_then(|text| text.trim().parse().ok())))
    }
}
