//! The story of one bay.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::get;
use bay_core::Daemon;
use bay_core::verbs::story;
use bay_types::story::Story;

use crate::request::{Caller, NoQuery, Shared};
use crate::response::{Failure, Json};

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new().route("/v1/bays/{bay}/story", get(tell))
}

async fn tell(
    _: NoQuery,
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
) -> Result<Json<Story>, Failure> {
    Ok(Json(story::tell(&daemon, &who, &bay).await?))
}
