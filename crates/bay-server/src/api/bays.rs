use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use bay_store::Verdict;
use bay_types::bay::{BayCreate, BayDelete, BayDeleted, BayView, Health};
use bay_types::event::{Event, EventsVerified};
use bay_types::settings::BaySet;
use bay_types::top::Top;
use bay_types::{ApiError, BayId, ErrorCode};
use serde::Deserialize;

use super::{Caller, Failure, Input, Json, NoQuery, Parent, Shared};
use crate::daemon::to_the_end;
use crate::registry::{MAX_STOP_GRACE, STOP_GRACE};
use crate::service;
use crate::{news, telemetry};

pub(super) async fn health(_: NoQuery, State(daemon): Shared) -> Json<Health> {
    Json(Health {
        version: bay_types::VERSION.to_owned(),
        pid: std::process::id(),
        data_dir: daemon.data_dir.clone(),
        pool: daemon.pool_dir.clone(),
        started_at: daemon.started_at,
    })
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
    Query(query): Query<EventsQuery>,
) -> Result<Json<Vec<Event>>, Failure> {
    // A removed bay is known by its id only.
    let bay = match query.bay {
        None => None,
        Some(given) => match given.parse::<BayId>() {
            Ok(id) => Some(id),
            Err(_) => Some(daemon.bays.find(&given)?.id),
        },
    };
    let events = daemon.store.events_list(query.since, bay).await.map_err(|e| e.to_api())?;
    Ok(Json(events))
}

/// Walks the whole record and checks every hash, and that it continues the head that was signed last.
pub(super) async fn verify_events(
    _: NoQuery,
    State(daemon): Shared,
) -> Result<Json<EventsVerified>, Failure> {
    let verdict = daemon.store.events_verify().await.map_err(|e| e.to_api())?;
    Ok(Json(match verdict {
        Verdict::Intact { events, root } => match daemon.ledger.sound().await {
            Ok(()) => {
                let head_hash = Some(root.to_string());
                EventsVerified { ok: true, events, head_hash, first_bad: None, why: None }
            }
            Err(error) => EventsVerified {
                ok: false,
                events: 0,
                head_hash: None,
                first_bad: None,
                why: Some(error.message),
            },
        },
        Verdict::Broken { seq, why } => EventsVerified {
            ok: false,
            events: seq.saturating_sub(1),
            head_hash: None,
            first_bad: Some(seq),
            why: Some(why),
        },
    }))
}

pub(super) async fn list(_: NoQuery, State(daemon): Shared) -> Json<Vec<BayView>> {
    let mut views = Vec::new();
    for handle in daemon.bays.list() {
        views.push(daemon.view_now(&handle).await);
    }
    Json(views)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TopQuery {
    bay: Option<String>,
}

pub(super) async fn top(State(daemon): Shared, Query(query): Query<TopQuery>) -> Result<Json<Top>, Failure> {
    let only = query.bay.map(|given| daemon.bays.find(&given)).transpose()?;
    let mut top = Top::clone(&*crate::top::top(&daemon).await);
    if let Some(handle) = only {
        top.bays.retain(|bay| bay.id == handle.id);
    }
    Ok(Json(top))
}

pub(super) async fn show(
    _: NoQuery,
    State(daemon): Shared,
    Path(bay): Path<String>,
) -> Result<Json<BayView>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    // What it cost by now, not some seconds ago.
    telemetry::cost::look(&daemon, &handle).await;
    Ok(Json(daemon.view_now(&handle).await))
}

pub(super) async fn create(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Parent(parent): Parent,
    Input(create): Input<BayCreate>,
) -> Result<Response, Failure> {
    let name = service::create::check(&daemon, &create)?;
    Ok(news::answer(|teller| service::create::create(daemon, create, name, parent, caller, teller)))
}

pub(super) async fn remove(
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
    Query(query): Query<BayDelete>,
) -> Result<Json<BayDeleted>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(to_the_end(service::bays::delete(daemon, handle, query.keep_workspace, caller)).await?))
}

pub(super) async fn start(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
) -> Result<Json<BayView>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(to_the_end(service::bays::start(daemon, handle, caller)).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StopQuery {
    grace_s: Option<u64>,
}

pub(super) async fn stop(
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
    Query(query): Query<StopQuery>,
) -> Result<Json<BayView>, Failure> {
    let grace = query.grace_s.map_or(STOP_GRACE, Duration::from_secs);
    if grace > MAX_STOP_GRACE {
        return Err(Failure(ApiError::new(
            ErrorCode::InvalidInput,
            format!("a grace of {} s is too long", grace.as_secs()),
            format!("give at most {} s", MAX_STOP_GRACE.as_secs()),
        )));
    }
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(to_the_end(service::bays::stop(daemon, handle, grace, caller)).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PauseQuery {
    #[serde(default)]
    to_disk: bool,
}

pub(super) async fn pause(
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
    Query(query): Query<PauseQuery>,
) -> Result<Json<BayView>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    if query.to_disk {
        return Ok(Json(to_the_end(service::checkpoints::pause_to_disk(daemon, handle, caller)).await?));
    }
    Ok(Json(to_the_end(service::bays::pause(daemon, handle, caller)).await?))
}

pub(super) async fn resume(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
) -> Result<Json<BayView>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(to_the_end(service::bays::resume(daemon, handle, caller)).await?))
}

pub(super) async fn replace(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
) -> Result<Json<BayView>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    let work = async move { service::bays::replace(Arc::clone(&daemon), handle, caller).await };
    Ok(Json(to_the_end(work).await?))
}

pub(super) async fn set(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
    Input(change): Input<BaySet>,
) -> Result<Json<BayView>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(to_the_end(service::settings::set(daemon, handle, change, caller)).await?))
}
