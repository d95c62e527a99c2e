//! What handlers answer with: JSON, bytes, lines of JSON, and errors.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bay_core::Teller;
use bay_core::byte_stream::{ByteStream, json_lines, received};
use bay_types::CoreError;
use bay_types::frame::Frame;
use bay_types::progress::News;
use futures_util::StreamExt;
use http::{StatusCode, header};
use serde::Serialize;

use crate::words::Words;

/// A [`CoreError`] on its way out. It lies in the response as it is, and gets the words of this front last of all
/// ([`encode_errors`](crate::encode_errors)): a handler need not know which bay the request is about.
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

/// Answers with frames as they come. If the core ends them with an error, the last frame says so.
pub(crate) fn frames(words: Words, frames: ByteStream) -> Response {
    octets(Box::pin(frames.map(move |piece| match piece.map_err(|error| error.downcast::<CoreError>()) {
        Ok(bytes) => Ok(bytes),
        Err(Ok(error)) => Ok(Frame::Error(words.error(*error)).to_bytes().into()),
        Err(Err(cut)) => Err(cut),
    })))
}

/// Answers with lines of JSON as they come.
pub(crate) fn lines(lines: ByteStream) -> Response {
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

/// Answers with lines about the progress of long work, and then with its result. The work does not wait for the reader.
pub(crate) fn progress_then_result<T, W, F>(words: Words, work: W) -> Response
where
    T: Serialize + Send + 'static,
    W: FnOnce(Teller) -> F,
    F: Future<Output = Result<T, CoreError>> + Send + 'static,
{
    let (teller, progress) = Teller::new();
    // In a task of its own, so that a panic in it is an answer too.
    let work = tokio::spawn(work(teller));
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
