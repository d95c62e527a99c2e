//! Files into and out of a running bay, and changes of its files.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, Request, State};
use axum::response::Response;
use axum::routing::get;
use bay_core::Answer;
use bay_core::Daemon;
use bay_core::verbs::files::{self, Place, Upload};
use bay_types::CoreError;
use bay_types::guest::FileStat;
use futures_util::TryStreamExt;
use http::{StatusCode, header};
use serde::Deserialize;

use crate::drain_body_before_close;
use crate::request::{Caller, Shared};
use crate::response::{Failure, Json, lines, octets};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PathQuery {
    path: String,
    mode: Option<String>,
    user: Option<String>,
    sparse: Option<bool>,
    follow: Option<bool>,
    /// For an upload of an archive: the work in the bay begins with it.
    beginning: Option<bool>,
}

impl From<PathQuery> for Place {
    fn from(query: PathQuery) -> Self {
        let PathQuery { path, mode, user, sparse, follow, beginning: _ } = query;
        Self { path, mode, user, sparse, follow }
    }
}

pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new()
        .route("/v1/bays/{bay}/stat", get(stat))
        .route("/v1/bays/{bay}/files", get(read).put(write))
        .route("/v1/bays/{bay}/archive", get(pack).put(unpack))
        .route("/v1/bays/{bay}/watch", get(watch))
}

async fn stat(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Query(query): Query<PathQuery>,
) -> Result<Json<FileStat>, Failure> {
    Ok(Json(files::stat(&daemon, &who, &bay, &query.into()).await?))
}

fn bytes(answer: Answer) -> Response {
    let mut response = octets(answer.bytes);
    if let Some(length) = answer.length {
        response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    response
}

async fn read(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Query(query): Query<PathQuery>,
) -> Result<Response, Failure> {
    Ok(bytes(files::read(&daemon, &who, &bay, &query.into()).await?))
}

async fn pack(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Query(query): Query<PathQuery>,
) -> Result<Response, Failure> {
    Ok(bytes(files::read_archive(&daemon, &who, &bay, &query.into()).await?))
}

/// Passes the body of a request to a verb. If the verb fails, the rest is read for a while, as the response is
/// sent.
async fn upload<T, F>(request: Request, verb: impl FnOnce(Upload) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, CoreError>>,
{
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse().ok());
    let (body, returned) = drain_body_before_close::lend(request.into_body());
    let bytes = Box::pin(body.into_data_stream().map_err(Into::into));
    verb(Upload { length, bytes }).await.map_err(|error| {
        returned.drain();
        Failure(error)
    })
}

async fn write(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Query(query): Query<PathQuery>,
    request: Request,
) -> Result<Json<FileStat>, Failure> {
    let place = query.into();
    Ok(Json(upload(request, |upload| files::write(&daemon, &who, &bay, &place, upload)).await?))
}

async fn unpack(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Query(query): Query<PathQuery>,
    request: Request,
) -> Result<StatusCode, Failure> {
    let beginning = query.beginning == Some(true);
    let place = query.into();
    upload(request, |upload| files::write_archive(&daemon, &who, &bay, &place, upload, beginning)).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WatchQuery {
    path: String,
    #[serde(default = "yes")]
    recursive: bool,
}

fn yes() -> bool {
    true
}

async fn watch(
    State(daemon): Shared,
    Caller(who): Caller,
    Path(bay): Path<String>,
    Query(query): Query<WatchQuery>,
) -> Result<Response, Failure> {
    Ok(lines(files::watch(&daemon, &who, &bay, &query.path, query.recursive).await?))
}
