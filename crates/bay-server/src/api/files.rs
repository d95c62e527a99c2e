//! Files in and out of a running bay: streams that go through to the guest, which resolves every path safely inside.

use std::fmt::Write;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use bay_store::Draft;
use bay_text::percent::path_value;
use bay_types::event::file::FileWrite;
use bay_types::guest::FileStat;
use bay_types::principal::Principal;
use bay_types::{ApiError, ErrorCode};
use bytes::Bytes;
use http::{Method, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;

use super::{Caller, Failure, Json, Shared, hearing_out};
use crate::channel::ANSWER_WITHIN;
use crate::daemon::Daemon;
use crate::registry::BayHandle;
use crate::service::execs;
use crate::validate;

/// Longest answer of a guest to an upload.
const MAX_UPLOAD_ANSWER: usize = 64 * 1024;
/// How long that may take.
const UPLOAD_ANSWER_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PathQuery {
    path: String,
    /// Permission bits in octal.
    mode: Option<String>,
    user: Option<String>,
    /// Of an archive: holes of files are left out of it.
    sparse: Option<bool>,
    /// Of a stat: what a link leads to.
    follow: Option<bool>,
}

impl PathQuery {
    fn check(&self) -> Result<(), ApiError> {
        validate::bay_path(&self.path)?;
        let odd_mode = self.mode.as_ref().is_some_and(|mode| {
            mode.is_empty() || mode.len() > 5 || !mode.bytes().all(|b| matches!(b, b'0'..=b'7'))
        });
        let odd_user = self.user.as_ref().is_some_and(|user| user.is_empty() || user.len() > 256);
        if odd_mode || odd_user {
            return Err(ApiError::new(
                ErrorCode::InvalidInput,
                "the mode is not octal, or the user's name is empty or too long",
                "give a mode such as 644 and a user of the bay",
            ));
        }
        Ok(())
    }

    fn uri(&self, noun: &str) -> String {
        let mut uri = format!("/v1/{noun}?path={}", path_value(self.path.as_bytes()));
        for (key, value) in [("mode", &self.mode), ("user", &self.user)] {
            if let Some(value) = value {
                let _ = write!(uri, "&{key}={}", path_value(value.as_bytes()));
            }
        }
        for (key, flag) in [("sparse", self.sparse), ("follow", self.follow)] {
            if flag == Some(true) {
                let _ = write!(uri, "&{key}=true");
            }
        }
        uri
    }
}

pub(super) async fn stat(
    State(daemon): Shared,
    Path(bay): Path<String>,
    Query(query): Query<PathQuery>,
) -> Result<Json<FileStat>, Failure> {
    query.check()?;
    let handle = daemon.bays.find(&bay)?;
    execs::must_run(&handle)?;
    Ok(Json(handle.guest.json(Method::GET, &query.uri("stat"), Bytes::new(), ANSWER_WITHIN).await?))
}

async fn out(daemon: &Daemon, bay: &str, query: &PathQuery, noun: &str) -> Result<Response, Failure> {
    query.check()?;
    let handle = daemon.bays.find(bay)?;
    execs::must_run(&handle)?;
    let request = Request::get(query.uri(noun)).body(Body::empty()).map_err(|e| ApiError::internal(&e))?;
    let response = handle.guest.stream(request, Some(ANSWER_WITHIN)).await?;
    // The length and the bytes are all that is taken over: no header of the guest's reaches the caller.
    let length =
        response.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    let mut answer = ([(header::CONTENT_TYPE, "application/octet-stream")], Body::new(response.into_body()))
        .into_response();
    if let Some(length) = length {
        answer.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    Ok(answer)
}

async fn into(
    daemon: &Daemon,
    handle: &BayHandle,
    query: &PathQuery,
    noun: &str,
    caller: Principal,
    request: Request,
) -> Result<Bytes, Failure> {
    query.check()?;
    execs::must_run(handle)?;
    let event =
        Draft::of(FileWrite { path: query.path.clone(), archive: noun == "archive", by: caller.by() });
    daemon.store.event_append(Some(handle.id), &event).await.map_err(|e| e.to_api())?;
    let length = request.headers().get(header::CONTENT_LENGTH).cloned();
    let (body, returned) = hearing_out::lend(request.into_body());
    let mut onward = Request::put(query.uri(noun)).body(body).map_err(|e| ApiError::internal(&e))?;
    if let Some(length) = length {
        onward.headers_mut().insert(header::CONTENT_LENGTH, length);
    }
    // No deadline: the answer comes after the last byte, and the caller sets the pace.
    let response = match handle.guest.stream(onward, None).await {
        Ok(response) => response,
        Err(error) => {
            returned.hear_out();
            return Err(error.into());
        }
    };
    let rest = Limited::new(response.into_body(), MAX_UPLOAD_ANSWER).collect();
    let rest = tokio::time::timeout(UPLOAD_ANSWER_WITHIN, rest).await;
    Ok(rest.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default())
}

pub(super) async fn read(
    State(daemon): Shared,
    Path(bay): Path<String>,
    Query(query): Query<PathQuery>,
) -> Result<Response, Failure> {
    out(&daemon, &bay, &query, "files").await
}

pub(super) async fn pack(
    State(daemon): Shared,
    Path(bay): Path<String>,
    Query(query): Query<PathQuery>,
) -> Result<Response, Failure> {
    out(&daemon, &bay, &query, "archive").await
}

pub(super) async fn write(
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
    Query(query): Query<PathQuery>,
    request: Request,
) -> Result<Json<FileStat>, Failure> {
    let handle = daemon.bays.find(&bay)?;
    let said = into(&daemon, &handle, &query, "files", caller, request).await?;
    let stat = serde_json::from_slice(&said).map_err(|e| {
        ApiError::new(
            ErrorCode::GuestUnreachable,
            format!("the guest of this bay did not say what it wrote: {e}"),
            "`bay stop NAME` and `bay start NAME` give it a new guest",
        )
    })?;
    Ok(Json(stat))
}

pub(super) async fn unpack(
    State(daemon): Shared,
    Caller(caller): Caller,
    Path(bay): Path<String>,
    Query(query): Query<PathQuery>,
    request: Request,
) -> Result<StatusCode, Failure> {
    let handle = daemon.bays.find(&bay)?;
    into(&daemon, &handle, &query, "archive", caller, request).await?;
    Ok(StatusCode::NO_CONTENT)
}
