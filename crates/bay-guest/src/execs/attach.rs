//! Frames both ways between one client and one exec.

use std::sync::Arc;
use std::time::Duration;

use bay_types::ApiError;
use bay_types::frame::{Frame, MAX_PAYLOAD};
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::mpsc;

use super::exec::Exec;
use super::output::Output;
use crate::http::invalid;

/// Frames of input that wait for the command. Behind them a client's signals wait too.
const INPUT_QUEUE: usize = 4;
/// How long the client has to read the last frame and close.
const FAREWELL: Duration = Duration::from_secs(5);
const READ_STEP: usize = 64 << 10;

enum Feed {
    Bytes(Vec<u8>),
    Eof,
}

/// Serves an upgraded connection until the exec ends or the client goes. `early` is what the client sent before the
/// upgrade was answered.
pub(crate) async fn serve(stream: UnixStream, early: &[u8], exec: Option<Arc<Exec>>, mut output: Output) {
    let (mut from_client, mut to_client) = stream.into_split();
    let feed = exec.as_ref().map(|exec| spawn_feeder(Arc::clone(exec)));
    let mut buffer = BytesMut::from(early);
    let malformed = {
        let send = async {
            while let Some(frame) = output.next().await {
                if to_client.write_all(frame).await.is_err() {
                    return;
                }
            }
        };
        let receive = receive(&mut from_client, &mut buffer, exec.as_deref(), feed.as_ref());
        tokio::select! {
            () = send => None,
            outcome = receive => outcome.err(),
        }
    };
    drop(feed);
    if let Some(error) = malformed {
        let _ = to_client.write_all(&Frame::Error(error).to_bytes()).await;
    }
    if to_client.shutdown().await.is_ok() {
        // Closing with unread input would look like a broken connection to the client.
        let mut sink = vec![0; 4096];
        let drain = async { while from_client.read(&mut sink).await.is_ok_and(|n| n > 0) {} };
        let _ = tokio::time::timeout(FAREWELL, drain).await;
    }
}

/// Input goes on being delivered when its client is gone: what was sent was sent.
fn spawn_feeder(exec: Arc<Exec>) -> mpsc::Sender<Feed> {
    let (sender, mut queue) = mpsc::channel(INPUT_QUEUE);
    tokio::spawn(async move {
        let mut life = exec.life.subscribe();
        let feed = async {
            while let Some(next) = queue.recv().await {
                match next {
                    Feed::Bytes(bytes) => exec.input.write(&bytes).await,
                    Feed::Eof => exec.input.close().await,
                }
            }
        };
        tokio::select! {
            () = feed => {}
            // A child that keeps the input open without reading must not keep this task.
            _ = life.wait_for(|life| life.ended.is_some()) => {}
        }
    });
    sender
}

/// Returns when the client is gone, or with what it did wrong.
async fn receive(
    from: &mut OwnedReadHalf,
    buffer: &mut BytesMut,
    exec: Option<&Exec>,
    feed: Option<&mpsc::Sender<Feed>>,
) -> Result<(), ApiError> {
    loop {
        while let Some((frame, used)) =
            Frame::decode(buffer).map_err(|e| invalid(format!("a frame was not understood: {e}")))?
        {
            buffer.advance(used);
            deliver(frame, exec, feed).await?;
        }
        if buffer.capacity() - buffer.len() < READ_STEP {
            buffer.reserve(READ_STEP.max(buffer.len()).min(MAX_PAYLOAD));
        }
        match from.read_buf(buffer).await {
            Ok(n) if n > 0 => {}
            _ => return Ok(()),
        }
    }
}

async fn deliver(
    frame: Frame,
    exec: Option<&Exec>,
    feed: Option<&mpsc::Sender<Feed>>,
) -> Result<(), ApiError> {
    let (Some(exec), Some(feed)) = (exec, feed) else {
        return Ok(());
    };
    match frame {
        // The feeder stops when the exec has ended; then there is nobody to take the input.
        Frame::Stdin(bytes) => {
            exec.touch_terminal();
            drop(feed.send(Feed::Bytes(bytes)).await);
        }
        Frame::StdinEof => drop(feed.send(Feed::Eof).await),
        Frame::Resize(size) => exec.resize(size),
        Frame::Signal(signal) if (1..=bay_sys::spawn::MAX_SIGNAL).contains(&signal) => {
            exec.signal_front(signal);
        }
        Frame::Signal(signal) => return Err(invalid(format!("{signal} is not a signal"))),
        Frame::Stdout(_) | Frame::Stderr(_) | Frame::Gap(_) | Frame::Exit(..) | Frame::Error(_) => {
            return Err(invalid("a frame that only the guest sends was received"));
        }
    }
    Ok(())
}
