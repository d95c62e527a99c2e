//! Services of a bay. Like the output of execs, their log is forwarded as the guest sends it.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use axum::routing::{get, post};
use bay_core::Daemon;
use bay_core::verbs::services;
use bay_types::output::OutputRequest;
use bay_types::service::{ServiceSpec, ServiceView};

use crate::request::{Caller, Input, NoQuery, Shared};
use crate::response::{Failure, Json, octets};

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new()
        .route("/v1/bays/{bay}/services", get(list))
        .route("/v1/bays/{bay}/services/{service}", get(show).put(define).delete(remove))
        .route("/v1/bays/{bay}/services/{service}/output", get(output))
        .route("/v1/bays/{bay}/services/{service}/{verb}", post(control))
}

async fn list(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<Vec<ServiceView>>, Failure> {
    Ok(Json(services::list(&daemon, &who, &bay).await?))
}

async fn show(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path((bay, service)): Path<(String, String)>,
) -> Result<Json<ServiceView>, Failure> {
    Ok(Json(services::show(&daemon, &who, &bay, &service).await?))
}

async fn define(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path((bay, service)): Path<(String, String)>,
    Input(spec): Input<ServiceSpec>,
) -> Result<Json<ServiceView>, Failure> {
    Ok(Json(services::define(&daemon, &who, &bay, &service, spec).await?))
}

async fn control(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path((bay, service, verb)): Path<(String, String, String)>,
) -> Result<Json<ServiceView>, Failure> {
    Ok(Json(services::control(&daemon, &who, &bay, &service, &verb).await?))
}

/// Returns the view of the service while its processes are ending, and `null` once it is removed.
async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path((bay, service)): Path<(String, String)>,
) -> Result<Json<Option<ServiceView>>, Failure> {
    Ok(Json(services::delete(&daemon, &who, &bay, &service).await?))
}

async fn output(
    State(daemon): Shared,
    Caller(who): Caller,
    Path((bay, service)): Path<(String, String)>,
    Query(request): Query<OutputRequest>,
) -> Result<Response, Failure> {
    Ok(octets(services::output(&daemon, &who, &bay, &service, request).await?))
}
