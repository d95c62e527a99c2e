//! Secrets. Values come in and never go out.

use axum::extract::{Path, State};
use bay_types::secret::{SecretRotate, SecretSet, SecretView};

use super::{Caller, Failure, Input, Json, NoQuery, Shared};
use crate::daemon::to_the_end;
use crate::secrets;

pub(super) async fn list(_: NoQuery, State(daemon): Shared) -> Result<Json<Vec<SecretView>>, Failure> {
    Ok(Json(daemon.secrets.list()?))
}

pub(super) async fn show(
    _: NoQuery,
    State(daemon): Shared,
    Path(secret): Path<String>,
) -> Result<Json<SecretView>, Failure> {
    Ok(Json(daemon.secrets.show(&secret)?))
}

pub(super) async fn set(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(secret): Path<String>,
    Input(wanted): Input<SecretSet>,
) -> Result<Json<SecretView>, Failure> {
    Ok(Json(to_the_end(secrets::set(daemon, secret, wanted, caller)).await?))
}

pub(super) async fn rotate(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(secret): Path<String>,
    Input(wanted): Input<SecretRotate>,
) -> Result<Json<SecretView>, Failure> {
    Ok(Json(to_the_end(secrets::rotate(daemon, secret, wanted, caller)).await?))
}

pub(super) async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(secret): Path<String>,
) -> Result<Json<SecretView>, Failure> {
    Ok(Json(to_the_end(secrets::remove(daemon, secret, caller)).await?))
}
