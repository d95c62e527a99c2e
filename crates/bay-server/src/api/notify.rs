//! Webhooks that are notified of approvals.

use axum::extract::{Path, State};
use bay_types::notify::{Delivery, Webhook, WebhookAdd, WebhookMade};

use super::{Caller, Failure, Input, Json, NoQuery, Shared};
use crate::notify;

pub(super) async fn list(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<Json<Vec<Webhook>>, Failure> {
    Ok(Json(notify::list(&daemon, &who)?))
}

pub(super) async fn add(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Input(wanted): Input<WebhookAdd>,
) -> Result<Json<WebhookMade>, Failure> {
    Ok(Json(notify::add(&daemon, &who, wanted).await?))
}

pub(super) async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Json<Webhook>, Failure> {
    Ok(Json(notify::delete(&daemon, &who, id).await?))
}

pub(super) async fn test(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Json<Delivery>, Failure> {
    Ok(Json(notify::test(&daemon, &who, &id).await?))
}
