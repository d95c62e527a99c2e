use axum::extract::State;
use http::header;

use super::{Failure, NoQuery, Shared};
use crate::telemetry::{METRICS_TYPE, metrics_text};

/// For Prometheus and whatever reads its format.
pub(super) async fn metrics(
    _: NoQuery,
    State(daemon): Shared,
) -> Result<([(header::HeaderName, &'static str); 1], String), Failure> {
    Ok(([(header::CONTENT_TYPE, METRICS_TYPE)], metrics_text(&daemon).await?))
}
