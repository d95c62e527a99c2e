//! Bodies of any content, compressed or said to be, in any pieces: read without a panic, and never showing the value.
#![no_main]

use std::convert::Infallible;
use std::sync::Arc;

use bay_gateway::scrub::{Coding, CodingError, Hidden, Patterns, Scrubbed};
use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use libfuzzer_sys::fuzz_target;

const VALUE: &[u8] = b"ghp_Canary42";
const SENTINEL: &[u8] = b"ghp_Qw7RtYu9";

/// New ones for each input: after a few whole values nothing would come out any more.
fn patterns() -> Arc<Patterns> {
    let hidden = Hidden::new(VALUE, SENTINEL);
    Arc::new(Patterns::new(&[hidden]).expect("a value of a good length"))
}

#[derive(Debug)]
struct Broken;

impl From<CodingError> for Broken {
    fn from(_: CodingError) -> Self {
        Self
    }
}

impl From<Infallible> for Broken {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

fuzz_target!(|input: &[u8]| {
    let [coding, size, body @ ..] = input else { return };
    let coding = match coding % 5 {
        0 => Coding::Identity,
        1 => Coding::Gzip,
        2 => Coding::Deflate,
        3 => Coding::Brotli,
        _ => Coding::Zstandard,
    };
    let pieces = body.chunks(usize::from(*size).max(1));
    let pieces: Vec<Result<_, Broken>> =
        pieces.map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece)))).collect();
    let body_of = StreamBody::new(futures_util::stream::iter(pieces));
    let mut scrubbed = Scrubbed::new(body_of, patterns(), coding, Arc::default());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let out = runtime.block_on(async {
        let mut out = Vec::new();
        while let Some(Ok(frame)) = scrubbed.frame().await {
            out.extend(frame.into_data().unwrap_or_default());
            if out.len() > 4 << 20 {
                break;
            }
        }
        out
    });
    assert!(!out.windows(VALUE.len()).any(|window| window == VALUE));
    if coding == Coding::Identity {
        assert_eq!(out.len(), body.len());
    }
});
