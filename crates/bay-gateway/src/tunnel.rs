//! Tunnels: bytes that are passed on without parsing, for raw TCP, TLS passthrough, WebSockets and, after the login,
//! PostgreSQL. Bytes to the bay can be scrubbed on the way.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use crate::decider::{Ending, Failure};
use crate::progress::{Direction, Progress};
use crate::scrub::Stream;
use crate::stream::Io;

/// The read size in each direction.
const BUFFER_BYTES: usize = 32 * 1024;
/// The longest interval between checks for an idle tunnel.
const LONGEST_LOOK: Duration = Duration::from_secs(30);

/// Passes bytes on in both directions until both have ended, one of them fails, the tunnel is idle for too long, the
/// policy revokes it, or the gateway is dropped.
pub(crate) async fn run(
    bay: impl Io,
    origin: impl Io,
    progress: Arc<Progress>,
    idle: Duration,
    changed: watch::Receiver<u64>,
    scrub: Option<Stream>,
) {
    let (bay_reader, bay_writer) = tokio::io::split(bay);
    let (origin_reader, origin_writer) = tokio::io::split(origin);
    let out = pump(bay_reader, origin_writer, Direction::Out, &progress, None);
    let back = pump(origin_reader, bay_writer, Direction::In, &progress, scrub);
    tokio::select! {
        moved = async { tokio::try_join!(out, back) } => match moved {
            Ok(_) => progress.end(Ending::Closed),
            Err(_) => progress.end_failed(Failure::Broken),
        },
        stopped = watch(&progress, idle, changed) => match stopped {
            Some(failure) => progress.end_failed(failure),
            None => progress.end(Ending::Revoked),
        },
    }
}

/// Waits until the tunnel is idle for too long. `None` if the policy revokes it or the gateway is dropped.
pub(crate) async fn watch(
    progress: &Progress,
    idle: Duration,
    mut changed: watch::Receiver<u64>,
) -> Option<Failure> {
    loop {
        tokio::select! {
            () = tokio::time::sleep(idle.min(LONGEST_LOOK)) => {
                if progress.idle() >= idle {
                    return Some(Failure::Stalled);
                }
            }
            said = changed.changed() => {
                // The sender is gone if the gateway was dropped.
                if said.is_err() || !progress.still_allowed() {
                    return None;
                }
            }
        }
    }
}

async fn pump(
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    direction: Direction,
    progress: &Progress,
    mut scrub: Option<Stream>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        // The scrubber holds the last bytes back. When no more are available, it releases them, except for the probable
        // beginning of a value.
        let length = match &mut scrub {
            None => reader.read(&mut buffer).await?,
            Some(stream) => tokio::select! {
                biased;
                read = reader.read(&mut buffer) => read?,
                () = std::future::ready(()) => {
                    let released = stream.release();
                    if !released.is_empty() {
                        writer.write_all(&released).await?;
                        writer.flush().await?;
                    }
                    reader.read(&mut buffer).await?
                }
            },
        };
        if length == 0 {
            if let Some(stream) = &mut scrub {
                let rest = stream.finish();
                shown(stream, progress)?;
                writer.write_all(&rest).await?;
            }
            // The other direction may still be open.
            writer.shutdown().await.ok();
            return Ok(());
        }
        if !progress.still_allowed() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        match &mut scrub {
            None => writer.write_all(&buffer[..length]).await?,
            Some(stream) => {
                let passed = stream.push(Bytes::copy_from_slice(&buffer[..length]));
                shown(stream, progress)?;
                writer.write_all(&passed).await?;
            }
        }
        writer.flush().await?;
        progress.moved(direction, length);
    }
}

/// Ends a connection that returned guesses of a secret's value too often, or a value that is easy to guess.
fn shown(stream: &Stream, progress: &Progress) -> io::Result<()> {
    match stream.stopped() {
        None => Ok(()),
        Some(why) => {
            progress.note(Failure::SecretShown);
            Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
        }
    }
}
