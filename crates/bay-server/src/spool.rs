//! What the guest kept on disk, read by the daemon when there is no guest to ask. The directory is the bay's and
//! hostile; the reader of `bay-guest` is written for that.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use bay_guest::spool::{Piece, Reader, SpoolError};
use bay_types::exec::{ExecStatus, Exit};
use bay_types::frame::{Frame, MAX_PAYLOAD, output_header};
use bay_types::{ApiError, ErrorCode, ExecId};
use bytes::Bytes;
use rustix::fs::{Mode, OFlags};
use tokio::sync::mpsc;

use crate::daemon::blocking;

/// Pieces on their way to a slow reader; each is at most one frame.
const IN_FLIGHT: usize = 4;

fn open(state: &PathBuf) -> std::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(state, flags, Mode::empty())?)
}

/// The last status a guest wrote down of an exec, when that is there and makes sense.
pub(crate) async fn status(state: PathBuf, id: ExecId) -> Option<ExecStatus> {
    let read = move || {
        let dir = open(&state).map_err(|e| ApiError::internal(&e))?;
        bay_guest::spool::read_status(dir.as_fd(), id).map_err(|e| to_api(&e))
    };
    blocking(read).await.ok()
}

/// The kept output from `since` on as frames, ended by `exit`.
pub(crate) async fn output(
    state: PathBuf,
    id: ExecId,
    since: u64,
    exit: Option<Exit>,
) -> Result<mpsc::Receiver<Bytes>, ApiError> {
    let (sender, receiver) = mpsc::channel(IN_FLIGHT);
    let reader = blocking(move || {
        let dir = open(&state).map_err(|e| ApiError::internal(&e))?;
        let status = bay_guest::spool::read_status(dir.as_fd(), id).map_err(|e| to_api(&e))?;
        Reader::open(dir.as_fd(), &status, since).map_err(|e| to_api(&e))
    })
    .await?;
    tokio::task::spawn_blocking(move || send(reader, exit, &sender));
    Ok(receiver)
}

/// Sends until the end, a damaged spot, or a reader that has gone.
fn send(mut reader: Reader, exit: Option<Exit>, to: &mpsc::Sender<Bytes>) {
    let mut buffer = vec![0; MAX_PAYLOAD];
    loop {
        let frame = match reader.next(&mut buffer) {
            Ok(Piece::Output { stderr, len }) => {
                let mut frame = Vec::with_capacity(len + bay_types::frame::HEADER_LEN);
                frame.extend_from_slice(&output_header(stderr, u32::try_from(len).unwrap_or(0)));
                frame.extend_from_slice(&buffer[..len]);
                frame
            }
            Ok(Piece::Gap(dropped)) => Frame::Gap(dropped).to_bytes(),
            Ok(Piece::End) => {
                if let Some(exit) = exit {
                    let _ = to.blocking_send(Frame::Exit(exit).to_bytes().into());
                }
                return;
            }
            Err(error) => {
                let _ = to.blocking_send(Frame::Error(to_api(&error)).to_bytes().into());
                return;
            }
        };
        if to.blocking_send(frame.into()).is_err() {
            return;
        }
    }
}

fn to_api(error: &SpoolError) -> ApiError {
    ApiError::new(
        ErrorCode::PathNotFound,
        bay_types::error::chain(error),
        "the output of this exec is gone; `bay execs ls NAME` shows what is known of it",
    )
}
