//! Reports of work that left a bay.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;
use bay_core::Daemon;
use bay_core::verbs::work;
use bay_types::work::WorkReport;

use crate::request::{Caller, Input, NoQuery, Shared};
use crate::response::{Failure, Json};

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new().route("/v1/bays/{bay}/work", post(report))
}

async fn report(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(report): Input<WorkReport>,
) -> Result<Json<()>, Failure> {
    Ok(Json(work::report(&daemon, &who, &bay, report).await?))
}
