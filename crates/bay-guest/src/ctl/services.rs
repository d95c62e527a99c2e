//! Requests for services from inside the bay. Root of the bay may use every route, other users may only look. Rules on
//! commands apply to the commands of services too, so the daemon decides on a definition before the guest accepts it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bay_types::inside::{Ask, InsideChange};
use bay_types::service::ServiceView;
use bay_types::{ApiError, ErrorCode};
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;

use super::DaemonRequests;
use crate::http::{Answer, Query, json};
use crate::services::{self, Services};

const ROOT: u32 = 0;
/// Most arguments of a service's command that are recorded.
const RECORDED_ARGUMENTS: usize = 32;
/// Most bytes of these arguments that are recorded.
const RECORDED_COMMAND: usize = 4096;

/// Answers requests below `/v1/services`; `rest` is the rest of the path. `asking` is set while the daemon's answer is
/// awaited.
pub(super) async fn route(
    services: Option<&Arc<Services>>,
    daemon: &DaemonRequests,
    asking: &AtomicBool,
    uid: u32,
    rest: &[&str],
    query: &Query,
    request: Request<Incoming>,
) -> Answer {
    let services = services.ok_or_else(|| {
        ApiError::new(
            ErrorCode::PoolDamaged,
            "the bay cannot store services in its state",
            "free some of the bay's disk; then ask the operator to stop and start the bay",
        )
    })?;
    match (request.method(), rest) {
        (&Method::PUT, [name]) if uid == ROOT => {
            let name = services::parse(name)?;
            let spec = services::definition(request).await?;
            spec.check()?;
            let ask = Ask::Service { service: name.clone(), spec: Box::new(spec.clone()) };
            daemon.ask(ask, asking).await?;
            services::define(services, &name, spec).await
        }
        _ if uid == ROOT => services::route(services, rest, query, request).await,
        (&Method::GET, []) => {
            let all: Vec<ServiceView> = services.list().await.into_iter().map(for_others).collect();
            Ok(json(StatusCode::OK, &all))
        }
        (&Method::GET, [name]) => {
            Ok(json(StatusCode::OK, &for_others(services.get(&services::parse(name)?).await?)))
        }
        (&Method::GET, [_, "output"]) => services::route(services, rest, query, request).await,
        _ => Err(ApiError::new(
            ErrorCode::NotRoot,
            format!("only root of the bay may change its services, and this is user {uid}"),
            "run it as root of the bay; `bay-ctl services ls`, `show` and `logs` work for every user",
        )),
    }
}

/// What a successful request changed, for the daemon's record.
pub(super) async fn changed(
    services: Option<&Arc<Services>>,
    method: &Method,
    rest: &[&str],
) -> Option<InsideChange> {
    match (method, rest) {
        (&Method::PUT, [name]) => {
            let service = services::parse(name).ok()?;
            let argv = services?.get(&service).await.ok().and_then(|view| view.spec)?.argv;
            let mut room = RECORDED_COMMAND;
            let fits = |word: &&String| {
                let left = room.checked_sub(word.len());
                room = left.unwrap_or(0);
                left.is_some()
            };
            let promised: Vec<String> =
                argv.iter().take(RECORDED_ARGUMENTS).take_while(fits).cloned().collect();
            let arguments_left_out = argv.len() - promised.len();
            Some(InsideChange::ServiceDefined { service, argv: promised, arguments_left_out })
        }
        (&Method::DELETE, [name]) => {
            Some(InsideChange::ServiceRemoved { service: services::parse(name).ok()? })
        }
        (&Method::POST, [name, verb]) => Some(InsideChange::ServiceAsked {
            service: services::parse(name).ok()?,
            verb: verb.parse().ok()?,
        }),
        _ => None,
    }
}

/// Removes what users other than root must not see. The kernel shows a process's command line to everybody, but its
/// environment only to its own user and root.
fn for_others(mut view: ServiceView) -> ServiceView {
    if let Some(spec) = &mut view.spec {
        spec.env.clear();
    }
    view
}
