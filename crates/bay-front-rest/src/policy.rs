//! Policies and grants.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{delete, get, post};
use bay_core::Daemon;
use bay_core::verbs::policy::verbs::{self, LayerName};
use bay_types::policy::{
    Check, Explained, Finding, GrantAdd, GrantView, LayerSet, Lesson, PolicyChange, PolicySet, PolicyView,
    Recalled,
};

use crate::request::{Caller, Input, NoQuery, Shared};
use crate::response::{Failure, Json};

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new()
        .route("/v1/policy/host", get(host).put(set_host).delete(unset_host))
        .route("/v1/bays/{bay}/policy", get(show).put(set).delete(unset))
        .route("/v1/bays/{bay}/policy/project", get(project).put(set_project).delete(unset_project))
        .route("/v1/bays/{bay}/policy/check", post(check))
        .route("/v1/bays/{bay}/policy/explain/{event}", get(explain))
        .route("/v1/bays/{bay}/policy/lint", get(lint))
        .route("/v1/bays/{bay}/policy/diff", post(diff))
        .route("/v1/bays/{bay}/policy/learn", get(learn))
        .route("/v1/bays/{bay}/grants", get(grants).post(grant_add))
        .route("/v1/bays/{bay}/grants/{grant}", delete(grant_rm))
}

async fn show(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<PolicyView>, Failure> {
    Ok(Json(verbs::show(&daemon, &who, &bay).await?))
}

async fn set(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(given): Input<PolicySet>,
) -> Result<Json<PolicyView>, Failure> {
    Ok(Json(verbs::set(&daemon, &who, &bay, given).await?))
}

async fn unset(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<PolicyView>, Failure> {
    Ok(Json(verbs::unset(&daemon, &who, &bay).await?))
}

async fn host(_: NoQuery, State(daemon): Shared, Caller(who): Caller) -> Result<Json<LayerSet>, Failure> {
    Ok(Json(verbs::show_layer(&daemon, &who, LayerName::Host).await?))
}

async fn set_host(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Input(given): Input<PolicySet>,
) -> Result<Json<LayerSet>, Failure> {
    Ok(Json(verbs::set_layer(&daemon, &who, LayerName::Host, given).await?))
}

async fn unset_host(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<Json<LayerSet>, Failure> {
    Ok(Json(verbs::unset_layer(&daemon, &who, LayerName::Host).await?))
}

async fn project(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<LayerSet>, Failure> {
    Ok(Json(verbs::show_layer(&daemon, &who, LayerName::ProjectOf(&bay)).await?))
}

async fn set_project(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(given): Input<PolicySet>,
) -> Result<Json<LayerSet>, Failure> {
    Ok(Json(verbs::set_layer(&daemon, &who, LayerName::ProjectOf(&bay), given).await?))
}

async fn unset_project(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<LayerSet>, Failure> {
    Ok(Json(verbs::unset_layer(&daemon, &who, LayerName::ProjectOf(&bay)).await?))
}

async fn check(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(asked): Input<Check>,
) -> Result<Json<Explained>, Failure> {
    Ok(Json(verbs::check(&daemon, &who, &bay, &asked).await?))
}

async fn explain(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path((bay, decision)): Path<(String, String)>,
) -> Result<Json<Recalled>, Failure> {
    Ok(Json(verbs::explain(&daemon, &who, &bay, &decision).await?))
}

async fn lint(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<Vec<Finding>>, Failure> {
    Ok(Json(verbs::lint(&daemon, &who, &bay).await?))
}

async fn diff(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(given): Input<PolicySet>,
) -> Result<Json<PolicyChange>, Failure> {
    Ok(Json(verbs::diff(&daemon, &who, &bay, given).await?))
}

async fn learn(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<Lesson>, Failure> {
    Ok(Json(verbs::learn(&daemon, &who, &bay).await?))
}

async fn grants(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<Vec<GrantView>>, Failure> {
    Ok(Json(verbs::grant_list(&daemon, &who, &bay).await?))
}

async fn grant_add(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Input(wanted): Input<GrantAdd>,
) -> Result<Json<GrantView>, Failure> {
    Ok(Json(verbs::grant_add(&daemon, &who, &bay, wanted).await?))
}

async fn grant_rm(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path((bay, grant)): Path<(String, String)>,
) -> Result<Json<GrantView>, Failure> {
    Ok(Json(verbs::grant_delete(&daemon, &who, &bay, grant).await?))
}
