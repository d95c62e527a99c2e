//! A command in a bay whose output is for this program, not for the person.

use std::time::{Duration, Instant};

use bay_types::exec::{ExecSpec, Exit};
use bay_types::frame::Frame;
use bay_types::{ApiError, ErrorCode, ExecId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::passing;
use crate::client::{Client, FrameReader, bay_path, broken};
use bay_text::percent::segment;

/// Most that is taken of either stream. A command that says more than the few words it is run for is not what it
/// seems, and its output may have no end.
const MAX_CAPTURED: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) exit: Exit,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// How long a daemon may be away before the command is given up on.
const REATTACH_FOR: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// Runs `spec` to its end with `input` on its standard input, which must be short. A daemon that restarts meanwhile is
/// waited for.
pub(crate) async fn capture(
    client: &mut Client,
    bay: &str,
    spec: &ExecSpec,
    input: &[u8],
) -> Result<Captured, ApiError> {
    let mut frames = client.attach(&bay_path(bay, "/execs/attach"), Some(spec)).await?;
    if spec.stdin {
        let mut sent = Frame::Stdin(input.to_vec()).to_bytes();
        Frame::StdinEof.encode(&mut sent);
        let lost = |error: std::io::Error| broken(&format!("the stream broke: {error}"));
        frames.stream.write_all(&sent).await.map_err(lost)?;
    }
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        while let Some(frame) = frames.next().map_err(|error| broken(&error.to_string()))? {
            match frame {
                Frame::Stdout(bytes) => take(&mut stdout, &bytes)?,
                Frame::Stderr(bytes) => take(&mut stderr, &bytes)?,
                Frame::Exit(exit, _) => return Ok(Captured { exit, stdout, stderr }),
                Frame::Error(error) if passing(&error) => break,
                Frame::Error(error) => return Err(error),
                Frame::Gap(_) => return Err(too_much()),
                Frame::Stdin(_) | Frame::StdinEof | Frame::Resize(_) | Frame::Signal(_) => {
                    return Err(broken("a frame came from the wrong direction"));
                }
            }
        }
        let (stream, buffer) = frames.split();
        if !matches!(stream.read_buf(buffer).await, Ok(1..)) {
            frames = attach_again(client, bay, spec.id, stdout.len() + stderr.len()).await?;
        }
    }
}

/// The rest of the output. Where the bay is gone, the error says so.
async fn attach_again(
    client: &Client,
    bay: &str,
    exec: ExecId,
    since: usize,
) -> Result<FrameReader<UnixStream>, ApiError> {
    let began = Instant::now();
    let path = bay_path(bay, &format!("/execs/{}/attach?since={since}", segment(&exec.to_string())));
    loop {
        match client.another_without_starting().attach::<()>(&path, None).await {
            Err(error) if passing(&error) && began.elapsed() < REATTACH_FOR => {
                tokio::time::sleep(POLL).await;
            }
            other => return other,
        }
    }
}

fn take(kept: &mut Vec<u8>, bytes: &[u8]) -> Result<(), ApiError> {
    if kept.len() + bytes.len() > MAX_CAPTURED {
        return Err(too_much());
    }
    kept.extend_from_slice(bytes);
    Ok(())
}

fn too_much() -> ApiError {
    ApiError::new(
        ErrorCode::WorkRefused,
        format!("a command in the bay said more than {} KiB where a line was expected", MAX_CAPTURED >> 10),
        "look at the programs in the bay: its git or its shell is not what it should be",
    )
}
