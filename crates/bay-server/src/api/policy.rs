//! Policies and grants.

use std::sync::Arc;

use axum::extract::{Path, State};
use bay_store::Scope;
use bay_types::policy::{
    Check, Explained, Finding, GrantAdd, GrantView, LayerSet, Lesson, PolicyChange, PolicySet, PolicyView,
    Recalled,
};
use bay_types::{ApiError, ErrorCode};

use super::{Caller, Failure, Input, Json, NoQuery, Shared};
use crate::channel::plain_text;
use crate::daemon::to_the_end;
use crate::service::policy;

pub(super) async fn show(
    _: NoQuery,
    State(daemon): Shared,
    Path(bay): Path<String>,
) -> Result<Json<PolicyView>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(policy::show(&daemon, &handle).await))
}

pub(super) async fn set(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
    Input(given): Input<PolicySet>,
) -> Result<Json<PolicyView>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    let scope = Scope::Bay(handle.id);
    to_the_end(policy::set(Arc::clone(&daemon), scope, given, caller)).await?;
    Ok(Json(policy::show(&daemon, &handle).await))
}

pub(super) async fn unset(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
) -> Result<Json<PolicyView>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    let scope = Scope::Bay(handle.id);
    to_the_end(policy::unset(Arc::clone(&daemon), scope, caller)).await?;
    Ok(Json(policy::show(&daemon, &handle).await))
}

pub(super) async fn host(_: NoQuery, State(daemon): Shared) -> Result<Json<LayerSet>, Failure> {
    Ok(Json(policy::layer(&daemon, &Scope::Host).await?))
}

pub(super) async fn set_host(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Input(given): Input<PolicySet>,
) -> Result<Json<LayerSet>, Failure> {
    to_the_end(policy::set(Arc::clone(&daemon), Scope::Host, given, caller)).await?;
    Ok(Json(policy::layer(&daemon, &Scope::Host).await?))
}

pub(super) async fn unset_host(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
) -> Result<Json<LayerSet>, Failure> {
    to_the_end(policy::unset(Arc::clone(&daemon), Scope::Host, caller)).await?;
    Ok(Json(policy::layer(&daemon, &Scope::Host).await?))
}

pub(super) async fn project(
    _: NoQuery,
    State(daemon): Shared,
    Path(bay): Path<String>,
) -> Result<Json<LayerSet>, Failure> {
    let scope = policy::scope_of_project(&*daemon.bays.find(&bay)?)?;
    Ok(Json(policy::layer(&daemon, &scope).await?))
}

pub(super) async fn set_project(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
    Input(given): Input<PolicySet>,
) -> Result<Json<LayerSet>, Failure> {
    let scope = policy::scope_of_project(&*daemon.bays.find(&bay)?)?;
    to_the_end(policy::set(Arc::clone(&daemon), scope.clone(), given, caller)).await?;
    Ok(Json(policy::layer(&daemon, &scope).await?))
}

pub(super) async fn unset_project(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
) -> Result<Json<LayerSet>, Failure> {
    let scope = policy::scope_of_project(&*daemon.bays.find(&bay)?)?;
    to_the_end(policy::unset(Arc::clone(&daemon), scope.clone(), caller)).await?;
    Ok(Json(policy::layer(&daemon, &scope).await?))
}

pub(super) async fn check(
    _: NoQuery,
    State(daemon): Shared,
    Path(bay): Path<String>,
    Input(asked): Input<Check>,
) -> Result<Json<Explained>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(policy::check(&daemon, &handle, &asked.request).await?))
}

pub(super) async fn explain(
    _: NoQuery,
    State(daemon): Shared,
    Path((bay, id)): Path<(String, String)>,
) -> Result<Json<Recalled>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    let number = id.parse().map_err(|_| {
        ApiError::new(
            ErrorCode::InvalidInput,
            format!("{:?} is not the number of a decision", plain_text(&id)),
            "`bay egress NAME` shows the decisions there are, each with its number",
        )
    })?;
    Ok(Json(policy::explain(&daemon, &handle, number).await?))
}

pub(super) async fn lint(
    _: NoQuery,
    State(daemon): Shared,
    Path(bay): Path<String>,
) -> Result<Json<Vec<Finding>>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(policy::lint(&daemon, &handle).await?))
}

pub(super) async fn diff(
    _: NoQuery,
    State(daemon): Shared,
    Path(bay): Path<String>,
    Input(given): Input<PolicySet>,
) -> Result<Json<PolicyChange>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(policy::diff(&daemon, &handle, given).await?))
}

pub(super) async fn learn(
    _: NoQuery,
    State(daemon): Shared,
    Path(bay): Path<String>,
) -> Result<Json<Lesson>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(policy::learn(&daemon, &handle).await?))
}

pub(super) async fn grants(
    _: NoQuery,
    State(daemon): Shared,
    Path(bay): Path<String>,
) -> Result<Json<Vec<GrantView>>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(policy::grant_list(&daemon, &handle).await))
}

pub(super) async fn grant_add(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
    Input(wanted): Input<GrantAdd>,
) -> Result<Json<GrantView>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(to_the_end(policy::grant_add(daemon, handle, wanted, caller)).await?))
}

pub(super) async fn grant_rm(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path((bay, id)): Path<(String, String)>,
) -> Result<Json<GrantView>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    Ok(Json(to_the_end(policy::grant_rm(daemon, handle, id, caller)).await?))
}
