//! Transfers files and archives into and out of the bay.
//!
//! The kernel resolves every path below a root descriptor (`openat2`), so no symbolic link leads out of the root, and
//! none of `/proc`'s magic links is followed. Only regular files and directories are opened for data, so opening
//! waits for no FIFO or device. Copies run on threads of their own, connected to the connection by short queues.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bay_types::guest::{FileKind, FileStat};
use bay_types::{ApiError, ErrorCode};
use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::http::{Answer, Query, invalid, json, stream};
use crate::users;

mod archive_in;
mod archive_out;
pub(crate) mod file;
pub(crate) mod path;
mod sparse_member;
mod tar_entry;

use path::{Target, shown};

/// Unit of `st_blocks`, whatever the filesystem's own block size is.
const STAT_BLOCK: u64 = 512;
/// Most copies at the same time, for each interface; further ones wait. Fewer than the threads, so that bulk output
/// finds a thread too.
const MAX_COPIES: usize = 8;
/// Most bytes of one read, one write or one queued chunk.
pub(crate) const CHUNK: usize = 256 << 10;
/// Chunks between a thread and a connection.
pub(crate) const QUEUE: usize = 4;
/// How much of a body is still read after the answer is decided. So the sender gets to read the answer.
const DRAINED_BYTES: usize = 1 << 30;
/// How long it is still read.
const DRAINED_WITHIN: Duration = Duration::from_secs(10);

/// Why a path could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("{0:?} does not exist in the bay")]
    Absent(String),
    #[error("the directory of {0:?} does not exist in the bay")]
    NoParent(String),
    #[error("{path:?}: {why}")]
    Refused { path: String, why: String },
    #[error("{0:?} could not be written: the bay has used all of the disk it was given (--disk-mib)")]
    Quota(String),
    #[error("{0:?} could not be written: the disk that all bays share is full")]
    Full(String),
    #[error("the archive is refused: {0}")]
    Archive(String),
    #[error("{0}")]
    User(#[from] users::UserError),
    #[error("the sender broke off")]
    BrokeOff,
    #[error("{what} {path:?} failed")]
    Io {
        what: &'static str,
        path: String,
        #[source]
        source: io::Error,
    },
}

impl FileError {
    pub(crate) fn io(what: &'static str, path: &[u8], source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let path = shown(path);
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Absent(path),
            io::ErrorKind::QuotaExceeded => Self::Quota(path),
            io::ErrorKind::StorageFull => Self::Full(path),
            io::ErrorKind::CrossesDevices => {
                Self::Refused { path, why: "it leads out of the directory".to_owned() }
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                Self::Refused { path, why: "the filesystem is read-only".to_owned() }
            }
            _ if source.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                Self::Refused { path, why: "too many symbolic links".to_owned() }
            }
            _ => Self::Io { what, path, source },
        }
    }

    pub(crate) fn refused(path: &[u8], why: impl Into<String>) -> Self {
        Self::Refused { path: shown(path), why: why.into() }
    }

    fn to_api(&self) -> ApiError {
        let (code, next) = match self {
            FileError::Absent(_) => (ErrorCode::PathNotFound, "check the path"),
            FileError::NoParent(_) => {
                (ErrorCode::PathNotFound, "create the directory first, or send `parents=true`")
            }
            FileError::Refused { .. } => {
                (ErrorCode::PathRefused, "only regular files, directories and links can be copied")
            }
            FileError::Quota(_) => {
                (ErrorCode::DiskLimit, "delete something in the bay, or give it a larger disk")
            }
            FileError::Full(_) => {
                (ErrorCode::PoolFull, "remove bays, images or repositories, or free space on the host's disk")
            }
            FileError::Archive(_) => {
                (ErrorCode::PathRefused, "make the archive with relative names and plain members")
            }
            FileError::User(_) => {
                (ErrorCode::InvalidInput, "use a name from the bay's /etc/passwd or a numeric id")
            }
            FileError::BrokeOff => (ErrorCode::Interrupted, "send it again"),
            FileError::Io { .. } => (ErrorCode::PathRefused, "check the path and its permissions in the bay"),
        };
        ApiError::new(code, bay_types::error::chain(self), next)
    }
}

pub(crate) type Result<T> = std::result::Result<T, FileError>;

/// The bay's files.
#[derive(Debug)]
pub(crate) struct Files {
    root: OwnedFd,
    copies: Arc<Semaphore>,
}

impl Files {
    pub(crate) fn new(root: OwnedFd) -> Self {
        Self { root, copies: Arc::new(Semaphore::new(MAX_COPIES)) }
    }

    /// The same files with a limit of its own on copies, so that clients of one interface do not wait for clients of
    /// another.
    pub(crate) fn with_own_limit(&self) -> io::Result<Self> {
        Ok(Self::new(self.root.try_clone()?))
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    pub(crate) async fn turn(&self) -> std::result::Result<OwnedSemaphorePermit, ApiError> {
        Arc::clone(&self.copies).acquire_owned().await.map_err(|e| ApiError::internal(&e))
    }

    /// The owner of new files: root, if the request names none.
    fn owner(&self, query: &Query) -> std::result::Result<Option<(u32, u32)>, ApiError> {
        let Some(name) = query.text("user")? else {
            return Ok(None);
        };
        let user = users::find(self.root(), Some(name)).map_err(|e| FileError::from(e).to_api())?;
        Ok(Some((user.identity.uid, user.identity.gid)))
    }
}

pub(crate) async fn stat(files: &Arc<Files>, query: &Query) -> Answer {
    let path = query.path()?.to_vec();
    let follow = query.flag("follow")?;
    let stat = in_thread(files, move |files| {
        let stat = path::stat(files.root(), &path, follow)?;
        Ok(file_stat(&stat))
    });
    Ok(json(StatusCode::OK, &stat.await?))
}

pub(crate) async fn get(files: &Arc<Files>, query: &Query) -> Answer {
    let turn = files.turn().await?;
    let path = query.path()?.to_vec();
    let (file, size) = in_thread(files, move |files| file::open(files.root(), &path)).await?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        file::send(file, size, &sender);
    });
    // Files that the kernel generates report the size 0, but are not empty.
    Ok(stream(receiver, (size > 0).then_some(size)))
}

pub(crate) async fn put(files: &Arc<Files>, query: &Query, body: Incoming) -> Answer {
    let turn = files.turn().await?;
    let mode = query.number("mode", 8)?;
    let wanted = file::Wanted {
        path: query.path()?.to_vec(),
        mode: mode
            .map(|m| {
                u32::try_from(m).ok().filter(|m| *m <= 0o7777).ok_or_else(|| invalid("mode= is too large"))
            })
            .transpose()?,
        owner: files.owner(query)?,
        parents: query.flag("parents")?,
    };
    let stat =
        receive(files, body, turn, move |files, source| file::write(files.root(), &wanted, source)).await?;
    Ok(json(StatusCode::OK, &file_stat(&stat)))
}

pub(crate) async fn archive_get(files: &Arc<Files>, query: &Query) -> Answer {
    let turn = files.turn().await?;
    let path = query.path()?.to_vec();
    let sparse = query.flag("sparse")?;
    let what = in_thread(files, move |files| archive_out::open(files.root(), &path, sparse)).await?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        archive_out::send(what, sparse, &sender);
    });
    Ok(stream(receiver, None))
}

pub(crate) async fn archive_put(files: &Arc<Files>, query: &Query, body: Incoming) -> Answer {
    let turn = files.turn().await?;
    let target = Target {
        path: query.path()?.to_vec(),
        parents: query.flag("parents")?,
        owner: files.owner(query)?.unwrap_or((0, 0)),
    };
    receive(files, body, turn, move |files, source| archive_in::extract(files.root(), &target, source))
        .await?;
    Ok(crate::http::empty(StatusCode::NO_CONTENT))
}

async fn in_thread<T: Send + 'static>(
    files: &Arc<Files>,
    work: impl FnOnce(&Files) -> Result<T> + Send + 'static,
) -> std::result::Result<T, ApiError> {
    let files = Arc::clone(files);
    let outcome =
        tokio::task::spawn_blocking(move || work(&files)).await.map_err(|e| ApiError::internal(&e))?;
    outcome.map_err(|e| e.to_api())
}

/// Runs `work` in a thread that reads the body as it arrives.
async fn receive<T: Send + 'static>(
    files: &Arc<Files>,
    body: Incoming,
    turn: OwnedSemaphorePermit,
    work: impl FnOnce(&Files, Source) -> Result<T> + Send + 'static,
) -> std::result::Result<T, ApiError> {
    receive_with(files, body, turn, None, work)
        .await
        .map_err(|e| ApiError::internal(&e))?
        .map_err(|e| e.to_api())
}

/// Runs `work` in a thread that reads the body as it arrives, and returns its result. A sender that is silent for
/// longer than `patience` counts as gone.
pub(crate) async fn receive_with<T: Send + 'static>(
    files: &Arc<Files>,
    mut body: impl Body<Data = Bytes, Error: Send> + Send + Unpin + 'static,
    turn: OwnedSemaphorePermit,
    patience: Option<Duration>,
    work: impl FnOnce(&Files, Source) -> T + Send + 'static,
) -> std::result::Result<T, tokio::task::JoinError> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let files = Arc::clone(files);
    let thread = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        work(&files, Source { from: receiver, rest: Bytes::new(), over: false })
    });
    loop {
        let frame = match patience {
            Some(patience) => tokio::time::timeout(patience, body.frame()).await,
            None => Ok(body.frame().await),
        };
        let Ok(frame) = frame else { break };
        let part = match frame.map(|frame| frame.map(|f| f.into_data())) {
            Some(Ok(Ok(bytes))) => Part::Bytes(bytes),
            // Trailers are ignored.
            Some(Ok(Err(_))) => continue,
            Some(Err(_)) => break,
            None => Part::End,
        };
        let last = matches!(part, Part::End);
        if last {
            let _ = sender.send(part).await;
            break;
        }
        // If the receiver is gone, it has its answer already.
        if sender.send(part).await.is_err() {
            tokio::spawn(tokio::time::timeout(DRAINED_WITHIN, drain_body(body)));
            break;
        }
    }
    drop(sender);
    thread.await
}

/// Reads some more of a body that is not needed, while the answer is being sent. A client that still sends when the
/// connection closes would see a broken connection instead of the answer.
async fn drain_body(mut body: impl Body<Data = Bytes> + Unpin) {
    let mut left = DRAINED_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        if left == 0 {
            return;
        }
    }
}

/// A part of a request's body.
enum Part {
    Bytes(Bytes),
    /// The sender has sent everything. A queue that ends without this was cut off.
    End,
}

/// A request's body, as a thread reads it.
pub(crate) struct Source {
    from: mpsc::Receiver<Part>,
    rest: Bytes,
    over: bool,
}

impl Source {
    /// The next bytes; empty at the end.
    fn next(&mut self) -> io::Result<Bytes> {
        while !self.over {
            match self.from.blocking_recv() {
                Some(Part::Bytes(bytes)) if bytes.is_empty() => {}
                Some(Part::Bytes(bytes)) => return Ok(bytes),
                Some(Part::End) => self.over = true,
                None => return Err(io::ErrorKind::ConnectionAborted.into()),
            }
        }
        Ok(Bytes::new())
    }
}

impl io::Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            self.rest = self.next()?;
        }
        let len = self.rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&self.rest.split_to(len));
        Ok(len)
    }
}

#[cfg(fuzzing)]
pub(crate) fn fuzz_extract(root: BorrowedFd<'_>, into: &str, archive: &[u8]) -> bool {
    let (sender, from) = mpsc::channel(1);
    let _ = sender.try_send(Part::End);
    let source = Source { from, rest: Bytes::copy_from_slice(archive), over: false };
    let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let target = Target { path: into.as_bytes().to_vec(), parents: false, owner };
    archive_in::extract(root, &target, source).is_ok()
}

fn file_stat(stat: &Stat) -> FileStat {
    FileStat {
        kind: match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Directory,
            FileType::Symlink => FileKind::Symlink,
            _ => FileKind::Other,
        },
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        allocated_bytes: u64::try_from(stat.st_blocks).ok().map(|blocks| blocks.saturating_mul(STAT_BLOCK)),
    }
}

/// What kind of file it is, for messages.
fn kind_name(stat: &Stat) -> &'static str {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => "a file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "of an unknown kind",
    }
}
