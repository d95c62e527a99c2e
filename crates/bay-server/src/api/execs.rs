//! Execs. An attached one is two upgraded connections with the daemon between them, moving bytes it does not look at.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use bay_types::exec::{ExecSpec, ExecView, LimitHit, SignalRequest, Signalled};
use bay_types::frame::{Frame, Gap, GapReason, INPUT, UPGRADE};
use bay_types::{ApiError, ErrorCode, InputId};
use http::{HeaderMap, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde::Deserialize;

use super::{Caller, Failure, Input, Json, NoQuery, Parent, Shared};
use crate::channel::{ANSWER_WITHIN, FrameStream};
use crate::daemon::to_the_end;
use crate::registry::Attached;
use crate::service::{execs, gate};
use crate::{checked_output, news, spool};

/// Bytes moved at once between caller and guest, per direction.
const SPLICE_BUFFER: usize = 256 * 1024;
/// Input is typed or piped in smaller pieces than output.
const SPLICE_INPUT_BUFFER: usize = 64 * 1024;
/// How long a caller may take to switch protocols after it was told to.
const SWITCH_WITHIN: Duration = Duration::from_secs(10);

pub(super) async fn list(
    _: NoQuery,
    State(daemon): Shared,
    Path(bay): Path<String>,
) -> Result<Json<Vec<ExecView>>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(execs::list(&daemon, &handle).await?))
}

pub(super) async fn show(
    _: NoQuery,
    State(daemon): Shared,
    Path((bay, exec)): Path<(String, String)>,
) -> Result<Json<ExecView>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(execs::show(&daemon, &handle, &exec).await?))
}

pub(super) async fn start(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Parent(parent): Parent,
    Path(bay): Path<String>,
    Input(spec): Input<ExecSpec>,
) -> Result<(StatusCode, Json<ExecView>), Failure> {
    let handle = daemon.bays.find(&bay)?;
    // Whoever hangs up while it is asked about wants it no more.
    gate::pass(&daemon, &handle, &spec, false, caller).await?;
    let view = to_the_end(async move { execs::start(&daemon, &handle, &spec, parent, caller).await }).await?;
    Ok((StatusCode::CREATED, Json(view)))
}

pub(super) async fn start_attached(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Parent(parent): Parent,
    Path(bay): Path<String>,
    mut request: Request,
) -> Result<Response, Failure> {
    let switch = switch(&mut request)?;
    let input = named_input(&request)?;
    let Input(spec) = Input::<ExecSpec>::from_request(request, &()).await?;
    let handle = daemon.bays.find(&bay)?;
    gate::pass(&daemon, &handle, &spec, false, caller).await?;
    let attached = handle.client_attached();
    let guest =
        to_the_end(
            async move { execs::start_attached(&daemon, &handle, &spec, input, parent, caller).await },
        )
        .await?;
    Ok(splice(switch, guest, attached))
}

/// Holds whoever wants to run a command until a person has let it through.
pub(super) async fn ask(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
    Input(spec): Input<ExecSpec>,
) -> Result<Json<()>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(gate::pass(&daemon, &handle, &spec, true, caller).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AttachQuery {
    #[serde(default)]
    since: u64,
}

pub(super) async fn attach(
    State(daemon): Shared,
    Path((bay, exec)): Path<(String, String)>,
    Query(query): Query<AttachQuery>,
    mut request: Request,
) -> Result<Response, Failure> {
    let switch = switch(&mut request)?;
    let input = named_input(&request)?;
    let handle = daemon.bays.find(&bay)?;
    let attached = handle.client_attached();
    let guest = execs::attach(&daemon, &handle, &exec, query.since, input).await?;
    Ok(splice(switch, guest, attached))
}

fn switch(request: &mut Request) -> Result<OnUpgrade, Failure> {
    let asked = |headers: &HeaderMap, name, token: &str| {
        headers
            .get_all(name)
            .iter()
            .filter_map(|v| v.to_str().ok())
            .any(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(token)))
    };
    let fits = asked(request.headers(), header::UPGRADE, UPGRADE)
        && asked(request.headers(), header::CONNECTION, "upgrade");
    match request.extensions_mut().remove::<OnUpgrade>() {
        Some(switch) if fits => Ok(switch),
        _ => Err(Failure(ApiError::new(
            ErrorCode::InvalidInput,
            format!("attaching needs the headers `Connection: Upgrade` and `Upgrade: {UPGRADE}`"),
            "`GET …/output` gives the same frames without an upgrade",
        ))),
    }
}

/// What the client calls its input, if it wants to know how much of it the guest has received.
fn named_input(request: &Request) -> Result<Option<InputId>, Failure> {
    let Some(value) = request.headers().get(INPUT) else { return Ok(None) };
    let id = value.to_str().ok().and_then(|text| text.parse().ok());
    id.map(Some).ok_or_else(|| {
        Failure(ApiError::new(
            ErrorCode::InvalidInput,
            format!("the header `{INPUT}` names no input"),
            "send `input_` and 32 lower-case hexadecimal digits, the same ones each time the client attaches",
        ))
    })
}

/// Answers 101 and moves bytes both ways until either side ends.
fn splice(switch: OnUpgrade, guest: FrameStream, attached: Attached) -> Response {
    let FrameStream { upgraded: guest, received } = guest;
    tokio::spawn(async move {
        let _attached = attached;
        let Ok(Ok(caller)) = tokio::time::timeout(SWITCH_WITHIN, switch).await else { return };
        let (mut caller, mut guest) = (TokioIo::new(caller), TokioIo::new(guest));
        let moved = tokio::io::copy_bidirectional_with_sizes(
            &mut caller,
            &mut guest,
            SPLICE_INPUT_BUFFER,
            SPLICE_BUFFER,
        );
        // A broken pipe is how callers leave; the exec goes on and its output is kept.
        if let Err(error) = moved.await {
            tracing::trace!(%error, "an attached connection ended");
        }
    });
    let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, UPGRADE)];
    let mut response = (StatusCode::SWITCHING_PROTOCOLS, headers, Body::empty()).into_response();
    if let Some(received) = received {
        response.headers_mut().insert(INPUT, received.into());
    }
    response
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
    Path((bay, exec)): Path<(String, String)>,
    Query(query): Query<OutputQuery>,
) -> Result<Response, Failure> {
    let handle = daemon.bays.find(&bay)?;
    let row = execs::find(&daemon, &handle, &exec).await?;
    let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
    let follow = query.follow && row.exit.is_none();
    let runs = execs::must_run(&handle);
    if follow && handle.row().state == bay_types::bay::State::Paused {
        // Nothing comes for as long as it is frozen.
        runs?;
    } else if runs.is_ok() {
        let path = format!("/v1/execs/{}/output?since={}&follow={}", row.id, query.since, query.follow);
        let request = Request::get(path).body(Body::empty()).map_err(|e| ApiError::internal(&e))?;
        match handle.guest.stream(request, Some(ANSWER_WITHIN)).await {
            Ok(response) => {
                let body = Body::new(response.into_body());
                // An exec that is over as far as is known is held against the record; of others the guest knows more.
                let body =
                    if row.exit.is_some() { checked_output::body(body, &row, query.since) } else { body };
                return Ok((kind, body).into_response());
            }
            // It may have ended before this guest began, or the guest may just have gone.
            Err(error) if matches!(error.code, ErrorCode::ExecNotFound | ErrorCode::GuestUnreachable) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let state = daemon.pool()?.bay_disk(handle.id).state;
    let last = if follow {
        Some(execs::end_of(&daemon, &handle, row.id).await?)
    } else {
        row.exit.map(|exit| Frame::Exit(exit, None))
    };
    match spool::output(state, row.id, query.since, last.clone()).await {
        Ok(frames) => {
            let row = daemon.store.exec_get(handle.id, row.id).await.map_err(|e| e.to_api())?.unwrap_or(row);
            Ok((kind, checked_output::body(news::body(frames), &row, query.since)).into_response())
        }
        // There was not even room for the record of it.
        Err(_) if row.limits_hit.contains(&LimitHit::Disk) => {
            let dropped = row.output_bytes.saturating_sub(query.since);
            let mut body = Frame::Gap(Gap { dropped, why: GapReason::DiskFull }).to_bytes();
            body.extend(last.iter().flat_map(Frame::to_bytes));
            Ok((kind, Body::from(body)).into_response())
        }
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn signal(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path((bay, exec)): Path<(String, String)>,
    Input(signal): Input<SignalRequest>,
) -> Result<Json<Signalled>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    let signalled = to_the_end(async move { execs::signal(&daemon, &handle, &exec, signal, caller).await });
    Ok(Json(signalled.await?))
}
