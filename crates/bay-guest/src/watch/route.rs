//! Sends a watch as lines of JSON.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bay_types::guest::WORKSPACE;
use bay_types::watch::{WatchKind, WatchLine};
use bay_types::{ApiError, ErrorCode};
use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::mpsc;

use super::{Change, Kind, Watch, open};
use crate::http::{Answer, Query, stream};

/// Lines between a watch and its connection. Further changes wait in the watch's own queue.
const LINES: usize = 16;
/// Most changes in one piece of the answer.
const BATCH: usize = 64;

/// `GET /v1/watch`
pub(crate) async fn route(root: &Path, query: &Query) -> Answer {
    let recursive = query.text("recursive")?.is_none() || query.flag("recursive")?;
    let asked = Path::new(WORKSPACE).join(OsStr::from_bytes(query.path()?));
    let dir = root.join(asked.strip_prefix("/").unwrap_or(&asked));
    let opened = tokio::task::spawn_blocking(move || open(&dir, recursive));
    let (watch, changes) =
        opened.await.map_err(|e| ApiError::internal(&e))?.map_err(|error| refused(&error))?;
    let (sender, receiver) = mpsc::channel(LINES);
    tokio::spawn(send_changes(watch, changes, sender));
    Ok(stream(receiver, None))
}

async fn send_changes(
    watch: Watch,
    mut changes: mpsc::Receiver<Change>,
    sender: mpsc::Sender<io::Result<Bytes>>,
) {
    let _watch = watch;
    let mut lines = line(&WatchLine::Hello);
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        if sender.send(Ok(std::mem::take(&mut lines).into())).await.is_err() {
            return;
        }
        let received = tokio::select! {
            received = changes.recv_many(&mut batch, BATCH) => received,
            // The reader may go away while nothing happens.
            () = sender.closed() => return,
        };
        let at = Timestamp::now();
        if received == 0 {
            let _ = sender.send(Ok(line(&WatchLine::Gone { at }).into())).await;
            return;
        }
        for change in batch.drain(..) {
            lines.extend(line(&match change {
                Change::Event { kind, path, is_dir } => WatchLine::change(at, wire_kind(kind), &path, is_dir),
                Change::Dropped => WatchLine::Dropped { at },
            }));
        }
    }
}

fn line(line: &WatchLine) -> Vec<u8> {
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    text
}

fn wire_kind(kind: Kind) -> WatchKind {
    match kind {
        Kind::Create => WatchKind::Create,
        Kind::Write => WatchKind::Write,
        Kind::Remove => WatchKind::Remove,
        Kind::Rename => WatchKind::Rename,
        Kind::Chmod => WatchKind::Chmod,
    }
}

fn refused(error: &io::Error) -> ApiError {
    let (code, next) = match error.kind() {
        io::ErrorKind::NotFound => (ErrorCode::PathNotFound, "check the path"),
        io::ErrorKind::NotADirectory => (ErrorCode::PathRefused, "watch the directory it is in"),
        io::ErrorKind::QuotaExceeded => (ErrorCode::NotEnough, "watch less, or end other watches"),
        _ => (ErrorCode::PathRefused, "check the path and its permissions in the bay"),
    };
    ApiError::new(code, error.to_string(), next)
}
