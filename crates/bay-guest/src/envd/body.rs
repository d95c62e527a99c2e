//! The body of a request. A part that is not needed is read too, up to a bound.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// Most bytes that are read of a body that is not needed.
const UNWANTED_BYTES: usize = 64 << 20;
/// How long a client may take to send them.
const UNWANTED_TIME: Duration = Duration::from_secs(10);

/// A body as it arrives. If this is dropped before the end, a task reads the rest, within the bounds above, while the
/// answer is sent. Otherwise the connection would be reset because of unread data, and the client would lose the
/// answer.
#[derive(Debug)]
pub(super) struct Arriving(Option<Incoming>);

impl Arriving {
    pub(super) fn new(body: Incoming) -> Self {
        Self(Some(body))
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.get_mut().0 {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        let Some(mut body) = self.0.take().filter(|body| !body.is_end_stream()) else { return };
        let throw_away = async move {
            let mut left = UNWANTED_BYTES;
            while let Some(Ok(frame)) = body.frame().await {
                left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                if left == 0 {
                    return;
                }
            }
        };
        tokio::spawn(tokio::time::timeout(UNWANTED_TIME, throw_away));
    }
}
