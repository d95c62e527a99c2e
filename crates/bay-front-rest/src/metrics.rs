use axum::extract::State;
use http::header;

use crate::request::{Caller, NoQuery, Shared};
use crate::response::Failure;
use bay_core::verbs::metrics;

/// For Prometheus and whatever reads its format.
pub(super) async fn metrics(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<([(header::HeaderName, &'static str); 1], String), Failure> {
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::read(&daemon, &who).await?))
}
