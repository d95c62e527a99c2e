//! Heads of requests to hosts whose answers are scrubbed, and heads of those answers.

use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_RANGE, ETAG, HeaderName, HeaderValue,
    TRANSFER_ENCODING,
};
use http::response::Parts;
use http::{HeaderMap, StatusCode};

use super::coding::Coding;
use super::patterns::Patterns;
use super::tally::Tally;

/// Request headers that ask for a part, for a delta, or for messages that only the two ends can read.
const NOT_ASKED_FOR: &[&str] =
    &["range", "if-range", "sec-websocket-extensions", "a-im", "grpc-accept-encoding"];
/// Answer headers that describe the compressed bytes.
const OF_PACKED: &[&str] = &["content-encoding", "content-length", "content-md5", "content-digest", "digest"];
/// Compressions that such a request may ask for: those that need little memory to decompress.
const ASKED_FOR: &[&str] = &["gzip", "x-gzip", "deflate"];
const GRPC_ENCODING: &str = "grpc-encoding";

/// Why an answer is not passed on. The bay gets these texts, so none of them quotes the origin, which may have sent a
/// value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error(
        "the origin answered with a part of what was asked for, in which half a secret could not be found; ask for all of it"
    )]
    Partial,
    #[error(
        "the origin compressed its answer with an unknown coding, which cannot be undone here, so a secret in it could not be \
         found; ask for `Accept-Encoding: gzip` or `identity`"
    )]
    Coding,
    #[error("answers of this host had guesses of a secret's value in them too often")]
    Guessed,
    #[error(
        "the answer had the value of a secret in it that is easy to guess, so nothing of it is passed on; a value that is hard to \
         guess would be overwritten instead"
    )]
    Weak,
    #[error(
        "the origin compressed the messages within its answer, so a secret in them could not be found; turn that off"
    )]
    Messages,
}

/// Removes headers from a request that would make its answer unreadable for the scrubber, and limits
/// `Accept-Encoding` to compressions that it can read.
pub fn prepare(headers: &mut HeaderMap) {
    for name in NOT_ASKED_FOR {
        headers.remove(*name);
    }
    let wanted = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let wanted: Vec<String> = wanted.flat_map(|value| value.split(',')).filter_map(readable).collect();
    let wanted = if wanted.is_empty() { "identity".to_owned() } else { wanted.join(", ") };
    // The words come from a valid header.
    let wanted = HeaderValue::try_from(wanted).unwrap_or(HeaderValue::from_static("identity"));
    headers.insert(ACCEPT_ENCODING, wanted);
}

/// One item of `Accept-Encoding`, if it is allowed and the client does not refuse it.
fn readable(item: &str) -> Option<String> {
    let (name, weight) = item.split_once(';').unwrap_or((item, ""));
    let name = name.trim().to_ascii_lowercase();
    let refused = weight.trim().strip_prefix("q=").is_some_and(|weight| weight.trim().parse() == Ok(0.0));
    (ASKED_FOR.contains(&name.as_str()) && !refused).then_some(name)
}

/// Scrubs the head of an answer and returns the compression of its body. Headers that describe a compressed body are
/// removed or weakened.
pub fn open(patterns: &Patterns, head: &mut Parts, tally: &mut Tally) -> Result<(Coding, usize), Unreadable> {
    let partial = [StatusCode::PARTIAL_CONTENT, StatusCode::IM_USED].contains(&head.status);
    if partial || (head.status.is_success() && head.headers.contains_key(CONTENT_RANGE)) {
        return Err(Unreadable::Partial);
    }
    let coding = coding(&head.headers)?;
    // The HTTP connection decodes chunks and no other transfer coding.
    for value in head.headers.get_all(TRANSFER_ENCODING) {
        let plain =
            |word: &str| matches!(word.trim().to_ascii_lowercase().as_str(), "" | "chunked" | "identity");
        if !value.to_str().is_ok_and(|words| words.split(',').all(plain)) {
            return Err(Unreadable::Coding);
        }
    }
    for value in head.headers.get_all(GRPC_ENCODING) {
        if !value.as_bytes().eq_ignore_ascii_case(b"identity") {
            return Err(Unreadable::Messages);
        }
    }
    if coding != Coding::Identity {
        for name in OF_PACKED {
            head.headers.remove(*name);
        }
        weaken(&mut head.headers);
    }
    if head.headers.contains_key(ACCEPT_RANGES) {
        head.headers.insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
    }
    let found = headers(patterns, &mut head.headers, tally);
    readable_yet(patterns, tally).map(|()| (coding, found))
}

/// Checks whether the answer with this head may be passed on.
pub fn readable_yet(patterns: &Patterns, tally: &Tally) -> Result<(), Unreadable> {
    match (tally.has_weak(), patterns.are_guessed()) {
        (true, _) => Err(Unreadable::Weak),
        (false, true) => Err(Unreadable::Guessed),
        (false, false) => Ok(()),
    }
}

fn coding(headers: &HeaderMap) -> Result<Coding, Unreadable> {
    let mut found = Coding::Identity;
    for value in headers.get_all(CONTENT_ENCODING) {
        for name in value.to_str().map_err(|_| Unreadable::Coding)?.split(',') {
            match Coding::named(name.trim()).ok_or(Unreadable::Coding)? {
                Coding::Identity => {}
                // Only one compression can be undone.
                _ if found != Coding::Identity => return Err(Unreadable::Coding),
                coding => found = coding,
            }
        }
    }
    Ok(found)
}

/// Weakens the ETag: decompression changes the bytes but not the meaning.
fn weaken(headers: &mut HeaderMap) {
    if let Some(tag) = headers.get(ETAG)
        && !tag.as_bytes().starts_with(b"W/")
        && let Ok(weak) = HeaderValue::from_bytes(&[b"W/", tag.as_bytes()].concat())
    {
        headers.insert(ETAG, weak);
    }
}

/// Overwrites values in headers or trailers, and removes headers whose name contains one. Returns their number.
pub fn headers(patterns: &Patterns, headers: &mut HeaderMap, tally: &mut Tally) -> usize {
    let mut count = 0;
    for value in headers.values_mut() {
        let mut bytes = value.as_bytes().to_vec();
        let found = patterns.scrub_from(&mut bytes, 0, tally);
        if found > 0 {
            count += found;
            // If the sentinel makes it invalid, the whole header value becomes empty.
            *value = HeaderValue::from_bytes(&bytes).unwrap_or(HeaderValue::from_static(""));
        }
    }
    let named: Vec<HeaderName> =
        headers.keys().filter(|name| patterns.names(name.as_str().as_bytes(), tally)).cloned().collect();
    for name in named {
        headers.remove(name);
        count += 1;
    }
    count
}
