//! The routes of the guest protocol for services.

use std::sync::Arc;

use bay_types::id::ParseIdError;
use bay_types::output::OutputRequest;
use bay_types::service::{ServiceName, ServiceSpec, ServiceVerb};
use bay_types::{ApiError, ErrorCode};
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;

use super::Services;
use crate::http::{Answer, Query, empty, json, require_json_within, stream};

/// Longest body with a definition. It leaves room for whitespace.
const MAX_BODY: usize = 4 * ServiceSpec::MAX_BYTES;

/// Answers requests below `/v1/services`; `rest` is the rest of the path.
pub(crate) async fn route(
    services: &Arc<Services>,
    rest: &[&str],
    query: &Query,
    request: Request<Incoming>,
) -> Answer {
    match (request.method(), rest) {
        (&Method::GET, []) => Ok(json(StatusCode::OK, &services.list().await)),
        (&Method::GET, [name]) => Ok(json(StatusCode::OK, &services.get(&parse(name)?).await?)),
        (&Method::PUT, [name]) => {
            let name = parse(name)?;
            let spec = definition(request).await?;
            define(services, &name, spec).await
        }
        (&Method::DELETE, [name]) => Ok(match services.remove(&parse(name)?).await? {
            Some(view) => json(StatusCode::ACCEPTED, &view),
            None => empty(StatusCode::NO_CONTENT),
        }),
        (&Method::GET, [name, "output"]) => {
            let since = query.number("since", 10)?.unwrap_or(0);
            let request = OutputRequest { since, follow: query.flag("follow")?, times: query.flag("times")? };
            let frames = services.log(&parse(name)?, request).await?;
            Ok(stream(frames, None))
        }
        (&Method::POST, [name, verb]) => {
            let verb: ServiceVerb = verb.parse().map_err(|e| invalid(&e))?;
            Ok(json(StatusCode::OK, &services.ask(&parse(name)?, verb).await?))
        }
        (method, _) => Err(crate::http::invalid(format!("services do not know {method} on this path"))),
    }
}

/// The definition in a request.
pub(crate) async fn definition(request: Request<Incoming>) -> Result<ServiceSpec, ApiError> {
    require_json_within(request.into_body(), MAX_BODY).await
}

pub(crate) async fn define(services: &Arc<Services>, name: &ServiceName, spec: ServiceSpec) -> Answer {
    let (view, new) = services.put(name, spec).await?;
    Ok(json(if new { StatusCode::CREATED } else { StatusCode::OK }, &view))
}

pub(crate) fn parse(name: &str) -> Result<ServiceName, ApiError> {
    name.parse().map_err(|e| invalid(&e))
}

fn invalid(error: &ParseIdError) -> ApiError {
    ApiError::new(
        ErrorCode::InvalidInput,
        error.to_string(),
        "the list of the bay's services has their names",
    )
}
