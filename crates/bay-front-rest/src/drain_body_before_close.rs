//! Uploads that are refused before their end. If the connection closes while a client still sends, the client sees a
//! broken connection instead of the response. So the rest of the body is read for a while and discarded.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use tokio::sync::oneshot;

/// The most bytes of a refused upload that are read and discarded.
const DRAINED_BYTES: usize = 1 << 30;
/// The longest time for which they are read.
const DRAINED_WITHIN: Duration = Duration::from_secs(10);

/// Lends a request's body to a verb. When the verb drops it, the rest of the body comes back through [`Returned`].
pub(super) fn lend(body: Body) -> (Body, Returned) {
    let (back, returned) = oneshot::channel();
    (Body::new(Lent { body, back: Some(back) }), Returned(returned))
}

pub(super) struct Returned(oneshot::Receiver<Body>);

impl Returned {
    /// Reads the rest while the response is already being sent.
    pub(super) fn drain(self) {
        tokio::spawn(async move {
            let heard = async {
                let Ok(mut body) = self.0.await else { return };
                let mut left = DRAINED_BYTES;
                while let Some(Ok(frame)) = body.frame().await {
                    left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                    if left == 0 {
                        return;
                    }
                }
            };
            let _ = tokio::time::timeout(DRAINED_WITHIN, heard).await;
        });
    }
}

struct Lent {
    body: Body,
    back: Option<oneshot::Sender<Body>>,
}

impl hyper::body::Body for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(back) = self.back.take() {
            // If it was read to its end, nothing receives it.
            let _ = back.send(std::mem::take(&mut self.body));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use tokio::sync::mpsc;

    #[tokio::test]
    async fn the_rest_of_a_refused_body_is_read() {
        let (sender, receiver) = mpsc::channel::<Result<Bytes, std::io::Error>>(1);
        let parts =
            stream::unfold(receiver, |mut receiver| async { Some((receiver.recv().await?, receiver)) });
        let (mut lent, returned) = lend(Body::from_stream(parts));
        sender.send(Ok(Bytes::from_static(b"first"))).await.unwrap();
        assert_eq!(lent.frame().await.unwrap().unwrap().into_data().unwrap(), "first");
        drop(lent);
        returned.drain();
        for _ in 0..100 {
            sender.send(Ok(Bytes::from_static(b"more"))).await.unwrap();
        }
    }
}
