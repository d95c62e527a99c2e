//! The REST front: thin handlers that parse a request, call a verb and encode its outcome as JSON. An error has an
//! [`ApiError`] as its body, also one of the router itself. If a response has begun already, the error is its last
//! line or frame, or the stream is cut. Hints are in the words of [`bay_cli_words`].
#![forbid(unsafe_code)]

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bay_cli_words::Words;
use bay_core::{Daemon, plain_text};
use bay_types::{ApiError, CoreError, ErrorCode};
use http::{HeaderValue, StatusCode, header};

mod approvals;
mod audit;
mod bays;
mod checkpoints;
mod diff;
mod disk;
mod drain_body_before_close;
mod egress;
mod execs;
mod files;
mod forwards;
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
mod story;
mod timeline;
mod upgrade;
mod work;
mod workspaces;

use request::{MAX_JSON, Shared};
use response::{Failure, Json};

/// Longest plain text of an error of the router that is kept in its [`ApiError`]. A longer one is replaced by the
/// status.
const MAX_PLAIN_ERROR: usize = 4096;

/// All routes of the API.
pub fn router(daemon: Arc<Daemon>) -> Router {
    Router::new()
        .merge(approvals::routes())
        .merge(audit::routes())
        .merge(bays::routes())
        .merge(checkpoints::routes())
        .merge(diff::routes())
        .merge(disk::routes())
        .merge(egress::routes())
        .merge(execs::routes())
        .merge(files::routes())
        .merge(forwards::routes())
        .merge(images::routes())
        .merge(metrics::routes())
        .merge(notify::routes())
        .merge(policy::routes())
        .merge(ports::routes())
        .merge(repos::routes())
        .merge(secrets::routes())
        .merge(services::routes())
        .merge(story::routes())
        .merge(timeline::routes())
        .merge(work::routes())
        .merge(workspaces::routes())
        .fallback(|request: Request| async move {
            Failure(CoreError::new(
                ErrorCode::PathNotFound,
                format!("the API has no {}", plain_text(request.uri().path())),
                "the CLI and the daemon may be of different releases; compare `bay --version` on both",
            ))
        })
        .layer(DefaultBodyLimit::max(MAX_JSON))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&daemon), encode_errors))
        .with_state(daemon)
}

/// Gives errors the hints of this front. A handler whose error comes after the beginning of its response gets the
/// [`Words`] from the request's extensions.
async fn encode_errors(State(daemon): Shared, mut request: Request, next: Next) -> Response {
    let given = request.uri().path().strip_prefix("/v1/bays/").and_then(|rest| rest.split('/').next());
    // Before the request, because it may remove the bay.
    let name = given.and_then(|given| bay_core::verbs::bays::name_of(&daemon, given));
    let words = Words::new(name.map(|name| name.to_string()));
    request.extensions_mut().insert(words.clone());
    let mut response = next.run(request).await;
    match response.extensions_mut().remove::<CoreError>() {
        Some(error) => encoded(words.error(error)),
        None => plain_to_json(response).await,
    }
}

/// The response for an error, also for one of the listener before the router.
#[must_use]
pub fn encoded(error: ApiError) -> Response {
    (response::status(error.code.http_status()), Json(error)).into_response()
}

/// Converts the router's and extractors' plain-text errors to JSON, which callers expect.
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
