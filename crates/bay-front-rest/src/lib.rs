//! The REST front: thin handlers that parse a request, call a verb and encode its outcome as JSON. Every error, also one
//! of the router's own, is an [`ApiError`] body.
#![forbid(unsafe_code)]

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, patch, post};
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
        .route("/metrics", get(metrics::metrics))
        .route("/v1/health", get(bays::health))
        .route("/v1/events", get(bays::events))
        .route("/v1/events/verify", get(bays::verify_events))
        .route("/v1/audit/key", get(audit::key))
        .route("/v1/audit/head", get(audit::head))
        .route("/v1/audit/export", get(audit::export))
        .route("/v1/audit/proof/{event}", get(audit::proof))
        .route("/v1/audit/consistency", get(audit::consistency))
        .route("/v1/top", get(bays::top))
        .route("/v1/bays", get(bays::list).post(bays::create))
        .route("/v1/bays/{bay}", get(bays::show).delete(bays::remove))
        .route("/v1/bays/{bay}/start", post(bays::start))
        .route("/v1/bays/{bay}/stop", post(bays::stop))
        .route("/v1/bays/{bay}/pause", post(bays::pause))
        .route("/v1/bays/{bay}/resume", post(bays::resume))
        .route("/v1/bays/{bay}/replace", post(bays::replace))
        .route("/v1/bays/{bay}/limits", patch(bays::set))
        .route("/v1/bays/{bay}/checkpoints", get(checkpoints::list).post(checkpoints::create))
        .route("/v1/bays/{bay}/checkpoints/{checkpoint}", delete(checkpoints::remove))
        .route("/v1/bays/{bay}/diff", get(diff::diff))
        .route("/v1/bays/{bay}/review", get(diff::review))
        .route("/v1/bays/{bay}/restore", post(checkpoints::restore))
        .route("/v1/bays/{bay}/forks", post(checkpoints::fork))
        .route("/v1/bays/{bay}/promote", post(checkpoints::promote))
        .route("/v1/approvals", get(approvals::list))
        .route("/v1/approvals/watch", get(approvals::watch))
        .route("/v1/approvals/{approval}", get(approvals::show))
        .route("/v1/approvals/{approval}/allow", post(approvals::allow))
        .route("/v1/approvals/{approval}/deny", post(approvals::deny))
        .route("/v1/approvals/{approval}/revoke", post(approvals::revoke))
        .route("/v1/notify", get(notify::list).post(notify::add))
        .route("/v1/notify/{webhook}", delete(notify::remove))
        .route("/v1/notify/{webhook}/test", post(notify::test))
        .route("/v1/policy/host", get(policy::host).put(policy::set_host).delete(policy::unset_host))
        .route("/v1/bays/{bay}/policy", get(policy::show).put(policy::set).delete(policy::unset))
        .route(
            "/v1/bays/{bay}/policy/project",
            get(policy::project).put(policy::set_project).delete(policy::unset_project),
        )
        .route("/v1/bays/{bay}/policy/check", post(policy::check))
        .route("/v1/bays/{bay}/policy/explain/{event}", get(policy::explain))
        .route("/v1/bays/{bay}/policy/lint", get(policy::lint))
        .route("/v1/bays/{bay}/policy/diff", post(policy::diff))
        .route("/v1/bays/{bay}/policy/learn", get(policy::learn))
        .route("/v1/bays/{bay}/grants", get(policy::grants).post(policy::grant_add))
        .route("/v1/bays/{bay}/grants/{grant}", delete(policy::grant_rm))
        .route("/v1/secrets", get(secrets::list))
        .route("/v1/secrets/{secret}", get(secrets::show).put(secrets::set).delete(secrets::remove))
        .route("/v1/secrets/{secret}/rotate", post(secrets::rotate))
        .route("/v1/bays/{bay}/execs", get(execs::list).post(execs::start))
        .route("/v1/bays/{bay}/execs/attach", post(execs::start_attached))
        .route("/v1/bays/{bay}/execs/ask", post(execs::ask))
        .route("/v1/bays/{bay}/execs/{exec}", get(execs::show))
        .route("/v1/bays/{bay}/execs/{exec}/attach", post(execs::attach))
        .route("/v1/bays/{bay}/execs/{exec}/output", get(execs::output))
        .route("/v1/bays/{bay}/execs/{exec}/signal", post(execs::signal))
        .route("/v1/bays/{bay}/services", get(services::list))
        .route(
            "/v1/bays/{bay}/services/{service}",
            get(services::show).put(services::define).delete(services::remove),
        )
        .route("/v1/bays/{bay}/services/{service}/output", get(services::output))
        .route("/v1/bays/{bay}/services/{service}/{verb}", post(services::control))
        .route("/v1/bays/{bay}/stat", get(files::stat))
        .route("/v1/bays/{bay}/files", get(files::read).put(files::write))
        .route("/v1/bays/{bay}/archive", get(files::pack).put(files::unpack))
        .route("/v1/bays/{bay}/watch", get(files::watch))
        .route("/v1/bays/{bay}/ports", get(ports::list))
        .route("/v1/bays/{bay}/egress", get(egress::state))
        .route("/v1/bays/{bay}/egress/entries", get(egress::entries))
        .route("/v1/bays/{bay}/timeline", get(timeline::timeline))
        .route("/v1/images", get(images::list).post(images::import))
        .route("/v1/images/{image}", delete(images::remove))
        .route("/v1/repos", get(repos::list))
        .route("/v1/repos/offer", post(repos::offer))
        .route("/v1/repos/sync", post(repos::sync))
        .route("/v1/repos/{repo}/bundle", post(repos::bundle))
        .route("/v1/repos/{repo}", delete(repos::remove))
        .route("/v1/workspaces", get(workspaces::list))
        .route("/v1/workspaces/{workspace}", get(workspaces::show).delete(workspaces::remove))
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
