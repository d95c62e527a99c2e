//! Connections of a bay, whatever they came through, with what was already read of them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// A stream whose beginning has been looked at and is read again.
pub(crate) struct Prefixed {
    prefix: Bytes,
    inner: Box<dyn Io>,
}

impl Prefixed {
    pub(crate) fn new(inner: impl Io) -> Self {
        Self { prefix: Bytes::new(), inner: Box::new(inner) }
    }

    /// What comes first, without taking it away; nothing at the end of the stream.
    pub(crate) async fn first(&mut self) -> io::Result<Option<u8>> {
        if self.prefix.is_empty() {
            let mut buffer = BytesMut::with_capacity(4096);
            self.inner.read_buf(&mut buffer).await?;
            self.prefix = buffer.freeze();
        }
        Ok(self.prefix.first().copied())
    }

    /// Reads more without taking it away; nothing more at the end of the stream.
    pub(crate) async fn more(&mut self) -> io::Result<bool> {
        let mut buffer = BytesMut::with_capacity(self.prefix.len() + 4096);
        buffer.extend_from_slice(&self.prefix);
        let read = self.inner.read_buf(&mut buffer).await?;
        self.prefix = buffer.freeze();
        Ok(read > 0)
    }

    pub(crate) fn seen(&self) -> &[u8] {
        &self.prefix
    }
}

impl AsyncRead for Prefixed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() {
            return Pin::new(&mut self.inner).poll_read(context, buffer);
        }
        let length = self.prefix.len().min(buffer.remaining());
        buffer.put_slice(&self.prefix[..length]);
        self.prefix.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Prefixed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
