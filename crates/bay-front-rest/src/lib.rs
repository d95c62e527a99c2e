//! The REST front: thin handlers that parse a request, call a verb and encode its outcome as JSON. Every error, also one
//! of the router's own, is an [`ApiError`] body.
#![forbid(unsafe_code)]

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bay_core::{Daemon, plain_text};
use bay_types::{ApiError, ErrorCode};
use http::{HeaderValue, StatusCode, header};

mod approvals;
mod audit;
mod bays;
mod checkpoints;
mod diff;
mod drain_body_before_close;
mod egress;
mod execs;
mod files;
mod images;
mod metrics;
mod notify;
mod policy;
mod ports;
mod repos;
mod request;
mod response;
mod secrets;
mod services;
mod timeline;
mod workspaces;

use request::{MAX_JSON, Shared};
pub use response::Failure;
use response::Json;

/// Longest body of an error.
const MAX_ERROR: usize = 64 << 10;
/// Longest body of the router's own that is turned into an [`ApiError`].
const MAX_PLAIN_ERROR: usize = 4096;

/// Everything the daemon answers to.
pub fn router(daemon: Arc<Daemon>) -> Router {
    Router::new()
        .merge(approvals::routes())
        .merge(audit::routes())
        .merge(bays::routes())
        .merge(checkpoints::routes())
        .merge(diff::routes())
        .merge(egress::routes())
        .merge(execs::routes())
        .merge(files::routes())
        .merge(images::routes())
        .merge(metrics::routes())
        .merge(notify::routes())
        .merge(policy::routes())
        .merge(ports::routes())
        .merge(repos::routes())
        .merge(secrets::routes())
        .merge(services::routes())
        .merge(timeline::routes())
        .merge(workspaces::routes())
        .fallback(|request: Request| async move {
            Failure(ApiError::new(
                ErrorCode::PathNotFound,
                format!("the API has no {}", plain_text(request.uri().path())),
                "the CLI and the daemon may be of different releases; compare `bay --version` on both",
            ))
        })
        .layer(DefaultBodyLimit::max(MAX_JSON))
        .layer(axum::middleware::map_response(plain_to_json))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&daemon), name_in_hints))
        .with_state(daemon)
}

/// Much of what goes wrong in a bay is told by those who do not know what it is called; they write `NAME`.
async fn name_in_hints(State(daemon): Shared, request: Request, next: Next) -> Response {
    let given = request.uri().path().strip_prefix("/v1/bays/").and_then(|rest| rest.split('/').next());
    let name = given.and_then(|given| bay_core::verbs::bays::name_of(&daemon, given));
    let response = next.run(request).await;
    let failed = response.status().is_client_error() || response.status().is_server_error();
    let Some(name) = name.filter(|_| failed) else { return response };
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, MAX_ERROR).await.unwrap_or_default();
    match serde_json::from_slice::<ApiError>(&body) {
        Ok(mut error) if error.next.contains(" NAME") => {
            error.next = error.next.replace(" NAME", &format!(" {name}"));
            (parts.status, Json(error)).into_response()
        }
        _ => Response::from_parts(parts, body.into()),
    }
}

/// The router and its extractors answer some errors as plain text; callers are promised JSON.
async fn plain_to_json(response: Response) -> Response {
    let status = response.status();
    let is_json =
        response.headers().get(header::CONTENT_TYPE) == Some(&HeaderValue::from_static("application/json"));
    if is_json || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let allow = response.headers().get(header::ALLOW).cloned();
    let body = axum::body::to_bytes(response.into_body(), MAX_PLAIN_ERROR).await.unwrap_or_default();
    let said = plain_text(&String::from_utf8_lossy(&body));
    let (code, message) = match status {
        StatusCode::METHOD_NOT_ALLOWED => {
            (ErrorCode::InvalidInput, "this path does not take this method".to_owned())
        }
        status if status.is_client_error() => {
            (ErrorCode::InvalidInput, if said.is_empty() { status.to_string() } else { said })
        }
        status => (ErrorCode::Internal, if said.is_empty() { status.to_string() } else { said }),
    };
    let error = ApiError::new(code, message, "docs/errors.md lists the codes; the daemon's log has more");
    let mut answer = (status, Json(error)).into_response();
    if let Some(allow) = allow {
        answer.headers_mut().insert(header::ALLOW, allow);
    }
    answer
}

#[cfg(test)]
mod tests;
