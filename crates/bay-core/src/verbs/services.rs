//! The verbs on services, which the guest owns. A requested change is recorded before it is passed on. The guest
//! reports the states that a service reaches, and they are recorded afterwards, up to [`STATES`] of a bay within
//! [`STATES_WITHIN`].

use std::sync::Arc;
use std::time::Duration;

use bay_store::Draft;
use bay_types::bay::State;
use bay_types::event::ServiceEvent;
use bay_types::event::service::{
    ServiceDefine, ServiceReached, ServiceRemove, ServiceRestart, ServiceStart, ServiceStop,
};
use bay_types::output::OutputRequest;
use bay_types::principal::Principal;
use bay_types::service::{MAX_SERVICES, ServiceName, ServiceSpec, ServiceVerb, ServiceView};
use bay_types::{Action, CoreError, ErrorCode, Hint, HintBay};
use bytes::Bytes;
use http::Method;
use tokio::sync::mpsc;

use super::{command_approval, execs};
use crate::authorize::Verb;
use crate::background::to_the_end;
use crate::byte_stream::{self, ByteStream};
use crate::channel::{ANSWER_WITHIN, new_guest, plain_text};
use crate::daemon::Daemon;
use crate::registry::BayHandle;
use crate::spool;

/// How many states of a bay's services are recorded within [`STATES_WITHIN`]: a service that never settles must not fill
/// the record.
const STATES: u32 = 120;
const STATES_WITHIN: Duration = Duration::from_secs(3600);

/// The name in a path.
fn name(given: &str) -> Result<ServiceName, CoreError> {
    given.parse().map_err(|e: bay_types::id::ParseIdError| {
        CoreError::new(
            ErrorCode::InvalidInput,
            plain_text(&e.to_string()),
            Hint::new("{} lists the services", [Action::ListServices(HintBay::OfRequest)]),
        )
    })
}

fn at_rest(handle: &BayHandle) -> bool {
    matches!(handle.row().state, State::Stopped | State::Failed)
}

fn path(name: &ServiceName, rest: &str) -> String {
    format!("/v1/services/{name}{rest}")
}

/// A guest's view with its reason as plain text. The definition in it is passed on as the guest sends it.
fn made_safe(mut view: ServiceView) -> ServiceView {
    view.reason = plain_text(&view.reason);
    view
}

fn about(view: ServiceView, name: &ServiceName) -> Result<ServiceView, CoreError> {
    if view.name == *name {
        return Ok(made_safe(view));
    }
    Err(CoreError::new(ErrorCode::GuestUnreachable, "the guest answered for another service", new_guest()))
}

async fn note(daemon: &Daemon, handle: &BayHandle, event: ServiceEvent) -> Result<(), CoreError> {
    let event = Draft::of(event);
    daemon.store.event_append(Some(handle.id), &event).await.map_err(|e| e.to_api())?;
    Ok(())
}

/// A bay's services: from the guest if the bay runs. If the bay is stopped or failed, as the guest stored them on
/// the disk. In any other state it is an error.
pub async fn list(daemon: &Daemon, who: &Principal, bay: &str) -> Result<Vec<ServiceView>, CoreError> {
    let handle = daemon.bay_for(who, Verb::ServiceList, bay)?;
    views(daemon, &handle).await
}

pub async fn show(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
    service: &str,
) -> Result<ServiceView, CoreError> {
    let handle = daemon.bay_for(who, Verb::ServiceShow, bay)?;
    view(daemon, &handle, &name(service)?).await
}

/// Defines a service or replaces its definition, after the rules on commands, and a person if they say so, allow
/// its commands. If the client leaves while a person is asked, nothing is defined.
pub async fn define(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    service: &str,
    spec: ServiceSpec,
) -> Result<ServiceView, CoreError> {
    let handle = daemon.bay_for(who, Verb::ServiceDefine, bay)?;
    let name = name(service)?;
    spec.check()?;
    command_approval::pass_service(daemon, &handle, &name, &spec, *who).await?;
    let (daemon, who) = (Arc::clone(daemon), *who);
    to_the_end(async move { set_definition(&daemon, &handle, &name, &spec, who).await }).await
}

/// Decides whether the guest of a bay may define a service that the bay's own processes requested.
pub(crate) async fn propose(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    name: &ServiceName,
    spec: &ServiceSpec,
) -> Result<(), CoreError> {
    let handle = daemon.bay_for(who, Verb::ServicePropose, bay)?;
    spec.check()?;
    command_approval::pass_service(daemon, &handle, name, spec, *who).await
}

/// Starts, stops or restarts a service.
pub async fn control(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    service: &str,
    verb: &str,
) -> Result<ServiceView, CoreError> {
    let handle = daemon.bay_for(who, Verb::ServiceControl, bay)?;
    let name = name(service)?;
    let verb: ServiceVerb = verb.parse().map_err(|_| {
        CoreError::new(
            ErrorCode::InvalidInput,
            format!("there is no action {:?} for a service", plain_text(verb)),
            "use start, stop or restart",
        )
    })?;
    let (daemon, who) = (Arc::clone(daemon), *who);
    to_the_end(async move { ask(&daemon, &handle, &name, verb, who).await }).await
}

/// Requests the end and the removal of a service. Returns its view while it still exists.
pub async fn delete(
    daemon: &Arc<Daemon>,
    who: &Principal,
    bay: &str,
    service: &str,
) -> Result<Option<ServiceView>, CoreError> {
    let handle = daemon.bay_for(who, Verb::ServiceDelete, bay)?;
    let name = name(service)?;
    let (daemon, who) = (Arc::clone(daemon), *who);
    to_the_end(async move { remove(&daemon, &handle, &name, who).await }).await
}

/// The log of a service from an offset on, as frames: from the guest if the bay runs, otherwise from the disk. Only
/// a log of a running bay can be followed.
pub async fn output(
    daemon: &Daemon,
    who: &Principal,
    bay: &str,
    service: &str,
    request: OutputRequest,
) -> Result<ByteStream, CoreError> {
    let handle = daemon.bay_for(who, Verb::ServiceOutput, bay)?;
    let name = name(service)?;
    if let Err(error) = execs::must_run(&handle) {
        let row = handle.row();
        let kept = row.disk_ready && row.state != State::Deleting;
        // Without a guest there is nothing to follow.
        if request.follow || !kept {
            return Err(error);
        }
        return kept_log(daemon, &handle, &name, request).await.map(byte_stream::received_bytes);
    }
    let path = path(&name, &format!("/output?{}", request.query()));
    Ok(handle.guest.read(&path).await?.bytes)
}

pub(super) async fn views(daemon: &Daemon, handle: &BayHandle) -> Result<Vec<ServiceView>, CoreError> {
    if at_rest(handle) {
        let all = spool::services(daemon.pool()?.bay_disk(handle.id).state).await?;
        return Ok(all.into_iter().map(made_safe).collect());
    }
    execs::must_run(handle)?;
    let all: Vec<ServiceView> =
        handle.guest.json(Method::GET, "/v1/services", Bytes::new(), ANSWER_WITHIN).await?;
    Ok(all.into_iter().take(MAX_SERVICES).map(made_safe).collect())
}

async fn view(daemon: &Daemon, handle: &BayHandle, name: &ServiceName) -> Result<ServiceView, CoreError> {
    if at_rest(handle) {
        let found = views(daemon, handle).await?.into_iter().find(|view| view.name == *name);
        return found.ok_or_else(|| missing(handle, name));
    }
    execs::must_run(handle)?;
    let view = handle.guest.json(Method::GET, &path(name, ""), Bytes::new(), ANSWER_WITHIN).await?;
    about(view, name)
}

/// The log from an offset on, as stored on the disk of a bay that does not run.
async fn kept_log(
    daemon: &Daemon,
    handle: &BayHandle,
    name: &ServiceName,
    request: OutputRequest,
) -> Result<mpsc::Receiver<Bytes>, CoreError> {
    let state = daemon.pool()?.bay_disk(handle.id).state;
    let view = spool::services(state.clone()).await?.into_iter().find(|view| view.name == *name);
    let view = view.ok_or_else(|| missing(handle, name))?;
    let since = request.since;
    if since > view.log_end {
        return Err(CoreError::new(
            ErrorCode::InvalidInput,
            format!("the log has no byte {since}: it ends at {}", view.log_end),
            "begin at an earlier byte",
        ));
    }
    spool::log(state, view.runs, request).await
}

fn missing(handle: &BayHandle, name: &ServiceName) -> CoreError {
    CoreError::new(
        ErrorCode::ServiceNotFound,
        format!("there is no service {name} in the bay {}", handle.name),
        Hint::new("{} lists them", [Action::ListServices((&handle.name).into())]),
    )
}

async fn set_definition(
    daemon: &Daemon,
    handle: &BayHandle,
    name: &ServiceName,
    spec: &ServiceSpec,
    caller: Principal,
) -> Result<ServiceView, CoreError> {
    spec.check()?;
    execs::must_run(handle)?;
    let (argv, left_out) = execs::event_argv(&spec.argv);
    let event = ServiceEvent::Define(ServiceDefine {
        service: name.clone().into(),
        argv,
        arguments_left_out: left_out,
        user: Some(spec.user.clone()),
        needs: Some(spec.needs.clone()),
        restart: Some(spec.restart),
        by: caller.by(),
    });
    note(daemon, handle, event).await?;
    let body = serde_json::to_vec(spec).map_err(|e| CoreError::internal(&e))?;
    let view = handle.guest.json(Method::PUT, &path(name, ""), body.into(), ANSWER_WITHIN).await?;
    about(view, name)
}

/// Records the state that a service reached, as its guest reports it. Returns false if it is not recorded because
/// the bay reached too many states.
pub(crate) async fn reached(daemon: &Daemon, handle: &BayHandle, reached: ServiceReached) -> bool {
    if daemon.permit(&Principal::bay(handle.id), Verb::ChangeReport).is_err() {
        return false;
    }
    if !handle.inside.service_states.lock().await.admits(STATES, STATES_WITHIN) {
        return false;
    }
    if let Err(error) = daemon.store.event_append(Some(handle.id), &Draft::of(reached)).await {
        tracing::warn!(bay = %handle.name, %error, "the state of a service could not be recorded");
    }
    true
}

/// The event of a requested verb.
pub(super) fn asked(name: ServiceName, verb: ServiceVerb, by: String) -> ServiceEvent {
    let service = name.into();
    match verb {
        ServiceVerb::Start => ServiceEvent::Start(ServiceStart { service, by }),
        ServiceVerb::Stop => ServiceEvent::Stop(ServiceStop { service, by }),
        ServiceVerb::Restart => ServiceEvent::Restart(ServiceRestart { service, by }),
    }
}

async fn ask(
    daemon: &Daemon,
    handle: &BayHandle,
    name: &ServiceName,
    verb: ServiceVerb,
    caller: Principal,
) -> Result<ServiceView, CoreError> {
    execs::must_run(handle)?;
    note(daemon, handle, asked(name.clone(), verb, caller.by())).await?;
    let path = path(name, &format!("/{verb}"));
    let view = handle.guest.json(Method::POST, &path, Bytes::new(), ANSWER_WITHIN).await?;
    about(view, name)
}

async fn remove(
    daemon: &Daemon,
    handle: &BayHandle,
    name: &ServiceName,
    caller: Principal,
) -> Result<Option<ServiceView>, CoreError> {
    execs::must_run(handle)?;
    let event = ServiceRemove { service: name.clone().into(), by: caller.by() };
    note(daemon, handle, ServiceEvent::Remove(event)).await?;
    let answer = handle.guest.bytes(Method::DELETE, &path(name, ""), Bytes::new(), ANSWER_WITHIN).await?;
    // An empty answer, or one of a later release, means that it is gone.
    match serde_json::from_slice::<ServiceView>(&answer) {
        Ok(view) => about(view, name).map(Some),
        Err(_) => Ok(None),
    }
}
