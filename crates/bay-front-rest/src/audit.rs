//! The ledger, for verification without trust in the daemon.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use axum::routing::get;
use bay_core::Daemon;
use bay_core::verbs::audit;
use bay_types::event::{LedgerHead, LedgerKey};
use serde::Deserialize;

use crate::request::{Caller, NoQuery, Shared};
use crate::response::{Failure, Json, lines};

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new()
        .route("/v1/audit/key", get(key))
        .route("/v1/audit/head", get(head))
        .route("/v1/audit/export", get(export))
        .route("/v1/audit/proof/{event}", get(proof))
        .route("/v1/audit/consistency", get(consistency))
}

async fn key(_: NoQuery, State(daemon): Shared, Caller(who): Caller) -> Result<Json<LedgerKey>, Failure> {
    Ok(Json(audit::key(&daemon, &who)?))
}

async fn head(_: NoQuery, State(daemon): Shared, Caller(who): Caller) -> Result<Json<LedgerHead>, Failure> {
    Ok(Json(audit::head(&daemon, &who).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExportQuery {
    from: Option<u64>,
    to: Option<u64>,
}

async fn export(
    State(daemon): Shared,
    Caller(who): Caller,
    Query(query): Query<ExportQuery>,
) -> Result<Response, Failure> {
    Ok(lines(audit::export(&daemon, &who, query.from, query.to).await?))
}

async fn proof(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(event): Path<u64>,
) -> Result<Response, Failure> {
    Ok(lines(audit::proof(&daemon, &who, event).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConsistencyQuery {
    old: u64,
}

async fn consistency(
    State(daemon): Shared,
    Caller(who): Caller,
    Query(query): Query<ConsistencyQuery>,
) -> Result<Response, Failure> {
    Ok(lines(audit::consistency(&daemon, &who, query.old).await?))
}
