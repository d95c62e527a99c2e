//! A connection to a guest that can be cut from outside: before the memory of a bay is captured, nobody may be connected.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;

type Cut = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Reads as ended and writes as broken once it is cut; whoever has it then lets go of it.
pub(crate) struct Line {
    stream: UnixStream,
    cut: Option<Cut>,
}

impl Line {
    /// `cuts` counts how often all lines were cut.
    pub(crate) fn new(stream: UnixStream, mut cuts: watch::Receiver<u64>) -> Self {
        let before = *cuts.borrow();
        let cut = async move {
            // An error means that the bay is forgotten, and its lines with it.
            let _ = cuts.wait_for(|count| *count != before).await;
        };
        Self { stream, cut: Some(Box::pin(cut)) }
    }

    fn is_cut(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(cut) = &mut self.cut
            && cut.as_mut().poll(context).is_ready()
        {
            self.cut = None;
        }
        self.cut.is_none()
    }
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_cut(context) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_cut(context) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn a_line_that_is_cut_wakes_its_reader_and_takes_no_more() {
        let cuts = watch::Sender::new(0);
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut line = Line::new(near, cuts.subscribe());
        far.write_all(b"x").await.unwrap();
        assert_eq!(line.read_u8().await.unwrap(), b'x');
        let reading = tokio::spawn(async move {
            let mut rest = Vec::new();
            line.read_to_end(&mut rest).await.unwrap();
            assert!(line.write_all(b"y").await.is_err());
            rest
        });
        tokio::task::yield_now().await;
        cuts.send_modify(|count| *count += 1);
        assert!(reading.await.unwrap().is_empty());
        // The line was dropped with its task, so the other end sees the end.
        assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
    }
}
