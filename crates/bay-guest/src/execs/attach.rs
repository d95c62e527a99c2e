//! Sends frames in both directions between one client and one exec.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bay_types::ApiError;
use bay_types::frame::{Frame, MAX_PAYLOAD};
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::watch;

use super::exec::Exec;
use super::input_queue::{self, Source};
use super::output::Output;
use crate::http::invalid;

/// How long the client has to read the last frame and close the connection.
const FAREWELL: Duration = Duration::from_secs(5);
const READ_STEP: usize = 64 << 10;

/// Where a client's input goes.
pub(crate) struct Target {
    pub(crate) exec: Arc<Exec>,
    pub(crate) source: Arc<Source>,
    /// The client wants to know how much of its input the command has taken.
    pub(crate) reports: bool,
}

/// Serves an upgraded connection until the exec ends or the client goes away. `early` is what the client sent before
/// the upgrade was answered. Input for an exec that has ended is dropped.
pub(crate) async fn serve(stream: UnixStream, early: &[u8], target: Option<Target>, mut output: Output) {
    let (mut from_client, mut to_client) = stream.into_split();
    let reported = target.as_ref().filter(|target| target.reports);
    let mut taken = reported.map(|target| target.source.follow_taken());
    let mut buffer = BytesMut::from(early);
    let malformed = {
        let send = async {
            loop {
                let mut next = pin!(output.next());
                let frame = loop {
                    tokio::select! {
                        frame = &mut next => break frame,
                        offset = taken_further(&mut taken) => {
                            if to_client.write_all(&Frame::Taken(offset).to_bytes()).await.is_err() {
                                return drained().await;
                            }
                        }
                    }
                };
                let Some(frame) = frame else { return };
                if to_client.write_all(frame).await.is_err() {
                    return drained().await;
                }
            }
        };
        let receive = receive(&mut from_client, &mut buffer, target.as_ref());
        tokio::select! {
            () = send => None,
            outcome = receive => outcome.err(),
        }
    };
    if let Some(error) = malformed {
        let _ = to_client.write_all(&Frame::Error(error).to_bytes()).await;
    }
    if to_client.shutdown().await.is_ok() {
        // If the connection were closed with unread input, the client would see a broken connection.
        let mut sink = vec![0; 4096];
        let drain = async { while from_client.read(&mut sink).await.is_ok_and(|n| n > 0) {} };
        let _ = tokio::time::timeout(FAREWELL, drain).await;
    }
}

/// Called when the client is gone. Gives [`receive`] time for the input that the client sent before. It ends by itself
/// then, unless the command has not taken a whole window of input.
async fn drained() {
    tokio::time::sleep(FAREWELL).await;
}

/// The offset before which the command has taken all input, each time it grows.
async fn taken_further(taken: &mut Option<watch::Receiver<u64>>) -> u64 {
    if let Some(taken) = taken
        && taken.changed().await.is_ok()
    {
        return *taken.borrow_and_update();
    }
    std::future::pending().await
}

/// Returns when the client is gone, or with the error that it made.
async fn receive(
    from: &mut OwnedReadHalf,
    buffer: &mut BytesMut,
    target: Option<&Target>,
) -> Result<(), ApiError> {
    loop {
        while let Some((frame, used)) =
            Frame::decode(buffer).map_err(|e| invalid(format!("a frame was not understood: {e}")))?
        {
            buffer.advance(used);
            deliver(frame, target).await?;
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

async fn deliver(frame: Frame, target: Option<&Target>) -> Result<(), ApiError> {
    let Some(Target { exec, source, .. }) = target else {
        return Ok(());
    };
    match frame {
        Frame::Stdin(bytes) => {
            exec.touch_terminal();
            input_queue::put(exec, source, None, bytes).await;
        }
        Frame::Input(offset, bytes) => {
            exec.touch_terminal();
            input_queue::put(exec, source, Some(offset), bytes).await;
        }
        Frame::StdinEof => input_queue::end(exec, source, None),
        Frame::InputEnd(offset) => input_queue::end(exec, source, Some(offset)),
        Frame::Resize(size) => exec.resize(size),
        Frame::Signal(signal) if (1..=bay_sys::spawn::MAX_SIGNAL).contains(&signal) => {
            exec.signal_foreground(signal);
        }
        Frame::Signal(signal) => return Err(invalid(format!("{signal} is not a signal"))),
        Frame::Stdout(_)
        | Frame::Stderr(_)
        | Frame::Gap(_)
        | Frame::Exit(..)
        | Frame::Error(_)
        | Frame::Taken(_)
        | Frame::Time(_) => {
            return Err(invalid("a frame that only the guest sends was received"));
        }
    }
    Ok(())
}
