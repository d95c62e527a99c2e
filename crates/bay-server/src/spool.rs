//! What the guest kept on disk, read by the daemon when there is no guest to ask. The directory is the bay's and
//! hostile; the reader of `bay-guest` is written for that.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use bay_guest::spool::{Piece, Reader, SpoolError};
use bay_types::exec::ExecStatus;
use bay_types::frame::{Frame, HEADER_LEN, MAX_PAYLOAD, output_header};
use bay_types::service::ServiceView;
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

/// The services of a bay as its last guest wrote them down.
pub(crate) async fn services(state: PathBuf) -> Result<Vec<ServiceView>, ApiError> {
    blocking(move || {
        let dir = open(&state).map_err(|e| ApiError::internal(&e))?;
        Ok(bay_guest::kept_services(dir.as_fd()))
    })
    .await
}

/// The kept output from `since` on as frames, ended by `last`.
pub(crate) async fn output(
    state: PathBuf,
    id: ExecId,
    since: u64,
    last: Option<Frame>,
) -> Result<mpsc::Receiver<Bytes>, ApiError> {
    let (sender, receiver) = mpsc::channel(IN_FLIGHT);
    let reader = blocking(move || {
        let dir = open(&state).map_err(|e| ApiError::internal(&e))?;
        let status = bay_guest::spool::read_status(dir.as_fd(), id).map_err(|e| to_api(&e))?;
        Reader::open(dir.as_fd(), &status, since).map_err(|e| to_api(&e))
    })
    .await?;
    tokio::spawn(send(reader, last, sender));
    Ok(receiver)
}

/// Sends until the end, a damaged spot, or a reader that has gone. A blocking thread is taken for one piece at a time:
/// somebody who reads slowly must not hold one.
async fn send(mut reader: Reader, last: Option<Frame>, to: mpsc::Sender<Bytes>) {
    loop {
        let read = tokio::task::spawn_blocking(move || {
            let frame = next(&mut reader);
            (reader, frame)
        });
        let Ok((again, frame)) = read.await else { return };
        reader = again;
        let (frame, more) = match frame {
            Ok(Some(frame)) => (frame, true),
            Ok(None) => match &last {
                Some(last) => (last.to_bytes(), false),
                None => return,
            },
            Err(error) => (Frame::Error(to_api(&error)).to_bytes(), false),
        };
        if to.send(frame.into()).await.is_err() || !more {
            return;
        }
    }
}

/// The next frame; none at the end.
fn next(reader: &mut Reader) -> Result<Option<Vec<u8>>, SpoolError> {
    let mut frame = vec![0; HEADER_LEN + MAX_PAYLOAD];
    Ok(match reader.next(&mut frame[HEADER_LEN..])? {
        Piece::Output { stderr, len } => {
            frame.truncate(HEADER_LEN + len);
            frame[..HEADER_LEN].copy_from_slice(&output_header(stderr, u32::try_from(len).unwrap_or(0)));
            Some(frame)
        }
        Piece::Gap(gap) => Some(Frame::Gap(gap).to_bytes()),
        Piece::End => None,
    })
}

fn to_api(error: &SpoolError) -> ApiError {
    ApiError::new(
        ErrorCode::PathNotFound,
        bay_types::error::chain(error),
        "the output of this exec is gone; `bay execs ls NAME` shows what is known of it",
    )
}
