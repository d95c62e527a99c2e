//! Access for the fuzz targets.

use bytes::{Bytes, BytesMut};

use super::connect::take_envelope;
use super::multipart::{Parts, boundary};

/// Name, file name and content of every part that was read, and whether the body was complete.
pub fn multipart(
    content_type: &str,
    body: impl std::io::Read,
) -> (Vec<(String, Option<String>, Vec<u8>)>, bool) {
    let mut found = Vec::new();
    let Some(boundary) = boundary(content_type) else { return (found, false) };
    let mut parts = Parts::new(body, &boundary);
    loop {
        match parts.next() {
            Ok(Some(head)) => found.push((head.name, head.filename, Vec::new())),
            Ok(None) => return (found, true),
            Err(_) => return (found, false),
        }
        loop {
            match (parts.chunk(), found.last_mut()) {
                (Ok(bytes), _) if bytes.is_empty() => break,
                (Ok(bytes), Some((_, _, content))) => content.extend(bytes),
                _ => return (found, false),
            }
        }
    }
}

/// The messages at the beginning of a stream, with `None` for its end, and the number of bytes that they used.
pub fn envelopes(bytes: &[u8]) -> (Vec<Option<Bytes>>, usize) {
    let mut buffer = BytesMut::from(bytes);
    let mut found = Vec::new();
    while let Ok(Some(message)) = take_envelope(&mut buffer) {
        found.push(message);
    }
    (found, bytes.len() - buffer.len())
}
