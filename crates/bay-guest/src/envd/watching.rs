//! The watching part of `filesystem.Filesystem`: as a stream, or as watchers that a client polls.

use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bay_types::ExecId;
use http::{HeaderMap, Response};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::body::Arriving;
use super::caller::Caller;
use super::connect::{self, Messages, lenient};
use super::entry::{self, Entry, EntryKind, failed};
use super::fault::{Fault, Kind, Result};
use super::filesystem::in_thread;
use super::{Empty, Envd};
use crate::files::{Files, path};
use crate::http::Body;
use crate::users::Names;
use crate::watch::{self, Change, Watch};

/// Watchers that clients poll. If there are more, the one that was not polled for the longest time is removed, because
/// clients may go away without removing theirs.
const MAX_WATCHERS: usize = 32;
/// Events that a watcher keeps for its client.
const MAX_EVENTS: usize = 16 << 10;
/// A watcher's answer is complete when no event came for this long. Changes before the request may still be in the
/// kernel's queue or in the thread.
const SETTLE: Duration = Duration::from_millis(40);
/// Longest wait for that.
const MAX_SETTLE: Duration = Duration::from_millis(500);

/// Filesystems whose changes are made elsewhere, so that this kernel does not notice them: NFS, SMB in three versions,
/// FUSE, 9p, Ceph.
const NETWORK: [u32; 7] = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x6573_5546, 0x0102_1997, 0x00c3_6400];

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WatchRequest {
    #[serde(deserialize_with = "lenient")]
    path: String,
    #[serde(deserialize_with = "lenient")]
    recursive: bool,
    #[serde(alias = "include_entry", deserialize_with = "lenient")]
    include_entry: bool,
    #[serde(alias = "allow_network_mounts", deserialize_with = "lenient")]
    allow_network_mounts: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WatcherRequest {
    #[serde(alias = "watcher_id", deserialize_with = "lenient")]
    watcher_id: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateAnswer {
    watcher_id: String,
}

#[derive(Debug, Serialize)]
pub(super) struct EventsAnswer {
    events: Vec<Event>,
}

#[derive(Debug, Clone, Serialize)]
struct Event {
    name: String,
    #[serde(rename = "type")]
    kind: EventKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<Box<Entry>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum EventKind {
    #[serde(rename = "EVENT_TYPE_CREATE")]
    Create,
    #[serde(rename = "EVENT_TYPE_WRITE")]
    Write,
    #[serde(rename = "EVENT_TYPE_REMOVE")]
    Remove,
    #[serde(rename = "EVENT_TYPE_RENAME")]
    Rename,
    #[serde(rename = "EVENT_TYPE_CHMOD")]
    Chmod,
}

impl From<watch::Kind> for EventKind {
    fn from(kind: watch::Kind) -> Self {
        match kind {
            watch::Kind::Create => EventKind::Create,
            watch::Kind::Write => EventKind::Write,
            watch::Kind::Remove => EventKind::Remove,
            watch::Kind::Rename => EventKind::Rename,
            watch::Kind::Chmod => EventKind::Chmod,
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum StreamEvent {
    Start(Empty),
    Filesystem(Event),
    Keepalive(Empty),
}

/// A watched directory.
struct Watching {
    _watch: Watch,
    changes: mpsc::Receiver<Change>,
    files: Arc<Files>,
    /// The absolute path by which the client knows the directory.
    dir: String,
    include_entry: bool,
}

impl Watching {
    async fn open(envd: &Envd, headers: &HeaderMap, request: WatchRequest) -> Result<Self> {
        let caller = Caller::of_call(envd.files.root(), headers)?;
        let dir = caller.path(&request.path)?;
        let (wanted, include_entry) = (dir.clone(), request.include_entry);
        let (watch, changes) = in_thread(&envd.files, move |files| open(files, &wanted, &request)).await?;
        let files = Arc::clone(&envd.files);
        Ok(Self { _watch: watch, changes, files, dir, include_entry })
    }

    /// The next event. An error if the watch cannot go on.
    async fn next(&mut self) -> Result<Event> {
        match self.changes.recv().await {
            None => {
                Err(Fault::new(Kind::NotFound, format!("the directory {:?} is no longer there", self.dir)))
            }
            Some(Change::Dropped) => Err(Fault::new(
                Kind::DataLoss,
                format!(
                    "more changed below {:?} than could be told: look at it, and watch it again",
                    self.dir
                ),
            )),
            Some(Change::Event { kind, path, .. }) => Ok(self.event(kind, &path).await),
        }
    }

    async fn event(&self, kind: watch::Kind, path: &Path) -> Event {
        let name = path.to_string_lossy().into_owned();
        let gone = matches!(kind, watch::Kind::Remove | watch::Kind::Rename);
        let entry = match self.include_entry && !gone {
            true => {
                let full = super::caller::clean(&format!("{}/{name}", self.dir));
                let look =
                    move |files: &Files| entry::describe(files.root(), &Names::read(files.root()), &full);
                // None if the file was deleted meanwhile.
                in_thread(&self.files, look).await.ok().map(Box::new)
            }
            false => None,
        };
        Event { name, kind: kind.into(), entry }
    }
}

fn open(files: &Files, dir: &str, request: &WatchRequest) -> Result<(Watch, mpsc::Receiver<Change>)> {
    let root = files.root();
    let found = path::stat(root, dir.as_bytes(), true)?;
    if EntryKind::from(&found) != EntryKind::Directory {
        return Err(Fault::invalid(format!("{dir:?} is not a directory")));
    }
    let fd = path::open(root, dir.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY)
        .map_err(|e| failed("opening", dir, e))?;
    let on_network = || {
        let found = rustix::fs::fstatfs(&fd).ok()?.f_type;
        // Magic numbers are 32 bits wide, whatever the type of the field.
        Some(NETWORK.contains(&u32::try_from(found & 0xffff_ffff).ok()?))
    };
    if !request.allow_network_mounts && on_network() == Some(true) {
        return Err(Fault::new(
            Kind::Precondition,
            format!("{dir:?} is on a network filesystem, where changes may go unseen: allow network mounts"),
        ));
    }
    let place = entry::kernel_path(fd.as_fd()).unwrap_or_else(|| dir.to_owned());
    watch::open(Path::new(&place), request.recursive).map_err(|e| match e.kind() {
        std::io::ErrorKind::QuotaExceeded => Fault::new(Kind::TooMany, e.to_string()),
        _ => failed("watching", dir, e),
    })
}

pub(super) async fn stream(envd: &Arc<Envd>, headers: &HeaderMap, body: Arriving) -> Result<Response<Body>> {
    connect::require_stream(headers)?;
    let deadline = connect::deadline(headers)?;
    let keepalive = connect::keepalive(headers);
    let request: WatchRequest = Messages::of(body).only().await?;
    let mut watching = Watching::open(envd, headers, request).await?;
    let (events, response) = connect::open_stream();
    tokio::spawn(async move {
        let mut message = StreamEvent::Start(Empty {});
        let far = Instant::now() + Duration::from_secs(u64::from(u32::MAX));
        let outcome = loop {
            if !events.send(&message).await {
                return;
            }
            message = tokio::select! {
                event = watching.next() => match event {
                    Ok(event) => StreamEvent::Filesystem(event),
                    Err(fault) => break Err(fault),
                },
                () = events.closed() => return,
                () = tokio::time::sleep(keepalive) => StreamEvent::Keepalive(Empty {}),
                () = tokio::time::sleep_until(deadline.unwrap_or(far)) => {
                    break Err(Fault::new(Kind::DeadlineExceeded, "the time that the client gave is over"));
                }
            };
        };
        events.end(outcome).await;
    });
    Ok(response)
}

/// The watchers that clients poll.
#[derive(Debug, Default)]
pub(super) struct Watchers(Mutex<HashMap<String, Watcher>>);

#[derive(Debug)]
struct Watcher {
    kept: Arc<Mutex<Kept>>,
    asked: Instant,
    /// Ends the task that collects events, and with it the watch.
    collector: tokio::task::AbortHandle,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.collector.abort();
    }
}

/// What a watcher keeps for its client.
#[derive(Debug)]
struct Kept {
    events: VecDeque<Event>,
    /// Why no more events will come.
    over: Option<Fault>,
    latest: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) async fn create(envd: &Arc<Envd>, headers: &HeaderMap, body: Arriving) -> Result<CreateAnswer> {
    let request: WatchRequest = connect::read_call(headers, body).await?;
    let mut watching = Watching::open(envd, headers, request).await?;
    let kept = Kept { events: VecDeque::new(), over: None, latest: Instant::now() };
    let kept = Arc::new(Mutex::new(kept));
    let to = Arc::clone(&kept);
    let collector = tokio::spawn(async move {
        loop {
            let event = watching.next().await;
            let mut kept = lock(&to);
            kept.latest = Instant::now();
            match event {
                Ok(event) if kept.events.len() < MAX_EVENTS => kept.events.push_back(event),
                Ok(_) => {
                    kept.over = Some(Fault::new(
                        Kind::DataLoss,
                        format!("more than {MAX_EVENTS} events were not asked for: make a new watcher"),
                    ));
                    return;
                }
                Err(fault) => {
                    kept.over = Some(fault);
                    return;
                }
            }
        }
    })
    .abort_handle();
    // An exec's id is hard to guess and never used twice.
    let watcher_id = ExecId::generate().to_string();
    let mut all = lock(&envd.watchers.0);
    while all.len() >= MAX_WATCHERS {
        let Some(oldest) = all.iter().min_by_key(|(_, w)| w.asked).map(|(id, _)| id.clone()) else { break };
        all.remove(&oldest);
    }
    all.insert(watcher_id.clone(), Watcher { kept, asked: Instant::now(), collector });
    Ok(CreateAnswer { watcher_id })
}

fn no_watcher(id: &str) -> Fault {
    Fault::new(Kind::NotFound, format!("there is no watcher {:?}", id.chars().take(64).collect::<String>()))
}

pub(super) async fn events(envd: &Arc<Envd>, headers: &HeaderMap, body: Arriving) -> Result<EventsAnswer> {
    let request: WatcherRequest = connect::read_call(headers, body).await?;
    let asked = Instant::now();
    let kept = {
        let mut all = lock(&envd.watchers.0);
        let watcher = all.get_mut(&request.watcher_id).ok_or_else(|| no_watcher(&request.watcher_id))?;
        watcher.asked = asked;
        Arc::clone(&watcher.kept)
    };
    loop {
        let latest = lock(&kept).latest;
        let quiet = latest.max(asked) + SETTLE;
        if quiet <= Instant::now() || asked.elapsed() > MAX_SETTLE {
            break;
        }
        tokio::time::sleep_until(quiet).await;
    }
    let mut kept = lock(&kept);
    match (&kept.over, kept.events.is_empty()) {
        // Events before the end are returned first.
        (Some(fault), true) => Err(fault.clone()),
        _ => Ok(EventsAnswer { events: std::mem::take(&mut kept.events).into() }),
    }
}

pub(super) async fn remove(envd: &Arc<Envd>, headers: &HeaderMap, body: Arriving) -> Result<Empty> {
    let request: WatcherRequest = connect::read_call(headers, body).await?;
    let removed = lock(&envd.watchers.0).remove(&request.watcher_id);
    removed.map(|_| Empty {}).ok_or_else(|| no_watcher(&request.watcher_id))
}
