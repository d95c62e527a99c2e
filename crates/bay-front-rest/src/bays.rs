//! Bays, and what the daemon says of itself.

use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use bay_types::bay::{BayCreate, BayDelete, BayDeleted, BayView, Health};
use bay_types::event::{Event, EventsVerified};
use bay_types::settings::BaySet;
use bay_types::top::Top;
use serde::Deserialize;

use crate::request::{Caller, Input, NoQuery, Parent, Shared};
use crate::response::{Failure, Json, progress_then_result};
use bay_core::verbs::{bays, create, events, settings};

pub(super) async fn health(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<Json<Health>, Failure> {
    Ok(Json(bays::health(&daemon, &who)?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsQuery {
    #[serde(default)]
    since: u64,
    bay: Option<String>,
}

pub(super) async fn events(
    State(daemon): Shared,
    Caller(who): Caller,
    Query(query): Query<EventsQuery>,
) -> Result<Json<Vec<Event>>, Failure> {
    Ok(Json(events::list(&daemon, &who, query.since, query.bay.as_deref()).await?))
}

pub(super) async fn verify_events(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<Json<EventsVerified>, Failure> {
    Ok(Json(events::verify(&daemon, &who).await?))
}

pub(super) async fn list(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<Json<Vec<BayView>>, Failure> {
    Ok(Json(bays::list(&daemon, &who).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TopQuery {
    bay: Option<String>,
}

pub(super) async fn top(
    State(daemon): Shared,
    Caller(who): Caller,
    Query(query): Query<TopQuery>,
) -> Result<Json<Top>, Failure> {
    Ok(Json(bays::top(&daemon, &who, query.bay.as_deref()).await?))
}

pub(super) async fn show(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<BayView>, Failure> {
    Ok(Json(bays::show(&daemon, &who, &bay).await?))
}

pub(super) async fn create(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Parent(parent): Parent,
    Input(wanted): Input<BayCreate>,
) -> Result<Response, Failure> {
    let creation = create::begin(&daemon, &who, wanted, parent)?;
    Ok(progress_then_result(|teller| creation.run(teller)))
}

pub(super) async fn remove(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Query(query): Query<BayDelete>,
) -> Result<Json<BayDeleted>, Failure> {
    Ok(Json(bays::delete(&daemon, &who, &bay, query.keep_workspace).await?))
}

pub(super) async fn start(
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

pub(super) async fn stop(
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

pub(super) async fn pause(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Query(query): Query<PauseQuery>,
) -> Result<Json<BayView>, Failure> {
    Ok(Json(bays::pause(&daemon, &who, &bay, query.to_disk).await?))
}

pub(super) async fn resume(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<BayView>, Failure> {
    Ok(Json(bays::resume(&daemon, &who, &bay).await?))
}

pub(super) async fn replace(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<BayView>, Failure> {
    Ok(Json(bays::replace(&daemon, &who, &bay).await?))
}

pub(super) async fn set(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(change): Input<BaySet>,
) -> Result<Json<BayView>, Failure> {
    Ok(Json(settings::set(&daemon, &who, &bay, change).await?))
}
