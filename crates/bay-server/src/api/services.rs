//! Services of a bay. Their log is passed through as the guest sends it, like the output of execs.

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use bay_types::ApiError;
use bay_types::service::{ServiceSpec, ServiceVerb, ServiceView};
use http::header;
use serde::Deserialize;

use super::{Caller, Failure, Input, Json, NoQuery, Shared};
use crate::channel::{ANSWER_WITHIN, plain_text};
use crate::daemon::to_the_end;
use crate::news;
use crate::service::{execs, gate, services};

pub(super) async fn list(
    _: NoQuery,
    State(daemon): Shared,
    Path(bay): Path<String>,
) -> Result<Json<Vec<ServiceView>>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(services::list(&daemon, &handle).await?))
}

pub(super) async fn show(
    _: NoQuery,
    State(daemon): Shared,
    Path((bay, service)): Path<(String, String)>,
) -> Result<Json<ServiceView>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(services::show(&daemon, &handle, &services::name(&service)?).await?))
}

pub(super) async fn define(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path((bay, service)): Path<(String, String)>,
    Input(spec): Input<ServiceSpec>,
) -> Result<Json<ServiceView>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    let name = services::name(&service)?;
    spec.check()?;
    // Whoever goes away while a person is asked wants it no more.
    gate::pass_service(&daemon, &handle, &name, &spec, caller).await?;
    let view =
        to_the_end(async move { services::define(&daemon, &handle, &name, &spec, caller).await }).await?;
    Ok(Json(view))
}

pub(super) async fn ask(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path((bay, service, verb)): Path<(String, String, String)>,
) -> Result<Json<ServiceView>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    let name = services::name(&service)?;
    let verb: ServiceVerb = verb.parse().map_err(|_| {
        ApiError::new(
            bay_types::ErrorCode::InvalidInput,
            format!("a service cannot be asked to {:?}", plain_text(&verb)),
            "ask it to start, stop or restart",
        )
    })?;
    let view = to_the_end(async move { services::ask(&daemon, &handle, &name, verb, caller).await }).await?;
    Ok(Json(view))
}

/// The view while its processes are ending, `null` when it is gone.
pub(super) async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path((bay, service)): Path<(String, String)>,
) -> Result<Json<Option<ServiceView>>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    let name = services::name(&service)?;
    Ok(Json(to_the_end(async move { services::remove(&daemon, &handle, &name, caller).await }).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OutputQuery {
    #[serde(default)]
    since: u64,
    #[serde(default)]
    follow: bool,
}

/// From the guest while there is one, from what it kept on disk otherwise.
pub(super) async fn output(
    State(daemon): Shared,
    Path((bay, service)): Path<(String, String)>,
    Query(query): Query<OutputQuery>,
) -> Result<Response, Failure> {
    let handle = daemon.bays.find(&bay)?;
    let name = services::name(&service)?;
    let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
    if let Err(error) = execs::must_run(&handle) {
        let row = handle.row();
        let kept = row.disk_ready && row.state != bay_types::bay::State::Deleting;
        // Nothing more comes that could be followed.
        if query.follow || !kept {
            return Err(error.into());
        }
        let frames = services::kept_log(&daemon, &handle, &name, query.since).await?;
        return Ok((kind, news::body(frames)).into_response());
    }
    let path = format!("/v1/services/{name}/output?since={}&follow={}", query.since, query.follow);
    let request = Request::get(path).body(Body::empty()).map_err(|e| ApiError::internal(&e))?;
    let answer = handle.guest.stream(request, Some(ANSWER_WITHIN)).await?;
    Ok((kind, Body::new(answer.into_body())).into_response())
}
