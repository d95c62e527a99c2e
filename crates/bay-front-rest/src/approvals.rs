//! Approvals, for the people who answer them.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use axum::routing::{get, post};
use bay_core::Daemon;
use bay_core::verbs::approvals;
use bay_types::approval::{Allow, Approval, Deny};
use serde::Deserialize;

use crate::request::{Caller, Input, NoQuery, Shared};
use crate::response::{Failure, Json, lines};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    #[serde(default)]
    all: bool,
    bay: Option<String>,
}

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new()
        .route("/v1/approvals", get(list))
        .route("/v1/approvals/watch", get(watch))
        .route("/v1/approvals/{approval}", get(show))
        .route("/v1/approvals/{approval}/allow", post(allow))
        .route("/v1/approvals/{approval}/deny", post(deny))
        .route("/v1/approvals/{approval}/revoke", post(revoke))
}

async fn list(
    State(daemon): Shared,
    Caller(who): Caller,
    Query(query): Query<ListQuery>,
) -> Result<Json<Vec<Approval>>, Failure> {
    Ok(Json(approvals::list(&daemon, &who, query.all, query.bay.as_deref()).await?))
}

async fn watch(_: NoQuery, State(daemon): Shared, Caller(who): Caller) -> Result<Response, Failure> {
    Ok(lines(approvals::watch(&daemon, &who)?))
}

async fn show(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Json<Approval>, Failure> {
    Ok(Json(approvals::show(&daemon, &who, &id).await?))
}

async fn allow(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(id): Path<String>,
    Input(wanted): Input<Allow>,
) -> Result<Json<Approval>, Failure> {
    Ok(Json(approvals::allow(&daemon, &who, id, wanted).await?))
}

async fn deny(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(id): Path<String>,
    Input(wanted): Input<Deny>,
) -> Result<Json<Approval>, Failure> {
    Ok(Json(approvals::deny(&daemon, &who, id, wanted).await?))
}

async fn revoke(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Json<Approval>, Failure> {
    Ok(Json(approvals::revoke(&daemon, &who, id).await?))
}
