use axum::extract::State;
use http::header;

use super::{Caller, Failure, NoQuery, Shared};
use crate::service::bays;
use crate::telemetry::METRICS_TYPE;

/// For Prometheus and whatever reads its format.
pub(super) async fn metrics(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<([(header::HeaderName, &'static str); 1], String), Failure> {
    Ok(([(header::CONTENT_TYPE, METRICS_TYPE)], bays::metrics(&daemon, &who).await?))
}
