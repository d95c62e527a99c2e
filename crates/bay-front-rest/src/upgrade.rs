//! Requests that turn their connection into another protocol.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bay_types::{CoreError, ErrorCode};
use http::{HeaderMap, StatusCode, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;

use crate::response::Failure;

/// How long a caller may take to switch protocols after the response.
const SWITCH_WITHIN: Duration = Duration::from_secs(10);

/// The upgrade to the protocol `token` that the request asks for. If the request has not the headers for it, or its
/// connection cannot be upgraded, it is an error with the hint `otherwise`.
pub(crate) fn requested(
    request: &mut Request,
    token: &'static str,
    otherwise: &'static str,
) -> Result<OnUpgrade, Failure> {
    let asked = |headers: &HeaderMap, name, token: &str| {
        headers
            .get_all(name)
            .iter()
            .filter_map(|v| v.to_str().ok())
            .any(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(token)))
    };
    let fits = asked(request.headers(), header::UPGRADE, token)
        && asked(request.headers(), header::CONNECTION, "upgrade");
    match request.extensions_mut().remove::<OnUpgrade>() {
        Some(switch) if fits => Ok(switch),
        _ => Err(Failure(CoreError::new(
            ErrorCode::InvalidInput,
            format!("an upgrade needs the headers `Connection: Upgrade` and `Upgrade: {token}`"),
            otherwise,
        ))),
    }
}

/// The response that agrees to the upgrade.
pub(crate) fn response(token: &'static str) -> Response {
    let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, token)];
    (StatusCode::SWITCHING_PROTOCOLS, headers, Body::empty()).into_response()
}

/// The caller's connection after the response. `None` if the caller went away, or took longer than
/// [`SWITCH_WITHIN`].
pub(crate) async fn caller(switch: OnUpgrade) -> Option<TokioIo<Upgraded>> {
    let switched = tokio::time::timeout(SWITCH_WITHIN, switch).await;
    switched.ok()?.ok().map(TokioIo::new)
}
