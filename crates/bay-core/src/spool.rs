//! The output and the services that the guest stored on disk, read by the daemon while no guest can be asked. The
//! directory is hostile: root in the bay can write all of it. The reader of `bay-guest` is made for that. What it
//! reads is shown, and the end of a failed command's output is searched for the name of a missing program. Nothing
//! else is decided by it or recorded from it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use bay_guest::spool::{Piece, Reader, SpoolError};
use bay_types::frame::{Frame, Gap, GapReason, HEADER_LEN, MAX_PAYLOAD, output_header};
use bay_types::output::OutputRequest;
use bay_types::service::{ServiceRun, ServiceView};
use bay_types::{Action, CoreError, ErrorCode, ExecId, Hint, HintBay};
use bytes::Bytes;
use rustix::fs::{Mode, OFlags};
use tokio::sync::mpsc;

use crate::background::blocking;

/// Pieces on their way to a slow reader. Each is at most one frame.
const IN_FLIGHT: usize = 4;

fn open(state: &PathBuf) -> std::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(state, flags, Mode::empty())?)
}

/// The services of a bay as its last guest stored them.
pub(crate) async fn services(state: PathBuf) -> Result<Vec<ServiceView>, CoreError> {
    blocking(move || {
        let dir = open(&state).map_err(|e| CoreError::internal(&e))?;
        Ok(bay_guest::stored_services(dir.as_fd()))
    })
    .await
}

/// Stored output as frames, ended by `last` or by an error.
pub(crate) async fn output(
    state: PathBuf,
    id: ExecId,
    request: OutputRequest,
    last: Option<Result<Frame, CoreError>>,
) -> Result<mpsc::Receiver<Result<Bytes, CoreError>>, CoreError> {
    let (sender, receiver) = mpsc::channel(IN_FLIGHT);
    let reader = blocking(move || {
        let dir = open(&state).map_err(|e| CoreError::internal(&e))?;
        let status = bay_guest::spool::read_status(dir.as_fd(), id).map_err(|e| to_api(&e))?;
        let reader = Reader::open(dir.as_fd(), &status, request.since).map_err(|e| to_api(&e))?;
        Ok(reader.with_times(request.times))
    })
    .await?;
    tokio::spawn(send(reader, last, sender));
    Ok(receiver)
}

/// The last bytes of the stored output, at most this many. `None` if nothing can be read.
pub(crate) async fn tail(state: PathBuf, id: ExecId, most: u64) -> Option<Vec<u8>> {
    let read = move || {
        let dir = open(&state).map_err(|e| CoreError::internal(&e))?;
        let status = bay_guest::spool::read_status(dir.as_fd(), id).map_err(|e| to_api(&e))?;
        let since = status.output_bytes.saturating_sub(most).max(status.output_start);
        let mut reader = Reader::open(dir.as_fd(), &status, since).map_err(|e| to_api(&e))?;
        let mut tail = Vec::new();
        let mut piece = vec![0; MAX_PAYLOAD];
        while (tail.len() as u64) < most {
            match reader.next(&mut piece).map_err(|e| to_api(&e))? {
                Piece::Output { len, .. } => tail.extend_from_slice(&piece[..len]),
                Piece::Gap(_) => {}
                Piece::End => break,
            }
        }
        tail.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(tail)
    };
    blocking(read).await.ok()
}

/// Sends until the end, a damaged place, or the end of the reader. It takes a blocking thread for one piece at a
/// time: a slow reader must not occupy one.
async fn send(
    mut reader: Reader,
    last: Option<Result<Frame, CoreError>>,
    to: mpsc::Sender<Result<Bytes, CoreError>>,
) {
    loop {
        let Some((again, frame)) = next(reader, u64::MAX).await else { return };
        reader = again;
        let last = match frame {
            Ok(Some((frame, _))) => match to.send(Ok(frame.into())).await {
                Ok(()) => continue,
                Err(_) => return,
            },
            Ok(None) => last.map(|last| last.map(|frame| frame.to_bytes().into())),
            Err(error) => Some(Err(to_api(&error))),
        };
        if let Some(last) = last {
            let _ = to.send(last).await;
        }
        return;
    }
}

/// The stored log of a service as frames: the output of its runs, one after the other.
pub(crate) async fn log(
    state: PathBuf,
    runs: Vec<ServiceRun>,
    request: OutputRequest,
) -> Result<mpsc::Receiver<Bytes>, CoreError> {
    let (sender, receiver) = mpsc::channel(IN_FLIGHT);
    let dir = blocking(move || {
        let dir = open(&state).and_then(|dir| bay_guest::stored_runs(dir.as_fd()));
        dir.map_err(|e| CoreError::internal(&e))
    })
    .await?;
    tokio::spawn(send_log(Arc::new(dir), runs, request, sender));
    Ok(receiver)
}

async fn send_log(dir: Arc<OwnedFd>, runs: Vec<ServiceRun>, request: OutputRequest, to: mpsc::Sender<Bytes>) {
    let missing = |dropped| Frame::Gap(Gap { dropped, why: GapReason::Bound }).to_bytes();
    let mut at = request.since;
    for (i, run) in runs.iter().enumerate() {
        // If a later run began, only what this run printed before that is part of the log.
        let end = runs.get(i + 1).map(|next| next.log_offset);
        if end.is_some_and(|end| end <= at) {
            continue;
        }
        if at < run.log_offset {
            if to.send(missing(run.log_offset - at).into()).await.is_err() {
                return;
            }
            at = run.log_offset;
        }
        let mut left = end.map_or(u64::MAX, |end| end - at);
        let from = OutputRequest { since: at - run.log_offset, ..request };
        let mut reader = open_run(Arc::clone(&dir), run.exec, from).await;
        while let Some(open) = reader.take().filter(|_| left > 0) {
            let Some((again, frame)) = next(open, left).await else { return };
            // If a run cannot be read further, the rest of it is left out.
            let Ok(Some((frame, bytes))) = frame else { break };
            reader = Some(again);
            left -= bytes;
            if to.send(frame.into()).await.is_err() {
                return;
            }
        }
        let Some(end) = end else { return };
        if left > 0 && to.send(missing(left).into()).await.is_err() {
            return;
        }
        at = end;
    }
}

async fn open_run(dir: Arc<OwnedFd>, id: ExecId, request: OutputRequest) -> Option<Reader> {
    let open = move || {
        let status = bay_guest::spool::read_status(dir.as_fd(), id).map_err(|e| to_api(&e))?;
        let reader = Reader::open(dir.as_fd(), &status, request.since).map_err(|e| to_api(&e))?;
        Ok(reader.with_times(request.times))
    };
    blocking(open).await.ok()
}

/// A frame, perhaps after one with its time, and how many bytes of output it has; `None` at the end.
type Next = Result<Option<(Vec<u8>, u64)>, SpoolError>;

/// The next frame, of at most so many bytes, and the reader for the one after. `None` only after a defect.
async fn next(mut reader: Reader, most: u64) -> Option<(Reader, Next)> {
    let read = tokio::task::spawn_blocking(move || {
        let frame = read_next(&mut reader, most);
        (reader, frame)
    });
    read.await.ok()
}

fn read_next(reader: &mut Reader, most: u64) -> Next {
    let mut frame = vec![0; HEADER_LEN + MAX_PAYLOAD];
    Ok(match reader.next(&mut frame[HEADER_LEN..])? {
        Piece::Output { stderr, len } => {
            let len = len.min(usize::try_from(most).unwrap_or(len));
            frame.truncate(HEADER_LEN + len);
            frame[..HEADER_LEN].copy_from_slice(&output_header(stderr, u32::try_from(len).unwrap_or(0)));
            let time = reader.time_frame().unwrap_or_default();
            Some(([time, frame].concat(), len as u64))
        }
        Piece::Gap(gap) => {
            let dropped = gap.dropped.min(most);
            Some((Frame::Gap(Gap { dropped, ..gap }).to_bytes(), dropped))
        }
        Piece::End => None,
    })
}

fn to_api(error: &SpoolError) -> CoreError {
    CoreError::new(
        ErrorCode::PathNotFound,
        bay_types::error::chain(error),
        Hint::new(
            "the output of this exec is gone; {} lists the execs with their results",
            [Action::ListExecs(HintBay::OfRequest)],
        ),
    )
}
