//! Webhooks that are notified of approvals.

use axum::extract::{Path, State};
use bay_types::notify::{Delivery, Webhook, WebhookAdd, WebhookMade};

use crate::request::{Caller, Input, NoQuery, Shared};
use crate::response::{Failure, Json};
use bay_core::verbs::webhooks;

pub(super) async fn list(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
) -> Result<Json<Vec<Webhook>>, Failure> {
    Ok(Json(webhooks::list(&daemon, &who)?))
}

pub(super) async fn add(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Input(wanted): Input<WebhookAdd>,
) -> Result<Json<WebhookMade>, Failure> {
    Ok(Json(webhooks::add(&daemon, &who, wanted).await?))
}

pub(super) async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Json<Webhook>, Failure> {
    Ok(Json(webhooks::delete(&daemon, &who, id).await?))
}

pub(super) async fn test(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Json<Delivery>, Failure> {
    Ok(Json(webhooks::test(&daemon, &who, &id).await?))
}
