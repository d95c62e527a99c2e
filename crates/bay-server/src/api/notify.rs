//! Who is told of questions.

use axum::extract::{Path, State};
use bay_types::notify::{Delivery, Webhook, WebhookAdd, WebhookMade};

use super::{Caller, Failure, Input, Json, NoQuery, Shared};
use crate::daemon::to_the_end;
use crate::notify;

pub(super) async fn list(_: NoQuery, State(daemon): Shared) -> Json<Vec<Webhook>> {
    Json(daemon.notify.list())
}

pub(super) async fn add(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Input(wanted): Input<WebhookAdd>,
) -> Result<Json<WebhookMade>, Failure> {
    Ok(Json(to_the_end(notify::add(daemon, wanted, caller)).await?))
}

pub(super) async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Result<Json<Webhook>, Failure> {
    Ok(Json(to_the_end(notify::remove(daemon, id, caller)).await?))
}

pub(super) async fn test(
    _: NoQuery,
    State(daemon): Shared,
    Path(id): Path<String>,
) -> Result<Json<Delivery>, Failure> {
    Ok(Json(notify::test(&daemon, &id).await?))
}
