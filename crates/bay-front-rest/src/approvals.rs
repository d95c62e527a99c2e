//! Approvals, for whoever answers them.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use bay_types::approval::{Allow, Approval, Deny};
use serde::Deserialize;

use crate::request::{Caller, Input, NoQuery, Shared};
use crate::response::{Failure, Json, lines};
use bay_core::verbs::approvals;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    #[serde(default)]
    all: bool,
    bay: Option<String>,
}

pub(super) async fn list(
    State(daemon): Shared,
    Caller(who): Caller,
    Query(query): Query<ListQuery>,
) -> Result<Json<Vec<Approval>>, Failure> {
    Ok(Json(approvals::list(&daemon, &who, query.all, query.bay.as_deref()).await?))
}

pub(super) async fn watch(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<Response, Failure> {
    Ok(lines(approvals::watch(&daemon, &who)?))
}

pub(super) async fn show(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Json<Approval>, Failure> {
    Ok(Json(approvals::show(&daemon, &who, &id).await?))
}

pub(super) async fn allow(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(id): Path<String>,
    Input(wanted): Input<Allow>,
) -> Result<Json<Approval>, Failure> {
    Ok(Json(approvals::allow(&daemon, &who, id, wanted).await?))
}

pub(super) async fn deny(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(id): Path<String>,
    Input(wanted): Input<Deny>,
) -> Result<Json<Approval>, Failure> {
    Ok(Json(approvals::deny(&daemon, &who, id, wanted).await?))
}

pub(super) async fn revoke(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Json<Approval>, Failure> {
    Ok(Json(approvals::revoke(&daemon, &who, id).await?))
}
