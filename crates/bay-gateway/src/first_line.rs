//! Tells HTTP/1 from other protocols by the first line of a connection.
//!
//! It is generous: a line that a forgiving server could take for HTTP/1 counts. The parser then refuses what is not
//! HTTP as it should be. HTTP/2 without TLS does not count: it is not read.

use std::time::Duration;

use tokio::time::timeout;

use crate::limits::MAX_FIRST_LINE_BYTES;
use crate::stream::Prefixed;

/// Whether the client begins with a request line. Nothing is consumed.
pub(crate) async fn is_http1(stream: &mut Prefixed, within: Duration) -> bool {
    let reading = async {
        loop {
            if let Some(sure) = judge(stream.seen()) {
                return sure;
            }
            if !matches!(stream.more().await, Ok(true)) {
                return false;
            }
        }
    };
    match timeout(within, reading).await {
        Ok(is_http1) => is_http1,
        Err(_) => begins_like_http1(stream.seen()),
    }
}

/// Whether these first bytes of a connection are HTTP/1. `None` if more bytes are needed.
#[must_use]
pub fn judge(seen: &[u8]) -> Option<bool> {
    // Servers skip empty lines before a request.
    let line = seen.trim_ascii_start();
    let end = line.iter().position(|byte| *byte == b'\n');
    let text = &line[..end.unwrap_or(line.len())];
    let first_is_letter = text.first().is_none_or(u8::is_ascii_alphabetic);
    if !first_is_letter || text.iter().any(|byte| byte.is_ascii_control() && !matches!(byte, b'\r' | b'\t')) {
        return Some(false);
    }
    match end {
        Some(_) => Some(text.to_ascii_uppercase().windows(VERSION.len()).any(|part| part == VERSION)),
        None if seen.len() >= MAX_FIRST_LINE_BYTES => Some(begins_like_http1(seen)),
        None => None,
    }
}

const VERSION: &[u8] = b" HTTP/1.";

/// Whether an unfinished line has a word, a space, and the beginning of a path or a URL.
fn begins_like_http1(seen: &[u8]) -> bool {
    let line = seen.trim_ascii_start();
    let Some(at) = line.iter().position(|byte| *byte == b' ') else { return false };
    let (method, target) = (&line[..at], line[at..].trim_ascii_start());
    !method.is_empty()
        && method.iter().all(u8::is_ascii_alphabetic)
        && (target.starts_with(b"/") || target.to_ascii_lowercase().starts_with(b"http"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_lines_are_told_from_other_protocols() {
        for (seen, sure) in [
            (&b"GET / HTTP/1.1\r\n"[..], Some(true)),
            (b"\r\n\n  get /x http/1.0\n", Some(true)),
            (b"GET\t/ HTTP/1.1\n", Some(true)),
            (b"BREW http://a.test/ HTTP/1.9\r\nHost:", Some(true)),
            (b"", None),
            (b"\r\n", None),
            (b"GET /half", None),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Some(false)),
            (b"PING\r\n", Some(false)),
            (b"SET key value\r\n", Some(false)),
            (b"*1\r\n$4\r\nPING\r\n", Some(false)),
            (b"\x16\x03\x01\x02\x00", Some(false)),
            (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", Some(false)),
            (b"A\x00\x00\x00 HTTP/1.1\n", Some(false)),
            (b"SSH-2.0-OpenSSH\r\n", Some(false)),
        ] {
            assert_eq!(judge(seen), sure, "{:?}", String::from_utf8_lossy(seen));
        }
    }

    #[test]
    fn a_line_that_never_ends_is_judged_by_its_beginning() {
        let long = [b"GET /".as_slice(), &[b'a'; MAX_FIRST_LINE_BYTES]].concat();
        assert_eq!(judge(&long), Some(true));
        assert_eq!(judge(&[b'a'; MAX_FIRST_LINE_BYTES]), Some(false));
        assert_eq!(judge(&[b' '; MAX_FIRST_LINE_BYTES]), Some(false));
        assert!(begins_like_http1(b"GET /half") && begins_like_http1(b"GET  http://"));
        assert!(!begins_like_http1(b"GET") && !begins_like_http1(b"SELECT 1") && !begins_like_http1(b" /"));
    }
}
