//! Questions to a person, for whoever answers them.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use bay_types::approval::{Allow, Approval, Deny};
use http::header;
use serde::Deserialize;

use super::{Caller, Failure, Input, Json, NoQuery, Shared};
use crate::daemon::to_the_end;
use crate::news;
use crate::service::approvals;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    #[serde(default)]
    all: bool,
    bay: Option<String>,
}

pub(super) async fn list(
    State(daemon): Shared,
    Query(query): Query<ListQuery>,
) -> Result<Json<Vec<Approval>>, Failure> {
    Ok(Json(approvals::list(&daemon, query.all, query.bay.as_deref()).await?))
}

pub(super) async fn watch(_: NoQuery, State(daemon): Shared) -> Response {
    let lines = approvals::watch(Arc::clone(&daemon));
    ([(header::CONTENT_TYPE, "application/x-ndjson")], news::body(lines)).into_response()
}

pub(super) async fn show(
    _: NoQuery,
    State(daemon): Shared,
    Path(id): Path<String>,
) -> Result<Json<Approval>, Failure> {
    Ok(Json(approvals::show(&daemon, &id).await?))
}

pub(super) async fn allow(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Input(wanted): Input<Allow>,
) -> Result<Json<Approval>, Failure> {
    Ok(Json(to_the_end(approvals::allow(daemon, id, wanted, caller)).await?))
}

pub(super) async fn deny(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Input(wanted): Input<Deny>,
) -> Result<Json<Approval>, Failure> {
    Ok(Json(to_the_end(approvals::deny(daemon, id, wanted, caller)).await?))
}

pub(super) async fn revoke(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Result<Json<Approval>, Failure> {
    Ok(Json(to_the_end(approvals::revoke(daemon, id, caller)).await?))
}
