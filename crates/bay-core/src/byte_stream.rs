//! Streams of bytes of any length, to or from a client or a guest, at the pace of the reader.

use std::pin::Pin;

use bay_types::CoreError;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc;

/// Why a stream ended early. If it is a [`CoreError`](bay_types::CoreError) and the form of the stream has a place
/// for it, a front shows it to the reader. Otherwise it is only logged, and the reader sees the early end.
pub type StreamError = Box<dyn std::error::Error + Send + Sync>;

/// Bytes in pieces. An error as the last item means that the stream was cut short.
pub type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes, StreamError>> + Send>>;

/// The values of a channel, until all senders are dropped.
pub fn received<T>(from: mpsc::Receiver<T>) -> impl Stream<Item = T> {
    futures_util::stream::unfold(from, |mut from| async move { from.recv().await.map(|value| (value, from)) })
}

/// The bytes of a channel, until all senders are dropped.
pub(crate) fn received_bytes(from: mpsc::Receiver<Bytes>) -> ByteStream {
    Box::pin(received(from).map(Ok))
}

/// The bytes of a channel, until all senders are dropped. An error of the core is an item like a piece.
pub(crate) fn received_until_error(from: mpsc::Receiver<Result<Bytes, CoreError>>) -> ByteStream {
    Box::pin(received(from).map(|piece| piece.map_err(Into::into)))
}

/// The body of an answer of the guest.
pub(crate) fn body(body: Incoming) -> ByteStream {
    Box::pin(body.into_data_stream().map_err(Into::into))
}

/// Each value as one line of JSON.
pub fn json_lines<T: serde::Serialize + Send + 'static>(
    values: impl Stream<Item = T> + Send + 'static,
) -> ByteStream {
    Box::pin(values.map(|value| Ok(json_line(&value))))
}

/// A value as one line of JSON.
pub(crate) fn json_line<T: serde::Serialize>(value: &T) -> Bytes {
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line.into()
}
