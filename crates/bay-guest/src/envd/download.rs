//! `GET /files`: a regular file, whole, in part or compressed.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use tokio::sync::mpsc;

use super::Envd;
use super::caller::{Caller, split};
use super::entry::failed;
use super::fault::{Fault, Kind, Result};
use super::filesystem::in_thread;
use crate::files::{self, CHUNK, QUEUE};
use crate::http::{Body, Query, stream};

pub(super) async fn get(envd: &Arc<Envd>, headers: &HeaderMap, query: &Query) -> Result<Response<Body>> {
    let caller = Caller::named(envd.files.root(), query.text("username")?)?;
    let path = caller.path(query.text("path")?.unwrap_or(""))?;
    let coding = coding(headers)?;
    let turn = envd.files.turn().await?;
    let name = split(&path).map_or("", |(_, name)| name).to_owned();
    let wanted = path.clone();
    let (file, size) =
        in_thread(&envd.files, move |files| Ok(files::file::open(files.root(), wanted.as_bytes())?)).await?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    // Files that the kernel generates report the size 0, but are not empty. So their answer has no length, and no part
    // of them can be requested.
    let part = match (coding, size) {
        (Coding::Gzip, _) | (_, 0) => None,
        (Coding::Identity, size) => range(headers, size)?,
    };
    let length = match (coding, part, size) {
        (Coding::Gzip, _, _) | (_, _, 0) => None,
        (_, Some((start, end)), _) => Some(end - start + 1),
        (_, None, size) => Some(size),
    };
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        match (coding, part) {
            (Coding::Gzip, _) => compress(file, sender),
            (Coding::Identity, Some((start, end))) => send_part(file, start, end - start + 1, &path, &sender),
            (Coding::Identity, None) => files::file::send(file, size, &sender),
        }
    });
    let mut response = stream(receiver, length);
    let headers = response.headers_mut();
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    headers.insert(header::CONTENT_DISPOSITION, disposition(&name));
    if coding == Coding::Gzip {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    if let Some((start, end)) = part {
        if let Ok(value) = HeaderValue::try_from(format!("bytes {start}-{end}/{size}")) {
            headers.insert(header::CONTENT_RANGE, value);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// The file's own name, for browsers. Bytes that a header cannot contain are percent-encoded.
fn disposition(name: &str) -> HeaderValue {
    let escaped = bay_text::percent::path_value(name.as_bytes());
    HeaderValue::try_from(format!("inline; filename*=utf-8''{escaped}"))
        .unwrap_or_else(|_| HeaderValue::from_static("inline"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Identity,
    Gzip,
}

/// Gzip if the client names only gzip, or refuses plain bytes. A client that lists several codings, as HTTP libraries
/// do by default, gets the plain bytes: it is on the same machine.
fn coding(headers: &HeaderMap) -> Result<Coding> {
    let Some(value) = headers.get(header::ACCEPT_ENCODING).and_then(|v| v.to_str().ok()) else {
        return Ok(Coding::Identity);
    };
    let mut accepted = Vec::new();
    let mut refused = Vec::new();
    for part in value.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (name, weight) = part.split_once(';').unwrap_or((part, ""));
        let zero = weight.trim().strip_prefix("q=").is_some_and(|q| q.parse::<f32>().is_ok_and(|q| q <= 0.0));
        if zero { &mut refused } else { &mut accepted }.push(name.trim().to_ascii_lowercase());
    }
    let has = |list: &[String], name: &str| list.iter().any(|n| n == name);
    let gzip = has(&accepted, "gzip") || (has(&accepted, "*") && !has(&refused, "gzip"));
    let identity = !has(&refused, "identity") && (!has(&refused, "*") || has(&accepted, "identity"));
    match (identity, gzip) {
        (true, true) if accepted == ["gzip"] => Ok(Coding::Gzip),
        (true, _) => Ok(Coding::Identity),
        (false, true) => Ok(Coding::Gzip),
        (false, false) => {
            Err(Fault::new(Kind::NotAcceptable, "a file can be sent as it is (identity) or as gzip"))
        }
    }
}

/// The first and last byte, if one part is requested. If the header asks for several parts or has another form, the
/// whole file is sent. A part that the file does not have is an error.
fn range(headers: &HeaderMap, size: u64) -> Result<Option<(u64, u64)>> {
    let Some(spec) = headers.get(header::RANGE).and_then(|v| v.to_str().ok()?.strip_prefix("bytes=")) else {
        return Ok(None);
    };
    let Some((first, last)) = spec.split_once('-').filter(|_| !spec.contains(',')) else {
        return Ok(None);
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let part = match (first.trim(), last.trim()) {
        ("", suffix) => number(suffix).filter(|n| *n > 0).map(|n| (size.saturating_sub(n), size - 1)),
        (first, "") => number(first).map(|first| (first, size - 1)),
        (first, last) => match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => Some((first, last.min(size - 1))),
            _ => return Ok(None),
        },
    };
    match part {
        Some((first, _)) if first < size => Ok(part),
        _ => Err(Fault::new(
            Kind::BadRange,
            format!("the file has {size} bytes, and {spec:?} is not among them"),
        )),
    }
}

fn send_part(mut file: File, start: u64, len: u64, path: &str, to: &mpsc::Sender<io::Result<Bytes>>) {
    match file.seek(SeekFrom::Start(start)) {
        Ok(_) => files::file::send(file, len, to),
        Err(e) => {
            let fault = failed("reading", path, e);
            // The reader may go away; that is no error.
            let _ = to.blocking_send(Err(io::Error::other(fault)));
        }
    }
}

fn compress(file: File, to: mpsc::Sender<io::Result<Bytes>>) {
    let mut encoder = GzEncoder::new(Chunks { to, buffer: Vec::new() }, Compression::fast());
    let outcome = io::copy(&mut file.take(u64::MAX), &mut encoder).and_then(|_| encoder.try_finish());
    let chunks = encoder.get_mut();
    let last = match outcome {
        Ok(()) => chunks.flush(),
        Err(e) => Err(e),
    };
    if let Err(e) = last {
        let _ = chunks.to.blocking_send(Err(e));
    }
}

/// Collects what is written and sends it in larger pieces.
struct Chunks {
    to: mpsc::Sender<io::Result<Bytes>>,
    buffer: Vec<u8>,
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::take(&mut self.buffer);
        self.to.blocking_send(Ok(chunk.into())).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: header::HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn one_part_of_a_file_can_be_requested() {
        let asked = |value| range(&with(header::RANGE, value), 10);
        assert_eq!(asked("bytes=0-0"), Ok(Some((0, 0))));
        assert_eq!(asked("bytes=2-"), Ok(Some((2, 9))));
        assert_eq!(asked("bytes=-3"), Ok(Some((7, 9))));
        assert_eq!(asked("bytes=-99"), Ok(Some((0, 9))));
        assert_eq!(asked("bytes=8-99"), Ok(Some((8, 9))));
        for whole in ["bytes=0-1,3-4", "lines=1-2", "bytes=5-2", "bytes=a-b"] {
            assert_eq!(asked(whole), Ok(None), "{whole}");
        }
        for outside in ["bytes=10-", "bytes=-0", "bytes=99-100", "bytes=99999999999999999999-"] {
            assert_eq!(asked(outside).unwrap_err().kind, Kind::BadRange, "{outside}");
        }
    }

    #[test]
    fn gzip_is_sent_only_to_clients_that_name_nothing_else() {
        let wanted = |value| coding(&with(header::ACCEPT_ENCODING, value));
        assert_eq!(wanted("gzip"), Ok(Coding::Gzip));
        assert_eq!(wanted("gzip, identity;q=0"), Ok(Coding::Gzip));
        assert_eq!(wanted("*;q=0, gzip"), Ok(Coding::Gzip));
        for plain in ["", "gzip, deflate, br", "identity", "br", "gzip;q=0"] {
            assert_eq!(wanted(plain), Ok(Coding::Identity), "{plain}");
        }
        assert_eq!(wanted("br, identity;q=0").unwrap_err().kind, Kind::NotAcceptable);
    }
}
