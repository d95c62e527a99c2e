//! Bays, removed bays, backends, events, what bays use, and the state of the daemon.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use axum::routing::{get, patch, post, put};
use axum::{Extension, Router};
use bay_core::Daemon;
use bay_core::verbs::{bays, create, events, reach, removed_bays, settings};
use bay_types::backend::BackendView;
use bay_types::bay::{BayCreate, BayDelete, BayDeleted, BayRemoved, BayView, Health};
use bay_types::event::{Event, EventsVerified};
use bay_types::reach::ReachSet;
use bay_types::settings::BaySet;
use bay_types::top::Top;
use serde::Deserialize;

use crate::request::{Caller, Input, NoQuery, Parent, Shared};
use crate::response::{Failure, Json, progress_then_result};
use bay_cli_words::Words;

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new()
        .route("/v1/health", get(health))
        .route("/v1/backends", get(backends))
        .route("/v1/events", get(events))
        .route("/v1/events/verify", get(verify_events))
        .route("/v1/top", get(top))
        .route("/v1/bays", get(list).post(create))
        .route("/v1/removed-bays", get(removed))
        .route("/v1/bays/{bay}", get(show).delete(remove))
        .route("/v1/bays/{bay}/start", post(start))
        .route("/v1/bays/{bay}/stop", post(stop))
        .route("/v1/bays/{bay}/pause", post(pause))
        .route("/v1/bays/{bay}/resume", post(resume))
        .route("/v1/bays/{bay}/replace", post(replace))
        .route("/v1/bays/{bay}/limits", patch(set))
        .route("/v1/bays/{bay}/reach", put(set_reach))
}

async fn health(_: NoQuery, State(daemon): Shared, Caller(who): Caller) -> Result<Json<Health>, Failure> {
    Ok(Json(bays::health(&daemon, &who)?))
}

async fn backends(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<Json<Vec<BackendView>>, Failure> {
    Ok(Json(bays::backends(&daemon, &who)?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsQuery {
    #[serde(default)]
    since: u64,
    bay: Option<String>,
}

async fn events(
    State(daemon): Shared,
    Caller(who): Caller,
    Query(query): Query<EventsQuery>,
) -> Result<Json<Vec<Event>>, Failure> {
    Ok(Json(events::list(&daemon, &who, query.since, query.bay.as_deref()).await?))
}

async fn verify_events(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<Json<EventsVerified>, Failure> {
    Ok(Json(events::verify(&daemon, &who).await?))
}

async fn list(_: NoQuery, State(daemon): Shared, Caller(who): Caller) -> Result<Json<Vec<BayView>>, Failure> {
    Ok(Json(bays::list(&daemon, &who).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RemovedQuery {
    name: Option<String>,
}

async fn removed(
    State(daemon): Shared,
    Caller(who): Caller,
    Query(query): Query<RemovedQuery>,
) -> Result<Json<Vec<BayRemoved>>, Failure> {
    Ok(Json(removed_bays::list(&daemon, &who, query.name.as_deref()).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TopQuery {
    bay: Option<String>,
}

async fn top(
    State(daemon): Shared,
    Caller(who): Caller,
    Query(query): Query<TopQuery>,
) -> Result<Json<Top>, Failure> {
    Ok(Json(bays::top(&daemon, &who, query.bay.as_deref()).await?))
}

async fn show(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<BayView>, Failure> {
    Ok(Json(bays::show(&daemon, &who, &bay).await?))
}

async fn create(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Parent(parent): Parent,
    Extension(words): Extension<Words>,
    Input(wanted): Input<BayCreate>,
) -> Result<Response, Failure> {
    let creation = create::begin(&daemon, &who, wanted, parent)?;
    Ok(progress_then_result(words, |reporter| creation.run(reporter)))
}

async fn remove(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Query(query): Query<BayDelete>,
) -> Result<Json<BayDeleted>, Failure> {
    Ok(Json(bays::delete(&daemon, &who, &bay, query.keep_workspace).await?))
}

async fn start(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<BayView>, Failure> {
    Ok(Json(bays::start(&daemon, &who, &bay).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StopQuery {
    grace_s: Option<u64>,
}

async fn stop(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Query(query): Query<StopQuery>,
) -> Result<Json<BayView>, Failure> {
    Ok(Json(bays::stop(&daemon, &who, &bay, query.grace_s.map(Duration::from_secs)).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PauseQuery {
    #[serde(default)]
    to_disk: bool,
}

async fn pause(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Query(query): Query<PauseQuery>,
) -> Result<Json<BayView>, Failure> {
    Ok(Json(bays::pause(&daemon, &who, &bay, query.to_disk).await?))
}

async fn resume(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<BayView>, Failure> {
    Ok(Json(bays::resume(&daemon, &who, &bay).await?))
}

async fn replace(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<BayView>, Failure> {
    Ok(Json(bays::replace(&daemon, &who, &bay).await?))
}

async fn set(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(change): Input<BaySet>,
) -> Result<Json<BayView>, Failure> {
    Ok(Json(settings::set(&daemon, &who, &bay, change).await?))
}

async fn set_reach(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(wanted): Input<ReachSet>,
) -> Result<Json<BayView>, Failure> {
    Ok(Json(reach::set(&daemon, &who, &bay, wanted).await?))
}
