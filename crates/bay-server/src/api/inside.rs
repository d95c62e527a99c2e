//! What goes on inside a running bay: changes below a directory, listening sockets.

use std::collections::HashMap;

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use bay_text::percent::path_value;
use bay_types::inside::Port;
use bay_types::service::ServiceName;
use bay_types::{ApiError, ExecId};
use bytes::Bytes;
use http::{Method, header};
use serde::Deserialize;

use super::{Failure, Json, NoQuery, Shared};
use crate::channel::{ANSWER_WITHIN, plain_text};
use crate::service::{execs, services};
use crate::validate;

/// Listening sockets that are passed on; the guest tells no more than this.
const MAX_PORTS: usize = 1024;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WatchQuery {
    path: String,
    #[serde(default = "yes")]
    recursive: bool,
}

fn yes() -> bool {
    true
}

/// Lines as the guest writes them, at the pace of whoever reads: what waits, waits in the bay.
pub(super) async fn watch(
    State(daemon): Shared,
    Path(bay): Path<String>,
    Query(query): Query<WatchQuery>,
) -> Result<Response, Failure> {
    validate::bay_path(&query.path)?;
    let handle = daemon.bays.find(&bay)?;
    execs::must_run(&handle)?;
    let uri = format!("/v1/watch?path={}&recursive={}", path_value(query.path.as_bytes()), query.recursive);
    let request = Request::get(uri).body(Body::empty()).map_err(|e| ApiError::internal(&e))?;
    let response = handle.guest.stream(request, Some(ANSWER_WITHIN)).await?;
    let lines = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((lines, Body::new(response.into_body())).into_response())
}

/// The guest's list, with the numbers and names that people know execs and services by.
pub(super) async fn ports(
    State(daemon): Shared,
    Path(bay): Path<String>,
    _: NoQuery,
) -> Result<Json<Vec<Port>>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    execs::must_run(&handle)?;
    let mut ports: Vec<Port> =
        handle.guest.json(Method::GET, "/v1/ports", Bytes::new(), ANSWER_WITHIN).await?;
    ports.truncate(MAX_PORTS);
    let rows = daemon.store.exec_list(handle.id).await.map_err(|e| e.to_api())?;
    let numbers: HashMap<ExecId, u64> = rows.iter().map(|row| (row.id, row.number)).collect();
    for port in &mut ports {
        port.exec_number = port.exec.and_then(|id| numbers.get(&id).copied());
        port.process = port.process.as_deref().map(plain_text);
        port.service = None;
    }
    if ports.iter().any(|port| port.exec.is_some() && port.exec_number.is_none()) {
        // Runs of services are execs that only the guest knows. A list without their names is still a list.
        let services = services::list(&daemon, &handle).await.unwrap_or_default();
        let runs: HashMap<ExecId, &ServiceName> =
            services.iter().flat_map(|one| one.runs.iter().map(|run| (run.exec, &one.name))).collect();
        for port in &mut ports {
            port.service = port.exec.and_then(|id| runs.get(&id)).map(|name| (*name).clone());
        }
    }
    Ok(Json(ports))
}
