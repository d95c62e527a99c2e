//! Responses: JSON, bytes, lines of JSON, and errors.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bay_core::ProgressReporter;
use bay_core::byte_stream::{ByteStream, json_lines, received};
use bay_types::CoreError;
use bay_types::frame::Frame;
use bay_types::progress::News;
use futures_util::StreamExt;
use http::{StatusCode, header};
use serde::Serialize;

use bay_cli_words::Words;

/// A [`CoreError`] as a response. The response carries it unchanged until [`encode_errors`](crate::encode_errors) adds
/// the hints of this front. So a handler need not know which bay the request is about.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) CoreError);

impl From<CoreError> for Failure {
    fn from(error: CoreError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = status(self.0.code.http_status()).into_response();
        response.extensions_mut().insert(self.0);
        response
    }
}

pub(crate) fn status(number: u16) -> StatusCode {
    StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// A JSON response.
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

/// A response with a stream of bytes.
pub(crate) fn octets(bytes: ByteStream) -> Response {
    ([(header::CONTENT_TYPE, "application/octet-stream")], Body::from_stream(bytes)).into_response()
}

/// A response with a stream of frames. If the core ends it with a [`CoreError`], the last frame has the error. With
/// any other error, the stream is cut.
pub(crate) fn frames(words: Words, frames: ByteStream) -> Response {
    octets(Box::pin(frames.map(move |piece| match piece.map_err(|error| error.downcast::<CoreError>()) {
        Ok(bytes) => Ok(bytes),
        Err(Ok(error)) => Ok(Frame::Error(words.error(*error)).to_bytes().into()),
        Err(Err(cut)) => Err(cut),
    })))
}

/// A response with a stream of lines of JSON.
pub(crate) fn lines(lines: ByteStream) -> Response {
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

/// A response with lines about the progress of a long operation, and then its result or its error. A slow reader
/// does not delay the operation.
pub(crate) fn progress_then_result<T, W, F>(words: Words, work: W) -> Response
where
    T: Serialize + Send + 'static,
    W: FnOnce(ProgressReporter) -> F,
    F: Future<Output = Result<T, CoreError>> + Send + 'static,
{
    let (reporter, progress) = ProgressReporter::new();
    // A separate task, so that a panic becomes a response too.
    let work = tokio::spawn(work(reporter));
    let last = async move {
        let error = match work.await {
            Ok(Ok(result)) => return News::Done { result },
            Ok(Err(error)) => error,
            Err(panic) => CoreError::internal(&panic),
        };
        News::Failed { error: words.error(error) }
    };
    let progress = received(progress).map(News::<T>::Progress);
    lines(json_lines(progress.chain(futures_util::stream::once(last))))
}
