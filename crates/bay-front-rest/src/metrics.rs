use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use bay_core::Daemon;
use bay_core::verbs::metrics;
use http::header;

use crate::request::{Caller, NoQuery, Shared};
use crate::response::Failure;

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new().route("/metrics", get(metrics))
}

/// Metrics in the format of Prometheus.
async fn metrics(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<([(header::HeaderName, &'static str); 1], String), Failure> {
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::read(&daemon, &who).await?))
}
