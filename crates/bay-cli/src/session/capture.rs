//! Runs a command in a bay whose output this program reads, not a person.

use std::time::{Duration, Instant};

use bay_client::{Attached, Client, FrameReader, bay_path, broken};
use bay_text::percent::segment;
use bay_types::exec::{ExecSpec, Exit};
use bay_types::frame::Frame;
use bay_types::{ApiError, ErrorCode, ExecId, InputId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::passing;

/// Most bytes of either stream. These commands print a few words. One that prints more is not what it claims to be, and
/// its output may never end.
const MAX_CAPTURED: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) exit: Exit,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// How long a daemon may be unreachable before the command is given up.
const REATTACH_FOR: Duration = Duration::from_secs(10);
/// Pause before the next attempt to connect.
const POLL: Duration = Duration::from_millis(20);

/// Runs `spec` to its end with `input`, which must be short, on its standard input. Waits for a daemon that restarts.
pub(crate) async fn capture(
    client: &mut Client,
    bay: &str,
    spec: &ExecSpec,
    input: &[u8],
) -> Result<Captured, ApiError> {
    let input = Whole { id: InputId::generate(), bytes: if spec.stdin { Some(input) } else { None } };
    let first = client.attach(&bay_path(bay, "/execs/attach"), Some(spec), Some(input.id)).await?;
    let offsets = first.received.is_some();
    let mut frames = first.frames;
    if input.send(&mut frames, offsets).await.is_err() && !offsets {
        return Err(broken("the stream broke while input was sent"));
    }
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        while let Some(frame) = frames.next().map_err(|error| broken(&error.to_string()))? {
            match frame {
                Frame::Stdout(bytes) => keep_bounded(&mut stdout, &bytes)?,
                Frame::Stderr(bytes) => keep_bounded(&mut stderr, &bytes)?,
                Frame::Exit(exit, _) => return Ok(Captured { exit, stdout, stderr }),
                Frame::Error(error) if passing(&error) => break,
                Frame::Error(error) => return Err(error),
                Frame::Gap(_) => return Err(too_much()),
                Frame::Taken(_) | Frame::Time(_) => {}
                Frame::Stdin(_)
                | Frame::StdinEof
                | Frame::Resize(_)
                | Frame::Signal(_)
                | Frame::Input(..)
                | Frame::InputEnd(_) => {
                    return Err(broken("it sent a frame that only clients send"));
                }
            }
        }
        let (stream, buffer) = frames.split();
        if !matches!(stream.read_buf(buffer).await, Ok(1..)) {
            let since = stdout.len() + stderr.len();
            let again = attach_again(client, bay, spec.id, since, input.id).await?;
            frames = again.frames;
            if again.received.is_some() {
                // If the connection is cut again, the next read notices it.
                let _ = input.send(&mut frames, true).await;
            }
        }
    }
}

/// Input that is short enough to be sent whole on every connection. The guest drops the part that it already has.
struct Whole<'a> {
    id: InputId,
    bytes: Option<&'a [u8]>,
}

impl Whole<'_> {
    async fn send(&self, frames: &mut FrameReader<UnixStream>, offsets: bool) -> std::io::Result<()> {
        let Some(bytes) = self.bytes else { return Ok(()) };
        let (input, end) = if offsets {
            (Frame::Input(0, bytes.to_vec()), Frame::InputEnd(bytes.len() as u64))
        } else {
            (Frame::Stdin(bytes.to_vec()), Frame::StdinEof)
        };
        let mut sent = input.to_bytes();
        end.encode(&mut sent);
        frames.stream.write_all(&sent).await
    }
}

/// The rest of the output. If the bay was removed, the error says so.
async fn attach_again(
    client: &Client,
    bay: &str,
    exec: ExecId,
    since: usize,
    input: InputId,
) -> Result<Attached, ApiError> {
    let began = Instant::now();
    let path = bay_path(bay, &format!("/execs/{}/attach?since={since}", segment(&exec.to_string())));
    loop {
        match client.another_without_starting().attach::<()>(&path, None, Some(input)).await {
            Err(error) if passing(&error) && began.elapsed() < REATTACH_FOR => {
                tokio::time::sleep(POLL).await;
            }
            other => return other,
        }
    }
}

fn keep_bounded(kept: &mut Vec<u8>, bytes: &[u8]) -> Result<(), ApiError> {
    if kept.len() + bytes.len() > MAX_CAPTURED {
        return Err(too_much());
    }
    kept.extend_from_slice(bytes);
    Ok(())
}

fn too_much() -> ApiError {
    ApiError::new(
        ErrorCode::WorkRefused,
        format!("a command in the bay printed more than {} KiB instead of one line", MAX_CAPTURED >> 10),
        "check the programs in the bay: its git or its shell does not work as expected",
    )
}
