//! `POST /files` and `POST /files/compose`: write files in place, so that watchers and hard links see the new content.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use flate2::read::MultiGzDecoder;
use http::{HeaderMap, Response, StatusCode, header};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::Envd;
use super::body::Arriving;
use super::caller::{Caller, split};
use super::connect;
use super::entry::{self, Metadata, failed};
use super::fault::{Fault, Kind, Result};
use super::filesystem::in_thread;
use super::multipart::{Parts, boundary};
use crate::files::{self, CHUNK, Files, Source, path};
use crate::http::{Body, Query, json};
use crate::spool;

/// Files in one upload.
const MAX_FILES: usize = 4096;
/// Files that can be joined at once.
const MAX_SOURCES: usize = 1024;
/// How long a client may be silent during an upload, which occupies a slot.
const SILENCE: Duration = Duration::from_secs(120);
/// Mode of a new file.
const MODE: u32 = 0o644;
/// The form field with a file.
const FIELD: &str = "file";
const METADATA_HEADER: &str = "x-metadata-";

/// A file that was written.
#[derive(Debug, Serialize)]
struct Written {
    path: String,
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    metadata: Metadata,
}

/// Where an upload goes, and how.
struct Wanted {
    caller: Caller,
    path: Option<String>,
    metadata: Metadata,
    form: Form,
    gzip: bool,
}

enum Form {
    /// The body is the content of the file.
    Raw,
    Multipart(String),
}

pub(super) async fn post(
    envd: &Arc<Envd>,
    headers: &HeaderMap,
    query: &Query,
    body: Arriving,
) -> Result<Response<Body>> {
    let wanted = parse(envd, headers, query)?;
    let turn = envd.files.turn().await?;
    let work = move |files: &Files, source: Source| match wanted.gzip {
        true => write_all(files, &wanted, MultiGzDecoder::new(source)),
        false => write_all(files, &wanted, source),
    };
    let written = files::receive_with(&envd.files, body, turn, Some(SILENCE), work)
        .await
        .map_err(|e| Fault::internal(&e))??;
    Ok(json(StatusCode::OK, &written))
}

fn parse(envd: &Envd, headers: &HeaderMap, query: &Query) -> Result<Wanted> {
    let caller = Caller::named(envd.files.root(), query.text("username")?)?;
    let path = query.text("path")?.filter(|p| !p.is_empty()).map(|p| caller.path(p)).transpose()?;
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    let form = match kind.split(';').next().map(str::trim) {
        Some("application/octet-stream") => Form::Raw,
        _ => Form::Multipart(boundary(kind).ok_or_else(|| {
            Fault::invalid(format!(
                "a file is sent as multipart/form-data or application/octet-stream, not {kind:?}"
            ))
        })?),
    };
    if matches!(form, Form::Raw) && path.is_none() {
        return Err(Fault::invalid("path= is missing"));
    }
    let gzip = match headers.get(header::CONTENT_ENCODING).map(http::HeaderValue::as_bytes) {
        None | Some(b"identity" | b"") => false,
        Some(coding) if coding.eq_ignore_ascii_case(b"gzip") => true,
        Some(_) => return Err(Fault::new(Kind::UnsupportedMedia, "the only content encoding is gzip")),
    };
    let mut metadata = Metadata::new();
    for name in headers.keys() {
        if let Some(key) = name.as_str().strip_prefix(METADATA_HEADER) {
            let value = headers.get(name).and_then(|v| v.to_str().ok());
            let value =
                value.ok_or_else(|| Fault::invalid("metadata must be printable ASCII, with a name"))?;
            metadata.insert(key.to_owned(), value.to_owned());
        }
    }
    entry::check_metadata(&metadata)?;
    Ok(Wanted { caller, path, metadata, form, gzip })
}

fn write_all(files: &Files, wanted: &Wanted, mut source: impl Read) -> Result<Vec<Written>> {
    let Form::Multipart(boundary) = &wanted.form else {
        let path = wanted.path.as_deref().unwrap_or("");
        let mut buffer = vec![0; CHUNK];
        let next = || match read_some(&mut source, &mut buffer) {
            Ok(len) => Ok(buffer[..len].to_vec()),
            Err(e) => Err(broke_off(&e)),
        };
        return Ok(vec![write_one(files, wanted, path, next)?]);
    };
    let mut parts = Parts::new(source, boundary);
    let mut written = Vec::new();
    let mut paths = HashSet::new();
    while let Some(head) = parts.next()? {
        if head.name != FIELD {
            continue;
        }
        let path = match (&wanted.path, &head.filename) {
            (Some(path), _) => path.clone(),
            (None, Some(name)) if !name.is_empty() => wanted.caller.path(name)?,
            (None, _) => return Err(Fault::invalid("a file is sent without a name, and path= is missing")),
        };
        if !paths.insert(path.clone()) {
            return Err(Fault::invalid(format!("two files are sent for {path:?}")));
        }
        if written.len() >= MAX_FILES {
            return Err(Fault::invalid(format!("more than {MAX_FILES} files are sent at once")));
        }
        written.push(write_one(files, wanted, &path, || parts.chunk())?);
    }
    if written.is_empty() {
        return Err(Fault::invalid(format!("the upload holds no field {FIELD:?}")));
    }
    Ok(written)
}

fn read_some(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match source.read(buffer) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn broke_off(error: &io::Error) -> Fault {
    match error.kind() {
        io::ErrorKind::ConnectionAborted => Fault::new(Kind::Canceled, "the upload broke off"),
        _ => Fault::invalid(format!("the upload is not gzip, or damaged: {error}")),
    }
}

fn write_one(
    files: &Files,
    wanted: &Wanted,
    path: &str,
    mut next: impl FnMut() -> Result<Vec<u8>>,
) -> Result<Written> {
    let mut file = create(files.root(), path, wanted.caller.owner())?;
    entry::write_metadata(file.as_fd(), &wanted.metadata)?;
    loop {
        let bytes = next()?;
        if bytes.is_empty() {
            break;
        }
        file.write_all(&bytes).map_err(|e| failed("writing", path, e))?;
    }
    Ok(written(path, wanted.metadata.clone()))
}

fn written(path: &str, metadata: Metadata) -> Written {
    let name = split(path).map_or("", |(_, name)| name).to_owned();
    Written { path: path.to_owned(), name, kind: "file", metadata }
}

/// Opens a file to be written from its beginning, and gives it to `owner`. If it does not exist, makes it, and the
/// missing directories with the same owner. A watcher sees only that it is made, gets its owner, and is written.
fn create(root: BorrowedFd<'_>, path: &str, owner: (u32, u32)) -> Result<File> {
    let slot = path::slot(root, path.as_bytes(), true, owner)?;
    // Not blocking: the regular file may have been replaced by something else.
    let flags = OFlags::WRONLY
        | OFlags::CREATE
        | OFlags::TRUNC
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC;
    let refused = |e: rustix::io::Errno| failed("writing", path, e);
    let file =
        rustix::fs::openat(&slot.dir, &slot.name, flags, Mode::from_raw_mode(MODE)).map_err(refused)?;
    let stat = rustix::fs::fstat(&file).map_err(refused)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
        return Err(Fault::invalid(format!("{path:?} is not a regular file")));
    }
    rustix::fs::fchown(
        &file,
        Some(rustix::fs::Uid::from_raw(owner.0)),
        Some(rustix::fs::Gid::from_raw(owner.1)),
    )
    .or_else(|e| {
        // Only root can change the owner. A guest that is not root (in tests) keeps the files.
        if rustix::process::geteuid().is_root() { Err(e) } else { Ok(()) }
    })
    .map_err(refused)?;
    if slot.existing.is_none() && stat.st_mode & 0o777 != MODE {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(MODE)).map_err(refused)?;
    }
    Ok(file.into())
}

#[derive(Debug, Deserialize)]
struct Compose {
    source_paths: Vec<String>,
    destination: String,
    #[serde(default)]
    username: Option<String>,
}

/// Joins files into one, in order, and removes them.
pub(super) async fn compose(envd: &Arc<Envd>, body: Arriving) -> Result<Response<Body>> {
    let wanted: Compose = connect::parse(&connect::collect(body).await?)?;
    let _turn = envd.files.turn().await?;
    let written = in_thread(&envd.files, move |files| {
        let root = files.root();
        let caller = Caller::named(root, wanted.username.as_deref().filter(|n| !n.is_empty()))?;
        if wanted.source_paths.is_empty() || wanted.source_paths.len() > MAX_SOURCES {
            return Err(Fault::invalid(format!("between 1 and {MAX_SOURCES} files can be put together")));
        }
        let destination = caller.path(&wanted.destination)?;
        let sources: Vec<String> =
            wanted.source_paths.iter().map(|p| caller.path(p)).collect::<Result<_>>()?;
        if sources.contains(&destination) {
            return Err(Fault::invalid("a file cannot be put together from itself"));
        }
        // All are opened before anything is written, so a missing one changes nothing.
        let mut opened = Vec::new();
        for source in &sources {
            opened.push(files::file::open(root, source.as_bytes())?.0);
        }
        let mut file = create(root, &destination, caller.owner())?;
        entry::write_metadata(file.as_fd(), &Metadata::new())?;
        for mut source in opened {
            io::copy(&mut source, &mut file).map_err(|e| failed("writing", &destination, e))?;
        }
        for source in &sources {
            if let Some((parent, name)) = split(source)
                && let Ok(dir) = path::open(root, parent.as_bytes(), OFlags::PATH | OFlags::DIRECTORY)
            {
                spool::remove_tree(dir.as_fd(), name.as_bytes())
                    .map_err(|e| failed("removing", source, e))?;
            }
        }
        Ok(written(&destination, Metadata::new()))
    })
    .await?;
    Ok(json(StatusCode::OK, &written))
}
