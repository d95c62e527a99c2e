//! Bodies of requests: nothing, bytes, or a stream.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::Frame;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::mpsc;

/// The body of a request.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Bytes of a stream that are read at a time.
const CHUNK: usize = 256 * 1024;
/// Most pieces of standard input that are read ahead.
const WAITING: usize = 4;

/// No body.
#[must_use]
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

pub(crate) fn full(bytes: Vec<u8>) -> Body {
    Full::new(Bytes::from(bytes)).map_err(|never| match never {}).boxed_unsync()
}

/// A body whose pieces another thread sends. An error aborts the request, so that the daemon does not treat half a stream as a whole
/// one. If the thread drops the sender without an error, the body is complete.
#[must_use]
pub fn from_channel(mut receiver: mpsc::Receiver<io::Result<Bytes>>) -> Body {
    let pieces =
        stream::poll_fn(move |context| receiver.poll_recv(context).map(|p| p.map(|p| p.map(Frame::data))));
    StreamBody::new(pieces).boxed_unsync()
}

/// Standard input, to its end. `sent` counts the bytes.
#[must_use]
pub fn from_stdin(sent: Arc<AtomicU64>) -> Body {
    let (sender, receiver) = mpsc::channel(WAITING);
    // A separate thread rather than one of the runtime's: it may wait forever, and nothing waits for it.
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        loop {
            let mut piece = vec![0; CHUNK];
            let read = match io::Read::read(&mut input, &mut piece) {
                Ok(0) => return,
                Ok(n) => {
                    piece.truncate(n);
                    sent.fetch_add(n as u64, Ordering::Relaxed);
                    Ok(Bytes::from(piece))
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let failed = read.is_err();
            if sender.blocking_send(read).is_err() || failed {
                return;
            }
        }
    });
    from_channel(receiver)
}

/// A body from a reader, which is read only when the request can send more. At its end, `finish` reports whether the stream was complete. `sent` gets the number of bytes
/// so far.
pub fn from_reader<R, F, O>(reader: R, finish: F, mut sent: impl FnMut(u64) + Send + 'static) -> Body
where
    R: AsyncRead + Unpin + Send + 'static,
    F: FnOnce() -> O + Send + 'static,
    O: Future<Output = io::Result<()>> + Send + 'static,
{
    let state = (reader, Some(finish), BytesMut::new());
    let pieces = stream::unfold(state, async |(mut reader, mut finish, mut buffer)| {
        buffer.reserve(CHUNK);
        let piece = match reader.read_buf(&mut buffer).await {
            Ok(0) => match finish.take()?().await {
                Ok(()) => return None,
                Err(error) => Err(error),
            },
            Ok(_) => Ok(Frame::data(buffer.split().freeze())),
            Err(error) => Err(error),
        };
        Some((piece, (reader, finish, buffer)))
    });
    let mut total = 0_u64;
    let counted = futures_util::StreamExt::inspect(pieces, move |piece| {
        if let Ok(Some(data)) = piece.as_ref().map(Frame::data_ref) {
            total += data.len() as u64;
            sent(total);
        }
    });
    StreamBody::new(counted).boxed_unsync()
}
