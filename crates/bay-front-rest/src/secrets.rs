//! Secrets. Values come in and never go out.

use axum::extract::{Path, State};
use bay_types::secret::{SecretRotate, SecretSet, SecretView};

use crate::request::{Caller, Input, NoQuery, Shared};
use crate::response::{Failure, Json};
use bay_core::verbs::secrets;

pub(super) async fn list(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<Json<Vec<SecretView>>, Failure> {
    Ok(Json(secrets::list(&daemon, &who)?))
}

pub(super) async fn show(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(secret): Path<String>,
) -> Result<Json<SecretView>, Failure> {
    Ok(Json(secrets::show(&daemon, &who, &secret)?))
}

pub(super) async fn set(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(secret): Path<String>,
    Input(wanted): Input<SecretSet>,
) -> Result<Json<SecretView>, Failure> {
    Ok(Json(secrets::set(&daemon, &who, secret, wanted).await?))
}

pub(super) async fn rotate(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(secret): Path<String>,
    Input(wanted): Input<SecretRotate>,
) -> Result<Json<SecretView>, Failure> {
    Ok(Json(secrets::rotate(&daemon, &who, secret, wanted).await?))
}

pub(super) async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(secret): Path<String>,
) -> Result<Json<SecretView>, Failure> {
    Ok(Json(secrets::delete(&daemon, &who, secret).await?))
}
