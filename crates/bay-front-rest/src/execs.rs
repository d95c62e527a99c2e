//! Execs. For an attached exec the daemon copies bytes between two upgraded connections without parsing them.

use std::sync::Arc;

use axum::extract::{FromRequest, Path, Query, Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use bay_core::Daemon;
use bay_core::verbs::execs::verbs::{self, Frames};
use bay_types::exec::{ExecSpec, ExecView, SignalRequest, Signalled};
use bay_types::frame::{INPUT, UPGRADE};
use bay_types::output::OutputRequest;
use bay_types::{CoreError, ErrorCode, InputId};
use http::StatusCode;
use hyper::upgrade::OnUpgrade;
use serde::Deserialize;

use crate::request::{Caller, Input, NoQuery, Parent, Shared};
use crate::response::{Failure, Json, frames};
use crate::upgrade;
use bay_cli_words::Words;

/// Buffer for the bytes from the guest to the caller.
const SPLICE_BUFFER: usize = 256 * 1024;
/// Buffer for input, which is typed or piped in smaller pieces than output.
const SPLICE_INPUT_BUFFER: usize = 64 * 1024;
/// The hint for a client that cannot upgrade.
const OTHERWISE: &str = "`GET …/output` gives the same frames without an upgrade";

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new()
        .route("/v1/bays/{bay}/execs", get(list).post(start))
        .route("/v1/bays/{bay}/execs/attach", post(start_attached))
        .route("/v1/bays/{bay}/execs/ask", post(ask))
        .route("/v1/bays/{bay}/execs/{exec}", get(show))
        .route("/v1/bays/{bay}/execs/{exec}/attach", post(attach))
        .route("/v1/bays/{bay}/execs/{exec}/output", get(output))
        .route("/v1/bays/{bay}/execs/{exec}/signal", post(signal))
}

async fn list(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<Vec<ExecView>>, Failure> {
    Ok(Json(verbs::list(&daemon, &who, &bay).await?))
}

async fn show(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path((bay, exec)): Path<(String, String)>,
) -> Result<Json<ExecView>, Failure> {
    Ok(Json(verbs::show(&daemon, &who, &bay, &exec).await?))
}

async fn start(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Parent(parent): Parent,
    Path(bay): Path<String>,
    Input(spec): Input<ExecSpec>,
) -> Result<(StatusCode, Json<ExecView>), Failure> {
    let view = verbs::start(&daemon, &who, &bay, spec, parent).await?;
    Ok((StatusCode::CREATED, Json(view)))
}

async fn start_attached(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Parent(parent): Parent,
    Path(bay): Path<String>,
    mut request: Request,
) -> Result<Response, Failure> {
    let switch = upgrade::requested(&mut request, UPGRADE, OTHERWISE)?;
    let input = named_input(&request)?;
    let Input(spec) = Input::<ExecSpec>::from_request(request, &()).await?;
    Ok(splice(switch, verbs::start_attached(&daemon, &who, &bay, spec, input, parent).await?))
}

/// Waits until the command may start, and asks a person even if no rule asks. It is an error if the command is
/// denied.
async fn ask(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(spec): Input<ExecSpec>,
) -> Result<Json<()>, Failure> {
    Ok(Json(verbs::ask(&daemon, &who, &bay, &spec).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AttachQuery {
    #[serde(default)]
    since: u64,
}

async fn attach(
    State(daemon): Shared,
    Caller(who): Caller,
    Path((bay, exec)): Path<(String, String)>,
    Query(query): Query<AttachQuery>,
    mut request: Request,
) -> Result<Response, Failure> {
    let switch = upgrade::requested(&mut request, UPGRADE, OTHERWISE)?;
    let input = named_input(&request)?;
    Ok(splice(switch, verbs::attach(&daemon, &who, &bay, &exec, query.since, input).await?))
}

/// The id of the client's input, if the client wants to know how much of it the guest has received.
fn named_input(request: &Request) -> Result<Option<InputId>, Failure> {
    let Some(value) = request.headers().get(INPUT) else { return Ok(None) };
    let id = value.to_str().ok().and_then(|text| text.parse().ok());
    id.map(Some).ok_or_else(|| {
        Failure(CoreError::new(
            ErrorCode::InvalidInput,
            format!("the header `{INPUT}` names no input"),
            "send `input_` and 32 lower-case hexadecimal digits, the same ones each time the client attaches",
        ))
    })
}

/// Answers 101 and copies bytes in both directions, until both sides have ended or one fails.
fn splice(switch: OnUpgrade, frames: Frames) -> Response {
    let received = frames.received;
    tokio::spawn(async move {
        // The task owns the whole value, not only the stream: the bay counts as used until the rest is dropped.
        let mut frames = frames;
        let Some(mut caller) = upgrade::caller(switch).await else { return };
        let moved = tokio::io::copy_bidirectional_with_sizes(
            &mut caller,
            &mut frames.stream,
            SPLICE_INPUT_BUFFER,
            SPLICE_BUFFER,
        );
        // Callers leave with a broken pipe. The exec continues and its output is kept.
        if let Err(error) = moved.await {
            tracing::trace!(%error, "an attached connection ended");
        }
    });
    let mut response = upgrade::response(UPGRADE);
    if let Some(received) = received {
        response.headers_mut().insert(INPUT, received.into());
    }
    response
}

async fn output(
    State(daemon): Shared,
    Caller(who): Caller,
    Path((bay, exec)): Path<(String, String)>,
    Query(request): Query<OutputRequest>,
    Extension(words): Extension<Words>,
) -> Result<Response, Failure> {
    Ok(frames(words, verbs::output(&daemon, &who, &bay, &exec, request).await?))
}

async fn signal(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path((bay, exec)): Path<(String, String)>,
    Input(signal): Input<SignalRequest>,
) -> Result<Json<Signalled>, Failure> {
    Ok(Json(verbs::signal(&daemon, &who, &bay, exec, signal).await?))
}
