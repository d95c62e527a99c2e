//! Forwards of a bay's ports. Each connection of a forward is a request that turns into bytes.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use axum::routing::post;
use bay_core::Daemon;
use bay_core::verbs::forwards;
use bay_types::forward::{ForwardSpec, UPGRADE};

use crate::request::{Caller, Input, NoQuery, Shared};
use crate::response::{Failure, lines};
use crate::upgrade;

/// The hint for a client that cannot upgrade.
const OTHERWISE: &str = "a forwarded connection has no other form";

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new()
        .route("/v1/bays/{bay}/forwards", post(open))
        .route("/v1/bays/{bay}/forwards/{forward}/ports/{port}", post(connect))
}

/// Answers with the forward's id, then with a line for each new state of the bay. The forward ends with the request's connection, or when the bay is removed.
async fn open(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(spec): Input<ForwardSpec>,
) -> Result<Response, Failure> {
    Ok(lines(forwards::open(&daemon, &who, &bay, spec).await?))
}

async fn connect(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path((bay, forward, port)): Path<(String, String, u16)>,
    mut request: Request,
) -> Result<Response, Failure> {
    // The verb first: it refuses a principal that may not do this, whatever the request asks for.
    let connection = forwards::connect(&daemon, &who, &bay, &forward, port).await?;
    let switch = upgrade::requested(&mut request, UPGRADE, OTHERWISE)?;
    tokio::spawn(async move {
        if let Some(caller) = upgrade::caller(switch).await {
            connection.serve(caller.into_inner()).await;
        }
    });
    Ok(upgrade::response(UPGRADE))
}
