//! A connection to a guest that the daemon can cut: nobody may be connected while the memory of a bay is captured.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bay_backend::BoxedStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

type Cut = Pin<Box<dyn Future<Output = ()> + Send>>;

/// After it is cut, it reads as ended and writes as broken, so its user drops it.
pub(crate) struct GuestConnection {
    /// Closed as soon as it is cut, because the user may hold the connection for as long as its own caller stays.
    stream: Option<BoxedStream>,
    cut: Cut,
}

impl GuestConnection {
    /// `cuts` counts how many times all connections were cut.
    pub(crate) fn new(stream: BoxedStream, mut cuts: watch::Receiver<u64>) -> Self {
        let before = *cuts.borrow();
        let cut = async move {
            // An error means that the bay was removed, and its connections with it.
            let _ = cuts.wait_for(|count| *count != before).await;
        };
        Self { stream: Some(stream), cut: Box::pin(cut) }
    }

    /// The stream, unless it was cut.
    fn whole(&mut self, context: &mut Context<'_>) -> Option<Pin<&mut BoxedStream>> {
        if self.stream.is_some() && self.cut.as_mut().poll(context).is_ready() {
            self.stream = None;
        }
        self.stream.as_mut().map(Pin::new)
    }
}

impl AsyncRead for GuestConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.whole(context) {
            Some(stream) => stream.poll_read(context, buffer),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for GuestConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.whole(context) {
            Some(stream) => stream.poll_write(context, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.whole(context).map_or(Poll::Ready(Ok(())), |stream| stream.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.whole(context).map_or(Poll::Ready(Ok(())), |stream| stream.poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    #[tokio::test]
    async fn a_connection_that_is_cut_wakes_its_reader_and_takes_no_more() {
        let cuts = watch::Sender::new(0);
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut line = GuestConnection::new(Box::new(near), cuts.subscribe());
        far.write_all(b"x").await.unwrap();
        assert_eq!(line.read_u8().await.unwrap(), b'x');
        let reading = tokio::spawn(async move {
            let mut rest = Vec::new();
            line.read_to_end(&mut rest).await.unwrap();
            assert!(line.write_all(b"y").await.is_err());
            (rest, line)
        });
        tokio::task::yield_now().await;
        cuts.send_modify(|count| *count += 1);
        let (rest, _kept) = reading.await.unwrap();
        assert!(rest.is_empty());
        // Although the user still holds the connection, the other end sees its end.
        assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
    }
}
