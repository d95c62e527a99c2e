//! Webhooks that are notified of approvals.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{delete, get, post};
use bay_core::Daemon;
use bay_core::verbs::webhooks;
use bay_types::notify::{Delivery, Webhook, WebhookAdd, WebhookMade};

use crate::request::{Caller, Input, NoQuery, Shared};
use crate::response::{Failure, Json};

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new()
        .route("/v1/notify", get(list).post(add))
        .route("/v1/notify/{webhook}", delete(remove))
        .route("/v1/notify/{webhook}/test", post(test))
}

async fn list(_: NoQuery, State(daemon): Shared, Caller(who): Caller) -> Result<Json<Vec<Webhook>>, Failure> {
    Ok(Json(webhooks::list(&daemon, &who)?))
}

async fn add(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Input(wanted): Input<WebhookAdd>,
) -> Result<Json<WebhookMade>, Failure> {
    Ok(Json(webhooks::add(&daemon, &who, wanted).await?))
}

async fn remove(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Json<Webhook>, Failure> {
    Ok(Json(webhooks::delete(&daemon, &who, id).await?))
}

async fn test(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<Json<Delivery>, Failure> {
    Ok(Json(webhooks::test(&daemon, &who, &id).await?))
}
