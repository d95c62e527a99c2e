//! Byte streams of connections, and wrappers that read ahead or in larger pieces.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// The byte stream of a connection, on any transport.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// A stream whose first bytes can be read without consuming them.
pub(crate) struct Prefixed {
    prefix: Bytes,
    inner: Box<dyn Io>,
}

impl Prefixed {
    pub(crate) fn new(inner: impl Io) -> Self {
        Self { prefix: Bytes::new(), inner: Box::new(inner) }
    }

    /// The first byte, without consuming it. `None` at the end of the stream.
    pub(crate) async fn first(&mut self) -> io::Result<Option<u8>> {
        if self.prefix.is_empty() {
            let mut buffer = BytesMut::with_capacity(4096);
            self.inner.read_buf(&mut buffer).await?;
            self.prefix = buffer.freeze();
        }
        Ok(self.prefix.first().copied())
    }

    /// Reads further bytes without consuming them. `false` at the end of the stream.
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

/// Returns all available bytes that fit in one read. TLS returns one record per read, and each read costs two task
/// switches and a packet.
pub(crate) struct Gathering<S> {
    inner: S,
    /// The error that followed the last bytes.
    failed: Option<io::Error>,
}

impl<S> Gathering<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self { inner, failed: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gathering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        let begin = buffer.filled().len();
        loop {
            let before = buffer.filled().len();
            let read = Pin::new(&mut self.inner).poll_read(context, buffer);
            let any = before > begin;
            match read {
                Poll::Ready(Ok(())) if buffer.filled().len() > before && buffer.remaining() > 0 => {}
                Poll::Ready(Ok(())) => return Poll::Ready(Ok(())),
                Poll::Ready(Err(error)) if any => {
                    self.failed = Some(error);
                    return Poll::Ready(Ok(()));
                }
                Poll::Pending if any => return Poll::Ready(Ok(())),
                read => return read,
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gathering<S> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_there_is_read_at_once_and_an_error_comes_after_it() {
        let reads: Vec<Result<&'static [u8], _>> =
            vec![Ok(b"one "), Ok(b"two"), Err(io::ErrorKind::ConnectionReset)];
        let mut stream = Gathering::new(Script(reads.into_iter()));
        let mut buffer = [0; 64];
        assert_eq!(stream.read(&mut buffer).await.unwrap(), 7);
        assert_eq!(&buffer[..7], b"one two");
        let error = stream.read(&mut buffer).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(stream.read(&mut buffer).await.unwrap(), 0);
    }

    /// A reader with scripted results.
    struct Script(std::vec::IntoIter<Result<&'static [u8], io::ErrorKind>>);

    impl AsyncRead for Script {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Ready(match self.0.next() {
                Some(Ok(bytes)) => {
                    buffer.put_slice(bytes);
                    Ok(())
                }
                Some(Err(kind)) => Err(kind.into()),
                None => Ok(()),
            })
        }
    }
}
