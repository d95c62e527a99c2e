//! Bytes of a tunnel, scrubbed on their way to the bay.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::patterns::Patterns;
use super::stream::Stream;

/// What is read at once.
const READ_BYTES: usize = 32 * 1024;

/// A connection of which what is read shows no value. What is written goes on as it is.
pub(crate) struct Scrubbing<S> {
    inner: S,
    /// Nothing where there is nothing to look for.
    stream: Option<Stream>,
    /// What can go out.
    out: Bytes,
    ended: bool,
}

impl<S> Scrubbing<S> {
    pub(crate) fn new(inner: S, patterns: Option<Arc<Patterns>>) -> Self {
        Self { inner, stream: patterns.map(Stream::new), out: Bytes::new(), ended: false }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Scrubbing<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let Some(stream) = &mut this.stream else {
            return Pin::new(&mut this.inner).poll_read(context, buffer);
        };
        while this.out.is_empty() && !this.ended {
            let mut piece = BytesMut::zeroed(READ_BYTES);
            let mut read = ReadBuf::new(&mut piece);
            let polled = Pin::new(&mut this.inner).poll_read(context, &mut read);
            if polled.is_pending() {
                this.out = stream.release();
                if !this.out.is_empty() {
                    break;
                }
            }
            ready!(polled)?;
            let length = read.filled().len();
            piece.truncate(length);
            this.ended = length == 0;
            this.out = if this.ended { stream.finish() } else { stream.push(piece.freeze()) };
        }
        let length = this.out.len().min(buffer.remaining());
        buffer.put_slice(&this.out[..length]);
        this.out.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Scrubbing<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::Hidden;
    use super::*;

    #[tokio::test]
    async fn messages_pass_without_waiting_and_values_do_not() {
        let hidden = Hidden { value: b"a-long-password", sentinel: b"s-sentinel-word" };
        let patterns = Arc::new(Patterns::new(&[hidden]).unwrap());
        let (near, mut far) = tokio::io::duplex(1024);
        let mut near = Scrubbing::new(near, Some(patterns));
        let mut buffer = [0; 64];
        // Ends as a value begins, and nothing follows.
        far.write_all(b"data").await.unwrap();
        near.read_exact(&mut buffer[..4]).await.unwrap();
        assert_eq!(&buffer[..4], b"data");
        far.write_all(b"-long-password, a-long-passwor").await.unwrap();
        drop(far);
        let mut rest = String::new();
        near.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "-sentinel-word, s-sentinel-wor");
    }
}
