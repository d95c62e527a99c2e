//! A stream that closes when its guard is dropped. russh serves connections in tasks of its own, which cannot be
//! cancelled.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use crate::stream::Io;

/// Closes the stream when it is dropped.
#[derive(Debug)]
pub(super) struct Leash {
    _end: oneshot::Sender<()>,
}

pub(super) struct Leashed<S> {
    inner: S,
    /// `None` after the guard was dropped.
    held: Option<oneshot::Receiver<()>>,
}

pub(super) fn leashed<S: Io>(inner: S) -> (Leashed<S>, Leash) {
    let (end, held) = oneshot::channel();
    (Leashed { inner, held: Some(held) }, Leash { _end: end })
}

impl<S> Leashed<S> {
    fn is_let_go(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(held) = &mut self.held
            && Pin::new(held).poll(context).is_ready()
        {
            self.held = None;
        }
        self.held.is_none()
    }
}

impl<S: Io> AsyncRead for Leashed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_let_go(context) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: Io> AsyncWrite for Leashed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_let_go(context) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_let_go(context) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn a_stream_ends_when_it_is_let_go_also_for_whoever_reads_at_that_moment() {
        let (inner, _other) = tokio::io::duplex(64);
        let (mut stream, leash) = leashed(inner);
        let reading = tokio::spawn(async move { stream.read(&mut [0; 8]).await });
        tokio::task::yield_now().await;
        drop(leash);
        assert_eq!(reading.await.unwrap().unwrap(), 0);
    }
}
