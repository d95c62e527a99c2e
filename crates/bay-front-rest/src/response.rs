//! What handlers answer with: JSON, bytes, lines of JSON, and errors.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bay_core::Teller;
use bay_core::byte_stream::{ByteStream, json_lines, received};
use bay_types::ApiError;
use bay_types::progress::News;
use futures_util::StreamExt;
use http::{StatusCode, header};
use serde::Serialize;

/// An [`ApiError`] on its way out.
#[derive(Debug)]
pub struct Failure(pub ApiError);

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self.0)).into_response()
    }
}

/// A JSON answer.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

/// Answers with bytes as they come.
pub(crate) fn octets(bytes: ByteStream) -> Response {
    ([(header::CONTENT_TYPE, "application/octet-stream")], Body::from_stream(bytes)).into_response()
}

/// Answers with lines of JSON as they come.
pub(crate) fn lines(lines: ByteStream) -> Response {
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

/// Answers with lines about the progress of long work, and then with its result. The work does not wait for the reader.
pub(crate) fn progress_then_result<T, W, F>(work: W) -> Response
where
    T: Serialize + Send + 'static,
    W: FnOnce(Teller) -> F,
    F: Future<Output = Result<T, ApiError>> + Send + 'static,
{
    let (teller, progress) = Teller::new();
    // In a task of its own, so that a panic in it is an answer too.
    let work = tokio::spawn(work(teller));
    let last = async {
        match work.await {
            Ok(Ok(result)) => News::Done { result },
            Ok(Err(error)) => News::Failed { error },
            Err(panic) => News::Failed { error: ApiError::internal(&panic) },
        }
    };
    let progress = received(progress).map(News::<T>::Progress);
    lines(json_lines(progress.chain(futures_util::stream::once(last))))
}
