//! Secrets. Values are received and never returned.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use bay_core::Daemon;
use bay_core::verbs::secrets;
use bay_types::secret::{SecretRotate, SecretSet, SecretView};

use crate::request::{Caller, Input, NoQuery, Shared};
use crate::response::{Failure, Json};

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new()
        .route("/v1/secrets", get(list))
        .route("/v1/secrets/{secret}", get(show).put(set).delete(remove))
        .route("/v1/secrets/{secret}/rotate", post(rotate))
}

async fn list(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<Json<Vec<SecretView>>, Failure> {
    Ok(Json(secrets::list(&daemon, &who)?))
}

async fn show(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(secret): Path<String>,
) -> Result<Json<SecretView>, Failure> {
    Ok(Json(secrets::show(&daemon, &who, &secret)?))
}

async fn set(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(secret): Path<String>,
    Input(wanted): Input<SecretSet>,
) -> Result<Json<SecretView>, Failure> {
    Ok(Json(secrets::set(&daemon, &who, secret, wanted).await?))
}

async fn rotate(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(secret): Path<String>,
    Input(wanted): Input<SecretRotate>,
) -> Result<Json<SecretView>, Failure> {
    Ok(Json(secrets::rotate(&daemon, &who, secret, wanted).await?))
}

async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(secret): Path<String>,
) -> Result<Json<SecretView>, Failure> {
    Ok(Json(secrets::delete(&daemon, &who, secret).await?))
}
