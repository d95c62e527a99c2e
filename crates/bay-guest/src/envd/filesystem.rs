//! `filesystem.Filesystem`: lists and changes the bay's files, with root's authority. The user of the request owns the
//! directories that it makes.

use std::os::fd::AsFd;
use std::sync::Arc;

use http::{HeaderMap, Response};
use rustix::fs::{Dir, OFlags};
use serde::{Deserialize, Serialize};

use super::body::Arriving;
use super::caller::{Caller, split};
use super::connect::{self, lenient};
use super::entry::{self, Entry, EntryKind, failed};
use super::fault::{Fault, Kind, Result};
use super::{Empty, Envd, watching};
use crate::files::{Files, path};
use crate::http::Body;
use crate::spool;
use crate::users::Names;

/// Most entries in one list; a longer list is refused.
const MAX_ENTRIES: usize = 100_000;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PathRequest {
    #[serde(deserialize_with = "lenient")]
    path: String,
    #[serde(deserialize_with = "lenient")]
    depth: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MoveRequest {
    #[serde(deserialize_with = "lenient")]
    source: String,
    #[serde(deserialize_with = "lenient")]
    destination: String,
}

#[derive(Debug, Serialize)]
struct EntryAnswer {
    entry: Entry,
}

#[derive(Debug, Serialize)]
struct ListAnswer {
    entries: Vec<Entry>,
}

pub(super) async fn call(
    envd: &Arc<Envd>,
    method: &str,
    headers: &HeaderMap,
    body: Arriving,
) -> Response<Body> {
    match method {
        "Stat" => connect::answer(stat(envd, headers, body).await),
        "MakeDir" => connect::answer(make_dir(envd, headers, body).await),
        "Move" => connect::answer(rename(envd, headers, body).await),
        "ListDir" => connect::answer(list(envd, headers, body).await),
        "Remove" => connect::answer(remove(envd, headers, body).await),
        "WatchDir" => {
            watching::stream(envd, headers, body).await.unwrap_or_else(|fault| connect::refuse_stream(&fault))
        }
        "CreateWatcher" => connect::answer(watching::create(envd, headers, body).await),
        "GetWatcherEvents" => connect::answer(watching::events(envd, headers, body).await),
        "RemoveWatcher" => connect::answer(watching::remove(envd, headers, body).await),
        _ => Fault::new(Kind::Unimplemented, format!("there is no filesystem.Filesystem/{method}")).to_call(),
    }
}

/// Reads a request for one path, and does the work on a thread that may wait for the disk.
async fn on_path<T: Send + 'static>(
    envd: &Envd,
    headers: &HeaderMap,
    body: Arriving,
    work: impl FnOnce(&Files, &Caller, PathRequest) -> Result<T> + Send + 'static,
) -> Result<T> {
    let request: PathRequest = connect::read_call(headers, body).await?;
    let caller = Caller::of_call(envd.files.root(), headers)?;
    in_thread(&envd.files, move |files| work(files, &caller, request)).await
}

pub(super) async fn in_thread<T: Send + 'static>(
    files: &Arc<Files>,
    work: impl FnOnce(&Files) -> Result<T> + Send + 'static,
) -> Result<T> {
    let files = Arc::clone(files);
    tokio::task::spawn_blocking(move || work(&files)).await.map_err(|e| Fault::internal(&e))?
}

async fn stat(envd: &Envd, headers: &HeaderMap, body: Arriving) -> Result<EntryAnswer> {
    on_path(envd, headers, body, |files, caller, request| {
        let path = caller.path(&request.path)?;
        Ok(EntryAnswer { entry: entry::describe(files.root(), &Names::read(files.root()), &path)? })
    })
    .await
}

async fn make_dir(envd: &Envd, headers: &HeaderMap, body: Arriving) -> Result<EntryAnswer> {
    on_path(envd, headers, body, |files, caller, request| {
        let path = caller.path(&request.path)?;
        let names = Names::read(files.root());
        if let Ok(found) = path::stat(files.root(), path.as_bytes(), true) {
            return Err(match EntryKind::from(&found) {
                EntryKind::Directory => {
                    Fault::new(Kind::AlreadyExists, format!("the directory {path:?} exists already"))
                }
                _ => Fault::invalid(format!("{path:?} exists and is not a directory")),
            });
        }
        path::make_dirs(files.root(), path.as_bytes(), caller.owner())?;
        Ok(EntryAnswer { entry: entry::describe(files.root(), &names, &path)? })
    })
    .await
}

async fn rename(envd: &Envd, headers: &HeaderMap, body: Arriving) -> Result<EntryAnswer> {
    let request: MoveRequest = connect::read_call(headers, body).await?;
    let caller = Caller::of_call(envd.files.root(), headers)?;
    in_thread(&envd.files, move |files| {
        let root = files.root();
        let (from, to) = (caller.path(&request.source)?, caller.path(&request.destination)?);
        let the_root = || Fault::invalid("the root directory cannot be moved");
        let (from_parent, from_name) = split(&from).ok_or_else(the_root)?;
        let (to_parent, to_name) = split(&to).ok_or_else(the_root)?;
        // Checked before anything is made: moving a missing file must not leave directories behind.
        path::stat(root, from.as_bytes(), false)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let from_dir =
            path::open(root, from_parent.as_bytes(), flags).map_err(|e| failed("opening", from_parent, e))?;
        let to_dir = path::make_dirs(root, to_parent.as_bytes(), caller.owner())?;
        rustix::fs::renameat(&from_dir, from_name, &to_dir, to_name).map_err(|e| match e {
            rustix::io::Errno::XDEV => {
                Fault::invalid(format!("{from:?} and {to:?} are on different filesystems: copy it instead"))
            }
            rustix::io::Errno::EXIST | rustix::io::Errno::NOTEMPTY | rustix::io::Errno::ISDIR => {
                Fault::invalid(format!("{to:?} exists and cannot be replaced by {from:?}"))
            }
            rustix::io::Errno::INVAL => Fault::invalid(format!("{to:?} is inside of {from:?}")),
            e => failed("moving", &from, e),
        })?;
        Ok(EntryAnswer { entry: entry::describe(root, &Names::read(root), &to)? })
    })
    .await
}

async fn remove(envd: &Envd, headers: &HeaderMap, body: Arriving) -> Result<Empty> {
    on_path(envd, headers, body, |files, caller, request| {
        let path = caller.path(&request.path)?;
        let (parent, name) =
            split(&path).ok_or_else(|| Fault::invalid("the root directory cannot be removed"))?;
        let dir = match path::open(files.root(), parent.as_bytes(), OFlags::PATH | OFlags::DIRECTORY) {
            Ok(dir) => dir,
            Err(e)
                if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
            {
                return Ok(Empty {});
            }
            Err(e) => return Err(failed("opening", parent, e)),
        };
        spool::remove_tree(dir.as_fd(), name.as_bytes()).map_err(|e| failed("removing", &path, e))?;
        Ok(Empty {})
    })
    .await
}

async fn list(envd: &Envd, headers: &HeaderMap, body: Arriving) -> Result<ListAnswer> {
    on_path(envd, headers, body, |files, caller, request| {
        let path = caller.path(&request.path)?;
        let found = path::stat(files.root(), path.as_bytes(), true)?;
        if EntryKind::from(&found) != EntryKind::Directory {
            return Err(Fault::invalid(format!("{path:?} is not a directory")));
        }
        Ok(ListAnswer { entries: list_below(files, &path, request.depth.max(1))? })
    })
    .await
}

/// Entries ordered by path, down to the requested depth. Links to directories are not followed.
fn list_below(files: &Files, top: &str, depth: u32) -> Result<Vec<Entry>> {
    let names = Names::read(files.root());
    let mut entries = Vec::new();
    let mut waiting = Vec::new();
    push_children(files, top, 1, &mut waiting)?;
    while let Some((path, level)) = waiting.pop() {
        // The entry was deleted after its name was read.
        let Ok(entry) = entry::describe(files.root(), &names, &path) else { continue };
        let enter = entry.kind == EntryKind::Directory && !entry.is_link() && level < depth;
        entries.push(entry);
        if enter {
            // A directory that cannot be read is listed, without its content.
            let _ = push_children(files, &path, level + 1, &mut waiting);
        }
        if entries.len() + waiting.len() > MAX_ENTRIES {
            return Err(Fault::invalid(format!(
                "there are more than {MAX_ENTRIES} entries below {top:?}: ask for less depth"
            )));
        }
    }
    Ok(entries)
}

/// Pushes the names in a directory onto the stack, so that the first one is on top.
fn push_children(files: &Files, dir: &str, level: u32, waiting: &mut Vec<(String, u32)>) -> Result<()> {
    let fd = path::open(files.root(), dir.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY)
        .map_err(|e| failed("opening", dir, e))?;
    let mut names = Vec::new();
    for found in Dir::new(fd).map_err(|e| failed("reading", dir, e))? {
        let found = found.map_err(|e| failed("reading", dir, e))?;
        // Names that are not UTF-8 cannot be represented.
        if let Ok(name) = found.file_name().to_str()
            && !matches!(name, "." | "..")
        {
            names.push(name.to_owned());
        }
        if names.len() > MAX_ENTRIES {
            break;
        }
    }
    names.sort_unstable_by(|a, b| b.cmp(a));
    let slash = if dir == "/" { "" } else { "/" };
    waiting.extend(names.into_iter().map(|name| (format!("{dir}{slash}{name}"), level)));
    Ok(())
}
